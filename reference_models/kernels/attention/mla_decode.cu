#include <algorithm>
#include <type_traits>

#include "kernels/attention/mla_decode.h"
#include "kernels/attention/mla_decode_pages.h"
#include "kernels/attention/mla_decode_tensor.h"
#include "kernels/common/device.cuh"
#include "kernels/common/mma.cuh"

namespace cglint::kernels {
namespace {

constexpr int kHeadsPerBlock = 16;  // rows of one mma tile; fewer heads leave rows unused
constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kRowBytes = kCacheRow * 2 + 16;  // odd multiple of 16: matrix loads without bank conflicts
constexpr int kTileBytes = kMlaTileTokens * kRowBytes;
constexpr int kQueryBytes = kHeadsPerBlock * kRowBytes;
constexpr int kVectorsPerRow = kCacheRow / 8;
static_assert(kMlaTileTokens == 32, "a lane per token in softmax");
[[maybe_unused]] constexpr int kRowsPerWarp = kMlaTileTokens / kWarps;
static_assert(kWarps == kHeadsPerBlock, "a warp per head in softmax");
// Scores are formed by 4 warps along the tokens times 4 along the 576 values, then summed.
constexpr int kTokenGroups = kMlaTileTokens / 8;
constexpr int kValueParts = kWarps / kTokenGroups;
constexpr int kSteps = kCacheRow / 16 / kValueParts;
constexpr int kColumns = kLatentDim / kWarps;     // value columns a warp sums up
constexpr int kScoreStride = kMlaTileTokens + 8;  // floats; rows g and g + 1 fall in different banks
constexpr int kScoreBytes = kValueParts * kHeadsPerBlock * kScoreStride * 4;
constexpr int kProbabilityRow = kMlaTileTokens * 2 + 16;  // bytes
constexpr int kProbabilityBytes = kHeadsPerBlock * kProbabilityRow;
constexpr int kFactorBytes = kHeadsPerBlock * 4;
// Scores, probabilities and factors of two tiles each take the query's place once it is in registers.
constexpr int kExchangeBytes = 2 * (kScoreBytes + kProbabilityBytes + kFactorBytes);
static_assert(kExchangeBytes >= kQueryBytes);
constexpr int kBarrierBytes = 64;
constexpr int kMinStages = 2;
constexpr int kMaxStages = 4;

// Where a block's result goes when a sequence is split.
struct Partials {
  float* values;  // [batch, splits, heads, 512], sums weighted with 2^(score - maximum)
  float2* stats;  // [batch, splits, heads], maximum score in units of log2 and sum of the weights, 0 if empty
};

// One block per (split, sequence, 16 heads); block `split` takes tiles split, split + splits, ... of 32
// tokens, so the first pages are known before the length is. Tiles stream into a ring of kStages buffers.
//
// One barrier a tile. Before it the scores of tile j + 1 are formed (each warp 8 tokens and a quarter of the
// 576 values); after it each warp takes the softmax of one head over tile j + 1 while all of them multiply
// the probabilities of tile j with its values (each warp 32 of the 512 columns). Scores, probabilities and
// factors are kept for two tiles, so neither side waits for the other.
template <int kStages>
__global__ void __launch_bounds__(kThreads, 1)
    mla_decode_split_kernel(const bf16* q, const bf16* cache, const int32_t* block_table,
                            const int32_t* seq_lens, bf16* out, float* partial_values, float2* partial_stats,
                            int heads, int page_shift, int max_pages, float scale_log2,
                            bool cache_is_settled) {
  extern __shared__ __align__(128) unsigned char smem[];
  const uint32_t ring = shared_address(smem);
  unsigned char* query = smem + kStages * kTileBytes;
  float* scores = reinterpret_cast<float*>(query);         // [2][kValueParts][16][kScoreStride]
  unsigned char* probabilities = query + 2 * kScoreBytes;  // [2][16][kProbabilityRow], bf16
  float* factors = reinterpret_cast<float*>(probabilities + 2 * kProbabilityBytes);  // [2][16]

  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread & 31;
  const int warp = thread >> 5;
  const int g = lane >> 2;
  const int t = lane & 3;
  const int split = static_cast<int>(blockIdx.x);
  const int splits = static_cast<int>(gridDim.x);
  const int64_t sequence = blockIdx.y;
  const int first_head = static_cast<int>(blockIdx.z) * kHeadsPerBlock;
  const int32_t* pages = block_table + sequence * max_pages;
  const auto page_of = [&](int j) {  // page_shift: log2 of the tiles in a page
    const int page = (split + j * splits) >> page_shift;
    return page < max_pages ? pages[page] : 0;
  };

#ifdef CGLINT_BULK_COPY
  const uint32_t barriers = shared_address(query + kExchangeBytes);
  if (thread == 0) {
#pragma unroll
    for (int s = 0; s < kStages; ++s) barrier_init(barriers + static_cast<uint32_t>(s) * 8);
    barrier_init_fence();
  }
  __syncthreads();
#endif
  if (!cache_is_settled) {
    pdl_wait();
    pdl_trigger();
  }

  // One round trip for the length and the first pages.
  const int length = seq_lens[sequence];
  int pages_ahead[kStages];
#pragma unroll
  for (int j = 0; j < kStages; ++j) pages_ahead[j] = page_of(j);
  const int tiles = (length + kMlaTileTokens - 1) / kMlaTileTokens;
  const int count = tiles > split ? (tiles - split + splits - 1) / splits : 0;

  // Starts the copy of this block's tile j. Rows past the end of the sequence lie inside its last page, so
  // they can be read; their scores are masked, and their values cleared because stale bits may be NaN.
  const auto copy_tile = [&](int j, int page, int stage) {
    if (j < count) {
      const int tile_in_page = (split + j * splits) & ((1 << page_shift) - 1);
      const bf16* rows =
          cache + ((static_cast<int64_t>(page) << page_shift) + tile_in_page) * (kMlaTileTokens * kCacheRow);
      const uint32_t target = ring + static_cast<uint32_t>(stage * kTileBytes);
#ifdef CGLINT_BULK_COPY
      // Bulk copies of one warp are issued one after the other, so each warp takes its share of the rows.
      if (lane == 0) {
        const uint32_t barrier = barriers + static_cast<uint32_t>(stage) * 8;
        if (warp == 0) barrier_expect(barrier, kMlaTileTokens * kCacheRow * 2);
#pragma unroll
        for (int i = 0; i < kRowsPerWarp; ++i) {
          const int row = warp * kRowsPerWarp + i;
          copy_bulk(target + static_cast<uint32_t>(row * kRowBytes), rows + row * kCacheRow, kCacheRow * 2,
                    barrier);
        }
      }
#else
      for (int vector = thread; vector < kMlaTileTokens * kVectorsPerRow; vector += kThreads) {
        const int row = vector / kVectorsPerRow;
        copy_async_16(target + static_cast<uint32_t>(row * kRowBytes + (vector - row * kVectorsPerRow) * 16),
                      rows + vector * 8);
      }
#endif
    }
#ifndef CGLINT_BULK_COPY
    copy_async_commit();
#endif
  };
  // Waits for tile j in `stage` and clears its rows past the end. Called by every thread; kLater is the
  // number of copies that have been started since the one waited for.
  const auto wait_tile = [&]<int kLater>(std::integral_constant<int, kLater>, int j, int stage) {
#ifdef CGLINT_BULK_COPY
    barrier_wait(barriers + static_cast<uint32_t>(stage) * 8, static_cast<uint32_t>(j / kStages) & 1u);
#else
    copy_async_wait<kLater>();
    __syncthreads();
#endif
    const int valid = length - (split + j * splits) * kMlaTileTokens;
    if (valid < kMlaTileTokens) {
#ifdef CGLINT_BULK_COPY
      __syncthreads();  // all have seen the tile land before any of it is overwritten
#endif
      unsigned char* stale = smem + stage * kTileBytes + valid * kRowBytes;
      for (int i = thread * 16; i < (kMlaTileTokens - valid) * kRowBytes; i += kThreads * 16) {
        *reinterpret_cast<uint4*>(stale + i) = make_uint4(0, 0, 0, 0);
      }
      __syncthreads();
    }
  };

  if (cache_is_settled) {
    // All tiles but the one with the last row, which this step may have written. Tiles are in order, so the copies
    // are started in the same order as without.
    const auto is_old = [&](int j) { return (split + j * splits + 1) * kMlaTileTokens < length; };
#pragma unroll
    for (int j = 0; j < kStages - 1; ++j) {
      if (is_old(j)) copy_tile(j, pages_ahead[j], j);
    }
    pdl_wait();
    pdl_trigger();
#pragma unroll
    for (int j = 0; j < kStages - 1; ++j) {
      if (!is_old(j)) copy_tile(j, pages_ahead[j], j);
    }
  } else {
#pragma unroll
    for (int j = 0; j < kStages - 1; ++j) copy_tile(j, pages_ahead[j], j);
  }
  int next_page = pages_ahead[kStages - 1];

  for (int i = thread; i < kHeadsPerBlock * kVectorsPerRow; i += kThreads) {
    const int row = i / kVectorsPerRow;
    const int column = i - row * kVectorsPerRow;
    uint4 words = make_uint4(0, 0, 0, 0);  // rows of missing heads
    if (first_head + row < heads) {
      words =
          *reinterpret_cast<const uint4*>(q + (sequence * heads + first_head + row) * kCacheRow + column * 8);
    }
    *reinterpret_cast<uint4*>(query + row * kRowBytes + column * 16) = words;
  }
  __syncthreads();
  const int token_group = warp % kTokenGroups;
  const int value_part = warp / kTokenGroups;
  uint32_t q_fragment[kSteps][4];
  {
    const uint32_t address =
        shared_address(query) +
        static_cast<uint32_t>((lane & 15) * kRowBytes + (lane >> 4) * 16 + value_part * kSteps * 32);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      load_matrix_x4(q_fragment[step], address + static_cast<uint32_t>(step * 32));
    }
  }
  __syncthreads();  // scores and the rest take the query's place

