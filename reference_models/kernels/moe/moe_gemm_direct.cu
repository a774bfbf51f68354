// The second product of an fp8 layer for a few tokens (TileConfig::is_direct).
#include "kernels/common/device.cuh"
#include "kernels/moe/moe_gemm_params.h"
#include "kernels/moe/ptx.cuh"

// Compiled for sm_90a alone (wgmma).
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900
#define CGLINT_DIRECT_KERNELS 1
#endif

namespace cglint::kernels::moe {
namespace {

#ifdef CGLINT_DIRECT_KERNELS
__device__ __forceinline__ uint4 load_weights16(const char* pointer) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(pointer));
  return v;
}

__device__ __forceinline__ void wgmma_e4m3(float (&d)[4], const uint32_t (&a)[4], uint64_t b, int accumulates) {
  asm volatile(
      "{\n"
      ".reg .pred q;\n"
      "setp.ne.b32 q, %9, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, q, 1, 1;\n"
      "}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulates));
}

#endif

enum class Instruction { kMma, kWgmma };

// A warp makes 16 weight rows x 8 tokens; a lane takes 16 bytes of a row for every 64 of k. kPieces such loads are a chunk;
// kBuffers chunks are under way. 0: k is one chunk.
template <int kWarps_, Instruction kInstruction_, int kPieces_, int kBuffers_, int kMinBlocks_>
struct Direct {
  static constexpr int kWarps = kWarps_;
  static constexpr Instruction kInstruction = kInstruction_;
  static constexpr int kPieces = kPieces_;
  [[maybe_unused]] static constexpr int kBuffers = kBuffers_;
  static constexpr int kMinBlocks = kMinBlocks_;
  static constexpr int kChunk = kPieces * 64;  // values of k
  static constexpr int kRows = kWarps * 16;    // of the weights, a block
};

// Weights go from memory straight to the registers that the matrix instruction reads: which k an instruction calls its first does not
// matter as long as both operands agree. No stage in shared memory, no barrier where weights arrive, and all of a block's loads are
// under way at once.
//
// kMma: mma.sync, which converts to f16 on sm_90 and is exact there. kWgmma: tokens in shared memory, no conversion, but sums of
// fewer bits: an error of up to 1.4e-3 where mma.sync has 1e-6. It is not taken for fp32 parts, which are held to 1e-3.
template <typename D>
__global__ void __launch_bounds__(D::kWarps * 32, D::kMinBlocks) moe_gemm_direct_kernel(const __grid_constant__ MoeGemmDirectParams p) {
#ifdef CGLINT_DIRECT_KERNELS
  constexpr int kWarps = D::kWarps;
  constexpr int kPieces = D::kPieces;
  CGLINT_DYNAMIC_SMEM(smem);
  const MoeGemmArgs& a = p.args;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread & 31;
  const int warp = thread >> 5;
  const int g = lane >> 2;
  const int t = lane & 3;
  const int block_m = static_cast<int>(blockIdx.x) / p.blocks_n;
  const int n0 = (static_cast<int>(blockIdx.x) % p.blocks_n * kWarps + warp) * 16;
  if (p.programmatic && !a.routing_is_settled) {
    pdl_wait();
    pdl_trigger();
  }
  // Independent loads: one memory latency, not three.
  const int expert = a.expert_ids[block_m];
  const int used = *a.num_padded;
  const int pair = a.sorted_ids[block_m * 8 + g];
  if (block_m * 8 >= used) {
    if (p.programmatic && a.routing_is_settled) pdl_wait();  // a later kernel may rely on this one for the order of earlier ones
    return;
  }
  constexpr bool kSingle = D::kBuffers == 0;
  constexpr int kBuffers = kSingle ? 1 : D::kBuffers;
  constexpr int kChunkBytes = kPieces * 64;
  constexpr int kScales = kChunkBytes / 128;
  const int columns = kSingle ? kScales : (a.k + 127) / 128;
  const int chunks = kSingle ? 1 : a.k / kChunkBytes;
  const int first = kSingle ? 0 : static_cast<int>(blockIdx.y) * p.chunks_per_split;
  const int count = kSingle ? 1 : min(p.chunks_per_split, chunks - first);
  const char* row = static_cast<const char*>(a.w) + (static_cast<int64_t>(expert) * a.n + n0 + g) * a.k +
                    static_cast<int64_t>(first) * kChunkBytes + t * 16;
  const int64_t eight_rows = static_cast<int64_t>(a.k) * 8;
  const float* w_scale = a.w_scale + (static_cast<int64_t>(expert) * ((a.n + 127) / 128) + n0 / 128) * columns + first * kScales;

  uint4 weights[kBuffers][kPieces][2];
  float weight_scale[kBuffers][kScales];
  const auto load = [&](int c, int buffer) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
#pragma unroll
      for (int r = 0; r < 2; ++r) weights[buffer][i][r] = load_weights16(row + r * eight_rows + c * kChunkBytes + i * 64);
    }
#pragma unroll
    for (int s = 0; s < kScales; ++s) weight_scale[buffer][s] = __ldg(w_scale + c * kScales + s);
  };
