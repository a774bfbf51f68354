#include <algorithm>

#include "kernels/attention/skinny_gemm.h"
#include "kernels/common/device.cuh"
#include "kernels/common/mma.cuh"

namespace cglint::kernels {
namespace {

constexpr int kTileN = 16;   // weight rows per block
constexpr int kChunkK = 32;  // k values one warp step covers: 16 bytes per lane, 4 lanes a row
constexpr int kUnroll = 4;   // chunks in flight per warp
constexpr int kMaxWarps = 16;

__device__ __forceinline__ uint4 load_words(const bf16* pointer) {
  const Bf16x8 packed = load8(pointer);
  uint4 words;
  memcpy(&words, &packed, sizeof words);
  return words;
}
__device__ __forceinline__ uint4 load_words_streaming(const bf16* pointer) {
  const Bf16x8 packed = load_streaming(pointer);
  uint4 words;
  memcpy(&words, &packed, sizeof words);
  return words;
}

// Weights go from global memory straight into mma operands: the sum over k may run in any order as long as
// both operands agree, so lane t of a quad takes k values 8t..8t+7 of a 32-wide chunk (one 16-byte load) and
// feeds them to two instructions. Rows of the tile are the weight's n, columns are tokens.
template <int kTokenTiles>
__global__ void __launch_bounds__(kMaxWarps * 32)
    skinny_gemm_kernel(const bf16* x, int64_t x_token_stride, int64_t x_batch_stride, const bf16* weight,
                       int64_t weight_batch_stride, bf16* out, int64_t out_token_stride,
                       int64_t out_batch_stride, const bf16* residual, int tokens, int k, float* partials,
                       unsigned* arrivals) {
  extern __shared__ float reduce[];  // [warps][kTokenTiles * 8][kTileN]
  constexpr int kTileValues = kTokenTiles * 8 * kTileN;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int warp = static_cast<int>(threadIdx.x) >> 5;
  const int warps = static_cast<int>(blockDim.x) >> 5;
  const int g = lane >> 2;
  const int t = lane & 3;
  const int first_n = static_cast<int>(blockIdx.x) * kTileN;
  const int64_t batch = blockIdx.z;

  const int chunks = k / kChunkK;
  const int workers = warps * static_cast<int>(gridDim.y);
  const int worker = static_cast<int>(blockIdx.y) * warps + warp;
  const int begin = static_cast<int>(static_cast<int64_t>(chunks) * worker / workers);
  const int end = static_cast<int>(static_cast<int64_t>(chunks) * (worker + 1) / workers);

  const bf16* row_low = weight + batch * weight_batch_stride + static_cast<int64_t>(first_n + g) * k + t * 8;
  const bf16* row_high = row_low + static_cast<int64_t>(8) * k;
  const bf16* x_row[kTokenTiles];
  bool has_token[kTokenTiles];
#pragma unroll
  for (int m = 0; m < kTokenTiles; ++m) {
    has_token[m] = m * 8 + g < tokens;
    x_row[m] = x + batch * x_batch_stride + (has_token[m] ? m * 8 + g : 0) * x_token_stride + t * 8;
  }

  float sum[kTokenTiles][4] = {};
  uint4 low[kUnroll];
  uint4 high[kUnroll];
  const auto load_weights = [&](int chunk) {
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const bool inside = chunk + u < end;
      low[u] = inside ? load_words_streaming(row_low + (chunk + u) * kChunkK) : make_uint4(0, 0, 0, 0);
      high[u] = inside ? load_words_streaming(row_high + (chunk + u) * kChunkK) : make_uint4(0, 0, 0, 0);
    }
  };
  load_weights(begin);
  pdl_wait();
  pdl_trigger();
  for (int chunk = begin; chunk < end; chunk += kUnroll) {
    uint4 a_low[kUnroll];
    uint4 a_high[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      a_low[u] = low[u];
      a_high[u] = high[u];
    }
    if (chunk + kUnroll < end) load_weights(chunk + kUnroll);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const uint32_t first[4] = {a_low[u].x, a_high[u].x, a_low[u].y, a_high[u].y};
      const uint32_t second[4] = {a_low[u].z, a_high[u].z, a_low[u].w, a_high[u].w};
#pragma unroll
      for (int m = 0; m < kTokenTiles; ++m) {
        uint4 b = make_uint4(0, 0, 0, 0);
        if (has_token[m] && chunk + u < end) b = load_words(x_row[m] + (chunk + u) * kChunkK);
        mma_16816(sum[m], first, b.x, b.y);
        mma_16816(sum[m], second, b.z, b.w);
      }
    }
  }