  static_assert(kSteps % 2 == 1, "pairs of steps, then one");
  const uint32_t score_address = ring + static_cast<uint32_t>((token_group * 8 + (lane & 7)) * kRowBytes +
                                                              (lane >> 3) * 16 + value_part * kSteps * 32);
  float* const own_scores =
      scores + (value_part * kHeadsPerBlock + g) * kScoreStride + token_group * 8 + 2 * t;
  const auto form_scores = [&](int j, int stage) {
    float score[3][4] = {};  // three chains hide the latency of mma
    const uint32_t address = score_address + static_cast<uint32_t>(stage * kTileBytes);
    uint32_t b[(kSteps + 1) / 2][4];
#pragma unroll
    for (int pair = 0; pair < kSteps / 2; ++pair) {
      load_matrix_x4(b[pair], address + static_cast<uint32_t>(pair * 64));
    }
    load_matrix_x2(b[kSteps / 2], address + static_cast<uint32_t>(kSteps / 2 * 64));
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      mma_16816(score[step % 3], q_fragment[step], b[step / 2][step % 2 * 2], b[step / 2][step % 2 * 2 + 1]);
    }
    float* target = own_scores + (j & 1) * (kScoreBytes / 4);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      *reinterpret_cast<float2*>(target + r * 8 * kScoreStride) =
          make_float2(score[0][2 * r] + score[1][2 * r] + score[2][2 * r],
                      score[0][2 * r + 1] + score[1][2 * r + 1] + score[2][2 * r + 1]);
    }
  };

  // Softmax of head `warp`, a token a lane.
  const bool has_head = first_head + warp < heads;
  float maximum = -INFINITY;  // in units of log2
  float sum = 0;              // this lane's share
  const auto softmax = [&](int j) {
    if (!has_head) return;
    const float* source = scores + (j & 1) * (kScoreBytes / 4) + warp * kScoreStride + lane;
    float score = 0;
#pragma unroll
    for (int part = 0; part < kValueParts; ++part) score += source[part * kHeadsPerBlock * kScoreStride];
    const bool is_valid = (split + j * splits) * kMlaTileTokens + lane < length;
    score = is_valid ? score * scale_log2 : -INFINITY;
    const float now = fmaxf(maximum, warp_max(score));  // finite: every tile has a valid token
    const float factor = fast_exp2(maximum - now);
    const float probability = fast_exp2(score - now);
    maximum = now;
    sum = sum * factor + probability;
    *reinterpret_cast<bf16*>(probabilities + (j & 1) * kProbabilityBytes + warp * kProbabilityRow +
                             lane * 2) = __float2bfloat16_rn(probability);
    if (lane == 0) factors[(j & 1) * kHeadsPerBlock + warp] = factor;
  };

  float value_sum[kColumns / 8][4] = {};
  const uint32_t probability_address =
      shared_address(probabilities) + static_cast<uint32_t>((lane & 15) * kProbabilityRow + (lane >> 4) * 16);
  const uint32_t value_address =
      ring + static_cast<uint32_t>((lane & 15) * kRowBytes + (warp * kColumns + (lane >> 4) * 8) * 2);
  const auto add_values = [&](int j, int stage) {
    const uint32_t address = value_address + static_cast<uint32_t>(stage * kTileBytes);
    const float* own_factors = factors + (j & 1) * kHeadsPerBlock + g;
    const float factor[2] = {own_factors[0], own_factors[8]};
    const uint32_t own_probabilities =
        probability_address + static_cast<uint32_t>((j & 1) * kProbabilityBytes);
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) value_sum[n][i] *= factor[i / 2];
    }
