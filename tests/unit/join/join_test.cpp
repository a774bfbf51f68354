#include "join/join.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "analysis/stream_model.h"
#include "ir/graph_builder.h"
#include "unit/analysis/stream_graphs.h"

namespace cglint::join {
namespace {

using ir::Fact;
using ir::NodeId;

struct Planned {
  std::string kernel;
  std::vector<std::uint32_t> parents;
  std::uint64_t stream;
};

// Layers of fork -> (main, main | side) -> join, `twins`: both branches launch the same kernel.
std::vector<Planned> layered(std::uint32_t layers, bool twins = false) {
  std::vector<Planned> nodes;
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    const auto base = static_cast<std::uint32_t>(nodes.size());
    nodes.push_back({"norm", layer == 0 ? std::vector<std::uint32_t>{} : std::vector<std::uint32_t>{base - 2, base - 1}, 7});
    nodes.push_back({"gemm", {base}, 7});
    nodes.push_back({"moe", {base + 1}, 7});
    nodes.push_back({twins ? "gemm" : "shared", {base}, 8});
  }
  return nodes;
}

void add_structure(ir::Recording& recording, std::string_view name, const std::vector<Planned>& plan) {
  ir::GraphBuilder builder;
  for (const Planned& node : plan) {
    ir::KernelNode kernel;
    kernel.function = recording.intern_function(node.kernel);
    builder.add_kernel(recording.intern(node.kernel), kernel);
  }
  for (std::uint32_t i = 0; i < plan.size(); ++i)
    for (const std::uint32_t parent : plan[i].parents) builder.add_edge(NodeId(parent), NodeId(i));
  builder.graph().info.name = recording.intern(name);
  builder.graph().facts = {Fact::nodes, Fact::edges, Fact::creation_order, Fact::kernel_names, Fact::launch_config};
  recording.graphs.push_back(std::move(*builder.finish()));
}

// Runs the plan `replays` times on its streams with random durations; the traced nodes come in an order of their own.
// Returns, per replay and operation, which planned node it was.
std::vector<std::vector<std::uint32_t>> add_timeline(ir::Recording& recording, std::string_view name, const std::vector<Planned>& plan,
                                                     std::size_t replays, unsigned seed, std::size_t drop = 0) {
  std::mt19937 random(seed);
  ir::GraphBuilder builder;
  std::vector<std::uint32_t> order(plan.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), random);
  std::vector<NodeId> traced(plan.size());
  for (const std::uint32_t i : order) {
    ir::KernelNode kernel;
    kernel.function = recording.intern_function(plan[i].kernel);
    traced[i] = builder.add_kernel(recording.intern(plan[i].kernel), kernel);
  }
  std::vector<std::vector<std::uint32_t>> truth;
  for (std::size_t r = 0; r < replays; ++r) {
    std::vector<std::int64_t> end(plan.size());
    std::vector<std::pair<ir::ReplayOp, std::uint32_t>> ops;
    for (std::uint32_t i = 0; i < plan.size(); ++i) {
      std::int64_t start = static_cast<std::int64_t>(r) * 1'000'000;
      for (const std::uint32_t parent : plan[i].parents) start = std::max(start, end[parent]);
      start += 100 + static_cast<std::int64_t>(random() % 400);
      end[i] = start + 1000 + static_cast<std::int64_t>(random() % 9000);
      ir::ReplayOp op;
      op.node = traced[i];
      op.start_ns = start;
      op.end_ns = end[i];
      op.stream = plan[i].stream;
      ops.emplace_back(op, i);
    }
    std::sort(ops.begin(), ops.end(), [](const auto& a, const auto& b) { return a.first.start_ns < b.first.start_ns; });
    if (drop > 0 && r == 0) ops.erase(ops.begin() + static_cast<std::ptrdiff_t>(drop));
    ir::Replay replay;
    replay.ops = {static_cast<std::uint32_t>(builder.graph().replay_ops.size()), static_cast<std::uint32_t>(ops.size())};
    truth.emplace_back();
    for (const auto& [op, node] : ops) {
      builder.graph().replay_ops.push_back(op);
      truth.back().push_back(node);
    }
    builder.graph().replays.push_back(replay);
  }
  builder.graph().info.name = recording.intern(name);
  builder.graph().facts = {Fact::nodes, Fact::kernel_names, Fact::launch_config, Fact::replay_streams, Fact::replay_times};
  recording.graphs.push_back(std::move(*builder.finish()));
  recording.has_timeline = true;
  return truth;
}

