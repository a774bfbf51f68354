#include <algorithm>

#include "kernels/attention/mla_decode_tensor.h"
#include "kernels/common/device.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/common/tensor_map.h"

namespace cglint::kernels {
namespace {

constexpr int kTile = 32;  // tokens

// Blocks of kHeadTiles x 8 heads with a ring of kStages tiles, of which kWindow are under way from memory at
// a time. kValueWarps share the 512 value columns. kRegisterThreads: registers are dealt out as if a block
// had so many threads; fewer than it could have leave room for the blocks of the combine kernel, which start
// while this one runs.
template <int kHeadTiles_, int kStages_, int kWindow_, int kValueWarps_, int kRegisterThreads_ = 0>
struct Geometry {
  static constexpr int kHeadTiles = kHeadTiles_;
  static constexpr int kStages = kStages_;
  static constexpr int kWindow = kWindow_;
  static constexpr int kValueWarps = kValueWarps_;
  static constexpr int kScoreWarps = 8;
  static constexpr int kThreads = (kScoreWarps + kValueWarps + 1) * 32;
  static constexpr int kRegisterThreads = kRegisterThreads_ == 0 ? kThreads : kRegisterThreads_;
  static constexpr int kTokenGroups = kTile / 16;
  static constexpr int kParts = kScoreWarps / kTokenGroups;  // of the 576 values, for the scores
  static constexpr int kSlotBytes = kTile * kCacheRow * 2;
  static constexpr int kScoreStride = kTile + 4;
  static constexpr int kScoreFloats = kHeadTiles * kParts * 8 * kScoreStride;  // of one tile
  static constexpr int kQueryVectors = kCacheRow / 8 + 1;                      // of 16 bytes, in a padded row
  static constexpr int kProbabilityWords = kTile / 2 + 4;                      // of a head

