// The path of mla_decode() on sm_90 for 8 and 16 heads: tensor maps, heads on the short side of the matrix instruction. Not for
// callers; mla_decode() chooses.
#pragma once

#include "kernels/attention/mla_decode.h"

namespace cglint::kernels {

inline constexpr int kMlaTensorSmem = 227 * 1024;  // what a block of sm_90 can have
inline constexpr int kMlaPageTokens = 64;
inline constexpr int kMlaHeadTile = 8;  // heads on the 8-column side of the matrix instruction

// Whether the code was compiled, the device runs it, and the call is one that it handles (more than one split, pages of 64).
[[nodiscard]] bool mla_decode_takes_tensor(const MlaDecode& attention, int device);

// Two launches. `values` [batch, splits, heads / 8, 512, 8] and `stats` [batch, splits, heads / 8, 8] are the workspace: as large as that of the
// other path, but in another order.
[[nodiscard]] cudaError_t mla_decode_tensor(const LaunchContext& ctx, const MlaDecode& attention, float* values, float2* stats);

}  // namespace cglint::kernels
