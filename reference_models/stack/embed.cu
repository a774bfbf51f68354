#include "kernels/common/device.cuh"
#include "stack/embed.h"

namespace cglint::models {
namespace {

__global__ void embed_tokens_kernel(const std::int32_t* ids, const __nv_bfloat16* table, __nv_bfloat16* out,
                                    int hidden) {
  kernels::pdl_wait();
  kernels::pdl_trigger();
  const std::int64_t token = blockIdx.x;
  const std::int64_t row = ids[token];
  for (int i = static_cast<int>(threadIdx.x) * 8; i < hidden; i += static_cast<int>(blockDim.x) * 8)
    kernels::store8(out + token * hidden + i, kernels::load8(table + row * hidden + i));
}

}  // namespace

cudaError_t embed_tokens(const kernels::LaunchContext& ctx, const std::int32_t* ids,
                         const kernels::bf16* table, kernels::bf16* out, int tokens, int hidden) {
  if (ids == nullptr || table == nullptr || out == nullptr || tokens < 1 || hidden % 8 != 0)
    return cudaErrorInvalidValue;
  return kernels::launch(ctx, embed_tokens_kernel, dim3(static_cast<unsigned>(tokens)), dim3(256), 0, ids,
                         table, out, hidden);
}

}  // namespace cglint::models
