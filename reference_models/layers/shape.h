// Shapes of published MoE/MLA decoders, as one shard of a tensor-parallel group sees them. Plain C++; no
// CUDA.
#pragma once

#include <span>
#include <string_view>

#include "stack/model.h"

namespace cglint::models {

struct DecoderShape {
  std::string_view name;
  int layers = 0;        // of the published model
  int dense_layers = 0;  // the first layers, whose feed-forward part is no mixture of experts
  int hidden = 0;
  int heads = 0;               // on this shard
  int query_rank = 0;          // width of the compressed query (q_lora_rank)
  int dense_intermediate = 0;  // on this shard
  int experts = 0;             // all on this shard, each with its share of the intermediate width
  int expert_intermediate = 0;
  int shared_intermediate = 0;  // of the one shared expert, on this shard
  int top_k = 0;
  int num_groups = 1;
  int top_groups = 1;
  float routed_scaling = 1;
  double rope_base = 10000;
};

inline constexpr int kLatent = 512;     // kv_lora_rank
inline constexpr int kRope = 64;        // qk_rope_head_dim
inline constexpr int kHead = 128;       // qk_nope_head_dim, v_head_dim
inline constexpr int kQueryHead = 192;  // kHead + kRope

// k2-tp8, v3-tp8.
std::span<const DecoderShape> decoder_shapes();
// The same as ModelInfo wants them, in the same order.
std::span<const PresetInfo> decoder_presets();
// By preset name, the first for an empty one; null if unknown.
const DecoderShape* find_decoder_shape(std::string_view preset);

}  // namespace cglint::models
