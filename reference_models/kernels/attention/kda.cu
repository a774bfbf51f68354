#include "kernels/attention/kda.h"
#include "kernels/common/device.cuh"
#include "kernels/common/mma.cuh"

namespace cglint::kernels {
namespace {

constexpr float kNormEpsilon = 1e-6f;

__device__ __forceinline__ float sigmoid(float x) {
  return __fdividef(1.0f, 1.0f + __expf(-x));
}
__device__ __forceinline__ float softplus(float x) {
  return x > 20.0f ? x : log1pf(__expf(x));
}

template <bool kPdl>
__global__ void __launch_bounds__(128)
    kda_short_conv_kernel(const bf16* x, int64_t x_stride, const bf16* weight, bf16* state,
                          const int32_t* state_index, bf16* out, int channels) {
  const int channel = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) * 8;
  const int64_t sequence = blockIdx.y;
  const bool inside = channel < channels;
  Bf16x8 taps[kKdaConvWidth];
  if (inside) {
#pragma unroll
    for (int i = 0; i < kKdaConvWidth; ++i)
      taps[i] = load8(weight + static_cast<int64_t>(i) * channels + channel);
  }
  pdl_begin<kPdl>();
  if (!inside) return;
  bf16* history =
      state + static_cast<int64_t>(state_index[sequence]) * (kKdaConvWidth - 1) * channels + channel;
  Bf16x8 window[kKdaConvWidth];
#pragma unroll
  for (int i = 0; i < kKdaConvWidth - 1; ++i) window[i] = load8(history + static_cast<int64_t>(i) * channels);
  window[kKdaConvWidth - 1] = load8(x + sequence * x_stride + channel);
  float sum[8] = {};
#pragma unroll
  for (int i = 0; i < kKdaConvWidth; ++i) {
    float value[8];
    float tap[8];
    unpack(window[i], value);
    unpack(taps[i], tap);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum[j] += value[j] * tap[j];
  }
#pragma unroll
  for (int j = 0; j < 8; ++j) sum[j] *= sigmoid(sum[j]);
#pragma unroll
  for (int i = 0; i < kKdaConvWidth - 1; ++i)
    store8(history + static_cast<int64_t>(i) * channels, window[i + 1]);
  store8(out + sequence * channels + channel, pack(sum));
}

// State is read once: it need not stay in L1. Not a load of read-only data (`nc`): an earlier launch wrote
// it.
__device__ __forceinline__ float4 load_state(const float* pointer) {
  float4 value;
  asm volatile("ld.global.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "l"(pointer)
               : "memory");
  return value;
}

// Four bf16 values as one access of 8 bytes.
__device__ __forceinline__ float4 load4(const bf16* pointer) {
  const uint2 words = *reinterpret_cast<const uint2*>(pointer);
  __nv_bfloat162 pair[2];
  memcpy(pair, &words, sizeof words);
  const float2 low = __bfloat1622float2(pair[0]);
  const float2 high = __bfloat1622float2(pair[1]);
  return make_float4(low.x, low.y, high.x, high.y);
}
__device__ __forceinline__ void store4(bf16* pointer, const float4& value) {
  const uint2 words = make_uint2(pack_bf16(value.x, value.y), pack_bf16(value.z, value.w));
  *reinterpret_cast<uint2*>(pointer) = words;
}

// One block per (kColumns value columns, head, sequence). A thread holds 4 columns of 4 key rows of the
// state. Every thread adds up the warps' sums of its own columns and so knows their change by itself: a
// barrier less than if one thread did it for all.
template <int kColumns, bool kPdl>
__global__ void __launch_bounds__(kColumns * 8, 128 / kColumns)
    kda_delta_rule_kernel(const bf16* qkv, const bf16* gate, int64_t gate_stride, const bf16* beta,
                          int64_t beta_stride, const float* a_log, const float* dt_bias, float* state,
                          const int32_t* state_index, bf16* out, int heads) {
  constexpr int kDeltaThreads = kColumns * 8;
  constexpr int kColumnVectors = kColumns / 4;
  constexpr int kRowGroups = kDeltaThreads / kColumnVectors;
  constexpr int kRowsPerThread = kKdaHeadDim / kRowGroups;
  static_assert(kDeltaThreads >= kKdaHeadDim, "a thread per key channel");
  __shared__ float query[kKdaHeadDim];
  __shared__ float key[kKdaHeadDim];
  __shared__ float decay[kKdaHeadDim];
  __shared__ float dot[3][kKdaHeadDim / 32];  // |q|^2, |k|^2, q.k by warp
  __shared__ __align__(16) float column_sum[2][kDeltaThreads / 32][kColumns];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t head = blockIdx.y;
  const int64_t sequence = blockIdx.z;
  const int first_column = static_cast<int>(blockIdx.x) * kColumns;
  const int column = thread % kColumnVectors * 4;
  const int row_group = thread / kColumnVectors;

  float rate = 0;
  float bias = 0;
  if (thread < kKdaHeadDim) {
    rate = -__expf(a_log[head]);
    bias = dt_bias[head * kKdaHeadDim + thread];
  }
  pdl_begin<kPdl>();

  float* block_state =
      state + (static_cast<int64_t>(state_index[sequence]) * heads + head) * kKdaHeadDim * kKdaHeadDim +
      first_column + column;
  float4 s[kRowsPerThread];
#pragma unroll
  for (int i = 0; i < kRowsPerThread; ++i) {
    s[i] = load_state(block_state + (row_group + i * kRowGroups) * kKdaHeadDim);
  }
  const bf16* q = qkv + (sequence * 3 * heads + head) * kKdaHeadDim;
  const bf16* k = q + static_cast<int64_t>(heads) * kKdaHeadDim;
  const bf16* v = k + static_cast<int64_t>(heads) * kKdaHeadDim;
  const float write_strength = sigmoid(__bfloat162float(beta[sequence * beta_stride + head]));
  const float4 value = load4(v + first_column + column);
  if (thread < kKdaHeadDim) {
    const float q_value = __bfloat162float(q[thread]);
    const float k_value = __bfloat162float(k[thread]);
    const float raw = __bfloat162float(gate[sequence * gate_stride + head * kKdaHeadDim + thread]);
    query[thread] = q_value;
    key[thread] = k_value;
    decay[thread] = __expf(rate * softplus(raw + bias));
    const float qq = warp_sum(q_value * q_value);
    const float kk = warp_sum(k_value * k_value);
    const float qk = warp_sum(q_value * k_value);
    if ((thread & 31) == 0) {
      dot[0][thread >> 5] = qq;
      dot[1][thread >> 5] = kk;
      dot[2][thread >> 5] = qk;
    }
  }
  __syncthreads();
  const float q_scale = rsqrtf(dot[0][0] + dot[0][1] + dot[0][2] + dot[0][3] + kNormEpsilon) *
                        0.08838834764831845f;  // 1 / sqrt(128)
  const float k_scale = rsqrtf(dot[1][0] + dot[1][1] + dot[1][2] + dot[1][3] + kNormEpsilon);
  const float q_dot_k = (dot[2][0] + dot[2][1] + dot[2][2] + dot[2][3]) * q_scale * k_scale;

  // One pass over the decayed state gives both k^T S (the prediction) and q^T S; the output then is
  // q^T S + (q . k) delta, because the update is the outer product k delta.
  float predicted[4] = {};
  float read[4] = {};
#pragma unroll
  for (int i = 0; i < kRowsPerThread; ++i) {
    const int row = row_group + i * kRowGroups;
    const float a = decay[row];
    const float k_row = key[row] * k_scale;
    const float q_row = query[row] * q_scale;
    s[i] = make_float4(s[i].x * a, s[i].y * a, s[i].z * a, s[i].w * a);
    predicted[0] += k_row * s[i].x;
    predicted[1] += k_row * s[i].y;
    predicted[2] += k_row * s[i].z;
    predicted[3] += k_row * s[i].w;
    read[0] += q_row * s[i].x;
    read[1] += q_row * s[i].y;
    read[2] += q_row * s[i].z;
    read[3] += q_row * s[i].w;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
#pragma unroll
    for (int offset = kColumnVectors; offset < 32; offset *= 2) {
      predicted[j] += __shfl_xor_sync(0xffffffffu, predicted[j], offset);
      read[j] += __shfl_xor_sync(0xffffffffu, read[j], offset);
    }
  }
  if ((thread & 31) < kColumnVectors) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      column_sum[0][thread >> 5][column + j] = predicted[j];
      column_sum[1][thread >> 5][column + j] = read[j];
    }
  }
  __syncthreads();
  const auto sum_of_warps = [&](int which) {
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int w = 0; w < kDeltaThreads / 32; ++w) {
      const float4 part = *reinterpret_cast<const float4*>(&column_sum[which][w][column]);
      sum = make_float4(sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w);
    }
    return sum;
  };
  const float4 prediction = sum_of_warps(0);
  const float4 change =
      make_float4(write_strength * (value.x - prediction.x), write_strength * (value.y - prediction.y),
                  write_strength * (value.z - prediction.z), write_strength * (value.w - prediction.w));
  if (row_group == 0) {
    const float4 result = sum_of_warps(1);
    store4(out + (sequence * heads + head) * kKdaHeadDim + first_column + column,
           make_float4(result.x + q_dot_k * change.x, result.y + q_dot_k * change.y,
                       result.z + q_dot_k * change.z, result.w + q_dot_k * change.w));
  }
