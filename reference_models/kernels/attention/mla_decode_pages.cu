#include <cuda_fp16.h>

#include "kernels/attention/mla_decode_pages.h"
#include "kernels/common/device.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/common/tensor_map.h"
#include "kernels/common/wgmma.cuh"

namespace cglint::kernels {
namespace {

constexpr int kBoxRows = kMlaPageTokens / 2;
constexpr int kColumns = kCacheRow / 64;  // of boxes
constexpr int kColumnBytes = kMlaPageTokens * 128;
constexpr int kPageBytes = kColumns * kColumnBytes;
constexpr int kChunks = 3;  // of a page
constexpr int kGroups = 2;  // warpgroups, a page each
constexpr int kWorkers = kGroups * 4;
constexpr int kThreads = (kWorkers + 1) * 32;
// Partial sums are f16, which is enough for what is rounded to bf16 in the end, and takes half of the time that
// fp32 takes to write and read. A sum has up to 128 weights of at most 1: so scaled it fits if the values do,
// and those of a cache come out of a norm.
[[maybe_unused]] constexpr float kPartScale = 1.0f / (kGroups * kMlaPageTokens);

// kRegisterThreads: registers are dealt out as if a block had so many threads, which leaves room for two
// blocks of the combine kernel on its multiprocessor.
template <int kHeadTiles_, int kRegisterThreads_>
struct Geometry {
  static constexpr int kHeadTiles = kHeadTiles_;
  static constexpr int kRegisterThreads = kRegisterThreads_;
  static constexpr int kHeads = kHeadTiles * kMlaHeadTile;
  static constexpr int kQueryColumnBytes = kHeads * 128;
  static constexpr int kQueryBytes = kColumns * kQueryColumnBytes;
  static constexpr int kProbabilityBytes = kHeads * kMlaPageTokens * 2;

  // Shared memory, in bytes from its start: pages, query, probabilities [groups][heads][tokens], then in
  // floats the largest score and the sum of the weights of each warp [groups][4][heads], the largest of each
  // group [groups][heads].
  static constexpr int kQueryAt = kGroups * kPageBytes;
  static constexpr int kProbabilitiesAt = kQueryAt + kQueryBytes;
  static constexpr int kMaximumAt = kProbabilitiesAt + kGroups * kProbabilityBytes;
  static constexpr int kSumAt = kMaximumAt + kWorkers * kHeads * 4;
  static constexpr int kTopAt = kSumAt + kWorkers * kHeads * 4;
  static constexpr int kBarriersAt = kTopAt + kGroups * kHeads * 4;
  static constexpr int kSmemBytes = kBarriersAt + (kGroups * kChunks + 2) * 8;
  static_assert(kRegisterThreads >= kThreads && kSmemBytes <= kMlaTensorSmem);
  static_assert(kQueryAt % 1024 == 0 && kQueryColumnBytes % 1024 == 0 && kProbabilitiesAt % 1024 == 0);
};

#ifdef CGLINT_SM90_CODE
// Stores four matrices of 8 x 8 (two) transposed; lanes 8 i..8 i + 7 give the places of the rows of matrix i.
__device__ __forceinline__ void store_matrix_transposed(uint32_t address, const uint32_t (&words)[2][2]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(words[0][0]), "r"(words[0][1]), "r"(words[1][0]), "r"(words[1][1])
               : "memory");
}
__device__ __forceinline__ void store_matrix_transposed(uint32_t address, const uint32_t (&words)[1][2]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(words[0][0]),
               "r"(words[0][1])
               : "memory");
}
__device__ __forceinline__ float2 larger_of(float2 a, float2 b) {
  return make_float2(fmaxf(a.x, b.x), fmaxf(a.y, b.y));
}
__device__ __forceinline__ float2 exp2_of_difference(float2 a, float2 b) {
  return make_float2(fast_exp2(a.x - b.x), fast_exp2(a.y - b.y));
}
#endif

