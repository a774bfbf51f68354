// The products of an fp8 layer for a few tokens (TileConfig::is_direct).
#include "kernels/common/device.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/moe/moe_gemm_params.h"
#include "kernels/moe/ptx.cuh"

namespace cglint::kernels::moe {
namespace {

// How weights come from memory. Sums are the same to the last bit.
enum class Load {
  kRegisters,  // straight to the registers of the matrix instruction
  kTile,       // 16 whole rows by one bulk copy to shared memory: fewest requests, for the smallest products
  kRows,       // every row of a warp by a bulk copy of its own, so that a warp waits for its share of k alone
};

// A warp makes 16 weight rows x 8 tokens from kPieces x 64 values of k; kWarpsK warps share a tile of rows.
// All of a block's weights are under way at once: k is kWarpsK * kPieces * 64.
template <int kWarpsN_, int kWarpsK_, int kPieces_, Load kLoad_, int kMinBlocks_>
struct Direct {
  static constexpr int kWarpsN = kWarpsN_;
  static constexpr int kWarpsK = kWarpsK_;
  static constexpr int kPieces = kPieces_;
  static constexpr Load kLoad = kLoad_;
  static constexpr int kMinBlocks = kMinBlocks_;
  static constexpr int kWarps = kWarpsN * kWarpsK;
  static constexpr int kRows = kWarpsN * 16;   // of the weights, a block
  static constexpr int kShare = kPieces * 64;  // values of k, a warp
  static constexpr int kK = kWarpsK * kShare;
  static constexpr int kWeightBytes = kLoad == Load::kRegisters ? 0 : kRows * kK;
  // Sums over k meet where a warp's own rows were, or beside the weights.
  static constexpr int kSumPitch = kLoad == Load::kRows ? 16 * kShare : 512;
  static constexpr int kSumsAt = kLoad == Load::kRows ? 0 : kWeightBytes;
  static constexpr int kSmemBytes = kSumsAt + (kWarpsK > 1 || kLoad == Load::kRows ? kWarps * kSumPitch : 0);
  static_assert(kPieces % 2 == 0, "whole scale blocks");
};

// Which k an instruction calls its first does not matter as long as both operands agree: lane 4 g + t takes
// bytes 16 t .. 16 t + 15 of rows g and g + 8 for every 64 of k, and the same bytes of token g.
template <typename D, bool kPdl>
__global__ void __launch_bounds__(D::kWarps * 32, D::kMinBlocks)
    moe_gemm_direct_kernel(const __grid_constant__ MoeGemmDirectParams p) {
#ifdef CGLINT_SM90_CODE
  constexpr int kPieces = D::kPieces;
  constexpr int kScales = kPieces / 2;  // a warp
  constexpr int kColumns = D::kK / kScaleBlock;
  constexpr int kBarriers = D::kLoad == Load::kTile ? D::kWarpsN : D::kWarps;
  constexpr int kPitch =
      D::kLoad == Load::kTile ? D::kK : D::kShare;  // bytes from row to row in shared memory
  CGLINT_DYNAMIC_SMEM(smem);
  __shared__ __align__(8) uint64_t barriers[kBarriers];
  const MoeGemmArgs& a = p.args;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread & 31;
  const int warp = thread >> 5;
  const int g = lane >> 2;
  const int t = lane & 3;
  const int warp_n = warp % D::kWarpsN;
  const int warp_k = warp / D::kWarpsN;
  const int block_m = static_cast<int>(blockIdx.x) / p.blocks_n;
  const int n0 = (static_cast<int>(blockIdx.x) % p.blocks_n * D::kWarpsN + warp_n) * 16;
  if (kPdl && !a.routing_is_settled) {
    pdl_wait();
    pdl_trigger();
  }
  // Independent loads: one memory latency, not three.
  const int expert = a.expert_ids[block_m];
  const int used = *a.num_padded;
  const int pair = a.sorted_ids[block_m * 8 + g];
  // The lane that makes a barrier also announces the bytes; other warps meet it behind __syncthreads().
  const bool copies =
      D::kLoad == Load::kRows ? lane == 0 : D::kLoad == Load::kTile && lane == 0 && warp_k == 0;
  const uint32_t barrier = shared_address(barriers + (D::kLoad == Load::kRows ? warp : warp_n));
  if (copies) {
    barrier_init(barrier);
    barrier_init_fence();
  }
  if (block_m * 8 >= used) {
    if (kPdl && a.routing_is_settled)
      pdl_wait();  // a later kernel may rely on this one for the order of earlier ones
    return;
  }
  const char* tile = static_cast<const char*>(a.w) + (static_cast<int64_t>(expert) * a.n + n0) * D::kK;
  [[maybe_unused]] uint4 weights[D::kLoad == Load::kRegisters ? kPieces : 1][2];
  // This warp's first row in shared memory.
  [[maybe_unused]] unsigned char* rows = smem + (D::kLoad == Load::kRows ? warp : warp_n) * 16 * kPitch;
  if constexpr (D::kLoad == Load::kRegisters) {
    const char* row = tile + g * D::kK + warp_k * D::kShare + t * 16;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) weights[i][r] = load_weights(row + r * 8 * D::kK + i * 64);
    }
  } else if constexpr (D::kLoad == Load::kTile) {
    if (copies) {
      barrier_expect(barrier, 16 * D::kK);
      copy_bulk(shared_address(rows), tile, 16 * D::kK, barrier);
    }
  } else {
    if (copies) barrier_expect(barrier, 16 * D::kShare);
    __syncwarp();
    if (lane < 16)
      copy_bulk(shared_address(rows + lane * D::kShare), tile + lane * D::kK + warp_k * D::kShare, D::kShare,
                barrier);
  }
  const float* weight_scale =
      a.w_scale +
      (static_cast<int64_t>(expert) * ((a.n + kScaleBlock - 1) / kScaleBlock) + n0 / kScaleBlock) * kColumns +
      warp_k * kScales;
  float scales[kScales];
#pragma unroll
  for (int s = 0; s < kScales; ++s) scales[s] = __ldg(weight_scale + s);
  if (kPdl && a.routing_is_settled) {
    pdl_wait();
    pdl_trigger();
  }
  const int x_row = pair < a.num_pairs ? pair / a.row_divisor : -1;
  const char* x = static_cast<const char*>(a.x) + static_cast<int64_t>(max(x_row, 0)) * D::kK +
                  warp_k * D::kShare + t * 16;
  uint4 tokens[kPieces];
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    tokens[i] = make_uint4(0, 0, 0, 0);
    if (x_row >= 0) tokens[i] = *reinterpret_cast<const uint4*>(x + i * 64);
  }
  float x_scales[kScales];  // of token g
