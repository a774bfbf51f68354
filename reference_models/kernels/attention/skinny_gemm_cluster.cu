#include "kernels/attention/skinny_gemm_cluster.h"

#include <type_traits>

#include "kernels/attention/skinny_gemm_shape.h"
#include "kernels/common/cluster.cuh"
#include "kernels/common/device.cuh"
#include "kernels/common/mma.cuh"

namespace cglint::kernels {
namespace {

constexpr int kMaxTokens = kSkinnyShapeTokens;
constexpr int kTileRows = 16;
constexpr int kChunkK = 32;  // k values of a chunk: 16 bytes a lane, 4 lanes a row

// The blocks of a cluster have the same kTiles tiles of 16 weight rows, each its own part of k; each of a
// block's warps has kChunks chunks of that of every row.
template <int kTilesOfBlock, int kChunksOfWarp, int kWarpsOfBlock, int kBlocksOfCluster>
struct ClusterGeometry {
  static constexpr int kTiles = kTilesOfBlock;
  static constexpr int kChunks = kChunksOfWarp;
  static constexpr int kWarps = kWarpsOfBlock;
  static constexpr int kBlocks = kBlocksOfCluster;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kRows = kTiles * kTileRows;
  static constexpr int kBlockK = kWarps * kChunks * kChunkK;
  static constexpr int kK = kBlocks * kBlockK;
  // A pair of sums is a row's for two tokens, 8 bytes. 32 bytes of padding after the rows of two tokens: no
  // bank conflicts between the tokens of a fragment.
  static constexpr int kPairs = kMaxTokens / 2 * kRows;
  static constexpr int kTokensBytes = kRows * 8 + 32;
  static constexpr int kWarpBytes = kMaxTokens / 2 * kTokensBytes;
  // The 8 lanes served together read two rows, which with an odd number of 64 bytes lie in different banks.
  static constexpr int kRowBytes = kBlockK * 2 + (kBlockK * 2 % 128 == 64 ? 0 : 64);
  // In shared memory: sums of the warps, those of all blocks (used in the first alone), weights.
  static constexpr int kReceivedAt = kWarps * kWarpBytes;
  static constexpr int kWeightsAt = kReceivedAt + (kBlocks > 1 ? kBlocks * kPairs * 8 : 0);
  static constexpr int kSmemBytes = kWeightsAt + kRows * kRowBytes;
  // As many as shared memory has room for, of which each block takes 1 KiB more.
  static constexpr int kBlocksOfMultiprocessor = 228 * 1024 / (kSmemBytes + 1024 + 128);
  static_assert(kThreads >= kPairs, "a thread adds up one pair");
  static_assert(kRowBytes % 128 == 64 && kWeightsAt % 16 == 0);
};

#ifdef CGLINT_SM90_CODE
__device__ __forceinline__ void store_shared(uint32_t address, const float (&values)[4]) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(values[0]), "f"(values[1]),
               "f"(values[2]), "f"(values[3])
               : "memory");
}
__device__ __forceinline__ float2 load_shared_pair(uint32_t address) {
  float2 pair;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "r"(address) : "memory");
  return pair;
}
// kCount pairs `stride` bytes apart, in order; all are loaded before the first is added.
template <int kCount>
__device__ __forceinline__ float2 add_up(uint32_t address, int stride) {
  float2 part[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) part[i] = load_shared_pair(address + static_cast<uint32_t>(i * stride));
  float2 total = make_float2(0, 0);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    total.x += part[i].x;
    total.y += part[i].y;
  }
  return total;
}
// The same place in the shared memory of the cluster's first block.
__device__ __forceinline__ uint32_t in_first_block(uint32_t address) {
  uint32_t remote;
  asm("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(remote) : "r"(address));
  return remote;
}
// A store that another block's barrier counts when it has landed; this block need not outlive it, that one
// must.
__device__ __forceinline__ void send_pair(uint32_t target, float2 pair, uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(target),
      "f"(pair.x), "f"(pair.y), "r"(barrier)
      : "memory");
}
#endif