  float* own = reduce + warp * kTileValues;
#pragma unroll
  for (int m = 0; m < kTokenTiles; ++m) {
    own[(m * 8 + 2 * t) * kTileN + g] = sum[m][0];
    own[(m * 8 + 2 * t + 1) * kTileN + g] = sum[m][1];
    own[(m * 8 + 2 * t) * kTileN + g + 8] = sum[m][2];
    own[(m * 8 + 2 * t + 1) * kTileN + g + 8] = sum[m][3];
  }
  __syncthreads();

  const int values = tokens * kTileN;
  const int splits = static_cast<int>(gridDim.y);
  const int64_t tile = static_cast<int64_t>(blockIdx.z) * gridDim.x + blockIdx.x;
  if (splits > 1) {
    __shared__ bool is_last;
    for (int i = static_cast<int>(threadIdx.x); i < values; i += static_cast<int>(blockDim.x)) {
      float total = 0;
      for (int w = 0; w < warps; ++w) total += reduce[w * kTileValues + i];
      partials[(tile * splits + blockIdx.y) * kTileValues + i] = total;
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      // Wraps to 0 at the last arrival, ready for the next launch.
      is_last =
          atomicInc(arrivals + tile, static_cast<unsigned>(splits - 1)) == static_cast<unsigned>(splits - 1);
    }
    __syncthreads();
    if (!is_last) return;
    __threadfence();
  }
  for (int i = static_cast<int>(threadIdx.x); i < values; i += static_cast<int>(blockDim.x)) {
    float total = 0;
    if (splits > 1) {
      for (int s = 0; s < splits; ++s) total += __ldcg(partials + (tile * splits + s) * kTileValues + i);
    } else {
      for (int w = 0; w < warps; ++w) total += reduce[w * kTileValues + i];
    }
    const int64_t position =
        batch * out_batch_stride + (i / kTileN) * out_token_stride + first_n + i % kTileN;
    if (residual != nullptr) total += __bfloat162float(residual[position]);
    out[position] = __float2bfloat16_rn(total);
  }
}

// Weights stored [k, n]: a tile of 32 columns and all of k goes through shared memory, where transposing
// matrix loads turn it into operands. Four warps: two halves of the columns by two halves of k.
constexpr int kKnTileN = 32;
constexpr int kKnRowBytes = kKnTileN * 2 + 16;  // odd multiple of 16: no bank conflicts
constexpr int kKnThreads = 128;

template <int kTokenTiles>
__global__ void __launch_bounds__(kKnThreads)
    skinny_gemm_kn_kernel(const bf16* x, int64_t x_token_stride, int64_t x_batch_stride, const bf16* weight,
                          int64_t weight_batch_stride, bf16* out, int64_t out_token_stride,
                          int64_t out_batch_stride, int tokens, int n, int k) {
  extern __shared__ __align__(16) unsigned char tile[];  // [k][kKnRowBytes], later reused to reduce
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int warp = static_cast<int>(threadIdx.x) >> 5;
  const int g = lane >> 2;
  const int t = lane & 3;
  const int first_n = static_cast<int>(blockIdx.x) * kKnTileN;
  const int64_t batch = blockIdx.z;
  const bf16* source = weight + batch * weight_batch_stride + first_n;
  const uint32_t tile_address = shared_address(tile);
  for (int i = static_cast<int>(threadIdx.x); i < k * 4; i += kKnThreads) {
    copy_async_16(tile_address + static_cast<uint32_t>((i >> 2) * kKnRowBytes + (i & 3) * 16),
                  source + static_cast<int64_t>(i >> 2) * n + (i & 3) * 8);
  }
  copy_async_commit();
  pdl_wait();
  pdl_trigger();

  const int columns = (warp & 1) * 16;
  const int half_k = k / 2;
  const int begin = (warp >> 1) * half_k;
  float sum[kTokenTiles][4] = {};
  const bf16* x_row[kTokenTiles];
  bool has_token[kTokenTiles];
#pragma unroll
  for (int m = 0; m < kTokenTiles; ++m) {
    has_token[m] = m * 8 + g < tokens;
    x_row[m] = x + batch * x_batch_stride + (has_token[m] ? m * 8 + g : 0) * x_token_stride + 2 * t;
  }
  const int matrix_row = (lane >> 4) * 8 + (lane & 7);
  const int matrix_column = columns + ((lane >> 3) & 1) * 8;
  copy_async_wait<0>();
  __syncthreads();
#pragma unroll 4
  for (int step = begin; step < begin + half_k; step += 16) {
    uint32_t a[4];
    load_matrix_x4_transposed(
        a, tile_address + static_cast<uint32_t>((step + matrix_row) * kKnRowBytes + matrix_column * 2));
#pragma unroll
    for (int m = 0; m < kTokenTiles; ++m) {
      uint32_t b0 = 0;
      uint32_t b1 = 0;
      if (has_token[m]) {
        b0 = *reinterpret_cast<const uint32_t*>(x_row[m] + step);
        b1 = *reinterpret_cast<const uint32_t*>(x_row[m] + step + 8);
      }
      mma_16816(sum[m], a, b0, b1);
    }
  }
  __syncthreads();
  float* reduce = reinterpret_cast<float*>(tile);  // [2 k halves][kTokenTiles * 8][kKnTileN]
  constexpr int kTileValues = kTokenTiles * 8 * kKnTileN;
  float* own = reduce + (warp >> 1) * kTileValues + columns + g;
#pragma unroll
  for (int m = 0; m < kTokenTiles; ++m) {
    own[(m * 8 + 2 * t) * kKnTileN] = sum[m][0];
    own[(m * 8 + 2 * t + 1) * kKnTileN] = sum[m][1];
    own[(m * 8 + 2 * t) * kKnTileN + 8] = sum[m][2];
    own[(m * 8 + 2 * t + 1) * kKnTileN + 8] = sum[m][3];
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < tokens * kKnTileN / 2; i += kKnThreads) {
    const float low = reduce[2 * i] + reduce[kTileValues + 2 * i];
    const float high = reduce[2 * i + 1] + reduce[kTileValues + 2 * i + 1];
    const int64_t position =
        batch * out_batch_stride + (2 * i / kKnTileN) * out_token_stride + first_n + 2 * i % kKnTileN;
    *reinterpret_cast<uint32_t*>(out + position) = pack_bf16(low, high);
  }
}