#pragma unroll
  for (int s = 0; s < kScales; ++s)
    x_scales[s] =
        x_row >= 0 ? a.x_scale[static_cast<int64_t>(x_row) * kColumns + warp_k * kScales + s] : 0.0f;

  if constexpr (D::kLoad == Load::kTile) __syncthreads();
  if constexpr (D::kLoad != Load::kRegisters) barrier_wait(barrier, 0);
  float scaled[kScales][4] = {};
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    uint4 low, high;
    if constexpr (D::kLoad == Load::kRegisters) {
      low = weights[i][0];
      high = weights[i][1];
    } else {
      const unsigned char* from =
          rows + g * kPitch + (D::kLoad == Load::kTile ? warp_k * D::kShare : 0) + i * 64 + t * 16;
      low = *reinterpret_cast<const uint4*>(from);
      high = *reinterpret_cast<const uint4*>(from + 8 * kPitch);
    }
    const uint32_t a0[4] = {low.x, high.x, low.y, high.y};
    const uint32_t b0[2] = {tokens[i].x, tokens[i].y};
    mma_e4m3(scaled[i / 2], a0, b0);
    const uint32_t a1[4] = {low.z, high.z, low.w, high.w};
    const uint32_t b1[2] = {tokens[i].z, tokens[i].w};
    mma_e4m3(scaled[i / 2], a1, b1);
  }
  // A lane holds rows g and g + 8 of tokens 2 t and 2 t + 1.
  float acc[4] = {};
