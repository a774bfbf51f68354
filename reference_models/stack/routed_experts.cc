#include "stack/routed_experts.h"

#include <algorithm>
#include <cmath>

#include "kernels/moe/activation.h"
#include "kernels/moe/moe_gemm.h"
#include "kernels/moe/reference.h"
#include "kernels/moe/router.h"
#include "stack/host.h"
#include "stack/model.h"
#include "stack/status.h"

namespace cglint::models {
namespace {

using kernels::bf16;
using kernels::LaunchContext;
using kernels::moe::TileConfig;
using kernels::moe::WeightType;

constexpr int kSmemLimit = 227 * 1024;  // sm_90; the device's own limit is checked by the launch

std::size_t product(int a, int b, int c = 1) {
  return static_cast<std::size_t>(a) * static_cast<std::size_t>(b) * static_cast<std::size_t>(c);
}
int blocks_of(int columns) {
  return (columns + kernels::moe::kScaleBlock - 1) / kernels::moe::kScaleBlock;
}

bool is_fp8(const RoutedShape& shape) {
  return shape.type == WeightType::kFp8Block128;
}

kernels::moe::GemmRows rows_of(void* data, const TileConfig& config) {
  kernels::moe::GemmRows rows;
  if (config.split_k > 1) {
    rows.partials = static_cast<const float*>(data);
  } else {
    rows.rows = static_cast<const bf16*>(data);
  }
  rows.splits = config.split_k;
  return rows;
}
std::size_t gemm_bytes(const TileConfig& config, int pairs, int n) {
  return config.split_k > 1 ? kernels::moe::partial_elements(config, pairs, n) * sizeof(float)
                            : product(pairs, n) * sizeof(bf16);
}

// What quantising groups of 128 values to e4m3 leaves of them.
std::vector<float> rounded_to_fp8(std::vector<float> values) {
  constexpr std::size_t kGroup = 128;
  for (std::size_t first = 0; first < values.size(); first += kGroup) {
    float largest = 1e-10F;
    for (std::size_t i = first; i < first + kGroup; ++i) largest = std::max(largest, std::fabs(values[i]));
    const float scale = largest / 448.0F;
    for (std::size_t i = first; i < first + kGroup; ++i)
      values[i] = static_cast<float>(kernels::fp8_e4m3(values[i] / scale)) * scale;
  }
  return values;
}

kernels::moe::TopkArgs topk_arguments(const RoutedShape& shape, int tokens) {
  kernels::moe::TopkArgs args;
  args.tokens = tokens;
  args.experts = shape.experts;
  args.top_k = shape.top_k;
  args.num_groups = shape.num_groups;
  args.top_groups = shape.top_groups;
  args.scaling = shape.scaling;
  return args;
}

}  // namespace

RoutedTiles tuned_tiles(const RoutedShape& shape, int tokens) {
  RoutedTiles tiles;
  tiles.w13 = kernels::moe::tuned_config(shape.type, shape.local_experts, 2 * shape.intermediate,
                                         shape.hidden, tokens, shape.top_k);
  tiles.w2 = kernels::moe::tuned_config(shape.type, shape.local_experts, shape.hidden, shape.intermediate,
                                        tokens, shape.top_k);
  if (tiles.w2.block_m != tiles.w13.block_m) {
    tiles.w2.block_m = tiles.w13.block_m;
    tiles.w2 = kernels::moe::nearest_supported(shape.type, tiles.w2, kSmemLimit);
  }
  return tiles;
}

RoutedTiles shared_tiles(const RoutedShape& shape, const TileConfig& config) {
  const TileConfig compiled = kernels::moe::nearest_supported(shape.type, config, kSmemLimit);
  RoutedTiles tiles{compiled, compiled};
  tiles.w13.split_k = kernels::moe::split_for(compiled, shape.hidden);
  tiles.w2.split_k = kernels::moe::split_for(compiled, shape.intermediate);
  return tiles;
}

std::size_t w13_elements(const RoutedShape& s) {
  return product(s.local_experts, 2 * s.intermediate, s.hidden);
}
std::size_t w2_elements(const RoutedShape& s) {
  return product(s.local_experts, s.hidden, s.intermediate);
}
std::size_t w13_scales(const RoutedShape& s) {
  return product(s.local_experts, blocks_of(2 * s.intermediate), blocks_of(s.hidden));
}
std::size_t w2_scales(const RoutedShape& s) {
  return product(s.local_experts, blocks_of(s.hidden), blocks_of(s.intermediate));
}

std::size_t routed_transient_bytes(const RoutedShape& shape, const RoutedTiles& tiles, int tokens) {
  const int pairs = tokens * shape.top_k;
  const int blocks = kernels::moe::max_blocks(pairs, shape.local_experts, tiles.w13.block_m);
  constexpr std::size_t kBlocks = 14;  // at most this many, each rounded up by the arena
  std::size_t bytes = kBlocks * 1024;
  bytes += product(kernels::moe::router_splits(tokens, shape.experts, shape.hidden), tokens, shape.experts) *
           sizeof(float);
  bytes += product(pairs, 2) * sizeof(float);  // weights, positions
  bytes += (product(blocks, tiles.w13.block_m) + static_cast<std::size_t>(blocks) + 1) * sizeof(std::int32_t);
  bytes += kernels::moe::align_workspace_elements(pairs, shape.local_experts) * sizeof(std::int32_t);
  bytes += gemm_bytes(tiles.w13, pairs, 2 * shape.intermediate) + gemm_bytes(tiles.w2, pairs, shape.hidden);
  if (is_fp8(shape)) {
    bytes += product(tokens, shape.hidden) + product(tokens, blocks_of(shape.hidden)) * sizeof(float);
    bytes +=
        product(pairs, shape.intermediate) + product(pairs, blocks_of(shape.intermediate)) * sizeof(float);
  } else {
    bytes += product(pairs, shape.intermediate) * sizeof(bf16);
  }
  return bytes;
}

cudaError_t enqueue_routed_experts(const LaunchContext& ctx, Arena& arena, const RoutedShape& shape,
                                   const RoutedTiles& tiles, const RoutedWeights& weights,
                                   const RoutedCall& call) {
  using namespace kernels::moe;
  const bool fp8 = is_fp8(shape);
  const int tokens = call.tokens;
  const int pairs = tokens * shape.top_k;
  const int blocks = max_blocks(pairs, shape.local_experts, tiles.w13.block_m);
  const auto take = [&](Tensor& tensor, std::size_t bytes) {
    return arena.transient(bytes, tensor, call.pool);
  };

  Tensor top_weights;
  {
    const Range range("router");
    const int splits = router_splits(tokens, shape.experts, shape.hidden);
    Tensor logits;
    CGLINT_RETURN_IF_ERROR(take(logits, product(splits, tokens, shape.experts) * sizeof(float)));
    RouterArgs router;
    router.x = call.x;
    router.w = weights.router;
    router.logits = logits.as<float>();
    router.tokens = tokens;
    router.experts = shape.experts;
    router.hidden = shape.hidden;
    CGLINT_RETURN_IF_ERROR(launch_moe_router(ctx, router));
    CGLINT_RETURN_IF_ERROR(take(top_weights, product(pairs, 1) * sizeof(float)));
    TopkArgs topk = topk_arguments(shape, tokens);
    topk.logits = logits.as<float>();
    topk.splits = splits;
    topk.bias = weights.bias;
    topk.bias_bf16 = weights.bias_bf16;
    topk.weights = top_weights.as<float>();
    topk.ids = call.ids;
    CGLINT_RETURN_IF_ERROR(launch_moe_topk(ctx, topk));
  }

  const Range range("experts");
  MoeGemmArgs gemm;
  gemm.x = call.x;
  Tensor x, x_scale;
  if (fp8) {
    CGLINT_RETURN_IF_ERROR(take(x, product(tokens, shape.hidden)));
    CGLINT_RETURN_IF_ERROR(take(x_scale, product(tokens, blocks_of(shape.hidden)) * sizeof(float)));
    const QuantizeFp8Args quantize{call.x, tokens, shape.hidden, x.as<kernels::fp8_e4m3>(),
                                   x_scale.as<float>()};
    CGLINT_RETURN_IF_ERROR(launch_quantize_fp8(ctx, quantize));
    gemm.x = x.address();
    gemm.x_scale = x_scale.as<float>();
  }

  Tensor sorted_ids, expert_ids, num_padded, positions;
  CGLINT_RETURN_IF_ERROR(take(sorted_ids, product(blocks, tiles.w13.block_m) * sizeof(std::int32_t)));
  CGLINT_RETURN_IF_ERROR(take(expert_ids, product(blocks, 1) * sizeof(std::int32_t)));
  CGLINT_RETURN_IF_ERROR(take(num_padded, sizeof(std::int32_t)));
  CGLINT_RETURN_IF_ERROR(take(positions, product(pairs, 1) * sizeof(std::int32_t)));
  {
    AlignArgs align;
    align.ids = call.ids;
    align.num_pairs = pairs;
    align.experts = shape.experts;
    align.expert_map = weights.expert_map;
    align.local_experts = shape.local_experts;
    align.block_m = tiles.w13.block_m;
    align.sorted_ids = sorted_ids.as<std::int32_t>();
    align.expert_ids = expert_ids.as<std::int32_t>();
    align.num_padded = num_padded.as<std::int32_t>();
    align.positions = positions.as<std::int32_t>();
    Tensor workspace;
    if (const std::size_t elements = align_workspace_elements(pairs, shape.local_experts); elements > 0)
      CGLINT_RETURN_IF_ERROR(take(workspace, elements * sizeof(std::int32_t)));
    align.workspace = workspace.as<std::int32_t>();
    CGLINT_RETURN_IF_ERROR(launch_moe_align(ctx, align));
  }

  Tensor gate_up;
  CGLINT_RETURN_IF_ERROR(take(gate_up, gemm_bytes(tiles.w13, pairs, 2 * shape.intermediate)));
  gemm.w = weights.w13;
  gemm.w_scale = weights.w13_scale;
  gemm.out = gate_up.address();
  gemm.out_fp32 = tiles.w13.split_k > 1;
  gemm.sorted_ids = sorted_ids.as<std::int32_t>();
  gemm.expert_ids = expert_ids.as<std::int32_t>();
  gemm.num_padded = num_padded.as<std::int32_t>();
  gemm.max_blocks = blocks;
  gemm.num_pairs = pairs;
  gemm.row_divisor = shape.top_k;
  gemm.n = 2 * shape.intermediate;
  gemm.k = shape.hidden;
  CGLINT_RETURN_IF_ERROR(launch_moe_gemm(ctx, shape.type, tiles.w13, gemm));
  x.release();
  x_scale.release();

  Tensor hidden, hidden_scale;
  SiluMulArgs silu;
  silu.gate_up = rows_of(gate_up.address(), tiles.w13);
  silu.pairs = pairs;
  silu.intermediate = shape.intermediate;
  silu.positions = positions.as<std::int32_t>();
  CGLINT_RETURN_IF_ERROR(take(hidden, product(pairs, shape.intermediate) * (fp8 ? 1 : sizeof(bf16))));
  if (fp8) {
    CGLINT_RETURN_IF_ERROR(take(hidden_scale, product(pairs, blocks_of(shape.intermediate)) * sizeof(float)));
    silu.out_fp8 = hidden.as<kernels::fp8_e4m3>();
    silu.out_scale = hidden_scale.as<float>();
  } else {
    silu.out = hidden.as<bf16>();
  }
  CGLINT_RETURN_IF_ERROR(launch_silu_mul(ctx, silu));
  gate_up.release();

  Tensor y;
  CGLINT_RETURN_IF_ERROR(take(y, gemm_bytes(tiles.w2, pairs, shape.hidden)));
  gemm.x = hidden.address();
  gemm.x_scale = hidden_scale.as<float>();
  gemm.w = weights.w2;
  gemm.w_scale = weights.w2_scale;
  gemm.out = y.address();
  gemm.out_fp32 = tiles.w2.split_k > 1;
  gemm.row_divisor = 1;
  gemm.n = shape.hidden;
  gemm.k = shape.intermediate;
  gemm.routing_is_settled = ctx.pdl;
  CGLINT_RETURN_IF_ERROR(launch_moe_gemm(ctx, shape.type, tiles.w2, gemm));

  FinalizeArgs finalize;
  finalize.y = rows_of(y.address(), tiles.w2);
  finalize.weights = top_weights.as<float>();
  finalize.positions = positions.as<std::int32_t>();
  finalize.shared = call.shared;
  finalize.residual = call.residual;
  finalize.tokens = tokens;
  finalize.top_k = shape.top_k;
  finalize.hidden = shape.hidden;
  finalize.out = call.out;
  return launch_finalize(ctx, finalize);
}

RoutedReference reference_routed_experts(const RoutedShape& shape, const RoutedWeights& weights,
                                         const std::vector<float>& bias, const std::vector<float>& x,
                                         int tokens, const std::vector<std::int32_t>& ids) {
  using namespace kernels::moe;
  using kernels::DeviceBuffer;
  RoutedReference result;
  const int pairs = tokens * shape.top_k;
  std::vector<std::int32_t> local = ids;
  if (weights.expert_map != nullptr) {
    std::vector<std::int32_t> map(static_cast<std::size_t>(shape.experts));
    if (cudaMemcpy(map.data(), weights.expert_map, map.size() * sizeof(std::int32_t),
                   cudaMemcpyDeviceToHost) != cudaSuccess)
      return result;
    for (std::int32_t& id : local) id = map[static_cast<std::size_t>(id)];
  }
  DeviceBuffer<float> device_x, logits, gate_up, hidden, y;
  DeviceBuffer<std::int32_t> experts;
  if (device_x.allocate(x.size()) != cudaSuccess || device_x.upload(x) != cudaSuccess ||
      logits.allocate(product(tokens, shape.experts)) != cudaSuccess ||
      gate_up.allocate(product(pairs, 2 * shape.intermediate)) != cudaSuccess ||
      hidden.allocate(product(pairs, shape.intermediate)) != cudaSuccess ||
      y.allocate(product(pairs, shape.hidden)) != cudaSuccess ||
      experts.allocate(local.size()) != cudaSuccess || experts.upload(local) != cudaSuccess)
    return result;

  ReferenceGemmArgs plain;
  plain.x_fp32 = device_x.get();
  plain.w = weights.router;
  plain.pairs = tokens;
  plain.n = shape.experts;
  plain.k = shape.hidden;
  plain.out = logits.get();
  if (reference_moe_gemm(WeightType::kBf16, plain) != cudaSuccess) return result;
  const std::vector<float> scores = kernels::download_float(logits);
  if (scores.empty()) return result;
  const ReferenceChoice best = reference_topk(topk_arguments(shape, tokens), scores, bias);
  std::vector<float> choice_weights(ids.size());
  for (int token = 0; token < tokens; ++token) {
    const auto row = product(token, shape.experts);
    const auto first = product(token, shape.top_k);
    const auto last_best =
        static_cast<std::size_t>(best.ids[first + static_cast<std::size_t>(shape.top_k) - 1]);
    double sum = 0;
    for (std::size_t k = first; k < first + static_cast<std::size_t>(shape.top_k); ++k) {
      const auto expert = static_cast<std::size_t>(ids[k]);
      result.shortfall = std::max(result.shortfall, best.biased[row + last_best] - best.biased[row + expert]);
      choice_weights[k] = 1.0F / (1.0F + std::exp(-scores[row + expert]));
      sum += choice_weights[k];
    }
    for (std::size_t k = first; k < first + static_cast<std::size_t>(shape.top_k); ++k)
      choice_weights[k] *= shape.scaling / static_cast<float>(sum);
  }

  if (is_fp8(shape) && device_x.upload(rounded_to_fp8(x)) != cudaSuccess) return result;
  plain.w = weights.w13;
  plain.w_scale = weights.w13_scale;
  plain.experts = experts.get();
  plain.pairs = pairs;
  plain.row_divisor = shape.top_k;
  plain.n = 2 * shape.intermediate;
  plain.out = gate_up.get();
  if (gate_up.poison() != cudaSuccess || reference_moe_gemm(shape.type, plain) != cudaSuccess) return result;
  const std::vector<float> both = kernels::download_float(gate_up);
  if (both.empty()) return result;
  std::vector<float> activated = reference_silu_mul(both, shape.intermediate);
  if (is_fp8(shape)) activated = rounded_to_fp8(std::move(activated));
  plain.x_fp32 = hidden.get();
  plain.w = weights.w2;
  plain.w_scale = weights.w2_scale;
  plain.row_divisor = 1;
  plain.n = shape.hidden;
  plain.k = shape.intermediate;
  plain.out = y.get();
  if (hidden.upload(activated) != cudaSuccess || reference_moe_gemm(shape.type, plain) != cudaSuccess)
    return result;
  const std::vector<float> rows = kernels::download_float(y);
  if (rows.empty()) return result;
  result.out.assign(product(tokens, shape.hidden), 0.0F);
  const auto width = static_cast<std::size_t>(shape.hidden);
  for (std::size_t pair = 0; pair < ids.size(); ++pair) {
    if (local[pair] < 0) continue;
    float* out = result.out.data() + pair / static_cast<std::size_t>(shape.top_k) * width;
    for (std::size_t column = 0; column < width; ++column)
      out[column] += choice_weights[pair] * rows[pair * width + column];
  }
  return result;
}

}  // namespace cglint::models
