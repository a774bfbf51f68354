#include "analysis/width.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "analysis/reachability.h"
#include "unit/analysis/test_graphs.h"

namespace cglint::analysis {
namespace {

using namespace cglint::testing;

void expect_witness(const Width& width, const ir::Graph& graph, const TopologicalOrder& order) {
  ASSERT_EQ(width.antichain.size(), width.count);
  ASSERT_TRUE(std::is_sorted(width.antichain.begin(), width.antichain.end()));
  const Reachability reach = starts_after(graph, order);
  for (const ir::NodeId a : width.antichain) {
    ASSERT_TRUE(is_active_work(graph, a));
    for (const ir::NodeId b : width.antichain)
      if (a != b) {
        ASSERT_TRUE(reach.unordered(a, b));
      }
  }
}

TEST(Width, IsTheLargestAntichain) {
  Rng rng(1);
  for (int round = 0; round < 6000; ++round) {
    const auto graph = random_graph(rng, {.max_nodes = 11, .edge_types = true});
    const TopologicalOrder order = topological_order(*graph);
    const Reachability reach = starts_after(*graph, order);
    const std::size_t n = graph->node_count();
    std::vector<std::uint32_t> ordered(n, 0);  // bit mask of the nodes that each may not stand beside
    std::uint32_t allowed = 0;
    for (const ir::NodeId a : graph->nodes()) {
      if (is_active_work(*graph, a)) allowed |= 1U << a.index();
      for (const ir::NodeId b : graph->nodes())
        if (a != b && reach.ordered(a, b)) ordered[a.index()] |= 1U << b.index();
    }
    int expected = 0;
    for (std::uint32_t set = 0; set < 1U << n; ++set) {
      if ((set & ~allowed) != 0 || std::popcount(set) <= expected) continue;
      bool is_antichain = true;
      for (std::size_t a = 0; a < n && is_antichain; ++a)
        if ((set >> a & 1) != 0 && (ordered[a] & set) != 0) is_antichain = false;
      if (is_antichain) expected = std::popcount(set);
    }
    const Width width = width_of(*graph, order);
    ASSERT_TRUE(width.exact);
    ASSERT_EQ(width.count, static_cast<std::uint32_t>(expected)) << round;
    ASSERT_NO_FATAL_FAILURE(expect_witness(width, *graph, order));
    // A stop at any time leaves an upper bound.
    const Width stopped = width_of(*graph, order, below(rng, 30));
    ASSERT_GE(stopped.count, width.count);
    if (stopped.exact) {
      ASSERT_EQ(stopped.count, width.count);
    } else {
      ASSERT_TRUE(stopped.antichain.empty());
    }
  }
}

TEST(Width, LargerRandomGraphsHaveAWitnessAndAChainCoverAboveIt) {
  Rng rng(2);
  for (int round = 0; round < 150; ++round) {
    const auto graph = random_graph(rng, {.max_nodes = 150});
    const TopologicalOrder order = topological_order(*graph);
    const Width width = width_of(*graph, order);
    ASSERT_TRUE(width.exact);
    ASSERT_NO_FATAL_FAILURE(expect_witness(width, *graph, order));  // so the width is at least that
    // and not more: Hopcroft-Karp's smaller sibling, a plain maximum matching on the closure, gives the
    // smallest number of chains.
    const Reachability reach = starts_after(*graph, order);
    std::vector<ir::NodeId> activity;
    for (const ir::NodeId v : graph->nodes())
      if (is_active_work(*graph, v)) activity.push_back(v);
    std::vector<int> match(activity.size(), -1);
    std::vector<bool> tried;
    const auto augment = [&](const auto& self, std::size_t a) -> bool {
      for (std::size_t b = 0; b < activity.size(); ++b) {
        if (tried[b] || !reach.reaches(activity[a], activity[b])) continue;
        tried[b] = true;
        if (match[b] < 0 || self(self, static_cast<std::size_t>(match[b]))) {
          match[b] = static_cast<int>(a);
          return true;
        }
      }
      return false;
    };
    std::size_t chains = activity.size();
    for (std::size_t a = 0; a < activity.size(); ++a) {
      tried.assign(activity.size(), false);
      if (augment(augment, a)) --chains;
    }
    ASSERT_EQ(width.count, chains);
  }
}

TEST(Width, SmallCases) {
  const auto of = [](const std::unique_ptr<ir::Graph>& graph) {
    return width_of(*graph, topological_order(*graph));
  };
  EXPECT_EQ(of(kernels(0, {})).count, 0U);
  EXPECT_TRUE(of(kernels(0, {})).exact);
  EXPECT_EQ(of(kernels(1, {})).count, 1U);
  EXPECT_EQ(of(kernels(7, {})).count, 7U);
  ir::GraphBuilder builder;
  builder.add_node(ir::NodeKind::empty, ir::kEmptyString);
  builder.add_node(ir::NodeKind::host, ir::kEmptyString);
  EXPECT_EQ(of(finish(builder)).count, 0U);
  // The path cover must share the empty node: two kernels before, two after.
  for (std::uint32_t i = 0; i < 5; ++i) {
    if (i == 2)
      builder.add_node(ir::NodeKind::empty, ir::kEmptyString);
    else
      builder.add_kernel(ir::kEmptyString, {});
  }
  for (const auto& [from, to] : {std::pair{0U, 2U}, {1U, 2U}, {2U, 3U}, {2U, 4U}})
    builder.add_edge(node(from), node(to));
  EXPECT_EQ(of(finish(builder)).count, 2U);
}

TEST(Width, DecodeGraphsInAboutLinearWork) {
  for (const std::uint32_t branches : {1U, 2U, 8U, 17U}) {
    const auto graph = decode_graph(1000, 10, branches, 4);
    const TopologicalOrder order = topological_order(*graph);
    const Width width = width_of(*graph, order);
    EXPECT_TRUE(width.exact);
    EXPECT_EQ(width.count, branches);
    EXPECT_LT(width.steps, 40 * (graph->node_count() + graph->edge_count()));
    ASSERT_NO_FATAL_FAILURE(expect_witness(width, *graph, order));
  }
}

}  // namespace
}  // namespace cglint::analysis
