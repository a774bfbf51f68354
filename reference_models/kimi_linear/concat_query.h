// The second half of MLA's query without rotary embedding: its 64 position values, unrotated, behind the 512
// absorbed ones.
#pragma once

#include <cstdint>

#include "kernels/common/buffer.h"
#include "kernels/common/launch.h"

namespace cglint::models {

// For d < 64: q_out[(token * heads + head) * 576 + 512 + d] = q[token * q_token_stride + head * q_head_stride + d].
// Strides in elements, multiples of 8; pointers 16-byte aligned.
[[nodiscard]] cudaError_t concat_query(const kernels::LaunchContext& ctx, const kernels::bf16* q,
                                       std::int64_t q_token_stride, std::int64_t q_head_stride, kernels::bf16* q_out,
                                       int tokens, int heads);

}  // namespace cglint::models
