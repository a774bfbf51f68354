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
constexpr int kCopiesPerThread = kMlaTileTokens * kVectorsPerRow / kThreads;
static_assert(kMlaTileTokens * kVectorsPerRow % kThreads == 0);
// Scores are formed by 4 warps along the tokens times 2 along the 576 values, then summed.
constexpr int kTokenGroups = kMlaTileTokens / 8;
constexpr int kValueHalves = kWarps / kTokenGroups;
constexpr int kStepsPerHalf = kCacheRow / 16 / kValueHalves;
constexpr int kScoreStride = kMlaTileTokens + 8;  // floats; rows g and g + 1 fall in different banks
constexpr int kScoreBytes = kValueHalves * kHeadsPerBlock * kScoreStride * 4;
constexpr int kMinStages = 2;
constexpr int kMaxStages = 5;

// Where a block's unnormalised result goes when a sequence is split.
struct Partials {
  float* values;    // [batch, splits, heads, 512], divided by the part's own softmax sum
  float* log2_sum;  // [batch, splits, heads], log2 of the part's softmax sum; -inf for an empty part
};

// One block per (split, sequence, 16 heads). All threads stream cache tiles into a ring of kStages buffers;
// per tile the warps first share out the scores, then each warp multiplies all probabilities with its own 64
// of the 512 value columns. Softmax runs redundantly in every warp, straight in mma operand layout.
template <int kStages>
__global__ void __launch_bounds__(kThreads, 1)
    mla_decode_split_kernel(const bf16* q, const bf16* cache, const int32_t* block_table,
                            const int32_t* seq_lens, bf16* out, float* partial_values,
                            float* partial_log2_sum, int heads, int page_size, int max_pages,
                            float scale_log2) {
  extern __shared__ __align__(16) unsigned char smem[];
  const uint32_t ring = shared_address(smem);
  unsigned char* query = smem + kStages * kTileBytes;
  float* scores = reinterpret_cast<float*>(query + kQueryBytes);

  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread & 31;
  const int warp = thread >> 5;
  const int g = lane >> 2;
  const int t = lane & 3;
  const int split = static_cast<int>(blockIdx.x);
  const int splits = static_cast<int>(gridDim.x);
  const int64_t sequence = blockIdx.y;
  const int first_head = static_cast<int>(blockIdx.z) * kHeadsPerBlock;

  pdl_wait();
  pdl_trigger();

  const int length = seq_lens[sequence];
  const int tiles = (length + kMlaTileTokens - 1) / kMlaTileTokens;
  const int first_tile = static_cast<int>(static_cast<int64_t>(tiles) * split / splits);
  const int end_tile = static_cast<int>(static_cast<int64_t>(tiles) * (split + 1) / splits);
  const int32_t* pages = block_table + sequence * max_pages;
  const int tiles_per_page = page_size / kMlaTileTokens;

  const auto page_of = [&](int tile) { return tile < end_tile ? pages[tile / tiles_per_page] : 0; };
  // Copies one tile; rows past the end of the sequence lie inside its last page, so they can be read, and
  // their scores are masked. Stale bits there could be NaN times zero, so their values are cleared below.
  const auto copy_tile = [&](int tile, int page, int stage) {
    if (tile < end_tile) {
      const bf16* rows = cache + (static_cast<int64_t>(page) * page_size +
                                  static_cast<int64_t>(tile % tiles_per_page) * kMlaTileTokens) *
                                     kCacheRow;
      const uint32_t target = ring + static_cast<uint32_t>(stage * kTileBytes);
#pragma unroll
      for (int i = 0; i < kCopiesPerThread; ++i) {
        const int vector = thread + i * kThreads;
        const int row = vector / kVectorsPerRow;
        copy_async_16(target + static_cast<uint32_t>(row * kRowBytes + (vector - row * kVectorsPerRow) * 16),
                      rows + vector * 8);
      }
    }
    copy_async_commit();
  };

  int pages_ahead[kStages];
#pragma unroll
  for (int s = 0; s < kStages; ++s) pages_ahead[s] = page_of(first_tile + s);
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) copy_tile(first_tile + s, pages_ahead[s], s);
  int next_page = pages_ahead[kStages - 1];

  // Query rows to shared memory (zeros for missing heads), then to registers for good.
  for (int i = thread; i < kHeadsPerBlock * kVectorsPerRow; i += kThreads) {
    const int row = i / kVectorsPerRow;
    const int column = i - row * kVectorsPerRow;
    uint4 words = make_uint4(0, 0, 0, 0);
    if (first_head + row < heads) {
      words =
          *reinterpret_cast<const uint4*>(q + (sequence * heads + first_head + row) * kCacheRow + column * 8);
    }
    *reinterpret_cast<uint4*>(query + row * kRowBytes + column * 16) = words;
  }
  __syncthreads();
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

  float value_sum[8][4] = {};                 // 16 heads x 64 columns of this warp
  float maximum[2] = {-INFINITY, -INFINITY};  // of heads g and g + 8, in units of log2
  float sum[2] = {0, 0};                      // this lane's share of the softmax sums

  int stage = 0;
  for (int tile = first_tile; tile < end_tile; ++tile) {
    copy_async_wait<kStages - 2>();
    __syncthreads();  // the tile is here for all, and nobody reads the buffer refilled next
    {
      const int free_stage = stage == 0 ? kStages - 1 : stage - 1;
      copy_tile(tile + kStages - 1, next_page, free_stage);
      next_page = page_of(tile + kStages);
    }
    const uint32_t rows = ring + static_cast<uint32_t>(stage * kTileBytes);
    const int valid = length - tile * kMlaTileTokens;
    if (valid < kMlaTileTokens) {
      unsigned char* stale = smem + stage * kTileBytes + valid * kRowBytes;
      for (int i = thread * 16; i < (kMlaTileTokens - valid) * kRowBytes; i += kThreads * 16) {
        *reinterpret_cast<uint4*>(stale + i) = make_uint4(0, 0, 0, 0);
      }
      __syncthreads();
    }

    // Scores of 16 heads x 8 tokens over half of the values; two chains hide the latency of mma.
    float score[2][4] = {};
    {
      const uint32_t address =
          rows + static_cast<uint32_t>((token_group * 8 + (lane & 7)) * kRowBytes + (lane >> 3) * 16 +
                                       value_half * kStepsPerHalf * 32);
#pragma unroll
      for (int step = 0; step < kStepsPerHalf; step += 2) {
        uint32_t b[4];
        load_matrix_x4(b, address + static_cast<uint32_t>(step * 32));
        mma_16816(score[0], q_fragment[step], b[0], b[1]);
        mma_16816(score[1], q_fragment[step + 1], b[2], b[3]);
      }
    }
    {
      float* target = scores + (value_half * kHeadsPerBlock + g) * kScoreStride + token_group * 8 + 2 * t;
      *reinterpret_cast<float2*>(target) = make_float2(score[0][0] + score[1][0], score[0][1] + score[1][1]);
      *reinterpret_cast<float2*>(target + 8 * kScoreStride) =
          make_float2(score[0][2] + score[1][2], score[0][3] + score[1][3]);
    }
    __syncthreads();

    // Softmax. p[r][c] belongs to head g + 8r and tokens 8c + 2t, 8c + 2t + 1.
    float p[2][kTokenGroups][2];
    float tile_maximum[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int c = 0; c < kTokenGroups; ++c) {
        const float* source = scores + (g + 8 * r) * kScoreStride + c * 8 + 2 * t;
        float2 total = *reinterpret_cast<const float2*>(source);
#pragma unroll
        for (int h = 1; h < kValueHalves; ++h) {
          const float2 more = *reinterpret_cast<const float2*>(source + h * kHeadsPerBlock * kScoreStride);
          total.x += more.x;
          total.y += more.y;
        }
        p[r][c][0] = c * 8 + 2 * t < valid ? total.x * scale_log2 : -INFINITY;
        p[r][c][1] = c * 8 + 2 * t + 1 < valid ? total.y * scale_log2 : -INFINITY;
        tile_maximum[r] = fmaxf(tile_maximum[r], fmaxf(p[r][c][0], p[r][c][1]));
      }
      tile_maximum[r] = fmaxf(tile_maximum[r], __shfl_xor_sync(0xffffffffu, tile_maximum[r], 1));
      tile_maximum[r] = fmaxf(tile_maximum[r], __shfl_xor_sync(0xffffffffu, tile_maximum[r], 2));
    }
    float shrink[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float now = fmaxf(maximum[r], tile_maximum[r]);  // finite: every tile has a valid token
      shrink[r] = exp2f(maximum[r] - now);
      maximum[r] = now;
      sum[r] *= shrink[r];
#pragma unroll
      for (int c = 0; c < kTokenGroups; ++c) {
        p[r][c][0] = exp2f(p[r][c][0] - now);
        p[r][c][1] = exp2f(p[r][c][1] - now);
        sum[r] += p[r][c][0] + p[r][c][1];
      }
    }
    if (__any_sync(0xffffffffu, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        value_sum[n][0] *= shrink[0];
        value_sum[n][1] *= shrink[0];
        value_sum[n][2] *= shrink[1];
        value_sum[n][3] *= shrink[1];
      }
    }

    // Values: 16 tokens a step, 16 of the warp's 64 columns a matrix load.
    {
      const uint32_t address =
          rows + static_cast<uint32_t>((lane & 15) * kRowBytes + (warp * 64 + (lane >> 4) * 8) * 2);
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
    }
    stage = stage == kStages - 1 ? 0 : stage + 1;
  }
  copy_async_wait<0>();

