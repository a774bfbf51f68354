#include "ir/graph_builder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace cglint::ir {
namespace {

std::unique_ptr<Graph> build(std::size_t nodes, const std::vector<std::pair<std::uint32_t, std::uint32_t>>& edges) {
  GraphBuilder builder;
  for (std::size_t i = 0; i < nodes; ++i) builder.add_node(NodeKind::empty, kEmptyString);
  for (const auto& [from, to] : edges) builder.add_edge(NodeId(from), NodeId(to));
  auto graph = builder.finish();
  return graph ? std::move(*graph) : nullptr;
}

TEST(GraphBuilder, EmptyGraph) {
  const auto graph = build(0, {});
  ASSERT_NE(graph, nullptr);
  EXPECT_EQ(graph->node_count(), 0U);
  EXPECT_EQ(graph->edge_count(), 0U);
}

TEST(GraphBuilder, NeighboursMirrorEachOtherOnRandomGraphs) {
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    const auto draw = [&random](std::uint32_t bound) { return static_cast<std::uint32_t>(random() % bound); };
    const std::uint32_t n = 1 + draw(30);
    std::set<std::pair<std::uint32_t, std::uint32_t>> wanted;
    std::vector<std::pair<std::uint32_t, std::uint32_t>> given;
    for (std::uint32_t i = 0; i < n * 2; ++i) {
      const std::uint32_t a = draw(n), b = draw(n);
      if (a >= b) continue;
      given.emplace_back(a, b);
      wanted.insert({a, b});
    }
    std::shuffle(given.begin(), given.end(), random);
    const auto graph = build(n, given);
    ASSERT_NE(graph, nullptr);
    ASSERT_EQ(graph->edge_count(), wanted.size());
    std::set<std::pair<std::uint32_t, std::uint32_t>> forward, backward, by_edge;
    for (const NodeId node : graph->nodes()) {
      for (const NodeId next : graph->successors(node)) forward.insert({node.index(), next.index()});
      for (const NodeId previous : graph->predecessors(node)) backward.insert({previous.index(), node.index()});
      EXPECT_TRUE(std::is_sorted(graph->predecessors(node).begin(), graph->predecessors(node).end()));
      for (const EdgeId edge : graph->out_edges(node)) EXPECT_EQ(graph->edge_from[edge], node);
      std::size_t i = 0;
      for (const EdgeId edge : graph->in_edges(node)) {
        EXPECT_EQ(graph->edge_to[edge], node);
        EXPECT_EQ(graph->edge_from[edge], graph->predecessors(node)[i++]);
        by_edge.insert({graph->edge_from[edge].index(), node.index()});
      }
    }
    EXPECT_EQ(forward, wanted);
    EXPECT_EQ(backward, wanted);
    EXPECT_EQ(by_edge, wanted);
  }
}

TEST(GraphBuilder, KeepsTheStrongestOfEqualEdges) {
  GraphBuilder builder;
  const NodeId a = builder.add_node(NodeKind::kernel, kEmptyString);
  const NodeId b = builder.add_node(NodeKind::kernel, kEmptyString);
  builder.add_edge(a, b, EdgeData{kPortLaunchOrder, 0, EdgeType::full});
  builder.add_edge(a, b, EdgeData{kPortProgrammatic, 0, EdgeType::programmatic});
  const auto programmatic = builder.finish();
  ASSERT_TRUE(programmatic);
  ASSERT_EQ((*programmatic)->edge_count(), 1U);
  EXPECT_TRUE((*programmatic)->data(EdgeId(0)).is_programmatic());
}

TEST(GraphBuilder, RefusesBadEdges) {
  const auto error_of = [](std::size_t nodes, const std::vector<std::pair<std::uint32_t, std::uint32_t>>& edges) {
    GraphBuilder builder;
    for (std::size_t i = 0; i < nodes; ++i) builder.add_node(NodeKind::empty, kEmptyString);
    for (const auto& [from, to] : edges) builder.add_edge(NodeId(from), NodeId(to));
    const auto graph = builder.finish();
    return graph ? std::string() : graph.error().message;
  };
  EXPECT_NE(error_of(2, {{0, 2}}).find("node 2"), std::string::npos);
  EXPECT_NE(error_of(2, {{0, 4294967295U}}).find("4294967295"), std::string::npos);
  EXPECT_NE(error_of(2, {{1, 1}}).find("itself"), std::string::npos);
  EXPECT_NE(error_of(3, {{0, 1}, {1, 2}, {2, 1}}).find("cycle"), std::string::npos);
}

TEST(GraphBuilder, ColumnsFillUpWithDefaults) {
  GraphBuilder builder;
  builder.add_node(NodeKind::empty, kEmptyString);
  const NodeId second = builder.add_node(NodeKind::empty, kEmptyString);
  builder.set_device(second, 3);
  builder.set_enabled(second, false);
  builder.add_node(NodeKind::empty, kEmptyString);
  const auto graph = builder.finish();
  ASSERT_TRUE(graph);
  EXPECT_EQ((*graph)->device.raw(), (std::vector<std::int16_t>{-1, 3, -1}));
  EXPECT_EQ((*graph)->enabled.raw(), (std::vector<std::uint8_t>{1, 0, 1}));
  EXPECT_TRUE((*graph)->sequence.empty());
}

TEST(GraphBuilder, ParamsStayWithTheirKernel) {
  GraphBuilder builder;
  ParamWord word;
  for (std::uint64_t k = 0; k < 3; ++k) {
    const NodeId node = builder.add_kernel(kEmptyString, KernelNode());
    for (std::uint64_t p = 0; p < k; ++p) {
      word.value = k * 10 + p;
      builder.add_params(node, std::span(&word, 1));
    }
  }
  const auto graph = builder.finish();
  ASSERT_TRUE(graph);
  for (std::uint32_t k = 0; k < 3; ++k) {
    const auto words = (*graph)->params_of(*(*graph)->kernel(NodeId(k)));
    ASSERT_EQ(words.size(), k);
    for (std::uint32_t p = 0; p < k; ++p) EXPECT_EQ(words[p].value, k * 10 + p);
  }
}

TEST(Verify, RefusesReplaysThatLeaveTheirTables) {
  GraphBuilder builder;
  builder.add_node(NodeKind::kernel, kEmptyString);
  Replay replay;
  replay.ops = {0, 2};
  builder.graph().replay_ops.push_back({});
  builder.graph().replays.push_back(replay);
  EXPECT_FALSE(builder.finish());

  GraphBuilder names_missing_node;
  names_missing_node.add_node(NodeKind::kernel, kEmptyString);
  replay.ops = {0, 1};
  ReplayOp op;
  op.node = NodeId(5);
  names_missing_node.graph().replay_ops.push_back(op);
  names_missing_node.graph().replays.push_back(replay);
  EXPECT_FALSE(names_missing_node.finish());
}

}  // namespace
}  // namespace cglint::ir
