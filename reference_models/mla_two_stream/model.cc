// The paged cache write of MLA beside the query's absorption of W_UK, on one stream and on two. See
// README.md.
#include "stack/model.h"

#include <array>

#include "layers/decoder.h"

namespace cglint::models {
const ModelInfo& mla_two_stream_model();

namespace {

constexpr std::array kVariants = {
    VariantInfo{"one_stream", "cache write and absorption on one stream"},
    VariantInfo{"two_stream_side_first", "the cache write on a side stream, enqueued before the absorption",
                false, "one_stream"},
    VariantInfo{"two_stream_main_first", "the same, enqueued after the absorption", false, "one_stream"},
    VariantInfo{"join_late",
                "the main stream waits for the cache write after attention: attention may read the new row "
                "too early"},
    VariantInfo{"join_missing", "the main stream waits for the cache writes at the step's end alone"},
};

constexpr Schedule attention(AttentionOrder order) {
  Schedule schedule;
  schedule.attention = order;
  return schedule;
}
constexpr std::array kSchedules = {
    attention(AttentionOrder::one_stream),   attention(AttentionOrder::side_first),
    attention(AttentionOrder::main_first),   attention(AttentionOrder::join_late),
    attention(AttentionOrder::join_missing),
};

static_assert(kVariants.size() == kSchedules.size());

const DecoderVariants& stack() {
  static const DecoderVariants stack{kVariants, kSchedules};
  return stack;
}

}  // namespace

const ModelInfo& mla_two_stream_model() {
  static const ModelInfo info =
      decoder_model<stack>("mla_two_stream", "decode step of an MoE/MLA decoder: the cache write beside the query path");
  return info;
}

}  // namespace cglint::models
