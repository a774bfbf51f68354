#include "kernels/common/device.cuh"
#include "kimi_linear/concat_query.h"

namespace cglint::models {
namespace {

constexpr int kVectors = 8;  // of 8 values: 64
constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads)
    concat_query_kernel(const __nv_bfloat16* q, std::int64_t q_token_stride, std::int64_t q_head_stride,
                        __nv_bfloat16* q_out, int rows, int heads) {
  kernels::pdl_wait();
  kernels::pdl_trigger();
  const int at = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const int row = at / kVectors;
  const int vector = at % kVectors;
  if (row >= rows) return;
  const __nv_bfloat16* from = q + row / heads * q_token_stride + row % heads * q_head_stride + vector * 8;
  kernels::store8(q_out + static_cast<std::int64_t>(row) * 576 + 512 + vector * 8, kernels::load8(from));
}

}  // namespace

cudaError_t concat_query(const kernels::LaunchContext& ctx, const kernels::bf16* q, std::int64_t q_token_stride,
                         std::int64_t q_head_stride, kernels::bf16* q_out, int tokens, int heads) {
  if (q == nullptr || q_out == nullptr || tokens < 1 || heads < 1 || q_token_stride % 8 != 0 || q_head_stride % 8 != 0)
    return cudaErrorInvalidValue;
  const int rows = tokens * heads;
  return kernels::launch(ctx, concat_query_kernel, dim3(static_cast<unsigned>((rows * kVectors + kThreads - 1) / kThreads)),
                         dim3(kThreads), 0, q, q_token_stride, q_head_stride, q_out, rows, heads);
}

}  // namespace cglint::models
