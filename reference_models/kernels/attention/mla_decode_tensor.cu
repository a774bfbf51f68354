#include <cuda.h>

#include <algorithm>

#include "kernels/attention/mla_decode_tensor.h"
#include "kernels/common/device.cuh"
#include "kernels/common/mma.cuh"

// Compiled for sm_90 alone; what was compiled is known to the host, what runs there is asked when a kernel is launched.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900
#define CGLINT_TENSOR_KERNELS 1
#endif

namespace cglint::kernels {
namespace {

constexpr int kPageTokens = 64;
constexpr int kHeadTile = 8;  // heads on the 8-column side of the matrix instruction

// kHeadTiles x 8 heads a block, tiles of kTile tokens, kGroups groups of kWarps warps, each with a ring of kStages tiles.
template <int kHeadTiles_, int kTile_, int kWarps_, int kGroups_, int kStages_>
struct Geometry {
  static constexpr int kHeadTiles = kHeadTiles_;
  static constexpr int kTile = kTile_;
  static constexpr int kWarps = kWarps_;
  static constexpr int kGroups = kGroups_;
  static constexpr int kStages = kStages_;
  static constexpr int kThreads = kWarps * kGroups * 32;
  static constexpr int kTokenGroups = kTile / 16;
  static constexpr int kParts = kWarps / kTokenGroups;  // of the 576 values, for the scores
  static constexpr int kSlotBytes = kTile * kCacheRow * 2;
  static constexpr int kScoreStride = kTile % 32 == 0 ? kTile + 16 : kTile;
  static constexpr int kScoreFloats = kHeadTiles * kParts * 8 * kScoreStride;  // of one tile
  static constexpr int kRingBytes = kGroups * kStages * kSlotBytes;
  static constexpr int kSmemBytes = kRingBytes + kGroups * 2 * kScoreFloats * 4 + kGroups * kHeadTiles * 8 * 8 + kGroups * kStages * 8;
  static_assert(kTile == 16 || kTile == 32 || kTile == 64);
  static_assert(kParts * kTokenGroups == kWarps);
  static_assert(kLatentDim / 16 / kWarps * kWarps * 16 == kLatentDim && kLatentDim / 16 / kWarps % kGroups == 0);
  static_assert(kGroups == 1 || kRingBytes >= kGroups * kHeadTiles * 16384, "groups are merged in the ring's place");
  static_assert(kSmemBytes <= kMlaTensorSmem);
};

#ifdef CGLINT_TENSOR_KERNELS
// Copies one box of the map, from `row` on, and reports its bytes to the barrier.
__device__ __forceinline__ void copy_tensor(uint32_t target, const CUtensorMap* map, int column, int row, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(target),
      "l"(map), "r"(barrier), "r"(column), "r"(row)
      : "memory");
}
// Both heads of a column pair by their own factor.
__device__ __forceinline__ void scale_columns(float (&tile)[4], float even, float odd) {
  tile[0] *= even;
  tile[1] *= odd;
  tile[2] *= even;
  tile[3] *= odd;
}
#endif

// Block (split, sequence, kHeadTiles x 8 heads) takes tiles split, split + splits, ... as the kernel of mla_decode.cu does.
//
// Tokens are on the 16-row side of the matrix instruction, heads on the 8-column side, so 8 heads leave no row unused. Groups of
// warps take tiles in turn, each with its own ring. One barrier a tile: before it each warp forms the scores of 16 tokens over a
// part of the 576 values; after it every warp of the group takes the softmax of the whole tile, in the registers where the second
// product wants it, and adds up its own columns. Groups are merged through shared memory at the end.
//
// `rows` is the cache as a tensor of [pages x 64, 576] in boxes of 64 values x kTile rows, 128-byte swizzle. `cache` is the same
// memory as a plain address, for whoever reads the launch: the words of a tensor map are the driver's affair.
template <typename G>
__global__ void __launch_bounds__(G::kThreads, 1)
    mla_decode_split_tensor_kernel(const __grid_constant__ CUtensorMap rows, const bf16* q, [[maybe_unused]] const bf16* cache,
                                   const int32_t* block_table, const int32_t* seq_lens, float* partial_values,
                                   float2* partial_stats, int heads, int max_pages, float scale_log2, bool programmatic,
                                   bool cache_is_settled) {
#ifdef CGLINT_TENSOR_KERNELS
  constexpr int kHeadTiles = G::kHeadTiles;
  constexpr int kTile = G::kTile;
  constexpr int kWarps = G::kWarps;
  constexpr int kGroups = G::kGroups;
  constexpr int kStages = G::kStages;
  constexpr int kParts = G::kParts;
  constexpr int kAllSteps = kCacheRow / 16;
  constexpr int kSteps = (kAllSteps + kParts - 1) / kParts;
  constexpr bool kEven = kSteps * kParts == kAllSteps;
  constexpr int kRowTiles = kLatentDim / 16 / kWarps;  // of 16 value columns a warp
  constexpr int kStride = G::kScoreStride;
  constexpr int kPageShift = kTile == 64 ? 0 : kTile == 32 ? 1 : 2;  // log2 of the tiles in a page

  extern __shared__ __align__(1024) unsigned char smem[];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread & 31;
  const int group = (thread >> 5) / kWarps;
  const int warp = (thread >> 5) % kWarps;
  const int g = lane >> 2;
  const int t = lane & 3;
  const int split = static_cast<int>(blockIdx.x);
  const int splits = static_cast<int>(gridDim.x);
  const int64_t sequence = blockIdx.y;
  const int first_head = static_cast<int>(blockIdx.z) * kHeadTiles * 8;
  const int32_t* pages = block_table + sequence * max_pages;
  const auto tile_of = [&](int i) { return split + (group + i * kGroups) * splits; };
  const auto page_of = [&](int i) {
    const int page = tile_of(i) >> kPageShift;
    return page < max_pages ? pages[page] : 0;
  };

  if (programmatic && !cache_is_settled) {
    pdl_wait();
    pdl_trigger();
  }
  // One round trip for the length and the first pages.
  const int length = seq_lens[sequence];
  int pages_ahead[kStages + 1];
#pragma unroll
  for (int i = 0; i <= kStages; ++i) pages_ahead[i] = page_of(i);

  const uint32_t ring = shared_address(smem) + static_cast<uint32_t>(group * kStages * G::kSlotBytes);
  float* const scores = reinterpret_cast<float*>(smem + G::kRingBytes) + group * 2 * G::kScoreFloats;
  float2* const group_stats = reinterpret_cast<float2*>(smem + G::kRingBytes + kGroups * 2 * G::kScoreFloats * 4);
  const uint32_t all_barriers = shared_address(group_stats + kGroups * kHeadTiles * 8);
  const uint32_t barriers = all_barriers + static_cast<uint32_t>(group * kStages * 8);
  if (thread == 0) {
#pragma unroll
    for (int s = 0; s < kGroups * kStages; ++s) barrier_init(all_barriers + static_cast<uint32_t>(s) * 8);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  const auto group_sync = [&] {
    if constexpr (kGroups == 1) {
      __syncthreads();
    } else {
      asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(kWarps * 32) : "memory");
    }
  };

  const int tiles = (length + kTile - 1) / kTile;
  const int block_tiles = tiles > split ? (tiles - split + splits - 1) / splits : 0;
  const int count = block_tiles > group ? (block_tiles - group + kGroups - 1) / kGroups : 0;

  const auto cell = [&](uint32_t base, int row, int chunk) {  // of 16 bytes
    return base + static_cast<uint32_t>((chunk >> 3) * (kTile * 128) + row * 128 + (((chunk & 7) ^ (row & 7)) << 4));
  };
  // Starts the copy of this group's tile i. Rows past the end of the sequence lie inside its last page, so they can be read.
  const auto copy_tile = [&](int i, int page, int slot) {
    if (i >= count || warp != 0 || lane != 0) return;
    const int tile_in_page = tile_of(i) & ((1 << kPageShift) - 1);
    const int first_row = ((page << kPageShift) + tile_in_page) * kTile;
    const uint32_t target = ring + static_cast<uint32_t>(slot * G::kSlotBytes);
    const uint32_t barrier = barriers + static_cast<uint32_t>(slot) * 8;
    barrier_expect(barrier, kTile * kCacheRow * 2);
#pragma unroll
    for (int c = 0; c < kCacheRow / 64; ++c)
      copy_tensor(target + static_cast<uint32_t>(c * kTile * 128), &rows, c * 64, first_row, barrier);
  };

  if (cache_is_settled) {
    // All tiles but the one with the last row, which this step may have written.
    const auto is_old = [&](int i) { return (tile_of(i) + 1) * kTile < length; };
#pragma unroll
    for (int i = 0; i < kStages; ++i) {
      if (is_old(i)) copy_tile(i, pages_ahead[i], i);
    }
    pdl_wait();
    pdl_trigger();
#pragma unroll
    for (int i = 0; i < kStages; ++i) {
      if (!is_old(i)) copy_tile(i, pages_ahead[i], i);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kStages; ++i) copy_tile(i, pages_ahead[i], i);
  }
  int next_page = pages_ahead[kStages];

  const int token_group = warp % G::kTokenGroups;
  const int part = warp / G::kTokenGroups;
  uint32_t query[kHeadTiles][kSteps][2];
#pragma unroll
  for (int h = 0; h < kHeadTiles; ++h) {
    const int head = first_head + h * 8 + g;
    const bf16* row = q + (sequence * heads + head) * kCacheRow + 2 * t;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int step = part * kSteps + s;
      const bool exists = head < heads && (kEven || step < kAllSteps);
      query[h][s][0] = exists ? *reinterpret_cast<const uint32_t*>(row + step * 16) : 0u;
      query[h][s][1] = exists ? *reinterpret_cast<const uint32_t*>(row + step * 16 + 8) : 0u;
    }
  }

