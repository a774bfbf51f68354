#include <cuda_fp8.h>

#include <cstring>

#include "kernels/moe/nvfp4.h"
#include "kernels/moe/ptx.cuh"

namespace cglint::kernels::moe {
namespace {

constexpr int kQuantizeThreads = 128;
constexpr float kE2m1Largest = 6.0f;

// Nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6, ties to the even code, larger values to 6; the sign in bit 3. NaN
// becomes 6.
__device__ __forceinline__ uint32_t to_e2m1(float value) {
  const float magnitude = fabsf(value);
  uint32_t code = 7;
  if (magnitude <= 5.0f) code = 6;
  if (magnitude < 3.5f) code = 5;
  if (magnitude <= 2.5f) code = 4;
  if (magnitude < 1.75f) code = 3;
  if (magnitude <= 1.25f) code = 2;
  if (magnitude < 0.75f) code = 1;
  if (magnitude <= 0.25f) code = 0;
  return code | (__float_as_uint(value) >> 28 & 8u);
}

__device__ __forceinline__ float e4m3_to_float(uint32_t byte) {
  __nv_fp8_e4m3 value;
  value.__x = static_cast<__nv_fp8_storage_t>(byte);
  return static_cast<float>(value);
}

// One thread for one group of 16 columns; grid (groups, rows), padding included where it is to be zeroed.
__global__ void __launch_bounds__(kQuantizeThreads)
    quantize_nvfp4_kernel(const __grid_constant__ QuantizeNvfp4Args a, int padded_groups) {
  pdl_wait();
  pdl_trigger();
  const int groups = a.columns / 16;
  const int group = static_cast<int>(blockIdx.x) * kQuantizeThreads + static_cast<int>(threadIdx.x);
  const int row = static_cast<int>(blockIdx.y);
  if (group >= padded_groups) return;
  if (row >= a.rows || group >= groups) {
    a.scales[scale_offset(ScaleLayout::kTiled, row, group, groups)] = 0;
    return;
  }
  const __nv_bfloat16* from = a.x + static_cast<int64_t>(row) * a.columns + group * 16;
  float values[2][8];
  unpack(load8(from), values[0]);
  unpack(load8(from + 8), values[1]);
  const float global_scale = *a.global_scale;
  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < 16; ++i) largest = fmaxf(largest, fabsf(values[i / 8][i % 8]));
  const uint32_t scale_byte =
      __nv_cvt_float_to_fp8(global_scale * (largest / kE2m1Largest), __NV_SATFINITE, __NV_E4M3);
  const float scale = e4m3_to_float(scale_byte);
  const float inverse = scale > 0.0f ? global_scale / scale : 0.0f;
  uint32_t words[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < 16; ++i) words[i / 8] |= to_e2m1(values[i / 8][i % 8] * inverse) << (4 * (i % 8));
  *reinterpret_cast<uint2*>(a.q + (static_cast<int64_t>(row) * a.columns + group * 16) / 2) =
      make_uint2(words[0], words[1]);
  a.scales[scale_offset(a.layout, row, group, groups)] = static_cast<uint8_t>(scale_byte);
}

constexpr int kScaleThreads = 1024;

// The bits of magnitudes are ordered as the magnitudes are, with NaN above all.
__global__ void __launch_bounds__(kScaleThreads) nvfp4_global_scale_kernel(const __grid_constant__ Nvfp4ScaleArgs a) {
  __shared__ uint32_t scratch[kScaleThreads / 32];
  pdl_wait();
  pdl_trigger();
  uint32_t largest = 0;
  for (int64_t at = static_cast<int64_t>(threadIdx.x) * 8; at < a.count; at += kScaleThreads * 8) {
    float values[8];
    unpack(load8(a.x + at), values);
#pragma unroll
    for (float value : values) largest = max(largest, __float_as_uint(value) & 0x7fffffffu);
  }
  largest = __reduce_max_sync(0xffffffffu, largest);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = largest;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  const float amax = __uint_as_float(__reduce_max_sync(0xffffffffu, scratch[threadIdx.x]));
  if (threadIdx.x != 0) return;
  float scale = amax == 0.0f ? 1.0f : 448.0f * kE2m1Largest / amax;
  if (isfinite(scale)) scale = __uint_as_float(__float_as_uint(scale) & 0x7f800000u);
  *a.global_scale = scale;
  *a.alpha = 1.0f / (scale * *a.other_scale);
}

// Of a word of eight e2m1 values, number `i` (0..3) and i + 4 as f16, both too small by 2^-14: the value's
// three bits become the low exponent bits and the top mantissa bit. Subnormals come out right by the same
// factor.
__device__ __forceinline__ uint32_t e2m1_pair(uint32_t word, int i) {
  const uint32_t moved = word >> (4 * i);
  return ((moved & 0x00070007u) << 9) | ((moved & 0x00080008u) << 12);
}

// The first (second) of two f16 values, twice.
__device__ __forceinline__ uint32_t repeat_low(uint32_t two) {
  return (two & 0xffffu) | (two << 16);
}
__device__ __forceinline__ uint32_t repeat_high(uint32_t two) {
  return (two >> 16) | (two & 0xffff0000u);
}

// 32 values of one row: four words and the two scales that go with each pair of words, as f16 pairs.
struct Nvfp4Run {
  uint32_t words[4];
  uint32_t scale[2];
};

__device__ __forceinline__ Nvfp4Run load_run(const uint8_t* values, const uint8_t* scales) {
  Nvfp4Run run;
  const uint4 words = *reinterpret_cast<const uint4*>(values);
  run.words[0] = words.x;
  run.words[1] = words.y;
  run.words[2] = words.z;
  run.words[3] = words.w;
  const uint32_t both = e4m3x2_to_f16x2(*reinterpret_cast<const uint16_t*>(scales));
  run.scale[0] = repeat_low(both);
  run.scale[1] = repeat_high(both);
  return run;
}

// A block makes 16 weight rows x kTokenTiles * 8 tokens; its warps share out k and add up at the end.
//
// No shared memory on the way in: lane 4 g + t loads 16 bytes, 32 values, of row g at k = 32 t (of 128), and
// which of them a matrix instruction calls its k = 2 t is free as long as weights and tokens agree. An e2m1
// times an e4m3 has at most six significant bits and so is exact in f16; the 2^-14 of either side is taken
// out with alpha.
template <int kTokenTiles, int kWarps>
__global__ void __launch_bounds__(kWarps * 32)
    nvfp4_gemm_kernel(const __grid_constant__ Nvfp4GemmArgs a, int rows_worked) {
  constexpr float kUndoBothSides = 268435456.0f;  // 2^28
  __shared__ float sums[kWarps][kTokenTiles * 8][16];
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int warp = static_cast<int>(threadIdx.x) >> 5;
  const int g = lane >> 2;
  const int t = lane & 3;
  const int n0 = static_cast<int>(blockIdx.x) * 16;
  const int m0 = static_cast<int>(blockIdx.y) * kTokenTiles * 8;
  const int groups = a.k / 16;
  const int64_t row_bytes = a.k / 2;
  pdl_wait();
  pdl_trigger();

  float acc[kTokenTiles][4] = {};
  for (int step = warp; step < a.k / 128; step += kWarps) {
    const int64_t byte = static_cast<int64_t>(step) * 64 + t * 16;
    const int group = step * 8 + t * 2;
    Nvfp4Run weights[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = n0 + g + half * 8;
      weights[half] = load_run(a.w + row * row_bytes + byte,
                               a.w_scales + scale_offset(ScaleLayout::kTiled, row, group, groups));
    }
    Nvfp4Run tokens[kTokenTiles];
#pragma unroll
    for (int j = 0; j < kTokenTiles; ++j) {
      const int row = m0 + j * 8 + g;
      tokens[j] = {};
      if (row < rows_worked)
        tokens[j] =
            load_run(a.x + row * row_bytes + byte, a.x_scales + scale_offset(a.x_layout, row, group, groups));
    }
#pragma unroll
    for (int word = 0; word < 4; ++word) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto pair_of = [&](const Nvfp4Run& run, int i) {
          return mul_f16x2(e2m1_pair(run.words[word], i), run.scale[word / 2]);
        };
        const uint32_t w_fragment[4] = {pair_of(weights[0], 2 * half), pair_of(weights[1], 2 * half),
                                        pair_of(weights[0], 2 * half + 1), pair_of(weights[1], 2 * half + 1)};
#pragma unroll
        for (int j = 0; j < kTokenTiles; ++j) {
          const uint32_t x_fragment[2] = {pair_of(tokens[j], 2 * half), pair_of(tokens[j], 2 * half + 1)};
          mma_f16(acc[j], w_fragment, x_fragment);
        }
      }
    }
  }
