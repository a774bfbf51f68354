// For the check: NVFP4 weights as bf16, which holds each of their values exactly.
#pragma once

#include <cstdint>

#include "kernels/common/buffer.h"

namespace cglint::models {

// out(row, column) = e2m1 value * e4m3 scale; q [n, k / 2], scales tiled (kernels/moe/nvfp4.h), out [n, k].
[[nodiscard]] cudaError_t dequantise_nvfp4(const std::uint8_t* q, const std::uint8_t* scales, kernels::bf16* out, int n,
                                           int k);

}  // namespace cglint::models