  // Shared memory, in bytes from its start. The query lies where scores come later.
  static constexpr int kScoresAt = kStages * kSlotBytes;
  static constexpr int kProbabilityBytes = kHeadTiles * 8 * kProbabilityWords * 4;
  static constexpr int kProbabilitiesAt =
      kScoresAt + std::max(2 * kScoreFloats * 4, kHeadTiles * 8 * kQueryVectors * 16);
  static constexpr int kFactorBytes = kHeadTiles * 8 * 4;
  static constexpr int kFactorsAt = kProbabilitiesAt + 2 * kProbabilityBytes;
  static constexpr int kBarriersAt = kFactorsAt + 2 * kFactorBytes;
  static constexpr int kSmemBytes = kBarriersAt + 2 * kStages * 8;
  static_assert(kWindow <= kStages && kLatentDim / 16 % kValueWarps == 0 && kRegisterThreads >= kThreads);
  static_assert(kCacheRow / 16 % kParts == 0);
  static_assert(kSmemBytes <= kMlaTensorSmem);
};

// Block (split, sequence, kHeadTiles x 8 heads) takes tiles split, split + splits, ... as the kernel of
// mla_decode.cu does.
//
// Warps have roles, so that copies, scores and values of different tiles go on at once. One warp copies. It
// keeps kWindow tiles under way and no more: that is enough for the whole bandwidth, and more would only make
// what other kernels load wait behind them, first of all the combine kernel before this one. Eight warps make
// scores, with tokens on the 16-row side of the matrix instruction and heads on the 8-column side, so that 8
// heads leave no row unused: each 16 tokens over a part of the 576 values, then, behind a barrier, the
// softmax of one head (of each 8) with a lane a token. The other warps rescale and add up value columns of
// their own; nothing is merged between warps at the end.
//
// `rows` is the cache as a tensor of [pages x 64, 576] in boxes of 64 values x kTile rows, 128-byte swizzle.
// `cache` is the same memory as a plain address, for whoever reads the launch: the words of a tensor map are
// the driver's affair.
template <typename G>
__global__ void __launch_bounds__(G::kRegisterThreads, 1)
    mla_decode_split_tensor_kernel(const __grid_constant__ CUtensorMap rows, const bf16* q,
                                   [[maybe_unused]] const bf16* cache, const int32_t* block_table,
                                   const int32_t* seq_lens, float* partial_values, float2* partial_stats,
                                   int heads, int max_pages, float scale_log2, bool programmatic,
                                   bool cache_is_settled) {
#ifdef CGLINT_SM90_CODE
  constexpr int kHeadTiles = G::kHeadTiles;
  constexpr int kStages = G::kStages;
  constexpr int kParts = G::kParts;
  constexpr int kScoreWarps = G::kScoreWarps;
  constexpr int kValueWarps = G::kValueWarps;
  constexpr int kStride = G::kScoreStride;
  constexpr int kRowVectors = kCacheRow / 8;
  // Named barriers; those of probabilities exist twice, for even and odd tiles. 0 is that of __syncthreads().
  constexpr int kScoresDone = 1;
  constexpr int kProbabilitiesReady = 2;
  constexpr int kProbabilitiesTaken = 4;

  extern __shared__ __align__(1024) unsigned char smem[];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread & 31;
  const int warp = thread >> 5;
  const int g = lane >> 2;
  const int t = lane & 3;
  const int matrix = lane >> 3;  // whose row this lane addresses
  const int split = static_cast<int>(blockIdx.x);
  const int splits = static_cast<int>(gridDim.x);
  const int64_t sequence = blockIdx.y;
  const int first_head = static_cast<int>(blockIdx.z) * kHeadTiles * 8;
  const bool is_copier = warp == kScoreWarps + kValueWarps;

  if (programmatic && !cache_is_settled) {
    pdl_wait();
    pdl_trigger();
  }
  // One round trip for the length and the first pages.
  const int32_t* pages = block_table + sequence * max_pages;
  const auto page_of = [&](int i) {
    const int page = (split + i * splits) / (kMlaPageTokens / kTile);
    return page < max_pages ? pages[page] : 0;
  };
  const int length = seq_lens[sequence];
  int lane_page = is_copier ? page_of(lane) : 0;

  const uint32_t ring = shared_address(smem);
  const auto full = [&](int slot) { return ring + static_cast<uint32_t>(G::kBarriersAt + slot * 8); };
  const auto empty = [&](int slot) { return full(kStages + slot); };
  if (is_copier && lane == 0) {
#pragma unroll
    for (int slot = 0; slot < kStages; ++slot) {
      barrier_init(full(slot));
      barrier_init(empty(slot), kValueWarps);
    }
    barrier_init_fence();
  }
  __syncthreads();

  const int tiles = (length + kTile - 1) / kTile;
  const int count = tiles > split ? (tiles - split + splits - 1) / splits : 0;
  const auto slot_at = [&](int i) { return ring + static_cast<uint32_t>(i % kStages * G::kSlotBytes); };
  const auto wait_for_tile = [&](int i) { barrier_wait(full(i % kStages), i / kStages & 1); };
  const int64_t out_row = ((sequence * splits + split) * gridDim.z + blockIdx.z) * kHeadTiles;  // of 8 heads

  if (is_copier) {
    bool has_waited = !cache_is_settled;
    for (int i = 0; i < count; ++i) {
      if (i > 0 && i % 32 == 0) lane_page = page_of(i + lane);
      const int page = __shfl_sync(0xffffffffu, lane_page, i % 32);
      if (lane == 0) {
        if (i >= kStages) barrier_wait(empty(i % kStages), (i / kStages - 1) & 1);
        if (i >= G::kWindow) wait_for_tile(i - G::kWindow);
        const int tile = split + i * splits;
        if (!has_waited && (tile + 1) * kTile >= length) {  // this step may have written the last row
          pdl_wait();
          has_waited = true;
        }
        const int first_row = page * kMlaPageTokens + tile % (kMlaPageTokens / kTile) * kTile;
        barrier_expect(full(i % kStages), G::kSlotBytes);
        // Rows past the end of the sequence lie inside its last page, so they can be read.
#pragma unroll
        for (int c = 0; c < kCacheRow / 64; ++c)
          copy_tensor(slot_at(i) + static_cast<uint32_t>(c * kTile * 128), &rows, c * 64, first_row,
                      full(i % kStages));
      }
      __syncwarp();
    }
    return;
  }
  if (cache_is_settled) {
    pdl_wait();
    pdl_trigger();
  }

  if (warp < kScoreWarps) {
    const int token_group = warp % G::kTokenGroups;
    const int part = warp / G::kTokenGroups;
    constexpr int kSteps = kCacheRow / 16 / kParts;
    uint32_t query[kHeadTiles][kSteps][2];
    {
      constexpr int kThreads = kScoreWarps * 32;
      constexpr int kAll = kHeadTiles * 8 * kRowVectors;
      constexpr int kEach = (kAll + kThreads - 1) / kThreads;
      const uint32_t query_area = ring + G::kScoresAt;
      const bf16* source = q + (sequence * heads + first_head) * kCacheRow;
      uint4 held[kEach];
#pragma unroll
      for (int v = 0; v < kEach; ++v) {
        const int at = thread + v * kThreads;
        if (at < kAll) held[v] = load_words_now(source + at * 8);
      }
#pragma unroll
      for (int v = 0; v < kEach; ++v) {
        const int at = thread + v * kThreads;
        if (at < kAll)
          store_shared(query_area + static_cast<uint32_t>(
                                        (at / kRowVectors * G::kQueryVectors + at % kRowVectors) * 16),
                       held[v]);
      }
      warps_sync<kScoreWarps>(kScoresDone);
#pragma unroll
      for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
          uint32_t words[4];
          const int vector = (h * 8 + (lane & 7)) * G::kQueryVectors + (part * kSteps + s) * 2 + (matrix & 1);
          load_matrix_x2(words, query_area + static_cast<uint32_t>(vector * 16));
          query[h][s][0] = words[0];
          query[h][s][1] = words[1];
        }
      }
      warps_sync<kScoreWarps>(kScoresDone);
    }
    float maximum[kHeadTiles];
    float sum[kHeadTiles];
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
      maximum[h] = -INFINITY;
      sum[h] = 0;
    }
    const int key_row = token_group * 16 + (matrix & 1) * 8 + (lane & 7);
    const int key_chunk = matrix >> 1;
    for (int i = 0; i < count; ++i) {
      const uint32_t base = slot_at(i);
      const int first_token = (split + i * splits) * kTile;
      wait_for_tile(i);
      float* const scores = reinterpret_cast<float*>(smem + G::kScoresAt) + (i & 1) * G::kScoreFloats;
      {
        float score[kHeadTiles][3][4] = {};
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
          uint32_t a[4];
          load_matrix_x4(a, swizzled_cell<kTile>(base, key_row, 2 * (part * kSteps + s) + key_chunk));
#pragma unroll
          for (int h = 0; h < kHeadTiles; ++h) mma_16816(score[h][s % 3], a, query[h][s][0], query[h][s][1]);
        }
#pragma unroll
        for (int h = 0; h < kHeadTiles; ++h) {
          float* target = scores + ((h * kParts + part) * 8 + 2 * t) * kStride + token_group * 16 + g;
          target[0] = score[h][0][0] + score[h][1][0] + score[h][2][0];
          target[kStride] = score[h][0][1] + score[h][1][1] + score[h][2][1];
          target[8] = score[h][0][2] + score[h][1][2] + score[h][2][2];
          target[kStride + 8] = score[h][0][3] + score[h][1][3] + score[h][2][3];
        }
      }
      // Behind this barrier all have also read the scores of tile i - 1, whose place tile i + 1 takes, and
      // the tile itself.
      warps_sync<kScoreWarps>(kScoresDone);
      if (length - first_token < kTile) {  // stale bits may be NaN, which a weight of 0 does not remove
        const int valid = length - first_token;
        for (int v = thread; v < (kTile - valid) * kRowVectors; v += kScoreWarps * 32) {
          const int row = v / kRowVectors;
          store_shared(swizzled_cell<kTile>(base, valid + row, v - row * kRowVectors), make_uint4(0, 0, 0, 0));
        }
      }
      float value[kHeadTiles];
#pragma unroll
      for (int h = 0; h < kHeadTiles; ++h) {
        value[h] = 0;
#pragma unroll
        for (int k = 0; k < kParts; ++k) value[h] += scores[((h * kParts + k) * 8 + warp) * kStride + lane];
        value[h] = first_token + lane < length ? value[h] * scale_log2 : -INFINITY;
      }
      if (i >= 2) warps_sync<kScoreWarps + kValueWarps>(kProbabilitiesTaken + (i & 1));
#pragma unroll
      for (int h = 0; h < kHeadTiles; ++h) {
        const float largest = fmaxf(maximum[h], warp_max(value[h]));
        const float factor = fast_exp2(maximum[h] - largest);
        const float weight = fast_exp2(value[h] - largest);
        maximum[h] = largest;
        sum[h] = sum[h] * factor + weight;
        bf16* row = reinterpret_cast<bf16*>(smem + G::kProbabilitiesAt + (i & 1) * G::kProbabilityBytes) +
                    (h * 8 + warp) * G::kProbabilityWords * 2;
        row[lane] = __float2bfloat16_rn(weight);
        if (lane == 0)
          reinterpret_cast<float*>(smem + G::kFactorsAt + (i & 1) * G::kFactorBytes)[h * 8 + warp] = factor;
      }
      __syncwarp();
      warps_arrive<kScoreWarps + kValueWarps>(kProbabilitiesReady + (i & 1));
    }
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
      sum[h] = warp_sum(sum[h]);
      if (lane == 0) partial_stats[(out_row + h) * 8 + warp] = make_float2(maximum[h], sum[h]);
    }
    return;
  }

  constexpr int kRowTiles = kLatentDim / 16 / kValueWarps;  // of 16 value columns a warp
  const int value_warp = warp - kScoreWarps;
  const int value_row = (matrix >> 1) * 8 + (lane & 7);
  const int value_chunk = value_warp * kRowTiles * 2 + (matrix & 1);
  float acc[kHeadTiles][kRowTiles][4] = {};
  for (int i = 0; i < count; ++i) {
    const uint32_t base = slot_at(i);
    wait_for_tile(i);
    warps_sync<kScoreWarps + kValueWarps>(kProbabilitiesReady + (i & 1));
    const auto* probabilities =
        reinterpret_cast<const uint32_t*>(smem + G::kProbabilitiesAt + (i & 1) * G::kProbabilityBytes);
    const auto* factors = reinterpret_cast<const float2*>(smem + G::kFactorsAt + (i & 1) * G::kFactorBytes);
    uint32_t probability[kHeadTiles][G::kTokenGroups][2];
    float2 factor[kHeadTiles];
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
      factor[h] = factors[h * 4 + t];
#pragma unroll
      for (int n = 0; n < G::kTokenGroups; ++n) {
        const uint32_t* words = probabilities + (h * 8 + g) * G::kProbabilityWords + n * 8 + t;
        probability[h][n][0] = words[0];
        probability[h][n][1] = words[4];
      }
    }
    if (i + 2 < count) warps_arrive<kScoreWarps + kValueWarps>(kProbabilitiesTaken + (i & 1));
