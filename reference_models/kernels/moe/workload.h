// Published shapes and the data to run the grouped GEMM on them: what cases and the tuner share.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/common/buffer.h"
#include "kernels/common/launch.h"
#include "kernels/moe/moe_gemm.h"
#include "kernels/moe/routing.h"

namespace cglint::kernels::moe {

// One shard of a published mixture-of-experts layer.
struct MoePreset {
  const char* name;
  int hidden;
  int intermediate;   // per expert on this shard
  int experts;        // of the model
  int local_experts;  // on this shard; the first ones are local where there are more
  int top_k;
  int num_groups;
  int top_groups;
  float scaling;
};
// k2-tp8, k2-tp4, k2-ep4, v3-tp8, kimi-linear-tp2.
std::span<const MoePreset> moe_presets();
const MoePreset* find_preset(const char* name);  // null if unknown

enum class ExpertGemm : uint8_t { kW13, kW2 };
inline int gemm_n(const MoePreset& preset, ExpertGemm gemm) {
  return gemm == ExpertGemm::kW13 ? 2 * preset.intermediate : preset.hidden;
}
inline int gemm_k(const MoePreset& preset, ExpertGemm gemm) {
  return gemm == ExpertGemm::kW13 ? preset.hidden : preset.intermediate;
}

// Weights of all local experts for one GEMM.
struct ExpertWeights {
  WeightType type = WeightType::kBf16;
  int experts = 0, n = 0, k = 0;
  DeviceBuffer<bf16> bf16_data;
  DeviceBuffer<fp8_e4m3> fp8_data;
  DeviceBuffer<float> scale;

  [[nodiscard]] cudaError_t allocate(WeightType weight_type, const MoePreset& preset, ExpertGemm gemm);
  [[nodiscard]] cudaError_t fill(uint64_t seed);
  const void* data() const {
    return type == WeightType::kBf16 ? static_cast<const void*>(bf16_data.get())
                                     : static_cast<const void*>(fp8_data.get());
  }
};

// `sets` different choices of experts for `tokens` tokens, host side. Choices are random and distinct in a
// token. A shard with part of the experts gets exactly its share of each token's choices.
std::vector<std::vector<int32_t>> make_choices(const MoePreset& preset, int tokens, int sets, uint64_t seed);
std::vector<int32_t> make_expert_map(const MoePreset& preset);  // empty where all are local

// One expert GEMM at one token count, with as many expert choices as it takes to defeat L2.
//
// Only weights are to come from memory: in a layer the block lists were written a moment ago. With one or two
// tokens all sets therefore share one set of lists, and each set has its own stretch of experts as the
// weights; with more the lists' own latency is lost in the time of the GEMM.
class GemmWorkload {
 public:
  GemmWorkload(const MoePreset& preset, WeightType type, ExpertGemm gemm, int tokens);

  // Bytes one run must move: the weights of the experts chosen (mean over the sets), each row of x that is
  // used and each output row once.
  double bytes() const;
  int sets() const { return static_cast<int>(choices_.size()); }

  // Takes `weights` or, if null, makes its own. Allocates and fills activations.
  [[nodiscard]] cudaError_t prepare(std::shared_ptr<ExpertWeights> weights);
  // Block lists and output space for `config`; must precede run() with it. Not capturable.
  [[nodiscard]] cudaError_t select(const TileConfig& config);
  // The GEMM with the selected configuration and the next set of choices. Capturable. With `ctx.pdl` the
  // lists count as settled (MoeGemmArgs::routing_is_settled).
  [[nodiscard]] cudaError_t run(const LaunchContext& ctx);
  // Error of the selected configuration against the plain reference on fresh inputs, the worst of two sets.
  double check(uint64_t seed, bool pdl);

 private:
  MoeGemmArgs arguments(size_t set);
  cudaError_t fill_activations(uint64_t seed);

  MoePreset preset_;
  WeightType type_;
  ExpertGemm gemm_;
  int tokens_;
  bool shares_lists_;  // set s is set 0 with its experts moved up by s * window_
  int window_ = 0;
  std::vector<std::vector<int32_t>> choices_;
  TileConfig config_;
  size_t next_set_ = 0;
  int max_blocks_ = 0;

  std::shared_ptr<ExpertWeights> weights_;
  DeviceBuffer<bf16> x_bf16_;
  DeviceBuffer<fp8_e4m3> x_fp8_;
  DeviceBuffer<float> x_scale_;
  DeviceBuffer<unsigned char> out_;
  DeviceBuffer<int32_t> sorted_ids_;  // [sets, max_blocks * block_m]
  DeviceBuffer<int32_t> expert_ids_;  // [sets, max_blocks]
  DeviceBuffer<int32_t> num_padded_;  // [sets]
};

}  // namespace cglint::kernels::moe
