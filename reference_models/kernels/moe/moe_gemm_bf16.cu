#include "kernels/moe/moe_gemm_kernel.cuh"
#include "kernels/moe/tile_variants.h"

namespace cglint::kernels::moe {

cudaError_t launch_moe_gemm_bf16(const LaunchContext& ctx, const TileConfig& config,
                                 const MoeGemmParams& params) {
  const TileVariant wanted{config.block_m, config.block_n, config.block_k, config.num_warps};
#define CGLINT_VARIANT(m, n, k, warps, warps_m) \
  if (wanted == TileVariant{m, n, k, warps})    \
    return launch_variant<WeightType::kBf16, m, n, k, warps, warps_m>(ctx, config, params);
  CGLINT_MOE_BF16_VARIANTS(CGLINT_VARIANT)
#undef CGLINT_VARIANT
  return cudaErrorInvalidConfiguration;
}

}  // namespace cglint::kernels::moe
