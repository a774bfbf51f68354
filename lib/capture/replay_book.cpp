#include "capture/replay_book.h"

#include <algorithm>
#include <cstring>

#include "base/json_writer.h"

namespace cglint::capture {

std::string_view activity_kind_name(ActivityKind kind) {
  return kind == ActivityKind::kernel ? "kernel" : kind == ActivityKind::memcpy ? "memcpy" : "memset";
}

namespace {

// Which structures a range of CUPTI versions hands out. Each grew at its end only, behind what is read here.
struct Versions {
  std::uint32_t first, last;
  std::string_view kernel, memcpy, memset;
};
constexpr Versions kVersions[] = {
    // 12.0 (19), 12.2 (20) and on to 12.6 (24); 25 is no release's number, and what comes before and after it is read alike.
    {19, 25, "CUpti_ActivityKernel9", "CUpti_ActivityMemcpy5", "CUpti_ActivityMemset4"},
    // 12.8 (26), 12.9 (27), its first update (28)
    {26, 28, "CUpti_ActivityKernel9", "CUpti_ActivityMemcpy6", "CUpti_ActivityMemset4"},
    // From 13.0 on the number is the CUDA version with four more digits, the last two for updates.
    {130000, 130099, "CUpti_ActivityKernel10", "CUpti_ActivityMemcpy6", "CUpti_ActivityMemset4"},
    // After CUPTI's published reference, not seen run: 13.1 to 13.5.
    {130100, 130299, "CUpti_ActivityKernel11", "CUpti_ActivityMemcpy6", "CUpti_ActivityMemset4"},
    {130300, 130399, "CUpti_ActivityKernel12", "CUpti_ActivityMemcpy6", "CUpti_ActivityMemset4"},
    {130400, 130599, "CUpti_ActivityKernel13", "CUpti_ActivityMemcpy7", "CUpti_ActivityMemset5"},
};

}  // namespace

std::optional<ActivityLayout> activity_layout(ActivityKind kind, std::uint32_t cupti_version) {
  for (const Versions& each : kVersions) {
    if (cupti_version < each.first || cupti_version > each.last) continue;
    if (kind == ActivityKind::kernel) return ActivityLayout{each.kernel, 16, 24, 40, 48, 92, 144};
    return ActivityLayout{kind == ActivityKind::memcpy ? each.memcpy : each.memset, 16, 24, 32, 40, 44, 64};
  }
  return std::nullopt;
}

ActivityOp read_activity(ActivityKind kind, const ActivityLayout& layout, const unsigned char* record) {
  ActivityOp op;
  op.kind = kind;
  const auto read = [&](auto& field, std::uint16_t offset) {
    std::memcpy(&field, record + offset, sizeof field);
  };
  read(op.start_ns, layout.start);
  read(op.end_ns, layout.end);
  read(op.device, layout.device);
  read(op.stream, layout.stream);
  read(op.correlation, layout.correlation);
  read(op.node_id, layout.graph_node);
  return op;
}

namespace {

// Of the graph that a clone is in; a clone id is that and a number in the graph.
std::uint32_t graph_number(std::uint64_t clone_id) {
  return static_cast<std::uint32_t>(clone_id >> 32);
}

}  // namespace

void ReplayBook::add_graph(std::uint32_t graph, std::size_t expected_ops) {
  graphs_[graph].expected = expected_ops;
  graphs_[graph].wanted = limit_;
}

void ReplayBook::add_clone(std::uint64_t clone_id, std::uint32_t graph, std::int64_t node,
                           std::string_view kind) {
  Clone clone{graph, node, std::nullopt};
  if (node >= 0) {
    for (const ActivityKind each : {ActivityKind::kernel, ActivityKind::memcpy, ActivityKind::memset})
      if (activity_kind_name(each) == kind) clone.kind = each;
  }
  clones_[clone_id] = clone;
  graphs_[graph].clones.push_back(clone_id);
  written_.erase(graph_number(clone_id));
}

void ReplayBook::close_graph(std::uint32_t number) {
  if (const auto place = graphs_.find(number); place != graphs_.end()) place->second.closed = true;
}

void ReplayBook::end_graph(std::uint32_t number, std::uint64_t launches, std::string& out) {
  const auto place = graphs_.find(number);
  if (place == graphs_.end()) return;
  Graph& graph = place->second;
  graph.closed = true;
  graph.wanted = std::min<std::size_t>(launches, limit_);
  if (!is_finished(graph)) return;
  write(number, graph, out);
  graphs_.erase(place);
}

void ReplayBook::add_op(const ActivityOp& op) {
  if (op.node_id == 0) return;
  if (op.start_ns == 0 || op.end_ns < op.start_ns || op.correlation == 0) {
    ++odd_;
    return;
  }
  const auto clone = clones_.find(op.node_id);
  if (clone == clones_.end()) {
    unknown_ += !written_.contains(graph_number(op.node_id));
    return;
  }
  Graph& graph = graphs_[clone->second.graph];
  auto launch = graph.launches.find(op.correlation);
  if (launch == graph.launches.end()) {
    if (graph.launches.size() >= limit_) return;
    launch = graph.launches.try_emplace(op.correlation).first;
  }
  launch->second.push_back({clone->second.node, op, clone->second.kind != op.kind});
}

bool ReplayBook::is_finished(const Graph& graph) {
  if (graph.launches.size() < graph.wanted) return false;
  // Never launched, or without activity: nothing can come.
  if (graph.closed && graph.wanted == 0) return true;
  return graph.expected != 0 && std::all_of(graph.launches.begin(), graph.launches.end(),
                                            [&](const auto& launch) { return launch.second.size() >= graph.expected; });
}

bool ReplayBook::is_waiting() const {
  return std::any_of(graphs_.begin(), graphs_.end(), [&](const auto& graph) {
    const Graph& each = graph.second;
    if (each.closed) return false;
    // Where the number of records is not known, a record of the last launch is all that can be waited for.
    return each.expected == 0 ? each.launches.size() < limit_ : !is_finished(each);
  });
}

void ReplayBook::write(std::uint32_t number, Graph& graph, std::string& out) {
  if (!graph.launches.empty()) {
    std::uint64_t base = ~std::uint64_t{0};
    for (auto& [correlation, ops] : graph.launches) {
      std::sort(ops.begin(), ops.end(), [](const Op& a, const Op& b) {
        return std::tie(a.op.start_ns, a.op.end_ns, a.node) < std::tie(b.op.start_ns, b.op.end_ns, b.node);
      });
      base = std::min(base, ops.front().op.start_ns);
    }
    base::JsonWriter json(out);
    json.begin_object();
    json.field("type", "replays");
    json.field("graph", number);
    json.field("base_ns", std::string_view(std::to_string(base)));
    json.key("replays");
    json.begin_array();
    for (const auto& [correlation, ops] : graph.launches) {
      json.begin_object();
      json.field("correlation", correlation);
      json.field("complete", graph.expected != 0 && ops.size() == graph.expected);
      json.key("ops");
      json.begin_array();
      for (const Op& op : ops) {
        json.begin_array();
        json.number(op.node), json.number(op.op.device), json.number(op.op.stream);
        json.number(op.op.start_ns - base), json.number(op.op.end_ns - base);
        if (op.states_kind) json.string(activity_kind_name(op.op.kind));
        json.end_array();
      }
      json.end_array();
      json.end_object();
    }
    json.end_array();
    json.end_object();
    out += '\n';
  }
  if (before_end_) before_end_(number, out);
  write_graph_end(number, out);
  for (const std::uint64_t clone : graph.clones) {
    written_.insert(graph_number(clone));
    clones_.erase(clone);
  }
}

void ReplayBook::write_finished(std::string& out) {
  for (auto graph = graphs_.begin(); graph != graphs_.end();) {
    const bool is_done = is_finished(graph->second);
    if (is_done) write(graph->first, graph->second, out);
    graph = is_done ? graphs_.erase(graph) : std::next(graph);
  }
}

void ReplayBook::write_all(std::string& out) {
  for (auto& [number, graph] : graphs_) write(number, graph, out);
  graphs_.clear();
}

}  // namespace cglint::capture