#pragma unroll
  for (int j = 0; j < kTokenTiles; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[warp][j * 8 + t * 2 + (e & 1)][g + (e >> 1) * 8] = acc[j][e];
  }
  __syncthreads();
  const float alpha = *a.alpha * kUndoBothSides;
  for (int i = static_cast<int>(threadIdx.x); i < kTokenTiles * 8 * 16; i += kWarps * 32) {
    const int token = i / 16;
    const int n = i % 16;
    if (m0 + token >= rows_worked) continue;
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += sums[w][token][n];
    sum *= alpha;
    if (a.bias != nullptr) sum += __bfloat162float(a.bias[n0 + n]);
    a.out[static_cast<int64_t>(m0 + token) * a.n + n0 + n] = __float2bfloat16_rn(sum);
  }
}

// A copy whose padding is zero. What the stack held there would be part of the recorded launch, and looks like an
// address at times.
QuantizeNvfp4Args without_padding(const QuantizeNvfp4Args& args) {
  QuantizeNvfp4Args clean;
  std::memset(static_cast<void*>(&clean), 0, sizeof clean);
  clean.x = args.x;
  clean.rows = args.rows;
  clean.columns = args.columns;
  clean.global_scale = args.global_scale;
  clean.layout = args.layout;
  clean.zero_padding = args.zero_padding;
  clean.q = args.q;
  clean.scales = args.scales;
  return clean;
}
Nvfp4GemmArgs without_padding(const Nvfp4GemmArgs& args) {
  Nvfp4GemmArgs clean;
  std::memset(static_cast<void*>(&clean), 0, sizeof clean);
  clean.x = args.x;
  clean.x_scales = args.x_scales;
  clean.x_layout = args.x_layout;
  clean.w = args.w;
  clean.w_scales = args.w_scales;
  clean.alpha = args.alpha;
  clean.bias = args.bias;
  clean.rows = args.rows;
  clean.n = args.n;
  clean.k = args.k;
  clean.reads_padding = args.reads_padding;
  clean.out = args.out;
  return clean;
}

}  // namespace

