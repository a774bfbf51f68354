// GPU activity of graph launches, brought back to the nodes of the recorded graphs: CUPTI names the clones
// that the executable graph holds. Not thread safe; no CUDA headers: records are read by the offsets of the
// CUPTI version that runs.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "capture/graph_record.h"

namespace cglint::capture {

// Where the fields of one kind of activity record are, in bytes.
struct ActivityLayout {
  std::string_view record;  // CUPTI's name of the structure
  std::uint16_t start, end, device, stream, correlation, graph_node;
};
enum class ActivityKind : std::uint8_t { kernel, memcpy, memset };
std::string_view activity_kind_name(ActivityKind kind);
// `cupti_version`: cuptiGetVersion's. Known: CUPTI 12.0 (19) to 13.5 (1305xx); nothing is guessed about others.
std::optional<ActivityLayout> activity_layout(ActivityKind kind, std::uint32_t cupti_version);

struct ActivityOp {
  ActivityKind kind = ActivityKind::kernel;
  std::uint64_t node_id = 0;  // 0: not of a graph
  std::uint32_t device = 0, stream = 0, correlation = 0;
  std::uint64_t start_ns = 0, end_ns = 0;
};
ActivityOp read_activity(ActivityKind kind, const ActivityLayout& layout, const unsigned char* record);

class ReplayBook {
 public:
  // Keeps the first `launches` launches of each graph.
  explicit ReplayBook(std::uint32_t launches = 0) : limit_(launches) {}

  // An executable graph of `graph`, with its bodies if they run as nodes: how many records a launch leaves;
  // 0: not known (conditional nodes).
  void add_graph(std::uint32_t graph, std::size_t expected_ops);
  // Node -1: a node of one of the graph's bodies.
  void add_clone(std::uint64_t clone_id, std::uint32_t graph, std::int64_t node, std::string_view kind);
  void add_op(const ActivityOp& op);
  // Asked for more lines of a graph before its graph_end.
  void set_before_end(std::function<void(std::uint32_t graph, std::string& out)> write) {
    before_end_ = std::move(write);
  }
  // Nothing more of the graph is waited for; what comes is kept all the same.
  void close_graph(std::uint32_t graph);
  // The executable graph is gone, after so many launches: its lines are written when they have come in, now if they have.
  void end_graph(std::uint32_t graph, std::uint64_t launches, std::string& out);
  // Is there a graph whose launches have not all come in, and may come?
  [[nodiscard]] bool is_waiting() const;
  // Graphs all of whose launches have come in completely: their replays line and graph_end. Nothing is kept of them but
  // their number.
  void write_finished(std::string& out);
  // The rest, however far it came.
  void write_all(std::string& out);

  // Operations of graph launches that were dropped: ended before they began, no times, or a node nobody
  // knows.
  [[nodiscard]] std::uint64_t odd() const { return odd_; }
  [[nodiscard]] std::uint64_t unknown() const { return unknown_; }

 private:
  struct Op {
    std::int64_t node;
    ActivityOp op;
    bool states_kind;
  };
  struct Graph {
    std::size_t expected = 0;
    std::size_t wanted = 0;                             // launches that are waited for
    std::map<std::uint32_t, std::vector<Op>> launches;  // by correlation
    std::vector<std::uint64_t> clones;
    bool closed = false;
  };
  struct Clone {
    std::uint32_t graph;
    std::int64_t node;
    std::optional<ActivityKind> kind;
  };
  [[nodiscard]] static bool is_finished(const Graph& graph);
  void write(std::uint32_t number, Graph& graph, std::string& out);

  std::uint32_t limit_;
  std::function<void(std::uint32_t, std::string&)> before_end_;
  std::map<std::uint32_t, Graph> graphs_;  // not yet written
  std::unordered_map<std::uint64_t, Clone> clones_;
  std::unordered_set<std::uint32_t> written_;  // driver's numbers of the executable graphs and their bodies: upper halves of clone ids
  std::uint64_t odd_ = 0, unknown_ = 0;
};

}  // namespace cglint::capture