  float maximum[kHeadTiles];
  float sum[kHeadTiles];
  float acc[kHeadTiles][kRowTiles][4] = {};
#pragma unroll
  for (int h = 0; h < kHeadTiles; ++h) {
    maximum[h] = -INFINITY;
    sum[h] = 0;
  }

  const int matrix = lane >> 3;
  const int key_row = token_group * 16 + (matrix & 1) * 8 + (lane & 7);
  const int key_chunk = matrix >> 1;
  const int value_row = (matrix >> 1) * 8 + (lane & 7);
  const int value_chunk = warp * kRowTiles * 2 + (matrix & 1);
  // Scores lie in the order in which the second product takes tokens: 2t, 2t + 1, 2t + 8, 2t + 9.
  const int place = 4 * (g >> 1) + (g & 1) + token_group * 16;

  int slot = 0;
  uint32_t phase = 0;
  for (int i = 0; i < count; ++i) {
    const uint32_t base = ring + static_cast<uint32_t>(slot * G::kSlotBytes);
    const int first_token = tile_of(i) * kTile;
    barrier_wait(barriers + static_cast<uint32_t>(slot) * 8, phase);
    if (length - first_token < kTile) {  // stale bits may be NaN
      const int valid = length - first_token;
      for (int v = warp * 32 + lane; v < (kTile - valid) * 72; v += kWarps * 32) {
        const int row = v / 72;
        asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(cell(base, valid + row, v - row * 72)), "r"(0) : "memory");
      }
    }
    float* const tile_scores = scores + (i & 1) * G::kScoreFloats;
    {
      float score[kHeadTiles][3][4] = {};
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const int step = part * kSteps + s;
        if (!kEven && step >= kAllSteps) break;
        uint32_t a[4];
        load_matrix_x4(a, cell(base, key_row, 2 * step + key_chunk));
#pragma unroll
        for (int h = 0; h < kHeadTiles; ++h) mma_16816(score[h][s % 3], a, query[h][s][0], query[h][s][1]);
      }
#pragma unroll
      for (int h = 0; h < kHeadTiles; ++h) {
        float* target = tile_scores + ((h * kParts + part) * 8 + 2 * t) * kStride + place;
        float total[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) total[e] = score[h][0][e] + score[h][1][e] + score[h][2][e];
        target[0] = total[0];
        target[kStride] = total[1];
        target[2] = total[2];
        target[kStride + 2] = total[3];
      }
    }
    group_sync();  // scores are there; tile i - 1 and the scores before it have been read
    if (i > 0) {
      const int page = next_page;
      next_page = page_of(i + kStages);
      copy_tile(i - 1 + kStages, page, slot == 0 ? kStages - 1 : slot - 1);
    }
    {
      uint32_t probability[kHeadTiles][G::kTokenGroups][2];
#pragma unroll
      for (int h = 0; h < kHeadTiles; ++h) {
        float4 s[G::kTokenGroups];
        float largest = maximum[h];
#pragma unroll
        for (int n = 0; n < G::kTokenGroups; ++n) {
          s[n] = make_float4(0, 0, 0, 0);
#pragma unroll
          for (int k = 0; k < kParts; ++k) {
            const float4 more = *reinterpret_cast<const float4*>(tile_scores + ((h * kParts + k) * 8 + g) * kStride + n * 16 + 4 * t);
            s[n].x += more.x;
            s[n].y += more.y;
            s[n].z += more.z;
            s[n].w += more.w;
          }
          const int token = first_token + n * 16 + 2 * t;
          s[n].x = token < length ? s[n].x * scale_log2 : -INFINITY;
          s[n].y = token + 1 < length ? s[n].y * scale_log2 : -INFINITY;
          s[n].z = token + 8 < length ? s[n].z * scale_log2 : -INFINITY;
          s[n].w = token + 9 < length ? s[n].w * scale_log2 : -INFINITY;
          largest = fmaxf(largest, fmaxf(fmaxf(s[n].x, s[n].y), fmaxf(s[n].z, s[n].w)));
        }
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
        const float factor = fast_exp2(maximum[h] - largest);
        maximum[h] = largest;
        sum[h] *= factor;
#pragma unroll
        for (int n = 0; n < G::kTokenGroups; ++n) {
          const float4 e = make_float4(fast_exp2(s[n].x - largest), fast_exp2(s[n].y - largest), fast_exp2(s[n].z - largest),
                                       fast_exp2(s[n].w - largest));
          sum[h] += (e.x + e.y) + (e.z + e.w);
          probability[h][n][0] = pack_bf16(e.x, e.y);
          probability[h][n][1] = pack_bf16(e.z, e.w);
        }
        const float even = __shfl_sync(0xffffffffu, factor, 8 * t);
        const float odd = __shfl_sync(0xffffffffu, factor, 8 * t + 4);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          scale_columns(acc[h][m], even, odd);
        }
      }
