#include "analysis/critical_path.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "unit/analysis/test_graphs.h"

namespace cglint::analysis {
namespace {

using namespace cglint::testing;

// The longest of all paths, one by one.
struct Longest {
  const ir::Graph& graph;
  const std::vector<std::int64_t>& weight;
  std::int64_t best = 0;

  void from(ir::NodeId v, std::int64_t started) {
    best = std::max(best, started + weight[v.index()]);
    for (const ir::EdgeId e : graph.out_edges(v))
      from(graph.edge_to[e], started + (graph.data(e).is_launch_order() ? 0 : weight[v.index()]));
  }
};
std::int64_t longest(const ir::Graph& graph, const std::vector<std::int64_t>& weight) {
  Longest search{graph, weight};
  for (const ir::NodeId v : graph.nodes()) search.from(v, 0);
  return search.best;
}

TEST(CriticalPath, RandomGraphs) {
  Rng rng(1);
  for (int round = 0; round < 3000; ++round) {
    const auto graph = random_graph(rng, {.edge_types = true});
    const std::size_t n = graph->node_count();
    NodeTimes times;
    times.available = chance(rng, 70);
    std::vector<std::int64_t> weight(n);
    for (const ir::NodeId v : graph->nodes()) {
      weight[v.index()] = chance(rng, 20) ? 0 : below(rng, 12);
      times.median_ns.push_back(weight[v.index()]);
      if (!times.available) weight[v.index()] = is_active_work(*graph, v) ? 1 : 0;
    }
    const CriticalPath result = critical_path(*graph, topological_order(*graph), times);
    ASSERT_EQ(result.measured, times.available);
    ASSERT_EQ(result.length, longest(*graph, weight)) << round;
    // The path is one, and as long as it says.
    ASSERT_FALSE(result.path.empty());
    std::int64_t started = 0;
    for (std::size_t i = 0; i + 1 < result.path.size(); ++i) {
      bool found = false;
      for (const ir::EdgeId e : graph->out_edges(result.path[i])) {
        if (graph->edge_to[e] != result.path[i + 1]) continue;
        found = true;
        if (!graph->data(e).is_launch_order()) started += weight[result.path[i].index()];
      }
      ASSERT_TRUE(found);
    }
    ASSERT_EQ(started + weight[result.path.back().index()], result.length);
    // The slack is free, and one more is not.
    for (std::size_t v = 0; v < n; ++v) {
      auto longer = weight;
      longer[v] += result.slack.raw()[v];
      ASSERT_GE(result.slack.raw()[v], 0);
      ASSERT_EQ(longest(*graph, longer), result.length) << round << " node " << v;
      ++longer[v];
      ASSERT_EQ(longest(*graph, longer), result.length + 1) << round << " node " << v;
    }
  }
}

TEST(CriticalPath, EmptyGraphAndSingleNode) {
  const auto empty = kernels(0, {});
  const CriticalPath none = critical_path(*empty, topological_order(*empty), node_times(*empty));
  EXPECT_EQ(none.length, 0);
  EXPECT_TRUE(none.path.empty());
  const auto one = kernels(1, {});
  const CriticalPath single = critical_path(*one, topological_order(*one), node_times(*one));
  EXPECT_FALSE(single.measured);
  EXPECT_EQ(single.length, 1);
  EXPECT_EQ(single.path, std::vector{node(0)});
  EXPECT_EQ(single.slack[node(0)], 0);
}

}  // namespace
}  // namespace cglint::analysis