#pragma unroll
    for (int step = 0; step < kMlaTileTokens / 16; ++step) {
      uint32_t a[4];
      load_matrix_x4(a, own_probabilities + static_cast<uint32_t>(step * 32));
#pragma unroll
      for (int n = 0; n < kColumns / 16; ++n) {
        uint32_t b[4];
        load_matrix_x4_transposed(b, address + static_cast<uint32_t>(step * 16 * kRowBytes + n * 32));
        mma_16816(value_sum[2 * n], a, b[0], b[1]);
        mma_16816(value_sum[2 * n + 1], a, b[2], b[3]);
      }
    }
  };

  // Missing heads have no softmax; their rows must not hold what the query left there.
  if (!has_head) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      *reinterpret_cast<bf16*>(probabilities + i * kProbabilityBytes + warp * kProbabilityRow + lane * 2) =
          __float2bfloat16_rn(0.0f);
      if (lane == 0) factors[i * kHeadsPerBlock + warp] = 0;
    }
  }
  if (count > 0) {
    wait_tile(std::integral_constant<int, kStages - 2>{}, 0, 0);
    form_scores(0, 0);
    __syncthreads();
    softmax(0);
  }
  constexpr int kLaterCopies = kStages == 2 ? 0 : kStages - 3;
  int stage = 0;
  for (int j = 0; j < count; ++j) {
    const int free_stage = stage == 0 ? kStages - 1 : stage - 1;
    const int next_stage = stage == kStages - 1 ? 0 : stage + 1;
    const int page = next_page;
    next_page = page_of(j + kStages);
    if constexpr (kStages == 2) {  // the next tile's buffer is the one just read
      __syncthreads();
      copy_tile(j + 1, page, free_stage);
    }
    if (j + 1 < count) {
      wait_tile(std::integral_constant<int, kLaterCopies>{}, j + 1, next_stage);
      form_scores(j + 1, next_stage);
    }
    __syncthreads();  // scores of tile j + 1 and probabilities of tile j are there, tile j - 1 is done with
    if constexpr (kStages > 2) copy_tile(j + kStages - 1, page, free_stage);
    if (j + 1 < count) softmax(j + 1);
    add_values(j, stage);
    stage = next_stage;
  }
