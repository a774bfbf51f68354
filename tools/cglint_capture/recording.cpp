#include "recording.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>

#include "export/capture_writer.h"
#include "export/export.h"
#include "export/part_file.h"
#include "import/common/importer.h"

namespace cglint::capture_tool {
namespace {

bool is_top(const ir::Graph& graph) { return graph.info.role == ir::GraphRole::captured || graph.info.role == ir::GraphRole::built; }

using StreamSet = std::set<std::pair<std::int32_t, std::uint64_t>>;

std::uint32_t streams_of(const ir::Graph& graph, StreamSet& all) {
  std::size_t most = 0;
  for (const ir::Replay& replay : graph.replays) {
    StreamSet streams;
    for (const ir::ReplayOp& op : graph.ops(replay)) streams.emplace(op.device, op.stream);
    all.insert(streams.begin(), streams.end());
    most = std::max(most, streams.size());
  }
  return static_cast<std::uint32_t>(most);
}

void add(ir::Graph& graph, ir::GraphInfo& info, const UntracedFacts& facts) {
  info.batch_size = facts.batch;
  graph.facts.insert(ir::Fact::graph_key);
  if (facts.instantiate_us > 0) {
    info.instantiate_ns = std::llround(facts.instantiate_us * 1e3);
    info.upload_ns = std::llround(facts.upload_us * 1e3);
    if (facts.memory_bytes >= 0) info.memory_bytes = static_cast<std::uint64_t>(facts.memory_bytes);
    graph.facts.insert(ir::Fact::instantiate_info);
  }
  if (facts.timing.samples > 0) {
    info.untraced = facts.timing;
    graph.facts.insert(ir::Fact::untraced_times);
  }
}

}  // namespace

std::string add_accesses(const AccessFacts& facts, ir::Graph& graph) {
  std::map<std::uint64_t, std::uint64_t> moved;  // base there -> distance to here, modulo 2^64
  for (const AccessFacts::Node& node : facts.nodes) {
    const ir::NodeId id(node.number);
    const ir::KernelNode* const kernel = graph.kind.contains(id) ? graph.kernel(id) : nullptr;
    if (kernel == nullptr) return fmt::format("node {} is no kernel here", node.number);
    for (const AccessFacts::Word& word : node.words) {
      const auto words = graph.params_of(*kernel);
      const auto here = std::find_if(words.begin(), words.end(), [&](const ir::ParamWord& w) { return w.slot == word.slot && w.offset_bytes == word.offset_bytes; });
      if (here == words.end()) continue;
      const std::uint64_t distance = here->value - word.value;
      if (const auto [known, is_new] = moved.emplace(word.base, distance); !is_new && known->second != distance)
        return fmt::format("the arguments of node {} point elsewhere", node.number);
    }
  }
  std::vector<ir::MeasuredAccess> rows;
  for (const AccessFacts::Node& node : facts.nodes)
    for (const AccessFacts::Range& range : node.ranges) {
      const auto distance = moved.find(range.base);
      if (distance == moved.end()) return fmt::format("no argument says where memory that node {} touches lies", node.number);
      rows.push_back({ir::NodeId(node.number), range.begin + distance->second, range.end + distance->second, range.reads, range.writes});
    }
  for (const AccessFacts::Null& null : facts.nulls) {
    const ir::NodeId id(null.node);
    const ir::KernelNode* const kernel = graph.kind.contains(id) ? graph.kernel(id) : nullptr;
    if (kernel == nullptr) return fmt::format("node {} is no kernel here", null.node);
    const auto words = graph.params_of(*kernel);
    if (std::none_of(words.begin(), words.end(), [&](const ir::ParamWord& w) { return w.slot == null.slot && w.offset_bytes == null.offset_bytes && w.value == null.value; }))
      return fmt::format("argument {} byte {} of node {} is another one here", null.slot, null.offset_bytes, null.node);
    rows.push_back({id, null.value, null.value + 1, false, false, null.slot, null.offset_bytes});
  }
  graph.measured_accesses = std::move(rows);
  // That a kernel dereferences null says nothing of what else it touches.
  if (!facts.nodes.empty()) {
    graph.measured_reads_are_some = true;
    graph.facts.insert(ir::Fact::measured_access);
  }
  return "";
}

base::Result<Recorded> write_recording(const std::string& from, const std::string& to, const std::string& command, const std::vector<UntracedFacts>& facts,
                                       const AccessFacts& accesses, const std::string& note) {
  auto recording = import::read_file(from, {});
  if (!recording) return std::move(recording).error();
  for (ir::Process& process : recording->processes) process.command = recording->intern(command);
  Recorded recorded;
  StreamSet all;
  std::size_t next = 0;
  for (const auto& graph : recording->graphs) {
    if (graph == nullptr || !is_top(*graph)) continue;
    if (next < facts.size()) add(*graph, graph->info, facts[next]);
    if (next == 0 && (!accesses.nodes.empty() || (!accesses.nulls.empty() && graph->facts.contains(ir::Fact::kernel_params))))
      if (const std::string problem = add_accesses(accesses, *graph); !problem.empty()) return base::make_error(base::ErrorCode::internal, "measured accesses do not fit the recording: " + problem);
    ++next;
    recorded.graphs.push_back({std::string(recording->text(graph->info.name)), graph->node_count(), graph->info.instantiated,
                               streams_of(*graph, all)});
  }
  recorded.total_streams = static_cast<std::uint32_t>(all.size());
  if (!note.empty()) recording->add_loss(ir::Loss::Severity::data_loss, note);
  exporter::CaptureWriterOptions options;
  options.producer = "cglint capture " CGLINT_VERSION;
  options.compression = exporter::compression_of_path(to);
  options.level = 9;
  options.merge_equal = false;
  exporter::PartFile part(to);
  if (auto written = exporter::write_capture_file(*recording, part.name(), options); !written) {
    base::Error error = std::move(written).error();
    error.file = to;
    return error;
  }
  if (auto finished = part.finish(); !finished) return finished.error();
  return recorded;
}

std::optional<HeldRun> run_of_command(std::string_view command) {
  std::vector<std::string_view> words;
  for (std::size_t begin = 0; begin < command.size();) {
    const std::size_t end = std::min(command.find(' ', begin), command.size());
    words.push_back(command.substr(begin, end - begin));
    begin = end + 1;
  }
  if (words.size() < 3 || words[1] != "run" || words[0].substr(words[0].rfind('/') + 1) != "cglint-model-runner") return std::nullopt;
  HeldRun run;
  run.model = words[2];
  const auto number = [](std::string_view word) {
    int value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    return error == std::errc() && end == word.data() + word.size() ? value : 0;
  };
  for (std::size_t i = 3; i + 1 < words.size(); ++i) {
    if (words[i] == "--variant") run.variant = words[i + 1];
    if (words[i] == "--preset") run.preset = words[i + 1];
    if (words[i] == "--beside") run.beside = words[i + 1];
    if (words[i] == "--layers") run.layers = number(words[i + 1]);
    if (words[i] == "--batch") run.batch = number(words[i + 1]);
  }
  if (run.variant.empty() || run.preset.empty() || run.layers < 1 || run.batch < 1) return std::nullopt;
  return run;
}

base::Result<std::optional<HeldRun>> held_run(const std::string& file) {
  import::ReadOptions options;
  options.on_graph = [](ir::Recording& recording, ir::GraphId graph) { recording.graphs[graph].reset(); };
  auto recording = import::read_file(file, options);
  if (!recording) return std::move(recording).error();
  for (const ir::Process& process : recording->processes)
    if (auto run = run_of_command(recording->text(process.command))) return run;
  return std::optional<HeldRun>();
}

}  // namespace cglint::capture_tool