#pragma unroll
      for (int n = 0; n < G::kTokenGroups; ++n) {
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          uint32_t a[4];
          load_matrix_x4_transposed(a, cell(base, n * 16 + value_row, value_chunk + 2 * m));
#pragma unroll
          for (int h = 0; h < kHeadTiles; ++h) mma_16816(acc[h][m], a, probability[h][n][0], probability[h][n][1]);
        }
      }
    }
    if (++slot == kStages) {
      slot = 0;
      phase ^= 1;
    }
  }

#pragma unroll
  for (int h = 0; h < kHeadTiles; ++h) {
    sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 1);
    sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 2);
  }
  constexpr int kOwned = kRowTiles / kGroups;
  if constexpr (kGroups > 1) {
    if (warp == 0 && t == 0) {
#pragma unroll
      for (int h = 0; h < kHeadTiles; ++h) group_stats[(group * kHeadTiles + h) * 8 + g] = make_float2(maximum[h], sum[h]);
    }
    __syncthreads();
    auto* exchange = reinterpret_cast<float4*>(smem);
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
      float largest = -1e30f;
#pragma unroll
      for (int o = 0; o < kGroups; ++o) largest = fmaxf(largest, group_stats[(o * kHeadTiles + h) * 8 + g].x);
      float all = 0;
#pragma unroll
      for (int o = 0; o < kGroups; ++o) {
        const float2 theirs = group_stats[(o * kHeadTiles + h) * 8 + g];
        all += theirs.y * fast_exp2(theirs.x - largest);
      }
      const float factor = fast_exp2(maximum[h] - largest);
      const float even = __shfl_sync(0xffffffffu, factor, 8 * t);
      const float odd = __shfl_sync(0xffffffffu, factor, 8 * t + 4);
      if (block_tiles > 0) maximum[h] = largest;
      sum[h] = all;
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        scale_columns(acc[h][m], even, odd);
        if (m / kOwned != group)
          exchange[(((group * kHeadTiles + h) * kRowTiles + m) * kWarps + warp) * 32 + lane] =
              make_float4(acc[h][m][0], acc[h][m][1], acc[h][m][2], acc[h][m][3]);
      }
    }
    __syncthreads();
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        if (m / kOwned != group) continue;
#pragma unroll
        for (int o = 0; o < kGroups; ++o) {
          if (o == group) continue;
          const float4 theirs = exchange[(((o * kHeadTiles + h) * kRowTiles + m) * kWarps + warp) * 32 + lane];
          acc[h][m][0] += theirs.x;
          acc[h][m][1] += theirs.y;
          acc[h][m][2] += theirs.z;
          acc[h][m][3] += theirs.w;
        }
      }
    }
  }
  const int64_t head_tiles = static_cast<int64_t>(gridDim.z) * kHeadTiles;
  const int64_t out_row = (sequence * splits + split) * head_tiles + static_cast<int64_t>(blockIdx.z) * kHeadTiles;
  if (group == 0 && warp == 0 && t == 0) {
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) partial_stats[(out_row + h) * 8 + g] = make_float2(maximum[h], sum[h]);
  }
  if (block_tiles == 0) return;
