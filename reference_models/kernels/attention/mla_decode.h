// Split-KV decode attention over the paged latent cache of MLA (weights absorbed): every head of a token
// attends to the same 576-wide rows, whose first 512 values are also the values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention/kv_cache.h"
#include "kernels/common/buffer.h"
#include "kernels/common/launch.h"

namespace cglint::kernels {

// Tokens a block handles at a time. Pages must hold a power of two times as many.
inline constexpr int kMlaTileTokens = 32;
inline constexpr int kMlaMaxSplits = 256;

// out(b, h, :) = softmax_t(scale * q(b, h, :) . row(b, t)) x row(b, t)[:512] over t < seq_lens[b].
struct MlaDecode {
  const bf16* q = nullptr;               // [batch, heads, 576]: 512 absorbed, 64 rope; contiguous
  const bf16* cache = nullptr;           // [pages, page_size, 576], see kv_cache.h
  const int32_t* block_table = nullptr;  // [batch, max_pages]
  const int32_t* seq_lens = nullptr;     // [batch], on the device; a length of 0 gives zeros
  bf16* out = nullptr;                   // [batch, heads, 512], contiguous
  int batch = 0;
  int heads = 0;
  int page_size = 64;  // 32, 64, 128, ...
  int max_pages = 0;   // row length of block_table; seq_lens[b] <= max_pages * page_size
  // Pages of `cache`, all of them readable. 0, not known: the kernels that read it through a tensor map are not taken.
  int64_t cache_pages = 0;
  float softmax_scale = 1;
  int splits = 1;  // parts each sequence is cut into, 1..kMlaMaxSplits
  // For programmatic launches: start loading the cache before pdl_wait(), while the previous kernel still runs.
  // Only legal if block_table, seq_lens and all rows but the last of each sequence are older than the previous
  // kernel: written by a kernel that the previous one has itself waited for, or before the step.
  bool cache_is_settled = false;
};

// How many parts to cut sequences of up to `max_context` tokens into so that `sm_count` multiprocessors are
// busy once. A choice made when the graph is captured; any seq_lens up to max_pages stay correct in a replay.
[[nodiscard]] int mla_decode_splits(int batch, int heads, int max_context, int sm_count);

// Bytes of workspace, 16-byte aligned, contents irrelevant; 0 if splits is 1.
[[nodiscard]] size_t mla_decode_workspace_bytes(const MlaDecode& attention);

// Launches the split kernel and, if splits > 1, the combine kernel (two launches).
[[nodiscard]] cudaError_t mla_decode(const LaunchContext& ctx, const MlaDecode& attention, void* workspace);

}  // namespace cglint::kernels
