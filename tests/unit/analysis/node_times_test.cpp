#include "analysis/node_times.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <map>

#include "unit/analysis/test_graphs.h"
#include "unit/analysis/test_replays.h"

namespace cglint::analysis {
namespace {

using namespace cglint::testing;

std::vector<Interval> random_intervals(Rng& rng, std::uint32_t max_count) {
  std::vector<Interval> intervals(below(rng, max_count + 1));
  for (Interval& interval : intervals) {
    interval.begin_ns = static_cast<std::int64_t>(below(rng, 30)) - 10;
    interval.end_ns = interval.begin_ns + static_cast<std::int64_t>(below(rng, 8));
  }
  return intervals;
}
bool covers(const std::vector<Interval>& intervals, std::int64_t instant) {
  return std::any_of(intervals.begin(), intervals.end(),
                     [&](const Interval& i) { return i.begin_ns <= instant && instant < i.end_ns; });
}

TEST(Intervals, UnionAndIntersectionInstantByInstant) {
  Rng rng(1);
  for (int round = 0; round < 5000; ++round) {
    const auto a = random_intervals(rng, 8), b = random_intervals(rng, 8);
    const auto ua = interval_union(a), ub = interval_union(b);
    for (std::size_t i = 0; i < ua.size(); ++i) {
      ASSERT_LT(ua[i].begin_ns, ua[i].end_ns);
      if (i > 0) {
        ASSERT_GT(ua[i].begin_ns, ua[i - 1].end_ns);
      }
    }
    std::int64_t total = 0, both = 0;
    for (std::int64_t t = -20; t < 40; ++t) {
      ASSERT_EQ(covers(ua, t), covers(a, t));
      total += covers(a, t) ? 1 : 0;
      both += covers(a, t) && covers(b, t) ? 1 : 0;
    }
    ASSERT_EQ(total_ns(ua), total);
    ASSERT_EQ(intersection_ns(ua, ub), both);
    ASSERT_EQ(intersection_ns(ub, ua), both);
  }
}

TEST(Intervals, ConcurrencyIsTheLargestSetThatOverlapsBeyondTheTolerance) {
  Rng rng(2);
  for (int round = 0; round < 5000; ++round) {
    const auto intervals = random_intervals(rng, 8);
    const std::int64_t tolerance = below(rng, 4);
    int expected = 0;
    for (std::uint32_t set = 1; set < 1U << intervals.size(); ++set) {
      std::int64_t begin = -100, end = 100;
      for (std::size_t i = 0; i < intervals.size(); ++i)
        if ((set >> i & 1) != 0) {
          begin = std::max(begin, intervals[i].begin_ns);
          end = std::min(end, intervals[i].end_ns);
        }
      if (end - begin > (std::popcount(set) == 1 ? 0 : tolerance))
        expected = std::max(expected, std::popcount(set));
    }
    ASSERT_EQ(max_concurrency(intervals, tolerance), static_cast<std::uint32_t>(expected)) << round;
  }
}

TEST(Intervals, Concurrency) {
  EXPECT_EQ(max_concurrency({}, 0), 0U);
  EXPECT_EQ(max_concurrency({{5, 5}}, 0), 0U);
  EXPECT_EQ(max_concurrency({{0, 10}, {10, 20}}, 0), 1U);
  EXPECT_EQ(max_concurrency({{0, 12}, {10, 20}}, 2), 1U);
  EXPECT_EQ(max_concurrency({{0, 13}, {10, 20}}, 2), 2U);
  EXPECT_EQ(max_concurrency({{0, 100}, {50, 52}}, 2), 1U);
  EXPECT_EQ(max_concurrency({{0, 1}}, 1000), 1U);
}

TEST(NodeTimes, MediansOverTheReplays) {
  Rng rng(3);
  for (int round = 0; round < 500; ++round) {
    ir::GraphBuilder builder;
    const std::uint32_t n = 1 + below(rng, 5);
    for (std::uint32_t i = 0; i < n; ++i) builder.add_kernel(ir::kEmptyString, {});
    std::map<std::uint32_t, std::vector<std::int64_t>> expected;
    std::vector<std::int64_t> spans, partial;
    bool any = false;
    for (std::uint32_t r = below(rng, 7); r > 0; --r) {
      std::vector<ir::ReplayOp> ops;
      std::map<std::uint32_t, std::int64_t> sums;
      for (std::uint32_t k = below(rng, 8); k > 0; --k) {
        const std::int64_t start = below(rng, 50), dur = below(rng, 9);
        const std::uint32_t v = below(rng, n + 1);
        ops.push_back(op(v < n ? node(v) : ir::NodeId(), start, start + dur));
        if (v < n) sums[v] += dur;
      }
      for (const auto& [v, sum] : sums) expected[v].push_back(sum);
      any = any || !sums.empty();
      const bool complete = chance(rng, 60);
      if (!ops.empty()) {
        std::int64_t begin = ops[0].start_ns, end = ops[0].end_ns;
        for (const ir::ReplayOp& o : ops) {
          begin = std::min(begin, o.start_ns);
          end = std::max(end, o.end_ns);
        }
        (complete ? spans : partial).push_back(end - begin);
      }
      add_replay(builder, std::move(ops), complete);
    }
    const NodeTimes times = node_times(*finish(builder), below(rng, 12));
    const auto median = [](std::vector<std::int64_t> v) -> std::int64_t {
      if (v.empty()) return 0;
      std::sort(v.begin(), v.end());
      return (v[(v.size() - 1) / 2] + v[v.size() / 2]) / 2;
    };
    ASSERT_EQ(times.available, any);
    for (std::uint32_t v = 0; v < n; ++v) {
      ASSERT_EQ(times.samples[node(v)], expected[v].size());
      ASSERT_EQ(times.median_ns[node(v)], median(expected[v]));
    }
    ASSERT_EQ(times.span_is_lower_bound, spans.empty() && !partial.empty());
    ASSERT_EQ(times.median_span_ns, median(spans.empty() ? partial : spans));
  }
}

TEST(NodeTimes, SpanPercentiles) {
  ir::GraphBuilder builder;
  builder.add_kernel(ir::kEmptyString, {});
  for (std::int64_t i = 20; i >= 1; --i) add_replay(builder, {op(node(0), 1000 * i, 1000 * i + i)});
  const NodeTimes times = node_times(*finish(builder));
  EXPECT_EQ(times.p10_span_ns, 2);
  EXPECT_EQ(times.median_span_ns, 10);
  EXPECT_EQ(times.p90_span_ns, 18);
}

TEST(NodeTimes, NothingWithoutReplayTimes) {
  ir::GraphBuilder builder;
  builder.add_kernel(ir::kEmptyString, {});
  add_replay(builder, {op(node(0), 0, 10)});
  builder.graph().facts.erase(ir::Fact::replay_times);
  const NodeTimes times = node_times(*finish(builder));
  EXPECT_FALSE(times.available);
  EXPECT_EQ(times.median_ns.size(), 1U);
  EXPECT_EQ(times.median_span_ns, 0);
}

TEST(NodeTimes, ClockTolerance) {
  ir::GraphBuilder builder;
  add_replay(builder, {op({}, 1000, 5000), op({}, 4000, 6000)});
  EXPECT_EQ(clock_tolerance_ns(*finish(builder)), 2000);
  add_replay(builder, {op({}, 1000, 5000), op({}, 4000, 6032)});
  EXPECT_EQ(clock_tolerance_ns(*finish(builder)), 100);
}

}  // namespace
}  // namespace cglint::analysis
