#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include "analysis/predicted_streams.h"
#include "base/json_writer.h"
#include "export/export.h"

namespace cglint::exporter {
namespace {

using base::JsonWriter;
using ir::Graph;
using ir::GraphId;
using ir::NodeId;

constexpr std::size_t kFlushBytes = std::size_t{1} << 20;
constexpr std::int64_t kHostPid = 1'000'000'000;  // the launch calls' heading; devices have small numbers
constexpr std::int64_t kPredictedPid = 1'100'000'000;  // one heading per predicted graph from here on
constexpr std::int64_t kPredictedDurationNs = 1000;
constexpr std::int64_t kNoStreamTid = 1'000'000;  // nodes that occupy no stream

// Microseconds with three decimals: exactly the nanoseconds.
std::string microseconds(std::uint64_t ns) {
  return fmt::format("{}.{:03}", ns / 1000, ns % 1000);
}
// From `from` to `to`, which is not earlier: fits 64 bits without a sign.
std::uint64_t span(std::int64_t from, std::int64_t to) {
  return static_cast<std::uint64_t>(to) - static_cast<std::uint64_t>(from);
}

std::string_view category(ir::NodeKind kind) {
  switch (kind) {
    case ir::NodeKind::kernel:
      return "kernel";
    case ir::NodeKind::memcpy:
      return "gpu_memcpy";
    case ir::NodeKind::memset:
      return "gpu_memset";
    case ir::NodeKind::event_record:
      return "graph_event_node";
    case ir::NodeKind::host:
      return "graph_host_node";
    default:
      return "graph_node";
  }
}

class TraceWriter {
 public:
  TraceWriter(const ir::Recording& recording, Sink& sink) : r_(recording), sink_(sink), json_(out_) {}

  base::Result<ChromeTraceStats> run() {
    find_base();
    json_.begin_object();
    json_.field("schemaVersion", 1);
    json_.field("displayTimeUnit", "ns");
    json_.field("baseTimeNanoseconds", base_ns_);
    json_.field("traceName", std::string_view(r_.file));
    write_process();
    json_.key("traceEvents");
    json_.begin_array();
    for (const GraphId id : r_.graphs.ids()) {
      const Graph* const graph = r_.graphs[id].get();
      if (graph == nullptr) continue;
      if (!graph->replays.empty()) {
        CGLINT_TRY(write_replays(*graph, id));
      } else if (graph->info.role != ir::GraphRole::body) {
        CGLINT_TRY(write_predicted(*graph, id));
      }
    }
    for (const ir::LooseOp& op : r_.loose_ops) {
      slice(r_.text(op.name), category(op.kind), op.device, static_cast<std::int64_t>(op.stream), op.start_ns,
            op.end_ns);
      json_.key("args");
      json_.begin_object();
      json_.field("device", op.device);
      json_.field("stream", op.stream);
      json_.field("correlation", op.correlation);  // 0 as well: one that is missing beside others reads as lost
      json_.end_object();
      json_.end_object();
      lanes_.emplace(op.device, op.stream);
      ++stats_.operations;
      CGLINT_TRY(flush());
    }
    write_headings();
    json_.end_array();
    write_doubts();
    json_.end_object();
    out_ += '\n';
    CGLINT_TRY(sink_.write(out_));
    return stats_;
  }

 private:
  void find_base() {
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (const auto& graph : r_.graphs) {
      if (graph == nullptr) continue;
      for (const ir::ReplayOp& op : graph->replay_ops) least = std::min(least, op.start_ns);
      for (const ir::Replay& replay : graph->replays)
        if (has_host_time(replay)) least = std::min(least, replay.host_start_ns);
    }
    for (const ir::LooseOp& op : r_.loose_ops) least = std::min(least, op.start_ns);
    if (least != std::numeric_limits<std::int64_t>::max()) base_ns_ = least;
  }
  // What ran where, as Kineto writes it. A trace has one process.
  void write_process() {
    for (const ir::Process& process : r_.processes)
      for (const ir::Gpu& gpu : process.gpus) is_rocm_ = is_rocm_ || gpu.is_amd;
    if (r_.processes.size() != 1) return;
    const ir::Process& process = r_.processes[ir::ProcessId(0)];
    if (!process.gpus.empty()) {
      json_.key("deviceProperties");
      json_.begin_array();
      for (const ir::Gpu& gpu : process.gpus) {
        json_.begin_object();
        json_.field("id", std::max(gpu.device, 0));
        json_.field("name", r_.text(gpu.name));
        if (gpu.uuid != ir::kEmptyString) json_.field("uuid", r_.text(gpu.uuid));
        if (gpu.memory_bytes != 0) json_.field("totalGlobalMem", gpu.memory_bytes);
        if (gpu.compute_major != 0) {
          json_.field("computeMajor", gpu.compute_major);
          json_.field("computeMinor", gpu.compute_minor);
        }
        if (gpu.sm_count != 0) json_.field("numSms", gpu.sm_count);
        json_.end_object();
      }
      json_.end_array();
    }
    if (process.driver_version != 0) json_.field("cuda_driver_version", process.driver_version);
    if (process.runtime_version != 0) json_.field("cuda_runtime_version", process.runtime_version);
    if (process.cupti_version != 0) json_.field("cupti_version", process.cupti_version);
    if (process.rank >= 0 || process.world_size >= 0) {
      json_.key("distributedInfo");
      json_.begin_object();
      if (process.rank >= 0) json_.field("rank", process.rank);
      if (process.world_size >= 0) json_.field("world_size", process.world_size);
      json_.end_object();
    }
  }
  static bool has_host_time(const ir::Replay& replay) {
    return replay.host_start_ns != 0 || replay.host_end_ns != 0;
  }

