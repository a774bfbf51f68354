#include <algorithm>

#include "kernels/attention/mla_decode.h"
#include "kernels/common/device.cuh"
#include "kernels/common/mma.cuh"

namespace cglint::kernels {
namespace {

constexpr int kHeadsPerBlock = 16;  // rows of one mma tile; fewer heads leave rows unused
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kRowBytes = kCacheRow * 2 + 16;  // odd multiple of 16: matrix loads without bank conflicts
constexpr int kTileBytes = kMlaTileTokens * kRowBytes;
constexpr int kQueryBytes = kHeadsPerBlock * kRowBytes;
constexpr int kVectorsPerRow = kCacheRow / 8;
[[maybe_unused]] constexpr int kCopiesPerThread = kMlaTileTokens * kVectorsPerRow / kThreads;
static_assert(kMlaTileTokens * kVectorsPerRow % kThreads == 0);
static_assert(kMlaTileTokens == 32, "one bulk copy a lane");
// Scores are formed by 4 warps along the tokens times 2 along the 576 values, then summed.
constexpr int kTokenGroups = kMlaTileTokens / 8;
constexpr int kValueHalves = kWarps / kTokenGroups;
constexpr int kStepsPerHalf = kCacheRow / 16 / kValueHalves;
constexpr int kScoreStride = kMlaTileTokens + 8;  // floats; rows g and g + 1 fall in different banks
constexpr int kScoreFloats = kValueHalves * kHeadsPerBlock * kScoreStride;
static_assert(2 * kScoreFloats * 4 <= kQueryBytes, "two score tiles reuse the query's memory");
constexpr int kBarrierBytes = 64;
constexpr int kMinStages = 2;
constexpr int kMaxStages = 5;

// Where a block's result goes when a sequence is split.
struct Partials {
  float* values;    // [batch, splits, heads, 512], divided by the part's own softmax sum
  float* log2_sum;  // [batch, splits, heads], log2 of the part's softmax sum; -inf for an empty part
};

// One block per (split, sequence, 16 heads); block `split` takes tiles split, split + splits, ... of 32
// tokens, so the first pages are known before the length is. Tiles stream into a ring of kStages buffers. Per
// tile the warps share out the scores; then each warp multiplies all probabilities with its own 64 of the 512
// value columns. Softmax runs redundantly in every warp, straight in mma operand layout. The scores of tile j
// + 1 are formed in the same barrier interval as softmax and values of tile j, so the two hide each other's
// latency. kRowHalves = 1 skips the upper 8 rows where a block has at most 8 heads.
template <int kStages, int kRowHalves>
__global__ void __launch_bounds__(kThreads, 1)
    mla_decode_split_kernel(const bf16* q, const bf16* cache, const int32_t* block_table,
                            const int32_t* seq_lens, bf16* out, float* partial_values,
                            float* partial_log2_sum, int heads, int page_size, int max_pages,
                            float scale_log2) {
  extern __shared__ __align__(128) unsigned char smem[];
  const uint32_t ring = shared_address(smem);
  unsigned char* query = smem + kStages * kTileBytes;
  float* scores = reinterpret_cast<float*>(query);  // [2][kScoreFloats], once the query is in registers

  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread & 31;
  const int warp = thread >> 5;
  const int g = lane >> 2;
  const int t = lane & 3;
  const int split = static_cast<int>(blockIdx.x);
  const int splits = static_cast<int>(gridDim.x);
  const int64_t sequence = blockIdx.y;
  const int first_head = static_cast<int>(blockIdx.z) * kHeadsPerBlock;
  const int tiles_per_page = page_size / kMlaTileTokens;
  const int32_t* pages = block_table + sequence * max_pages;
  const auto page_of = [&](int j) {
    const int page = (split + j * splits) / tiles_per_page;
    return page < max_pages ? pages[page] : 0;
  };

#ifdef CGLINT_BULK_COPY
  const uint32_t barriers = shared_address(query + kQueryBytes);
  if (thread == 0) {
#pragma unroll
    for (int s = 0; s < kStages; ++s) barrier_init(barriers + static_cast<uint32_t>(s) * 8);
    barrier_init_fence();
  }
#endif
  pdl_wait();
  pdl_trigger();

  // One round trip for the length, the first pages and the query.
  const int length = seq_lens[sequence];
  int pages_ahead[kStages];
#pragma unroll
  for (int j = 0; j < kStages; ++j) pages_ahead[j] = page_of(j);
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
  const int tiles = (length + kMlaTileTokens - 1) / kMlaTileTokens;
  const int count = tiles > split ? (tiles - split + splits - 1) / splits : 0;
  __syncthreads();  // query and barriers are there

  // Starts the copy of this block's tile j. Rows past the end of the sequence lie inside its last page, so
  // they can be read; their scores are masked, and their values cleared because stale bits may be NaN.
  const auto copy_tile = [&](int j, int page, int stage) {
    if (j < count) {
      const int tile = split + j * splits;
      const bf16* rows = cache + (static_cast<int64_t>(page) * page_size +
                                  static_cast<int64_t>(tile % tiles_per_page) * kMlaTileTokens) *
                                     kCacheRow;
      const uint32_t target = ring + static_cast<uint32_t>(stage * kTileBytes);
#ifdef CGLINT_BULK_COPY
      if (warp == (j & (kWarps - 1))) {  // the warps take turns
        const uint32_t barrier = barriers + static_cast<uint32_t>(stage) * 8;
        if (lane == 0) barrier_expect(barrier, kMlaTileTokens * kCacheRow * 2);
        __syncwarp();
        copy_bulk(target + static_cast<uint32_t>(lane * kRowBytes), rows + lane * kCacheRow, kCacheRow * 2,
                  barrier);
      }
#else
#pragma unroll
      for (int i = 0; i < kCopiesPerThread; ++i) {
        const int vector = thread + i * kThreads;
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
  // Waits for tile j in `stage` and clears its rows past the end. Every thread calls it, kStages - 1 copies
  // after the one waited for have been started at most.
  const auto wait_tile = [&](int j, int stage) {
#ifdef CGLINT_BULK_COPY
    barrier_wait(barriers + static_cast<uint32_t>(stage) * 8, static_cast<uint32_t>(j / kStages) & 1u);
#else
    copy_async_wait<kStages - 2>();
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

#pragma unroll
  for (int j = 0; j < kStages - 1; ++j) copy_tile(j, pages_ahead[j], j);
  int next_page = pages_ahead[kStages - 1];

  const int token_group = warp % kTokenGroups;
  const int value_half = warp / kTokenGroups;
  uint32_t q_fragment[kStepsPerHalf][4];
  {
    const uint32_t address =
        shared_address(query) +
        static_cast<uint32_t>((lane & 15) * kRowBytes + (lane >> 4) * 16 + value_half * kStepsPerHalf * 32);
#pragma unroll
    for (int step = 0; step < kStepsPerHalf; ++step) {
      load_matrix_x4(q_fragment[step], address + static_cast<uint32_t>(step * 32));
    }
  }
  __syncthreads();  // the scores take the query's place

  // Scores of 16 heads x 8 tokens over half of the values; two chains hide the latency of mma.
  const auto form_scores = [&](int stage, float* target) {
    float score[2][4] = {};
    const uint32_t address =
        ring + static_cast<uint32_t>(stage * kTileBytes + (token_group * 8 + (lane & 7)) * kRowBytes +
                                     (lane >> 3) * 16 + value_half * kStepsPerHalf * 32);
#pragma unroll
    for (int step = 0; step < kStepsPerHalf; step += 2) {
      uint32_t b[4];
      load_matrix_x4(b, address + static_cast<uint32_t>(step * 32));
      mma_16816(score[0], q_fragment[step], b[0], b[1]);
      mma_16816(score[1], q_fragment[step + 1], b[2], b[3]);
    }
    float* own = target + (value_half * kHeadsPerBlock + g) * kScoreStride + token_group * 8 + 2 * t;
#pragma unroll
    for (int r = 0; r < kRowHalves; ++r) {
      *reinterpret_cast<float2*>(own + r * 8 * kScoreStride) =
          make_float2(score[0][2 * r] + score[1][2 * r], score[0][2 * r + 1] + score[1][2 * r + 1]);
    }
  };

  float value_sum[8][4] = {};                 // 16 heads x 64 columns of this warp
  float maximum[2] = {-INFINITY, -INFINITY};  // of heads g and g + 8, in units of log2
  float sum[2] = {0, 0};                      // this lane's share of the softmax sums

  if (count > 0) {
    wait_tile(0, 0);
    form_scores(0, scores);
  }
  int stage = 0;
  for (int j = 0; j < count; ++j) {
    __syncthreads();  // scores of tile j are complete; nobody reads tile j - 1 any more
    const int free_stage = stage == 0 ? kStages - 1 : stage - 1;
    const int next_stage = stage == kStages - 1 ? 0 : stage + 1;
    copy_tile(j + kStages - 1, next_page, free_stage);
    next_page = page_of(j + kStages);
    if (j + 1 < count) {
      wait_tile(j + 1, next_stage);
      form_scores(next_stage, scores + ((j + 1) & 1) * kScoreFloats);
    }

    // Softmax. p[r][c] belongs to head g + 8r and tokens 8c + 2t, 8c + 2t + 1.
    const float* tile_scores = scores + (j & 1) * kScoreFloats;
    const int valid = length - (split + j * splits) * kMlaTileTokens;
    float p[2][kTokenGroups][2] = {};
    float shrink[2] = {1, 1};
#pragma unroll
    for (int r = 0; r < kRowHalves; ++r) {
      float tile_maximum = -INFINITY;
#pragma unroll
      for (int c = 0; c < kTokenGroups; ++c) {
        const float* source = tile_scores + (g + 8 * r) * kScoreStride + c * 8 + 2 * t;
        float2 total = *reinterpret_cast<const float2*>(source);
#pragma unroll
        for (int h = 1; h < kValueHalves; ++h) {
          const float2 more = *reinterpret_cast<const float2*>(source + h * kHeadsPerBlock * kScoreStride);
          total.x += more.x;
          total.y += more.y;
        }
        p[r][c][0] = c * 8 + 2 * t < valid ? total.x * scale_log2 : -INFINITY;
        p[r][c][1] = c * 8 + 2 * t + 1 < valid ? total.y * scale_log2 : -INFINITY;
        tile_maximum = fmaxf(tile_maximum, fmaxf(p[r][c][0], p[r][c][1]));
      }
      tile_maximum = fmaxf(tile_maximum, __shfl_xor_sync(0xffffffffu, tile_maximum, 1));
      tile_maximum = fmaxf(tile_maximum, __shfl_xor_sync(0xffffffffu, tile_maximum, 2));
      const float now = fmaxf(maximum[r], tile_maximum);  // finite: every tile has a valid token
      shrink[r] = fast_exp2(maximum[r] - now);
      maximum[r] = now;
      sum[r] *= shrink[r];
#pragma unroll
      for (int c = 0; c < kTokenGroups; ++c) {
        p[r][c][0] = fast_exp2(p[r][c][0] - now);
        p[r][c][1] = fast_exp2(p[r][c][1] - now);
        sum[r] += p[r][c][0] + p[r][c][1];
      }
    }
    if (__any_sync(0xffffffffu, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int r = 0; r < kRowHalves; ++r) {
          value_sum[n][2 * r] *= shrink[r];
          value_sum[n][2 * r + 1] *= shrink[r];
        }
      }
    }

    // Values: 16 tokens a step, 16 of the warp's 64 columns a matrix load.
    const uint32_t address = ring + static_cast<uint32_t>(stage * kTileBytes + (lane & 15) * kRowBytes +
                                                          (warp * 64 + (lane >> 4) * 8) * 2);
#pragma unroll
    for (int step = 0; step < kMlaTileTokens / 16; ++step) {
      const uint32_t a[4] = {pack_bf16(p[0][2 * step][0], p[0][2 * step][1]),
                             pack_bf16(p[1][2 * step][0], p[1][2 * step][1]),
                             pack_bf16(p[0][2 * step + 1][0], p[0][2 * step + 1][1]),
                             pack_bf16(p[1][2 * step + 1][0], p[1][2 * step + 1][1])};
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        uint32_t b[4];
        load_matrix_x4_transposed(b, address + static_cast<uint32_t>(step * 16 * kRowBytes + n * 32));
        mma_16816(value_sum[2 * n], a, b[0], b[1]);
        mma_16816(value_sum[2 * n + 1], a, b[2], b[3]);
      }
    }
    stage = next_stage;
  }
#ifndef CGLINT_BULK_COPY
  copy_async_wait<0>();
#endif

#pragma unroll
  for (int r = 0; r < kRowHalves; ++r) {
    sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
    sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
    const int head = first_head + g + 8 * r;
    if (head >= heads) continue;
    const float inverse = sum[r] > 0 ? 1.0f / sum[r] : 0.0f;
    if (splits == 1) {
      bf16* row = out + (sequence * heads + head) * kLatentDim + warp * 64 + 2 * t;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        *reinterpret_cast<uint32_t*>(row + n * 8) =
            pack_bf16(value_sum[n][2 * r] * inverse, value_sum[n][2 * r + 1] * inverse);
      }
    } else {
      const int64_t part = (sequence * splits + split) * heads + head;
      if (sum[r] > 0) {
        float* row = partial_values + part * kLatentDim + warp * 64 + 2 * t;
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          *reinterpret_cast<float2*>(row + n * 8) =
              make_float2(value_sum[n][2 * r] * inverse, value_sum[n][2 * r + 1] * inverse);
        }
      }
      if (warp == 0 && t == 0) partial_log2_sum[part] = sum[r] > 0 ? maximum[r] + log2f(sum[r]) : -INFINITY;
    }
  }
}

// One block per (32 columns, head, sequence): 8 column vectors times 32 groups of parts. All loads are issued
// before the first is needed; an empty part's values were never written, so they are loaded but not used.
constexpr int kCombineColumns = 32;
constexpr int kCombineThreads = 256;
constexpr int kCombineVectors = kCombineColumns / 4;
constexpr int kCombineGroups = kCombineThreads / kCombineVectors;
constexpr int kPartsPerThread = kMlaMaxSplits / kCombineGroups;
static_assert(kPartsPerThread * 32 == kMlaMaxSplits, "one warp also covers all parts' sums");

__global__ void __launch_bounds__(kCombineThreads)
    mla_decode_combine_kernel(const float* partial_values, const float* partial_log2_sum, bf16* out,
                              int heads, int splits) {
  __shared__ float4 warp_values[kCombineThreads / 32][kCombineVectors];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread & 31;
  const int64_t head = blockIdx.y;
  const int64_t sequence = blockIdx.z;
  const int column = thread % kCombineVectors;
  const int group = thread / kCombineVectors;
  pdl_wait();
  pdl_trigger();
  const float* sums = partial_log2_sum + sequence * splits * heads + head;
  const float* values = partial_values + (sequence * splits * heads + head) * kLatentDim +
                        static_cast<int64_t>(blockIdx.x) * kCombineColumns + column * 4;
  float every[kPartsPerThread];
  float own[kPartsPerThread];
  float4 part[kPartsPerThread];
#pragma unroll
  for (int i = 0; i < kPartsPerThread; ++i) {
    const int split = lane + i * 32;
    every[i] = split < splits ? sums[static_cast<int64_t>(split) * heads] : -INFINITY;
  }
#pragma unroll
  for (int i = 0; i < kPartsPerThread; ++i) {
    const int split = group + i * kCombineGroups;
    own[i] = split < splits ? sums[static_cast<int64_t>(split) * heads] : -INFINITY;
    part[i] =
        split < splits
            ? *reinterpret_cast<const float4*>(values + static_cast<int64_t>(split) * heads * kLatentDim)
            : make_float4(0, 0, 0, 0);
  }
  float largest = every[0];
#pragma unroll
  for (int i = 1; i < kPartsPerThread; ++i) largest = fmaxf(largest, every[i]);
  largest = warp_max(largest);
  float total = 0;
  if (largest > -INFINITY) {
#pragma unroll
    for (int i = 0; i < kPartsPerThread; ++i) total += fast_exp2(every[i] - largest);
  }
  total = warp_sum(total);
  float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
  for (int i = 0; i < kPartsPerThread; ++i) {
    if (own[i] > -INFINITY) {
      const float weight = fast_exp2(own[i] - largest) / total;
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
        thread] = __float2bfloat16_rn(value);
  }
}

size_t smem_bytes(int stages) {
  return static_cast<size_t>(stages) * kTileBytes + kQueryBytes + kBarrierBytes;
}

template <int kStages>
cudaError_t launch_split(const LaunchContext& ctx, const MlaDecode& a, const Partials& partials) {
  const dim3 grid(static_cast<unsigned>(a.splits), static_cast<unsigned>(a.batch),
                  static_cast<unsigned>((a.heads + kHeadsPerBlock - 1) / kHeadsPerBlock));
  constexpr float kLog2E = 1.4426950408889634f;
  const auto kernel =
      a.heads <= 8 ? mla_decode_split_kernel<kStages, 1> : mla_decode_split_kernel<kStages, 2>;
  return launch(ctx, kernel, grid, dim3(kThreads), smem_bytes(kStages), a.q, a.cache, a.block_table,
                a.seq_lens, a.out, partials.values, partials.log2_sum, a.heads, a.page_size, a.max_pages,
                a.softmax_scale * kLog2E);
}

}  // namespace

int mla_decode_splits(int batch, int heads, int max_context, int sm_count) {
  const int rows = std::max(1, batch) * ((heads + kHeadsPerBlock - 1) / kHeadsPerBlock);
  const int tiles = std::max(1, (max_context + kMlaTileTokens - 1) / kMlaTileTokens);
  // In units of one tile's time: filling the ring and writing partial sums cost about three tiles a block,
  // and each part adds a little to the combine kernel.
  constexpr double kBlockCost = 3.0;
  constexpr double kPartCost = 0.01;
  int best = 1;
  double best_cost = 0;
  for (int splits = 1; splits <= std::min(tiles, kMlaMaxSplits); ++splits) {
    const int waves = (rows * splits + sm_count - 1) / std::max(1, sm_count);
    const double cost = waves * (kBlockCost + (tiles + splits - 1) / splits) + kPartCost * splits * batch;
    if (splits == 1 || cost < best_cost) {
      best = splits;
      best_cost = cost;
    }
  }
  return best;
}

size_t mla_decode_workspace_bytes(const MlaDecode& attention) {
  if (attention.splits <= 1) return 0;
  const size_t parts = static_cast<size_t>(attention.batch) * static_cast<size_t>(attention.splits) *
                       static_cast<size_t>(attention.heads);
  return parts * kLatentDim * sizeof(float) + parts * sizeof(float);
}

cudaError_t mla_decode(const LaunchContext& ctx, const MlaDecode& attention, void* workspace) {
  if (attention.batch <= 0 || attention.heads <= 0 || attention.page_size <= 0 ||
      attention.page_size % kMlaTileTokens != 0 || attention.max_pages <= 0 || attention.splits < 1 ||
      attention.splits > kMlaMaxSplits || (attention.splits > 1 && workspace == nullptr)) {
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
    partials.log2_sum = partials.values + parts * kLatentDim;
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
  const dim3 grid(kLatentDim / kCombineColumns, static_cast<unsigned>(attention.heads),
                  static_cast<unsigned>(attention.batch));
  return launch(ctx, mla_decode_combine_kernel, grid, dim3(kCombineThreads), 0, partials.values,
                partials.log2_sum, attention.out, attention.heads, attention.splits);
}

}  // namespace cglint::kernels
