#include "ir/graph_builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace cglint::ir {
namespace {

using base::ErrorCode;
using base::make_error;

template <typename T>
void set_column(base::IdVector<NodeId, T>& column, NodeId node, T value, T fill, std::size_t size) {
  if (column.size() < size) column.resize(size, fill);
  column[node] = value;
}

template <typename T>
void pad_column(base::IdVector<NodeId, T>& column, T fill, std::size_t size) {
  if (!column.empty() && column.size() < size) column.resize(size, fill);
}

int strength(const EdgeData& data) {
  if (data.is_full()) return 2;
  return data.is_programmatic() ? 1 : 0;
}

}  // namespace

GraphBuilder::GraphBuilder() : graph_(std::make_unique<Graph>()) {}

NodeId GraphBuilder::add_node(NodeKind kind, StringId name) {
  Graph& g = *graph_;
  const NodeId id = g.kind.push_back(kind);
  g.side.push_back(~std::uint32_t{0});
  g.name.push_back(name);
  return id;
}

#define CGLINT_ADD(function, kind, table, node)                          \
  {                                                                      \
    const NodeId id = add_node(kind, name);                              \
    graph_->side[id] = static_cast<std::uint32_t>(graph_->table.size()); \
    graph_->table.push_back(node);                                       \
    return id;                                                           \
  }

NodeId GraphBuilder::add_kernel(StringId name, const KernelNode& kernel)
    CGLINT_ADD(add_kernel, NodeKind::kernel, kernels, kernel)
NodeId GraphBuilder::add_memcpy(StringId name, const MemcpyNode& node)
    CGLINT_ADD(add_memcpy, NodeKind::memcpy, memcpys, node)
NodeId GraphBuilder::add_memset(StringId name, const MemsetNode& node)
    CGLINT_ADD(add_memset, NodeKind::memset, memsets, node)
NodeId GraphBuilder::add_host(StringId name, const HostNode& node)
    CGLINT_ADD(add_host, NodeKind::host, hosts, node)
NodeId GraphBuilder::add_event(NodeKind kind, StringId name, const EventNode& node)
    CGLINT_ADD(add_event, kind, events, node)
NodeId GraphBuilder::add_child_graph(StringId name, const ChildGraphNode& node)
    CGLINT_ADD(add_child_graph, NodeKind::child_graph, child_graphs, node)
NodeId GraphBuilder::add_alloc(NodeKind kind, StringId name, const AllocNode& node)
    CGLINT_ADD(add_alloc, kind, allocs, node)
NodeId GraphBuilder::add_semaphore(NodeKind kind, StringId name, const SemaphoreNode& node)
    CGLINT_ADD(add_semaphore, kind, semaphores, node)
NodeId GraphBuilder::add_batch_mem_op(StringId name, const BatchMemOpNode& node)
    CGLINT_ADD(add_batch_mem_op, NodeKind::batch_mem_op, batch_mem_ops, node)
#undef CGLINT_ADD

NodeId GraphBuilder::add_conditional(StringId name, ConditionalNode node, std::span<const GraphId> bodies) {
  node.bodies = {static_cast<std::uint32_t>(graph_->bodies.size()), static_cast<std::uint32_t>(bodies.size())};
  graph_->bodies.insert(graph_->bodies.end(), bodies.begin(), bodies.end());
  const NodeId id = add_node(NodeKind::conditional, name);
  graph_->side[id] = static_cast<std::uint32_t>(graph_->conditionals.size());
  graph_->conditionals.push_back(node);
  return id;
}

void GraphBuilder::add_params(NodeId kernel, std::span<const ParamWord> words) {
  CGLINT_CHECK(graph_->kernel(kernel) != nullptr);
  KernelNode& node = graph_->kernels[graph_->side[kernel]];
  if (node.params.count == 0) node.params.first = static_cast<std::uint32_t>(graph_->params.size());
  CGLINT_CHECK(node.params.first + node.params.count == graph_->params.size());
  graph_->params.insert(graph_->params.end(), words.begin(), words.end());
  node.params.count += static_cast<std::uint32_t>(words.size());
}

