#include "analysis/stream_graph.h"

#include <charconv>
#include <string_view>
#include <utility>

namespace cglint::analysis {
namespace {

bool is_on_host(ir::MemoryKind kind) {
  return kind == ir::MemoryKind::host_pageable || kind == ir::MemoryKind::host_pinned;
}

bool has_unknown_side(const ir::Graph& graph, ir::NodeId node) {
  const ir::MemcpyNode* copy = graph.memcpy(node);
  if (copy == nullptr) return true;
  if (is_on_host(copy->src_kind) || is_on_host(copy->dst_kind)) return false;
  return copy->src_kind == ir::MemoryKind::unknown || copy->dst_kind == ir::MemoryKind::unknown;
}

}  // namespace

StreamNodeKind stream_node_kind(const ir::Graph& graph, ir::NodeId node) {
  switch (graph.kind[node]) {
    case ir::NodeKind::kernel:
      return StreamNodeKind::kernel;
    case ir::NodeKind::memcpy: {
      const ir::MemcpyNode* copy = graph.memcpy(node);
      const bool with_host = copy != nullptr && (is_on_host(copy->src_kind) || is_on_host(copy->dst_kind));
      return with_host ? StreamNodeKind::memcpy_with_host : StreamNodeKind::memcpy_on_device;
    }
    case ir::NodeKind::memset: {
      const ir::MemsetNode* memset = graph.memset(node);
      const bool small = memset == nullptr || (memset->height <= 1 && memset->bytes() <= kSmallMemsetBytes);
      return small ? StreamNodeKind::memset : StreamNodeKind::memset_large;
    }
    case ir::NodeKind::host:
      return StreamNodeKind::host;
    case ir::NodeKind::empty:
      return StreamNodeKind::empty;
    case ir::NodeKind::event_record:
      return StreamNodeKind::event_record;
    case ir::NodeKind::event_wait:
      return StreamNodeKind::event_wait;
    case ir::NodeKind::child_graph:
      return StreamNodeKind::child_graph;
    case ir::NodeKind::mem_alloc:
      return StreamNodeKind::mem_alloc;
    case ir::NodeKind::mem_free:
      return StreamNodeKind::mem_free;
    case ir::NodeKind::batch_mem_op:
      return StreamNodeKind::batch_mem_op;
    case ir::NodeKind::conditional:
      return StreamNodeKind::conditional;
    case ir::NodeKind::ext_semaphore_signal:
    case ir::NodeKind::ext_semaphore_wait:
    case ir::NodeKind::unknown:
      return StreamNodeKind::other;
  }
  return StreamNodeKind::other;
}

StreamGraphColumns stream_graph(const ir::Recording& recording, const ir::Graph& graph) {
  StreamGraphColumns columns;
  const auto append = [&](const ir::Graph& part) {
    const auto base = static_cast<std::uint32_t>(columns.kinds.size());
    for (const ir::NodeId node : part.nodes()) {
      columns.kinds.push_back(stream_node_kind(part, node));
      if (part.kind[node] == ir::NodeKind::memcpy) columns.assumed_copies += has_unknown_side(part, node);
      const ir::MemsetNode* memset = part.memset(node);
      columns.assumed_memsets +=
          part.kind[node] == ir::NodeKind::memset && (memset == nullptr || memset->bytes() == 0);
    }
    for (const ir::EdgeId edge : part.edges()) {
      const ir::EdgeData data = part.data(edge);
      columns.edges.push_back({base + part.edge_from[edge].index(), base + part.edge_to[edge].index(),
                               data.is_launch_order()   ? StreamEdgeType::launch_order
                               : data.is_programmatic() ? StreamEdgeType::programmatic
                                                        : StreamEdgeType::full});
    }
  };
  columns.kinds.reserve(graph.node_count());
  columns.edges.reserve(graph.edge_count());
  append(graph);
  if (graph.child_graphs.empty()) return columns;
  // Graphs whose child-graph nodes are still to look at, by their first node; bodies join at the end.
  std::vector<std::pair<const ir::Graph*, std::uint32_t>> parts{{&graph, 0U}};
  columns.owner.assign(graph.node_count(), kNoNode);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto [part, first] = parts[i];
    for (const ir::NodeId node : part->nodes()) {
      if (part->kind[node] != ir::NodeKind::child_graph) continue;
      const std::uint32_t box = first + node.index();
      const ir::GraphId id = part->side[node] < part->child_graphs.size()
                                 ? part->child_graphs[part->side[node]].body
                                 : ir::GraphId();
      const ir::Graph* body = recording.graphs.contains(id) ? recording.graphs[id].get() : nullptr;
      if (body == nullptr ||
          !body->facts.contains_all({ir::Fact::nodes, ir::Fact::edges, ir::Fact::creation_order}) ||
          columns.kinds.size() + body->node_count() > graph.node_count() + kMaxInlinedNodes) {
        columns.kinds[box] = StreamNodeKind::other;
        continue;
      }
      parts.emplace_back(body, static_cast<std::uint32_t>(columns.kinds.size()));
      append(*body);
      columns.owner.resize(columns.kinds.size(), box);
    }
  }
  return columns;
}

std::uint32_t driver_major(const ir::Recording& recording, const ir::Graph& graph) {
  if (!graph.info.process.is_valid()) return 0;
  const std::string_view release = recording.text(recording.processes[graph.info.process].driver_release);
  std::uint32_t major = 0;
  const auto [end, error] = std::from_chars(release.data(), release.data() + release.size(), major);
  return error == std::errc() ? major : 0;
}

}  // namespace cglint::analysis