#pragma unroll
  for (int s = 0; s < kScales; ++s) {
    const float scale = x_scales[s] * scales[s];
    const float scale0 = __shfl_sync(0xffffffffu, scale, 8 * t);
    const float scale1 = __shfl_sync(0xffffffffu, scale, 8 * t + 4);
    acc[0] += scaled[s][0] * scale0;
    acc[1] += scaled[s][1] * scale1;
    acc[2] += scaled[s][2] * scale0;
    acc[3] += scaled[s][3] * scale1;
  }
  if constexpr (D::kWarpsK > 1) {
    const auto sums_of = [&](int k_share) {
      return reinterpret_cast<float4*>(smem + D::kSumsAt + (k_share * D::kWarpsN + warp_n) * D::kSumPitch) +
             lane;
    };
    __syncwarp();  // a warp's sums may lie on its weights
    *sums_of(warp_k) = make_float4(acc[0], acc[1], acc[2], acc[3]);
    __syncthreads();
    if (warp_k != 0) return;
#pragma unroll
    for (int other = 1; other < D::kWarpsK; ++other) {
      const float4 theirs = *sums_of(other);
      acc[0] += theirs.x;
      acc[1] += theirs.y;
      acc[2] += theirs.z;
      acc[3] += theirs.w;
    }
  }
  const int pair0 = __shfl_sync(0xffffffffu, pair, 8 * t);
  const int pair1 = __shfl_sync(0xffffffffu, pair, 8 * t + 4);
  const int64_t at0 = static_cast<int64_t>(pair0) * a.n + n0 + g;
  const int64_t at1 = static_cast<int64_t>(pair1) * a.n + n0 + g;
  auto* out = static_cast<__nv_bfloat16*>(a.out);
  if (pair0 < a.num_pairs) {
    out[at0] = __float2bfloat16_rn(acc[0]);
    out[at0 + 8] = __float2bfloat16_rn(acc[2]);
  }
  if (pair1 < a.num_pairs) {
    out[at1] = __float2bfloat16_rn(acc[1]);
    out[at1 + 8] = __float2bfloat16_rn(acc[3]);
  }
#endif
}

template <typename D>
cudaError_t launch_as(const LaunchContext& ctx, const MoeGemmArgs& args) {
  const MoeGemmDirectParams p{args, args.n / D::kRows};
  const dim3 grid(static_cast<unsigned>(args.max_blocks) * static_cast<unsigned>(p.blocks_n));
  const auto kernel = ctx.pdl ? moe_gemm_direct_kernel<D, true> : moe_gemm_direct_kernel<D, false>;
  return launch(ctx, kernel, grid, dim3(D::kWarps * 32), D::kSmemBytes, p);
}

// Of one k: what a few blocks, more and many are launched as. `Tile` for 30 MB of weights at most, with
// programmatic launches for 16 MB, then `Rows` up to 64 MB (shared memory that a predecessor holds keeps
// blocks of its successor out), else `Registers`.
template <typename Tile, typename Rows, typename Registers>
cudaError_t launch_by_size(const LaunchContext& ctx, const MoeGemmArgs& args) {
  const double bytes = static_cast<double>(args.num_pairs) * args.n * args.k;
  if (bytes < (ctx.pdl ? 16e6 : 30e6)) return launch_as<Tile>(ctx, args);
  return ctx.pdl && bytes < 64e6 ? launch_as<Rows>(ctx, args) : launch_as<Registers>(ctx, args);
}

}  // namespace

bool takes_moe_gemm_direct(const TileConfig& config, const MoeGemmArgs& args) {
  const bool has_geometry =
      args.k == 256 || args.k == 512 || args.k == 2048 || args.k == 2304 || args.k == 7168;
  return config.is_direct && config.block_m == 8 && config.split_k == 1 && !args.out_fp32 &&
         args.sorted_ids != nullptr && args.max_blocks > 0 && args.n % 128 == 0 && has_geometry &&
         current_device_runs_sm90_code();
}

// The fastest of those measured. Which of them may depend on how it is launched where sums are the same:
// where warps share k alike.
cudaError_t launch_moe_gemm_direct(const LaunchContext& ctx, const MoeGemmArgs& args) {
  using enum Load;
  const bool one_token = args.num_pairs <= 8;
  switch (args.k) {
    case 256:
      return launch_by_size<Direct<4, 1, 4, kTile, 7>, Direct<4, 1, 4, kRows, 8>,
                            Direct<4, 1, 4, kRegisters, 6>>(ctx, args);
    case 512:
      return launch_by_size<Direct<2, 2, 4, kTile, 6>, Direct<2, 2, 4, kRows, 8>,
                            Direct<2, 2, 4, kRegisters, 6>>(ctx, args);
    case 2048:
      return launch_as<Direct<1, 4, 8, kTile, 6>>(ctx, args);
    case 2304:
      return args.num_pairs <= 64 ? launch_as<Direct<1, 9, 4, kRows, 4>>(ctx, args)
                                  : launch_as<Direct<1, 6, 6, kTile, 6>>(ctx, args);
    case 7168:
      return one_token ? launch_as<Direct<1, 14, 8, kRows, 2>>(ctx, args)
                       : launch_as<Direct<1, 7, 16, kRows, 2>>(ctx, args);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace cglint::kernels::moe
