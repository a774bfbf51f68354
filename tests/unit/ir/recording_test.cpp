#include "ir/recording.h"

#include <gtest/gtest.h>

#include <array>
#include <set>

namespace cglint::ir {
namespace {

TEST(Recording, StacksAndNvtxAreShared) {
  Recording recording;
  Frame inner;
  inner.file = recording.intern("model.py");
  inner.line = 812;
  Frame outer = inner;
  outer.line = 40;
  const std::array<Frame, 2> frames = {inner, outer};
  const StackId stack = recording.intern_stack(frames);
  EXPECT_EQ(recording.intern_stack(frames), stack);
  EXPECT_NE(recording.intern_stack(std::span(frames).first(1)), stack);
  ASSERT_EQ(recording.frames(stack).size(), 2U);
  EXPECT_EQ(recording.frames(stack)[0].line, 812U);
  EXPECT_TRUE(recording.frames(StackId()).empty());
  EXPECT_FALSE(recording.intern_stack({}).is_valid());

  const std::array<StringId, 2> ranges = {recording.intern("model"), recording.intern("layer.3")};
  const NvtxId nvtx = recording.intern_nvtx(ranges);
  EXPECT_EQ(recording.intern_nvtx(ranges), nvtx);
  EXPECT_EQ(recording.text(recording.nvtx(nvtx)[1]), "layer.3");
  EXPECT_TRUE(recording.nvtx(NvtxId(9)).empty());
}

TEST(Recording, StreamsArePerProcess) {
  Recording recording;
  const StreamId a = recording.intern_stream(ProcessId(0), 7);
  EXPECT_EQ(recording.intern_stream(ProcessId(0), 7), a);
  EXPECT_NE(recording.intern_stream(ProcessId(1), 7), a);
  EXPECT_EQ(recording.streams[a].handle, 7U);
}

TEST(Recording, EqualLossesAreCounted) {
  Recording recording;
  recording.add_loss(Loss::Severity::data_loss, "a record without time", 2, 100, {Fact::replay_times});
  recording.add_loss(Loss::Severity::data_loss, "a record without time", 3, 900, {Fact::replay_streams});
  recording.add_loss(Loss::Severity::info, "a record without time");
  ASSERT_EQ(recording.losses.size(), 2U);
  EXPECT_EQ(recording.losses[0].count, 5U);
  EXPECT_EQ(recording.losses[0].offset_bytes, 100U);
  EXPECT_TRUE(recording.losses[0].facts.contains_all({Fact::replay_times, Fact::replay_streams}));
}

TEST(Facts, NamesAreUniqueAndRoundTrip) {
  std::set<std::string_view> names;
  for (int i = 0; i < kFactCount; ++i) {
    const auto fact = static_cast<Fact>(i);
    EXPECT_TRUE(names.insert(fact_name(fact)).second);
    EXPECT_EQ(fact_from_name(fact_name(fact)), fact);
    EXPECT_FALSE(fact_missing_phrase(fact).empty());
  }
  EXPECT_EQ(fact_from_name("no such fact"), std::nullopt);
}

TEST(NodeKinds, NamesRoundTrip) {
  for (int i = 0; i < kNodeKindCount; ++i)
    EXPECT_EQ(node_kind_from_name(node_kind_name(static_cast<NodeKind>(i))), static_cast<NodeKind>(i));
  EXPECT_EQ(node_kind_from_name("kernels"), std::nullopt);
}

}  // namespace
}  // namespace cglint::ir
