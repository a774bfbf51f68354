// Both overlaps of a Kimi K2 layer at once, each on a side stream of its own: the cache write beside the
// query path, the shared expert beside the routed ones. See README.md.
#include "stack/model.h"

#include <array>

#include "layers/decoder.h"

namespace cglint::models {
const ModelInfo& k2_full_model();

namespace {

constexpr std::string_view kBase = "mla_main_moe_main";
constexpr std::array kVariants = {
    VariantInfo{kBase, "both branches enqueued after what they run beside"},
    VariantInfo{"mla_side_moe_main", "the cache write enqueued first", false, kBase},
    VariantInfo{"mla_main_moe_side", "the shared expert enqueued first", false, kBase},
    VariantInfo{"mla_side_moe_side", "both enqueued first", false, kBase},
};

constexpr Schedule both(AttentionOrder attention, ExpertOrder experts) {
  Schedule schedule;
  schedule.attention = attention;
  schedule.experts = experts;
  schedule.expert_side = 1;
  return schedule;
}
constexpr std::array kSchedules = {
    both(AttentionOrder::main_first, ExpertOrder::main_first),
    both(AttentionOrder::side_first, ExpertOrder::main_first),
    both(AttentionOrder::main_first, ExpertOrder::side_first),
    both(AttentionOrder::side_first, ExpertOrder::side_first),
};

static_assert(kVariants.size() == kSchedules.size());

const DecoderVariants& stack() {
  static const DecoderVariants stack{kVariants, kSchedules, 2, decoder_presets().first(1)};
  return stack;
}

}  // namespace

const ModelInfo& k2_full_model() {
  static const ModelInfo info =
      decoder_model<stack>("k2_full", "decode step of Kimi K2 with both overlaps, each branch enqueued first or last");
  return info;
}

}  // namespace cglint::models