void GraphBuilder::set_sequence(NodeId node, std::uint64_t sequence) {
  set_column<std::uint64_t>(graph_->sequence, node, sequence, 0, graph_->node_count());
}
void GraphBuilder::set_capture_stream(NodeId node, StreamId stream) {
  set_column(graph_->capture_stream, node, stream, StreamId(), graph_->node_count());
}
void GraphBuilder::set_thread(NodeId node, std::uint32_t thread) {
  set_column<std::uint32_t>(graph_->thread, node, thread, 0, graph_->node_count());
}
void GraphBuilder::set_nvtx(NodeId node, NvtxId nvtx) {
  set_column(graph_->nvtx, node, nvtx, NvtxId(), graph_->node_count());
}
void GraphBuilder::set_stack(NodeId node, StackId stack) {
  set_column(graph_->stack, node, stack, StackId(), graph_->node_count());
}
void GraphBuilder::set_device(NodeId node, std::int16_t device) {
  set_column<std::int16_t>(graph_->device, node, device, -1, graph_->node_count());
}
void GraphBuilder::set_context(NodeId node, std::uint64_t context) {
  set_column<std::uint64_t>(graph_->context, node, context, 0, graph_->node_count());
}
void GraphBuilder::set_enabled(NodeId node, bool enabled) {
  set_column<std::uint8_t>(graph_->enabled, node, enabled ? 1 : 0, 1, graph_->node_count());
}
void GraphBuilder::set_source_id(NodeId node, std::uint64_t id) {
  set_column<std::uint64_t>(graph_->source_id, node, id, 0, graph_->node_count());
}
void GraphBuilder::set_content_hash(NodeId node, std::uint64_t hash) {
  set_column<std::uint64_t>(graph_->content_hash, node, hash, 0, graph_->node_count());
}

void GraphBuilder::set_launches(NodeId node, std::uint32_t launches) {
  set_column<std::uint32_t>(graph_->launches, node, launches, 1, graph_->node_count());
}

void GraphBuilder::add_edge(NodeId from, NodeId to, EdgeData data, SyncOpId sync) {
  pending_.push_back({from.index(), to.index(), data, sync});
}

base::Result<std::unique_ptr<Graph>> GraphBuilder::finish() {
  Graph& g = *graph_;
  const std::size_t n = g.node_count();
  const auto count = static_cast<std::uint32_t>(n);
  pad_column<std::uint64_t>(g.sequence, 0, n);
  pad_column(g.capture_stream, StreamId(), n);
  pad_column<std::uint32_t>(g.thread, 0, n);
  pad_column(g.nvtx, NvtxId(), n);
  pad_column(g.stack, StackId(), n);
  pad_column<std::int16_t>(g.device, -1, n);
  pad_column<std::uint64_t>(g.context, 0, n);
  pad_column<std::uint8_t>(g.enabled, 1, n);
  pad_column<std::uint64_t>(g.source_id, 0, n);
  pad_column<std::uint64_t>(g.content_hash, 0, n);
  pad_column<std::uint32_t>(g.launches, 1, n);

  for (const PendingEdge& edge : pending_) {
    if (edge.from >= count || edge.to >= count)
      return make_error(ErrorCode::malformed,
                        fmt::format("an edge names node {} but the graph has {} nodes",
                                    std::max(edge.from, edge.to), count));
    if (edge.from == edge.to)
      return make_error(ErrorCode::malformed, fmt::format("node {} depends on itself", edge.from));
  }
  std::sort(pending_.begin(), pending_.end(), [](const PendingEdge& a, const PendingEdge& b) {
    if (a.from != b.from) return a.from < b.from;
    if (a.to != b.to) return a.to < b.to;
    return strength(a.data) > strength(b.data);
  });
  const auto same_pair = [](const PendingEdge& a, const PendingEdge& b) { return a.from == b.from && a.to == b.to; };
  const auto last = std::unique(pending_.begin(), pending_.end(), same_pair);
  duplicate_edges_ = static_cast<std::size_t>(pending_.end() - last);
  pending_.erase(last, pending_.end());

  const std::size_t m = pending_.size();
  const bool has_data =
      std::any_of(pending_.begin(), pending_.end(), [](const PendingEdge& e) { return e.data != EdgeData(); });
  const bool has_sync =
      std::any_of(pending_.begin(), pending_.end(), [](const PendingEdge& e) { return e.sync.is_valid(); });
  g.edge_from.reserve(m);
  g.edge_to.reserve(m);
  g.out_first_.assign(n + 1, 0);
  g.in_first_.assign(n + 1, 0);
  for (const PendingEdge& edge : pending_) {
    g.edge_from.push_back(NodeId(edge.from));
    g.edge_to.push_back(NodeId(edge.to));
    if (has_data) g.edge_data.push_back(edge.data);
    if (has_sync) g.edge_sync.push_back(edge.sync);
    ++g.out_first_[edge.from + 1];
    ++g.in_first_[edge.to + 1];
  }
  std::partial_sum(g.out_first_.begin(), g.out_first_.end(), g.out_first_.begin());
  std::partial_sum(g.in_first_.begin(), g.in_first_.end(), g.in_first_.begin());
  g.in_edge_.resize(m);
  g.in_from_.resize(m);
  std::vector<std::uint32_t> fill(g.in_first_.begin(), g.in_first_.end() - 1);
  for (std::uint32_t e = 0; e < m; ++e) {  // edges are sorted by `from`, so each in-list comes out ascending
    const std::uint32_t slot = fill[pending_[e].to]++;
    g.in_edge_[slot] = EdgeId(e);
    g.in_from_[slot] = NodeId(pending_[e].from);
  }
  pending_.clear();
  CGLINT_TRY(verify(g));
  auto finished = std::move(graph_);
  graph_ = std::make_unique<Graph>();
  return finished;
}

