#include "analysis/analyses.h"

#include <algorithm>

#include "analysis/stream_graph.h"
#include "ir/graph_builder.h"

namespace cglint::analysis {

struct Analyses::State {
  State(const ir::Recording& r, const ir::Graph& g, const KernelIdentities& i)
      : recording(r), graph(g), identities(i) {}

  const ir::Recording& recording;
  const ir::Graph& graph;
  const KernelIdentities& identities;
  std::optional<TopologicalOrder> topology;
  std::optional<Reachability> starts_after, memory_ordered_after, certainly_memory_ordered_after;
  std::optional<Width> width;
  std::optional<std::vector<ir::EdgeId>> implied_edges;
  std::optional<std::vector<ForkJoinRegion>> fork_join_regions;
  std::optional<NodeTimes> node_times;
  std::optional<CriticalPath> critical_path;
  std::optional<AccessTable> access_table;
  std::optional<Layers> layers;
  std::optional<ReplayStreams> replay_streams;
  std::optional<std::optional<StreamRun>> stream_run;
  std::optional<std::vector<FunctionWords>> argument_words;
  std::optional<PredictedStreams> predicted_streams;
  std::optional<std::vector<RegionOverlap>> region_overlaps;
};

namespace {

const ir::Graph& graph_of(const ir::Recording& recording, ir::GraphId id) {
  CGLINT_CHECK(recording.graphs.contains(id) && recording.graphs[id] != nullptr);
  return *recording.graphs[id];
}

// The graph's nodes and their kinds with all edges but `dropped` (ascending ids).
std::unique_ptr<ir::Graph> without_edges(const ir::Graph& graph, const std::vector<ir::EdgeId>& dropped) {
  ir::GraphBuilder builder;
  for (const ir::NodeId node : graph.nodes()) builder.add_node(graph.kind[node], graph.name[node]);
  std::size_t next = 0;
  for (const ir::EdgeId edge : graph.edges()) {
    if (next < dropped.size() && dropped[next] == edge) ++next;
    else builder.add_edge(graph.edge_from[edge], graph.edge_to[edge]);
  }
  auto reduced = builder.finish();
  CGLINT_CHECK(reduced.has_value());  // a subgraph of a verified graph
  return std::move(*reduced);
}

// The width with the bodies of child graphs in place of their nodes, whose nodes run like any other. The witness names
// the child graph's node for those of its body.
Width width_with_bodies(const ir::Recording& recording, const ir::Graph& graph) {
  const StreamGraphColumns flat = stream_graph(recording, graph);
  const auto count = static_cast<std::uint32_t>(flat.kinds.size());
  ir::GraphBuilder builder;
  for (std::uint32_t v = 0; v < count; ++v) {
    const bool disabled = v < graph.node_count() && !graph.enabled.empty() && graph.enabled[ir::NodeId(v)] == 0;
    const bool runs = has_activity_record(flat.kinds[v]) && !disabled;
    builder.add_node(runs ? ir::NodeKind::kernel : ir::NodeKind::empty, ir::StringId());
  }
  // A child graph begins at its own node and ends at one behind all others.
  std::vector<std::uint32_t> end(count);
  std::vector<bool> is_root(count, true), is_leaf(count, true);
  for (std::uint32_t v = 0; v < count; ++v) {
    end[v] = flat.kinds[v] == StreamNodeKind::child_graph
                 ? builder.add_node(ir::NodeKind::empty, ir::StringId()).index()
                 : v;
    if (end[v] != v) builder.add_edge(ir::NodeId(v), ir::NodeId(end[v]));
  }
  for (const StreamEdge& edge : flat.edges) {
    is_leaf[edge.from] = false;
    is_root[edge.to] = false;
    builder.add_edge(ir::NodeId(end[edge.from]), ir::NodeId(edge.to));
  }
  for (std::uint32_t v = 0; v < count; ++v) {
    if (flat.owner.empty() || flat.owner[v] == kNoNode) continue;
    if (is_root[v]) builder.add_edge(ir::NodeId(flat.owner[v]), ir::NodeId(v));
    if (is_leaf[v]) builder.add_edge(ir::NodeId(end[v]), ir::NodeId(end[flat.owner[v]]));
  }
  auto whole = builder.finish();
  CGLINT_CHECK(whole.has_value());  // verified graphs, one inside the other
  Width width = width_of(**whole, topological_order(**whole));
  for (ir::NodeId& node : width.antichain) {
    while (node.index() >= graph.node_count()) node = ir::NodeId(flat.owner[node.index()]);
  }
  std::sort(width.antichain.begin(), width.antichain.end());
  width.antichain.erase(std::unique(width.antichain.begin(), width.antichain.end()), width.antichain.end());
  return width;
}

// The remembered value, computed at the first call.
template <typename T, typename Compute>
const T& once(std::optional<T>& slot, const Compute& compute) {
  if (!slot) slot.emplace(compute());
  return *slot;
}

}  // namespace

Analyses::Analyses(const ir::Recording& recording, ir::GraphId graph_id, const KernelIdentities& identities)
    : state_(std::make_unique<State>(recording, graph_of(recording, graph_id), identities)) {}
Analyses::~Analyses() = default;

const ir::Recording& Analyses::recording() const {
  return state_->recording;
}
const ir::Graph& Analyses::graph() const {
  return state_->graph;
}
const KernelIdentities& Analyses::identities() const {
  return state_->identities;
}

const TopologicalOrder& Analyses::topology() {
  return once(state_->topology, [&] { return topological_order(graph()); });
}
const Reachability& Analyses::starts_after() {
  return once(state_->starts_after, [&] { return analysis::starts_after(graph(), topology()); });
}
const Reachability& Analyses::memory_ordered_after() {
  // Where every edge is full the two relations are the same.
  const auto& data = graph().edge_data;
  if (std::all_of(data.begin(), data.end(), [](const ir::EdgeData& d) { return d.is_full(); }))
    return starts_after();
  return once(state_->memory_ordered_after,
              [&] { return analysis::memory_ordered_after(recording(), graph(), topology()); });
}
const Reachability& Analyses::certainly_memory_ordered_after() {
  if (!memory_ordered_after().assumed_grid_dependency_wait()) return memory_ordered_after();
  return once(state_->certainly_memory_ordered_after, [&] {
    return analysis::memory_ordered_after(recording(), graph(), topology(), UnknownImage::never_waits);
  });
}
const Width& Analyses::width() {
  return once(state_->width, [&] {
    return graph().child_graphs.empty() ? width_of(graph(), topology()) : width_with_bodies(recording(), graph());
  });
}
const std::vector<ForkJoinRegion>& Analyses::fork_join_regions() {
  return once(state_->fork_join_regions, [&] {
    const std::vector<ir::EdgeId>& implied = implied_edges();
    if (implied.empty()) return find_fork_join_regions(graph(), topology());
    return find_fork_join_regions(*without_edges(graph(), implied), topology());
  });
}
const std::vector<ir::EdgeId>& Analyses::implied_edges() {
  return once(state_->implied_edges, [&] { return transitively_implied_edges(graph(), topology(), starts_after()); });
}
const NodeTimes& Analyses::node_times() {
  return once(state_->node_times, [&] { return analysis::node_times(graph()); });
}
const CriticalPath& Analyses::critical_path() {
  return once(state_->critical_path,
              [&] { return analysis::critical_path(graph(), topology(), node_times()); });
}
const Layers& Analyses::layers() {
  return once(state_->layers, [&] { return detect_layers(recording(), graph(), identities()); });
}
const AccessTable& Analyses::access_table() {
  return once(state_->access_table, [&] { return build_access_table(recording(), graph(), identities()); });
}
const ReplayStreams& Analyses::replay_streams() {
  return once(state_->replay_streams, [&] { return analysis::replay_streams(graph()); });
}
const PredictedStreams& Analyses::predicted_streams() {
  return once(state_->predicted_streams, [&] { return analysis::predicted_streams(recording(), graph(), stream_run()); });
}
const std::optional<StreamRun>& Analyses::stream_run() {
  return once(state_->stream_run, [&] { return run_stream_model(recording(), graph()); });
}
const std::vector<FunctionWords>& Analyses::argument_words() {
  return once(state_->argument_words, [&] { return analysis::argument_words(graph()); });
}
const std::vector<RegionOverlap>& Analyses::region_overlaps() {
  return once(state_->region_overlaps,
              [&] { return analysis::region_overlaps(graph(), fork_join_regions()); });
}

}  // namespace cglint::analysis