#ifndef CGLINT_BULK_COPY
  copy_async_wait<0>();
#endif

  sum = warp_sum(sum);
  if (splits > 1) {
    if (lane == 0 && has_head) {
      partial_stats[(sequence * splits + split) * heads + first_head + warp] = make_float2(maximum, sum);
    }
    if (count == 0) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int head = first_head + g + 8 * r;
      if (head >= heads) continue;
      float* row = partial_values + ((sequence * splits + split) * heads + head) * kLatentDim +
                   warp * kColumns + 2 * t;
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
        *reinterpret_cast<float2*>(row + n * 8) = make_float2(value_sum[n][2 * r], value_sum[n][2 * r + 1]);
      }
    }
    return;
  }
  __syncthreads();  // the last factors have been read
  if (lane == 0) factors[warp] = sum > 0 ? 1.0f / sum : 0.0f;
  __syncthreads();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int head = first_head + g + 8 * r;
    if (head >= heads) continue;
    const float inverse = factors[g + 8 * r];
    bf16* row = out + (sequence * heads + head) * kLatentDim + warp * kColumns + 2 * t;
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      *reinterpret_cast<uint32_t*>(row + n * 8) =
          pack_bf16(value_sum[n][2 * r] * inverse, value_sum[n][2 * r + 1] * inverse);
    }
  }
}

