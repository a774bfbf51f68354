// The first node of a step: token ids to rows of the embedding table.
#pragma once

#include <cstdint>

#include "kernels/common/buffer.h"
#include "kernels/common/launch.h"

namespace cglint::models {

// out[t] = table[ids[t]]; hidden is a multiple of 8, pointers are 16-byte aligned.
[[nodiscard]] cudaError_t embed_tokens(const kernels::LaunchContext& ctx, const std::int32_t* ids,
                                       const kernels::bf16* table, kernels::bf16* out, int tokens,
                                       int hidden);

}  // namespace cglint::models