#pragma unroll
    for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {  // columns 2t and 2t + 1
        acc[h][m][0] *= factor[h].x;
        acc[h][m][1] *= factor[h].y;
        acc[h][m][2] *= factor[h].x;
        acc[h][m][3] *= factor[h].y;
      }
    }
#pragma unroll
    for (int n = 0; n < G::kTokenGroups; ++n) {
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        uint32_t a[4];
        load_matrix_x4_transposed(a, swizzled_cell<kTile>(base, n * 16 + value_row, value_chunk + 2 * m));
#pragma unroll
        for (int h = 0; h < kHeadTiles; ++h)
          mma_16816(acc[h][m], a, probability[h][n][0], probability[h][n][1]);
      }
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(empty(i % kStages));
  }
  if (count == 0) return;  // the combine kernel knows it by the sum
#pragma unroll
  for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      float* target = partial_values + (out_row + h) * (kLatentDim * 8) +
                      ((value_warp * kRowTiles + m) * 16 + g) * 8 + 2 * t;
      *reinterpret_cast<float2*>(target) = make_float2(acc[h][m][0], acc[h][m][1]);
      *reinterpret_cast<float2*>(target + 64) = make_float2(acc[h][m][2], acc[h][m][3]);
    }
  }
#endif
}

// A block makes kDims columns of 8 heads. A thread: 4 heads of one column in kParts of the splits, all loaded
// before the first is needed, while the block makes the weights of all splits once, in shared memory. An
// empty part's values were never written, so they are loaded but not used.
//
// The kernel lets its successor start before it waits itself; see the rules in README.md for why it may.
template <int kDims, int kThreads, int kParts>
__global__ void __launch_bounds__(kThreads)
    mla_decode_combine_tensor_kernel(const float* partial_values, const float2* partial_stats, bf16* out,
                                     int heads, int splits, bool programmatic) {
#ifdef CGLINT_SM90_CODE
  constexpr int kVectors = kDims * 2;
  constexpr int kGroups = kThreads / kVectors;
  constexpr int kWarps = kThreads / 32;
  constexpr int kLanes = kVectors < 32 ? kVectors : 32;    // distinct vectors of a warp
  constexpr int kRows = kVectors < 32 ? kWarps : kGroups;  // results to add up at the end
  constexpr int kMostSplits = kParts * kGroups;
  constexpr int kStatSplits = kThreads / 8;  // whose stats the block loads at a time
  constexpr int kStats = (kMostSplits + kStatSplits - 1) / kStatSplits;
  __shared__ float4 weights[kStats * kStatSplits][2];
  __shared__ float4 row_values[kRows][kVectors];
  __shared__ float warp_largest[kWarps][8];
  __shared__ float warp_total[kWarps][8];
  if (programmatic) {
    pdl_trigger();
    pdl_wait();
  }
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread & 31;
  const int warp = thread >> 5;
  const int vector = thread % kVectors;
  const int group = thread / kVectors;
  const int own_head = thread & 7;  // whose weights this thread makes
  const int64_t head_tile = blockIdx.y;
  const int64_t head_tiles = gridDim.y;
  const int64_t sequence = blockIdx.z;
  const int64_t first_row = sequence * splits * head_tiles + head_tile;
  float2 stats[kStats];
#pragma unroll
  for (int i = 0; i < kStats; ++i) {
    const int split = thread / 8 + i * kStatSplits;
    stats[i] = make_float2(-INFINITY, 0);
    if (split < splits)
      stats[i] = load_pair_now(partial_stats + (first_row + split * head_tiles) * 8 + own_head);
  }
  const float* from = partial_values + first_row * (kLatentDim * 8) +
                      static_cast<int64_t>(blockIdx.x) * (kDims * 8) + vector * 4;
  float4 part[kParts];
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const int split = group + i * kGroups;
    part[i] = make_float4(0, 0, 0, 0);
    if (split < splits) part[i] = load_now(from + split * head_tiles * (kLatentDim * 8));
  }
  float largest = -1e30f;  // all parts empty: weights are 0, not NaN