// Block (split, sequence, all heads of G) takes pages split and split + splits of its sequence. All of them
// fit in shared memory, so nothing is recycled: one warp asks for them, and each of two warpgroups takes one
// from its scores to its values; at the end they add up, each finishing half of the columns.
//
// Scores are tokens x heads, products of a warpgroup with the page as it lies in shared memory. Values are
// columns x heads, by warps, with heads on the 8-column side, which needs the page transposed: matrix loads do
// that at the full rate of shared memory, the other instruction at half of it.
//
// Parts of the cache that are older than the step are asked for before the wait (cache_is_settled), kWindow
// chunks at a time until it is over and then all: with more the combine kernel before this one has to queue
// behind them. The half page with the last token comes with plain loads after the wait.
//
// The warp that copies stays until the block ends. Its registers would let one more block of the combine
// kernel in, and then the next launch's block finds no room until that has gone: 3 us later.
//
// `rows` is the cache as [pages x 64, 576], `queries` q as [batch x heads, 576]. `q` and `cache` are the same
// memory as plain addresses, the first for whoever reads the launch.
template <typename G>
__global__ void __launch_bounds__(G::kRegisterThreads, 1)
    mla_decode_split_pages_kernel(const __grid_constant__ CUtensorMap rows,
                                  const __grid_constant__ CUtensorMap queries, [[maybe_unused]] const bf16* q,
                                  const bf16* cache, const int32_t* block_table, const int32_t* seq_lens,
                                  __half* partial_values, float2* partial_stats, int heads, int max_pages,
                                  float scale_log2, bool cache_is_settled) {
#ifdef CGLINT_SM90_CODE
  constexpr int kHeadTiles = G::kHeadTiles;
  constexpr int kHeads = G::kHeads;
  constexpr int kRowVectors = kCacheRow / 8;  // of 16 bytes
  constexpr int kChunkColumns = kColumns / kChunks;
  constexpr int kWindow = 2;  // chunks under way while the kernel before still runs
  // Named barriers; the second and third exist once for each group.
  constexpr int kAllWorkers = 1;
  constexpr int kOwnGroup = 2;
  constexpr int kEnd = kOwnGroup + kGroups;

  extern __shared__ __align__(1024) unsigned char smem[];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread & 31;
  const int warp = __shfl_sync(0xffffffffu, thread >> 5, 0);
  const int split = static_cast<int>(blockIdx.x);
  const int splits = static_cast<int>(gridDim.x);
  const int64_t sequence = blockIdx.y;
  const int first_head = static_cast<int>(blockIdx.z) * kHeads;

  if (!cache_is_settled) {
    pdl_wait();
    pdl_trigger();
  }
  int pages[kGroups];
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    const int page = split + i * splits;
    pages[i] = page < max_pages ? block_table[sequence * max_pages + page] : 0;
  }
  const int length = seq_lens[sequence];

  const uint32_t area = shared_address(smem);
  const auto page_at = [&](int i) { return area + static_cast<uint32_t>(i * kPageBytes); };
  const auto full = [&](int chunk) { return area + static_cast<uint32_t>(G::kBarriersAt + chunk * 8); };
  const uint32_t query_full = full(kGroups * kChunks);
  const uint32_t wait_over = full(kGroups * kChunks + 1);
  if (thread == kWorkers * 32) {
    prefetch_tensor_map(&rows);
    prefetch_tensor_map(&queries);
#pragma unroll 1
    for (int i = 0; i < kGroups * kChunks + 2; ++i) barrier_init(full(i));
    barrier_init_fence();
  }
  __syncthreads();

  const int used_pages = (length + kMlaPageTokens - 1) / kMlaPageTokens;
  const int count = used_pages > split ? min(kGroups, (used_pages - split + splits - 1) / splits) : 0;
  // The page and its half that hold the last token, if they are this block's and must wait.
  const bool has_last = cache_is_settled && count > 0 && used_pages - 1 == split + (count - 1) * splits;
  const int last_half = (length - 1) % kMlaPageTokens / kBoxRows;

  if (warp == kWorkers) {
    if (lane == 0) {
      bool is_over = !cache_is_settled;
#pragma unroll 1
      for (int chunk = 0; chunk < count * kChunks; ++chunk) {
        const int i = chunk / kChunks;
        if (chunk >= kWindow) {
          while (!is_over && !barrier_is_complete(full(chunk - kWindow), 0)) is_over = barrier_is_complete(wait_over, 0);
        }
        const bool is_whole = !has_last || i < count - 1;
        const int first_row = (i == 0 ? pages[0] : pages[1]) * kMlaPageTokens;
        barrier_expect(full(chunk), kChunkColumns * (is_whole ? kColumnBytes : kColumnBytes / 2));
#pragma unroll 1
        for (int part = 0; part < kChunkColumns * 2; ++part) {
          const int column = chunk % kChunks * kChunkColumns + part / 2;
          const int half = part % 2;
          // Rows past the end of the sequence lie inside its last page, so they can be read.
          if (is_whole || half != last_half)
            copy_tensor_once(page_at(i) + static_cast<uint32_t>(column * kColumnBytes + half * kBoxRows * 128),
                             &rows, column * 64, first_row + half * kBoxRows, full(chunk));
        }
      }
    }
    __syncwarp();
    warps_sync<kWorkers + 1>(kEnd);
    return;
  }
  if (cache_is_settled) {
    pdl_wait();
    pdl_trigger();
  }
  if (thread == 0) {
    barrier_arrive(wait_over);
    if (count > 0) {  // without a page nobody waits for it, and a block must not end before its copies
      barrier_expect(query_full, G::kQueryBytes);
#pragma unroll 1
      for (int column = 0; column < kColumns; ++column)
        copy_tensor(area + static_cast<uint32_t>(G::kQueryAt + column * G::kQueryColumnBytes), &queries, column * 64,
                    static_cast<int>(sequence) * heads + first_head, query_full);
    }
  }
  __syncwarp();
  if (has_last) {
    constexpr int kEach = kBoxRows * kRowVectors / (kWorkers * 32);
    static_assert(kEach * kWorkers * 32 == kBoxRows * kRowVectors);
    const int i = count - 1;
    const bf16* const from =
        cache + (static_cast<int64_t>(i == 0 ? pages[0] : pages[1]) * kMlaPageTokens + last_half * kBoxRows) * kCacheRow;
    uint4 held[kEach];
#pragma unroll
    for (int v = 0; v < kEach; ++v) held[v] = load_words_now(from + (thread + v * kWorkers * 32) * 8);
#pragma unroll
    for (int v = 0; v < kEach; ++v) {
      const int at = thread + v * kWorkers * 32;
      store_shared(swizzled_cell<kMlaPageTokens>(page_at(i), last_half * kBoxRows + at / kRowVectors, at % kRowVectors), held[v]);
    }
    fence_async_proxy();
    warps_sync<kWorkers>(kAllWorkers);
  }

  const int g = lane >> 2;
  const int t = lane & 3;
  const int matrix = lane >> 3;  // whose row this lane addresses
  const int group = warp >> 2;
  const int group_warp = warp & 3;
  const int64_t out_row = ((sequence * splits + split) * gridDim.z + blockIdx.z) * kHeadTiles;  // of 8 heads
  float* const warp_maximum = reinterpret_cast<float*>(smem + G::kMaximumAt) + group * 4 * kHeads;
  float* const warp_sum_of_weights = reinterpret_cast<float*>(smem + G::kSumAt);
  float* const tops = reinterpret_cast<float*>(smem + G::kTopAt);
  // Of heads 8 h + 2 t and the next, in this group's page.
  float2 top[kHeadTiles];
  float2 sum[kHeadTiles];
  float values[8][kHeadTiles][4] = {};  // 16 columns x 8 heads each, a warp's 128 columns