std::size_t wrong(const ir::Graph& graph, const std::vector<std::vector<std::uint32_t>>& truth) {
  std::size_t count = 0;
  for (std::uint32_t r = 0; r < truth.size(); ++r) {
    const auto ops = graph.ops(graph.replays[ir::ReplayId(r)]);
    for (std::size_t i = 0; i < ops.size(); ++i) count += ops[i].node == NodeId(truth[r][i]) ? 0 : 1;
  }
  return count;
}

TEST(Join, TiesEveryOperationToItsNode) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    for (const bool twins : {false, true}) {
      const auto plan = layered(1 + seed % 9, twins);
      ir::Recording structure, timeline;
      add_structure(structure, "decode", plan);
      const auto truth = add_timeline(timeline, "traced", plan, 3, seed);
      const Report report = join_timeline(structure, timeline, true);
      ASSERT_EQ(report.matches.size(), 1U);
      const Match& match = report.matches[0];
      EXPECT_EQ(match.matched, plan.size() * 3);
      EXPECT_EQ(match.operations, plan.size() * 3);
      EXPECT_EQ(match.out_of_order, 0U);
      EXPECT_FALSE(match.by_id);
      const ir::Graph& graph = *structure.graphs[ir::GraphId(0)];
      EXPECT_TRUE(graph.facts.contains_all({Fact::replay_streams, Fact::replay_times}));
      EXPECT_FALSE(graph.facts.contains(Fact::node_identity));
      // Twins on the first layer have no stream to tell them apart; where a match may be wrong it is counted as ambiguous.
      EXPECT_LE(wrong(graph, truth), 2 * match.ambiguous) << seed << twins;
      if (!twins) {
        EXPECT_EQ(match.ambiguous, 0U);
      }
      EXPECT_EQ(timeline.graphs[ir::GraphId(0)], nullptr);
      EXPECT_TRUE(ir::verify(graph));
    }
  }
}

TEST(Join, KeepsSeveralGraphsApart) {
  const auto draft = layered(2), target = layered(7);
  ir::Recording structure, timeline;
  add_structure(structure, "draft", draft);
  add_structure(structure, "target", target);
  const auto target_truth = add_timeline(timeline, "one", target, 2, 1);
  const auto draft_truth = add_timeline(timeline, "two", draft, 5, 2);
  const Report report = join_timeline(structure, timeline, true);
  ASSERT_EQ(report.matches.size(), 2U);
  EXPECT_EQ(report.matches[0].structure_graph, "target");
  EXPECT_EQ(report.matches[1].structure_graph, "draft");
  EXPECT_EQ(wrong(*structure.graphs[ir::GraphId(0)], draft_truth), 0U);
  EXPECT_EQ(wrong(*structure.graphs[ir::GraphId(1)], target_truth), 0U);
}

TEST(Join, EqualGraphsGetOneTracedGraphEach) {
  ir::Recording structure, timeline;
  add_structure(structure, "a", layered(3));
  add_structure(structure, "b", layered(3));
  add_timeline(timeline, "x", layered(3), 1, 1);
  add_timeline(timeline, "y", layered(3), 1, 2);
  const Report report = join_timeline(structure, timeline, true);
  ASSERT_EQ(report.matches.size(), 2U);
  EXPECT_NE(report.matches[0].structure_graph, report.matches[1].structure_graph);
}

TEST(Join, LeavesWhatDoesNotFit) {
  ir::Recording structure, timeline;
  add_structure(structure, "decode", layered(6));
  add_timeline(timeline, "other", layered(3), 2, 1);
  const Report report = join_timeline(structure, timeline, true);
  EXPECT_TRUE(report.matches.empty());
  EXPECT_EQ(report.unmatched_timeline, std::vector<std::string>{"other"});
  EXPECT_EQ(report.unmatched_structure, std::vector<std::string>{"decode"});
  EXPECT_NE(timeline.graphs[ir::GraphId(0)], nullptr);
  EXPECT_FALSE(structure.graphs[ir::GraphId(0)]->facts.contains(Fact::replay_times));
}

TEST(Join, ALostRecordCostsOnlyItself) {
  const auto plan = layered(8);
  ir::Recording structure, timeline;
  add_structure(structure, "decode", plan);
  const auto truth = add_timeline(timeline, "traced", plan, 2, 3, 9);
  const Report report = join_timeline(structure, timeline, true);
  ASSERT_EQ(report.matches.size(), 1U);
  EXPECT_EQ(report.matches[0].operations, plan.size() * 2 - 1);
  EXPECT_EQ(report.matches[0].matched, report.matches[0].operations);
  EXPECT_GT(report.matches[0].out_of_order, 0U);  // its successors start although it never did
  EXPECT_TRUE(ir::verify(*structure.graphs[ir::GraphId(0)]));
}