#pragma unroll
  for (int i = 0; i < kStats; ++i) largest = fmaxf(largest, stats[i].x);
  largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 8));
  largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 16));
  if (lane < 8) warp_largest[warp][lane] = largest;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, warp_largest[w][own_head]);
  float total = 0;
#pragma unroll
  for (int i = 0; i < kStats; ++i) {
    const float weight = fast_exp2(stats[i].x - largest);
    total += weight * stats[i].y;
    reinterpret_cast<float*>(weights[thread / 8 + i * kStatSplits])[own_head] = weight;
  }
  total += __shfl_xor_sync(0xffffffffu, total, 8);
  total += __shfl_xor_sync(0xffffffffu, total, 16);
  if (lane < 8) warp_total[warp][lane] = total;
  __syncthreads();
  float4 value = make_float4(0, 0, 0, 0);
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const float4 weight = weights[group + i * kGroups][vector & 1];
    if (weight.x > 0) value.x += weight.x * part[i].x;
    if (weight.y > 0) value.y += weight.y * part[i].y;
    if (weight.z > 0) value.z += weight.z * part[i].z;
    if (weight.w > 0) value.w += weight.w * part[i].w;
  }
#pragma unroll
  for (int offset = kLanes; offset < 32; offset *= 2) {
    value.x += __shfl_xor_sync(0xffffffffu, value.x, offset);
    value.y += __shfl_xor_sync(0xffffffffu, value.y, offset);
    value.z += __shfl_xor_sync(0xffffffffu, value.z, offset);
    value.w += __shfl_xor_sync(0xffffffffu, value.w, offset);
  }
  if (kVectors >= 32 || lane < kVectors) row_values[kVectors < 32 ? warp : group][vector] = value;
  __syncthreads();
  for (int i = thread; i < kDims * 8; i += kThreads) {
    const int head = i / kDims;
    const int at = (i % kDims) * 8 + head;
    float top = 0;
    float bottom = 0;
#pragma unroll
    for (int r = 0; r < kRows; ++r) top += reinterpret_cast<const float*>(row_values[r])[at];
#pragma unroll
    for (int w = 0; w < kWarps; ++w) bottom += warp_total[w][head];
    out[(sequence * heads + head_tile * 8 + head) * kLatentDim + static_cast<int64_t>(blockIdx.x) * kDims +
        i % kDims] = __float2bfloat16_rn(bottom > 0 ? top / bottom : 0.0f);
  }