// As in the general kernel the sum over k runs in an order that suits 16-byte loads, the same in both
// operands, and the tile's rows are the weight's n. A warp adds up its chunks in order of k, then a block its
// warps, then the first block the cluster's blocks: an order that depends on the geometry alone.
//
// Bulk copies put all weights of a block in shared memory: a block then needs few registers, and its
// successor fits beside it and loads while it still works.
//
// Blocks send their sums and leave; the first waits for the bytes, not for the others. It must run before it
// is sent anything, which is what the one barrier of the cluster is for: arrived at before the weights are
// asked for, and relaxed, since the barriers in shared memory have a fence of their own. Released, it made
// gate_up 0.1 us slower; released after the weights had been asked for, 0.6 to 1.4 us.
//
// `n` and `k` are for whoever reads the launch; G knows k. Results in fp32 take no residual.
template <typename G, bool kPdl, typename Out>
__global__ void __launch_bounds__(G::kThreads, G::kBlocksOfMultiprocessor)
    cluster_skinny_gemm_kernel(const bf16* x, int64_t x_token_stride, const bf16* weight, Out* out,
                               int64_t out_token_stride, const bf16* residual, int tokens,
                               [[maybe_unused]] int n, [[maybe_unused]] int k) {
#ifdef CGLINT_SM90_CODE
  constexpr int kTiles = G::kTiles;
  constexpr int kChunks = G::kChunks;
  extern __shared__ __align__(128) unsigned char smem[];
  __shared__ __align__(8) uint64_t barriers[2];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread & 31;
  const int warp = thread >> 5;
  const int g = lane >> 2;
  const int t = lane & 3;
  const int block = static_cast<int>(blockIdx.y);  // of the cluster
  const int first_row = static_cast<int>(blockIdx.x) * G::kRows;
  const int first_k = warp * kChunks * kChunkK;  // of the block's
  const int token_pairs = (tokens + 1) / 2;
  const int pairs = token_pairs * G::kRows;
  const uint32_t sums_at = shared_address(smem);
  const uint32_t received_at = sums_at + G::kReceivedAt;
  const uint32_t weights_at = sums_at + G::kWeightsAt;
  const uint32_t weights_there = shared_address(barriers);
  const uint32_t received = shared_address(barriers + 1);

  if (warp == 0) {
    if (lane == 0) {
      barrier_init(weights_there);
      barrier_init(received);
      barrier_init_fence();
      barrier_expect(weights_there, G::kRows * G::kBlockK * 2);
      if (G::kBlocks > 1 && block == 0)
        barrier_expect(received, static_cast<uint32_t>(G::kBlocks * pairs * 8));
    }
    __syncwarp();
  }
  if constexpr (G::kBlocks > 1) cluster_arrive_relaxed();
  if (warp == 0) {
    const bf16* const from = weight + static_cast<int64_t>(first_row) * G::kK + block * G::kBlockK;
#pragma unroll 1
    for (int row = lane; row < G::kRows; row += 32) {
      copy_bulk(weights_at + static_cast<uint32_t>(row * G::kRowBytes),
                from + static_cast<int64_t>(row) * G::kK, G::kBlockK * 2, weights_there);
    }
  }
  if constexpr (G::kBlocks > 1)
    cluster_wait();
  else
    __syncthreads();
  pdl_begin<kPdl>();

  uint4 token[kChunks];
  const bool has_token = g < tokens;
  const bf16* const x_row = x + (has_token ? g : 0) * x_token_stride + block * G::kBlockK + first_k + t * 8;
#pragma unroll
  for (int c = 0; c < kChunks; ++c)
    token[c] = has_token ? load_words_now(x_row + c * kChunkK) : make_uint4(0, 0, 0, 0);

  float sum[kTiles][4] = {};
  const uint32_t lane_weights = weights_at + static_cast<uint32_t>(g * G::kRowBytes + (first_k + t * 8) * 2);
  barrier_wait(weights_there, 0);
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const uint32_t at =
          lane_weights + static_cast<uint32_t>(i * kTileRows * G::kRowBytes + c * kChunkK * 2);
      const uint4 low = load_shared(at);
      const uint4 high = load_shared(at + 8 * G::kRowBytes);
      const uint32_t first[4] = {low.x, high.x, low.y, high.y};
      const uint32_t second[4] = {low.z, high.z, low.w, high.w};
      mma_16816(sum[i], first, token[c].x, token[c].y);
      mma_16816(sum[i], second, token[c].z, token[c].w);
    }
  }
  // Two pairs of a lane are neighbours: rows g and g + 8 of the tile.
  if (t < token_pairs) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      store_shared(sums_at + static_cast<uint32_t>(warp * G::kWarpBytes + t * G::kTokensBytes +
                                                   (i * kTileRows + 2 * g) * 8),
                   sum[i]);
    }
  }
  __syncthreads();

  if (thread >= pairs) return;
  const int token_pair = thread / G::kRows;
  const int pair = thread % G::kRows;
  float2 total = add_up<G::kWarps>(sums_at + static_cast<uint32_t>(token_pair * G::kTokensBytes + pair * 8),
                                   G::kWarpBytes);
  if constexpr (G::kBlocks > 1) {
    send_pair(in_first_block(received_at + static_cast<uint32_t>((block * G::kPairs + thread) * 8)), total,
              in_first_block(received));
    if (block != 0) return;
    barrier_wait_cluster(received, 0);
    total = add_up<G::kBlocks>(received_at + static_cast<uint32_t>(thread * 8), G::kPairs * 8);
  }
  const int row = first_row + pair / kTileRows * kTileRows + pair % kTileRows / 2 + pair % 2 * 8;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (2 * token_pair + i >= tokens) break;
    float value = i == 0 ? total.x : total.y;
    const int64_t position = (2 * token_pair + i) * out_token_stride + row;
    if constexpr (std::is_same_v<Out, float>) {
      out[position] = value;
    } else {
      if (residual != nullptr) value += __bfloat162float(residual[position]);
      out[position] = __float2bfloat16_rn(value);
    }
  }
