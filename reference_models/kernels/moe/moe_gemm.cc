#include "kernels/moe/moe_gemm.h"

#include <algorithm>

#include "kernels/moe/moe_gemm_params.h"

namespace cglint::kernels::moe {

cudaError_t launch_moe_gemm(const LaunchContext& ctx, WeightType type, const TileConfig& config,
                            const MoeGemmArgs& args) {
  const bool fp8 = type == WeightType::kFp8Block128;
  constexpr int kLargestSmem = 227 * 1024;  // the device's own limit is checked by the launch
  if (!is_supported(type, config, kLargestSmem)) return cudaErrorInvalidConfiguration;
  const bool gathers = args.sorted_ids != nullptr;
  if (args.x == nullptr || args.w == nullptr || args.out == nullptr || args.n <= 0 || args.k <= 0 ||
      args.n % 8 != 0 || args.k % (fp8 ? 16 : 8) != 0 || args.num_pairs < 0 || args.row_divisor < 1 ||
      (fp8 && (args.x_scale == nullptr || args.w_scale == nullptr)) ||
      gathers != (args.expert_ids != nullptr) || gathers != (args.num_padded != nullptr) ||
      (config.split_k > 1 && !args.out_fp32)) {
    return cudaErrorInvalidValue;
  }
  if (fp8 && takes_moe_gemm_direct(config, args)) return launch_moe_gemm_direct(ctx, args);
  MoeGemmParams params{};
  params.args = args;
  params.blocks_m = gathers ? args.max_blocks : (args.num_pairs + config.block_m - 1) / config.block_m;
  params.blocks_n = (args.n + config.block_n - 1) / config.block_n;
  params.group_m = config.group_m;
  params.stages = config.num_stages;
  const int steps = (args.k + config.block_k - 1) / config.block_k;
  params.steps_per_split = (steps + config.split_k - 1) / config.split_k;
  // Stages that would never be filled are not allocated: with a short k, more blocks fit.
  TileConfig used = config;
  used.num_stages = std::max(1, std::min(config.num_stages, params.steps_per_split));
  params.smem_bytes = smem_bytes(type, used);
  if (params.blocks_m <= 0) return cudaSuccess;  // no rows, nothing to launch
  return fp8 ? launch_moe_gemm_fp8(ctx, config, params) : launch_moe_gemm_bf16(ctx, config, params);
}

}  // namespace cglint::kernels::moe
