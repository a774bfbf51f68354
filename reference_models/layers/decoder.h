// A stack of MoE/MLA decoder layers that records one decode step in the order of streams, events and launches
// that a schedule describes. The models deepseek_moe, mla_two_stream and k2_full are this stack under their
// variants' schedules.
//
// A layer: RMSNorm (+ residual), fused q/kv down-projection, norms of both, query up-projection, RoPE,
// absorption of W_UK into the query, paged cache write, split-KV attention, W_UV, output projection, RMSNorm
// (+ residual); then in the first layers a gated MLP, else router, top-k, alignment, fp8 quantisation, W13,
// SiLU-mul, W2 and weighted sum beside one shared expert. One shard of a tensor-parallel group; its
// all-reduces are left out.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "layers/shape.h"
#include "stack/model.h"

namespace cglint::models {

// How attention's two branches are recorded: the cache write (KV tail) and the absorption of W_UK (query
// path).
enum class AttentionOrder {
  one_stream,
  side_first,  // the cache write goes to a side stream and is enqueued first; joined before attention
  main_first,  // the same, the absorption enqueued first
  // Main first, but the main stream waits after attention, which may read the new row too early. Captured
  // alone: outside capture the cache write stays on the main stream.
  join_late,
  join_missing,  // the same, and the main stream waits at the step's end alone
};

// How the shared expert is recorded beside the routed ones.
enum class ExpertOrder {
  sequential,  // one stream, the shared expert first
  // The side stream waits for the main one where the input is ready. Side branch enqueued first or last.
  side_first,
  main_first,
  // The side stream waits for the main one after the routed branch was enqueued.
  late_wait,
  // An event marks where the input is ready; the side stream waits for it.
  event_side_first,
  event_side_last_after_main,  // the side branch starts first, its last kernel is enqueued after the routed
                               // branch
  // As main_first, but the routed branch ends with its weighted sum and an addition joins the two.
  join_before_residual,
  // As main_first, but the result is copied by a copy node before the residual takes it, as for an all-reduce
  // that needs its input in a registered buffer.
  copy_before_residual,
};

struct Schedule {
  AttentionOrder attention = AttentionOrder::one_stream;
  ExpertOrder experts = ExpertOrder::sequential;
  // The routed branch drops its input once it has its quantised copy.
  bool releases_input = false;
  bool releases_while_capturing = true;
  // The shared branch takes a reference to its input before the routed branch is called.
  bool keeps_reference = false;
  // Two streams for the experts while capturing alone, one otherwise (as sglang does).
  bool expert_overlap_in_capture_only = false;
  int attention_side = 0;  // indices into StepContext::side
  int expert_side = 0;
};

// A model that is this stack: one schedule a variant, the presets of decoder_presets() or the first of them. Unknown names have no
// model and take 0 bytes; nor do a batch beyond 1 to 64, a context beyond 1 to 131,071, more than 1,024 layers and a
// moe_config_dir, which prepare() refuses.
struct DecoderVariants {
  std::span<const VariantInfo> variants;
  std::span<const Schedule> schedules;  // one each
  int side_streams = 1;
  std::span<const PresetInfo> presets = decoder_presets();
};
// Device memory that the stack takes, bytes.
std::size_t decoder_memory_bytes(const DecoderVariants& model, const StackOptions& options);
std::unique_ptr<Model> make_decoder(const DecoderVariants& model, const StackOptions& options);
// ModelInfo::faults of such a model.
std::span<const std::string_view> decoder_faults();

// The model of the function's variants.
template <const DecoderVariants& (*kVariants)()>
ModelInfo decoder_model(std::string_view name, std::string_view summary) {
  return {name,
          summary,
          kVariants().presets,
          kVariants().variants,
          kVariants().side_streams,
          [](const StackOptions& options) { return decoder_memory_bytes(kVariants(), options); },
          [](const StackOptions& options) { return make_decoder(kVariants(), options); },
          decoder_faults()};
}

}  // namespace cglint::models
