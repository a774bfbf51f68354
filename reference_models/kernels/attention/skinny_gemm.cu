#include <algorithm>

#include "kernels/attention/skinny_gemm.h"
#include "kernels/attention/skinny_gemm_cluster.h"
#include "kernels/attention/skinny_gemm_wave.h"
#include "kernels/common/cluster.cuh"
#include "kernels/common/device.cuh"
#include "kernels/common/mma.cuh"

namespace cglint::kernels {
namespace {

constexpr int kTileN = 16;        // weight rows per block
constexpr int kChunks = 4;        // loads of 32 k values (16 bytes a lane, 4 lanes a row) in a unit
constexpr int kUnitK = 128;       // k values a warp takes at a time
constexpr int kGroupTokens = 16;  // tokens per block at most; more are spread over the grid
constexpr int max_warps(int token_tiles) {
  return token_tiles == 1 ? 16 : 8;
}

__device__ __forceinline__ uint4 load_words_streaming(const bf16* pointer) {
  const Bf16x8 packed = load_streaming(pointer);
  uint4 words;
  memcpy(&words, &packed, sizeof words);
  return words;
}

// A plain store of `value` to the place of `address` in the shared memory of the cluster's first block; that
// block must have started, and sees it after the next barrier.
#ifdef CGLINT_SM90_CODE
__device__ __forceinline__ void store_to_first_block(uint32_t address, float value) {
  asm volatile(
      "{\n"
      ".reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, 0;\n"
      "st.shared::cluster.f32 [remote], %1;\n"
      "}\n" ::"r"(address),
      "f"(value)
      : "memory");
}
#else  // never launched in clusters
__device__ __forceinline__ void store_to_first_block(uint32_t, float) {}
#endif

// Weights go from global memory straight into mma operands: the sum over k may run in any order as long as
// both operands agree, so lane t of a quad takes k values 8t..8t+7 of a 32-wide chunk (one 16-byte load) and
// feeds them to two instructions. Rows of the tile are the weight's n, columns are tokens. Units of k go
// round the warps of all blocks that share the tile; a warp loads its next unit before it multiplies this
// one. Blocks that share a tile add up through the workspace, where the last to arrive finishes, or with
// kCluster through the shared memory of the first, which saves the trip to L2 and back.
template <int kTokenTiles, bool kCluster, bool kPdl>
__global__ void __launch_bounds__(max_warps(kTokenTiles) * 32)
    skinny_gemm_kernel(const bf16* x, int64_t x_token_stride, int64_t x_batch_stride, const bf16* weight,
                       int64_t weight_batch_stride, bf16* out, int64_t out_token_stride,
                       int64_t out_batch_stride, const bf16* residual, int all_tokens, int token_groups,
                       int k, float* partials, unsigned* arrivals) {
  extern __shared__ float reduce[];  // [warps][kTokenTiles * 8][kTileN]; kCluster: [warps + splits]
  constexpr int kTileValues = kTokenTiles * 8 * kTileN;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int warp = static_cast<int>(threadIdx.x) >> 5;
  const int warps = static_cast<int>(blockDim.x) >> 5;
  const int g = lane >> 2;
  const int t = lane & 3;
  const int first_n = static_cast<int>(blockIdx.x) * kTileN;
  const int64_t batch = static_cast<int>(blockIdx.z) / token_groups;
  const int first_token = static_cast<int>(blockIdx.z) % token_groups * kGroupTokens;
  const int tokens = min(all_tokens - first_token, kTokenTiles * 8);

  const int units = k / kUnitK;
  const int stride = warps * static_cast<int>(gridDim.y);
  int unit = static_cast<int>(blockIdx.y) * warps + warp;

  const bf16* row_low = weight + batch * weight_batch_stride + static_cast<int64_t>(first_n + g) * k + t * 8;
  const bf16* row_high = row_low + static_cast<int64_t>(8) * k;
  const bf16* x_row[kTokenTiles];
  bool has_token[kTokenTiles];
#pragma unroll
  for (int m = 0; m < kTokenTiles; ++m) {
    has_token[m] = m * 8 + g < tokens;
    x_row[m] =
        x + batch * x_batch_stride + (first_token + (has_token[m] ? m * 8 + g : 0)) * x_token_stride + t * 8;
  }

  uint4 low[2][kChunks];
  uint4 high[2][kChunks];
  uint4 token[2][kTokenTiles][kChunks];
  float sum[kTokenTiles][4] = {};
  const auto load_weights = [&](int slot, int from) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      low[slot][c] = load_words_streaming(row_low + from * kUnitK + c * 32);
      high[slot][c] = load_words_streaming(row_high + from * kUnitK + c * 32);
    }
  };
  const auto load_tokens = [&](int slot, int from) {
#pragma unroll
    for (int m = 0; m < kTokenTiles; ++m) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        token[slot][m][c] =
            has_token[m] ? load_words_now(x_row[m] + from * kUnitK + c * 32) : make_uint4(0, 0, 0, 0);
      }
    }
  };
  const auto multiply = [&](int slot) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const uint32_t first[4] = {low[slot][c].x, high[slot][c].x, low[slot][c].y, high[slot][c].y};
      const uint32_t second[4] = {low[slot][c].z, high[slot][c].z, low[slot][c].w, high[slot][c].w};
