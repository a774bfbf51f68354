// The grouped GEMM kernel template; instantiated per weight type in moe_gemm_bf16.cu and moe_gemm_fp8.cu.
#pragma once

#include "kernels/moe/moe_gemm_params.h"
#include "kernels/moe/ptx.cuh"

namespace cglint::kernels::moe {

// Few-token tiles are bound by how many bytes a multiprocessor has under way: room for 1024 threads on it, 64
// registers each. Larger tiles need their registers for sums.
template <int kBlockM, int kThreads>
inline constexpr int kMinBlocks = kBlockM <= 16 ? 1024 / kThreads : 1;

// One block makes a [block_m tokens x block_n weight rows] tile over its share of k.
//
// Stage layout in shared memory: weight rows, then token rows, each `kRowBytes` long with its 16-byte chunks
// xored by the row number modulo 8 (so that the eight rows ldmatrix reads at once hit different banks), then
// for fp8 per 128 of k the tokens' scales and the weights' scale.
template <WeightType kType, int kBlockM, int kBlockN, int kBlockK, int kWarps, int kWarpsM>
__global__ void __launch_bounds__(kWarps * 32, kMinBlocks<kBlockM, kWarps * 32>)
    moe_gemm_kernel(const __grid_constant__ MoeGemmParams p) {
  constexpr bool kFp8 = kType == WeightType::kFp8Block128;
  constexpr int kElementBytes = kFp8 ? 1 : 2;
  constexpr int kRowBytes = kBlockK * kElementBytes;
  constexpr int kChunks = kRowBytes / 16;
  constexpr int kThreads = kWarps * 32;
  constexpr int kWarpsN = kWarps / kWarpsM;
  constexpr int kTilesN = kBlockN / kWarpsN / 16;
  constexpr int kTilesM = kBlockM / kWarpsM / 8;
  constexpr int kScaleSteps = kFp8 ? kBlockK / kScaleBlock : 0;
  constexpr int kStageBytes = (kBlockM + kBlockN) * kRowBytes + kScaleSteps * (kBlockM + 4) * 4;
  constexpr int kStepsPerScale = kFp8 ? kScaleBlock / 32 : kChunks / 2;  // matrix steps (32 bytes of k)
  static_assert(kChunks % 8 == 0, "rows are whole 128-byte lines");
  static_assert(kThreads % kChunks == 0 && (kBlockN * kChunks) % kThreads == 0, "even copies");
  static_assert(kTilesN >= 1 && kTilesN * 16 * kWarpsN == kBlockN, "warps tile the weight rows");
  static_assert(kTilesM >= 1 && kTilesM * 8 * kWarpsM == kBlockM, "warps tile the tokens");
  static_assert(kTilesM == 1 || kTilesM % 2 == 0, "token fragments load in pairs");
  static_assert(!kFp8 || kBlockK % kScaleBlock == 0, "whole scale blocks");
  static_assert(kScaleBlock % kBlockN == 0, "one weight scale a tile");

  CGLINT_DYNAMIC_SMEM(smem);
  __shared__ int pair_of_row[kBlockM];  // -1: padding
  __shared__ int x_row_of_row[kBlockM];

  const MoeGemmArgs& a = p.args;
  const int tid = static_cast<int>(threadIdx.x);
  const int lane = tid & 31;
  const int warp = tid >> 5;

  if (!a.routing_is_settled) {
    pdl_wait();
    pdl_trigger();
  }

  // Launch order: group_m token blocks of one weight strip, then the next strip.
  const int in_group = p.group_m * p.blocks_n;
  const int linear = static_cast<int>(blockIdx.x);
  const int first_m = linear / in_group * p.group_m;
  const int group_rows = min(p.blocks_m - first_m, p.group_m);
  const int block_m = first_m + linear % in_group % group_rows;
  const int n0 = linear % in_group / group_rows * kBlockN;

  int expert = 0;
  const bool gathers = a.sorted_ids != nullptr;
  // The three loads below are independent: one memory latency, not three.
  int used_rows = p.blocks_m * kBlockM;
  if (gathers) {
    used_rows = *a.num_padded;
    expert = a.expert_ids[block_m];
  }
  for (int row = tid; row < kBlockM; row += kThreads) {
    const int pair = gathers ? a.sorted_ids[block_m * kBlockM + row] : block_m * kBlockM + row;
    const bool valid = pair < a.num_pairs;
    pair_of_row[row] = valid ? pair : -1;
    x_row_of_row[row] = valid ? pair / a.row_divisor : -1;
  }
  if (block_m * kBlockM >= used_rows) {
    if (a.routing_is_settled)
      pdl_wait();  // a later kernel may rely on this one for the order of earlier ones
    return;
  }
  __syncthreads();

  const int total_steps = (a.k + kBlockK - 1) / kBlockK;
  const int first_step = static_cast<int>(blockIdx.y) * p.steps_per_split;
  const int steps = max(0, min(p.steps_per_split, total_steps - first_step));
  const int64_t row_stride = static_cast<int64_t>(a.k) * kElementBytes;
  const int scale_columns = (a.k + kScaleBlock - 1) / kScaleBlock;
  const char* w_tile = static_cast<const char*>(a.w) + (static_cast<int64_t>(expert) * a.n + n0) * row_stride;
  const int chunk = tid % kChunks;
  const int first_row = tid / kChunks;

  const auto load_weights = [&](int step, int slot) {
    unsigned char* stage = smem + slot * kStageBytes;
    const int64_t k_byte = static_cast<int64_t>(first_step + step) * kRowBytes + chunk * 16;
    const bool k_valid = k_byte < row_stride;
#pragma unroll
    for (int i = 0; i < kBlockN * kChunks / kThreads; ++i) {
      const int row = first_row + i * (kThreads / kChunks);
      const bool valid = k_valid && n0 + row < a.n;
      const char* source = valid ? w_tile + row * row_stride + k_byte : static_cast<const char*>(a.w);
      cp_async_16(stage + row * kRowBytes + ((chunk ^ (row & 7)) << 4), source, valid);
    }
    if constexpr (kFp8) {
      if (tid < kScaleSteps) {
        const int column = (first_step + step) * kScaleSteps + tid;
        const int scale_rows = (a.n + kScaleBlock - 1) / kScaleBlock;
        const bool valid = column < scale_columns;
        const int64_t at =
            (static_cast<int64_t>(expert) * scale_rows + n0 / kScaleBlock) * scale_columns + column;
        auto* scales = reinterpret_cast<float*>(stage + (kBlockM + kBlockN) * kRowBytes);
        cp_async_4(scales + tid * (kBlockM + 4) + kBlockM, a.w_scale + (valid ? at : 0), valid);
      }
    }
  };

  const auto load_tokens = [&](int step, int slot) {
    unsigned char* stage = smem + slot * kStageBytes + kBlockN * kRowBytes;
    const int64_t k_byte = static_cast<int64_t>(first_step + step) * kRowBytes + chunk * 16;
#pragma unroll
    for (int row = first_row; row < kBlockM; row += kThreads / kChunks) {
      const int x_row = x_row_of_row[row];
      const bool valid = x_row >= 0 && k_byte < row_stride;
      const char* source = static_cast<const char*>(a.x) + (valid ? x_row * row_stride + k_byte : 0);
      cp_async_16(stage + row * kRowBytes + ((chunk ^ (row & 7)) << 4), source, valid);
    }
    if constexpr (kFp8) {
      auto* scales = reinterpret_cast<float*>(stage + kBlockM * kRowBytes);
#pragma unroll
      for (int i = tid; i < kBlockM * kScaleSteps; i += kThreads) {
        const int row = i % kBlockM;
        const int part = i / kBlockM;
        const int column = (first_step + step) * kScaleSteps + part;
        const int x_row = x_row_of_row[row];
        const bool valid = x_row >= 0 && column < scale_columns;
        const int64_t at = valid ? static_cast<int64_t>(x_row) * scale_columns + column : 0;
        cp_async_4(scales + part * (kBlockM + 4) + row, a.x_scale + at, valid);
      }
    }
  };

  float acc[kTilesN][kTilesM][4] = {};

  // One group of copies a step, also where there is nothing left to copy, so that the count of pending groups
  // means the same in every iteration.
  const int ahead = p.stages - 1;
  if (a.routing_is_settled) {
    for (int s = 0; s < ahead; ++s) {
      if (s < steps) load_weights(s, s);
    }
    pdl_wait();
    pdl_trigger();
    for (int s = 0; s < ahead; ++s) {
      if (s < steps) load_tokens(s, s);
      cp_async_commit();
    }
  } else {
    for (int s = 0; s < ahead; ++s) {
      if (s < steps) {
        load_weights(s, s);
        load_tokens(s, s);
      }
      cp_async_commit();
    }
  }

  const int warp_n = warp % kWarpsN * (kTilesN * 16);
  const int warp_m = warp / kWarpsN * (kTilesM * 8);
  int slot = 0;
  for (int step = 0; step < steps; ++step) {
    cp_async_wait(ahead - 1);
    __syncthreads();  // this step's data is there; the slot filled below has been read by every warp
    const int next = step + ahead;
    if (next < steps) {
      const int next_slot = slot == 0 ? ahead : slot - 1;
      load_weights(next, next_slot);
      load_tokens(next, next_slot);
    }
    cp_async_commit();

    const unsigned char* w_stage = smem + slot * kStageBytes;
    const unsigned char* x_stage = w_stage + kBlockN * kRowBytes;
#pragma unroll
    for (int part = 0; part < kChunks / 2 / kStepsPerScale; ++part) {
      float scaled[kTilesN][kTilesM][4] = {};
#pragma unroll
      for (int inner = 0; inner < kStepsPerScale; ++inner) {
        const int first_chunk = (part * kStepsPerScale + inner) * 2;
        uint32_t weights[kTilesN][4];
        uint32_t tokens[kTilesM][2];
#pragma unroll
        for (int i = 0; i < kTilesN; ++i) {
          const int row = warp_n + i * 16 + (lane & 15);
          const int at = first_chunk + (lane >> 4);
          ldmatrix_x4(weights[i], w_stage + row * kRowBytes + ((at ^ (row & 7)) << 4));
        }
        if constexpr (kTilesM == 1) {
          const int row = warp_m + (lane & 7);
          const int at = first_chunk + ((lane >> 3) & 1);
          ldmatrix_x2(tokens[0], x_stage + row * kRowBytes + ((at ^ (row & 7)) << 4));
        } else {
#pragma unroll
          for (int j = 0; j < kTilesM; j += 2) {
            const int row = warp_m + j * 8 + (lane & 7) + ((lane >> 4) << 3);
            const int at = first_chunk + ((lane >> 3) & 1);
            uint32_t both[4];
            ldmatrix_x4(both, x_stage + row * kRowBytes + ((at ^ (row & 7)) << 4));
            tokens[j][0] = both[0];
            tokens[j][1] = both[1];
            tokens[j + 1][0] = both[2];
            tokens[j + 1][1] = both[3];
          }
        }
#pragma unroll
        for (int i = 0; i < kTilesN; ++i) {
#pragma unroll
          for (int j = 0; j < kTilesM; ++j) {
            if constexpr (kFp8) {
              mma_e4m3(scaled[i][j], weights[i], tokens[j]);
            } else {
              mma_bf16(acc[i][j], weights[i], tokens[j]);
            }
          }
        }
      }
      if constexpr (kFp8) {
        const auto* scales =
            reinterpret_cast<const float*>(x_stage + kBlockM * kRowBytes) + part * (kBlockM + 4);
        const float w_scale = scales[kBlockM];
#pragma unroll
        for (int j = 0; j < kTilesM; ++j) {
          const int token = warp_m + j * 8 + (lane & 3) * 2;
          const float scale0 = scales[token] * w_scale;
          const float scale1 = scales[token + 1] * w_scale;
#pragma unroll
          for (int i = 0; i < kTilesN; ++i) {
            acc[i][j][0] += scaled[i][j][0] * scale0;
            acc[i][j][1] += scaled[i][j][1] * scale1;
            acc[i][j][2] += scaled[i][j][2] * scale0;
            acc[i][j][3] += scaled[i][j][3] * scale1;
          }
        }
      }
    }
    slot = slot == ahead ? 0 : slot + 1;
  }
  cp_async_wait(0);
  __syncthreads();

  // Transpose through shared memory: fragments have neighbouring weight rows in different lanes, the output
  // wants them side by side. A row of kBlockN + 4 floats keeps the fragments' stores free of bank conflicts.
  auto* tile = reinterpret_cast<float*>(smem);
  constexpr int kTileStride = kBlockN + 4;
#pragma unroll
  for (int i = 0; i < kTilesN; ++i) {
#pragma unroll
    for (int j = 0; j < kTilesM; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = warp_n + i * 16 + (lane >> 2) + (e >> 1) * 8;
        const int token = warp_m + j * 8 + (lane & 3) * 2 + (e & 1);
        tile[token * kTileStride + row] = acc[i][j][e];
      }
    }
  }
  __syncthreads();
  if (a.out_fp32) {
    auto* out = static_cast<float*>(a.out) + static_cast<int64_t>(blockIdx.y) * a.num_pairs * a.n;
    for (int i = tid; i < kBlockM * (kBlockN / 4); i += kThreads) {
      const int token = i / (kBlockN / 4);
      const int column = i % (kBlockN / 4) * 4;
      const int pair = pair_of_row[token];
      if (pair < 0 || n0 + column >= a.n) continue;
      *reinterpret_cast<float4*>(out + static_cast<int64_t>(pair) * a.n + n0 + column) =
          *reinterpret_cast<const float4*>(tile + token * kTileStride + column);
    }
  } else {
    auto* out = static_cast<__nv_bfloat16*>(a.out);
    for (int i = tid; i < kBlockM * (kBlockN / 8); i += kThreads) {
      const int token = i / (kBlockN / 8);
      const int column = i % (kBlockN / 8) * 8;
      const int pair = pair_of_row[token];
      if (pair < 0 || n0 + column >= a.n) continue;
      float values[8];
#pragma unroll
      for (int e = 0; e < 8; ++e) values[e] = tile[token * kTileStride + column + e];
      store8(out + static_cast<int64_t>(pair) * a.n + n0 + column, pack(values));
    }
  }
}

template <WeightType kType, int kBlockM, int kBlockN, int kBlockK, int kWarps, int kWarpsM>
cudaError_t launch_variant(const LaunchContext& ctx, const TileConfig& config, const MoeGemmParams& params) {
  const dim3 grid(static_cast<unsigned>(params.blocks_m) * static_cast<unsigned>(params.blocks_n),
                  static_cast<unsigned>(config.split_k));
  return launch(ctx, moe_gemm_kernel<kType, kBlockM, kBlockN, kBlockK, kWarps, kWarpsM>, grid,
                dim3(kWarps * 32), static_cast<size_t>(params.smem_bytes), params);
}

}  // namespace cglint::kernels::moe