#endif
}

template <typename G, bool kPdl, typename Out>
cudaError_t launch_cluster_to(const LaunchContext& ctx, const SkinnyGemm& gemm, Out* out) {
  const auto kernel = cluster_skinny_gemm_kernel<G, kPdl, Out>;
  // Room for several launches' blocks side by side.
  const cudaError_t status = prefer_shared_memory(kernel);
  if (status != cudaSuccess) return status;
  return launch_in_clusters(ctx, kernel, dim3(static_cast<unsigned>(gemm.n / G::kRows), G::kBlocks),
                            G::kBlocks, dim3(G::kThreads), G::kSmemBytes, gemm.x, gemm.x_token_stride,
                            gemm.weight, out, gemm.out_token_stride, gemm.residual, gemm.tokens, gemm.n,
                            gemm.k);
}

template <typename G, bool kPdl>
cudaError_t launch_cluster(const LaunchContext& ctx, const SkinnyGemm& gemm) {
  return gemm.out_fp32 != nullptr ? launch_cluster_to<G, kPdl>(ctx, gemm, gemm.out_fp32)
                                  : launch_cluster_to<G, kPdl>(ctx, gemm, gemm.out);
}

// `fewest_rows`: fewer would leave most multiprocessors without a block. `most_rows`: more would put two blocks of a
// launch on many.
template <typename G>
constexpr SkinnyShape cluster_shape(int fewest_rows, int most_rows) {
  return {.k = G::kK,
          .row_multiple = G::kRows,
          .fewest_rows = fewest_rows,
          .most_rows = most_rows,
          .fewest_tokens = 1,
          .plain = launch_cluster<G, false>,
          .programmatic = launch_cluster<G, true>};
}

// One geometry for each k and number of rows: the best of those measured, launches by themselves and behind a norm both counted:
// docs/measurements/kernels-variants-2-2026-12-01.json, for the routers and fp32 kernels-variants-3-2026-12-01.json.
// Clusters of two blocks that each take a whole multiprocessor make gate_up of K2 and V3 by itself another
// 0.1 to 0.2 us faster, but not behind a norm, where the routers then are 0.3 us slower.
constexpr SkinnyShape kClusterShapes[] = {
    cluster_shape<ClusterGeometry<2, 4, 7, 8>>(256, 16 * 32),
    cluster_shape<ClusterGeometry<1, 3, 3, 8>>(256, 16 * 16),
    cluster_shape<ClusterGeometry<1, 6, 12, 1>>(1024, 132 * 16),
};

}  // namespace

bool skinny_gemm_fits_cluster(const SkinnyGemm& gemm) {
  return shape_for(kClusterShapes, gemm) != nullptr;
}

cudaError_t skinny_gemm_cluster(const LaunchContext& ctx, const SkinnyGemm& gemm) {
  return launch_shape(shape_for(kClusterShapes, gemm), ctx, gemm);
}

}  // namespace cglint::kernels