  void open_event(std::string_view name, std::string_view phase, std::int64_t pid, std::int64_t tid) {
    json_.begin_object();
    json_.field("ph", phase);
    json_.field("name", name);
    json_.field("pid", pid);
    json_.field("tid", tid);
  }
  // Opens a complete event; the caller adds args and closes it.
  void slice(std::string_view name, std::string_view cat, std::int64_t pid, std::int64_t tid,
             std::int64_t start_ns, std::int64_t end_ns) {
    open_event(name.empty() ? std::string_view("(unnamed)") : name, "X", pid, tid);
    json_.field("cat", cat);
    json_.key("ts");
    json_.raw(microseconds(span(base_ns_, start_ns)));
    json_.key("dur");
    json_.raw(microseconds(end_ns > start_ns ? span(start_ns, end_ns) : 0));
  }
  void flow(std::string_view phase, std::uint64_t id, std::int64_t pid, std::int64_t tid, std::int64_t ns) {
    open_event("dependency", phase, pid, tid);
    json_.field("cat", "graph_edge");
    json_.field("id", id);
    json_.key("ts");
    json_.raw(microseconds(span(base_ns_, ns)));
    if (phase == "f") json_.field("bp", "e");
    json_.end_object();
  }

  void node_args(const Graph& graph, GraphId id, NodeId node) {
    const std::string_view name = r_.text(graph.info.name);
    json_.field("graph", name.empty() ? std::string_view("graph") : name);
    json_.field("graph id", graph.info.source_id != 0 ? graph.info.source_id : std::uint64_t{id.index()} + 1);
    if (!node.is_valid()) return;
    json_.field("graph node id",
                graph.source_id.empty() ? std::uint64_t{node.index()} : graph.source_id[node]);
    json_.field("node", node.index());
    if (const ir::KernelNode* kernel = graph.kernel(node);
        kernel != nullptr && graph.facts.contains(ir::Fact::launch_config)) {
      const auto dim = [&](std::string_view key, const ir::Dim3& value) {
        json_.key(key);
        json_.begin_array();
        json_.number(value.x);
        json_.number(value.y);
        json_.number(value.z);
        json_.end_array();
      };
      dim("grid", kernel->grid);
      dim("block", kernel->block);
    }
    if (!graph.nvtx.empty() && graph.nvtx[node].is_valid()) {
      std::string ranges;
      for (const ir::StringId range : r_.nvtx(graph.nvtx[node])) {
        if (!ranges.empty()) ranges += " / ";
        ranges += r_.text(range);
      }
      json_.field("nvtx", std::string_view(ranges));
    }
    if (!graph.stack.empty()) {
      const auto frames = r_.frames(graph.stack[node]);
      if (!frames.empty())
        json_.field("source",
                    std::string_view(fmt::format("{}:{}", r_.text(frames[0].file), frames[0].line)));
    }
  }

  // Dependencies as arrows from the end of one slice to the start of the next; `place` gives each node's
  // operation.
  struct Place {
    bool known = false;
    std::int64_t pid = 0, tid = 0, start_ns = 0, end_ns = 0;
  };
  base::Result<void> write_flows(const Graph& graph, const std::vector<Place>& place) {
    for (const ir::EdgeId edge : graph.edges()) {
      const Place& from = place[graph.edge_from[edge].index()];
      const Place& to = place[graph.edge_to[edge].index()];
      if (!from.known || !to.known) continue;
      ++next_flow_;
      // A flow belongs to the slice that contains its moment, and the end is outside.
      flow("s", next_flow_, from.pid, from.tid,
           from.end_ns > from.start_ns ? from.end_ns - 1 : from.start_ns);
      flow("f", next_flow_, to.pid, to.tid, to.start_ns);
      CGLINT_TRY(flush());
    }
    return {};
  }

