#include <cmath>

#include "kernels/attention/rope.h"
#include "kernels/common/device.cuh"

namespace cglint::kernels {
namespace {

constexpr int kThreadsPerRow = kRopeDim / 8;  // a row is one head of one token; a thread turns 4 pairs

__global__ void __launch_bounds__(128)
    rope_interleaved_kernel(const int64_t* positions, const float* table, const bf16* q_in,
                            int64_t q_in_token_stride, int64_t q_in_head_stride, bf16* q_out,
                            int64_t q_out_token_stride, int64_t q_out_head_stride, const bf16* k_in,
                            int64_t k_in_stride, bf16* k_out, int64_t k_out_stride, int rows, int heads,
                            int rows_per_token) {
  const int index = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int row = index / kThreadsPerRow;
  const int first = index % kThreadsPerRow * 8;
  pdl_wait();
  pdl_trigger();
  if (row >= rows) return;
  const int64_t token = row / rows_per_token;
  const int head = row % rows_per_token;
  const bool is_key = head == heads;
  const bf16* source =
      is_key ? k_in + token * k_in_stride : q_in + token * q_in_token_stride + head * q_in_head_stride;
  bf16* target =
      is_key ? k_out + token * k_out_stride : q_out + token * q_out_token_stride + head * q_out_head_stride;
  const Bf16x8 packed = load8(source + first);
  const float* angles = table + positions[token] * kRopeDim + first / 2;
  const float4 cosine = *reinterpret_cast<const float4*>(angles);
  const float4 sine = *reinterpret_cast<const float4*>(angles + kRopeDim / 2);
  const float c[4] = {cosine.x, cosine.y, cosine.z, cosine.w};
  const float s[4] = {sine.x, sine.y, sine.z, sine.w};
  float values[8];
  unpack(packed, values);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float x = values[2 * i];
    const float y = values[2 * i + 1];
    values[2 * i] = x * c[i] - y * s[i];
    values[2 * i + 1] = y * c[i] + x * s[i];
  }
  store8(target + first, pack(values));
}

}  // namespace

std::vector<float> make_rope_table(int positions, double base) {
  std::vector<float> table(static_cast<size_t>(positions) * kRopeDim);
  for (int p = 0; p < positions; ++p) {
    for (int i = 0; i < kRopeDim / 2; ++i) {
      const double angle = p * std::pow(base, -2.0 * i / kRopeDim);
      float* row = table.data() + static_cast<size_t>(p) * kRopeDim;
      row[i] = static_cast<float>(std::cos(angle));
      row[i + kRopeDim / 2] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

cudaError_t rope_interleaved(const LaunchContext& ctx, const int64_t* positions, const float* table,
                             const bf16* q_in, int64_t q_in_token_stride, int64_t q_in_head_stride,
                             bf16* q_out, int64_t q_out_token_stride, int64_t q_out_head_stride,
                             const bf16* k_in, int64_t k_in_stride, bf16* k_out, int64_t k_out_stride,
                             int tokens, int heads) {
  if (tokens <= 0 || heads < 0 || (k_in != nullptr) != (k_out != nullptr)) return cudaErrorInvalidValue;
  const int rows_per_token = heads + (k_in != nullptr ? 1 : 0);
  const int rows = tokens * rows_per_token;
  if (rows == 0) return cudaErrorInvalidValue;
  const unsigned blocks = static_cast<unsigned>((rows * kThreadsPerRow + 127) / 128);
  return launch(ctx, rope_interleaved_kernel, dim3(blocks), dim3(128), 0, positions, table, q_in,
                q_in_token_stride, q_in_head_stride, q_out, q_out_token_stride, q_out_head_stride, k_in,
                k_in_stride, k_out, k_out_stride, rows, heads, rows_per_token);
}

}  // namespace cglint::kernels
