// The one list of compiled tile variants: V(block_m, block_n, block_k, num_warps, warps_along_m), ordered by
// block_m, block_n, block_k, num_warps. Rows of 128 or 256 bytes of K; the small-token variants take 256
// where few blocks must keep much memory traffic in flight.
#pragma once

#define CGLINT_MOE_BF16_VARIANTS(V) \
  V(8, 32, 128, 2, 1)               \
  V(8, 64, 64, 4, 1)                \
  V(8, 64, 128, 4, 1)               \
  V(8, 64, 256, 4, 1)               \
  V(8, 128, 64, 4, 1)               \
  V(16, 32, 64, 2, 1)               \
  V(16, 32, 128, 2, 1)              \
  V(16, 64, 64, 4, 1)               \
  V(16, 64, 128, 4, 1)              \
  V(16, 128, 64, 4, 1)              \
  V(16, 128, 128, 8, 1)             \
  V(32, 64, 128, 4, 1)              \
  V(32, 128, 64, 4, 1)              \
  V(64, 64, 64, 4, 2)               \
  V(64, 128, 64, 4, 2)              \
  V(64, 128, 64, 8, 2)              \
  V(128, 128, 64, 8, 2)

#define CGLINT_MOE_FP8_VARIANTS(V) \
  V(8, 32, 256, 2, 1)              \
  V(8, 64, 128, 4, 1)              \
  V(8, 64, 256, 4, 1)              \
  V(8, 128, 128, 4, 1)             \
  V(8, 128, 256, 8, 1)             \
  V(16, 32, 256, 2, 1)             \
  V(16, 64, 128, 4, 1)             \
  V(16, 64, 256, 4, 1)             \
  V(16, 128, 128, 4, 1)            \
  V(32, 64, 128, 4, 1)             \
  V(32, 128, 128, 4, 1)            \
  V(64, 64, 128, 4, 2)             \
  V(64, 128, 128, 4, 2)            \
  V(64, 128, 128, 8, 2)            \
  V(128, 128, 128, 8, 2)
