#include "analysis/reachability.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "unit/analysis/test_graphs.h"

namespace cglint::analysis {
namespace {

using namespace cglint::testing;
using Storage = Reachability::Storage;
constexpr Storage kStorages[] = {Storage::chains, Storage::bits, Storage::search};

using Matrix = std::vector<std::vector<bool>>;

void close(Matrix& m) {
  for (std::size_t k = 0; k < m.size(); ++k)
    for (std::size_t i = 0; i < m.size(); ++i)
      for (std::size_t j = 0; j < m.size(); ++j)
        if (m[i][k] && m[k][j]) m[i][j] = true;
}

Matrix paths(const ir::Graph& graph, ir::EdgeId without = {}) {
  Matrix m(graph.node_count(), std::vector<bool>(graph.node_count(), false));
  for (const ir::EdgeId e : graph.edges())
    if (e != without) m[graph.edge_from[e].index()][graph.edge_to[e].index()] = true;
  close(m);
  return m;
}

// Every event of every node, and what must come before what in each execution that the CUDA rules allow. An
// event is certain to come before another exactly if there is a path.
enum Event : std::uint8_t { kStart, kBegun, kTriggered, kWork, kBlocksEnded, kComplete, kEvents };
bool may_wait(const ir::Recording& recording, const ir::Graph& graph, ir::NodeId v, UnknownImage unknown) {
  if (graph.kernel(v) == nullptr || (!graph.enabled.empty() && graph.enabled[v] == 0)) return false;
  const ir::FunctionId f = graph.kernel(v)->function;
  const ir::Tri waits = f.is_valid() ? recording.functions[f].has_grid_dependency_wait : ir::Tri::unknown;
  return waits == ir::Tri::yes || (waits == ir::Tri::unknown && unknown == UnknownImage::waits);
}
Matrix event_order(const ir::Recording& recording, const ir::Graph& graph, ir::EdgeId without = {},
                   UnknownImage unknown = UnknownImage::waits) {
  const std::size_t n = graph.node_count();
  Matrix m(n * kEvents, std::vector<bool>(n * kEvents, false));
  const auto before = [&](ir::NodeId a, Event x, ir::NodeId b, Event y) {
    m[a.index() * kEvents + x][b.index() * kEvents + y] = true;
  };
  for (const ir::NodeId v : graph.nodes()) {
    before(v, kStart, v, kBegun);
    before(v, kBegun, v, kTriggered);
    before(v, kTriggered, v, kBlocksEnded);
    before(v, kStart, v, kWork);
    before(v, kWork, v, kBlocksEnded);
    before(v, kBlocksEnded, v, kComplete);
    const ir::KernelNode* kernel = graph.kernel(v);
    if (kernel != nullptr && kernel->function.is_valid() &&
        recording.functions[kernel->function].has_launch_dependents == ir::Tri::no)
      before(v, kBlocksEnded, v, kTriggered);
  }
  for (const ir::EdgeId e : graph.edges()) {
    if (e == without) continue;
    const ir::NodeId u = graph.edge_from[e], v = graph.edge_to[e];
    if (graph.data(e).is_full()) before(u, kComplete, v, kStart);
    if (graph.data(e).is_launch_order()) before(u, kBegun, v, kStart);
    if (graph.data(e).is_programmatic()) {
      before(u, kTriggered, v, kStart);
      if (may_wait(recording, graph, v, unknown)) before(u, kComplete, v, kWork);
    }
  }
  close(m);
  return m;
}

void expect_matrix(const Reachability& reach, const ir::Graph& graph, const Matrix& expected) {
  for (const ir::NodeId a : graph.nodes())
    for (const ir::NodeId b : graph.nodes()) {
      ASSERT_EQ(reach.reaches(a, b), expected[a.index()][b.index()]) << a.index() << " -> " << b.index();
      ASSERT_EQ(reach.ordered(a, b),
                a == b || expected[a.index()][b.index()] || expected[b.index()][a.index()]);
      ASSERT_NE(reach.ordered(a, b), reach.unordered(a, b));
    }
}

TEST(Reachability, StartsAfterIsTheTransitiveClosure) {
  Rng rng(2);
  for (int round = 0; round < 4000; ++round) {
    const auto graph = random_graph(rng, {.edge_types = true});
    const TopologicalOrder order = topological_order(*graph);
    const Matrix expected = paths(*graph);
    for (const Storage storage : kStorages) {
      const Reachability reach = starts_after(*graph, order, storage);
      ASSERT_EQ(reach.storage(), storage);
      EXPECT_FALSE(reach.assumed_grid_dependency_wait());
      ASSERT_NO_FATAL_FAILURE(expect_matrix(reach, *graph, expected)) << round;
    }
  }
}

TEST(Reachability, MemoryOrderIsWhatHoldsInEveryExecution) {
  ir::Recording recording;
  add_functions(recording);
  Rng rng(3);
  int assumed = 0, differs = 0;
  for (int round = 0; round < 4000; ++round) {
    const auto graph = random_graph(rng, {.edge_types = true});
    const TopologicalOrder order = topological_order(*graph);
    const std::size_t n = graph->node_count();
    bool expect_assumed = false;
    for (const ir::EdgeId e : graph->edges())
      if (graph->data(e).is_programmatic() &&
          may_wait(recording, *graph, graph->edge_to[e], UnknownImage::waits) !=
              may_wait(recording, *graph, graph->edge_to[e], UnknownImage::never_waits))
        expect_assumed = true;
    for (const UnknownImage unknown : {UnknownImage::waits, UnknownImage::never_waits}) {
      const Matrix events = event_order(recording, *graph, {}, unknown);
      Matrix expected(n, std::vector<bool>(n, false));
      for (std::size_t a = 0; a < n; ++a)
        for (std::size_t b = 0; b < n; ++b)
          expected[a][b] = a != b && events[a * kEvents + kComplete][b * kEvents + kWork];
      for (const Storage storage : kStorages) {
        const Reachability reach = memory_ordered_after(recording, *graph, order, unknown, storage);
        ASSERT_NO_FATAL_FAILURE(expect_matrix(reach, *graph, expected)) << round;
        ASSERT_EQ(reach.assumed_grid_dependency_wait(), expect_assumed && unknown == UnknownImage::waits);
      }
      differs += expected != paths(*graph) ? 1 : 0;
    }
    assumed += expect_assumed ? 1 : 0;
  }
  EXPECT_GT(assumed, 100);
  EXPECT_GT(differs, 100);
}

// The graph a -> b -> c with these edges, where the kernels wait or do not.
struct Chain {
  ir::Recording recording;
  std::unique_ptr<ir::Graph> graph;
  Chain(ir::EdgeData ab, ir::EdgeData bc, bool b_waits, bool c_waits) {
    for (const bool waits : {false, true}) {
      ir::Function function;
      function.has_grid_dependency_wait = waits ? ir::Tri::yes : ir::Tri::no;
      function.has_launch_dependents = ir::Tri::yes;
      recording.functions.push_back(function);
    }
    ir::GraphBuilder builder;
    for (const bool waits : {false, b_waits, c_waits}) {
      ir::KernelNode kernel;
      kernel.function = ir::FunctionId(waits ? 1 : 0);
      builder.add_kernel(ir::kEmptyString, kernel);
    }
    builder.add_edge(node(0), node(1), ab);
    builder.add_edge(node(1), node(2), bc);
    graph = finish(builder);
  }
  [[nodiscard]] std::string pairs() const {
    const Reachability reach = memory_ordered_after(recording, *graph, topological_order(*graph));
    std::string text;
    for (const auto& [from, to, name] : {std::tuple{0, 1, "ab "}, {1, 2, "bc "}, {0, 2, "ac "}})
      if (reach.reaches(node(static_cast<std::uint32_t>(from)), node(static_cast<std::uint32_t>(to))))
        text += name;
    return text;
  }
};

TEST(Reachability, MemoryOrderOfThreeKernels) {
  const ir::EdgeData full, programmatic{ir::kPortProgrammatic, 0, ir::EdgeType::programmatic},
      launch_order{ir::kPortLaunchOrder, 0, ir::EdgeType::programmatic};
  EXPECT_EQ(Chain(full, full, false, false).pairs(), "ab bc ac ");
  // c's wait proves that b is complete, and b may be complete before a.
  EXPECT_EQ(Chain(programmatic, programmatic, false, true).pairs(), "bc ");
  EXPECT_EQ(Chain(programmatic, full, false, false).pairs(), "bc ");
  EXPECT_EQ(Chain(programmatic, programmatic, true, true).pairs(), "ab bc ac ");
  EXPECT_EQ(Chain(programmatic, full, true, false).pairs(), "ab bc ac ");
  EXPECT_EQ(Chain(programmatic, programmatic, true, false).pairs(), "ab ");
  // A full edge is proof for all that start later, over whatever edge.
  EXPECT_EQ(Chain(full, programmatic, false, false).pairs(), "ab ac ");
  EXPECT_EQ(Chain(full, launch_order, false, true).pairs(), "ab ac ");
  EXPECT_EQ(Chain(launch_order, full, true, true).pairs(), "bc ");
}

TEST(Reachability, AProgrammaticEdgeIntoACopyOrdersNothing) {
  ir::GraphBuilder builder;
  builder.add_kernel(ir::kEmptyString, {});
  builder.add_memcpy(ir::kEmptyString, {});
  builder.add_edge(node(0), node(1), {ir::kPortProgrammatic, 0, ir::EdgeType::programmatic});
  const auto graph = finish(builder);
  const Reachability reach = memory_ordered_after({}, *graph, topological_order(*graph));
  EXPECT_TRUE(reach.unordered(node(0), node(1)));
  EXPECT_FALSE(reach.assumed_grid_dependency_wait());
}

// It can only be a kernel: whether one waits is then as unknown as of a kernel whose image is not known.
TEST(Reachability, ANodeOfAnUnknownKindMayWait) {
  ir::GraphBuilder builder;
  builder.add_kernel(ir::kEmptyString, {});
  builder.add_kernel(ir::kEmptyString, {});
  builder.add_edge(node(0), node(1), {ir::kPortProgrammatic, 0, ir::EdgeType::programmatic});
  const auto graph = finish(builder);
  graph->kind[node(1)] = ir::NodeKind::unknown;
  const TopologicalOrder order = topological_order(*graph);
  const Reachability may = memory_ordered_after({}, *graph, order);
  EXPECT_TRUE(may.reaches(node(0), node(1)));
  EXPECT_TRUE(may.assumed_grid_dependency_wait());
  EXPECT_TRUE(memory_ordered_after({}, *graph, order, UnknownImage::never_waits).unordered(node(0), node(1)));
}

// --- implied edges ---

std::unique_ptr<ir::Graph> without_edges(const ir::Graph& graph, const std::vector<ir::EdgeId>& removed) {
  ir::GraphBuilder builder;
  for (const ir::NodeId v : graph.nodes()) {
    if (graph.kernel(v) != nullptr)
      builder.add_kernel(ir::kEmptyString, *graph.kernel(v));
    else
      builder.add_node(graph.kind[v], ir::kEmptyString);
    if (!graph.enabled.empty()) builder.set_enabled(v, graph.enabled[v] != 0);
  }
  for (const ir::EdgeId e : graph.edges())
    if (!std::binary_search(removed.begin(), removed.end(), e))
      builder.add_edge(graph.edge_from[e], graph.edge_to[e], graph.data(e));
  return finish(builder);
}

TEST(ImpliedEdges, StartsAfter) {
  Rng rng(4);
  std::size_t found = 0;
  for (int round = 0; round < 3000; ++round) {
    const auto graph = random_graph(rng, {.max_nodes = 9});
    const TopologicalOrder order = topological_order(*graph);
    std::vector<ir::EdgeId> expected;
    for (const ir::EdgeId e : graph->edges())
      if (paths(*graph, e)[graph->edge_from[e].index()][graph->edge_to[e].index()]) expected.push_back(e);
    for (const Storage storage : kStorages)
      ASSERT_EQ(transitively_implied_edges(*graph, order, starts_after(*graph, order, storage)), expected)
          << round;
    ASSERT_EQ(paths(*without_edges(*graph, expected)), paths(*graph));
    found += expected.size();
  }
  EXPECT_GT(found, 1000U);
}

TEST(ImpliedEdges, MemoryOrder) {
  ir::Recording recording;
  add_functions(recording);
  Rng rng(5);
  std::size_t found = 0;
  for (int round = 0; round < 1500; ++round) {
    const auto graph = random_graph(rng, {.max_nodes = 7, .edge_types = true});
    const TopologicalOrder order = topological_order(*graph);
    std::vector<ir::EdgeId> expected;
    for (const ir::EdgeId e : graph->edges()) {
      const std::size_t u = graph->edge_from[e].index(), v = graph->edge_to[e].index();
      if (event_order(recording, *graph, e)[u * kEvents + kComplete][v * kEvents + kStart])
        expected.push_back(e);
    }
    for (const Storage storage : kStorages)
      ASSERT_EQ(
          transitively_implied_edges(
              *graph, order, memory_ordered_after(recording, *graph, order, UnknownImage::waits, storage)),
          expected)
          << round;
    // All of them together may go.
    const auto reduced = without_edges(*graph, expected);
    const TopologicalOrder reduced_order = topological_order(*reduced);
    const Reachability all = memory_ordered_after(recording, *graph, order);
    const Reachability fewer = memory_ordered_after(recording, *reduced, reduced_order);
    for (const ir::NodeId a : graph->nodes())
      for (const ir::NodeId b : graph->nodes()) ASSERT_EQ(all.reaches(a, b), fewer.reaches(a, b)) << round;
    found += expected.size();
  }
  EXPECT_GT(found, 100U);
}

TEST(ImpliedEdges, MoreThanOneBlockOfColumns) {
  // Wide enough that a search recomputes the closure in several blocks.
  const auto graph = wide_graph(5000, 3, 6);
  const TopologicalOrder order = topological_order(*graph);
  const auto by_bits = transitively_implied_edges(*graph, order, starts_after(*graph, order, Storage::bits));
  EXPECT_GT(by_bits.size(), 100U);
  EXPECT_EQ(transitively_implied_edges(*graph, order, starts_after(*graph, order, Storage::search)), by_bits);
  EXPECT_EQ(transitively_implied_edges(*graph, order, starts_after(*graph, order, Storage::chains)), by_bits);
}

TEST(ImpliedEdges, OnceForEachLayerOfASerialisedFork) {
  // 16 layers of 19 kernels in one chain; in each of the first 15, and twice more in 15 of them, a side
  // branch's event is waited for again: 303 + 31 edges.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> edges;
  for (std::uint32_t i = 0; i + 1 < 304; ++i) edges.emplace_back(i, i + 1);
  std::size_t extra = 0;
  for (std::uint32_t layer = 0; layer < 16; ++layer) {
    edges.emplace_back(layer * 19 + 2, layer * 19 + 7);
    ++extra;
    if (layer == 15) break;
    edges.emplace_back(layer * 19 + 2, layer * 19 + 15);
    ++extra;
  }
  const auto graph = kernels(304, edges);
  ASSERT_EQ(graph->edge_count(), 334U);
  const TopologicalOrder order = topological_order(*graph);
  const Reachability reach = starts_after(*graph, order);
  EXPECT_EQ(reach.chain_count(), 1U);
  EXPECT_EQ(transitively_implied_edges(*graph, order, reach).size(), extra);
}

// --- size ---

TEST(Reachability, DecodeGraphsNeedAboutAsManyChainsAsTheyAreWide) {
  for (const std::uint32_t branches : {1U, 2U, 3U, 8U, 17U}) {
    const auto graph = decode_graph(61, 10, branches, 4);
    EXPECT_EQ(starts_after(*graph, topological_order(*graph)).chain_count(), branches);
  }
}

TEST(Reachability, LanesThatRarelyMeetKeepTheirChains) {
  for (const std::uint32_t lanes : {2U, 17U}) {
    Rng rng(10);
    std::vector<std::pair<std::uint32_t, std::uint32_t>> edges;
    std::vector<std::uint32_t> last(lanes, 0);
    for (std::uint32_t i = lanes; i < 5000; ++i) {
      const std::uint32_t lane = below(rng, lanes), other = below(rng, lanes);
      edges.emplace_back(last[lane] == 0 ? lane : last[lane], i);
      if (chance(rng, 10) && other != lane && last[other] != 0) edges.emplace_back(last[other], i);
      last[lane] = i;
    }
    const auto graph = kernels(5000, edges);
    EXPECT_EQ(starts_after(*graph, topological_order(*graph)).chain_count(), lanes);
  }
}

TEST(Reachability, ProgrammaticEdgesOfKernelsThatWaitCostNoChains) {
  const auto plain = decode_graph(61, 10, 4, 4);
  ir::Recording recording;
  ir::Function function;
  function.has_grid_dependency_wait = ir::Tri::yes;
  recording.functions.push_back(function);
  ir::GraphBuilder builder;
  ir::KernelNode kernel;
  kernel.function = ir::FunctionId(0);
  for (std::size_t i = 0; i < plain->node_count(); ++i) builder.add_kernel(ir::kEmptyString, kernel);
  for (const ir::EdgeId e : plain->edges())
    builder.add_edge(plain->edge_from[e], plain->edge_to[e],
                     {ir::kPortProgrammatic, 0, ir::EdgeType::programmatic});
  const auto graph = finish(builder);
  const TopologicalOrder order = topological_order(*graph);
  const Reachability memory = memory_ordered_after(recording, *graph, order);
  EXPECT_EQ(memory.chain_count(), 4U);
  EXPECT_FALSE(memory.assumed_grid_dependency_wait());
  const Reachability starts = starts_after(*graph, order);
  for (const ir::NodeId a : graph->nodes())
    for (const ir::NodeId b : graph->nodes()) ASSERT_EQ(memory.reaches(a, b), starts.reaches(a, b));
}

TEST(Reachability, StaysSmallAt20000Nodes) {
  const auto decode = decode_graph(128, 20, 8, 17);
  ASSERT_GT(decode->node_count(), 19000U);
  const Reachability narrow = starts_after(*decode, topological_order(*decode));
  EXPECT_EQ(narrow.storage(), Storage::chains);
  EXPECT_LT(narrow.memory_bytes(), 2U << 20);

  const auto wide = wide_graph(20000, 2, 7);
  const Reachability bits = starts_after(*wide, topological_order(*wide));
  EXPECT_EQ(bits.storage(), Storage::bits);
  EXPECT_LT(bits.memory_bytes(), 50U << 20);
}

TEST(Reachability, StaysSmallAt100000Nodes) {
  const auto decode = decode_graph(1000, 60, 8, 5);
  ASSERT_GT(decode->node_count(), 100000U);
  const Reachability narrow = starts_after(*decode, topological_order(*decode));
  EXPECT_EQ(narrow.storage(), Storage::chains);
  EXPECT_LT(narrow.memory_bytes(), 10U << 20);
  EXPECT_TRUE(narrow.reaches(node(0), node(static_cast<std::uint32_t>(decode->node_count() - 1))));

  const auto wide = wide_graph(100000, 2, 8);
  const TopologicalOrder order = topological_order(*wide);
  const Reachability search = starts_after(*wide, order);
  EXPECT_EQ(search.storage(), Storage::search);
  EXPECT_LT(search.memory_bytes(), 16U << 20);
  // Against a plain search from a few nodes.
  Rng rng(9);
  for (int k = 0; k < 5; ++k) {
    const ir::NodeId from(below(rng, 1000));
    std::vector<bool> seen(wide->node_count(), false);
    for (const ir::NodeId v : order.order)
      for (const ir::NodeId p : wide->predecessors(v))
        if (p == from || seen[p.index()]) seen[v.index()] = true;
    for (int q = 0; q < 500; ++q) {
      const ir::NodeId to(below(rng, 100000));
      ASSERT_EQ(search.reaches(from, to), seen[to.index()]);
    }
  }
}

TEST(Reachability, NoEdgesAndNoNodes) {
  const auto empty = kernels(0, {});
  EXPECT_EQ(starts_after(*empty, topological_order(*empty)).chain_count(), 0U);
  const auto loose = kernels(1000, {});
  const TopologicalOrder order = topological_order(*loose);
  const Reachability reach = starts_after(*loose, order);
  EXPECT_TRUE(reach.unordered(node(0), node(999)));
  EXPECT_FALSE(reach.reaches(node(5), node(5)));
  EXPECT_TRUE(reach.ordered(node(5), node(5)));
  EXPECT_TRUE(transitively_implied_edges(*loose, order, reach).empty());
}

}  // namespace
}  // namespace cglint::analysis