// Token tiles compiled for: 1, 2, 4 and 8.
int token_tiles_for(int tokens) {
  return tokens <= 8 ? 1 : tokens <= 16 ? 2 : tokens <= 32 ? 4 : 8;
}

bool is_valid(const SkinnyGemm& gemm) {
  return gemm.tokens >= 1 && gemm.tokens <= kSkinnyMaxTokens && gemm.n > 0 && gemm.k > 0 && gemm.batch >= 1 &&
         gemm.x_token_stride % 8 == 0 && gemm.x_batch_stride % 8 == 0 && gemm.out_token_stride % 8 == 0 &&
         gemm.out_batch_stride % 8 == 0 && gemm.weight_batch_stride % 8 == 0;
}

size_t partial_values(const SkinnyGemm& gemm) {
  return static_cast<size_t>(gemm.n / kTileN) * static_cast<size_t>(gemm.batch) *
         static_cast<size_t>(gemm.split_k) * static_cast<size_t>(token_tiles_for(gemm.tokens) * 8 * kTileN);
}

int warps_for(int chunks_per_block, int token_tiles) {
  const int most = token_tiles >= 8 ? 8 : kMaxWarps;
  const int wanted = (chunks_per_block + kUnroll - 1) / kUnroll;
  return wanted >= most ? most : wanted >= 8 ? 8 : wanted >= 4 ? 4 : 2;
}

}  // namespace

int skinny_split_k(int tokens, int n, int k, int batch, int sm_count) {
  const int tiles = n / kTileN * batch;
  // Each warp of a block should keep at least one full round of loads; 16 warps times 4 chunks of 32.
  const int most = std::max(1, k / (8 * kUnroll * kChunkK));
  int split = 1;
  while (tiles * split < sm_count && split * 2 <= std::min(most, 16)) split *= 2;
  (void)tokens;
  return split;
}

size_t skinny_gemm_workspace_bytes(const SkinnyGemm& gemm) {
  if (gemm.split_k <= 1) return 0;
  const size_t tiles = static_cast<size_t>(gemm.n / kTileN) * static_cast<size_t>(gemm.batch);
  const size_t arrival_bytes = (tiles * sizeof(unsigned) + 15) / 16 * 16;
  return arrival_bytes + partial_values(gemm) * sizeof(float);
}

