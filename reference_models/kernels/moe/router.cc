#include "kernels/moe/router.h"

#include <algorithm>

#include "kernels/attention/skinny_gemm.h"
#include "kernels/moe/moe_gemm.h"

namespace cglint::kernels::moe {
namespace {

SkinnyGemm skinny_router(const RouterArgs& args) {
  SkinnyGemm gemm;
  gemm.x = args.x;
  gemm.x_token_stride = args.hidden;
  gemm.weight = args.w;
  gemm.out_fp32 = args.logits;
  gemm.out_token_stride = args.experts;
  gemm.tokens = args.tokens;
  gemm.n = args.experts;
  gemm.k = args.hidden;
  return gemm;
}

// A small dense product: enough parts of `hidden` that the device is busy.
TileConfig router_tiles(int tokens, int experts, int hidden) {
  TileConfig config;
  config.num_stages = 4;
  if (tokens <= 64) {
    const bool is_wide = tokens > 16 && experts <= 256;  // as measured
    config.block_m = tokens <= 16 ? 8 : 16;
    config.block_n = is_wide ? 64 : 32;
    config.block_k = 128;
    config.num_warps = is_wide ? 4 : 2;
    const int steps = (hidden + config.block_k - 1) / config.block_k;
    config.split_k = std::clamp(steps / 2, 1, tokens <= 16 || is_wide ? 14 : 8);
  } else {
    config.block_m = 64;
    config.block_n = 64;
    config.block_k = 64;
    config.num_warps = 4;
    const int blocks = ((tokens + 63) / 64) * ((experts + 63) / 64);
    config.split_k = std::clamp(264 / blocks, 1, 8);
  }
  return config;
}

}  // namespace

int router_splits(int tokens, int experts, int hidden) {
  RouterArgs shape;
  shape.tokens = tokens;
  shape.experts = experts;
  shape.hidden = hidden;
  return skinny_gemm_gives_fp32(skinny_router(shape)) ? 1 : router_tiles(tokens, experts, hidden).split_k;
}

cudaError_t launch_moe_router(const LaunchContext& ctx, const RouterArgs& args) {
  if (args.x == nullptr || args.w == nullptr || args.logits == nullptr || args.tokens < 1 ||
      args.experts < 1 || args.hidden < 1)
    return cudaErrorInvalidValue;
  const SkinnyGemm skinny = skinny_router(args);
  if (skinny_gemm_gives_fp32(skinny)) return skinny_gemm(ctx, skinny, nullptr);
  MoeGemmArgs gemm;
  gemm.x = args.x;
  gemm.w = args.w;
  gemm.out = args.logits;
  gemm.out_fp32 = true;
  gemm.num_pairs = args.tokens;
  gemm.n = args.experts;
  gemm.k = args.hidden;
  gemm.routing_is_settled = ctx.pdl;  // there are no lists
  return launch_moe_gemm(ctx, WeightType::kBf16, router_tiles(args.tokens, args.experts, args.hidden), gemm);
}

}  // namespace cglint::kernels::moe