  // Processes have rows of their own: their correlation ids may be the same.
  static std::int64_t host_pid(const Graph& graph, const ir::Replay& replay) {
    const ir::ProcessId process = replay.instance == 0 ? graph.info.process : graph.instance_infos[replay.instance - 1].process;
    return kHostPid + (process.is_valid() ? static_cast<std::int64_t>(process.index()) : 0);
  }

  base::Result<void> write_replays(const Graph& graph, GraphId id) {
    bool flows_drawn = false;
    std::uint32_t number = 0;
    for (const ir::Replay& replay : graph.replays) {
      if (has_host_time(replay)) {
        slice(is_rocm_ ? "hipGraphLaunch" : "cudaGraphLaunch", is_rocm_ ? "hip_runtime" : "cuda_runtime", host_pid(graph, replay), 0, replay.host_start_ns, replay.host_end_ns);
        json_.key("args");
        json_.begin_object();
        node_args(graph, id, NodeId());
        json_.field("replay", number);
        json_.field("correlation", replay.correlation);
        json_.end_object();
        json_.end_object();
        host_pids_.insert(host_pid(graph, replay));
      }
      std::vector<Place> place(flows_drawn || !replay.complete ? 0 : graph.node_count());
      for (const ir::ReplayOp& op : graph.ops(replay)) {
        const std::string_view name =
            op.node.is_valid() ? r_.text(graph.name[op.node]) : ir::node_kind_name(op.kind);
        slice(name.empty() ? ir::node_kind_name(op.kind) : name, category(op.kind), op.device,
              static_cast<std::int64_t>(op.stream), op.start_ns, op.end_ns);
        json_.key("args");
        json_.begin_object();
        json_.field("device", op.device);
        json_.field("stream", op.stream);
        json_.field("correlation", replay.correlation);
        node_args(graph, id, op.node);
        json_.field("replay", number);
        json_.end_object();
        json_.end_object();
        lanes_.emplace(op.device, op.stream);
        ++stats_.operations;
        if (op.node.is_valid() && op.node.index() < place.size())
          place[op.node.index()] = {true, op.device, static_cast<std::int64_t>(op.stream), op.start_ns,
                                    op.end_ns};
        CGLINT_TRY(flush());
      }
      if (!place.empty()) {
        CGLINT_TRY(write_flows(graph, place));
        flows_drawn = true;
      }
      ++number;
    }
    return {};
  }

  base::Result<void> write_predicted(const Graph& graph, GraphId id) {
    const analysis::PredictedStreams predicted = analysis::predict_streams(r_, graph);
    if (!predicted.available) {
      ++stats_.skipped_graphs;
      return {};
    }
    const std::int64_t pid = kPredictedPid + static_cast<std::int64_t>(stats_.predicted_graphs++);
    const std::string_view name = r_.text(graph.info.name);
    heading(pid, fmt::format("{}: predicted streams, no measured times", name.empty() ? "graph" : name));
    // As early as dependencies and the order of each stream allow, one microsecond each.
    std::vector<std::size_t> missing(graph.node_count());
    std::set<std::uint32_t> ready;
    for (const NodeId node : graph.nodes()) {
      missing[node.index()] = graph.predecessors(node).size();
      if (missing[node.index()] == 0) ready.insert(node.index());
    }
    std::map<std::int64_t, std::int64_t> lane_free;
    std::vector<Place> place(graph.node_count());
    while (!ready.empty()) {
      const NodeId node(*ready.begin());
      ready.erase(ready.begin());
      const bool active = predicted.stream[node] >= 0;
      const std::int64_t tid = active ? predicted.stream[node] : kNoStreamTid;
      std::int64_t start = base_ns_;
      for (const NodeId before : graph.predecessors(node))
        start = std::max(start, place[before.index()].end_ns);
      if (active) {
        const auto [lane, first] = lane_free.try_emplace(tid, base_ns_);
        start = std::max(start, lane->second);
        lane->second = start + kPredictedDurationNs;
        if (first) lane_name(pid, tid, fmt::format("predicted stream {}", tid));
      } else if (lane_free.try_emplace(tid, 0).second) {
        lane_name(pid, tid, "nodes without a stream");
      }
      place[node.index()] = {true, pid, tid, start, active ? start + kPredictedDurationNs : start};
      slice(r_.text(graph.name[node]).empty() ? ir::node_kind_name(graph.kind[node])
                                              : r_.text(graph.name[node]),
            "predicted", pid, tid, start, place[node.index()].end_ns);
      json_.key("args");
      json_.begin_object();
      node_args(graph, id, node);
      json_.field("kind", ir::node_kind_name(graph.kind[node]));
      json_.end_object();
      json_.end_object();
      ++stats_.operations;
      CGLINT_TRY(flush());
      for (const NodeId next : graph.successors(node))
        if (--missing[next.index()] == 0) ready.insert(next.index());
    }
    return write_flows(graph, place);
  }

