#include "stack/projection.h"

#include <utility>

#include "stack/status.h"

namespace cglint::models {
namespace {

kernels::SkinnyGemm skinny(const Projection::Shape& shape, int split_k) {
  kernels::SkinnyGemm gemm;
  gemm.x_token_stride = shape.x_stride;
  gemm.out_token_stride = shape.out_stride;
  gemm.tokens = shape.tokens;
  gemm.n = shape.n;
  gemm.k = shape.k;
  gemm.split_k = split_k;
  return gemm;
}

}  // namespace

cudaError_t Projection::create(std::shared_ptr<kernels::CublasLt> lt, const Shape& shape, int sm_count,
                               Projection& projection) {
  projection.shape_ = shape;
  if (shape.x_stride == 0) projection.shape_.x_stride = shape.k;
  if (shape.out_stride == 0) projection.shape_.out_stride = shape.n;
  projection.is_own_ = shape.tokens <= kOwnTokens || (lt == nullptr && shape.tokens <= kernels::kSkinnyMaxTokens);
  if (projection.is_own_) {
    projection.split_k_ = kernels::skinny_split_k(shape.tokens, shape.n, shape.k, 1, sm_count);
    return cudaSuccess;
  }
  kernels::DenseGemm::Shape dense;
  dense.tokens = shape.tokens;
  dense.n = shape.n;
  dense.k = shape.k;
  dense.x_stride = projection.shape_.x_stride;
  dense.out_stride = projection.shape_.out_stride;
  return kernels::DenseGemm::create(std::move(lt), dense, 1, projection.plan_);
}

std::size_t Projection::workspace_bytes() const {
  return is_own_ ? kernels::skinny_gemm_workspace_bytes(skinny(shape_, split_k_))
                 : plan_.workspace_bytes();
}

cudaError_t Projection::run(const kernels::LaunchContext& ctx, const kernels::bf16* x, const kernels::bf16* weight,
                            kernels::bf16* out, void* workspace) const {
  if (!is_own_) return plan_.run(ctx.stream, x, weight, nullptr, out, workspace);
  kernels::SkinnyGemm gemm = skinny(shape_, split_k_);
  gemm.x = x;
  gemm.weight = weight;
  gemm.out = out;
  return kernels::skinny_gemm(ctx, gemm, workspace);
}

}  // namespace cglint::models
