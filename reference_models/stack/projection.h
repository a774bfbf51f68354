// Dense projections of a decode step, for any number of tokens: our own kernel for few, cuBLASLt for more.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/attention/dense_gemm.h"
#include "kernels/attention/skinny_gemm.h"
#include "kernels/common/launch.h"

namespace cglint::models {

// out(t, n) = sum_k x(t, k) * weight(n, k), bf16 with fp32 accumulation.
class Projection {
 public:
  // Strides in elements; 0 means contiguous. n: multiple of 16, k: multiple of 128.
  struct Shape {
    int tokens = 0;
    int n = 0;
    int k = 0;
    std::int64_t x_stride = 0;
    std::int64_t out_stride = 0;
  };

  // Up to this many tokens our kernel reads the weights once.
  static constexpr int kOwnTokens = 16;

  // Without a library (`lt` null) our kernel takes up to kernels::kSkinnyMaxTokens.
  [[nodiscard]] static cudaError_t create(std::shared_ptr<kernels::CublasLt> lt, const Shape& shape, int sm_count,
                                          Projection& projection);
  [[nodiscard]] bool is_own() const { return is_own_; }
  // Workspace of run(), zeroed once before its first use; one for each stream. Projections with the same number of
  // tokens may share it.
  [[nodiscard]] std::size_t workspace_bytes() const;
  [[nodiscard]] cudaError_t run(const kernels::LaunchContext& ctx, const kernels::bf16* x, const kernels::bf16* weight,
                                kernels::bf16* out, void* workspace) const;

 private:
  Shape shape_;
  bool is_own_ = true;
  int split_k_ = 1;
  kernels::DenseGemm plan_;
};

}  // namespace cglint::models