#pragma unroll
  for (int h = 0; h < kHeadTiles; ++h) {
    top[h] = make_float2(-INFINITY, -INFINITY);
    sum[h] = make_float2(0, 0);
  }
  if (group < count) {
    const uint32_t page = page_at(group);
    const uint32_t probabilities = area + static_cast<uint32_t>(G::kProbabilitiesAt + group * G::kProbabilityBytes);
    const int first_token = (split + group * splits) * kMlaPageTokens;
    float score[2][kHeads / 2] = {};  // summed up in two chains
    barrier_wait(query_full, 0);
    wgmma_pin(score);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      barrier_wait(full(group * kChunks + c), 0);
      wgmma_fence();
#pragma unroll
      for (int s = 0; s < kChunkColumns * 4; ++s) {
        const int column = c * kChunkColumns + s / 4;
        wgmma<kHeads>(
            score[s % 2], wgmma_operand(page + static_cast<uint32_t>(column * kColumnBytes + s % 4 * 32)),
            wgmma_operand(area + static_cast<uint32_t>(G::kQueryAt + column * G::kQueryColumnBytes + s % 4 * 32)));
      }
    }
    wgmma_commit();
    wgmma_wait(score);
    if (length - first_token < kMlaPageTokens) {  // stale bits may be NaN, which a weight of 0 does not remove
      const int valid = length - first_token;
#pragma unroll 1
      for (int v = thread % 128; v < (kMlaPageTokens - valid) * kRowVectors; v += 128)
        store_shared(swizzled_cell<kMlaPageTokens>(page, valid + v / kRowVectors, v % kRowVectors), make_uint4(0, 0, 0, 0));
    }

    float value[kHeadTiles][4];  // token g of the warp's 16 and heads 2 t, 2 t + 1, then token g + 8
    const int token = first_token + group_warp * 16 + g;
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        value[h][e] =
            token + e / 2 * 8 < length ? (score[0][h * 4 + e] + score[1][h * 4 + e]) * scale_log2 : -INFINITY;
      }
      float2 maximum = larger_of(make_float2(value[h][0], value[h][1]), make_float2(value[h][2], value[h][3]));
