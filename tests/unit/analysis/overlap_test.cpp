#include "analysis/overlap.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "unit/analysis/test_graphs.h"
#include "unit/analysis/test_replays.h"

namespace cglint::analysis {
namespace {

using namespace cglint::testing;

std::int64_t median(std::vector<std::int64_t> v) {
  if (v.empty()) return 0;
  std::sort(v.begin(), v.end());
  return (v[(v.size() - 1) / 2] + v[v.size() / 2]) / 2;
}

TEST(RegionOverlaps, InstantByInstant) {
  Rng rng(1);
  for (int round = 0; round < 1500; ++round) {
    // 0 forks to three branches of one or two nodes; 7 joins.
    ir::GraphBuilder builder;
    for (int i = 0; i < 8; ++i) builder.add_kernel(ir::kEmptyString, {});
    for (const auto& [from, to] :
         {std::pair{0U, 1U}, {1U, 2U}, {0U, 3U}, {3U, 4U}, {0U, 5U}, {5U, 6U}, {2U, 7U}, {4U, 7U}, {6U, 7U}})
      builder.add_edge(node(from), node(to));
    constexpr int kScale = 50;  // two units are within the clock's tolerance of 100 ns
    std::vector<std::int64_t> overlap, possible, busy;
    std::uint32_t overlapping = 0;
    for (std::uint32_t r = below(rng, 5); r > 0; --r) {
      std::vector<ir::ReplayOp> ops{op(node(0), 1, 1)};  // not in whole microseconds
      bool busy_at[3][64] = {}, recorded[3] = {};
      for (std::uint32_t k = below(rng, 9); k > 0; --k) {
        const std::uint32_t v = below(rng, 8), start = below(rng, 40), dur = below(rng, 12);
        ops.push_back(
            op(chance(rng, 90) ? node(v) : ir::NodeId(), start * kScale, (start + dur) * kScale, v));
        if (!ops.back().node.is_valid() || v == 0 || v == 7) continue;
        recorded[(v - 1) / 2] = true;
        for (std::uint32_t t = start; t < start + dur; ++t) busy_at[(v - 1) / 2][t] = true;
      }
      add_replay(builder, std::move(ops));
      if (recorded[0] + recorded[1] + recorded[2] < 2) continue;
      std::int64_t hidden = 0, any = 0, branch[3] = {};
      for (int t = 0; t < 64; ++t) {
        const int depth = busy_at[0][t] + busy_at[1][t] + busy_at[2][t];
        any += depth > 0 ? kScale : 0;
        hidden += depth > 1 ? (depth - 1) * kScale : 0;
        for (int b = 0; b < 3; ++b) branch[b] += busy_at[b][t] ? kScale : 0;
      }
      overlap.push_back(hidden);
      busy.push_back(any);
      possible.push_back(branch[0] + branch[1] + branch[2] - *std::max_element(branch, branch + 3));
      overlapping += hidden > 100 ? 1 : 0;
    }
    const auto graph = finish(builder);
    const auto regions = find_fork_join_regions(*graph, topological_order(*graph));
    ASSERT_EQ(regions.size(), 1U);
    const auto overlaps = region_overlaps(*graph, regions);
    ASSERT_EQ(overlaps.size(), 1U);
    ASSERT_EQ(overlaps[0].measured, !busy.empty());
    ASSERT_EQ(overlaps[0].replays, busy.size());
    ASSERT_EQ(overlaps[0].replays_overlapping, overlapping);
    ASSERT_EQ(overlaps[0].median_overlap_ns, median(overlap));
    ASSERT_EQ(overlaps[0].median_possible_ns, median(possible));
    ASSERT_EQ(overlaps[0].median_busy_ns, median(busy));
    ASSERT_LE(overlaps[0].efficiency(), 1.0);
  }
}

TEST(RegionOverlaps, FullOverlapOfThreeBranchesIsFullEfficiency) {
  ir::GraphBuilder builder;
  for (int i = 0; i < 5; ++i) builder.add_kernel(ir::kEmptyString, {});
  for (std::uint32_t b : {1U, 2U, 3U}) {
    builder.add_edge(node(0), node(b));
    builder.add_edge(node(b), node(4));
  }
  add_replay(builder, {op(node(1), 0, 1001), op(node(2), 0, 1001), op(node(3), 0, 1001)});
  const auto graph = finish(builder);
  const auto overlaps = region_overlaps(*graph, find_fork_join_regions(*graph, topological_order(*graph)));
  EXPECT_DOUBLE_EQ(overlaps.at(0).efficiency(), 1.0);
  EXPECT_EQ(overlaps.at(0).replays_overlapping, 1U);
}

TEST(RegionOverlaps, NothingIsSaidOfATruncatedRegion) {
  ir::GraphBuilder builder;
  for (int i = 0; i < 3; ++i) builder.add_kernel(ir::kEmptyString, {});
  builder.add_edge(node(0), node(1));
  builder.add_edge(node(0), node(2));
  add_replay(builder, {op(node(1), 0, 1001), op(node(2), 0, 1001)});
  const auto graph = finish(builder);
  auto regions = find_fork_join_regions(*graph, topological_order(*graph));
  EXPECT_TRUE(region_overlaps(*graph, regions).at(0).measured);
  regions.at(0).truncated = true;
  EXPECT_FALSE(region_overlaps(*graph, regions).at(0).measured);
}

TEST(TimelineStats, InstantByInstant) {
  Rng rng(2);
  for (int round = 0; round < 4000; ++round) {
    std::vector<ir::ReplayOp> ops(below(rng, 9));
    for (ir::ReplayOp& o : ops) {
      o.start_ns = below(rng, 60);
      o.end_ns = o.start_ns + below(rng, 10);
    }
    const TimelineStats stats = timeline_stats(ops);
    if (ops.empty()) {
      EXPECT_EQ(stats.span_ns, 0);
      EXPECT_TRUE(stats.largest_gaps.empty());
      continue;
    }
    std::int64_t first = 1000, last = -1, busy = 0, sum = 0;
    for (const ir::ReplayOp& o : ops) {
      first = std::min(first, o.start_ns);
      last = std::max(last, o.end_ns);
      sum += o.dur_ns();
    }
    std::vector<std::int64_t> gaps;
    std::int64_t idle_run = 0;
    for (std::int64_t t = first; t < last; ++t) {
      const bool is_busy = std::any_of(
          ops.begin(), ops.end(), [&](const ir::ReplayOp& o) { return o.start_ns <= t && t < o.end_ns; });
      const bool begins =
          std::any_of(ops.begin(), ops.end(), [&](const ir::ReplayOp& o) { return o.start_ns == t; });
      if (begins && idle_run > 0) {
        gaps.push_back(idle_run);
        idle_run = 0;
      }
      busy += is_busy ? 1 : 0;
      if (!is_busy) ++idle_run;
    }
    if (idle_run > 0) gaps.push_back(idle_run);
    std::sort(gaps.rbegin(), gaps.rend());
    gaps.resize(std::min<std::size_t>(gaps.size(), 5));
    ASSERT_EQ(stats.span_ns, last - first);
    ASSERT_EQ(stats.busy_ns, busy);
    ASSERT_EQ(stats.idle_ns, last - first - busy);
    ASSERT_EQ(stats.overlap_ns, sum - busy);
    ASSERT_EQ(stats.largest_gaps.size(), gaps.size());
    for (std::size_t i = 0; i < gaps.size(); ++i) {
      const TimelineStats::Gap& gap = stats.largest_gaps[i];
      ASSERT_EQ(gap.dur_ns, gaps[i]);
      ASSERT_EQ(ops[gap.after_op].end_ns, gap.begin_ns);
      ASSERT_EQ(ops[gap.before_op].start_ns, gap.begin_ns + gap.dur_ns);
    }
  }
}

}  // namespace
}  // namespace cglint::analysis
