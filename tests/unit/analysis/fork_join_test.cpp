#include "analysis/fork_join.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "unit/analysis/test_graphs.h"

namespace cglint::analysis {
namespace {

using namespace cglint::testing;
using Set = std::set<ir::NodeId>;

// All nodes that `from` leads to (itself included) without passing through `avoid`.
Set reach_without(const ir::Graph& graph, ir::NodeId from, ir::NodeId avoid) {
  Set found;
  std::vector<ir::NodeId> stack;
  if (from != avoid) stack.push_back(from);
  while (!stack.empty()) {
    const ir::NodeId v = stack.back();
    stack.pop_back();
    if (!found.insert(v).second) continue;
    for (const ir::NodeId next : graph.successors(v))
      if (next != avoid) stack.push_back(next);
  }
  return found;
}

// Is `d` on every path from `v` to a node without successors?
bool post_dominates(const ir::Graph& graph, ir::NodeId d, ir::NodeId v) {
  const Set found = reach_without(graph, v, d);
  return std::none_of(found.begin(), found.end(), [&](ir::NodeId x) { return graph.successors(x).empty(); });
}

// The first node, in topological order, that post-dominates all heads.
ir::NodeId meeting_point(const ir::Graph& graph, const TopologicalOrder& order,
                         const std::vector<ir::NodeId>& heads) {
  for (const ir::NodeId d : order.order)
    if (std::all_of(heads.begin(), heads.end(), [&](ir::NodeId h) { return post_dominates(graph, d, h); }))
      return d;
  return {};
}

void check_region(const ForkJoinRegion& region, const ir::Graph& graph, const TopologicalOrder& order,
                  std::vector<ir::NodeId> heads) {
  ASSERT_FALSE(region.truncated);
  const ir::NodeId join = meeting_point(graph, order, heads);
  ASSERT_EQ(region.join, join);
  ASSERT_EQ(region.has_direct_edge, std::find(heads.begin(), heads.end(), join) != heads.end());
  std::erase(heads, join);
  ASSERT_GE(region.branches.size() + (region.has_direct_edge ? 1 : 0), 2U);
  ASSERT_EQ(region.branches.size(), heads.size());
  Set expected;
  for (const ir::NodeId head : heads) expected.merge(reach_without(graph, head, join));
  std::map<ir::NodeId, std::size_t> branch_of;
  for (std::size_t b = 0; b < heads.size(); ++b) {
    const Branch& branch = region.branches[b];
    ASSERT_EQ(branch.head, heads[b]);
    ASSERT_TRUE(std::is_sorted(branch.nodes.begin(), branch.nodes.end()));
    for (const ir::NodeId v : branch.nodes) ASSERT_TRUE(branch_of.emplace(v, b).second);
    ASSERT_TRUE(branch_of.contains(branch.head));
  }
  ASSERT_EQ(branch_of.size(), expected.size());
  bool disjoint = true;
  for (const auto& [v, b] : branch_of) {
    ASSERT_TRUE(expected.contains(v));
    std::optional<ir::NodeId> first;
    for (const ir::NodeId p : graph.predecessors(v)) {
      if (!branch_of.contains(p)) continue;
      if (branch_of[p] != b) disjoint = false;
      if (!first || order.position[p] < order.position[*first]) first = p;
    }
    if (v == heads[b]) continue;
    ASSERT_TRUE(first.has_value());
    ASSERT_EQ(branch_of[*first], b);
  }
  ASSERT_EQ(region.disjoint, disjoint);
  for (const Branch& branch : region.branches) {
    ir::NodeId last, last_to_join;
    for (const ir::NodeId v : branch.nodes) {
      const auto next = graph.successors(v);
      const bool to_join = std::find(next.begin(), next.end(), join) != next.end();
      if (!last.is_valid() || order.position[v] > order.position[last]) last = v;
      if (to_join && (!last_to_join.is_valid() || order.position[v] > order.position[last_to_join]))
        last_to_join = v;
    }
    ASSERT_EQ(branch.tail, last_to_join.is_valid() ? last_to_join : last);
  }
}

TEST(ForkJoin, RandomGraphs) {
  Rng rng(1);
  std::size_t with_join = 0, crossing = 0, direct = 0;
  for (int round = 0; round < 4000; ++round) {
    const auto graph = random_graph(rng, {.max_nodes = 11});
    const TopologicalOrder order = topological_order(*graph);
    const auto regions = find_fork_join_regions(*graph, order);
    std::size_t i = 0;
    std::vector<ir::NodeId> roots;
    for (const ir::NodeId v : graph->nodes())
      if (graph->predecessors(v).empty()) roots.push_back(v);
    if (roots.size() >= 2) {
      ASSERT_LT(i, regions.size());
      ASSERT_FALSE(regions[i].fork.is_valid());
      ASSERT_NO_FATAL_FAILURE(check_region(regions[i++], *graph, order, roots)) << round;
    }
    for (const ir::NodeId v : graph->nodes()) {
      const auto next = graph->successors(v);
      if (next.size() < 2) continue;
      ASSERT_LT(i, regions.size());
      ASSERT_EQ(regions[i].fork, v);
      ASSERT_NO_FATAL_FAILURE(check_region(regions[i++], *graph, order, {next.begin(), next.end()})) << round;
    }
    ASSERT_EQ(i, regions.size());
    for (const ForkJoinRegion& region : regions) {
      with_join += region.join.is_valid() ? 1 : 0;
      crossing += region.disjoint ? 0 : 1;
      direct += region.has_direct_edge ? 1 : 0;
    }
  }
  EXPECT_GT(with_join, 500U);
  EXPECT_GT(crossing, 500U);
  EXPECT_GT(direct, 300U);
}

TEST(ForkJoin, NestedRegions) {
  //      1 - (2 | 3) - 4
  // 0 <                   > 6
  //      5
  const auto graph = kernels(7, {{0, 1}, {0, 5}, {1, 2}, {1, 3}, {2, 4}, {3, 4}, {4, 6}, {5, 6}});
  const auto regions = find_fork_join_regions(*graph, topological_order(*graph));
  ASSERT_EQ(regions.size(), 2U);
  EXPECT_EQ(regions[0].fork, node(0));
  EXPECT_EQ(regions[0].join, node(6));
  EXPECT_EQ(regions[0].branches[0].nodes, (std::vector{node(1), node(2), node(3), node(4)}));
  EXPECT_EQ(regions[0].branches[0].tail, node(4));
  EXPECT_EQ(regions[0].branches[1].nodes, std::vector{node(5)});
  EXPECT_TRUE(regions[0].disjoint);
  EXPECT_EQ(regions[1].fork, node(1));
  EXPECT_EQ(regions[1].join, node(4));
}

TEST(ForkJoin, TwoRootsAndNoRoots) {
  const auto none = kernels(0, {});
  EXPECT_TRUE(find_fork_join_regions(*none, topological_order(*none)).empty());
  const auto chain = kernels(5, {{0, 1}, {1, 2}, {2, 3}, {3, 4}});
  EXPECT_TRUE(find_fork_join_regions(*chain, topological_order(*chain)).empty());
  const auto graph = kernels(4, {{0, 1}, {1, 3}, {2, 3}});
  const auto regions = find_fork_join_regions(*graph, topological_order(*graph));
  ASSERT_EQ(regions.size(), 1U);
  EXPECT_FALSE(regions[0].fork.is_valid());
  EXPECT_EQ(regions[0].join, node(3));
  EXPECT_EQ(regions[0].branches[0].nodes, (std::vector{node(0), node(1)}));
  EXPECT_EQ(regions[0].branches[1].nodes, std::vector{node(2)});
}

TEST(ForkJoin, OneRegionForEachLayer) {
  const auto graph = decode_graph(128, 10, 3, 5);
  const auto regions = find_fork_join_regions(*graph, topological_order(*graph));
  ASSERT_EQ(regions.size(), 128U);
  for (const ForkJoinRegion& region : regions) {
    ASSERT_EQ(region.branches.size(), 3U);
    for (const Branch& branch : region.branches) EXPECT_EQ(branch.nodes.size(), 5U);
    EXPECT_TRUE(region.disjoint && region.join.is_valid() && !region.truncated);
  }
}

TEST(ForkJoin, DeadEndsOffAChainAreListedUpToTheLimit) {
  // Node 2i leads on to 2i + 2 and to the dead end 2i + 1: the regions would list n^2 / 4 nodes.
  constexpr std::uint32_t kNodes = 40001;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> edges;
  for (std::uint32_t i = 0; i + 2 < kNodes; i += 2) {
    edges.emplace_back(i, i + 1);
    edges.emplace_back(i, i + 2);
  }
  const auto graph = kernels(kNodes, edges);
  const auto regions = find_fork_join_regions(*graph, topological_order(*graph));
  ASSERT_EQ(regions.size(), 20000U);
  std::size_t listed = 0, truncated = 0;
  for (const ForkJoinRegion& region : regions) {
    ASSERT_EQ(region.branches.size(), 2U);
    EXPECT_FALSE(region.join.is_valid());
    truncated += region.truncated ? 1 : 0;
    for (const Branch& branch : region.branches) listed += branch.nodes.size();
  }
  EXPECT_TRUE(regions.front().truncated);
  EXPECT_FALSE(regions.back().truncated);
  EXPECT_GT(truncated, 0U);
  EXPECT_LT(listed, kMinListedNodes + 2 * kNodes);
}

}  // namespace
}  // namespace cglint::analysis
