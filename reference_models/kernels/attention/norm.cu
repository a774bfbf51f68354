#include "kernels/attention/norm.h"
#include "kernels/common/device.cuh"

namespace cglint::kernels {
namespace {

template <int kVectors, bool kAddResidual, bool kPdl>
__global__ void __launch_bounds__(1024)
    rms_norm_kernel(const bf16* input, int64_t input_stride, bf16* residual, const bf16* weight, bf16* output,
                    int64_t output_stride, int hidden, float epsilon) {
  __shared__ float scratch[32];
  const int vectors = hidden / 8;
  const int64_t row = blockIdx.x;
  const auto vector_of = [](int i) {
    return static_cast<int>(threadIdx.x) + i * static_cast<int>(blockDim.x);
  };
  Bf16x8 gamma[kVectors];
  const auto load_gamma = [&] {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (weight != nullptr && vector_of(i) < vectors) gamma[i] = load8(weight + vector_of(i) * 8);
    }
  };
  if constexpr (kPdl) load_gamma();
  pdl_begin<kPdl>();
  // All loads before the first store: the compiler cannot know that they do not overlap.
  Bf16x8 data[kVectors];
  Bf16x8 old[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (vector_of(i) < vectors) {
      data[i] = load8(input + row * input_stride + vector_of(i) * 8);
      if constexpr (kAddResidual) old[i] = load8(residual + row * hidden + vector_of(i) * 8);
    }
  }
  if constexpr (!kPdl) load_gamma();  // not needed before the sum
  float values[kVectors][8];
  float sum_of_squares = 0;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    if (vector_of(i) < vectors) {
      if constexpr (kAddResidual) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const float2 a = __bfloat1622float2(data[i].pair[j]);
          const float2 b = __bfloat1622float2(old[i].pair[j]);
          data[i].pair[j] = __floats2bfloat162_rn(a.x + b.x, a.y + b.y);
        }
        store8(residual + row * hidden + vector_of(i) * 8, data[i]);
      }
      unpack(data[i], values[i]);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum_of_squares += values[i][j] * values[i][j];
    }
  }
  const float mean = block_sum_once(sum_of_squares, scratch) / static_cast<float>(hidden);
  const float scale = rsqrtf(mean + epsilon);
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int v = vector_of(i);
    if (v < vectors) {
      float factor[8] = {1, 1, 1, 1, 1, 1, 1, 1};
      if (weight != nullptr) unpack(gamma[i], factor);
#pragma unroll
      for (int j = 0; j < 8; ++j) values[i][j] *= scale * factor[j];
      store8(output + row * output_stride + v * 8, pack(values[i]));
    }
  }
}

template <bool kAddResidual>
cudaError_t launch_norm(const LaunchContext& ctx, const bf16* input, int64_t input_stride, bf16* residual,
                        const bf16* weight, bf16* output, int64_t output_stride, int rows, int hidden,
                        float epsilon) {
  if (rows <= 0 || hidden <= 0 || hidden % 8 != 0 || hidden > 16384 || input_stride % 8 != 0 ||
      output_stride % 8 != 0) {
    return cudaErrorInvalidValue;
  }
  const int vectors = hidden / 8;
  const auto one_vector =
      ctx.pdl ? rms_norm_kernel<1, kAddResidual, true> : rms_norm_kernel<1, kAddResidual, false>;
  const auto two_vectors =
      ctx.pdl ? rms_norm_kernel<2, kAddResidual, true> : rms_norm_kernel<2, kAddResidual, false>;
  // With a residual a thread has twice the loads under way, so that fewer threads do.
  const bool is_short = vectors <= (kAddResidual ? 512 : 1024);
  const auto kernel = is_short ? one_vector : two_vectors;
  const int threads_wanted = is_short ? vectors : (vectors + 1) / 2;
  const unsigned threads = static_cast<unsigned>((threads_wanted + 31) / 32 * 32);
  return launch(ctx, kernel, dim3(static_cast<unsigned>(rows)), dim3(threads), 0, input, input_stride,
                residual, weight, output, output_stride, hidden, epsilon);
}

}  // namespace

cudaError_t rms_norm(const LaunchContext& ctx, const bf16* input, int64_t input_stride, const bf16* weight,
                     bf16* output, int64_t output_stride, int rows, int hidden, float epsilon) {
  return launch_norm<false>(ctx, input, input_stride, nullptr, weight, output, output_stride, rows, hidden,
                            epsilon);
}

cudaError_t add_rms_norm(const LaunchContext& ctx, const bf16* input, int64_t input_stride, bf16* residual,
                         const bf16* weight, bf16* output, int64_t output_stride, int rows, int hidden,
                         float epsilon) {
  if (residual == nullptr) return cudaErrorInvalidValue;
  return launch_norm<true>(ctx, input, input_stride, residual, weight, output, output_stride, rows, hidden,
                           epsilon);
}

}  // namespace cglint::kernels
