// NVFP4: e2m1 values, two to a byte (the even column in the low half), with an e4m3 scale for each 16 columns
// and one fp32 scale for the tensor. Conversions are done in integer and fp32 arithmetic, so they run before
// sm_100 too, bit for bit the same everywhere.
//
// The padding question this is here for: in the tiled layout the scale buffer covers whole 128-row, 4-scale
// tiles, but a tensor's rows seldom do. Who makes the rest defined? vllm-project/vllm#42988 dropped the zero
// fill; vllm-project/vllm#45739 put it back because the consumer reads the padding;
// vllm-project/vllm#53568 moved it into the quantising kernel. All three forms can be built from the parts
// here, and the row-major layout has no padding at all.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/common/launch.h"

namespace cglint::kernels::moe {

enum class ScaleLayout : uint8_t {
  kRowMajor,  // [rows, columns / 16]: "sf_major" in vLLM's kernels, exact size
  kTiled,     // 512-byte tiles of 128 rows x 4 scales, padded to whole tiles (tcgen05's 4x block layout)
};

// Byte offset of the scale for `row` and `group` (column / 16) of a tensor with `groups` scales a row.
__host__ __device__ constexpr int64_t scale_offset(ScaleLayout layout, int64_t row, int64_t group,
                                                   int64_t groups) {
  if (layout == ScaleLayout::kRowMajor) return row * groups + group;
  const int64_t tiles_per_row = (groups + 3) / 4;
  return ((row / 128 * tiles_per_row + group / 4) * 32 + row % 32) * 16 + row % 128 / 32 * 4 + group % 4;
}

// Bytes of the scale buffer.
constexpr size_t scale_bytes(ScaleLayout layout, int rows, int columns) {
  const size_t groups = static_cast<size_t>(columns) / 16;
  if (layout == ScaleLayout::kRowMajor) return static_cast<size_t>(rows) * groups;
  return (static_cast<size_t>(rows) + 127) / 128 * 128 * ((groups + 3) / 4 * 4);
}

struct QuantizeNvfp4Args {
  const __nv_bfloat16* x = nullptr;  // [rows, columns], 16-byte aligned
  int rows = 0;
  int columns = 0;  // multiple of 16
  // [1]: what block scales are multiplied by before they are rounded to e4m3; 448 * 6 / max |x| uses their
  // whole range. Dequantised value = e2m1 * e4m3 / global_scale.
  const float* global_scale = nullptr;
  ScaleLayout layout = ScaleLayout::kTiled;
  // Tiled only: also write zero scales to the padding (rows up to a multiple of 128, groups up to one of 4).
  // Without it the padding of `scales` keeps what it held.
  bool zero_padding = false;
  uint8_t* q = nullptr;       // out, [rows, columns / 2]; 8-byte aligned
  uint8_t* scales = nullptr;  // out, scale_bytes()
};
[[nodiscard]] cudaError_t launch_quantize_nvfp4(const LaunchContext& ctx, const QuantizeNvfp4Args& args);

// The scale of a tensor by its largest value, as dynamic quantisation takes it: global_scale = 448 * 6 / max |x|
// rounded down to a power of two (so that it does not depend on the largest value's last bit), 1 where x is all zero,
// NaN where x has one. One block: meant for a decode step's activations.
struct Nvfp4ScaleArgs {
  const __nv_bfloat16* x = nullptr;  // 16-byte aligned
  int64_t count = 0;                 // multiple of 8
  const float* other_scale = nullptr;  // [1]: global scale of the weights it will meet
  float* global_scale = nullptr;       // out, [1]
  float* alpha = nullptr;              // out, [1]: 1 / (global_scale * other_scale), for Nvfp4GemmArgs
};
[[nodiscard]] cudaError_t launch_nvfp4_global_scale(const LaunchContext& ctx, const Nvfp4ScaleArgs& args);

struct Nvfp4GemmArgs {
  const uint8_t* x = nullptr;  // [rows, k / 2]; with reads_padding [rows up to a multiple of 128, k / 2]
  const uint8_t* x_scales = nullptr;  // scale_bytes(x_layout, rows, k)
  ScaleLayout x_layout = ScaleLayout::kTiled;
  const uint8_t* w = nullptr;           // [n, k / 2]
  const uint8_t* w_scales = nullptr;    // tiled
  const float* alpha = nullptr;         // [1]: 1 / (global scale of x * global scale of w)
  const __nv_bfloat16* bias = nullptr;  // [n] or null, added after alpha
  int rows = 0;
  int n = 0;  // multiple of 16
  int k = 0;  // multiple of 128
  // True: works on whole tiles of 128 rows and writes all of them, the padding included; what the padding
  // rows of the output become depends on the padding of x_scales (tiled layout only). False: rows alone.
  bool reads_padding = false;
  __nv_bfloat16* out = nullptr;  // [rows, n], or [rows up to a multiple of 128, n]
};
// out = alpha * dequantised x * dequantised w^T + bias, products exact, sums in fp32. All pointers 16-byte
// aligned.
[[nodiscard]] cudaError_t launch_nvfp4_gemm(const LaunchContext& ctx, const Nvfp4GemmArgs& args);

}  // namespace cglint::kernels::moe
