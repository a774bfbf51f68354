// Tile configurations of the grouped GEMM: which are compiled, which an engine would pick untuned, which is
// nearest to a foreign one. Plain C++; no CUDA.
#pragma once

#include <cstdint>
#include <span>

namespace cglint::kernels::moe {

enum class WeightType : uint8_t { kBf16, kFp8Block128 };

// The seven numbers of a vLLM fused-MoE configuration entry (BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_K,
// GROUP_SIZE_M, SPLIT_K, num_warps, num_stages). block_* count tokens, weight rows and elements of K.
struct TileConfig {
  int block_m = 64;
  int block_n = 64;
  int block_k = 64;
  int group_m = 1;  // token blocks that share a strip of weight columns in launch order
  int split_k = 1;  // blocks that share one output tile; above 1 the output is fp32 partial sums
  int num_warps = 4;
  int num_stages = 3;  // shared-memory stages, 2..7
  // Of tuned_config() alone, not a number of vLLM's: where the chip has it, take the kernel that has all
  // weights of a block under way at once instead of these tiles. Block lists are those of the tiles, there
  // are no splits. A configuration that was asked for, an engine's default or one from a file, runs with its
  // own tiles, so that a graph shows what it is said to show.
  bool is_direct = false;

  friend bool operator==(const TileConfig&, const TileConfig&) = default;
};

// What is fixed when a variant is compiled; group_m, split_k and num_stages are chosen at launch.
struct TileVariant {
  int block_m, block_n, block_k, num_warps;

  friend bool operator==(const TileVariant&, const TileVariant&) = default;
};

// Compiled variants, ordered by block_m, block_n, block_k, num_warps.
std::span<const TileVariant> tile_variants(WeightType type);

// True if launch_moe_gemm accepts `config` on a device that gives a block `smem_limit_bytes` of dynamic
// shared memory (sm_90: 227 KiB, sm_80: 163 KiB, sm_86/89/120: 99 KiB).
bool is_supported(WeightType type, const TileConfig& config, int smem_limit_bytes);

// Dynamic shared memory of one block, bytes. A launch whose k has fewer steps than stages takes as many
// stages as steps.
int smem_bytes(WeightType type, const TileConfig& config);

// The compiled variant closest to `config` (least sum of |log2| distances of the four compiled numbers, the
// block_m distance counted double; the first in table order among equals), stages clamped to 2..7 and then
// reduced until a block fits `smem_limit_bytes`. For configurations tuned for another implementation.
TileConfig nearest_supported(WeightType type, const TileConfig& config, int smem_limit_bytes);

// What vLLM's fused MoE takes where it has no tuned file for the shape (get_default_config), before it is
// mapped by nearest_supported: with block-scaled fp8 64x128x128 tiles in groups of 32 (16 rows and no groups
// up to 64 tokens); else 64x64x32 in groups of 8, or 16x32x64 while tokens <= experts.
TileConfig engine_default_config(WeightType type, int tokens, int experts);

// The number of splits of a GEMM with this `k` that a configuration shared by W13 and W2 means:
// config.split_k, but every split keeps at least two steps of block_k.
int split_for(const TileConfig& config, int k);

// The fastest configuration known for a GEMM of `n` x `k` weights in `experts` local experts, `tokens` tokens
// before routing to `top_k` of all experts: from the table measured on an H200 (tile_table.inc: same shape,
// nearest token count within a factor of two), else a rule of thumb from the same measurements. Always
// supported on sm_90.
TileConfig tuned_config(WeightType type, int experts, int n, int k, int tokens, int top_k);

}  // namespace cglint::kernels::moe