#endif
}

template <int kDims, int kThreads, int kParts>
cudaError_t launch_parts(const LaunchContext& ctx, const MlaDecode& a, const float* values,
                         const float2* stats) {
  const auto kernel = mla_decode_combine_tensor_kernel<kDims, kThreads, kParts>;
  const cudaError_t status = prefer_shared_memory(kernel);
  if (status != cudaSuccess) return status;
  const dim3 grid(kLatentDim / kDims, static_cast<unsigned>(a.heads / kMlaHeadTile),
                  static_cast<unsigned>(a.batch));
  return launch(ctx, kernel, grid, dim3(kThreads), 0, values, stats, a.out, a.heads, a.splits, ctx.pdl);
}

// The fastest of those measured, as the geometries below.
cudaError_t launch_combine(const LaunchContext& ctx, const MlaDecode& a, const float* values,
                           const float2* stats) {
  const int rows = a.batch * a.heads;
  // Few rows: blocks of few columns, so that there are enough of them.
  if (rows > 16 && a.splits <= 16) return launch_parts<16, 128, 4>(ctx, a, values, stats);
  if (rows > 16 && a.splits <= 36) {
    return ctx.pdl && a.heads > kMlaHeadTile ? launch_parts<8, 256, 3>(ctx, a, values, stats)
                                          : launch_parts<16, 128, 9>(ctx, a, values, stats);
  }
  if (rows > 8 && a.splits <= 80) return launch_parts<8, 256, 5>(ctx, a, values, stats);
  static_assert(kMlaMaxSplits <= 8 * 32);
  if (a.splits <= 64) return launch_parts<4, 256, 2>(ctx, a, values, stats);
  if (a.splits <= 160) return launch_parts<4, 256, 5>(ctx, a, values, stats);
  return launch_parts<4, 256, 8>(ctx, a, values, stats);
}

