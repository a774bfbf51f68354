// Weights and states of the stack in device memory.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "kernels/common/buffer.h"
#include "kimi_linear/shape.h"
#include "stack/arena.h"
#include "stack/routed_experts.h"

namespace cglint::models::kimi {

// Device pointers of one layer; null what the layer has not.
struct Layer {
  const kernels::bf16* input_norm = nullptr;  // [hidden]
  const kernels::bf16* post_norm = nullptr;   // [hidden]
  const kernels::bf16* o = nullptr;           // [hidden, channels]
  // KDA
  const kernels::bf16* fused = nullptr;      // [kFused, hidden]
  const kernels::bf16* gates = nullptr;      // [2, channels, 128]: decay, output
  const kernels::bf16* conv = nullptr;       // [4, conv channels]
  const kernels::bf16* head_norm = nullptr;  // [128]
  const float* a_log = nullptr;              // [heads]
  const float* dt_bias = nullptr;            // [heads, 128]
  kernels::bf16* conv_state = nullptr;       // [batch, 3, conv channels]
  float* state = nullptr;                    // [batch, heads, 128, 128]
  // MLA
  const kernels::bf16* q_kv = nullptr;     // [heads * 192 + 576, hidden]
  const kernels::bf16* kv_norm = nullptr;  // [512]
  const kernels::bf16* w_uk_t = nullptr;   // [heads, 128, 512]
  const kernels::bf16* w_uv = nullptr;     // [heads, 128, 512]
  kernels::bf16* cache = nullptr;          // [pages, page size, 576]
  // Dense feed-forward or shared expert
  const kernels::bf16* gate_up = nullptr;
  const kernels::bf16* down = nullptr;
  // Routed experts
  RoutedWeights routed;
};

RoutedShape routed_shape();

// Owns the memory behind the pointers. Layers take turns with kExpertSets sets of routed experts; all else is each
// layer's own. A layer reads 57 MB of its set for its first token and 35 MB or more of attention's weights; with four
// sets 350 MB lie between two uses of one, so L2 holds nothing of it.
class Weights {
 public:
  static constexpr int kExpertSets = 4;

  static std::size_t bytes(int layers, int batch, int pages);
  // Allocates all, then fills it: scaled so that every block adds something of the size of what it is given.
  [[nodiscard]] cudaError_t prepare(Arena& arena, int layers, int batch, int pages, std::uint64_t seed);
  // Puts back the states that a step moves on. Caches stay: a step reads no row that it has not written.
  [[nodiscard]] cudaError_t fill_states();

  [[nodiscard]] const std::vector<Layer>& layers() const { return layers_; }
  [[nodiscard]] std::size_t conv_state_elements() const;
  [[nodiscard]] std::size_t state_elements() const;
  // Fills `state` (and `conv_state`) with what layer `index` starts from.
  [[nodiscard]] cudaError_t fill_state_of(int index, kernels::bf16* conv_state, float* state) const;

 private:
  int batch_ = 0;
  std::uint64_t seed_ = 0;
  std::vector<Layer> layers_;
  std::vector<Tensor> storage_;
};

}  // namespace cglint::models::kimi