#pragma unroll
  for (int i = 0; i < kRowsPerThread; ++i) {
    const int row = row_group + i * kRowGroups;
    const float k_row = key[row] * k_scale;
    // Assigned, the four values would be compiled as four stores.
    __stcs(reinterpret_cast<float4*>(block_state + row * kKdaHeadDim),
           make_float4(s[i].x + k_row * change.x, s[i].y + k_row * change.y, s[i].z + k_row * change.z,
                       s[i].w + k_row * change.w));
  }
}

// One warp per head; a lane holds 4 of the 128 values.
template <bool kPdl>
__global__ void __launch_bounds__(128)
    kda_gated_norm_kernel(const bf16* x, const bf16* gate, int64_t gate_stride, const bf16* weight, bf16* out,
                          int rows, int heads, float epsilon) {
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) >> 5;
  const int first = (static_cast<int>(threadIdx.x) & 31) * 4;
  const float4 gamma = load4(weight + first);
  pdl_begin<kPdl>();
  if (row >= rows) return;
  const int64_t sequence = row / heads;
  const int head = row % heads;
  const float4 value = load4(x + static_cast<int64_t>(row) * kKdaHeadDim + first);
  const float4 raw_gate = load4(gate + sequence * gate_stride + head * kKdaHeadDim + first);
  const float sum = value.x * value.x + value.y * value.y + value.z * value.z + value.w * value.w;
  const float scale = rsqrtf(warp_sum(sum) / kKdaHeadDim + epsilon);
  store4(out + static_cast<int64_t>(row) * kKdaHeadDim + first,
         make_float4(value.x * (scale * gamma.x * sigmoid(raw_gate.x)),
                     value.y * (scale * gamma.y * sigmoid(raw_gate.y)),
                     value.z * (scale * gamma.z * sigmoid(raw_gate.z)),
                     value.w * (scale * gamma.w * sigmoid(raw_gate.w))));
}

}  // namespace