// One block per (32 columns, head, sequence): 8 column vectors times kCombineThreads / 8 groups of parts, kParts of them
// a thread. Small enough (128 threads, 64 registers) to wait for its predecessor beside a split block; 256 threads
// where there is one block a multiprocessor at most. All loads are issued before the first is needed; an empty part's
// values were never written, so they are loaded but not used.
constexpr int kCombineColumns = 32;
constexpr int kCombineVectors = kCombineColumns / 4;

template <int kParts, int kCombineThreads>
__global__ void __launch_bounds__(kCombineThreads)
    mla_decode_combine_kernel(const float* partial_values, const float2* partial_stats, bf16* out, int heads,
                              int splits) {
  __shared__ float4 warp_values[kCombineThreads / 32][kCombineVectors];
  constexpr int kCombineGroups = kCombineThreads / kCombineVectors;
  constexpr int kSumsPerLane = (kParts * kCombineGroups + 31) / 32;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread & 31;
  const int64_t head = blockIdx.y;
  const int64_t sequence = blockIdx.z;
  const int column = thread % kCombineVectors;
  const int group = thread / kCombineVectors;
  pdl_wait();
  pdl_trigger();
  const float2* stats = partial_stats + sequence * splits * heads + head;
  const float* values = partial_values + (sequence * splits * heads + head) * kLatentDim +
                        static_cast<int64_t>(blockIdx.x) * kCombineColumns + column * 4;
  float2 every[kSumsPerLane];
  float own[kParts];
  float4 part[kParts];
#pragma unroll
  for (int i = 0; i < kSumsPerLane; ++i) {
    const int split = lane + i * 32;
    every[i] = split < splits ? stats[split * heads] : make_float2(-INFINITY, 0);
  }
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const int split = group + i * kCombineGroups;
    own[i] = split < splits ? stats[split * heads].x : -INFINITY;
    part[i] = make_float4(0, 0, 0, 0);
    if (split < splits) part[i] = load_now(values + split * heads * kLatentDim);
  }
  float largest = every[0].x;
#pragma unroll
  for (int i = 1; i < kSumsPerLane; ++i) largest = fmaxf(largest, every[i].x);
  largest = fmaxf(warp_max(largest), -1e30f);  // all parts empty: weights are 0, not NaN
  float total = 0;