#pragma unroll
      for (int offset = 4; offset < 32; offset *= 2) {
        maximum = larger_of(maximum, make_float2(__shfl_xor_sync(0xffffffffu, maximum.x, offset),
                                                 __shfl_xor_sync(0xffffffffu, maximum.y, offset)));
      }
      if (g == 0) *reinterpret_cast<float2*>(warp_maximum + group_warp * kHeads + h * 8 + 2 * t) = maximum;
    }
    warps_sync<4>(kOwnGroup + group);
    uint32_t weights[kHeadTiles][2];
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
      for (int w = 0; w < 4; ++w)
        top[h] = larger_of(top[h], *reinterpret_cast<const float2*>(warp_maximum + w * kHeads + h * 8 + 2 * t));
      const float2 low = exp2_of_difference(make_float2(value[h][0], value[h][1]), top[h]);
      const float2 high = exp2_of_difference(make_float2(value[h][2], value[h][3]), top[h]);
      sum[h] = make_float2(low.x + high.x, low.y + high.y);
      weights[h][0] = pack_bf16(low.x, low.y);
      weights[h][1] = pack_bf16(high.x, high.y);
    }
    {
      const int head = (lane & 7) + (lane >> 4) * 8;
      const int vector = 2 * group_warp + (matrix & 1);
      store_matrix_transposed(probabilities + static_cast<uint32_t>(head * 128 + ((vector ^ (head & 7)) << 4)),
                              weights);
    }
    warps_sync<4>(kOwnGroup + group);

    const int value_row = (matrix >> 1) * 8 + (lane & 7);
    const int weight_row = (lane & 7) + (kHeadTiles == 2 ? (lane >> 4) * 8 : 0);
