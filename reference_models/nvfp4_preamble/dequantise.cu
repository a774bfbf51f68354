#include <cuda_fp8.h>

#include "kernels/moe/nvfp4.h"
#include "nvfp4_preamble/dequantise.h"

namespace cglint::models {
namespace {

// A thread a value.
__global__ void dequantise_kernel(const std::uint8_t* q, const std::uint8_t* scales, __nv_bfloat16* out, int k,
                                  std::int64_t count) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= count) return;
  const float magnitudes[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  const int code = at % 2 == 0 ? q[at / 2] & 15 : q[at / 2] >> 4;
  __nv_fp8_e4m3 scale;
  scale.__x = scales[kernels::moe::scale_offset(kernels::moe::ScaleLayout::kTiled, at / k, at % k / 16, k / 16)];
  const float value = magnitudes[code & 7] * static_cast<float>(scale);
  out[at] = __float2bfloat16_rn((code & 8) != 0 ? -value : value);
}

}  // namespace

cudaError_t dequantise_nvfp4(const std::uint8_t* q, const std::uint8_t* scales, kernels::bf16* out, int n, int k) {
  const std::int64_t count = static_cast<std::int64_t>(n) * k;
  dequantise_kernel<<<static_cast<unsigned>((count + 255) / 256), 256>>>(q, scales, out, k, count);
  return cudaGetLastError();
}

}  // namespace cglint::models