#pragma unroll
  for (int r = 0; r < 2; ++r) {
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

// One block per (64 columns, head, sequence): 16 column vectors times 16 groups of splits.
constexpr int kCombineColumns = 64;
constexpr int kCombineThreads = 256;
constexpr int kCombineGroups = kCombineThreads / (kCombineColumns / 4);

__global__ void __launch_bounds__(kCombineThreads)
    mla_decode_combine_kernel(const float* partial_values, const float* partial_log2_sum, bf16* out,
                              int heads, int splits) {
  __shared__ float weight[kMlaMaxSplits];
  __shared__ float scratch[32];
  __shared__ float4 group_sum[kCombineGroups][kCombineColumns / 4];
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t head = blockIdx.y;
  const int64_t sequence = blockIdx.z;
  pdl_wait();
  pdl_trigger();
  const float own =
      thread < splits ? partial_log2_sum[(sequence * splits + thread) * heads + head] : -INFINITY;
  float largest = warp_max(own);
  if ((thread & 31) == 0) scratch[thread >> 5] = largest;
  __syncthreads();
  largest = warp_max((thread & 31) < kCombineThreads / 32 ? scratch[thread & 31] : -INFINITY);
  const float scaled = own > -INFINITY ? exp2f(own - largest) : 0.0f;
  const float total = block_sum(scaled, scratch);
  if (thread < splits) weight[thread] = total > 0 ? scaled / total : 0.0f;
  __syncthreads();

  const int column = thread % (kCombineColumns / 4);
  const int group = thread / (kCombineColumns / 4);
  const float* source = partial_values + (sequence * splits * heads + head) * kLatentDim +
                        static_cast<int64_t>(blockIdx.x) * kCombineColumns + column * 4;
  float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
  for (int split = group; split < splits; split += kCombineGroups) {
    const float w = weight[split];
    if (w > 0) {  // an empty part's values were never written
      const float4 part =
          *reinterpret_cast<const float4*>(source + static_cast<int64_t>(split) * heads * kLatentDim);
      sum.x += w * part.x;
      sum.y += w * part.y;
      sum.z += w * part.z;
      sum.w += w * part.w;
    }
  }
  group_sum[group][column] = sum;
  __syncthreads();
  if (thread < kCombineColumns) {
    float value = 0;
#pragma unroll
    for (int i = 0; i < kCombineGroups; ++i) value += reinterpret_cast<const float*>(group_sum[i])[thread];
    out[(sequence * heads + head) * kLatentDim + static_cast<int64_t>(blockIdx.x) * kCombineColumns +
        thread] = __float2bfloat16_rn(value);
  }
}
static_assert(kMlaMaxSplits <= kCombineThreads);

size_t smem_bytes(int stages) {
  return static_cast<size_t>(stages) * kTileBytes + kQueryBytes + kScoreBytes;
}

template <int kStages>
cudaError_t launch_split(const LaunchContext& ctx, const MlaDecode& a, const Partials& partials) {
  const dim3 grid(static_cast<unsigned>(a.splits), static_cast<unsigned>(a.batch),
                  static_cast<unsigned>((a.heads + kHeadsPerBlock - 1) / kHeadsPerBlock));
  constexpr float kLog2E = 1.4426950408889634f;
  return launch(ctx, mla_decode_split_kernel<kStages>, grid, dim3(kThreads), smem_bytes(kStages), a.q,
                a.cache, a.block_table, a.seq_lens, a.out, partials.values, partials.log2_sum, a.heads,
                a.page_size, a.max_pages, a.softmax_scale * kLog2E);
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