#pragma unroll
    for (int s = 0; s < kMlaPageTokens / 16; ++s) {
      uint32_t b[4];
      const uint32_t from = probabilities + static_cast<uint32_t>(weight_row * 128 +
                                                                  (((2 * s + (matrix & 1)) ^ (lane & 7)) << 4));
      if constexpr (kHeadTiles == 2)
        load_matrix_x4(b, from);
      else
        load_matrix_x2(b, from);
#pragma unroll
      for (int m = 0; m < 8; ++m) {
        uint32_t a[4];
        load_matrix_x4_transposed(a, swizzled_cell<kMlaPageTokens>(page, s * 16 + value_row, group_warp * 16 + 2 * m + (matrix & 1)));
#pragma unroll
        for (int h = 0; h < kHeadTiles; ++h) mma_16816(values[m][h], a, b[2 * h], b[2 * h + 1]);
      }
    }
  }

  // The groups hold the same columns. Group 0 finishes values[0..3], group 1 values[4..7]; what the other is to
  // finish goes to the place of the own page, which all of the group have read.
  warps_sync<4>(kOwnGroup + group);
  float4* const mine = reinterpret_cast<float4*>(smem + group * kPageBytes) + thread % 128;
  const float4* const theirs = reinterpret_cast<const float4*>(smem + (group ^ 1) * kPageBytes) + thread % 128;
#pragma unroll
  for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      float other[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) other[e] = group == 0 ? values[m + 4][h][e] : values[m][h][e];
      mine[(m * kHeadTiles + h) * 128] = make_float4(other[0], other[1], other[2], other[3]);
    }
    if (g == 0 && group_warp == 0) *reinterpret_cast<float2*>(tops + group * kHeads + h * 8 + 2 * t) = top[h];
#pragma unroll
    for (int offset = 4; offset < 32; offset *= 2) {
      sum[h].x += __shfl_xor_sync(0xffffffffu, sum[h].x, offset);
      sum[h].y += __shfl_xor_sync(0xffffffffu, sum[h].y, offset);
    }
    if (g == 0) *reinterpret_cast<float2*>(warp_sum_of_weights + warp * kHeads + h * 8 + 2 * t) = sum[h];
  }
  warps_sync<kWorkers>(kAllWorkers);
#pragma unroll
  for (int h = 0; h < kHeadTiles; ++h) {
    const float2 other_top = *reinterpret_cast<const float2*>(tops + (group ^ 1) * kHeads + h * 8 + 2 * t);
    // An empty block's are both -infinity: its weights shall be 0, not NaN.
    const float2 both = larger_of(larger_of(top[h], other_top), make_float2(-1e30f, -1e30f));
    const float2 own = exp2_of_difference(top[h], both);
    const float2 other = exp2_of_difference(other_top, both);
    const float2 own_scale = make_float2(own.x * kPartScale, own.y * kPartScale);
    const float2 other_scale = make_float2(other.x * kPartScale, other.y * kPartScale);
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      float v[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) v[e] = group == 0 ? values[m][h][e] : values[m + 4][h][e];
      const float4 their = theirs[(m * kHeadTiles + h) * 128];
      __half2* const target = reinterpret_cast<__half2*>(
          partial_values + (out_row + h) * (kLatentDim * 8) +
          (group_warp * 128 + (group * 4 + m) * 16 + g) * 8 + 2 * t);
      target[0] = __floats2half2_rn(v[0] * own_scale.x + their.x * other_scale.x,
                                    v[1] * own_scale.y + their.y * other_scale.y);
      target[32] = __floats2half2_rn(v[2] * own_scale.x + their.z * other_scale.x,  // 8 columns on
                                     v[3] * own_scale.y + their.w * other_scale.y);
    }
    if (warp == 0 && g == 0) {
      float2 total = make_float2(0, 0);
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float* const at = warp_sum_of_weights + w * kHeads + h * 8 + 2 * t;
        const float2 first = *reinterpret_cast<const float2*>(at);
        const float2 second = *reinterpret_cast<const float2*>(at + 4 * kHeads);
        total.x += first.x * own.x + second.x * other.x;
        total.y += first.y * own.y + second.y * other.y;
      }
      *reinterpret_cast<float4*>(partial_stats + (out_row + h) * 8 + 2 * t) =
          make_float4(both.x, total.x, both.y, total.y);
    }
  }
  warps_arrive<kWorkers + 1>(kEnd);
