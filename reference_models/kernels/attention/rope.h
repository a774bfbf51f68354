// Rotary position embedding of MLA's 64 rope dimensions, interleaved pairs (2i, 2i + 1), for the query heads
// and the one key head of a token.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/common/buffer.h"
#include "kernels/common/launch.h"

namespace cglint::kernels {

inline constexpr int kRopeDim = 64;

// [positions, 64] floats: 32 cosines then 32 sines of position * base^(-2i/64) per row.
std::vector<float> make_rope_table(int positions, double base);

// Rotates q and k. Input and output may be the same memory; strides are in elements, multiples of 8.
//   positions [tokens]
//   table     see make_rope_table; every position must be below its row count
//   q_in      element (token, head, d) at token * q_in_token_stride + head * q_in_head_stride + d, d < 64
//   q_out     likewise
//   k_in      element (token, d) at token * k_in_stride + d; k_out likewise. Null: no key (k_out unused)
[[nodiscard]] cudaError_t rope_interleaved(const LaunchContext& ctx, const int64_t* positions,
                                           const float* table, const bf16* q_in, int64_t q_in_token_stride,
                                           int64_t q_in_head_stride, bf16* q_out, int64_t q_out_token_stride,
                                           int64_t q_out_head_stride, const bf16* k_in, int64_t k_in_stride,
                                           bf16* k_out, int64_t k_out_stride, int tokens, int heads);

}  // namespace cglint::kernels
