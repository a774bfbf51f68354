#include "analysis/predicted_streams.h"

#include <gtest/gtest.h>

#include <string>

#include "analysis/analyses.h"
#include "analysis/stream_graph.h"
#include "unit/analysis/test_graphs.h"

namespace cglint::analysis {
namespace {

using namespace cglint::testing;

constexpr ir::FactSet kFacts{ir::Fact::nodes, ir::Fact::edges, ir::Fact::creation_order, ir::Fact::edge_data};

ir::GraphId add(ir::Recording& recording, std::unique_ptr<ir::Graph> graph) {
  graph->facts = kFacts;
  return recording.graphs.push_back(std::move(graph));
}

// A kernel, child graphs with these bodies as its children, and a kernel that joins them.
std::unique_ptr<ir::Graph> fork_of_boxes(const std::vector<ir::GraphId>& bodies) {
  ir::GraphBuilder builder;
  builder.add_kernel(ir::kEmptyString, {});
  for (const ir::GraphId body : bodies) builder.add_child_graph(ir::kEmptyString, {body});
  builder.add_kernel(ir::kEmptyString, {});
  const auto last = static_cast<std::uint32_t>(bodies.size() + 1);
  for (std::uint32_t i = 1; i < last; ++i) {
    builder.add_edge(node(0), node(i));
    builder.add_edge(node(i), node(last));
  }
  return finish(builder);
}

bool mentions(const PredictedStreams& predicted, std::string_view text) {
  return predicted.note.find(text) != std::string::npos;
}

TEST(PredictedStreams, CountsTheStreamsInsideChildGraphs) {
  ir::Recording recording;
  const ir::GraphId fork = add(recording, kernels(3, {{0, 1}, {0, 2}}));
  const ir::GraphId nested = add(recording, fork_of_boxes({fork, fork}));
  const ir::GraphId top = add(recording, fork_of_boxes({nested, fork}));
  // The same without boxes: 0 -> (1 -> (2, 3, 4; 5, 6, 7) -> 8; 9, 10, 11) -> 12.
  const ir::GraphId flat = add(recording, kernels(13, {{0, 1},
                                                       {1, 2},
                                                       {2, 3},
                                                       {2, 4},
                                                       {1, 5},
                                                       {5, 6},
                                                       {5, 7},
                                                       {3, 8},
                                                       {4, 8},
                                                       {6, 8},
                                                       {7, 8},
                                                       {0, 9},
                                                       {9, 10},
                                                       {9, 11},
                                                       {8, 12},
                                                       {10, 12},
                                                       {11, 12}}));
  const PredictedStreams boxed = predict_streams(recording, *recording.graphs[top]);
  const PredictedStreams plain = predict_streams(recording, *recording.graphs[flat]);
  ASSERT_TRUE(boxed.available);
  EXPECT_EQ(boxed.count, plain.count);
  EXPECT_GT(boxed.count, 4U);
  EXPECT_EQ(boxed.stream.size(), 4U);
  EXPECT_EQ(boxed.stream[node(1)], -1) << "the child graph's own node runs nothing";
  EXPECT_EQ(boxed.stream[node(3)], plain.stream[node(12)]);

  const StreamGraphColumns columns = stream_graph(recording, *recording.graphs[top]);
  EXPECT_EQ(columns.kinds.size(), 4U + 4U + 3U + 3U + 3U);
  EXPECT_EQ(columns.owner.size(), columns.kinds.size());

  // What can be busy at once is inside the boxes, too.
  const KernelIdentities identities(recording, KernelTable::builtin());
  Analyses analyses(recording, top, identities), flat_analyses(recording, flat, identities);
  EXPECT_EQ(analyses.width().count, flat_analyses.width().count);
  EXPECT_EQ(analyses.width().count, 6U);
  EXPECT_EQ(analyses.width().antichain, (std::vector<ir::NodeId>{node(1), node(2)})) << "each box once";
}

TEST(PredictedStreams, SaysWhatIsNotCovered) {
  ir::Recording recording;
  const ir::GraphId unknown_body = add(recording, fork_of_boxes({ir::GraphId()}));
  const PredictedStreams without = predict_streams(recording, *recording.graphs[unknown_body]);
  EXPECT_FALSE(without.available);
  EXPECT_TRUE(mentions(without, "a child graph whose body is not in the input")) << without.note;

  ir::GraphBuilder builder;
  builder.add_node(ir::NodeKind::ext_semaphore_wait, ir::kEmptyString);
  const ir::GraphId semaphore = add(recording, finish(builder));
  const PredictedStreams external = predict_streams(recording, *recording.graphs[semaphore]);
  EXPECT_FALSE(external.available);
  EXPECT_TRUE(mentions(external, "ext_semaphore_wait nodes were never measured")) << external.note;
  EXPECT_FALSE(mentions(external, "child graph")) << external.note;

  // A body that holds such a node.
  const ir::GraphId outer = add(recording, fork_of_boxes({semaphore}));
  EXPECT_FALSE(predict_streams(recording, *recording.graphs[outer]).available);
}

TEST(PredictedStreams, ChildGraphsThatMultiplyAreNotInlinedWithoutEnd) {
  ir::Recording recording;
  ir::GraphId inner = add(recording, kernels(100, {}));
  for (int level = 0; level < 20; ++level) inner = add(recording, fork_of_boxes({inner, inner}));
  const StreamGraphColumns columns = stream_graph(recording, *recording.graphs[inner]);
  EXPECT_LE(columns.kinds.size(), kMaxInlinedNodes + 100);
  EXPECT_FALSE(predict_streams(recording, *recording.graphs[inner]).available);
}

TEST(PredictedStreams, ChildGraphsWithManyRootsInARowAreRefused) {
  ir::Recording recording;
  const ir::GraphId wide = add(recording, kernels(1000, {}));
  ir::GraphBuilder builder;
  for (std::uint32_t i = 0; i < 500; ++i) {
    builder.add_child_graph(ir::kEmptyString, {wide});
    if (i > 0) builder.add_edge(node(i - 1), node(i));
  }
  const ir::GraphId chain = add(recording, finish(builder));
  const PredictedStreams predicted = predict_streams(recording, *recording.graphs[chain]);
  EXPECT_FALSE(predicted.available);
  EXPECT_TRUE(mentions(predicted, "child graphs expand to more than")) << predicted.note;
}

TEST(PredictedStreams, StatesItsAssumptions) {
  ir::Recording recording;
  const ir::GraphId id = add(recording, kernels(2, {{0, 1}}));
  EXPECT_FALSE(mentions(predict_streams(recording, *recording.graphs[id]), "edge types"));
  recording.graphs[id]->facts = kFacts.minus(ir::FactSet{ir::Fact::edge_data});
  EXPECT_TRUE(mentions(predict_streams(recording, *recording.graphs[id]), "edge types unknown"));

  ir::GraphBuilder builder;
  builder.add_conditional(ir::kEmptyString, {}, {});
  const ir::GraphId conditional = add(recording, finish(builder));
  const PredictedStreams predicted = predict_streams(recording, *recording.graphs[conditional]);
  EXPECT_TRUE(predicted.available);
  EXPECT_LT(predicted.confidence, 0.5) << "below that of an unknown driver alone";
  EXPECT_TRUE(mentions(predicted, "bodies of conditional nodes")) << predicted.note;
}

}  // namespace
}  // namespace cglint::analysis