cudaError_t kda_short_conv(const LaunchContext& ctx, const bf16* x, int64_t x_stride, const bf16* weight,
                           bf16* state, const int32_t* state_index, bf16* out, int batch, int channels) {
  if (batch <= 0 || channels <= 0 || channels % 8 != 0 || x_stride % 8 != 0) return cudaErrorInvalidValue;
  const dim3 grid(static_cast<unsigned>((channels / 8 + 127) / 128), static_cast<unsigned>(batch));
  return launch(ctx, ctx.pdl ? kda_short_conv_kernel<true> : kda_short_conv_kernel<false>, grid, dim3(128), 0,
                x, x_stride, weight, state, state_index, out, channels);
}

cudaError_t kda_delta_rule(const LaunchContext& ctx, const bf16* qkv, const bf16* gate, int64_t gate_stride,
                           const bf16* beta, int64_t beta_stride, const float* a_log, const float* dt_bias,
                           float* state, const int32_t* state_index, bf16* out, int batch, int heads) {
  if (batch <= 0 || heads <= 0) return cudaErrorInvalidValue;
  // Narrow blocks fill the chip with few heads; with many, wider ones repeat less of the gate arithmetic.
  const bool narrow = batch * heads <= 256;
  const int columns = narrow ? 16 : 32;
  const auto narrow_kernel = ctx.pdl ? kda_delta_rule_kernel<16, true> : kda_delta_rule_kernel<16, false>;
  const auto wide_kernel = ctx.pdl ? kda_delta_rule_kernel<32, true> : kda_delta_rule_kernel<32, false>;
  const dim3 grid(static_cast<unsigned>(kKdaHeadDim / columns), static_cast<unsigned>(heads),
                  static_cast<unsigned>(batch));
  return launch(ctx, narrow ? narrow_kernel : wide_kernel, grid, dim3(static_cast<unsigned>(columns * 8)), 0,
                qkv, gate, gate_stride, beta, beta_stride, a_log, dt_bias, state, state_index, out, heads);
}

cudaError_t kda_gated_norm(const LaunchContext& ctx, const bf16* x, const bf16* gate, int64_t gate_stride,
                           const bf16* weight, bf16* out, int batch, int heads, float epsilon) {
  if (batch <= 0 || heads <= 0 || gate_stride % 4 != 0) return cudaErrorInvalidValue;
  const int rows = batch * heads;
  return launch(ctx, ctx.pdl ? kda_gated_norm_kernel<true> : kda_gated_norm_kernel<false>,
                dim3(static_cast<unsigned>((rows + 3) / 4)), dim3(128), 0, x, gate, gate_stride, weight, out,
                rows, heads, epsilon);
}

}  // namespace cglint::kernels
