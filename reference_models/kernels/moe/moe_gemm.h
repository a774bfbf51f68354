// Grouped GEMM over the experts of a mixture-of-experts layer, and with one expert a dense GEMM of few rows.
//
// Rows (token, expert pairs) are gathered through the block lists that launch_moe_align makes; weights are
// [experts, n, k] with k contiguous, the layout checkpoints have. Two uses make a layer: W13 (n = 2 x
// intermediate: gate rows, then up rows) and W2 (n = hidden). Weights stream once through shared memory by
// asynchronous copies; the matrix instruction takes weight rows as its 16-row side, so that 8 tokens fill it.
// The scheme of sorted ids and padded blocks is that of vLLM's fused_moe kernel.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/common/launch.h"
#include "kernels/moe/tile_config.h"

namespace cglint::kernels::moe {

inline constexpr int kScaleBlock =
    128;  // rows and columns of one fp8 weight scale; columns of an activation's

struct MoeGemmArgs {
  // [rows, k], bf16 or e4m3 as the weights are; 16-byte aligned.
  const void* x = nullptr;
  // fp8 only: [rows, ceil(k / 128)], fp32.
  const float* x_scale = nullptr;
  // [experts, n, k]; 16-byte aligned.
  const void* w = nullptr;
  // fp8 only: [experts, ceil(n / 128), ceil(k / 128)], fp32.
  const float* w_scale = nullptr;
  // With split_k == 1 and not out_fp32: bf16 [num_pairs, n]. Else fp32 [split_k, num_pairs, n], whose sum
  // over split_k is the result. Rows whose pair appears in no block are not written. 16-byte aligned.
  void* out = nullptr;
  bool out_fp32 = false;

  // Block lists for `config.block_m` rows a block (see launch_moe_align). All three null: no gather, one
  // expert, block b holds pairs b * block_m ....
  const int32_t* sorted_ids = nullptr;  // [max_blocks * block_m]: pair, or >= num_pairs for padding
  const int32_t* expert_ids = nullptr;  // [max_blocks]: expert of each block, 0 .. experts - 1
  const int32_t* num_padded = nullptr;  // [1]: rows in use, a multiple of block_m
  int max_blocks = 0;                   // ignored without block lists

  int num_pairs = 0;    // tokens * top_k
  int row_divisor = 1;  // row of x for pair p is p / row_divisor: top_k for W13, 1 for W2
  int n = 0;            // multiple of 8
  int k = 0;            // multiple of 8 (bf16) or 16 (fp8)

  // Start loading weights before pdl_wait(), while the previous kernel still runs. Only legal if the block
  // lists are older than the previous kernel: written by a kernel that the previous one (or one before it)
  // has itself waited for. True of W2 in align, W13, SiLU, W2 and without lists; never of W13 directly after
  // align. Set it for programmatic launches alone: the wait lets the loads before it finish, which costs a
  // plain launch time.
  bool routing_is_settled = false;
};

// Enqueues the product with the given tiles. cudaErrorInvalidConfiguration if `config` is not compiled,
// cudaErrorInvalidValue for shapes outside the limits above. Grid: (max_blocks * ceil(n / block_n), split_k).
[[nodiscard]] cudaError_t launch_moe_gemm(const LaunchContext& ctx, WeightType type, const TileConfig& config,
                                          const MoeGemmArgs& args);

// Elements of fp32 workspace for `out` with split_k > 1.
inline size_t partial_elements(const TileConfig& config, int num_pairs, int n) {
  return static_cast<size_t>(config.split_k) * static_cast<size_t>(num_pairs) * static_cast<size_t>(n);
}

}  // namespace cglint::kernels::moe