#pragma unroll
  for (int b = 0; b < kBuffers; ++b) {
    if (b < count) load(b, b);
  }
  if (p.programmatic && a.routing_is_settled) {
    pdl_wait();
    pdl_trigger();
  }
  const int x_row = pair < a.num_pairs ? pair / a.row_divisor : -1;
  const int pair0 = __shfl_sync(0xffffffffu, pair, 8 * t);
  const int pair1 = __shfl_sync(0xffffffffu, pair, 8 * t + 4);
  const int x_row0 = __shfl_sync(0xffffffffu, x_row, 8 * t);
  const int x_row1 = __shfl_sync(0xffffffffu, x_row, 8 * t + 4);
  const char* x = static_cast<const char*>(a.x) + static_cast<int64_t>(max(x_row, 0)) * a.k +
                  static_cast<int64_t>(first) * kChunkBytes + t * 16;
  if constexpr (D::kInstruction == Instruction::kWgmma) {
    // [step of 32][half][token][16 bytes]: what the registers of a lane hold as the step's k.
    for (int i = warp; i < count * kPieces; i += kWarps) {
      uint4 v = make_uint4(0, 0, 0, 0);
      if (x_row >= 0) v = *reinterpret_cast<const uint4*>(x + i * 64);
      const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int j = 0; j < 4; ++j)
        *reinterpret_cast<uint32_t*>(smem + ((i * 2 + (j >> 1)) * 2 + (j & 1)) * 128 + g * 16 + t * 4) = words[j];
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
  }
  float acc[4] = {};
  for (int c = 0; c < count; c += kBuffers) {
#pragma unroll
    for (int b = 0; b < kBuffers; ++b) {
      if (c + b >= count) break;
      float x_scale[2][kScales];
#pragma unroll
      for (int s = 0; s < kScales; ++s) {
        const int column = (first + c + b) * kScales + s;
        x_scale[0][s] = x_row0 >= 0 ? a.x_scale[static_cast<int64_t>(x_row0) * columns + column] : 0.0f;
        x_scale[1][s] = x_row1 >= 0 ? a.x_scale[static_cast<int64_t>(x_row1) * columns + column] : 0.0f;
      }
      float scaled[kScales][4] = {};
      if constexpr (D::kInstruction == Instruction::kMma) {
        uint4 tokens[kPieces];
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
          tokens[i] = make_uint4(0, 0, 0, 0);
          if (x_row >= 0) tokens[i] = *reinterpret_cast<const uint4*>(x + (c + b) * kChunkBytes + i * 64);
        }
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
          const uint4 low = weights[b][i][0];
          const uint4 high = weights[b][i][1];
          const uint32_t a0[4] = {low.x, high.x, low.y, high.y};
          const uint32_t b0[2] = {tokens[i].x, tokens[i].y};
          mma_e4m3(scaled[i / 2], a0, b0);
          const uint32_t a1[4] = {low.z, high.z, low.w, high.w};
          const uint32_t b1[2] = {tokens[i].z, tokens[i].w};
          mma_e4m3(scaled[i / 2], a1, b1);
        }
      } else {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        const uint32_t base = smem_address(smem) + static_cast<uint32_t>((c + b) * kPieces * 512);
#pragma unroll
        for (int i = 0; i < kPieces; ++i) {
          const uint4 low = weights[b][i][0];
          const uint4 high = weights[b][i][1];
          const uint64_t fields = (uint64_t{8} << 16) | (uint64_t{8} << 32);
          const uint32_t a0[4] = {low.x, high.x, low.y, high.y};
          wgmma_e4m3(scaled[i / 2], a0, fields | ((base + static_cast<uint32_t>(i * 512)) >> 4), i % 2);
          const uint32_t a1[4] = {low.z, high.z, low.w, high.w};
          wgmma_e4m3(scaled[i / 2], a1, fields | ((base + static_cast<uint32_t>(i * 512 + 256)) >> 4), 1);
        }
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
        for (int s = 0; s < kScales; ++s) asm volatile("" : "+f"(scaled[s][0]), "+f"(scaled[s][1]), "+f"(scaled[s][2]), "+f"(scaled[s][3]));
      }
