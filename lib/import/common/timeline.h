// Turns the events of a trace into graphs with replays: collects GPU operations and launch calls, groups operations by
// launch and launches by graph, and ties the operations of all launches of a graph to one list of nodes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.h"
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
  friend bool operator==(const Lane&, const Lane&) = default;
};

// Correlation ids (32 bits) are unique in a process; recordings of several processes keep them apart by the process number.
inline constexpr int kCorrelationBits = 48;
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

// There may be tens of millions: every byte counts.
struct TimelineOp {
  std::int64_t start_ns = 0, dur_ns = 0;
  std::uint32_t correlation = 0;   // in its lane's process; 0: unknown
  std::uint32_t node = 0;          // see Timeline::intern_node(); 0: unknown
  std::uint32_t shape = 0;
  std::uint32_t lane = 0;
};
static_assert(sizeof(TimelineOp) == 32);

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
  explicit Timeline(ir::Recording& recording) : recording_(recording) {}

  std::uint32_t intern_shape(const OpShape& shape);
  std::uint32_t intern_lane(const Lane& lane);
  std::uint32_t intern_node(const NodeKey& node);

  OpStore<TimelineOp> ops;
  std::vector<TimelineLaunch> launches;
  std::vector<TimelineArrow> arrows;
  bool has_api_rows = false;       // the trace shows launch calls; an operation without one was launched before it began
  std::vector<std::uint64_t> lost_correlations;  // operations of these launches were lost
  bool lost_anywhere = false;      // operations were lost, and nothing says of which launch
  bool truncated = false;          // the trace stops before its end
  bool is_amd = false;
  bool streams_rewritten = false;  // a tool replaced the stream ids
  std::vector<ir::SpoiledFact> spoiled;  // facts that no graph of this trace may claim, and why
  // Capture-time NVTX ranges of graph nodes, by (process, node id); may be empty.
  std::map<std::pair<std::uint32_t, std::uint64_t>, ir::NvtxId> node_nvtx;

  [[nodiscard]] const OpShape& shape(std::uint32_t id) const { return shapes_[id]; }
  [[nodiscard]] const Lane& lane(std::uint32_t id) const { return lanes_[id]; }
  [[nodiscard]] const NodeKey& node(std::uint32_t id) const { return nodes_[id]; }

  // Adds graphs and loose operations to the recording; `ops` is used up.
  base::Result<void> build_graphs(const ReadOptions& options);

 private:
  ir::Recording& recording_;
  std::vector<OpShape> shapes_;
  std::unordered_multimap<std::uint64_t, std::uint32_t> shape_by_hash_;
  std::vector<Lane> lanes_;
  std::vector<NodeKey> nodes_{NodeKey()};
  std::unordered_multimap<std::uint64_t, std::uint32_t> node_by_hash_;
  std::uint32_t last_node_ = 0;
};

}  // namespace cglint::import