#pragma unroll
  for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      if (kGroups > 1 && m / kOwned != group) continue;
      float* target = partial_values + (out_row + h) * (kLatentDim * 8) + ((warp * kRowTiles + m) * 16 + g) * 8 + 2 * t;
      *reinterpret_cast<float2*>(target) = make_float2(acc[h][m][0], acc[h][m][1]);
      *reinterpret_cast<float2*>(target + 64) = make_float2(acc[h][m][2], acc[h][m][3]);
    }
  }
#endif
}

// A block makes kDims columns of 8 heads. A thread: 4 heads of one column in kParts of the splits, all loaded before the first is
// needed. An empty part's values were never written, so they are loaded but not used.
//
// With `early` the kernel lets its successor start before it waits itself; see the rules in README.md for why it may.
template <int kDims, int kThreads, int kParts>
__global__ void __launch_bounds__(kThreads)
    mla_decode_combine_tensor_kernel(const float* partial_values, const float2* partial_stats, bf16* out, int heads, int splits,
                                     bool programmatic, bool early) {
#ifdef CGLINT_TENSOR_KERNELS
  constexpr int kVectors = kDims * 2;
  constexpr int kGroups = kThreads / kVectors;
  constexpr int kWarps = kThreads / 32;
  constexpr int kLanes = kVectors < 32 ? kVectors : 32;        // distinct vectors of a warp
  constexpr int kRows = kVectors < 32 ? kWarps : kGroups;      // results to add up at the end
  __shared__ float4 row_values[kRows][kVectors];
  __shared__ float4 row_max[kRows][kVectors];
  __shared__ float4 row_sum[kRows][kVectors];
  if (programmatic) {
    if (early) pdl_trigger();
    pdl_wait();
    if (!early) pdl_trigger();
  }
  const int thread = static_cast<int>(threadIdx.x);
  const int vector = thread % kVectors;
  const int group = thread / kVectors;
  const int64_t head_tile = blockIdx.y;
  const int64_t head_tiles = gridDim.y;
  const int64_t sequence = blockIdx.z;
  const float* from = partial_values + (sequence * splits * head_tiles + head_tile) * (kLatentDim * 8) +
                      static_cast<int64_t>(blockIdx.x) * (kDims * 8) + vector * 4;
  const float2* from_stats = partial_stats + (sequence * splits * head_tiles + head_tile) * 8 + (vector & 1) * 4;
  float4 part[kParts];
  float4 low[kParts];
  float4 high[kParts];
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const int split = group + i * kGroups;
    part[i] = make_float4(0, 0, 0, 0);
    low[i] = high[i] = make_float4(-INFINITY, 0, -INFINITY, 0);
    if (split < splits) {
      low[i] = load_now(from_stats + split * head_tiles * 8);
      high[i] = load_now(from_stats + split * head_tiles * 8 + 2);
      part[i] = load_now(from + split * head_tiles * (kLatentDim * 8));
    }
  }
  float most[4] = {-1e30f, -1e30f, -1e30f, -1e30f};
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    most[0] = fmaxf(most[0], low[i].x);
    most[1] = fmaxf(most[1], low[i].z);
    most[2] = fmaxf(most[2], high[i].x);
    most[3] = fmaxf(most[3], high[i].z);
  }
