// One CUDA graph: flat columns indexed by NodeId, a side table per node kind, edges as CSR both ways, the capture's
// synchronisation calls, and the replays that were recorded. Immutable once GraphBuilder::finish() has returned it.
//
// The same type holds what is not an instantiated graph: the body of a child-graph or conditional node
// (GraphRole::body), and the launches that a process made outside capture (GraphRole::eager, without edges).
//
// Names and enumerators follow the CUDA driver API; sources are cited where a value is not obvious.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "ir/facts.h"
#include "ir/ids.h"
#include "ir/node_kind.h"
#include "ir/replay_ops.h"

namespace cglint::ir {

// A value that an input may not know.
enum class Tri : std::uint8_t { unknown, no, yes };

struct Dim3 {
  std::uint32_t x = 1, y = 1, z = 1;
  [[nodiscard]] std::uint64_t count() const { return std::uint64_t{x} * y * z; }
  friend bool operator==(const Dim3&, const Dim3&) = default;
};

// A half-open range into one of the graph's flat arrays.
struct Range {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

// One captured argument word of a kernel. `offset_bytes` counts from the start of parameter `slot`; by-value structs
// and packed (`extra`) buffers give several words per slot.
struct ParamWord {
  std::uint64_t value = 0;           // little-endian, zero-extended
  std::uint64_t allocation_offset = 0;  // value - allocation.base, when `allocation` is valid
  AllocationId allocation;           // the live allocation that contains `value` at capture time, if any
  std::uint16_t slot = 0;
  std::uint16_t offset_bytes = 0;
  std::uint8_t size_bytes = 8;       // 1, 2, 4 or 8
  // What the word is known to be. `pointer` only if the parameter's type says so or `allocation` is valid.
  enum class Type : std::uint8_t { unknown, pointer, const_pointer, scalar } type = Type::unknown;
};

struct KernelNode {
  FunctionId function;
  Dim3 grid, block;
  Dim3 cluster{0, 0, 0};                  // {0,0,0}: not a cluster launch, or unknown
  std::uint32_t dynamic_shared_bytes = 0;
  std::uint32_t static_shared_bytes = 0;  // 0 also when unknown
  std::uint32_t registers_per_thread = 0; // 0: unknown
  std::int32_t priority = 0;
  Tri cooperative = Tri::unknown;
  Tri programmatic_serialization = Tri::unknown;  // cudaLaunchAttributeProgrammaticStreamSerialization
  Range params;                           // into Graph::params
};

// CUmemorytype / copyKind folded together: where each side of a copy lives.
enum class MemoryKind : std::uint8_t { unknown, host_pageable, host_pinned, device, array, managed };

struct MemcpyNode {
  std::uint64_t src = 0, dst = 0;   // 0 when unknown or an array
  std::uint64_t src_pitch_bytes = 0, dst_pitch_bytes = 0;
  std::uint64_t width_bytes = 0, height = 1, depth = 1;
  MemoryKind src_kind = MemoryKind::unknown, dst_kind = MemoryKind::unknown;
  std::int32_t src_device = -1, dst_device = -1;
  AllocationId src_allocation, dst_allocation;
  [[nodiscard]] std::uint64_t bytes() const { return width_bytes * height * depth; }
};

struct MemsetNode {
  std::uint64_t dst = 0;
  std::uint64_t pitch_bytes = 0;
  std::uint64_t width = 0;          // in elements
  std::uint64_t height = 1;
  std::uint32_t value = 0;
  std::uint8_t element_bytes = 1;   // 1, 2 or 4
  AllocationId dst_allocation;
  [[nodiscard]] std::uint64_t bytes() const { return width * element_bytes * height; }
};

struct HostNode {
  StringId function;                // symbol or address text
  std::uint64_t user_data = 0;
};

struct EventNode {                  // event_record and event_wait
  std::uint64_t event = 0;          // opaque id, stable within the process
};

struct ChildGraphNode {
  GraphId body;
};

struct ConditionalNode {
  enum class Type : std::uint8_t { unknown, if_, while_, switch_ } type = Type::unknown;
  Range bodies;                     // into Graph::bodies
};

struct AllocNode {                  // mem_alloc and mem_free
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;          // 0 for mem_free or when unknown
  AllocationId allocation;
};

struct SemaphoreNode {              // ext_semaphore_signal and ext_semaphore_wait
  std::uint32_t count = 0;
};

struct BatchMemOpNode {
  std::uint32_t count = 0;
  std::uint64_t address = 0;        // of the first operation
};

// CUgraphDependencyType and the ports of CUgraphEdgeData. Kernel nodes have three out-ports.
enum class EdgeType : std::uint8_t { full, programmatic };
inline constexpr std::uint8_t kPortDefault = 0;
inline constexpr std::uint8_t kPortProgrammatic = 1;  // CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC
inline constexpr std::uint8_t kPortLaunchOrder = 2;   // CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER

struct EdgeData {
  std::uint8_t from_port = kPortDefault;
  std::uint8_t to_port = 0;
  EdgeType type = EdgeType::full;
  [[nodiscard]] bool is_full() const { return type == EdgeType::full && from_port == kPortDefault; }
  [[nodiscard]] bool is_launch_order() const { return from_port == kPortLaunchOrder; }
  [[nodiscard]] bool is_programmatic() const { return !is_full() && !is_launch_order(); }
  friend bool operator==(const EdgeData&, const EdgeData&) = default;
};

// A capture-time call that made edges but no node: the useful source line of a bad join is its wait.
struct SyncOp {
  enum class Kind : std::uint8_t { event_record, event_wait, begin_capture, end_capture, update_dependencies };
  Kind kind = Kind::event_wait;
  StreamId stream;
  std::uint64_t event = 0;          // opaque id
  std::uint64_t sequence = 0;       // same counter as Graph::sequence
  SyncOpId record;                  // for event_wait: the record it waits for, if it is in this graph
  StackId stack;
  std::uint32_t thread = 0;
  // event_wait that made its stream part of the capture: the stream was never joined back, so the capture failed.
  bool unjoined = false;
};
std::string_view sync_op_kind_name(SyncOp::Kind kind);

// One launch of the executable graph, as traced.
struct Replay {
  std::uint64_t correlation = 0;    // of the launch call; 0 when unknown
  std::int64_t host_start_ns = 0, host_end_ns = 0;  // the launch call; equal to 0,0 when unknown
  std::uint64_t launch_stream = 0;  // stream id as the tracer numbers it; valid if has_launch_stream
  bool has_launch_stream = false;
  bool complete = true;             // false: records were lost, so absence proves nothing
  std::uint32_t instance = 0;       // which of the equal graphs was launched: 0 this one, i: Graph::instance_infos[i - 1]
  Range ops;                        // into Graph::replay_ops, sorted by start_ns
};

// Replay times taken without a tracer in the process.
struct UntracedTiming {
  std::uint32_t samples = 0;
  double median_us = 0, p10_us = 0, p90_us = 0;
  double launch_cpu_us = 0;         // median CPU time of the launch call
};

// One measured access: what an isolated run of `node` really read or wrote.
struct MeasuredAccess {
  static constexpr std::uint16_t kNoSlot = 0xffff;
  static constexpr std::uint64_t kNullEnd = 65536;  // no memory lies below
  NodeId node;
  std::uint64_t begin = 0, end = 0; // byte addresses, half-open
  bool reads = false, writes = false;  // neither: not known which
  std::uint16_t slot = kNoSlot;  // kernel argument, and byte in it, of which it is known that the node accesses this through it
  std::uint16_t offset_bytes = 0;
  // The node's run ended in a fault there: nothing is known of what else it accesses.
  [[nodiscard]] bool is_null() const { return begin < kNullEnd; }
};

enum class GraphRole : std::uint8_t {
  captured,   // from stream capture, or origin unknown
  built,      // explicit graph API
  body,       // of a child-graph or conditional node
  eager,      // launches outside capture: no edges, never instantiated
};
std::string_view graph_role_name(GraphRole role);

enum class CaptureMode : std::uint8_t { unknown, global, thread_local_, relaxed };
enum class CaptureStatus : std::uint8_t { unknown, ok, invalidated, failed };

// What is known about the graph as a whole. Zero / empty means unknown unless stated.
struct GraphInfo {
  StringId name;                    // label in the input ("graph_4"), or a name made by the importer
  GraphRole role = GraphRole::captured;
  ProcessId process;
  std::uint64_t source_id = 0;      // CUPTI graph id, DOT number, ...
  GraphId parent;                   // of a body: the graph that holds the node
  NodeId parent_node;
  // Key under which the engine stores the graph.
  std::int64_t batch_size = -1;     // -1: unknown
  StringId key;                     // free text
  // Capture.
  CaptureMode capture_mode = CaptureMode::unknown;
  CaptureStatus capture_status = CaptureStatus::unknown;
  StringId failed_call;             // the driver call that invalidated the capture, for example cuMemAlloc_v2
  StringId failed_error;            // what it returned: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, ...
  std::uint32_t failed_thread = 0;  // OS thread of that call; 0: unknown
  StackId failed_stack;
  StreamId failed_stream;           // stream of that call; for an unjoined fork, the stream that was left
  StreamId origin_stream;
  std::uint64_t begin_sequence = 0, end_sequence = 0;
  // Executable graph.
  bool instantiated = false;
  std::uint64_t instantiate_flags = 0;
  std::int64_t instantiate_ns = 0, upload_ns = 0;
  std::uint64_t memory_bytes = 0;
  std::uint32_t exec_updates = 0;
  UntracedTiming untraced;
  std::uint64_t content_hash = 0;   // structure, launch configurations and parameters; 0: not computed
  std::uint32_t instances = 1;      // equal graphs stored once: how many there were, this one included
};

// A fact that the input would carry but that lost or skipped records made unreliable.
struct SpoiledFact {
  Fact fact;
  StringId reason;
};

class Graph {
 public:
  GraphInfo info;
  FactSet facts;                    // what this graph can tell; spoiled facts are removed
  std::vector<SpoiledFact> spoiled;
  // What is known about each of the other graphs that are equal to this one and not stored (key, sequence, times). Their
  // `instances` (usually 1) are part of info.instances, which may be larger: some inputs only count.
  std::vector<GraphInfo> instance_infos;

