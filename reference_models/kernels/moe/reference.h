// Plain references for the MoE kernels: straight loops in fp32 or double, no tiles, no packing tricks,
// nothing shared with the kernels but the layouts their headers state. Host functions where the data is
// small, one simple kernel where it is not.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

#include "kernels/moe/nvfp4.h"
#include "kernels/moe/routing.h"
#include "kernels/moe/tile_config.h"

namespace cglint::kernels::moe {

struct ReferenceChoice {
  std::vector<int32_t> ids;    // [tokens, top_k], best first
  std::vector<float> weights;  // [tokens, top_k]
  std::vector<double> biased;  // [tokens, experts], what the choice is made on; -inf outside chosen groups
};
// Routing in double from `logits` [tokens, experts]; the pointers of `args` are not used. `bias` may be
// empty.
ReferenceChoice reference_topk(const TopkArgs& args, const std::vector<float>& logits,
                               const std::vector<float>& bias);

// Largest error of weights, relative to the largest weight; infinity if an id differs by more than a tie
// (1e-5 of biased score) or repeats.
double topk_error(const TopkArgs& args, const ReferenceChoice& want, const std::vector<int32_t>& ids,
                  const std::vector<float>& weights);

struct BlockLists {
  std::vector<int32_t> sorted_ids;  // [max_blocks * block_m]
  std::vector<int32_t> expert_ids;  // [max_blocks]
  std::vector<int32_t> positions;   // [pairs]
  int32_t num_padded = 0;
};
// `expert_map` empty: all experts are local. Unused tails hold -7.
BlockLists reference_align(const std::vector<int32_t>& ids, const std::vector<int32_t>& expert_map,
                           int local_experts, int block_m);

// Dequantised NVFP4 tensor [rows, columns], without the global scale.
std::vector<float> reference_dequantize_nvfp4(const std::vector<uint8_t>& q,
                                              const std::vector<uint8_t>& scales, ScaleLayout layout,
                                              int rows, int columns);
// The nearest e2m1 value (ties to the even code), found by search.
float reference_e2m1(float value);

// ---- on the device ----

struct ReferenceGemmArgs {
  const void* x = nullptr;        // [rows, k], as the weights are
  const float* x_fp32 = nullptr;  // or [rows, k] in fp32, taken instead and without scales
  const float* x_scale = nullptr;
  const void* w = nullptr;  // [experts, n, k]
  const float* w_scale = nullptr;
  const int32_t* experts = nullptr;  // [pairs] local expert of each pair, -1: skip the row. Null: expert 0
  int pairs = 0;
  int row_divisor = 1;
  int n = 0;
  int k = 0;
  float* out = nullptr;  // [pairs, n]
};
// One warp an output element, lanes along k; synchronous.
[[nodiscard]] cudaError_t reference_moe_gemm(WeightType type, const ReferenceGemmArgs& args);

// max_scaled_error (kernels/common/buffer.h) computed on the device, over rows whose `experts` entry is not
// negative (null: all rows). `got` is bf16 [rows, columns] or fp32 [splits, rows, columns] to be summed.
// Infinity where anything is not finite or a call fails.
double device_error(const __nv_bfloat16* got, const float* want, const int32_t* experts, int rows,
                    int columns);
double device_error(const float* got, int splits, const float* want, const int32_t* experts, int rows,
                    int columns);

}  // namespace cglint::kernels::moe
