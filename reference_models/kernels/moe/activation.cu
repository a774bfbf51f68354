#include "kernels/moe/activation.h"
#include "kernels/moe/ptx.cuh"

namespace cglint::kernels::moe {
namespace {

constexpr int kThreads = 128;
constexpr float kFp8Largest = 448.0f;

// Eight neighbouring columns of a GEMM's row, partial sums added up in the order of the splits.
template <bool kPartials>
__device__ __forceinline__ void load_row8(const GemmRows& source, int64_t at, int64_t split_stride,
                                          float (&values)[8]) {
  if constexpr (!kPartials) {
    unpack(load8(source.rows + at), values);
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = 0.0f;
#pragma unroll 4
    for (int split = 0; split < source.splits; ++split) {
      const auto* part = reinterpret_cast<const float4*>(source.partials + split * split_stride + at);
      const float4 low = part[0];
      const float4 high = part[1];
      values[0] += low.x;
      values[1] += low.y;
      values[2] += low.z;
      values[3] += low.w;
      values[4] += high.x;
      values[5] += high.y;
      values[6] += high.z;
      values[7] += high.w;
    }
  }
}

// Largest |value| over the 16 threads that hold one group of 128 columns. All lanes of the warp call.
__device__ __forceinline__ float group_largest(const float (&values)[8]) {
  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) largest = fmaxf(largest, fabsf(values[i]));
#pragma unroll
  for (int offset = 8; offset > 0; offset /= 2)
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
  return largest;
}

__device__ __forceinline__ void store_fp8(const float (&values)[8], float scale, __nv_fp8_e4m3* out) {
  const float inverse = 1.0f / scale;
  uint32_t words[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float scaled = fminf(fmaxf(values[i] * inverse, -kFp8Largest), kFp8Largest);
    const uint32_t byte = __nv_cvt_float_to_fp8(scaled, __NV_SATFINITE, __NV_E4M3);
    words[i / 4] |= byte << (8 * (i % 4));
  }
  *reinterpret_cast<uint2*>(out) = make_uint2(words[0], words[1]);
}

// One thread for eight columns; rows follow each other without gaps.
template <bool kPartials, bool kFp8>
__global__ void __launch_bounds__(kThreads) silu_mul_kernel(const __grid_constant__ SiluMulArgs a) {
  pdl_wait();
  pdl_trigger();
  const int vectors = a.intermediate / 8;
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int pair = static_cast<int>(index / vectors);
  const int column = static_cast<int>(index % vectors) * 8;
  const bool valid = pair < a.pairs && (a.positions == nullptr || a.positions[pair] >= 0);
  float values[8] = {};
  if (valid) {
    const int64_t row = static_cast<int64_t>(pair) * 2 * a.intermediate;
    const int64_t split_stride = static_cast<int64_t>(a.pairs) * 2 * a.intermediate;
    float gate[8];
    float up[8];
    load_row8<kPartials>(a.gate_up, row + column, split_stride, gate);
    load_row8<kPartials>(a.gate_up, row + a.intermediate + column, split_stride, up);
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = __fdividef(gate[i], 1.0f + __expf(-gate[i])) * up[i];
  }
  const int64_t at = static_cast<int64_t>(pair) * a.intermediate + column;
  if constexpr (kFp8) {
    // A group of 128 columns is 16 neighbouring threads of one row: all valid or none.
    const float scale = fmaxf(group_largest(values), 1e-10f) / kFp8Largest;
    if (!valid) return;
    store_fp8(values, scale, a.out_fp8 + at);
    if (column % 128 == 0) a.out_scale[at / 128] = scale;
  } else {
    if (valid) store8(a.out + at, pack(values));
  }
}

__global__ void __launch_bounds__(kThreads) quantize_fp8_kernel(const __grid_constant__ QuantizeFp8Args a) {
  pdl_wait();
  pdl_trigger();
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 8;
  const bool valid = at < static_cast<int64_t>(a.rows) * a.columns;
  float values[8] = {};
  if (valid) unpack(load8(a.x + at), values);
  const float scale = fmaxf(group_largest(values), 1e-10f) / kFp8Largest;
  if (!valid) return;
  store_fp8(values, scale, a.q + at);
  if (at % 128 == 0) a.scale[at / 128] = scale;
}

// One thread for eight columns of a token; grid (columns, tokens). Small blocks, to spread a few tokens over
// more multiprocessors.
constexpr int kFinalizeThreads = 64;

template <bool kPartials>
__global__ void __launch_bounds__(kFinalizeThreads) finalize_kernel(const __grid_constant__ FinalizeArgs a) {
  pdl_wait();
  pdl_trigger();
  const int token = static_cast<int>(blockIdx.y);
  const int column = (static_cast<int>(blockIdx.x) * kFinalizeThreads + static_cast<int>(threadIdx.x)) * 8;
  if (column >= a.hidden) return;
  const int64_t at = static_cast<int64_t>(token) * a.hidden + column;
  const int64_t split_stride = static_cast<int64_t>(a.tokens) * a.top_k * a.hidden;
  // Under way while the choices are looked up.
  Bf16x8 shared{};
  Bf16x8 residual{};
  if (a.shared != nullptr) shared = load8(a.shared + at);
  if (a.residual != nullptr) residual = load8(a.residual + at);
  float sum[8] = {};
  // Eight choices at a time, so that their rows' loads are under way together.
  for (int first = 0; first < a.top_k; first += 8) {
    int64_t row[8];
    float weight[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int pair = token * a.top_k + first + i;
      const bool exists = first + i < a.top_k;
      const int position = exists && a.positions != nullptr ? a.positions[pair] : pair;
      weight[i] = exists ? a.weights[pair] : 0.0f;
      row[i] = !exists || position < 0 ? -1 : a.permuted ? position : pair;
    }
    // A load and what is done with it stand apart: in one branch, every row would wait for the one before.
    float values[8][8] = {};
    if constexpr (kPartials) {
      for (int split = 0; split < a.y.splits; ++split) {
        float4 part[8][2] = {};
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const auto* from =
              reinterpret_cast<const float4*>(a.y.partials + split * split_stride + row[i] * a.hidden + column);
          if (row[i] >= 0) part[i][0] = from[0];
          if (row[i] >= 0) part[i][1] = from[1];
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            values[i][half * 4] += part[i][half].x;
            values[i][half * 4 + 1] += part[i][half].y;
            values[i][half * 4 + 2] += part[i][half].z;
            values[i][half * 4 + 3] += part[i][half].w;
          }
        }
      }
    } else {
      Bf16x8 packed[8] = {};
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (row[i] >= 0) packed[i] = load8(a.y.rows + row[i] * a.hidden + column);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) unpack(packed[i], values[i]);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (row[i] < 0) continue;
#pragma unroll
      for (int e = 0; e < 8; ++e) sum[e] += weight[i] * values[i][e];
    }
  }
  for (const Bf16x8& addend : {shared, residual}) {
    float values[8];
    unpack(addend, values);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum[i] += values[i];
  }
  store8(a.out + at, pack(sum));
}