#pragma unroll
      for (int m = 0; m < kTokenTiles; ++m) {
        mma_16816(sum[m], first, token[slot][m][c].x, token[slot][m][c].y);
        mma_16816(sum[m], second, token[slot][m][c].z, token[slot][m][c].w);
      }
    }
  };

  if constexpr (kCluster) cluster_arrive();
  const bool any = unit < units;
  if (any) load_weights(0, unit);
  pdl_begin<kPdl>();
  if (any) {
    load_tokens(0, unit);
    while (true) {
      if (unit + stride >= units) {
        multiply(0);
        break;
      }
      load_weights(1, unit + stride);
      load_tokens(1, unit + stride);
      multiply(0);
      unit += stride;
      if (unit + stride >= units) {
        multiply(1);
        break;
      }
      load_weights(0, unit + stride);
      load_tokens(0, unit + stride);
      multiply(1);
      unit += stride;
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
  const auto sum_of_warps = [&](int i) {
    float total = 0;
    for (int w = 0; w < warps; ++w) total += reduce[w * kTileValues + i];
    return total;
  };
  float* const gathered = reduce + warps * kTileValues;  // kCluster
  if constexpr (kCluster) {
    const uint32_t to = shared_address(gathered + blockIdx.y * kTileValues);
    cluster_wait();  // all have started
    for (int i = static_cast<int>(threadIdx.x); i < values; i += static_cast<int>(blockDim.x))
      store_to_first_block(to + static_cast<uint32_t>(i) * 4, sum_of_warps(i));
    cluster_arrive();
    cluster_wait();
    if (blockIdx.y != 0) return;
  } else if (splits > 1) {
    __shared__ bool is_last;
    for (int i = static_cast<int>(threadIdx.x); i < values; i += static_cast<int>(blockDim.x)) {
      partials[(tile * splits + blockIdx.y) * kTileValues + i] = sum_of_warps(i);
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
    if constexpr (kCluster) {
      for (int s = 0; s < splits; ++s) total += gathered[s * kTileValues + i];
    } else if (splits > 1) {
      for (int s = 0; s < splits; ++s) total += __ldcg(partials + (tile * splits + s) * kTileValues + i);
    } else {
      total = sum_of_warps(i);
    }
    const int64_t position =
        batch * out_batch_stride + (first_token + i / kTileN) * out_token_stride + first_n + i % kTileN;
    if (residual != nullptr) total += __bfloat162float(residual[position]);
    out[position] = __float2bfloat16_rn(total);
  }
}

// W_UK_T is stored [k, n]: a tile of 32 columns and all of k goes through shared memory, where transposing
// matrix loads turn it into operands. Four warps: two halves of the columns by two halves of k.
constexpr int kAbsorbN = 512;
constexpr int kAbsorbK = 128;
constexpr int kAbsorbTileN = 32;
constexpr int kAbsorbRowBytes = kAbsorbTileN * 2 + 16;  // odd multiple of 16: no bank conflicts
constexpr int kAbsorbThreads = 128;
constexpr int kAbsorbSteps = kAbsorbK / 2 / 16;

template <int kTokenTiles, bool kPdl>
__global__ void __launch_bounds__(kAbsorbThreads)
    mla_absorb_query_kernel(const bf16* x, int64_t x_token_stride, int64_t x_head_stride, const bf16* weight,
                            bf16* out, int64_t out_token_stride, int64_t out_head_stride, int all_tokens,
                            int token_groups) {
  constexpr int kTileValues = kTokenTiles * 8 * kAbsorbTileN;
  static_assert(2 * kTileValues * 4 <= kAbsorbK * kAbsorbRowBytes);
  __shared__ __align__(16) unsigned char tile[kAbsorbK * kAbsorbRowBytes];  // later reused to reduce
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread & 31;
  const int warp = thread >> 5;
  const int g = lane >> 2;
  const int t = lane & 3;
  const int first_n = static_cast<int>(blockIdx.x) * kAbsorbTileN;
  const int64_t head = static_cast<int>(blockIdx.z) / token_groups;
  const int first_token = static_cast<int>(blockIdx.z) % token_groups * kGroupTokens;
  const int tokens = min(all_tokens - first_token, kTokenTiles * 8);
  const bf16* source = weight + head * (kAbsorbN * kAbsorbK) + first_n;
  const uint32_t tile_address = shared_address(tile);
#pragma unroll
  for (int i = 0; i < kAbsorbK * 4 / kAbsorbThreads; ++i) {
    const int vector = thread + i * kAbsorbThreads;
    copy_async_16(tile_address + static_cast<uint32_t>((vector >> 2) * kAbsorbRowBytes + (vector & 3) * 16),
                  source + (vector >> 2) * kAbsorbN + (vector & 3) * 8);
  }
  copy_async_commit();
  pdl_begin<kPdl>();

  const int columns = (warp & 1) * 16;
  const int begin = (warp >> 1) * (kAbsorbK / 2);
  uint32_t b[kTokenTiles][kAbsorbSteps][2];
#pragma unroll
  for (int m = 0; m < kTokenTiles; ++m) {
    const bool has_token = m * 8 + g < tokens;
    const bf16* row = x + head * x_head_stride +
                      (first_token + (has_token ? m * 8 + g : 0)) * x_token_stride + begin + 2 * t;
#pragma unroll
    for (int step = 0; step < kAbsorbSteps; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        b[m][step][half] = has_token ? *reinterpret_cast<const uint32_t*>(row + step * 16 + half * 8) : 0u;
      }
    }
  }
  const int matrix_row = begin + (lane >> 4) * 8 + (lane & 7);
  const int matrix_column = columns + ((lane >> 3) & 1) * 8;
  float sum[kTokenTiles][4] = {};
  copy_async_wait<0>();
  __syncthreads();
#pragma unroll
  for (int step = 0; step < kAbsorbSteps; ++step) {
    uint32_t a[4];
    load_matrix_x4_transposed(
        a,
        tile_address + static_cast<uint32_t>((step * 16 + matrix_row) * kAbsorbRowBytes + matrix_column * 2));
#pragma unroll
    for (int m = 0; m < kTokenTiles; ++m) mma_16816(sum[m], a, b[m][step][0], b[m][step][1]);
  }
  __syncthreads();
  float* reduce = reinterpret_cast<float*>(tile);  // [2 k halves][kTokenTiles * 8][kAbsorbTileN]
  float* own = reduce + (warp >> 1) * kTileValues + columns + g;
#pragma unroll
  for (int m = 0; m < kTokenTiles; ++m) {
    own[(m * 8 + 2 * t) * kAbsorbTileN] = sum[m][0];
    own[(m * 8 + 2 * t + 1) * kAbsorbTileN] = sum[m][1];
    own[(m * 8 + 2 * t) * kAbsorbTileN + 8] = sum[m][2];
    own[(m * 8 + 2 * t + 1) * kAbsorbTileN + 8] = sum[m][3];
  }
  __syncthreads();
  for (int i = thread; i < tokens * kAbsorbTileN / 2; i += kAbsorbThreads) {
    const float low = reduce[2 * i] + reduce[kTileValues + 2 * i];
    const float high = reduce[2 * i + 1] + reduce[kTileValues + 2 * i + 1];
    const int64_t position = head * out_head_stride +
                             (first_token + 2 * i / kAbsorbTileN) * out_token_stride + first_n +
                             2 * i % kAbsorbTileN;
    *reinterpret_cast<uint32_t*>(out + position) = pack_bf16(low, high);
  }
}

int token_tiles_for(int tokens) {
  return tokens <= 8 ? 1 : 2;
}
int token_groups_for(int tokens) {
  return (tokens + kGroupTokens - 1) / kGroupTokens;
}

bool is_valid(const SkinnyGemm& gemm) {
  return gemm.tokens >= 1 && gemm.tokens <= kSkinnyMaxTokens && gemm.n > 0 && gemm.k > 0 && gemm.batch >= 1 &&
         gemm.x_token_stride % 8 == 0 && gemm.x_batch_stride % 8 == 0 && gemm.out_token_stride % 8 == 0 &&
         gemm.out_batch_stride % 8 == 0 && gemm.weight_batch_stride % 8 == 0;
}

// Output tiles of one launch.
int tiles_of(int tokens, int n, int batch) {
  return n / kTileN * batch * token_groups_for(tokens);
}

// Warps a block: as many as keep all blocks resident at once on a chip of about 132 multiprocessors, 16 warps
// each, and as have a unit of k to work on.
int warps_for(int blocks, int units_per_block, int token_tiles) {
  constexpr int kResidentWarps = 2200;
  int warps = max_warps(token_tiles);
  while (warps > 2 && (blocks * warps > kResidentWarps || warps / 2 >= units_per_block)) warps /= 2;
  return warps;
}

// The workspace begins with a counter a tile, zero between launches. As many in every launch, so that products of
// different shapes can share a workspace: one's partial sums must not lie where another counts.
constexpr int kMaxSplitTiles = 16384;
constexpr size_t kArrivalBytes = kMaxSplitTiles * sizeof(unsigned);

}  // namespace

