#include "analysis/replay_streams.h"

#include <gtest/gtest.h>

#include <set>

#include "unit/analysis/test_graphs.h"
#include "unit/analysis/test_replays.h"

namespace cglint::analysis {
namespace {

using namespace cglint::testing;

TEST(ReplayStreams, CountsDevicesAndStreamsTogether) {
  ir::GraphBuilder builder;
  // Stream 7 of two devices, a copy on a third stream, and a host function, which carries no stream.
  add_replay(builder, {op({}, 0, 10, 7, 0), op({}, 0, 10, 7, 1), op({}, 20, 30, 9, 0, ir::NodeKind::memcpy),
                       op({}, 0, 50, 11, 0, ir::NodeKind::host)});
  add_replay(builder, {op({}, 100, 110, 7, 0), op({}, 120, 130, 7, 0)});
  add_replay(builder, {});
  add_replay(builder, {op({}, 200, 200, 8, 0)}, false);
  const ReplayStreams streams = replay_streams(*finish(builder));
  ASSERT_TRUE(streams.available);
  EXPECT_EQ(streams.per_replay, (std::vector<std::uint32_t>{3, 1, 0, 1}));
  EXPECT_EQ(streams.per_replay_kernels_only, (std::vector<std::uint32_t>{2, 1, 0, 1}));
  EXPECT_EQ(streams.max, 3U);
  EXPECT_EQ(streams.max_kernels_only, 2U);
  EXPECT_EQ(streams.max_replay, 0U);
  EXPECT_EQ(streams.histogram, (std::map<std::int64_t, std::int64_t>{{1, 2}, {3, 1}}));
  EXPECT_EQ(streams.empty_replays, 1U);
  EXPECT_EQ(streams.incomplete_replays, 1U);
  EXPECT_EQ(streams.max_live, 2U);
  EXPECT_EQ(streams.max_concurrent, 1U);  // 10 ns of overlap are within the clock's tolerance
}

TEST(ReplayStreams, LifetimesAndConcurrency) {
  ir::GraphBuilder builder;
  // Streams 1 and 2 alternate: both live all the time, one runs at a time. Stream 3 starts when they are
  // done.
  add_replay(builder, {op({}, 0, 1001, 1), op({}, 2000, 3000, 2), op({}, 4000, 5000, 1),
                       op({}, 6000, 7000, 2), op({}, 8000, 9000, 3)});
  const ReplayStreams alternating = replay_streams(*finish(builder));
  EXPECT_EQ(alternating.max, 3U);
  EXPECT_EQ(alternating.max_live, 2U);
  EXPECT_EQ(alternating.max_concurrent, 1U);
  add_replay(builder, {op({}, 0, 1001, 1), op({}, 500, 1500, 2), op({}, 800, 1400, 3)});
  EXPECT_EQ(replay_streams(*finish(builder)).max_concurrent, 3U);
}

TEST(ReplayStreams, OperationsOfNoDurationStillCarryAStream) {
  ir::GraphBuilder builder;
  add_replay(builder, {op({}, 5, 5, 1), op({}, 5, 5, 2)});
  const ReplayStreams streams = replay_streams(*finish(builder));
  EXPECT_EQ(streams.max, 2U);
  EXPECT_EQ(streams.max_live, 1U);
  EXPECT_EQ(streams.max_concurrent, 1U);
}

TEST(ReplayStreams, NotAvailable) {
  ir::GraphBuilder builder;
  EXPECT_FALSE(replay_streams(*finish(builder)).available);
  add_replay(builder, {});
  EXPECT_FALSE(replay_streams(*finish(builder)).available);
  add_replay(builder, {op({}, 0, 10, 1)});
  builder.graph().facts.erase(ir::Fact::replay_streams);
  const ReplayStreams streams = replay_streams(*finish(builder));
  EXPECT_FALSE(streams.available);
  EXPECT_TRUE(streams.histogram.empty());
}

TEST(ReplayStreams, RandomReplays) {
  Rng rng(1);
  for (int round = 0; round < 1000; ++round) {
    ir::GraphBuilder builder;
    std::vector<std::uint32_t> expected;
    for (std::uint32_t r = 1 + below(rng, 5); r > 0; --r) {
      std::vector<ir::ReplayOp> ops;
      std::set<StreamKey> keys;
      for (std::uint32_t k = below(rng, 12); k > 0; --k) {
        ops.push_back(op({}, below(rng, 5000), 5000 + below(rng, 5000), below(rng, 4),
                         static_cast<std::int32_t>(below(rng, 2)),
                         chance(rng, 30) ? ir::NodeKind::empty : ir::NodeKind::memset));
        if (ops.back().kind == ir::NodeKind::memset) keys.emplace(ops.back().device, ops.back().stream);
      }
      expected.push_back(static_cast<std::uint32_t>(keys.size()));
      add_replay(builder, std::move(ops));
    }
    const ReplayStreams streams = replay_streams(*finish(builder));
    ASSERT_EQ(streams.per_replay, expected);
    ASSERT_EQ(streams.max, *std::max_element(expected.begin(), expected.end()));
    if (streams.available) {
      ASSERT_EQ(expected[streams.max_replay], streams.max);
    }
    ASSERT_EQ(streams.max_kernels_only, 0U);
    if (streams.available) {
      ASSERT_EQ(streams.max_live, streams.max);  // all hold the instant 5000
    }
  }
}

}  // namespace
}  // namespace cglint::analysis
