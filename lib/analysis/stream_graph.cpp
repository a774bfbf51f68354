#include "analysis/stream_graph.h"

#include <charconv>
#include <string_view>

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

StreamGraphColumns stream_graph(const ir::Graph& graph) {
  StreamGraphColumns columns;
  columns.kinds.reserve(graph.node_count());
  for (const ir::NodeId node : graph.nodes()) {
    columns.kinds.push_back(stream_node_kind(graph, node));
    if (graph.kind[node] == ir::NodeKind::memcpy) columns.assumed_copies += has_unknown_side(graph, node);
    const ir::MemsetNode* memset = graph.memset(node);
    columns.assumed_memsets +=
        graph.kind[node] == ir::NodeKind::memset && (memset == nullptr || memset->bytes() == 0);
  }
  columns.edges.reserve(graph.edge_count());
  for (const ir::EdgeId edge : graph.edges()) {
    const ir::EdgeData data = graph.data(edge);
    columns.edges.push_back({graph.edge_from[edge].index(), graph.edge_to[edge].index(),
                             data.is_launch_order()   ? StreamEdgeType::launch_order
                             : data.is_programmatic() ? StreamEdgeType::programmatic
                                                      : StreamEdgeType::full});
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
