// What the kernels of skinny_gemm() that were compiled for some shapes have in common. Not for callers.
#pragma once

#include <cstddef>

#include "kernels/attention/skinny_gemm.h"

namespace cglint::kernels {

inline constexpr int kSkinnyShapeTokens = 8;  // more have no compiled shape

struct SkinnyShape {
  int k;
  int row_multiple;  // of n
  int fewest_rows;
  int most_rows;
  int fewest_tokens;
  cudaError_t (*plain)(const LaunchContext&, const SkinnyGemm&);
  cudaError_t (*programmatic)(const LaunchContext&, const SkinnyGemm&);
};

// The first shape that fits, or null.
template <std::size_t kCount>
const SkinnyShape* shape_for(const SkinnyShape (&shapes)[kCount], const SkinnyGemm& gemm) {
  if (gemm.tokens > kSkinnyShapeTokens || gemm.batch != 1) return nullptr;
  for (const SkinnyShape& shape : shapes) {
    if (gemm.k == shape.k && gemm.tokens >= shape.fewest_tokens && gemm.n % shape.row_multiple == 0 &&
        gemm.n >= shape.fewest_rows && gemm.n <= shape.most_rows)
      return &shape;
  }
  return nullptr;
}

// cudaErrorInvalidValue without a shape.
[[nodiscard]] inline cudaError_t launch_shape(const SkinnyShape* shape, const LaunchContext& ctx,
                                              const SkinnyGemm& gemm) {
  if (shape == nullptr) return cudaErrorInvalidValue;
  return ctx.pdl ? shape->programmatic(ctx, gemm) : shape->plain(ctx, gemm);
}

}  // namespace cglint::kernels
