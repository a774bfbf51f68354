// Predicts on which internal stream the CUDA driver replays each node of an instantiated graph, from creation
// order, edges and node kinds alone, and says why. CUDA documents none of this: the model is a black-box
// description of measurements (docs/stream-assignment.md), valid for the drivers it was measured on.
//
// Pure functions on plain arrays; no dependency on the IR (analysis/predicted_streams.h adapts). Thread safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace cglint::analysis {

inline constexpr std::uint32_t kNoNode = 0xffffffffU;

// What the model distinguishes.
enum class StreamNodeKind : std::uint8_t {
  kernel,
  memcpy_on_device,  // both sides in device memory: the driver treats it as a kernel
  memcpy_with_host,  // one side in host memory
  memset,            // one row of at most kSmallMemsetBytes
  memset_large,      // more bytes or more rows: the driver treats it as a kernel
  host,
  event_record,
  event_wait,
  batch_mem_op,
  empty,
  mem_alloc,  // removed like empty nodes
  mem_free,
  child_graph,
  conditional,
  other,  // never measured
};
inline constexpr std::uint64_t kSmallMemsetBytes = 4096;  // measured: 4,096 is small, 4,100 is not
inline constexpr int kStreamNodeKindCount = static_cast<int>(StreamNodeKind::other) + 1;
std::string_view stream_node_kind_name(StreamNodeKind kind);
// Kinds that leave an activity record: these are what a stream count counts.
constexpr bool has_activity_record(StreamNodeKind kind) {
  return kind == StreamNodeKind::kernel || kind == StreamNodeKind::memcpy_on_device ||
         kind == StreamNodeKind::memcpy_with_host || kind == StreamNodeKind::memset ||
         kind == StreamNodeKind::memset_large;
}

enum class StreamEdgeType : std::uint8_t { full, programmatic, launch_order };

struct StreamEdge {
  std::uint32_t from = 0, to = 0;  // creation indices
  StreamEdgeType type = StreamEdgeType::full;
  friend bool operator==(const StreamEdge&, const StreamEdge&) = default;
};

inline constexpr std::size_t kMaxInlinedDependencies = 10'000'000;

// A graph as the model sees it. Node i is the i-th node that was created (the order of cudaGraphGetNodes,
// which stream capture makes the order of enqueueing). Edges come in any order; duplicates count once. Must
// be acyclic and in range, with at most kMaxInlinedDependencies made by child graphs: a graph that is not
// gives a prediction with `valid` false. The spans are only read during the call.
//
// Bodies of child graphs: their nodes come behind the graph's own, and `owner` names the child-graph node (of
// the graph, or of a body) that each belongs to. A body's nodes are in its own creation order and in one run;
// edges stay within one body. A child-graph node that owns nothing counts as an empty body.
struct StreamGraph {
  std::span<const StreamNodeKind> kinds;
  std::span<const StreamEdge> edges;
  std::span<const std::uint32_t> owner = {};  // kNoNode: the graph's own node; empty: all are
  [[nodiscard]] std::size_t node_count() const { return kinds.size(); }
};

// The measured agreement of one node kind: the share of measured graphs with this kind whose partition of
// nodes into streams is predicted exactly.
struct StreamKindAgreement {
  StreamNodeKind kind;
  double exact_share;  // 0..1; 0: never measured
  std::uint32_t measured_graphs;
};

// One version of the driver's behaviour. A new driver that behaves differently gets a new constant.
struct StreamModel {
  std::string_view name;       // "580"
  std::uint32_t driver_major;  // major version of the measured driver
  std::uint32_t
      many_children;  // from this many branches on, a fork opens no streams and its last child inherits
  std::span<const StreamKindAgreement> agreement;
  double typed_edges_exact_share;  // 0..1, of measured graphs with programmatic or launch-order edges and
                                   // other kinds
};
extern const StreamModel kModel580;  // driver 580.159, CUDA 13.0, H200

// How a node came by its stream.
enum class StreamOrigin : std::uint8_t {
  none,            // the node has no stream (an empty node that the driver removes)
  launch,          // the first node: the stream that the graph is launched into
  rejoins_launch,  // every other node is ordered before or after it, so it returns to the launch stream
  handed_on,       // the stream of its parent `by`
  opened_at_fork,  // a new stream, made when its parent `by` forked
  opened_late,     // a new stream, made when the node's turn came: no parent had a stream left for it
};
std::string_view stream_origin_name(StreamOrigin origin);

// What became of a node's stream once the node was placed.
enum class StreamFate : std::uint8_t {
  none,          // the node has no stream
  continues,     // handed to child `heir`
  ends_as_sink,  // the node has no children
  returns,       // its child rejoins the launch stream; nothing to hand on to
  dies,          // all children that could take it had been claimed, or it may not be handed to any of them
};
std::string_view stream_fate_name(StreamFate fate);

struct StreamNode {
  std::int32_t stream =
      -1;  // 0 = launch stream; 1, 2, ... in the order in which the driver makes them; -1 = none
  StreamOrigin origin = StreamOrigin::none;
  StreamFate fate = StreamFate::none;
  std::uint32_t by = kNoNode;    // the parent that decided (handed_on, opened_at_fork)
  std::uint32_t heir = kNoNode;  // the child that goes on (continues)
};

// One stream, from its first to its last node.
struct StreamLife {
  std::uint32_t first = kNoNode, tail = kNoNode;  // in the order of visit
  std::uint32_t node_count = 0;                   // with an activity record
  std::uint32_t opened_by = kNoNode;  // the fork that made it; kNoNode: opened late, or the launch stream
  // A dead stream was left with work still to come and is never used again: the next branch pays with a new
  // one.
  bool dead = false;
};

struct StreamPrediction {
  bool valid = false;             // false: not as StreamGraph says; all else is empty
  std::uint32_t count = 0;        // streams that carry at least one node with an activity record
  std::vector<StreamNode> nodes;  // per node, creation order
  std::vector<StreamLife>
      streams;                 // by stream number; a stream that the driver made for nothing has node_count 0
  bool driver_tested = false;  // the driver given is one that the model was measured on
  // Weakest agreement of the node kinds present, 0..1; halved where the driver is untested.
  double confidence = 0;
  std::vector<StreamNodeKind>
      weak_kinds;  // kinds present whose agreement is below 0.995, or that were never measured
};

// `driver_major`: the driver that will replay the graph (580 for 580.159.03); 0: unknown.
// O(nodes + edges) time and space, apart from long chains of empty nodes that each gather several parents.
StreamPrediction predict_streams(const StreamGraph& graph, std::uint32_t driver_major = 0,
                                 const StreamModel& model = kModel580);

// The number of streams alone; cheaper. 0 for an invalid graph.
std::uint32_t predict_stream_count(const StreamGraph& graph, const StreamModel& model = kModel580);

// The order in which the driver looks at the nodes: creation order; where that is not topological, an index
// scan in which a node with a smaller index that becomes ready joins a queue that is emptied before the scan
// goes on. Nodes that the driver removes are left out. Empty if the graph is cyclic or out of range.
std::vector<std::uint32_t> stream_visit_order(const StreamGraph& graph);

// The funnels: nodes that every other node is ordered before or after, and that no edge bypasses, in the
// graph that is left when the driver has removed what it removes. Empty if the graph is cyclic or out of
// range.
std::vector<bool> stream_funnels(const StreamGraph& graph);

}  // namespace cglint::analysis