__global__ void __launch_bounds__(kThreads) zero_fill_kernel(unsigned char* data, size_t size_bytes) {
  pdl_wait();
  pdl_trigger();
  const size_t stride = static_cast<size_t>(gridDim.x) * kThreads * 16;
  for (size_t at = (static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x) * 16; at < size_bytes;
       at += stride) {
    if (at + 16 <= size_bytes) {
      *reinterpret_cast<uint4*>(data + at) = make_uint4(0, 0, 0, 0);
    } else {
      for (size_t i = at; i < size_bytes; ++i) data[i] = 0;
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    cast_bf16_kernel(const float* in, __nv_bfloat16* out, size_t count) {
  pdl_wait();
  pdl_trigger();
  const size_t at = (static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x) * 8;
  if (at + 8 <= count) {
    const float4 low = *reinterpret_cast<const float4*>(in + at);
    const float4 high = *reinterpret_cast<const float4*>(in + at + 4);
    const float values[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    store8(out + at, pack(values));
  } else {
    for (size_t i = at; i < count; ++i) out[i] = __float2bfloat16_rn(in[i]);
  }
}

unsigned blocks_for(int64_t threads) {
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}

bool is_valid(const GemmRows& source) {
  return source.rows != nullptr || (source.partials != nullptr && source.splits >= 1);
}

}  // namespace

cudaError_t launch_silu_mul(const LaunchContext& ctx, const SiluMulArgs& args) {
  const bool fp8 = args.out_fp8 != nullptr;
  if (!is_valid(args.gate_up) || args.pairs < 0 || args.intermediate < 8 ||
      args.intermediate % (fp8 ? 128 : 8) != 0 || (args.out != nullptr) == fp8 ||
      (fp8 && args.out_scale == nullptr)) {
    return cudaErrorInvalidValue;
  }
  if (args.pairs == 0) return cudaSuccess;
  const dim3 grid(blocks_for(static_cast<int64_t>(args.pairs) * (args.intermediate / 8)));
  const bool partials = args.gate_up.rows == nullptr;
  auto* kernel = partials ? (fp8 ? silu_mul_kernel<true, true> : silu_mul_kernel<true, false>)
                          : (fp8 ? silu_mul_kernel<false, true> : silu_mul_kernel<false, false>);
  return launch(ctx, kernel, grid, dim3(kThreads), 0, args);
}

cudaError_t launch_quantize_fp8(const LaunchContext& ctx, const QuantizeFp8Args& args) {
  if (args.x == nullptr || args.q == nullptr || args.scale == nullptr || args.rows < 0 ||
      args.columns < 128 || args.columns % 128 != 0) {
    return cudaErrorInvalidValue;
  }
  if (args.rows == 0) return cudaSuccess;
  const dim3 grid(blocks_for(static_cast<int64_t>(args.rows) * (args.columns / 8)));
  return launch(ctx, quantize_fp8_kernel, grid, dim3(kThreads), 0, args);
}

cudaError_t launch_finalize(const LaunchContext& ctx, const FinalizeArgs& args) {
  const bool partials = args.y.rows == nullptr;
  if (!is_valid(args.y) || args.weights == nullptr || args.out == nullptr || args.tokens < 0 ||
      args.tokens > 65535 || args.top_k < 1 || args.hidden < 8 || args.hidden % 8 != 0 ||
      (args.permuted && (args.positions == nullptr || partials))) {
    return cudaErrorInvalidValue;
  }
  if (args.tokens == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>((args.hidden / 8 + kFinalizeThreads - 1) / kFinalizeThreads),
                  static_cast<unsigned>(args.tokens));
  return launch(ctx, partials ? finalize_kernel<true> : finalize_kernel<false>, grid, dim3(kFinalizeThreads),
                0, args);
}

cudaError_t launch_zero_fill(const LaunchContext& ctx, void* data, size_t size_bytes) {
  if (data == nullptr) return cudaErrorInvalidValue;
  if (size_bytes == 0) return cudaSuccess;
  const size_t blocks = (size_bytes + kThreads * 16 - 1) / (kThreads * 16);
  const dim3 grid(static_cast<unsigned>(blocks < 2048 ? blocks : 2048));
  return launch(ctx, zero_fill_kernel, grid, dim3(kThreads), 0, static_cast<unsigned char*>(data),
                size_bytes);
}

cudaError_t launch_cast_bf16(const LaunchContext& ctx, const float* in, __nv_bfloat16* out, size_t count) {
  if (in == nullptr || out == nullptr) return cudaErrorInvalidValue;
  if (count == 0) return cudaSuccess;
  return launch(ctx, cast_bf16_kernel, dim3(blocks_for(static_cast<int64_t>((count + 7) / 8))),
                dim3(kThreads), 0, in, out, count);
}

}  // namespace cglint::kernels::moe
