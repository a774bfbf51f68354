// The path of mla_decode() on sm_90 for programmatic launches whose blocks have one or two pages: a few sequences of a few
// thousand tokens, or one long one. Not for callers; mla_decode() chooses.
#pragma once

#include <cuda_fp16.h>

#include "kernels/attention/mla_decode_tensor.h"

namespace cglint::kernels {

// Of a call that mla_decode_takes_tensor(): whether its sequences have more than one page a split, with 16 heads one too, and
// at most two.
[[nodiscard]] bool mla_decode_fits_pages(const MlaDecode& attention);

// Two programmatic launches. Values of the cache beyond 65,504 would overflow. `values` [batch, splits, heads / 8, 512, 8] and `stats` [batch, splits, heads / 8, 8] are the
// workspace; it takes half of that of the other paths.
[[nodiscard]] cudaError_t mla_decode_pages(const LaunchContext& ctx, const MlaDecode& attention, __half* values, float2* stats);

}  // namespace cglint::kernels
