// cglint inspect FILE...: what is in an input, without a verdict.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <new>
#include <nlohmann/json.hpp>
#include <queue>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "analysis/analyses.h"
#include "base/check.h"
#include "base/text.h"
#include "commands.h"
#include "import/common/importer.h"

namespace cglint::cli {
namespace {

using Json = nlohmann::ordered_json;

double us(std::int64_t ns) { return static_cast<double>(ns) / 1000.0; }

// What is not known is null in JSON and "unknown" in text, never 0.
Json known(std::uint64_t value) { return value != 0 ? Json(value) : Json(nullptr); }
Json known(std::string_view value) { return !value.empty() ? Json(value) : Json(nullptr); }

Json histogram_json(const std::map<std::int64_t, std::int64_t>& histogram) {
  Json json = Json::object();
  for (const auto& [key, count] : histogram) json[std::to_string(key)] = count;
  return json;
}

Json facts_json(ir::FactSet facts) {
  Json list = Json::array();
  for (int i = 0; i < ir::kFactCount; ++i)
    if (facts.contains(static_cast<ir::Fact>(i))) list.push_back(ir::fact_name(static_cast<ir::Fact>(i)));
  return list;
}

std::string_view layer_source(analysis::Layers::Source source) {
  switch (source) {
    case analysis::Layers::Source::none: return "none";
    case analysis::Layers::Source::nvtx: return "nvtx";
    case analysis::Layers::Source::period: return "repeating kernels";
  }
  return "none";
}

// `label` names an operation by its number in the stats.
Json timeline_json(const analysis::TimelineStats& stats, const std::function<std::string(std::size_t)>& label) {
  Json json = {{"span_us", us(stats.span_ns)}, {"busy_us", us(stats.busy_ns)}, {"idle_us", us(stats.idle_ns)}, {"overlap_us", us(stats.overlap_ns)}};
  Json gaps = Json::array();
  for (const auto& gap : stats.largest_gaps) gaps.push_back({{"us", us(gap.dur_ns)}, {"after", label(gap.after_op)}, {"before", label(gap.before_op)}});
  json["largest_gaps"] = std::move(gaps);
  return json;
}

// The width and the streams are of a graph together with all child graphs in it: of graphs that lie in each other, each node again for
// every graph around it. This many nodes of graphs with child graphs are looked at in all, the first of which are the outer ones' own.
constexpr std::size_t kMostNestedNodes = 4'000'000;

// Nodes of each graph with those of its child graphs, as far as kMostNestedNodes; 0 where it has none.
base::IdVector<ir::GraphId, std::size_t> nested_sizes(const ir::Recording& recording) {
  base::IdVector<ir::GraphId, std::size_t> sizes(recording.graphs.size(), 0);
  base::IdVector<ir::GraphId, char> state(recording.graphs.size(), 0);  // 1: its child graphs are being looked at, 2: done
  std::vector<ir::GraphId> waiting;
  for (const ir::GraphId root : recording.graphs.ids()) {
    waiting.push_back(root);
    while (!waiting.empty()) {
      const ir::GraphId id = waiting.back();
      const ir::Graph* graph = recording.graphs[id].get();
      if (graph == nullptr || state[id] == 2) {
        waiting.pop_back();
        continue;
      }
      const bool is_back = state[id] == 1;
      state[id] = is_back ? 2 : 1;
      std::size_t size = 0;
      for (const ir::ChildGraphNode& child : graph->child_graphs) {
        if (!recording.graphs.contains(child.body) || recording.graphs[child.body] == nullptr) continue;
        if (!is_back && state[child.body] == 0) waiting.push_back(child.body);
        size += std::max(recording.graphs[child.body]->node_count(), sizes[child.body]);
      }
      if (!is_back) continue;
      sizes[id] = size == 0 ? 0 : std::min(graph->node_count() + size, kMostNestedNodes);
      waiting.pop_back();
    }
  }
  return sizes;
}

Json graph_json(const ir::Recording& recording, ir::GraphId id, const analysis::KernelIdentities& identities, bool predicts) {
  const ir::Graph& graph = *recording.graphs[id];
  analysis::Analyses analyses(recording, id, identities);
  Json json;
  json["name"] = recording.text(graph.info.name);
  json["role"] = ir::graph_role_name(graph.info.role);
  if (graph.info.instances > 1) json["instances"] = graph.info.instances;
  if (graph.info.batch_size >= 0) json["batch_size"] = graph.info.batch_size;
  json["facts"] = facts_json(graph.facts);
  if (!graph.spoiled.empty()) {
    Json spoiled = Json::object();
    for (const ir::SpoiledFact& fact : graph.spoiled) spoiled[std::string(ir::fact_name(fact.fact))] = recording.text(fact.reason);
    json["spoiled"] = std::move(spoiled);
  }
  std::array<std::size_t, ir::kNodeKindCount> kinds{};
  for (const ir::NodeKind kind : graph.kind) ++kinds[static_cast<std::size_t>(kind)];
  Json by_kind = Json::object();
  for (int k = 0; k < ir::kNodeKindCount; ++k)
    if (kinds[static_cast<std::size_t>(k)] > 0) by_kind[std::string(ir::node_kind_name(static_cast<ir::NodeKind>(k)))] = kinds[static_cast<std::size_t>(k)];
  const bool has_nodes = graph.facts.contains(ir::Fact::nodes) || graph.node_count() > 0;
  json["nodes"] = has_nodes ? Json(graph.node_count()) : Json(nullptr);
  if (has_nodes) json["nodes_by_kind"] = std::move(by_kind);
  std::map<std::string, std::size_t> roles;
  for (const ir::NodeId node : graph.nodes())
    if (const ir::KernelNode* kernel = graph.kernel(node); kernel != nullptr && kernel->function.is_valid())
      ++roles[std::string(analysis::kernel_role_name(identities.of(kernel->function).role))];
  if (!roles.empty()) {
    Json by_role = Json::object();
    for (const auto& [role, count] : roles) by_role[role] = count;
    json["kernels_by_role"] = std::move(by_role);
  }
  if (graph.facts.contains(ir::Fact::edges)) {
    json["edges"] = graph.edge_count();
    std::size_t programmatic = 0, launch_order = 0;
    for (const ir::EdgeId edge : graph.edges()) {
      programmatic += graph.data(edge).is_programmatic() ? 1 : 0;
      launch_order += graph.data(edge).is_launch_order() ? 1 : 0;
    }
    if (programmatic + launch_order > 0) json["edges_by_type"] = {{"programmatic", programmatic}, {"launch_order", launch_order}};
    if (predicts) {
      const analysis::Width& width = analyses.width();
      json["width"] = width.count;
      if (!width.exact) json["width_is_upper_bound"] = true;
    } else {
      json["width"] = nullptr;
    }
    json["implied_edges"] = analyses.implied_edges().size();
    json["fork_join_regions"] = analyses.fork_join_regions().size();
    const analysis::CriticalPath& path = analyses.critical_path();
    json["critical_path"] = {{"nodes", path.path.size()}};
    if (path.measured) json["critical_path"]["us"] = us(path.length);
    if (predicts) {
      const analysis::PredictedStreams& predicted = analyses.predicted_streams();
      if (predicted.available) json["streams_predicted"] = {{"count", predicted.count}, {"confidence", predicted.confidence}};
      if (!predicted.note.empty()) json["prediction_note"] = predicted.note;
    } else {
      json["prediction_note"] = "not computed: too many graphs of this recording lie in each other";
    }
  }
  const analysis::Layers& layers = analyses.layers();
  if (has_nodes) json["layers"] = {{"count", layers.count}, {"source", layer_source(layers.source)}};
  if (layers.count > 0) {
    json["layers"]["confidence"] = layers.confidence;
    if (layers.period_nodes > 0) json["layers"]["nodes_per_layer"] = layers.period_nodes;
  }
  if (!graph.replays.empty()) {
    json["launches"] = graph.replays.size();
    const auto incomplete = std::count_if(graph.replays.begin(), graph.replays.end(), [](const ir::Replay& r) { return !r.complete; });
    if (incomplete > 0) json["incomplete_launches"] = incomplete;
    const analysis::ReplayStreams& streams = analyses.replay_streams();
    if (streams.available) {
      json["streams_measured"] = {{"max", streams.max}, {"kernels_only", streams.max_kernels_only}, {"histogram", histogram_json(streams.histogram)},
                                  {"alive_at_once", streams.max_live}, {"busy_at_once", streams.max_concurrent}};
      if (!graph.facts.contains(ir::Fact::replay_streams)) json["streams_measured"]["reliable"] = false;
    }
    const analysis::NodeTimes& times = analyses.node_times();
    if (times.available) {
      json["replay_us"] = {{"median", us(times.median_span_ns)}, {"p10", us(times.p10_span_ns)}, {"p90", us(times.p90_span_ns)}};
      const auto operations = graph.ops(graph.replays[ir::ReplayId(static_cast<std::uint32_t>(graph.replays.size()) / 2)]);
      json["one_launch"] = timeline_json(analysis::timeline_stats(std::vector<ir::ReplayOp>(operations.begin(), operations.end())), [&](std::size_t i) {
        return operations[i].node.is_valid() ? identities.label(graph, operations[i].node) : std::string(ir::node_kind_name(operations[i].kind));
      });
    }
    // From the end of one launch's last operation to the start of the next launch's first.
    std::vector<std::int64_t> gaps;
    for (std::size_t i = 1; i < graph.replays.size(); ++i) {
      const auto before = graph.ops(graph.replays[ir::ReplayId(static_cast<std::uint32_t>(i - 1))]);
      const auto after = graph.ops(graph.replays[ir::ReplayId(static_cast<std::uint32_t>(i))]);
      if (before.empty() || after.empty()) continue;
      std::int64_t end = before.front().end_ns;
      for (const ir::ReplayOp& op : before) end = std::max(end, op.end_ns);
      gaps.push_back(after.front().start_ns - end);
    }
    if (!gaps.empty()) {
      std::sort(gaps.begin(), gaps.end());
      json["between_launches_us"] = {{"min", us(gaps.front())}, {"median", us(gaps[gaps.size() / 2])}, {"max", us(gaps.back())}};
    }
    if (!graph.facts.contains(ir::Fact::edges)) return json;
    const auto& regions = analyses.fork_join_regions();
    const auto& overlaps = analyses.region_overlaps();
    std::int64_t possible = 0, reached = 0;
    std::size_t measured = 0;
    for (std::size_t i = 0; i < regions.size() && i < overlaps.size(); ++i) {
      if (!overlaps[i].measured) continue;
      ++measured;
      possible += overlaps[i].median_possible_ns;
      reached += overlaps[i].median_overlap_ns;
    }
    if (measured > 0)
      json["fork_overlap"] = {{"regions", measured}, {"overlap_us", us(reached)}, {"possible_us", us(possible)},
                              {"efficiency", possible > 0 ? Json(static_cast<double>(reached) / static_cast<double>(possible)) : Json(nullptr)}};
  }
  return json;
}

// All operations of a recording by their start, without a copy of them: launches are merged, each in order itself.
class OperationMerge {
 public:
  explicit OperationMerge(const ir::Recording& recording) : recording_(recording) {
    for (const ir::GraphId id : recording.graphs.ids()) {
      if (recording.graphs[id] == nullptr) continue;
      const ir::Graph& graph = *recording.graphs[id];
      for (const ir::Replay& replay : graph.replays)
        if (replay.ops.count != 0)
          waiting_.push_back({graph.replay_ops[replay.ops.first].start_ns, id.index(), replay.ops.first, replay.ops.first + replay.ops.count});
    }
    CGLINT_CHECK(recording.loose_ops.size() < kLoose);
    if (!recording.loose_ops.empty()) waiting_.push_back({recording.loose_ops[0].start_ns, kLoose, 0, static_cast<std::uint32_t>(recording.loose_ops.size())});
    std::sort(waiting_.begin(), waiting_.end(), [](const Cursor& a, const Cursor& b) { return is_before(a, b); });
  }
  // The number of an operation, for kind_of() and label().
  using Number = std::uint64_t;
  // Calls visit(Number, device, stream, start, end).
  template <typename Visit>
  void run(const Visit& visit) const {
    const auto is_behind = [](const Cursor& a, const Cursor& b) { return is_before(b, a); };
    std::priority_queue<Cursor, std::vector<Cursor>, decltype(is_behind)> open(is_behind);
    for (std::size_t next = 0; next < waiting_.size() || !open.empty();) {
      if (next < waiting_.size() && (open.empty() || is_before(waiting_[next], open.top()))) {
        open.push(waiting_[next++]);
        continue;
      }
      Cursor cursor = open.top();
      open.pop();
      const Number number = Number{cursor.source} << 32 | cursor.at;
      if (cursor.source == kLoose) {
        const ir::LooseOp op = recording_.loose_ops[cursor.at];
        visit(number, op.device, op.stream, op.start_ns, op.end_ns);
      } else {
        const ir::ReplayOp op = recording_.graphs[ir::GraphId(cursor.source)]->replay_ops[cursor.at];
        visit(number, op.device, op.stream, op.start_ns, op.end_ns);
      }
      if (++cursor.at == cursor.end) continue;
      cursor.start_ns = cursor.source == kLoose ? recording_.loose_ops[cursor.at].start_ns
                                                : recording_.graphs[ir::GraphId(cursor.source)]->replay_ops[cursor.at].start_ns;
      open.push(cursor);
    }
  }
  [[nodiscard]] std::string label(Number number, const analysis::KernelIdentities& identities) const {
    const auto source = static_cast<std::uint32_t>(number >> 32), at = static_cast<std::uint32_t>(number);
    if (source == kLoose)
      return analysis::identify_kernel(recording_.text(recording_.loose_ops[at].name), analysis::KernelTable::builtin()).short_name;
    const ir::Graph& graph = *recording_.graphs[ir::GraphId(source)];
    const ir::ReplayOp op = graph.replay_ops[at];
    return op.node.is_valid() ? identities.label(graph, op.node) : std::string(ir::node_kind_name(op.kind));
  }