#pragma unroll
  for (int i = 0; i < kSumsPerLane; ++i) total += every[i].y * fast_exp2(every[i].x - largest);
  total = warp_sum(total);
  float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const float weight = fast_exp2(own[i] - largest);
    if (weight > 0) {
      sum.x += weight * part[i].x;
      sum.y += weight * part[i].y;
      sum.z += weight * part[i].z;
      sum.w += weight * part[i].w;
    }
  }
#pragma unroll
  for (int offset = kCombineVectors; offset < 32; offset *= 2) {
    sum.x += __shfl_xor_sync(0xffffffffu, sum.x, offset);
    sum.y += __shfl_xor_sync(0xffffffffu, sum.y, offset);
    sum.z += __shfl_xor_sync(0xffffffffu, sum.z, offset);
    sum.w += __shfl_xor_sync(0xffffffffu, sum.w, offset);
  }
  if (lane < kCombineVectors) warp_values[thread >> 5][lane] = sum;
  __syncthreads();
  if (thread < kCombineColumns) {
    float value = 0;
#pragma unroll
    for (int w = 0; w < kCombineThreads / 32; ++w)
      value += reinterpret_cast<const float*>(warp_values[w])[thread];
    out[(sequence * heads + head) * kLatentDim + static_cast<int64_t>(blockIdx.x) * kCombineColumns +
        thread] = __float2bfloat16_rn(total > 0 ? value / total : 0.0f);
  }
}

cudaError_t launch_combine(const LaunchContext& ctx, const MlaDecode& a, const Partials& partials) {
  const dim3 grid(kLatentDim / kCombineColumns, static_cast<unsigned>(a.heads),
                  static_cast<unsigned>(a.batch));
  constexpr int kFewRows = 8;  // 128 blocks
  const bool is_small = a.heads * a.batch <= kFewRows;
  const int threads = is_small ? 256 : 128;
  const int parts = (a.splits * kCombineVectors + threads - 1) / threads;
  static_assert(kMlaMaxSplits * kCombineVectors <= 16 * 128);
  const auto wide = parts <= 1   ? mla_decode_combine_kernel<1, 256>
                    : parts <= 2 ? mla_decode_combine_kernel<2, 256>
                    : parts <= 5 ? mla_decode_combine_kernel<5, 256>
                                 : mla_decode_combine_kernel<8, 256>;
  const auto narrow = parts <= 1   ? mla_decode_combine_kernel<1, 128>
                      : parts <= 2 ? mla_decode_combine_kernel<2, 128>
                      : parts <= 4 ? mla_decode_combine_kernel<4, 128>
                      : parts <= 9 ? mla_decode_combine_kernel<9, 128>
                                   : mla_decode_combine_kernel<16, 128>;
  return launch(ctx, is_small ? wide : narrow, grid, dim3(static_cast<unsigned>(threads)), 0, partials.values,
                partials.stats, a.out, a.heads, a.splits);
}

size_t smem_bytes(int stages) {
  return static_cast<size_t>(stages) * kTileBytes + kExchangeBytes + kBarrierBytes;
}

// log2 of the tiles in a page, rounded up.
int page_shift(int page_size) {
  int shift = 0;
  while (shift < 20 && kMlaTileTokens << shift < page_size) ++shift;
  return shift;
}

template <int kStages>
cudaError_t launch_split(const LaunchContext& ctx, const MlaDecode& a, const Partials& partials) {
  const dim3 grid(static_cast<unsigned>(a.splits), static_cast<unsigned>(a.batch),
                  static_cast<unsigned>((a.heads + kHeadsPerBlock - 1) / kHeadsPerBlock));
  constexpr float kLog2E = 1.4426950408889634f;
  return launch(ctx, mla_decode_split_kernel<kStages>, grid, dim3(kThreads), smem_bytes(kStages), a.q,
                a.cache, a.block_table, a.seq_lens, a.out, partials.values, partials.stats, a.heads,
                page_shift(a.page_size), a.max_pages, a.softmax_scale * kLog2E, ctx.pdl && a.cache_is_settled);
}

}  // namespace

