// The routed experts of one mixture-of-experts layer, from normalised hidden states to the weighted sum: the
// sequence of kernels that vLLM's fused MoE enqueues. One stream; what runs beside it is the caller's.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/common/buffer.h"
#include "kernels/common/launch.h"
#include "kernels/moe/routing.h"
#include "kernels/moe/tile_config.h"
#include "stack/arena.h"

namespace cglint::models {

struct RoutedShape {
  kernels::moe::WeightType type = kernels::moe::WeightType::kBf16;
  int hidden = 0;
  int intermediate = 0;  // per expert on this shard
  int experts = 0;       // of the model
  int local_experts = 0;
  int top_k = 0;
  int num_groups = 1;
  int top_groups = 1;
  float scaling = 1;
};

// Tiles of the two expert GEMMs. One set of block lists serves both, so block_m is the same.
struct RoutedTiles {
  kernels::moe::TileConfig w13;
  kernels::moe::TileConfig w2;
};
// The fastest known for each of the two (kernels::moe::tuned_config).
RoutedTiles tuned_tiles(const RoutedShape& shape, int tokens);
// One configuration for both, as vLLM's files have it; mapped to the nearest compiled variant.
RoutedTiles shared_tiles(const RoutedShape& shape, const kernels::moe::TileConfig& config);

// Device pointers of one layer's weights. w13 and w2: [local_experts, n, k] of `type`.
struct RoutedWeights {
  const kernels::bf16* router = nullptr;     // [experts, hidden]
  const float* bias = nullptr;               // [experts], or
  const kernels::bf16* bias_bf16 = nullptr;  // the same in bf16
  const void* w13 = nullptr;                 // gate rows, then up rows
  const float* w13_scale = nullptr;          // fp8: see MoeGemmArgs
  const void* w2 = nullptr;
  const float* w2_scale = nullptr;
  const std::int32_t* expert_map = nullptr;  // AlignArgs::expert_map
};

// Elements of one expert GEMM's weights and of its fp8 scales.
std::size_t w13_elements(const RoutedShape& shape);
std::size_t w2_elements(const RoutedShape& shape);
std::size_t w13_scales(const RoutedShape& shape);
std::size_t w2_scales(const RoutedShape& shape);

struct RoutedCall {
  const kernels::bf16* x = nullptr;  // [tokens, hidden], normalised
  int tokens = 0;
  std::int32_t* ids = nullptr;              // out, [tokens, top_k]: the choice, kept for the check
  const kernels::bf16* shared = nullptr;    // added to the sum, or null
  const kernels::bf16* residual = nullptr;  // likewise
  kernels::bf16* out = nullptr;             // [tokens, hidden]
  int pool = 0;                             // of the arena: that of the stream
};

// Transient memory that one call takes, bytes, before the arena's rounding.
std::size_t routed_transient_bytes(const RoutedShape& shape, const RoutedTiles& tiles, int tokens);

// router, top-k, (fp8: quantise,) align, W13, SiLU-mul, W2, finalize. Intermediates come from the arena and
// go back as soon as the last kernel that uses them is enqueued.
[[nodiscard]] cudaError_t enqueue_routed_experts(const kernels::LaunchContext& ctx, Arena& arena,
                                                 const RoutedShape& shape, const RoutedTiles& tiles,
                                                 const RoutedWeights& weights, const RoutedCall& call);

// The same in plain fp32 (kernels/moe/reference.h), weights dequantised. With fp8 weights what enters the two GEMMs is
// rounded to fp8, as the format says, by code of its own; nothing else is rounded.
struct RoutedReference {
  std::vector<float> out;  // [tokens, hidden]; empty: a CUDA call failed
  // How much less than the best choice `ids` is worth by the reference's own biased scores: the largest
  // difference between a token's top_k-th best score and a chosen one. 0 where the choices agree.
  double shortfall = 0;
};
// `ids`: the kernels' choice, which near-ties may make another than the reference's; the weights are the
// reference's own. `bias`: on the host. Synchronous.
RoutedReference reference_routed_experts(const RoutedShape& shape, const RoutedWeights& weights,
                                         const std::vector<float>& bias, const std::vector<float>& x,
                                         int tokens, const std::vector<std::int32_t>& ids);

}  // namespace cglint::models
