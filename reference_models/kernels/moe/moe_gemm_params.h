// Between launch_moe_gemm and its two kernel units.
#pragma once

#include "kernels/moe/moe_gemm.h"

namespace cglint::kernels::moe {

struct MoeGemmParams {
  MoeGemmArgs args;
  int blocks_m;  // token blocks, used or not
  int blocks_n;
  int group_m;
  int stages;
  int steps_per_split;  // steps of block_k
  int smem_bytes;       // dynamic shared memory of a block
};

// One unit each, for the build's sake. cudaErrorInvalidConfiguration if no variant fits.
[[nodiscard]] cudaError_t launch_moe_gemm_bf16(const LaunchContext& ctx, const TileConfig& config,
                                               const MoeGemmParams& params);
[[nodiscard]] cudaError_t launch_moe_gemm_fp8(const LaunchContext& ctx, const TileConfig& config,
                                              const MoeGemmParams& params);

// A few tokens of fp8: all weights of a block under way at once.
struct MoeGemmDirectParams {
  MoeGemmArgs args;
  int blocks_n;
};
// Whether `config` asks for it and chip and shape allow it; everything else about `args` has been checked.
[[nodiscard]] bool takes_moe_gemm_direct(const TileConfig& config, const MoeGemmArgs& args);
[[nodiscard]] cudaError_t launch_moe_gemm_direct(const LaunchContext& ctx, const MoeGemmArgs& args);

}  // namespace cglint::kernels::moe