int mla_decode_splits(int batch, int heads, int max_context, int sm_count) {
  const int rows = std::max(1, batch) * ((heads + kHeadsPerBlock - 1) / kHeadsPerBlock);
  const int tiles = std::max(1, (max_context + kMlaTileTokens - 1) / kMlaTileTokens);
  const int most = std::min(tiles, kMlaMaxSplits);
  const auto tiles_each = [&](int splits) { return (tiles + splits - 1) / splits; };
  // In units of one tile's time: filling the ring and writing partial sums cost about three tiles a block,
  // and each part adds to the combine kernel.
  constexpr double kBlockCost = 3.0;
  constexpr double kPartCost = 0.02;
  int best = 1;
  double best_cost = 0;
  for (int splits = 1; splits <= most; ++splits) {
    const int waves = (rows * splits + sm_count - 1) / std::max(1, sm_count);
    const double cost = waves * (kBlockCost + tiles_each(splits)) + kPartCost * splits * batch;
    if (splits == 1 || cost < best_cost) {
      best = splits;
      best_cost = cost;
    }
  }
  // Within one wave, spread the same work over all multiprocessors: with a programmatic edge the combine
  // blocks arrive early and would crowd on those left free.
  const int fill = sm_count / rows;
  if (fill > best && fill <= most && tiles_each(fill) == tiles_each(best)) best = fill;
  return best;
}

size_t mla_decode_workspace_bytes(const MlaDecode& attention) {
  if (attention.splits <= 1) return 0;
  const size_t parts = static_cast<size_t>(attention.batch) * static_cast<size_t>(attention.splits) *
                       static_cast<size_t>(attention.heads);
  return parts * (kLatentDim * sizeof(float) + sizeof(float2));
}

cudaError_t mla_decode(const LaunchContext& ctx, const MlaDecode& attention, void* workspace) {
  if (attention.batch <= 0 || attention.heads <= 0 || attention.page_size <= 0 ||
      kMlaTileTokens << page_shift(attention.page_size) != attention.page_size || attention.max_pages <= 0 ||
      attention.splits < 1 || attention.splits > kMlaMaxSplits ||
      (attention.splits > 1 && workspace == nullptr)) {
    return cudaErrorInvalidValue;
  }
  int device = 0;
  int smem_limit = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status == cudaSuccess) {
    status = cudaDeviceGetAttribute(&smem_limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  }
  if (status != cudaSuccess) return status;
  Partials partials{};
  if (attention.splits > 1) {
    const size_t parts = static_cast<size_t>(attention.batch) * static_cast<size_t>(attention.splits) *
                         static_cast<size_t>(attention.heads);
    partials.values = static_cast<float*>(workspace);
    partials.stats = reinterpret_cast<float2*>(partials.values + parts * kLatentDim);
  }
  if (mla_decode_takes_tensor(attention, device)) {
    // Plain launches are slower by pages.
    if (ctx.pdl && mla_decode_fits_pages(attention))
      return mla_decode_pages(ctx, attention, reinterpret_cast<__half*>(partials.values), partials.stats);
    return mla_decode_tensor(ctx, attention, partials.values, partials.stats);
  }
  const auto fits = [&](int stages) { return smem_bytes(stages) <= static_cast<size_t>(smem_limit); };
  if (fits(kMaxStages)) {
    status = launch_split<kMaxStages>(ctx, attention, partials);
  } else if (fits(3)) {
    status = launch_split<3>(ctx, attention, partials);
  } else if (fits(kMinStages)) {
    status = launch_split<kMinStages>(ctx, attention, partials);
  } else {
    return cudaErrorInvalidConfiguration;
  }
  if (status != cudaSuccess || attention.splits == 1) return status;
  return launch_combine(ctx, attention, partials);
}

}  // namespace cglint::kernels