#pragma unroll
      for (int s = 0; s < kScales; ++s) {
        const float scale0 = x_scale[0][s] * weight_scale[b][s];
        const float scale1 = x_scale[1][s] * weight_scale[b][s];
        acc[0] += scaled[s][0] * scale0;
        acc[1] += scaled[s][1] * scale1;
        acc[2] += scaled[s][2] * scale0;
        acc[3] += scaled[s][3] * scale1;
      }
      if (c + b + kBuffers < count) load(c + b + kBuffers, b);
    }
  }
  const int64_t at0 = static_cast<int64_t>(pair0) * a.n + n0 + g;
  const int64_t at1 = static_cast<int64_t>(pair1) * a.n + n0 + g;
  if (a.out_fp32) {
    auto* out = static_cast<float*>(a.out) + static_cast<int64_t>(blockIdx.y) * a.num_pairs * a.n;
    if (pair0 < a.num_pairs) {
      out[at0] = acc[0];
      out[at0 + 8] = acc[2];
    }
    if (pair1 < a.num_pairs) {
      out[at1] = acc[1];
      out[at1 + 8] = acc[3];
    }
  } else {
    auto* out = static_cast<__nv_bfloat16*>(a.out);
    if (pair0 < a.num_pairs) {
      out[at0] = __float2bfloat16_rn(acc[0]);
      out[at0 + 8] = __float2bfloat16_rn(acc[2]);
    }
    if (pair1 < a.num_pairs) {
      out[at1] = __float2bfloat16_rn(acc[1]);
      out[at1 + 8] = __float2bfloat16_rn(acc[3]);
    }
  }
#endif
}

template <typename D>
cudaError_t launch_as(const LaunchContext& ctx, const MoeGemmArgs& args, int splits) {
  const int chunks = args.k / D::kChunk;
  MoeGemmDirectParams p{args, args.n / D::kRows, (chunks + splits - 1) / splits, ctx.pdl};
  const dim3 grid(static_cast<unsigned>(args.max_blocks) * static_cast<unsigned>(p.blocks_n), static_cast<unsigned>(splits));
  const size_t smem = D::kInstruction == Instruction::kWgmma ? static_cast<size_t>(p.chunks_per_split * D::kPieces) * 512 : 0;
  return launch(ctx, moe_gemm_direct_kernel<D>, grid, dim3(D::kWarps * 32), smem, p);
}

bool is_sm90() {
  int device = 0;
  return cudaGetDevice(&device) == cudaSuccess && runs_sm90_code(device);
}

}  // namespace

bool takes_moe_gemm_direct(const TileConfig& config, const MoeGemmArgs& args) {
  constexpr int kChunk = 256;  // the longest of the variants below
  return config.is_direct && config.block_m == 8 && args.sorted_ids != nullptr && args.max_blocks > 0 && args.n % 128 == 0 &&
         args.k % kChunk == 0 && config.split_k <= args.k / kChunk && is_sm90();
}

// The fastest of those measured: docs/measurements/kernels-variants-2026-12-01.json.
cudaError_t launch_moe_gemm_direct(const LaunchContext& ctx, const TileConfig& config, const MoeGemmArgs& args) {
  using enum Instruction;
  if (args.k == 256)
    return ctx.pdl && args.num_pairs <= 8 && !args.out_fp32 ? launch_as<Direct<8, kWgmma, 4, 0, 4>>(ctx, args, 1)
                                                            : launch_as<Direct<4, kMma, 4, 0, 6>>(ctx, args, 1);
  if (args.k == 512 && args.n >= 4096 && !args.out_fp32) return launch_as<Direct<4, kWgmma, 2, 2, 7>>(ctx, args, 1);
  return launch_as<Direct<4, kMma, 4, 1, 5>>(ctx, args, config.split_k);
}

}  // namespace cglint::kernels::moe
