#include "kernels/attention/skinny_gemm_shape.h"
#include "kernels/attention/skinny_gemm_wave.h"
#include "kernels/common/device.cuh"
#include "kernels/common/mma.cuh"

namespace cglint::kernels {
namespace {

constexpr int kMaxTokens = kSkinnyShapeTokens;
constexpr int kChunkK = 32;  // k values of a chunk: 16 bytes a lane, 4 lanes a row

// A block has kTiles tiles of 8 weight rows and all of k; each of its warps has kChunks chunks of k of every
// row.
template <int kTilesOfBlock, int kChunksOfWarp, int kWarpsOfBlock>
struct WaveGeometry {
  static constexpr int kTiles = kTilesOfBlock;
  static constexpr int kChunks = kChunksOfWarp;
  static constexpr int kWarps = kWarpsOfBlock;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kRows = kTiles * 8;
  static constexpr int kK = kWarps * kChunks * kChunkK;
  // An odd multiple of 8 floats: no bank conflicts between tokens.
  static constexpr int kSumStride = kRows + (kTiles % 2 == 0 ? 8 : 0);
  static constexpr int kSumBytes = kWarps * kMaxTokens * kSumStride * 4;
  // 64 bytes of padding: the 8 lanes served together read two rows, which then lie in different banks.
  static constexpr int kRowBytes = kK * 2 + 64;
  template <bool kPdl>
  static constexpr int smem_bytes() {
    return kSumBytes + (kPdl ? kRows * kRowBytes : 0);
  }
};

// As in the other kernel the sum over k runs in an order that suits 16-byte loads, the same in both operands.
// Here tokens are on the 16-row side of the matrix instruction, rows 8 to 15 zero, and 8 weight rows are its
// columns, so that a block can take any number of tiles: as many as give one wave of blocks.
//
// A plain launch has nothing else on its multiprocessor and loads weights to registers. In a programmatic
// launch bulk copies put them in shared memory: a block then needs few registers, and its successor fits
// beside it and loads while it still works.
//
// `n` and `k` are for whoever reads the launch; G knows k.
template <typename G, bool kPdl>
__global__ void __launch_bounds__(G::kThreads, kPdl ? 2 : 1)
    wave_skinny_gemm_kernel(const bf16* x, int64_t x_token_stride, const bf16* weight, bf16* out,
                            int64_t out_token_stride, const bf16* residual, int tokens,
                            [[maybe_unused]] int n, [[maybe_unused]] int k) {
#ifdef CGLINT_SM90_CODE
  constexpr int kTiles = G::kTiles;
  constexpr int kChunks = G::kChunks;
  constexpr int kWarpSums = kMaxTokens * G::kSumStride;
  extern __shared__ __align__(128) unsigned char smem[];
  [[maybe_unused]] __shared__ __align__(8) uint64_t barriers[kTiles];
  float* const sums = reinterpret_cast<float*>(smem);  // [warps][tokens][kSumStride]
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread & 31;
  const int warp = thread >> 5;
  const int g = lane >> 2;
  const int t = lane & 3;
  const int first_row = static_cast<int>(blockIdx.x) * G::kRows;
  const int first_k = warp * kChunks * kChunkK;
  const bf16* const block_weight = weight + static_cast<int64_t>(first_row) * G::kK;

  uint4 token[kChunks];
  const bool has_token = g < tokens;
  const bf16* const x_row = x + (has_token ? g : 0) * x_token_stride + first_k + t * 8;
  const auto load_all_tokens = [&] {
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
      token[c] = has_token ? load_words_now(x_row + c * kChunkK) : make_uint4(0, 0, 0, 0);
  };
  [[maybe_unused]] uint4 held[kPdl ? 1 : kTiles][kChunks];
  [[maybe_unused]] const uint32_t rows_at = shared_address(smem) + G::kSumBytes;
  if constexpr (kPdl) {
    if (warp == 0) {
      if (lane < kTiles) barrier_init(shared_address(barriers + lane));
      barrier_init_fence();
      __syncwarp();
      if (lane < kTiles) barrier_expect(shared_address(barriers + lane), 8 * G::kK * 2);
      __syncwarp();
      for (int row = lane; row < G::kRows; row += 32) {
        copy_bulk(rows_at + static_cast<uint32_t>(row * G::kRowBytes),
                  block_weight + static_cast<int64_t>(row) * G::kK, G::kK * 2,
                  shared_address(barriers + row / 8));
      }
    }
    __syncthreads();
    pdl_begin<kPdl>();
    load_all_tokens();
  } else {
    load_all_tokens();
    const bf16* const lane_weight = block_weight + g * G::kK + first_k + t * 8;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) held[i][c] = load_weights(lane_weight + i * 8 * G::kK + c * kChunkK);
    }
  }