cudaError_t launch_quantize_nvfp4(const LaunchContext& ctx, const QuantizeNvfp4Args& args) {
  if (args.x == nullptr || args.global_scale == nullptr || args.q == nullptr || args.scales == nullptr ||
      args.rows < 0 || args.columns < 16 || args.columns % 16 != 0 ||
      (args.zero_padding && args.layout != ScaleLayout::kTiled)) {
    return cudaErrorInvalidValue;
  }
  if (args.rows == 0) return cudaSuccess;
  const int groups = args.columns / 16;
  const int padded_groups = args.zero_padding ? (groups + 3) / 4 * 4 : groups;
  const int padded_rows = args.zero_padding ? (args.rows + 127) / 128 * 128 : args.rows;
  if (padded_rows > 65535) return cudaErrorInvalidValue;
  const dim3 grid(static_cast<unsigned>((padded_groups + kQuantizeThreads - 1) / kQuantizeThreads),
                  static_cast<unsigned>(padded_rows));
  return launch(ctx, quantize_nvfp4_kernel, grid, dim3(kQuantizeThreads), 0, without_padding(args), padded_groups);
}

cudaError_t launch_nvfp4_global_scale(const LaunchContext& ctx, const Nvfp4ScaleArgs& args) {
  if (args.x == nullptr || args.other_scale == nullptr || args.global_scale == nullptr || args.alpha == nullptr ||
      args.count < 0 || args.count % 8 != 0) {
    return cudaErrorInvalidValue;
  }
  return launch(ctx, nvfp4_global_scale_kernel, dim3(1), dim3(kScaleThreads), 0, args);
}

cudaError_t launch_nvfp4_gemm(const LaunchContext& ctx, const Nvfp4GemmArgs& args) {
  if (args.x == nullptr || args.x_scales == nullptr || args.w == nullptr || args.w_scales == nullptr ||
      args.alpha == nullptr || args.out == nullptr || args.rows < 0 || args.n < 16 || args.n % 16 != 0 ||
      args.k < 128 || args.k % 128 != 0 || (args.reads_padding && args.x_layout != ScaleLayout::kTiled)) {
    return cudaErrorInvalidValue;
  }
  if (args.rows == 0) return cudaSuccess;
  const int rows = args.reads_padding ? (args.rows + 127) / 128 * 128 : args.rows;
  constexpr int kWarps = 8;
  const bool few = rows <= 8;
  const int rows_per_block = few ? 8 : 32;
  const dim3 grid(static_cast<unsigned>(args.n / 16),
                  static_cast<unsigned>((rows + rows_per_block - 1) / rows_per_block));
  if (grid.y > 65535) return cudaErrorInvalidValue;
  return launch(ctx, few ? nvfp4_gemm_kernel<1, kWarps> : nvfp4_gemm_kernel<4, kWarps>, grid,
                dim3(kWarps * 32), 0, without_padding(args), rows);
}

}  // namespace cglint::kernels::moe