#endif
}

// A warp makes kWarpColumns columns of 8 heads; its lanes divide the splits, at most kParts each. The weights
// of the splits are made by the block's four warps, two heads each, while the parts are on their way.
//
// The kernel lets its successor start before it waits itself; see the rules in README.md for why it may.
template <int kWarpColumns, int kParts>
__global__ void __launch_bounds__(128)
    mla_decode_combine_pages_kernel(const __half* partial_values, const float2* partial_stats, bf16* out, int heads,
                                    int splits) {
#ifdef CGLINT_SM90_CODE
  constexpr int kShares = 32 / kWarpColumns;  // of the splits
  constexpr int kStats = (kParts * kShares + 31) / 32;
  __shared__ float2 weights[kStats * 32][4];
  pdl_trigger();
  pdl_wait();
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int warp = static_cast<int>(threadIdx.x) >> 5;
  const int64_t head_tile = blockIdx.y;
  const int64_t head_tiles = gridDim.y;
  const int64_t sequence = blockIdx.z;
  const int64_t first_row = sequence * splits * head_tiles + head_tile;
  float4 stats[kStats];  // of two heads: maximum and sum, maximum and sum
#pragma unroll
  for (int i = 0; i < kStats; ++i) {
    const int split = lane + i * 32;
    stats[i] = make_float4(-INFINITY, 0, -INFINITY, 0);
    if (split < splits) stats[i] = load_now(partial_stats + (first_row + split * head_tiles) * 8 + 2 * warp);
  }
  const int share = lane / kWarpColumns;
  const int column = (static_cast<int>(blockIdx.x) * 4 + warp) * kWarpColumns + lane % kWarpColumns;
  const __half* const from = partial_values + first_row * (kLatentDim * 8) + column * 8;
  uint4 part[kParts];
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const int split = share + i * kShares;
    part[i] = make_uint4(0, 0, 0, 0);
    if (split < splits) part[i] = load_words_now(from + split * head_tiles * (kLatentDim * 8));
  }
  float2 largest = make_float2(-1e30f, -1e30f);  // all parts empty: weights are 0, not NaN
#pragma unroll
  for (int i = 0; i < kStats; ++i)
    largest = make_float2(fmaxf(largest.x, stats[i].x), fmaxf(largest.y, stats[i].z));
  largest = make_float2(warp_max(largest.x), warp_max(largest.y));
  float2 total = make_float2(0, 0);
#pragma unroll
  for (int i = 0; i < kStats; ++i) {
    stats[i].x = fast_exp2(stats[i].x - largest.x);
    stats[i].z = fast_exp2(stats[i].z - largest.y);
    total.x += stats[i].x * stats[i].y;
    total.y += stats[i].z * stats[i].w;
  }
  total = make_float2(warp_sum(total.x), warp_sum(total.y));
  const float2 scale = make_float2(total.x > 0 ? 1 / (kPartScale * total.x) : 0.0f,
                                   total.y > 0 ? 1 / (kPartScale * total.y) : 0.0f);
#pragma unroll
  for (int i = 0; i < kStats; ++i)
    weights[lane + i * 32][warp] = make_float2(stats[i].x * scale.x, stats[i].z * scale.y);
  __syncthreads();

  float value[8] = {};
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const float4* const row = reinterpret_cast<const float4*>(weights[share + i * kShares]);
    const float4 low = row[0];
    const float4 high = row[1];
    const float weight[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    const uint32_t words[4] = {part[i].x, part[i].y, part[i].z, part[i].w};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      __half2 two;
      memcpy(&two, &words[e], sizeof two);
      const float2 values = __half22float2(two);
      value[2 * e] += weight[2 * e] * values.x;
      value[2 * e + 1] += weight[2 * e + 1] * values.y;
    }
  }
  // Add up over the lanes of a column; each step hands on half of the heads that are left.
  int head = 0;
  int left = 8;