template <typename G>
cudaError_t launch_split(const LaunchContext& ctx, const MlaDecode& a, float* values, float2* stats) {
  CUtensorMap rows{};
  if (!encode_tensor_map(rows, a.cache, a.cache_pages * kMlaPageTokens, kCacheRow, kTile)) return cudaErrorInvalidValue;
  const auto kernel = mla_decode_split_tensor_kernel<G>;
  const cudaError_t status = prefer_shared_memory(kernel);
  if (status != cudaSuccess) return status;
  constexpr float kLog2E = 1.4426950408889634f;
  const dim3 grid(static_cast<unsigned>(a.splits), static_cast<unsigned>(a.batch),
                  static_cast<unsigned>(a.heads / (G::kHeadTiles * kMlaHeadTile)));
  return launch(ctx, kernel, grid, dim3(G::kThreads), G::kSmemBytes, rows, a.q, a.cache, a.block_table,
                a.seq_lens, values, stats, a.heads, a.max_pages, a.softmax_scale * kLog2E, ctx.pdl,
                ctx.pdl && a.cache_is_settled);
}

}  // namespace

bool mla_decode_takes_tensor(const MlaDecode& a, int device) {
  constexpr int64_t kMostPages = (int64_t{1} << 31) / kMlaPageTokens - 1;  // rows are numbered in 32 bits
  if (a.page_size != kMlaPageTokens || a.splits < 2 || (a.heads != 8 && a.heads != 16) || a.cache_pages < 1 ||
      a.cache_pages > kMostPages)
    return false;
  int smem = 0;
  return runs_sm90_code(device) &&
         cudaDeviceGetAttribute(&smem, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) == cudaSuccess &&
         smem >= kMlaTensorSmem && can_encode_tensor_maps();
}

cudaError_t mla_decode_tensor(const LaunchContext& ctx, const MlaDecode& a, float* values, float2* stats) {
  // The fastest of those measured: docs/measurements/kernels-variants-2026-12-01.json. `max_pages` stands for
  // the longest context.
  const int tiles = (a.max_pages * (kMlaPageTokens / kTile) + a.splits - 1) / a.splits;  // of a block
  cudaError_t status = cudaSuccess;
  if (a.heads == kMlaHeadTile) {
    constexpr int kRoom = 768;  // registers of a thread: 80
    if (tiles <= 2) {
      status = ctx.pdl ? launch_split<Geometry<1, 2, 1, 8, kRoom>>(ctx, a, values, stats)
                       : launch_split<Geometry<1, 2, 2, 8, kRoom>>(ctx, a, values, stats);
    } else {
      status = launch_split<Geometry<1, 5, 2, 4, kRoom>>(ctx, a, values, stats);
    }
  } else {
    status = tiles <= 2   ? launch_split<Geometry<2, 2, 2, 8>>(ctx, a, values, stats)
             : tiles <= 4 ? launch_split<Geometry<2, 4, 2, 4>>(ctx, a, values, stats)
                          : launch_split<Geometry<2, 5, 2, 4>>(ctx, a, values, stats);
  }
  return status != cudaSuccess ? status : launch_combine(ctx, a, values, stats);
}

}  // namespace cglint::kernels