#pragma unroll
  for (int offset = kLanes; offset < 32; offset *= 2) {
#pragma unroll
    for (int e = 0; e < 4; ++e) most[e] = fmaxf(most[e], __shfl_xor_sync(0xffffffffu, most[e], offset));
  }
  float value[4] = {};
  float sum[4] = {};
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const float top[4] = {low[i].x, low[i].z, high[i].x, high[i].z};
    const float total[4] = {low[i].y, low[i].w, high[i].y, high[i].w};
    const float parts[4] = {part[i].x, part[i].y, part[i].z, part[i].w};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float weight = fast_exp2(top[e] - most[e]);
      if (weight > 0) value[e] += weight * parts[e];
      sum[e] += weight * total[e];
    }
  }
#pragma unroll
  for (int offset = kLanes; offset < 32; offset *= 2) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      value[e] += __shfl_xor_sync(0xffffffffu, value[e], offset);
      sum[e] += __shfl_xor_sync(0xffffffffu, sum[e], offset);
    }
  }
  const int row = kVectors < 32 ? thread / 32 : group;
  if (kVectors >= 32 || (thread & 31) < kVectors) {
    row_values[row][vector] = make_float4(value[0], value[1], value[2], value[3]);
    row_max[row][vector] = make_float4(most[0], most[1], most[2], most[3]);
    row_sum[row][vector] = make_float4(sum[0], sum[1], sum[2], sum[3]);
  }
  __syncthreads();
  for (int i = thread; i < kDims * 8; i += kThreads) {
    const int head = i / kDims;
    const int at = (i % kDims) * 8 + head;
    float largest = -1e30f;
#pragma unroll
    for (int r = 0; r < kRows; ++r) largest = fmaxf(largest, reinterpret_cast<const float*>(row_max[r])[at]);
    float top = 0;
    float bottom = 0;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float weight = fast_exp2(reinterpret_cast<const float*>(row_max[r])[at] - largest);
      top += weight * reinterpret_cast<const float*>(row_values[r])[at];
      bottom += weight * reinterpret_cast<const float*>(row_sum[r])[at];
    }
    out[(sequence * heads + head_tile * 8 + head) * kLatentDim + static_cast<int64_t>(blockIdx.x) * kDims + i % kDims] =
        __float2bfloat16_rn(bottom > 0 ? top / bottom : 0.0f);
  }
