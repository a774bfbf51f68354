#include "analysis/analyses.h"

#include <gtest/gtest.h>

#include "unit/analysis/test_graphs.h"
#include "unit/analysis/test_replays.h"

namespace cglint::analysis {
namespace {

using namespace cglint::testing;

ir::GraphId add(ir::Recording& recording, std::unique_ptr<ir::Graph> graph) {
  return recording.graphs.push_back(std::move(graph));
}

TEST(Analyses, EachIsComputedOnce) {
  ir::Recording recording;
  const ir::GraphId id = add(recording, decode_graph(4, 3, 2, 2));
  const KernelIdentities identities(recording, KernelTable::builtin());
  Analyses analyses(recording, id, identities);
  EXPECT_EQ(&analyses.graph(), recording.graphs[id].get());
  EXPECT_EQ(&analyses.recording(), &recording);
  EXPECT_EQ(&analyses.identities(), &identities);
  EXPECT_EQ(&analyses.topology(), &analyses.topology());
  EXPECT_EQ(&analyses.starts_after(), &analyses.starts_after());
  EXPECT_EQ(&analyses.width(), &analyses.width());
  EXPECT_EQ(&analyses.layers(), &analyses.layers());
  EXPECT_EQ(&analyses.fork_join_regions(), &analyses.fork_join_regions());
  EXPECT_EQ(analyses.width().count, 2U);
  EXPECT_EQ(analyses.fork_join_regions().size(), 4U);
  EXPECT_EQ(analyses.region_overlaps().size(), 4U);
  EXPECT_EQ(analyses.critical_path().length, 4 * (3 + 2 + 1));
  EXPECT_FALSE(analyses.node_times().available);
  EXPECT_FALSE(analyses.replay_streams().available);
  EXPECT_EQ(analyses.predicted_streams().stream.size(), analyses.graph().node_count());
}

TEST(Analyses, TheRelationsAreSharedWhereEveryEdgeIsFull) {
  ir::Recording recording;
  const ir::GraphId plain = add(recording, kernels(2, {{0, 1}}));
  ir::GraphBuilder builder;
  builder.add_kernel(ir::kEmptyString, {});
  builder.add_kernel(ir::kEmptyString, {});
  builder.add_edge(node(0), node(1), {ir::kPortLaunchOrder, 0, ir::EdgeType::programmatic});
  const ir::GraphId typed = add(recording, finish(builder));
  builder.add_kernel(ir::kEmptyString, {});
  builder.add_kernel(ir::kEmptyString, {});
  builder.add_edge(node(0), node(1), {ir::kPortProgrammatic, 0, ir::EdgeType::programmatic});
  const ir::GraphId programmatic = add(recording, finish(builder));
  const KernelIdentities identities(recording, KernelTable::builtin());
  Analyses a(recording, plain, identities), b(recording, typed, identities),
      c(recording, programmatic, identities);
  EXPECT_EQ(&a.certainly_memory_ordered_after(), &a.starts_after());
  EXPECT_EQ(&b.certainly_memory_ordered_after(), &b.memory_ordered_after());
  EXPECT_TRUE(c.memory_ordered_after().ordered(node(0), node(1)));
  EXPECT_TRUE(c.certainly_memory_ordered_after().unordered(node(0), node(1)));
  EXPECT_EQ(&a.memory_ordered_after(), &a.starts_after());
  EXPECT_TRUE(b.starts_after().ordered(node(0), node(1)));
  EXPECT_TRUE(b.memory_ordered_after().unordered(node(0), node(1)));
}

TEST(Analyses, EmptyAndSingleNodeGraphs) {
  for (const std::uint32_t n : {0U, 1U}) {
    ir::Recording recording;
    const ir::GraphId id = add(recording, kernels(n, {}));
    const KernelIdentities identities(recording, KernelTable::builtin());
    Analyses analyses(recording, id, identities);
    EXPECT_EQ(analyses.topology().order.size(), n);
    EXPECT_EQ(analyses.starts_after().chain_count(), n);
    EXPECT_EQ(analyses.memory_ordered_after().chain_count(), n);
    EXPECT_EQ(analyses.width().count, n);
    EXPECT_EQ(analyses.critical_path().length, n);
    EXPECT_TRUE(analyses.fork_join_regions().empty());
    EXPECT_TRUE(analyses.region_overlaps().empty());
    EXPECT_EQ(analyses.layers().layer.size(), n);
    EXPECT_FALSE(analyses.node_times().available);
    EXPECT_FALSE(analyses.replay_streams().available);
    EXPECT_EQ(analyses.predicted_streams().stream.size(), n);
  }
}

TEST(Analyses, MeasuredTimesReachTheCriticalPath) {
  ir::Recording recording;
  ir::GraphBuilder builder;
  for (int i = 0; i < 4; ++i) builder.add_kernel(ir::kEmptyString, {});
  for (const auto& [from, to] : {std::pair{0U, 1U}, {0U, 2U}, {1U, 3U}, {2U, 3U}})
    builder.add_edge(node(from), node(to));
  add_replay(builder, {op(node(0), 0, 1000, 7), op(node(1), 1001, 2000, 7), op(node(2), 1001, 6001, 8),
                       op(node(3), 6001, 7001, 7)});
  const ir::GraphId id = add(recording, finish(builder));
  const KernelIdentities identities(recording, KernelTable::builtin());
  Analyses analyses(recording, id, identities);
  EXPECT_EQ(analyses.critical_path().path, (std::vector{node(0), node(2), node(3)}));
  EXPECT_EQ(analyses.critical_path().length, 7000);
  EXPECT_EQ(analyses.critical_path().slack[node(1)], 4001);
  EXPECT_EQ(analyses.replay_streams().max, 2U);
  EXPECT_DOUBLE_EQ(analyses.region_overlaps().at(0).efficiency(), 1.0);
}

}  // namespace
}  // namespace cglint::analysis