 private:
  static constexpr std::uint32_t kLoose = ~std::uint32_t{0};  // operations outside graphs come behind those of graphs
  // A launch, from its operation `at` on.
  struct Cursor {
    std::int64_t start_ns;
    std::uint32_t source, at, end;
  };
  static bool is_before(const Cursor& a, const Cursor& b) { return std::tie(a.start_ns, a.source, a.at) < std::tie(b.start_ns, b.source, b.at); }
  const ir::Recording& recording_;
  std::vector<Cursor> waiting_;
};

Json devices_json(const ir::Recording& recording, const analysis::KernelIdentities& identities) {
  struct Device {
    analysis::TimelineScan scan;
    std::size_t operations = 0;
    std::unordered_set<std::uint64_t> streams;
  };
  std::map<std::int32_t, Device> devices;
  const OperationMerge merge(recording);
  Device* last = nullptr;
  std::int32_t last_number = 0;
  merge.run([&](OperationMerge::Number number, std::int32_t device, std::uint64_t stream, std::int64_t start_ns, std::int64_t end_ns) {
    if (last == nullptr || device != last_number) last = &devices[last_number = device];
    last->scan.add(start_ns, end_ns, number);
    ++last->operations;
    last->streams.insert(stream);
  });
  Json list = Json::array();
  for (const auto& [number, device] : devices) {
    Json line = {{"device", number}, {"operations", device.operations}, {"streams", device.streams.size()}};
    line.update(timeline_json(device.scan.finish(), [&](std::size_t op) { return merge.label(op, identities); }));
    list.push_back(std::move(line));
  }
  return list;
}

Json recording_json(const ir::Recording& recording) {
  Json json;
  json["file"] = recording.file;
  json["format"] = recording.format;
  Json processes = Json::array();
  for (const ir::Process& process : recording.processes) {
    Json item = Json::object();
    if (process.pid >= 0) item["pid"] = process.pid;
    if (process.rank >= 0) item["rank"] = process.rank;
    if (process.world_size >= 0) item["world_size"] = process.world_size;
    if (process.driver_version != 0) item["cuda_driver"] = fmt::format("{}.{}", process.driver_version / 1000, process.driver_version % 1000 / 10);
    if (!recording.text(process.driver_release).empty()) item["driver"] = recording.text(process.driver_release);
    if (process.cupti_version != 0) item["cupti"] = process.cupti_version;
    Json gpus = Json::array();
    for (const ir::Gpu& gpu : process.gpus) gpus.push_back({{"device", gpu.device}, {"name", known(recording.text(gpu.name))}, {"sm_count", known(gpu.sm_count)}});
    if (!gpus.empty()) item["gpus"] = std::move(gpus);
    if (!process.environment.empty()) {
      Json environment = Json::object();
      for (const auto& [name, value] : process.environment) environment[std::string(recording.text(name))] = recording.text(value);
      item["environment"] = std::move(environment);
    }
    processes.push_back(std::move(item));
  }
  json["processes"] = std::move(processes);
  const analysis::KernelIdentities identities(recording, analysis::KernelTable::builtin());
  // Graphs that would be described in the same words are described once: those that use the same child graph, for example.
  Json graphs = Json::array();
  std::vector<std::size_t> alike;  // beside `graphs`
  std::unordered_map<std::string, std::size_t> described;
  std::map<std::int64_t, std::int64_t> total;
  const base::IdVector<ir::GraphId, std::size_t> nested = nested_sizes(recording);
  std::size_t looked_at = 0;
  for (const ir::GraphId id : recording.graphs.ids()) {
    if (recording.graphs[id] == nullptr) continue;
    looked_at += nested[id];
    Json item = graph_json(recording, id, identities, nested[id] == 0 || looked_at <= kMostNestedNodes);
    if (item.contains("streams_measured"))
      for (const auto& [key, count] : item["streams_measured"]["histogram"].items()) total[std::stoll(key)] += count.get<std::int64_t>();
    const auto [place, is_new] = described.try_emplace(item.dump(-1, ' ', false, Json::error_handler_t::replace), graphs.size());
    if (is_new) {
      graphs.push_back(std::move(item));
      alike.push_back(1);
    } else {
      ++alike[place->second];
    }
  }
  for (std::size_t i = 0; i < graphs.size(); ++i)
    if (alike[i] > 1) graphs[i]["graphs_alike"] = alike[i];
  json["graphs"] = std::move(graphs);
  if (!total.empty()) json["streams_per_launch"] = histogram_json(total);
  if (recording.has_timeline) {
    json["kernels_outside_graphs"] = std::count_if(recording.loose_ops.begin(), recording.loose_ops.end(), [](const ir::LooseOp& op) { return op.kind == ir::NodeKind::kernel; });
    json["timeline"] = devices_json(recording, identities);
  }
  if (!recording.losses.empty()) {
    Json losses = Json::array();
    for (const ir::Loss& loss : recording.losses) losses.push_back({{"what", recording.text(loss.what)}, {"count", loss.count}, {"spoils", facts_json(loss.facts)}});
    json["losses"] = std::move(losses);
  }
  return json;
}

// The JSON tree as indented "key: value" lines: one renderer, so that text and JSON never disagree.
void append_text(std::string& out, const Json& json, int depth) {
  constexpr std::size_t kMost = 100;  // of a list; JSON has all
  const std::string indent(static_cast<std::size_t>(depth) * 2, ' ');
  const auto scalar = [](const Json& value) {
    if (value.is_null()) return std::string("unknown");
    if (value.is_string()) return base::printable(value.get<std::string>(), 400);
    if (value.is_number_float()) return fmt::format("{:.6g}", value.get<double>());
    return value.dump();
  };
  for (const auto& [key, value] : json.items()) {
    std::string label = key;
    std::replace(label.begin(), label.end(), '_', ' ');
    if (value.is_object()) {
      std::string line;
      bool flat = true;
      std::size_t count = 0;
      for (const auto& [inner, entry] : value.items()) {
        flat = flat && !entry.is_structured();
        if (++count == kMost + 1) line += fmt::format(", ... and {} more", value.size() - kMost);
        if (flat && count <= kMost) line += fmt::format("{}{}: {}", line.empty() ? "" : ", ", base::printable(inner), scalar(entry));
      }
      if (flat) out += fmt::format("{}{}: {{{}}}\n", indent, label, line);
      else {
        out += fmt::format("{}{}:\n", indent, label);
        append_text(out, value, depth + 1);
      }
    } else if (value.is_array()) {
      const bool flat = std::none_of(value.begin(), value.end(), [](const Json& entry) { return entry.is_structured(); });
      if (flat) {
        std::string line;
        for (std::size_t i = 0; i < std::min(value.size(), kMost); ++i) line += (line.empty() ? "" : ", ") + scalar(value[i]);
        if (value.size() > kMost) line += fmt::format(", ... and {} more", value.size() - kMost);
        out += fmt::format("{}{}: {}\n", indent, label, line.empty() ? "none" : line);
      } else {
        static const std::map<std::string, std::string, std::less<>> kOne = {
            {"processes", "process"}, {"graphs", "graph"}, {"gpus", "gpu"}, {"largest gaps", "largest gap"}, {"timeline", "timeline of device"}, {"losses", "loss"}};
        std::string label_of_rest;
        const auto one = kOne.find(label);
        if (value.size() > kMost) label_of_rest = fmt::format("{}... and {} more {}\n", indent, value.size() - kMost, label);
        if (one != kOne.end()) label = one->second;
        for (std::size_t i = 0; i < std::min(value.size(), kMost); ++i) {
          std::string line;
          const bool one_line = value[i].is_object() && value[i].size() <= 4 && std::none_of(value[i].begin(), value[i].end(), [](const Json& entry) { return entry.is_structured(); });
          if (one_line) {
            if (value[i].empty()) line = "nothing is known";
            for (const auto& [inner, entry] : value[i].items()) line += fmt::format("{}{}: {}", line.empty() ? "" : ", ", base::printable(inner), scalar(entry));
            out += fmt::format("{}{} {}: {}\n", indent, label, i + 1, line);
            continue;
          }
          out += fmt::format("{}{} {}:\n", indent, label, i + 1);
          append_text(out, value[i], depth + 1);
        }
        out += label_of_rest;
      }
    } else {
      out += fmt::format("{}{}: {}\n", indent, label, scalar(value));
    }
  }
}

struct InspectOptions {
  std::vector<std::string> files;
  std::string format = "text", output;
};

int run_inspect(const InspectOptions& options) {
  const std::vector<InputPath> paths = input_paths(options.files);
  if (overwrites_input(options.output, paths)) return kExitUsage;
  Progress progress(true);
  Json inputs = Json::array();
  bool failed = false, found_nothing = false, lost = false, internal = false;
  for (const InputPath& input : paths) {
    const std::string& path = input.path;
    if (input.error) {
      print_error(input.error->to_string());
      failed = true;
      continue;
    }
    import::ReadOptions read;
    read.on_progress = [&](std::uint64_t done, std::uint64_t total) { progress.update(path, done, total); };
    auto recording = import::read_file(path, read);
    progress.clear();
    if (!recording) {
      print_error(recording.error().to_string());
      failed = true;
      internal = internal || exit_code_of(recording.error()) == kExitInternal;
      continue;
    }
    try {
      inputs.push_back(recording_json(*recording));
    } catch (const std::bad_alloc&) {
      print_error(import::out_of_memory(path).to_string());
      internal = true;
      continue;
    }
    found_nothing = found_nothing || (recording->graphs.empty() && recording->loose_ops.empty());
    for (const ir::Loss& loss : recording->losses) {
      failed = failed || loss.severity == ir::Loss::Severity::error;
      lost = lost || loss.severity == ir::Loss::Severity::data_loss;
    }
  }
  std::string text;
  if (options.format == "json") {
    text = Json({{"format", "cglint-inspect"}, {"format_version", "1.0"}, {"inputs", inputs}}).dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  } else {
    for (const Json& input : inputs) append_text(text, input, 0);
  }
  if (!write_output(options.output, text)) return kExitUsage;
  return internal ? kExitInternal : failed ? kExitUsage : found_nothing || lost ? kExitNothingToCheck : kExitClean;
}

}  // namespace

void add_inspect(CLI::App& app, Cli& cli) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* const inspect = app.add_subcommand("inspect", "Show what an input holds: nodes, edges, width, layers, streams, overlap, gaps");
  inspect->add_option("files", options->files, "Files, directories or globs; '-' is standard input")->required();
  inspect->add_option("--format", options->format, "text or json")->check(CLI::IsMember({"text", "json"}))->capture_default_str();
  inspect->add_option("-o,--output", options->output, "Write to a file");
  inspect->callback([options, &cli] { cli.run = [options] { return run_inspect(*options); }; });
}

}  // namespace cglint::cli