  // --- node columns, all node_count() long; nodes are in creation order when Fact::creation_order is there ---
  base::IdVector<NodeId, NodeKind> kind;
  base::IdVector<NodeId, std::uint32_t> side;        // index into the side table of the node's kind
  base::IdVector<NodeId, StringId> name;             // display name; for kernels the function's name as recorded
  base::IdVector<NodeId, std::uint64_t> sequence;    // global sequence number of the creating call; empty if unknown
  base::IdVector<NodeId, StreamId> capture_stream;   // empty if unknown
  base::IdVector<NodeId, std::uint32_t> thread;      // OS thread of the creating call; empty if unknown
  base::IdVector<NodeId, NvtxId> nvtx;               // empty if unknown
  base::IdVector<NodeId, StackId> stack;             // empty if unknown
  base::IdVector<NodeId, std::int16_t> device;       // device ordinal of the node's context; empty if unknown
  base::IdVector<NodeId, std::uint64_t> context;     // opaque context id; empty if unknown
  base::IdVector<NodeId, std::uint8_t> enabled;      // 0/1; empty: all enabled
  base::IdVector<NodeId, std::uint64_t> source_id;   // id in the input (CUPTI graph node id, DOT id); empty: index
  base::IdVector<NodeId, std::uint32_t> launches;    // role eager: launches that the node stands for; empty: one each
  base::IdVector<NodeId, std::uint64_t> content_hash;  // hash of the bytes behind the node's parameters; often empty