#pragma unroll
  for (int offset = 16; offset >= kWarpColumns; offset /= 2) {
    const bool is_upper = (lane & offset) != 0;
    left /= 2;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (e >= left) break;
      const float away = is_upper ? value[e] : value[e + left];
      const float kept = is_upper ? value[e + left] : value[e];
      value[e] = kept + __shfl_xor_sync(0xffffffffu, away, offset);
    }
    head += is_upper ? left : 0;
  }
  static_assert(kWarpColumns >= 4, "each step has heads left to hand on");
#pragma unroll
  for (int e = 0; e < 8 / kShares; ++e)
    out[(sequence * heads + head_tile * 8 + head + e) * kLatentDim + column] = __float2bfloat16_rn(value[e]);
#endif
}

template <typename G>
cudaError_t launch_split(const LaunchContext& ctx, const MlaDecode& a, __half* values, float2* stats) {
  CUtensorMap rows{};
  CUtensorMap queries{};
  if (!encode_tensor_map(rows, a.cache, a.cache_pages * kMlaPageTokens, kCacheRow, kBoxRows) ||
      !encode_tensor_map(queries, a.q, static_cast<int64_t>(a.batch) * a.heads, kCacheRow, G::kHeads))
    return cudaErrorInvalidValue;
  const auto kernel = mla_decode_split_pages_kernel<G>;
  const cudaError_t status = prefer_shared_memory(kernel);
  if (status != cudaSuccess) return status;
  constexpr float kLog2E = 1.4426950408889634f;
  const dim3 grid(static_cast<unsigned>(a.splits), static_cast<unsigned>(a.batch),
                  static_cast<unsigned>(a.heads / G::kHeads));
  return launch(ctx, kernel, grid, dim3(kThreads), G::kSmemBytes, rows, queries, a.q, a.cache, a.block_table,
                a.seq_lens, values, stats, a.heads, a.max_pages, a.softmax_scale * kLog2E, a.cache_is_settled);
}

constexpr int kMostSplits = 136;

template <int kWarpColumns, int kParts>
cudaError_t launch_combine(const LaunchContext& ctx, const MlaDecode& a, const __half* values,
                           const float2* stats) {
  const auto kernel = mla_decode_combine_pages_kernel<kWarpColumns, kParts>;
  const cudaError_t status = prefer_shared_memory(kernel);
  if (status != cudaSuccess) return status;
  const dim3 grid(kLatentDim / kWarpColumns / 4, static_cast<unsigned>(a.heads / kMlaHeadTile),
                  static_cast<unsigned>(a.batch));
  return launch(ctx, kernel, grid, dim3(128), 0, values, stats, a.out, a.heads, a.splits);
}

}  // namespace

bool mla_decode_fits_pages(const MlaDecode& a) {
  // Blocks of one page, whose second warpgroup has nothing to do, are faster with 16 heads alone.
  const int fewest_pages = a.heads == kMlaHeadTile ? a.splits + 1 : a.splits;
  return a.splits <= kMostSplits && a.max_pages >= fewest_pages && a.max_pages <= kGroups * a.splits;
}

cudaError_t mla_decode_pages(const LaunchContext& ctx, const MlaDecode& a, __half* values, float2* stats) {
  // The fastest of those measured, windows and numbers of threads too:
  // docs/measurements/kernels-variants-2-2026-12-01.json, of one page a block kernels-variants-3-2026-12-01.json.
  const cudaError_t status = a.heads == kMlaHeadTile ? launch_split<Geometry<1, 640>>(ctx, a, values, stats)
                                                  : launch_split<Geometry<2, 512>>(ctx, a, values, stats);
  if (status != cudaSuccess) return status;
  if (a.splits <= 36) return launch_combine<8, 9>(ctx, a, values, stats);
  if (a.splits <= 72) return launch_combine<4, 9>(ctx, a, values, stats);
  return launch_combine<4, 17>(ctx, a, values, stats);
}

}  // namespace cglint::kernels