int skinny_split_k(int tokens, int n, int k, int batch, int sm_count) {
  const int tiles = tiles_of(tokens, n, batch);
  const int units = k / kUnitK;
  const int token_tiles = token_tiles_for(tokens);
  int split = 1;
  if (tiles > kMaxSplitTiles) return split;
  // Few tiles: share each until about 11 warps a multiprocessor have work.
  while (split < 16 && tiles * split * max_warps(token_tiles) < sm_count * 11 && units >= split * 2 * 4)
    split *= 2;
  // Long rows in few warps: shorter shares even out the last wave.
  if (split == 1 && units > warps_for(tiles, units, token_tiles) * 8) split = 3;
  return split;
}

size_t skinny_gemm_workspace_bytes(const SkinnyGemm& gemm) {
  if (gemm.split_k <= 1) return 0;
  const int tiles = tiles_of(gemm.tokens, gemm.n, gemm.batch);
  const int tile_values = token_tiles_for(gemm.tokens) * 8 * kTileN;
  return kArrivalBytes +
         static_cast<size_t>(tiles) * static_cast<size_t>(gemm.split_k * tile_values) * sizeof(float);
}

bool skinny_gemm_gives_fp32(const SkinnyGemm& gemm) {
  return skinny_gemm_fits_cluster(gemm) && current_device_runs_sm90_code();
}