  // --- side tables ---
  std::vector<KernelNode> kernels;
  std::vector<MemcpyNode> memcpys;
  std::vector<MemsetNode> memsets;
  std::vector<HostNode> hosts;
  std::vector<EventNode> events;
  std::vector<ChildGraphNode> child_graphs;
  std::vector<ConditionalNode> conditionals;
  std::vector<AllocNode> allocs;
  std::vector<SemaphoreNode> semaphores;
  std::vector<BatchMemOpNode> batch_mem_ops;
  std::vector<ParamWord> params;
  std::vector<GraphId> bodies;

  // --- edges, sorted by (from, to), no duplicates ---
  base::IdVector<EdgeId, NodeId> edge_from, edge_to;
  base::IdVector<EdgeId, EdgeData> edge_data;        // empty: all full
  base::IdVector<EdgeId, SyncOpId> edge_sync;        // the capture-time call an edge came from; empty if unknown

  base::IdVector<SyncOpId, SyncOp> sync_ops;         // by sequence
  base::IdVector<ReplayId, Replay> replays;          // by time
  ReplayOpStore replay_ops;
  std::vector<MeasuredAccess> measured_accesses;
  bool measured_reads_are_some = false;  // all writes of the nodes that have rows, but not all reads

  [[nodiscard]] std::size_t node_count() const { return kind.size(); }
  [[nodiscard]] std::size_t edge_count() const { return edge_from.size(); }
  [[nodiscard]] base::IdRange<NodeId> nodes() const { return kind.ids(); }
  [[nodiscard]] base::IdRange<EdgeId> edges() const { return edge_from.ids(); }

