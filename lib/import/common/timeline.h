// Turns the events of a trace into graphs with replays: collects GPU operations and launch calls, groups operations by
// launch and launches by graph, and ties the operations of all launches of a graph to one list of nodes.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/packed_span.h"
#include "base/result.h"
#include "base/value_table.h"
#include "import/common/importer.h"
#include "import/common/op_store.h"
#include "ir/recording.h"

namespace cglint::import {

// What makes two operations of different launches "the same operation" where ids are missing.
struct OpShape {
  ir::NodeKind kind = ir::NodeKind::kernel;
  ir::StringId name;
  ir::Dim3 grid{0, 0, 0}, block{0, 0, 0};
  std::uint32_t registers = 0;
  std::uint32_t shared_bytes = 0;
  std::uint64_t bytes = 0;
  std::int32_t priority = 0;
  friend bool operator==(const OpShape&, const OpShape&) = default;
};

// A row of the timeline: (pid, tid) as drawn, (device, stream) as run, and the process that launched its operations.
struct Lane {
  std::int64_t pid = -1, tid = -1;
  std::int32_t device = 0;
  std::uint64_t stream = 0;
  std::uint32_t process = 0;
  bool stream_of_row = false, device_of_row = false;  // taken from (pid, tid) for want of something better
  friend bool operator==(const Lane&, const Lane&) = default;
};

// Correlation ids (32 bits) are unique in a process; recordings of several processes keep them apart by the process number.
inline constexpr int kCorrelationBits = 48;
inline constexpr std::uint32_t kMaxProcesses = 1u << (64 - kCorrelationBits);
constexpr std::uint64_t correlation_key(std::uint32_t process, std::uint64_t correlation) {
  const std::uint64_t low = correlation & ((std::uint64_t{1} << kCorrelationBits) - 1);
  return low == 0 ? 0 : (std::uint64_t{process & 0xffffu} << kCorrelationBits) | low;
}

// Which node of which graph an operation ran; both 0: not from a graph, or unknown.
struct NodeKey {
  std::uint64_t node_id = 0;
  std::uint32_t graph_id = 0;
  friend bool operator==(const NodeKey&, const NodeKey&) = default;
};

struct TimelineOp {
  std::int64_t start_ns = 0, dur_ns = 0;
  std::uint32_t correlation = 0;   // in its lane's process; 0: unknown
  std::uint32_t node = 0;          // see Timeline::intern_node(); 0: unknown
  std::uint32_t shape = 0;
  std::uint32_t lane = 0;
};

// The operations of a trace. There may be tens of millions: they are kept in 18 bytes each and read by value.
class TimelineOps {
 private:
  struct What {
    std::uint32_t node = 0, shape = 0, lane = 0;
    friend bool operator==(const What&, const What&) = default;
  };
  struct HashOfWhat {
    std::uint64_t operator()(const What& what) const {
      return base::mix_hash(base::mix_hash(what.node, what.shape), what.lane);
    }
  };
  using Halves = std::array<std::uint16_t, 2>;
  static Halves halves(std::uint32_t value) { return {static_cast<std::uint16_t>(value), static_cast<std::uint16_t>(value >> 16)}; }
  static std::uint32_t whole(Halves value) { return value[0] | (std::uint32_t{value[1]} << 16); }
  struct Packed {
    base::PackedSpan time;
    Halves what, correlation;
  };
  static_assert(sizeof(Packed) == 18);

 public:
  using Run = OpStore<Packed>::Run;

  void push_back(const TimelineOp& op) {
    ops_.push_back({times_.pack(op.start_ns, op.start_ns + op.dur_ns), halves(what_.intern({op.node, op.shape, op.lane})), halves(op.correlation)});
  }
  // By value. Not for what was released.
  TimelineOp operator[](std::size_t i) const {
    const Packed& packed = ops_[i];
    const base::SpanPacker::Span time = times_.unpack(packed.time);
    const What& what = what_[whole(packed.what)];
    return {time.begin, time.end - time.begin, whole(packed.correlation), what.node, what.shape, what.lane};
  }
  [[nodiscard]] std::size_t size() const { return ops_.size(); }
  [[nodiscard]] bool empty() const { return ops_.empty(); }
  void permute(std::size_t first, std::vector<std::uint32_t>& order) { ops_.permute(first, order); }
  void permute_runs(const std::vector<Run>& runs) { ops_.permute_runs(runs); }
  void release(std::size_t first, std::size_t count) { ops_.release(first, count); }

 private:
  OpStore<Packed> ops_;
  base::SpanPacker times_;
  base::ValueTable<What, HashOfWhat> what_;
};

struct TimelineLaunch {
  std::uint64_t correlation = 0;   // see correlation_key()
  std::int64_t start_ns = 0, dur_ns = 0;
  std::int64_t pid = -1;
};

struct TimelineArrow {
  std::uint64_t id = 0;
  bool is_start = false;
  std::int64_t pid = -1, tid = -1;
  std::int64_t ts_ns = 0;
};

// A trace in memory. The importers of all trace formats fill one and call build_graphs().
class Timeline {
 public:
  explicit Timeline(ir::Recording& recording) : recording_(recording) { nodes_.intern(NodeKey()); }

  std::uint32_t intern_shape(const OpShape& shape) { return shapes_.intern(shape); }
  std::uint32_t intern_lane(const Lane& lane);
  std::uint32_t intern_node(const NodeKey& node) { return node == NodeKey() ? 0 : nodes_.intern(node); }

  TimelineOps ops;
  std::vector<TimelineLaunch> launches;
  std::vector<TimelineArrow> arrows;
  bool has_api_rows = false;       // the trace shows launch calls; an operation without one was launched before it began
  std::vector<std::uint64_t> whole_launches;     // recorded as a whole, without operations
  std::vector<std::uint64_t> lost_correlations;  // operations of these launches were lost
  bool lost_anywhere = false;      // operations were lost, and nothing says of which launch
  bool truncated = false;          // the trace stops before its end
  bool is_amd = false;
  bool streams_rewritten = false;  // a tool replaced the stream ids
  std::vector<ir::SpoiledFact> spoiled;  // facts that no graph of this trace may claim, and why
  // Capture-time NVTX ranges of graph nodes, by (process, node id); may be empty.
  std::map<std::pair<std::uint32_t, std::uint64_t>, ir::NvtxId> node_nvtx;

  // Gives each operation the process of its launch call, for traces that name processes at launch calls only. Call it once all is
  // read, where launches are of several processes.
  void separate_processes();
  // Takes back what lanes were given from their rows.
  void forget_row_streams();
  void forget_row_devices();

  [[nodiscard]] const OpShape& shape(std::uint32_t id) const { return shapes_[id]; }
  [[nodiscard]] const Lane& lane(std::uint32_t id) const { return lanes_[id]; }
  [[nodiscard]] const NodeKey& node(std::uint32_t id) const { return nodes_[id]; }

  // Adds graphs and loose operations to the recording; `ops` is used up.
  base::Result<void> build_graphs(const ReadOptions& options);

 private:
  ir::Recording& recording_;
  struct HashOfShape {
    std::uint64_t operator()(const OpShape& shape) const;
  };
  struct HashOfNode {
    std::uint64_t operator()(const NodeKey& node) const { return base::mix_hash(node.node_id, node.graph_id); }
  };
  base::ValueTable<OpShape, HashOfShape> shapes_;
  std::vector<Lane> lanes_;
  base::ValueTable<NodeKey, HashOfNode> nodes_;
};

}  // namespace cglint::import