  float* const own = sums + warp * kWarpSums + g * G::kSumStride + 2 * t;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    float sum[4] = {};
    if constexpr (kPdl) barrier_wait(shared_address(barriers + i), 0);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      uint4 words;
      if constexpr (kPdl) {
        words = load_shared(rows_at + static_cast<uint32_t>((i * 8 + g) * G::kRowBytes +
                                                            (first_k + c * kChunkK + t * 8) * 2));
      } else {
        words = held[i][c];
      }
      const uint32_t first[4] = {token[c].x, 0, token[c].y, 0};
      const uint32_t second[4] = {token[c].z, 0, token[c].w, 0};
      mma_16816(sum, first, words.x, words.y);
      mma_16816(sum, second, words.z, words.w);
    }
    *reinterpret_cast<float2*>(own + i * 8) = make_float2(sum[0], sum[1]);
  }
  __syncthreads();

  for (int i = thread; i < tokens * G::kRows; i += G::kThreads) {
    const int at = i / G::kRows * G::kSumStride + i % G::kRows;
    float total = 0;
#pragma unroll
    for (int w = 0; w < G::kWarps; ++w) total += sums[w * kWarpSums + at];
    const int64_t position = i / G::kRows * out_token_stride + first_row + i % G::kRows;
    if (residual != nullptr) total += __bfloat162float(residual[position]);
    out[position] = __float2bfloat16_rn(total);
  }
#endif
}

template <typename G, bool kPdl>
cudaError_t launch_wave(const LaunchContext& ctx, const SkinnyGemm& gemm) {
  const auto kernel = wave_skinny_gemm_kernel<G, kPdl>;
  if (kPdl) {
    // Room for two launches' blocks side by side.
    const cudaError_t status = prefer_shared_memory(kernel);
    if (status != cudaSuccess) return status;
  }
  return launch(ctx, kernel, dim3(static_cast<unsigned>(gemm.n / G::kRows)), dim3(G::kThreads),
                G::template smem_bytes<kPdl>(), gemm.x, gemm.x_token_stride, gemm.weight, gemm.out,
                gemm.out_token_stride, gemm.residual, gemm.tokens, gemm.n, gemm.k);
}

// Warps and chunks follow from k alone: they set the order of the sums, which must not depend on the launch.
// `most_rows`: more would be a second wave on 132 multiprocessors, or a third of small blocks.
template <typename Plain, typename Programmatic = Plain>
constexpr SkinnyShape wave_shape(int row_multiple, int most_rows, int fewest_tokens = 1) {
  static_assert(Plain::kK == Programmatic::kK && Plain::kWarps == Programmatic::kWarps);
  return {.k = Plain::kK,
          .row_multiple = row_multiple,
          .fewest_rows = row_multiple,
          .most_rows = most_rows,
          .fewest_tokens = fewest_tokens,
          .plain = launch_wave<Plain, false>,
          .programmatic = launch_wave<Programmatic, true>};
}

// The fastest of those measured, the first that fits: docs/measurements/kernels-variants-2026-12-01.json.
// From 5 tokens on q_b of V3 with a norm in front is faster in programmatic launches of 96 blocks (5.2
// instead of 5.7 us at 8 tokens), though alone it is slower (3.5 instead of 3.2); probably because the norm's
// blocks find room.
constexpr SkinnyShape kWaveShapes[] = {
    wave_shape<WaveGeometry<4, 1, 8>>(32, 264 * 32),
    wave_shape<WaveGeometry<7, 4, 8>, WaveGeometry<4, 4, 8>>(7 * 32, 132 * 56),
    wave_shape<WaveGeometry<2, 3, 16>>(16, 132 * 16),
    wave_shape<WaveGeometry<3, 3, 16>, WaveGeometry<4, 3, 16>>(96, 132 * 24, 5),
    wave_shape<WaveGeometry<3, 3, 16>>(24, 132 * 24),
    wave_shape<WaveGeometry<3, 4, 16>>(24, 132 * 24),
};

const SkinnyShape* shape_of(const SkinnyGemm& gemm) {
  return gemm.split_k == 1 ? shape_for(kWaveShapes, gemm) : nullptr;
}

}  // namespace

bool skinny_gemm_fits_wave(const SkinnyGemm& gemm) {
  return shape_of(gemm) != nullptr;
}

cudaError_t skinny_gemm_wave(const LaunchContext& ctx, const SkinnyGemm& gemm) {
  return launch_shape(shape_of(gemm), ctx, gemm);
}

}  // namespace cglint::kernels