  // Edges that leave `node`: contiguous ids. Edges that enter it: a list of ids.
  [[nodiscard]] base::IdRange<EdgeId> out_edges(NodeId node) const {
    return {out_first_[node.index()], out_first_[node.index() + 1]};
  }
  [[nodiscard]] std::span<const EdgeId> in_edges(NodeId node) const {
    return std::span(in_edge_).subspan(in_first_[node.index()], in_first_[node.index() + 1] - in_first_[node.index()]);
  }
  // Neighbours in ascending id order.
  [[nodiscard]] std::span<const NodeId> successors(NodeId node) const {
    return std::span(edge_to.raw())
        .subspan(out_first_[node.index()], out_first_[node.index() + 1] - out_first_[node.index()]);
  }
  [[nodiscard]] std::span<const NodeId> predecessors(NodeId node) const {
    return std::span(in_from_).subspan(in_first_[node.index()], in_first_[node.index() + 1] - in_first_[node.index()]);
  }
  [[nodiscard]] EdgeData data(EdgeId edge) const {
    return edge_data.empty() ? EdgeData() : edge_data[edge];
  }

  [[nodiscard]] const KernelNode* kernel(NodeId node) const {
    return kind[node] == NodeKind::kernel && side[node] < kernels.size() ? &kernels[side[node]] : nullptr;
  }
  [[nodiscard]] const MemcpyNode* memcpy(NodeId node) const {
    return kind[node] == NodeKind::memcpy && side[node] < memcpys.size() ? &memcpys[side[node]] : nullptr;
  }
  [[nodiscard]] const MemsetNode* memset(NodeId node) const {
    return kind[node] == NodeKind::memset && side[node] < memsets.size() ? &memsets[side[node]] : nullptr;
  }
  [[nodiscard]] std::span<const ParamWord> params_of(const KernelNode& kernel_node) const {
    return std::span(params).subspan(kernel_node.params.first, kernel_node.params.count);
  }
  [[nodiscard]] ReplayOps ops(const Replay& replay) const { return {replay_ops, replay.ops.first, replay.ops.count}; }

 private:
  friend class GraphBuilder;
  std::vector<std::uint32_t> out_first_{0};
  std::vector<std::uint32_t> in_first_{0};
  std::vector<EdgeId> in_edge_;
  std::vector<NodeId> in_from_;
};

}  // namespace cglint::ir
