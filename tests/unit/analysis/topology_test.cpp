#include "analysis/topology.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "unit/analysis/test_graphs.h"

namespace cglint::analysis {
namespace {

using namespace cglint::testing;

TEST(Topology, TakesTheSmallestReadyNodeEachTime) {
  Rng rng(1);
  for (int round = 0; round < 2000; ++round) {
    const auto graph = random_graph(rng, {});
    const TopologicalOrder order = topological_order(*graph);
    ASSERT_EQ(order.order.size(), graph->node_count());
    std::vector<bool> done(graph->node_count(), false);
    for (std::uint32_t i = 0; i < order.order.size(); ++i) {
      EXPECT_EQ(order.position[order.order[i]], i);
      ir::NodeId smallest;
      for (const ir::NodeId candidate : graph->nodes()) {
        const auto before = graph->predecessors(candidate);
        const bool ready =
            std::all_of(before.begin(), before.end(), [&](ir::NodeId p) { return done[p.index()]; });
        if (!done[candidate.index()] && ready && !smallest.is_valid()) smallest = candidate;
      }
      ASSERT_EQ(order.order[i], smallest);
      done[smallest.index()] = true;
    }
  }
}

TEST(Topology, EmptyGraph) {
  EXPECT_TRUE(topological_order(*kernels(0, {})).order.empty());
}

}  // namespace
}  // namespace cglint::analysis
