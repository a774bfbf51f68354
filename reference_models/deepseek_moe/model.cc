// The shared expert beside the routed ones: every order in which engines have recorded the two, and what each
// does to the captured graph. See README.md.
#include "stack/model.h"

#include <array>

#include "layers/decoder.h"

namespace cglint::models {
const ModelInfo& deepseek_moe_model();

namespace {

constexpr std::string_view kBase = "sequential";
constexpr std::array kVariants = {
    VariantInfo{kBase, "one stream, the shared expert first"},
    VariantInfo{"side_first", "the shared expert on a side stream, enqueued before the routed branch", false,
                kBase},
    VariantInfo{"main_first", "the same, enqueued after the routed branch; both wait for the same point",
                false, kBase},
    VariantInfo{
        "main_first_released",
        "main_first; the routed branch releases the input before the shared branch asks for its address",
        true},
    VariantInfo{"main_first_reference", "the same, but the shared branch took a reference first", false,
                kBase},
    VariantInfo{"release_disabled", "main_first; the routed branch releases the input only outside capture",
                false, kBase},
    VariantInfo{"late_wait",
                "the side stream waits once the routed branch is enqueued: nothing is left to overlap", false,
                kBase},
    VariantInfo{"event_early_published",
                "an event marks the input ready; the shared branch is enqueued at once", false, kBase},
    VariantInfo{"event_early_fixed",
                "the same event, but the shared branch's last kernel is enqueued after the routed branch",
                false, kBase},
    VariantInfo{"legacy_wait_stream",
                "wait_stream before the router, the shared branch after the routed one, joined at once",
                false, kBase},
    VariantInfo{"join_before_residual",
                "main_first, but the routed sum is finished before the join and a residual add follows it: "
                "two roundings"},
    VariantInfo{"copy_before_residual", "main_first, but the result is copied before the residual takes it",
                false, kBase},
};

constexpr Schedule experts(ExpertOrder order) {
  Schedule schedule;
  schedule.experts = order;
  return schedule;
}
// As sglang's dual-stream path: taken while capturing alone.
constexpr Schedule releasing(bool while_capturing, bool keeps_reference) {
  Schedule schedule = experts(ExpertOrder::main_first);
  schedule.releases_input = true;
  schedule.releases_while_capturing = while_capturing;
  schedule.keeps_reference = keeps_reference;
  schedule.expert_overlap_in_capture_only = true;
  return schedule;
}

constexpr std::array kSchedules = {
    experts(ExpertOrder::sequential),
    experts(ExpertOrder::side_first),
    experts(ExpertOrder::main_first),
    releasing(true, false),
    releasing(true, true),
    releasing(false, false),
    experts(ExpertOrder::late_wait),
    experts(ExpertOrder::event_side_first),
    experts(ExpertOrder::event_side_last_after_main),
    experts(ExpertOrder::main_first),  // what wait_stream before the router comes to
    experts(ExpertOrder::join_before_residual),
    experts(ExpertOrder::copy_before_residual),
};

static_assert(kVariants.size() == kSchedules.size());

const DecoderVariants& stack() {
  static const DecoderVariants stack{kVariants, kSchedules};
  return stack;
}

}  // namespace

const ModelInfo& deepseek_moe_model() {
  static const ModelInfo info =
      decoder_model<stack>("deepseek_moe", "decode step of an MoE/MLA decoder: the order of the shared and the routed experts");
  return info;
}

}  // namespace cglint::models