cudaError_t skinny_gemm(const LaunchContext& ctx, const SkinnyGemm& gemm, void* workspace) {
  if (!is_valid(gemm) || gemm.n % kTileN != 0 || gemm.k % kUnitK != 0 || gemm.split_k < 1 ||
      gemm.split_k > 16 ||
      (gemm.split_k > 1 &&
       (workspace == nullptr || tiles_of(gemm.tokens, gemm.n, gemm.batch) > kMaxSplitTiles))) {
    return cudaErrorInvalidValue;
  }
  if (gemm.out_fp32 != nullptr) {
    if (gemm.residual != nullptr || !skinny_gemm_gives_fp32(gemm)) return cudaErrorInvalidValue;
    return skinny_gemm_cluster(ctx, gemm);
  }
  const bool is_sm90 = current_device_runs_sm90_code();
  if (is_sm90 && skinny_gemm_fits_wave(gemm)) return skinny_gemm_wave(ctx, gemm);
  if (is_sm90 && skinny_gemm_fits_cluster(gemm)) return skinny_gemm_cluster(ctx, gemm);
  const int token_tiles = token_tiles_for(gemm.tokens);
  const int token_groups = token_groups_for(gemm.tokens);
  const bool in_clusters =
      is_sm90 && token_tiles == 1 && (gemm.split_k == 3 || gemm.split_k == 4);  // as measured
  const auto one_tile = ctx.pdl ? skinny_gemm_kernel<1, false, true> : skinny_gemm_kernel<1, false, false>;
  const auto two_tiles = ctx.pdl ? skinny_gemm_kernel<2, false, true> : skinny_gemm_kernel<2, false, false>;
  const auto one_tile_clusters =
      ctx.pdl ? skinny_gemm_kernel<1, true, true> : skinny_gemm_kernel<1, true, false>;
  const auto kernel = in_clusters ? one_tile_clusters : token_tiles == 1 ? one_tile : two_tiles;
  const int tiles = tiles_of(gemm.tokens, gemm.n, gemm.batch);
  const int units_per_block = (gemm.k / kUnitK + gemm.split_k - 1) / gemm.split_k;
  int warps = warps_for(tiles * gemm.split_k, units_per_block, token_tiles);
  // Clusters of blocks that each take a whole multiprocessor would not all fit at once.
  if (in_clusters) warps = std::clamp(warps, 4, 8);
  const int parts = in_clusters ? warps + gemm.split_k : warps;
  const size_t smem = static_cast<size_t>(parts * token_tiles * 8 * kTileN) * sizeof(float);
  // Neither is used in clusters.
  void* const shared = in_clusters ? nullptr : workspace;
  unsigned* arrivals = static_cast<unsigned*>(shared);
  float* partials =
      shared == nullptr ? nullptr
                        : reinterpret_cast<float*>(static_cast<unsigned char*>(shared) + kArrivalBytes);
  const dim3 grid(static_cast<unsigned>(gemm.n / kTileN), static_cast<unsigned>(gemm.split_k),
                  static_cast<unsigned>(gemm.batch * token_groups));
  return launch_in_clusters(ctx, kernel, grid, in_clusters ? grid.y : 1,
                            dim3(static_cast<unsigned>(warps * 32)), smem, gemm.x, gemm.x_token_stride,
                            gemm.x_batch_stride, gemm.weight, gemm.weight_batch_stride, gemm.out,
                            gemm.out_token_stride, gemm.out_batch_stride, gemm.residual, gemm.tokens,
                            token_groups, gemm.k, partials, arrivals);
}