cudaError_t skinny_gemm(const LaunchContext& ctx, const SkinnyGemm& gemm, void* workspace) {
  if (!is_valid(gemm) || gemm.n % kTileN != 0 || gemm.k % kChunkK != 0 || gemm.split_k < 1 ||
      gemm.split_k > 16 || (gemm.split_k > 1 && workspace == nullptr)) {
    return cudaErrorInvalidValue;
  }
  const int token_tiles = token_tiles_for(gemm.tokens);
  const auto kernel = token_tiles == 1   ? skinny_gemm_kernel<1>
                      : token_tiles == 2 ? skinny_gemm_kernel<2>
                      : token_tiles == 4 ? skinny_gemm_kernel<4>
                                         : skinny_gemm_kernel<8>;
  const int tiles_n = gemm.n / kTileN;
  const int warps = warps_for(gemm.k / kChunkK / gemm.split_k, token_tiles);
  const size_t smem = static_cast<size_t>(warps * token_tiles * 8 * kTileN) * sizeof(float);
  unsigned* arrivals = static_cast<unsigned*>(workspace);
  const size_t arrival_bytes = (static_cast<size_t>(tiles_n * gemm.batch) * sizeof(unsigned) + 15) / 16 * 16;
  float* partials = workspace == nullptr
                        ? nullptr
                        : reinterpret_cast<float*>(static_cast<unsigned char*>(workspace) + arrival_bytes);
  const dim3 grid(static_cast<unsigned>(tiles_n), static_cast<unsigned>(gemm.split_k),
                  static_cast<unsigned>(gemm.batch));
  return launch(ctx, kernel, grid, dim3(static_cast<unsigned>(warps * 32)), smem, gemm.x, gemm.x_token_stride,
                gemm.x_batch_stride, gemm.weight, gemm.weight_batch_stride, gemm.out, gemm.out_token_stride,
                gemm.out_batch_stride, gemm.residual, gemm.tokens, gemm.k, partials, arrivals);
}

cudaError_t skinny_gemm_kn(const LaunchContext& ctx, const SkinnyGemm& gemm) {
  if (!is_valid(gemm) || gemm.n % kKnTileN != 0 || gemm.k % 32 != 0 || gemm.k > 1024 || gemm.split_k != 1 ||
      gemm.residual != nullptr) {
    return cudaErrorInvalidValue;
  }
  const int token_tiles = token_tiles_for(gemm.tokens);
  const auto kernel = token_tiles == 1   ? skinny_gemm_kn_kernel<1>
                      : token_tiles == 2 ? skinny_gemm_kn_kernel<2>
                      : token_tiles == 4 ? skinny_gemm_kn_kernel<4>
                                         : skinny_gemm_kn_kernel<8>;
  const size_t smem = std::max(static_cast<size_t>(gemm.k) * kKnRowBytes,
                               static_cast<size_t>(2 * token_tiles * 8 * kKnTileN) * sizeof(float));
  const dim3 grid(static_cast<unsigned>(gemm.n / kKnTileN), 1, static_cast<unsigned>(gemm.batch));
  return launch(ctx, kernel, grid, dim3(kKnThreads), smem, gemm.x, gemm.x_token_stride, gemm.x_batch_stride,
                gemm.weight, gemm.weight_batch_stride, gemm.out, gemm.out_token_stride, gemm.out_batch_stride,
                gemm.tokens, gemm.n, gemm.k);
}

cudaError_t mla_absorb_query(const LaunchContext& ctx, const bf16* q_nope, int64_t q_token_stride,
                             int64_t q_head_stride, const bf16* w_uk_t, bf16* q_latent,
                             int64_t latent_token_stride, int64_t latent_head_stride, int tokens, int heads) {
  SkinnyGemm gemm;
  gemm.x = q_nope;
  gemm.x_token_stride = q_token_stride;
  gemm.x_batch_stride = q_head_stride;
  gemm.weight = w_uk_t;
  gemm.weight_batch_stride = 128 * 512;
  gemm.out = q_latent;
  gemm.out_token_stride = latent_token_stride;
  gemm.out_batch_stride = latent_head_stride;
  gemm.tokens = tokens;
  gemm.n = 512;
  gemm.k = 128;
  gemm.batch = heads;
  return skinny_gemm_kn(ctx, gemm);
}

cudaError_t mla_project_value(const LaunchContext& ctx, const bf16* attention, const bf16* w_uv,
                              int64_t w_uv_head_stride, bf16* out, int tokens, int heads) {
  SkinnyGemm gemm;
  gemm.x = attention;
  gemm.x_token_stride = static_cast<int64_t>(heads) * 512;
  gemm.x_batch_stride = 512;
  gemm.weight = w_uv;
  gemm.weight_batch_stride = w_uv_head_stride;
  gemm.out = out;
  gemm.out_token_stride = static_cast<int64_t>(heads) * 128;
  gemm.out_batch_stride = 128;
  gemm.tokens = tokens;
  gemm.n = 128;
  gemm.k = 512;
  gemm.batch = heads;
  return skinny_gemm(ctx, gemm, nullptr);
}

}  // namespace cglint::kernels