#endif
}

// With `kKeepsCarveout` the kernel asks for as much shared memory as the split kernel has: a multiprocessor that changes the division
// between shared memory and L1 must be idle first.
template <int kDims, int kThreads, int kParts, bool kKeepsCarveout>
cudaError_t launch_parts(const LaunchContext& ctx, const MlaDecode& a, const float* values, const float2* stats, bool early) {
  const auto kernel = mla_decode_combine_tensor_kernel<kDims, kThreads, kParts>;
  if (kKeepsCarveout) {
    const cudaError_t status = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributePreferredSharedMemoryCarveout,
                                                    cudaSharedmemCarveoutMaxShared);
    if (status != cudaSuccess) return status;
  }
  const dim3 grid(kLatentDim / kDims, static_cast<unsigned>(a.heads / kHeadTile), static_cast<unsigned>(a.batch));
  return launch(ctx, kernel, grid, dim3(kThreads), 0, values, stats, a.out, a.heads, a.splits, ctx.pdl, ctx.pdl && early);
}

cudaError_t launch_combine(const LaunchContext& ctx, const MlaDecode& a, const float* values, const float2* stats) {
  const int rows = a.batch * a.heads;
  const bool early = a.heads == kHeadTile;  // with 16 heads it is slower
  // Few rows: blocks of few columns, so that there are enough of them.
  if (rows > 32 && a.splits <= 16) return launch_parts<16, 128, 4, false>(ctx, a, values, stats, early);
  if (rows > 32 && a.splits <= 36) return launch_parts<16, 128, 9, false>(ctx, a, values, stats, early);
  if (rows > 8 && a.splits <= 40) return launch_parts<8, 128, 5, true>(ctx, a, values, stats, early);
  if (rows > 8 && a.splits <= 72) return launch_parts<8, 128, 9, true>(ctx, a, values, stats, early);
  if (rows > 8 && a.splits <= 136) return launch_parts<8, 128, 17, true>(ctx, a, values, stats, early);
  static_assert(kMlaMaxSplits <= 8 * 32);
  if (a.splits <= 64) return launch_parts<4, 256, 2, true>(ctx, a, values, stats, early);
  if (a.splits <= 160) return launch_parts<4, 256, 5, true>(ctx, a, values, stats, early);
  return launch_parts<4, 256, 8, true>(ctx, a, values, stats, early);
}