cudaError_t mla_absorb_query(const LaunchContext& ctx, const bf16* q_nope, int64_t q_token_stride,
                             int64_t q_head_stride, const bf16* w_uk_t, bf16* q_latent,
                             int64_t latent_token_stride, int64_t latent_head_stride, int tokens, int heads) {
  if (tokens < 1 || tokens > kSkinnyMaxTokens || heads < 1 || q_token_stride % 8 != 0 ||
      q_head_stride % 8 != 0 || latent_token_stride % 8 != 0 || latent_head_stride % 8 != 0) {
    return cudaErrorInvalidValue;
  }
  const int token_groups = token_groups_for(tokens);
  const auto one_tile = ctx.pdl ? mla_absorb_query_kernel<1, true> : mla_absorb_query_kernel<1, false>;
  const auto two_tiles = ctx.pdl ? mla_absorb_query_kernel<2, true> : mla_absorb_query_kernel<2, false>;
  const auto kernel = token_tiles_for(tokens) == 1 ? one_tile : two_tiles;
  const dim3 grid(kAbsorbN / kAbsorbTileN, 1, static_cast<unsigned>(heads * token_groups));
  return launch(ctx, kernel, grid, dim3(kAbsorbThreads), 0, q_nope, q_token_stride, q_head_stride, w_uk_t,
                q_latent, latent_token_stride, latent_head_stride, tokens, token_groups);
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
