// Builds one Graph. Importers and tests feed nodes and edges here and never touch columns. finish() sorts edges,
// builds both CSR directions and runs the verifier.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "ir/graph.h"
#include "ir/recording.h"

namespace cglint::ir {

class GraphBuilder {
 public:
  GraphBuilder();

  // The graph under construction, for columns that have no helper (info, facts, sync_ops, replays...).
  [[nodiscard]] Graph& graph() { return *graph_; }

  // Nodes are appended in creation order.
  NodeId add_node(NodeKind kind, StringId name);
  NodeId add_kernel(StringId name, const KernelNode& kernel);
  NodeId add_memcpy(StringId name, const MemcpyNode& node);
  NodeId add_memset(StringId name, const MemsetNode& node);
  NodeId add_host(StringId name, const HostNode& node);
  NodeId add_event(NodeKind kind, StringId name, const EventNode& node);
  NodeId add_child_graph(StringId name, const ChildGraphNode& node);
  NodeId add_conditional(StringId name, ConditionalNode node, std::span<const GraphId> bodies);
  NodeId add_alloc(NodeKind kind, StringId name, const AllocNode& node);
  NodeId add_semaphore(NodeKind kind, StringId name, const SemaphoreNode& node);
  NodeId add_batch_mem_op(StringId name, const BatchMemOpNode& node);
  // Appends words to the params of the last added kernel.
  void add_params(NodeId kernel, std::span<const ParamWord> words);

  // Optional columns: the first call creates the column, with defaults for the other nodes.
  void set_sequence(NodeId node, std::uint64_t sequence);
  void set_capture_stream(NodeId node, StreamId stream);
  void set_thread(NodeId node, std::uint32_t thread);
  void set_nvtx(NodeId node, NvtxId nvtx);
  void set_stack(NodeId node, StackId stack);
  void set_device(NodeId node, std::int16_t device);
  void set_context(NodeId node, std::uint64_t context);
  void set_enabled(NodeId node, bool enabled);
  void set_source_id(NodeId node, std::uint64_t id);
  void set_content_hash(NodeId node, std::uint64_t hash);
  void set_launches(NodeId node, std::uint32_t launches);

  // Ids may be out of range or make a cycle: finish() reports that. A repeated (from, to) pair keeps the strongest
  // edge (full over programmatic over launch-order) and is counted in duplicate_edges().
  void add_edge(NodeId from, NodeId to, EdgeData data = {}, SyncOpId sync = SyncOpId());
  [[nodiscard]] std::size_t duplicate_edges() const { return duplicate_edges_; }

  // ErrorCode::malformed for an edge to a missing node, a self edge or a cycle.
  base::Result<std::unique_ptr<Graph>> finish();

 private:
  struct PendingEdge {
    std::uint32_t from, to;
    EdgeData data;
    SyncOpId sync;
  };
  std::unique_ptr<Graph> graph_;
  std::vector<PendingEdge> pending_;
  std::size_t duplicate_edges_ = 0;
};

// Checks what every Graph must satisfy (columns of equal length, ids in range, mirrors agree, acyclic, kinds match
// side tables, replay ranges inside their arrays). Used by finish() and by tests.
base::Result<void> verify(const Graph& graph);

}  // namespace cglint::ir