base::Result<void> verify(const Graph& g) {
  const std::size_t n = g.node_count();
  const auto optional_column = [n](std::size_t size) { return size == 0 || size == n; };
  CGLINT_CHECK(g.side.size() == n && g.name.size() == n);
  CGLINT_CHECK(optional_column(g.sequence.size()) && optional_column(g.capture_stream.size()) &&
               optional_column(g.thread.size()) && optional_column(g.nvtx.size()) &&
               optional_column(g.stack.size()) && optional_column(g.device.size()) &&
               optional_column(g.context.size()) && optional_column(g.enabled.size()) &&
               optional_column(g.source_id.size()) && optional_column(g.content_hash.size()) &&
               optional_column(g.launches.size()));
  CGLINT_CHECK(g.edge_data.empty() || g.edge_data.size() == g.edge_count());
  CGLINT_CHECK(g.edge_sync.empty() || g.edge_sync.size() == g.edge_count());

  for (const KernelNode& kernel : g.kernels)
    if (std::size_t{kernel.params.first} + kernel.params.count > g.params.size())
      return make_error(ErrorCode::malformed, "a kernel's parameters lie outside the parameter table");
  for (const EdgeId e : g.edges())
    if (!g.edge_sync.empty() && g.edge_sync[e].is_valid() && !g.sync_ops.contains(g.edge_sync[e]))
      return make_error(ErrorCode::malformed, fmt::format("edge {} names a missing sync operation", e.index()));
  std::size_t ops_seen = 0;
  for (const Replay& replay : g.replays) {
    if (std::size_t{replay.ops.first} + replay.ops.count > g.replay_ops.size())
      return make_error(ErrorCode::malformed, "a replay's operations lie outside the replay table");
    if (replay.instance > g.instance_infos.size())
      return make_error(ErrorCode::malformed, fmt::format("a replay names missing instance {}", replay.instance));
    ops_seen += replay.ops.count;
  }
  if (ops_seen != g.replay_ops.size())
    return make_error(ErrorCode::malformed, "replay operations that belong to no replay");
  for (const ReplayOp& op : g.replay_ops)
    if (op.node.is_valid() && !g.kind.contains(op.node))
      return make_error(ErrorCode::malformed, fmt::format("a replay operation names missing node {}", op.node.index()));
  for (const MeasuredAccess& access : g.measured_accesses)
    if (!g.kind.contains(access.node) || access.begin > access.end)
      return make_error(ErrorCode::malformed, "a measured access names a missing node or an inverted range");

  // Acyclic: Kahn's algorithm must reach every node.
  std::vector<std::uint32_t> missing(n);
  std::vector<NodeId> ready;
  for (const NodeId node : g.nodes()) {
    missing[node.index()] = static_cast<std::uint32_t>(g.predecessors(node).size());
    if (missing[node.index()] == 0) ready.push_back(node);
  }
  std::size_t done = 0;
  while (!ready.empty()) {
    const NodeId node = ready.back();
    ready.pop_back();
    ++done;
    for (const NodeId next : g.successors(node))
      if (--missing[next.index()] == 0) ready.push_back(next);
  }
  if (done != n) {
    const auto stuck = std::find_if(missing.begin(), missing.end(), [](std::uint32_t d) { return d != 0; });
    return make_error(ErrorCode::malformed,
                      fmt::format("the dependencies form a cycle through or before node {}", stuck - missing.begin()));
  }
  return {};
}

}  // namespace cglint::ir