// Layers without an edge from side block to side block are predicted to open a stream each; the trace shows two streams.
TEST(Join, NodesWithoutAnOperationInEveryLaunchAreALoss) {
  for (const std::size_t drop : {std::size_t{0}, std::size_t{1}}) {
    ir::Recording structure, timeline;
    add_structure(structure, "decode", layered(16));
    add_timeline(timeline, "traced", layered(16), 3, 5, drop);
    // The trace has nothing to compare with: it gives its launches as whole.
    for (std::uint32_t r = 0; r < 3; ++r) timeline.graphs[ir::GraphId(0)]->replays[ir::ReplayId(r)].complete = true;
    const Report report = join_timeline(structure, timeline, true);
    ASSERT_EQ(report.matches.size(), 1U) << drop;
    const ir::Graph& graph = *structure.graphs[ir::GraphId(0)];
    EXPECT_EQ(report.matches[0].missing, drop);  // of the first launch
    EXPECT_EQ(structure.losses.size(), drop);
    EXPECT_EQ(graph.facts.contains(Fact::replay_streams), drop == 0);
    EXPECT_EQ(graph.replays[ir::ReplayId(0)].complete, drop == 0);
    EXPECT_TRUE(graph.replays[ir::ReplayId(1)].complete);
    for (const ir::Loss& loss : structure.losses) EXPECT_EQ(loss.severity, ir::Loss::Severity::data_loss);
  }
}

TEST(Join, AContradictingStreamCountIsAnotherRecording) {
  const auto plan = layered(6);
  ir::Recording structure, timeline;
  add_structure(structure, "decode", plan);
  add_timeline(timeline, "traced", plan, 2, 3);
  const Report report = join_timeline(structure, timeline);
  EXPECT_TRUE(report.matches.empty());
  ASSERT_EQ(report.contradictions.size(), 1U);
  EXPECT_EQ(report.contradictions[0].measured, 2U);
  EXPECT_GT(report.contradictions[0].predicted, 2U);
  EXPECT_NE(timeline.graphs[ir::GraphId(0)], nullptr);
}

// The recorded order, read off the trace's node ids, speaks for the pair, and another order against it.
TEST(Join, NodeIdsInTheOrderOfCreationSpeakForThePair) {
  for (const bool same_order : {true, false}) {
    const auto plan = layered(6);
    ir::Recording structure, timeline;
    add_structure(structure, "decode", plan);
    const auto truth = add_timeline(timeline, "traced", plan, 2, 3);
    ir::Graph& traced = *timeline.graphs[ir::GraphId(0)];
    traced.facts.insert(Fact::node_identity);
    traced.source_id.assign(plan.size(), 0);
    const auto ops = traced.ops(traced.replays[ir::ReplayId(0)]);
    // Else: the side block of each layer was recorded before the main block.
    for (std::size_t i = 0; i < ops.size(); ++i) {
      const std::uint32_t node = truth[0][i];
      traced.source_id[ops[i].node] = 100 + (same_order || node % 4 == 0 ? node : node % 4 == 3 ? node - 2 : node + 1);
    }
    const Report report = join_timeline(structure, timeline);
    if (same_order) {
      ASSERT_EQ(report.matches.size(), 1U);
      const Match& match = report.matches[0];
      ASSERT_TRUE(match.doubt);
      EXPECT_EQ(match.doubt->measured, 2U);
      EXPECT_GT(match.doubt->predicted, 2U);
      EXPECT_EQ(match.matched, match.operations);
      EXPECT_DOUBLE_EQ(match.quality(), 0.5);
    } else {
      EXPECT_TRUE(report.matches.empty());
      EXPECT_EQ(report.contradictions.size(), 1U);
    }
  }
}

