// RMSNorm, plain and fused with the residual add that precedes it.
#pragma once

#include <cstdint>

#include "kernels/common/buffer.h"
#include "kernels/common/launch.h"

namespace cglint::kernels {

// output[r] = input[r] / sqrt(mean(input[r]^2) + epsilon) * weight, one block per row.
//   input   [rows, hidden], rows `input_stride` elements apart
//   weight  [hidden], or null for no gamma
//   output  [rows, hidden], rows `output_stride` elements apart; may be `input`
// hidden and strides: multiples of 8; hidden at most 16384; pointers 16-byte aligned.
[[nodiscard]] cudaError_t rms_norm(const LaunchContext& ctx, const bf16* input, int64_t input_stride,
                                   const bf16* weight, bf16* output, int64_t output_stride, int rows,
                                   int hidden, float epsilon);

// residual[r] += input[r] (rounded to bf16), then output[r] = rms_norm(residual[r]).
//   residual [rows, hidden], contiguous, updated in place; the rest as in rms_norm
[[nodiscard]] cudaError_t add_rms_norm(const LaunchContext& ctx, const bf16* input, int64_t input_stride,
                                       bf16* residual, const bf16* weight, bf16* output,
                                       int64_t output_stride, int rows, int hidden, float epsilon);

}  // namespace cglint::kernels