  void heading(std::int64_t pid, const std::string& text) { metadata("process_name", pid, 0, text); }
  void lane_name(std::int64_t pid, std::int64_t tid, const std::string& text) {
    metadata("thread_name", pid, tid, text);
  }
  void metadata(std::string_view what, std::int64_t pid, std::int64_t tid, const std::string& text) {
    open_event(what, "M", pid, tid);
    json_.key("args");
    json_.begin_object();
    json_.field("name", std::string_view(text));
    json_.end_object();
    json_.end_object();
  }
  void write_headings() {
    std::set<std::int32_t> devices;
    for (const auto& [device, stream] : lanes_) {
      if (devices.insert(device).second) {
        std::string name = fmt::format("GPU {}", device);
        for (const ir::Process& process : r_.processes)
          for (const ir::Gpu& gpu : process.gpus)
            if (gpu.device == device && !r_.text(gpu.name).empty())
              name = fmt::format("GPU {}: {}", device, r_.text(gpu.name));
        heading(device, name);
      }
      lane_name(device, static_cast<std::int64_t>(stream), fmt::format("stream {}", stream));
    }
    for (const std::int64_t pid : host_pids_) heading(pid, "graph launches");
  }

  // What the events cannot say: which facts of this trace are not to be trusted and why, what was lost, and which launches are
  // incomplete. The importer reads it back, so that a converted trace is never called clean where the original was not. Viewers ignore it.
  void write_doubts() {
    std::map<std::pair<ir::Fact, std::string_view>, bool> spoiled;  // ordered, each once
    std::set<std::uint64_t> incomplete;
    for (const auto& graph : r_.graphs) {
      if (graph == nullptr || graph->replays.empty()) continue;
      for (const ir::Replay& replay : graph->replays)
        if (!replay.complete) incomplete.insert(replay.correlation);
      // What the events will say whether it is known or not. Launch configurations are only written where they are known.
      for (const ir::Fact fact : {ir::Fact::replay_streams, ir::Fact::replay_times, ir::Fact::kernel_names, ir::Fact::node_identity}) {
        if (graph->facts.contains(fact)) continue;
        const auto known = std::find_if(graph->spoiled.begin(), graph->spoiled.end(),
                                        [&](const ir::SpoiledFact& entry) { return entry.fact == fact; });
        spoiled[{fact, known != graph->spoiled.end() ? r_.text(known->reason) : ir::fact_missing_phrase(fact)}] = true;
      }
    }
    const bool lossy = std::any_of(r_.losses.begin(), r_.losses.end(), [](const ir::Loss& loss) {
      return loss.severity != ir::Loss::Severity::info;
    });
    if (spoiled.empty() && incomplete.empty() && !lossy && !is_rocm_) return;
    json_.key("cglint");
    json_.begin_object();
    if (is_rocm_) json_.field("rocm", true);
    json_.key("spoiled");
    json_.begin_array();
    for (const auto& [entry, unused] : spoiled) {
      json_.begin_object();
      json_.field("fact", ir::fact_name(entry.first));
      json_.field("reason", entry.second);
      json_.end_object();
    }
    json_.end_array();
    json_.key("losses");
    json_.begin_array();
    for (const ir::Loss& loss : r_.losses) {
      if (loss.severity == ir::Loss::Severity::info) continue;
      json_.begin_object();
      json_.field("severity", loss.severity == ir::Loss::Severity::error ? "error" : "data_loss");
      json_.field("what", r_.text(loss.what));
      json_.field("count", loss.count);
      json_.key("facts");
      json_.begin_array();
      for (int i = 0; i < ir::kFactCount; ++i)
        if (loss.facts.contains(static_cast<ir::Fact>(i))) json_.string(ir::fact_name(static_cast<ir::Fact>(i)));
      json_.end_array();
      json_.end_object();
    }
    json_.end_array();
    json_.key("incomplete_launches");  // their correlation ids; 0: one that has none
    json_.begin_array();
    for (const std::uint64_t correlation : incomplete) json_.number(correlation);
    json_.end_array();
    json_.end_object();
  }

  base::Result<void> flush() {
    if (out_.size() < kFlushBytes) return {};
    CGLINT_TRY(sink_.write(out_));
    out_.clear();
    return {};
  }

  const ir::Recording& r_;
  Sink& sink_;
  std::string out_;
  JsonWriter json_;
  ChromeTraceStats stats_;
  std::int64_t base_ns_ = 0;
  std::uint64_t next_flow_ = 0;
  std::set<std::int64_t> host_pids_;
  bool is_rocm_ = false;
  std::set<std::pair<std::int32_t, std::uint64_t>> lanes_;
};

}  // namespace

base::Result<ChromeTraceStats> write_chrome_trace(const ir::Recording& recording, Sink& sink) {
  return TraceWriter(recording, sink).run();
}

}  // namespace cglint::exporter
