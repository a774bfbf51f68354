// What stands between and after the two expert GEMMs: gated activation, fp8 quantisation, the weighted sum
// back to tokens.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/common/launch.h"

namespace cglint::kernels::moe {

// The rows a grouped GEMM left: bf16 [pairs, columns], or fp32 partial sums [splits, pairs, columns].
// `unused`, here and below: bytes that would be padding, whose contents change from launch to launch; they are recorded with the arguments.
struct GemmRows {
  const __nv_bfloat16* rows = nullptr;
  const float* partials = nullptr;  // used where `rows` is null
  int splits = 1;
  int unused = 0;
};

struct SiluMulArgs {
  GemmRows gate_up;  // columns = 2 * intermediate: gate, then up
  int pairs = 0;
  int intermediate = 0;  // multiple of 8; with an fp8 output of 128
  // AlignArgs::positions: rows of pairs at -1 (experts elsewhere) are skipped. Null: all rows.
  const int32_t* positions = nullptr;
  // out = silu(gate) * up, to exactly one of: bf16 [pairs, intermediate], or e4m3 of the same shape with an
  // fp32 scale for each 128 columns, [pairs, intermediate / 128]; 16-byte aligned.
  __nv_bfloat16* out = nullptr;
  __nv_fp8_e4m3* out_fp8 = nullptr;
  float* out_scale = nullptr;
};
[[nodiscard]] cudaError_t launch_silu_mul(const LaunchContext& ctx, const SiluMulArgs& args);

// Per-token-group quantisation: q = x / scale in e4m3 with scale = max |x| over 128 columns / 448 (at least
// 1e-10 / 448). x [rows, columns] bf16, q the same shape, scale [rows, columns / 128]. columns a multiple of
// 128.
struct QuantizeFp8Args {
  const __nv_bfloat16* x = nullptr;
  int rows = 0;
  int columns = 0;
  __nv_fp8_e4m3* q = nullptr;
  float* scale = nullptr;
};
[[nodiscard]] cudaError_t launch_quantize_fp8(const LaunchContext& ctx, const QuantizeFp8Args& args);

// out[t] = sum over k of weights[t, k] * y[t * top_k + k], plus the addends; summed in fp32 in the order of
// k.
struct FinalizeArgs {
  GemmRows y;                      // columns = hidden
  const float* weights = nullptr;  // [tokens, top_k]
  // AlignArgs::positions: choices at -1 are left out. Null: all are summed, and `permuted` must be false.
  const int32_t* positions = nullptr;
  bool permuted =
      false;  // row of y for a choice is its position (see PermuteArgs), not its pair number; bf16 only
  uint8_t unused[7] = {};
  const __nv_bfloat16* shared = nullptr;    // shared expert's output [tokens, hidden], or null
  const __nv_bfloat16* residual = nullptr;  // [tokens, hidden], or null
  int tokens = 0;
  int top_k = 0;
  int hidden = 0;  // multiple of 8
  int unused_too = 0;
  __nv_bfloat16* out = nullptr;  // [tokens, hidden]; may be `shared` or `residual`
};
[[nodiscard]] cudaError_t launch_finalize(const LaunchContext& ctx, const FinalizeArgs& args);

// Sets `size_bytes` bytes to zero by a kernel (as engines' fills do, not a memset node). 16-byte aligned.
[[nodiscard]] cudaError_t launch_zero_fill(const LaunchContext& ctx, void* data, size_t size_bytes);

// out[i] = bf16(in[i]), round to nearest even. 16-byte aligned.
[[nodiscard]] cudaError_t launch_cast_bf16(const LaunchContext& ctx, const float* in, __nv_bfloat16* out,
                                           size_t count);

}  // namespace cglint::kernels::moe
