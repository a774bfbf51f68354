// The paged MLA cache: one row of 512 latent and 64 rope values per token.
//   cache [pages, page_size, 576] bf16; token t of a sequence lies in page block_table[sequence][t /
//   page_size]
#pragma once

#include <cstdint>

#include "kernels/common/buffer.h"
#include "kernels/common/launch.h"

namespace cglint::kernels {

inline constexpr int kLatentDim = 512;
inline constexpr int kCacheRow = 576;  // latent, then rope

// cache row slot_mapping[t] = kv_c[t] followed by k_pe[t]. A negative slot skips the token (padding).
//   kv_c         [tokens, 512], rows `kv_c_stride` elements apart (multiple of 8)
//   k_pe         [tokens, 64], rows `k_pe_stride` elements apart (multiple of 8)
//   slot_mapping [tokens], page * page_size + offset in page
[[nodiscard]] cudaError_t concat_and_cache_mla(const LaunchContext& ctx, const bf16* kv_c,
                                               int64_t kv_c_stride, const bf16* k_pe, int64_t k_pe_stride,
                                               const int64_t* slot_mapping, bf16* cache, int tokens);

// Moves a decoding batch on by one token: positions[b] = seq_lens[b], seq_lens[b] += 1 and
// slot_mapping[b] = the cache slot of the new token.
//   block_table [batch, max_pages]; a sequence whose pages are used up gets slot -1 and does not grow
[[nodiscard]] cudaError_t advance_decode(const LaunchContext& ctx, const int32_t* block_table, int max_pages,
                                         int page_size, int32_t* seq_lens, int64_t* positions,
                                         int64_t* slot_mapping, int batch);

// out[i] = a[i] + b[i], summed in fp32. `out` may be `a` or `b`; count is a multiple of 8.
[[nodiscard]] cudaError_t residual_add(const LaunchContext& ctx, const bf16* a, const bf16* b, bf16* out,
                                       int64_t count);

}  // namespace cglint::kernels
