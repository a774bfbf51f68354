// Matrix products with few tokens, bound by reading the weights: dense projections of a decode step and MLA's
// weight absorption (one product per head). Above 16 tokens the weights are read once more per 16 tokens,
// which suits per-head weights that L2 holds; take DenseGemm for large ones.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/common/buffer.h"
#include "kernels/common/launch.h"

namespace cglint::kernels {

inline constexpr int kSkinnyMaxTokens = 64;

// A batch of products out[b](t, n) = sum_k x[b](t, k) * weight[b](n, k), plus residual(t, n) if given.
// Element (t, k) of x[b] lies at b * x_batch_stride + t * x_token_stride + k; out and residual likewise;
// weight[b] is [n, k], contiguous in k, `weight_batch_stride` after weight[b - 1]. Strides in elements,
// multiples of 8.
struct SkinnyGemm {
  const bf16* x = nullptr;
  int64_t x_token_stride = 0;
  int64_t x_batch_stride = 0;
  const bf16* weight = nullptr;
  int64_t weight_batch_stride = 0;
  bf16* out = nullptr;
  int64_t out_token_stride = 0;
  int64_t out_batch_stride = 0;
  // In place of `out`, laid out the same, for products that skinny_gemm_gives_fp32(); without a residual.
  float* out_fp32 = nullptr;
  const bf16* residual = nullptr;  // laid out as out, may be out
  int tokens = 0;                  // 1..kSkinnyMaxTokens
  int n = 0;                       // multiple of 16
  int k = 0;                       // multiple of 128
  int batch = 1;
  // Blocks sharing one output tile, 1..16; above 1 a workspace is needed. Shapes that have a kernel of their
  // own on sm_90 may divide k otherwise.
  int split_k = 1;
};

// How many blocks should share an output tile so that `sm_count` multiprocessors are busy. Depends on shapes
// only, so a captured graph and its replays agree.
[[nodiscard]] int skinny_split_k(int tokens, int n, int k, int batch, int sm_count);

// Whether the current device has a kernel for this product's shape that can leave fp32 results. Looks at no
// pointer and not at split_k.
[[nodiscard]] bool skinny_gemm_gives_fp32(const SkinnyGemm& gemm);

// Bytes the caller must supply as `workspace`, 16-byte aligned; 0 if split_k is 1. The workspace must be
// zeroed once before its first use; each launch leaves it fit for the next, of whatever shape. Launches that
// may overlap need their own.
[[nodiscard]] size_t skinny_gemm_workspace_bytes(const SkinnyGemm& gemm);
[[nodiscard]] cudaError_t skinny_gemm(const LaunchContext& ctx, const SkinnyGemm& gemm, void* workspace);

// MLA absorption, per head h: q_latent(t, h, :) = q_nope(t, h, :) x W_UK_T[h].
//   q_nope   [tokens, heads, 128], token and head strides given (multiples of 8); 1..kSkinnyMaxTokens tokens
//   w_uk_t   [heads, 128, 512], contiguous
//   q_latent [tokens, heads, 512], token and head strides given
[[nodiscard]] cudaError_t mla_absorb_query(const LaunchContext& ctx, const bf16* q_nope,
                                           int64_t q_token_stride, int64_t q_head_stride, const bf16* w_uk_t,
                                           bf16* q_latent, int64_t latent_token_stride,
                                           int64_t latent_head_stride, int tokens, int heads);

// MLA value up-projection, per head h: out(t, h, :) = attention(t, h, :) x W_UV[h].
//   attention [tokens, heads, 512], contiguous
//   w_uv      [heads, 128, 512], contiguous in the latent dimension, `w_uv_head_stride` elements a head
//   out       [tokens, heads, 128], contiguous
[[nodiscard]] cudaError_t mla_project_value(const LaunchContext& ctx, const bf16* attention, const bf16* w_uv,
                                            int64_t w_uv_head_stride, bf16* out, int tokens, int heads);

}  // namespace cglint::kernels
