// Kimi Delta Attention, one decoded token: short convolution, gated delta rule, gated RMSNorm. The definition
// follows Kimi Linear as published with fla-org/flash-linear-attention (layer KimiDeltaAttention).
//
// Per head, with key and value width 128, S a 128 x 128 fp32 state and q, k, v the convolved projections:
//   q <- q / sqrt(|q|^2 + 1e-6) / sqrt(128),  k <- k / sqrt(|k|^2 + 1e-6)
//   a = exp(-exp(A_log) * softplus(gate + dt_bias))      decay, one per key channel
//   S <- diag(a) S;  S <- S + sigmoid(beta) k (v - k^T S);  o = q^T S
//   out = o / sqrt(mean(o^2) + epsilon) * weight * sigmoid(output_gate)
#pragma once

#include <cstdint>

#include "kernels/common/buffer.h"
#include "kernels/common/launch.h"

namespace cglint::kernels {

inline constexpr int kKdaHeadDim = 128;
inline constexpr int kKdaConvWidth = 4;

// Depthwise causal convolution over the last 4 tokens of each channel, then SiLU; the state moves on by one.
//   x       [batch, channels], rows `x_stride` elements apart (multiple of 8)
//   weight  [4, channels], weight[3] meets the newest token
//   state   [slots, 3, channels], oldest first; slot state_index[b] belongs to sequence b
//   out     [batch, channels], contiguous
// channels: multiple of 8 (q, k and v of all heads side by side: 3 * heads * 128).
[[nodiscard]] cudaError_t kda_short_conv(const LaunchContext& ctx, const bf16* x, int64_t x_stride,
                                         const bf16* weight, bf16* state, const int32_t* state_index,
                                         bf16* out, int batch, int channels);

// The delta rule on one token.
//   qkv      [batch, 3, heads, 128], contiguous (output of kda_short_conv)
//   gate     [batch, heads, 128], raw, rows `gate_stride` elements apart
//   beta     [batch, heads], raw, rows `beta_stride` elements apart
//   a_log    [heads] fp32;  dt_bias [heads, 128] fp32
//   state    [slots, heads, 128 (key), 128 (value)] fp32, updated in place, one slot per sequence
//   out      [batch, heads, 128], contiguous
[[nodiscard]] cudaError_t kda_delta_rule(const LaunchContext& ctx, const bf16* qkv, const bf16* gate,
                                         int64_t gate_stride, const bf16* beta, int64_t beta_stride,
                                         const float* a_log, const float* dt_bias, float* state,
                                         const int32_t* state_index, bf16* out, int batch, int heads);

// out = rms_norm over each head's 128 values of x, times weight, times sigmoid(gate).
//   x [batch, heads, 128]; gate rows `gate_stride` elements apart; weight [128]; out may be x
[[nodiscard]] cudaError_t kda_gated_norm(const LaunchContext& ctx, const bf16* x, const bf16* gate,
                                         int64_t gate_stride, const bf16* weight, bf16* out, int batch,
                                         int heads, float epsilon);

}  // namespace cglint::kernels