// DOT does not tell programmatic edges from full ones, and streams depend on them: graphs as measured, with their edges taken as full.
TEST(Join, UnknownProgrammaticEdgesAreNoContradiction) {
  std::size_t contradictory = 0, refused = 0;
  for (const test_support::MeasuredGraph& measured : test_support::read_stream_graphs(std::string(CGLINT_TEST_DATA) + "/streams/typed.graphs.gz")) {
    if (!measured.family.starts_with("programmatic")) continue;
    const auto count = static_cast<std::uint32_t>(measured.kinds.size());
    ASSERT_TRUE(std::all_of(measured.kinds.begin(), measured.kinds.end(), [](auto kind) { return kind == analysis::StreamNodeKind::kernel; }));
    ir::Recording structure, timeline;
    ir::GraphBuilder graph, traced;
    std::vector<std::uint32_t> missing(count);
    for (std::uint32_t i = 0; i < count; ++i) {
      for (auto [recording, builder] : {std::pair(&structure, &graph), std::pair(&timeline, &traced)}) {
        ir::KernelNode kernel;
        kernel.function = recording->intern_function("kernel_" + std::to_string(i % 5));
        builder->add_kernel(recording->intern("kernel_" + std::to_string(i % 5)), kernel);
      }
    }
    for (const analysis::StreamEdge& edge : measured.edges) {
      graph.add_edge(NodeId(edge.from), NodeId(edge.to));
      ++missing[edge.to];
    }
    // One launch: a kernel starts when those before it have ended, behind a programmatic edge when they have started.
    std::vector<std::int64_t> start(count), end(count);
    std::map<std::int32_t, std::uint32_t> last_on;
    std::vector<bool> done(count);
    std::vector<ir::ReplayOp> ops;
    std::int64_t clock = 0;
    bool overlaps = false;
    while (ops.size() < count) {
      for (std::uint32_t i = 0; i < count; ++i) {
        if (done[i] || missing[i] != 0) continue;
        done[i] = true;
        std::set<std::uint32_t> programmatic;
        start[i] = clock + 1;
        for (const analysis::StreamEdge& edge : measured.edges) {
          if (edge.from == i) --missing[edge.to];
          if (edge.to != i) continue;
          if (edge.type == analysis::StreamEdgeType::programmatic) programmatic.insert(edge.from);
          start[i] = std::max(start[i], programmatic.contains(edge.from) ? start[edge.from] + 500 : end[edge.from]);
        }
        const auto [last, is_first] = last_on.try_emplace(measured.streams[i], i);
        if (!is_first && !programmatic.contains(last->second)) start[i] = std::max(start[i], end[last->second]);
        overlaps = overlaps || (!is_first && start[i] + 100 < end[last->second]);
        last->second = i;
        clock = start[i];
        end[i] = start[i] + 5000 + i;
        ir::ReplayOp op;
        op.node = NodeId(i);
        op.start_ns = start[i];
        op.end_ns = end[i];
        op.stream = static_cast<std::uint64_t>(measured.streams[i]);
        ops.push_back(op);
      }
    }
    ir::Replay replay;
    replay.ops = {0, count};
    for (const ir::ReplayOp& op : ops) traced.graph().replay_ops.push_back(op);
    traced.graph().replays.push_back(replay);
    graph.graph().facts = {Fact::nodes, Fact::edges, Fact::creation_order, Fact::kernel_names, Fact::launch_config};
    traced.graph().facts = {Fact::nodes, Fact::kernel_names, Fact::launch_config, Fact::replay_streams, Fact::replay_times};
    structure.graphs.push_back(std::move(*graph.finish()));
    timeline.graphs.push_back(std::move(*traced.finish()));
    const Report report = join_timeline(structure, timeline);
    ASSERT_EQ(report.matches.size() + report.contradictions.size(), 1U);
    if (!report.contradictions.empty()) {
      EXPECT_FALSE(overlaps) << "line " << measured.line;
      ++contradictory;
      ++refused;
    } else if (report.matches[0].doubt) {
      ++contradictory;
    }
  }
  EXPECT_GT(contradictory, 100U);
  EXPECT_LT(refused * 8, contradictory) << refused << " of " << contradictory;
}

TEST(Join, UsesIdsWhereBothSidesHaveThem) {
  const auto plan = layered(4, true);
  ir::Recording structure, timeline;
  add_structure(structure, "decode", plan);
  const auto truth = add_timeline(timeline, "traced", plan, 2, 5);
  ir::Graph& graph = *structure.graphs[ir::GraphId(0)];
  ir::Graph& traced = *timeline.graphs[ir::GraphId(0)];
  graph.facts.insert(Fact::node_identity);
  traced.facts.insert(Fact::node_identity);
  for (std::uint32_t i = 0; i < plan.size(); ++i) graph.source_id.push_back(100 + i);
  traced.source_id.assign(plan.size(), 0);
  const auto ops = traced.ops(traced.replays[ir::ReplayId(0)]);
  for (std::size_t i = 0; i < ops.size(); ++i) traced.source_id[ops[i].node] = (std::uint64_t{3} << 32U) | (100 + truth[0][i]);
  const Report report = join_timeline(structure, timeline, true);
  ASSERT_EQ(report.matches.size(), 1U);
  EXPECT_TRUE(report.matches[0].by_id);
  EXPECT_EQ(wrong(graph, truth), 0U);
  EXPECT_TRUE(graph.facts.contains(Fact::node_identity));
}

}  // namespace
}  // namespace cglint::join