// cuTensorMapEncodeTiled of the driver; null where it has none. Touches no stream and no memory of the device.
using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                            const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                            CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
Encode find_encode() {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
  const cudaError_t status =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found);
#else
  const cudaError_t status = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &entry, cudaEnableDefault, &found);
#endif
  return status == cudaSuccess && found == cudaDriverEntryPointSuccess ? reinterpret_cast<Encode>(entry) : nullptr;
}
Encode encode_function() {
  static const Encode encode = find_encode();
  return encode;
}

bool encode_rows(const MlaDecode& a, int tile, CUtensorMap& map) {
  const cuuint64_t sizes[2] = {kCacheRow, static_cast<cuuint64_t>(a.cache_pages) * kPageTokens};
  const cuuint64_t strides[1] = {kCacheRow * 2};
  const cuuint32_t box[2] = {64, static_cast<cuuint32_t>(tile)};
  const cuuint32_t steps[2] = {1, 1};
  return encode_function()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<bf16*>(a.cache), sizes, strides, box, steps,
                           CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                           CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <typename G>
cudaError_t launch_split(const LaunchContext& ctx, const MlaDecode& a, float* values, float2* stats) {
  CUtensorMap rows{};
  if (!encode_rows(a, G::kTile, rows)) return cudaErrorInvalidValue;
  constexpr float kLog2E = 1.4426950408889634f;
  const dim3 grid(static_cast<unsigned>(a.splits), static_cast<unsigned>(a.batch),
                  static_cast<unsigned>(a.heads / (G::kHeadTiles * kHeadTile)));
  return launch(ctx, mla_decode_split_tensor_kernel<G>, grid, dim3(G::kThreads), G::kSmemBytes, rows, a.q, a.cache, a.block_table,
                a.seq_lens, values, stats, a.heads, a.max_pages, a.softmax_scale * kLog2E, ctx.pdl, ctx.pdl && a.cache_is_settled);
}

}  // namespace

bool mla_decode_takes_tensor(const MlaDecode& a, int device) {
  constexpr int64_t kMostPages = (int64_t{1} << 31) / kPageTokens - 1;  // rows are numbered in 32 bits
  if (a.page_size != kPageTokens || a.splits < 2 || (a.heads != 8 && a.heads != 16) || a.cache_pages < 1 ||
      a.cache_pages > kMostPages)
    return false;
  int smem = 0;
  return runs_sm90_code(device) && cudaDeviceGetAttribute(&smem, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) == cudaSuccess &&
         smem >= kMlaTensorSmem && encode_function() != nullptr;
}

cudaError_t mla_decode_tensor(const LaunchContext& ctx, const MlaDecode& a, float* values, float2* stats) {
  // The fastest of those measured: docs/measurements/kernels-variants-2026-12-01.json. `max_pages` stands for the longest context.
  cudaError_t status = cudaSuccess;
  if (a.heads == 8) {
    const bool has_wide_tiles = !ctx.pdl && a.max_pages >= a.splits;  // of 64 tokens, one a block at least
    status = has_wide_tiles ? launch_split<Geometry<1, 64, 8, 1, 3>>(ctx, a, values, stats)
                            : launch_split<Geometry<1, 32, 8, 1, 5>>(ctx, a, values, stats);
  } else {
    constexpr int kFewTokens = 4096;
    const bool is_short = a.batch == 1 && a.max_pages <= kFewTokens / kPageTokens + 1;
    status = ctx.pdl && !is_short ? launch_split<Geometry<2, 16, 4, 2, 5>>(ctx, a, values, stats)
                                  : launch_split<Geometry<2, 32, 8, 1, 5>>(ctx, a, values, stats);
  }
  return status != cudaSuccess ? status : launch_combine(ctx, a, values, stats);
}

}  // namespace cglint::kernels
