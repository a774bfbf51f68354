// cglint convert INPUT OUTPUT: to a capture file, DOT, or a Chrome/Perfetto trace.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <new>
#include <string_view>

#include "base/text.h"
#include "commands.h"
#include "common/standard_output.h"
#include "export/export.h"
#include "export/part_file.h"
#include "import/common/importer.h"

namespace cglint::cli {
namespace {

struct ConvertOptions {
  std::string input, output, to, graph;
};

// "capture", "dot", "chrome-trace", or "" if the name does not tell.
std::string format_of(const std::string& output) {
  std::string name = output;
  for (const char* suffix : {".gz", ".zst"})
    if (name.ends_with(suffix)) name.resize(name.size() - std::string_view(suffix).size());
  if (name.ends_with(".jsonl")) return "capture";
  if (name.ends_with(".dot") || name.ends_with(".gv")) return "dot";
  if (name.ends_with(".json")) return "chrome-trace";
  return "";
}

std::string_view format_name(std::string_view format) {
  return format == "capture" ? "a capture file" : format == "dot" ? "DOT" : "a Chrome trace";
}

struct Choice {
  ir::GraphId graph;
  bool passes_over_eager = false;  // there is eager work as well
};

// The graph called `wanted`. If `wanted` is empty: the only one, or the only one that is not eager work.
base::Result<Choice> choose_graph(const ir::Recording& recording, const std::string& wanted) {
  std::string names;
  ir::GraphId found, captured;
  std::size_t candidates = 0, matches = 0, not_eager = 0;
  for (const ir::GraphId id : recording.graphs.ids()) {
    if (recording.graphs[id] == nullptr) continue;
    const ir::GraphInfo& info = recording.graphs[id]->info;
    if (info.role == ir::GraphRole::body) continue;
    ++candidates;
    const std::string_view name = recording.text(info.name);
    if (candidates <= 10) names += fmt::format("{}{}", names.empty() ? "" : ", ", base::printable(name));
    if (info.role != ir::GraphRole::eager) {
      captured = id;
      ++not_eager;
    }
    if (wanted.empty() || wanted == name) {
      found = id;
      ++matches;
    }
  }
  if (candidates > 10) names += fmt::format(", ... ({} in all)", candidates);
  if (matches == 1) return Choice{found};
  if (wanted.empty() && not_eager == 1) return Choice{captured, true};
  if (candidates == 0) return base::make_error(base::ErrorCode::usage, "the input holds no graph");
  return base::make_error(base::ErrorCode::usage,
                          matches == 0 ? fmt::format("no graph is called '{}'; there are: {}", base::printable(wanted), names)
                                       : fmt::format("DOT holds one graph: choose with --graph NAME among: {}", names));
}

int fail(const base::Error& error) {
  print_error(error.to_string());
  return exit_code_of(error);
}

// What the input's graphs could not vouch for. The output says so too, but not where its format has no place for it (DOT).
void print_spoiled(const ir::Recording& recording, const std::string& input) {
  std::map<std::string_view, ir::FactSet> facts_by_reason;
  for (const auto& graph : recording.graphs) {
    if (graph == nullptr) continue;
    for (const ir::SpoiledFact& spoiled : graph->spoiled) facts_by_reason[recording.text(spoiled.reason)].insert(spoiled.fact);
  }
  for (const ir::Loss& loss : recording.losses) facts_by_reason.erase(recording.text(loss.what));  // printed with its number
  for (const auto& [reason, facts] : facts_by_reason) {
    std::string names;
    for (int i = 0; i < ir::kFactCount; ++i)
      if (facts.contains(static_cast<ir::Fact>(i))) names += fmt::format("{}{}", names.empty() ? "" : ", ", ir::fact_name(static_cast<ir::Fact>(i)));
    print_stderr(fmt::format("{}: not to be relied on: {} ({})\n", base::printable(input), names, base::printable(reason)));
  }
}

int run_convert(const ConvertOptions& options) {
  const std::string by_name = format_of(options.output);
  const std::string to = options.to.empty() ? by_name : options.to;
  if (!by_name.empty() && by_name != to) {
    print_error(fmt::format("the name '{}' is that of {}, --to says {}", base::printable(options.output), format_name(by_name), to));
    return kExitUsage;
  }
  if (to.empty()) {
    print_error(fmt::format("cannot tell the format from the name '{}': give --to capture, dot or chrome-trace", base::printable(options.output)));
    return kExitUsage;
  }
  const bool compressed = options.output.ends_with(".gz") || options.output.ends_with(".zst");
  if (compressed && to != "capture") {
    print_error(fmt::format("{} is written uncompressed; pipe '-' through gzip instead", to));
    return kExitUsage;
  }
  if (!options.graph.empty() && to != "dot") {
    print_error(fmt::format("--graph is for DOT, which holds one graph; {} holds them all", format_name(to)));
    return kExitUsage;
  }
  const InputPath input{options.input, std::nullopt};
  if (overwrites_input(options.output, std::span(&input, 1))) return kExitUsage;
  Progress progress(true);
  import::ReadOptions read;
  read.on_progress = [&](std::uint64_t done, std::uint64_t total) { progress.update(options.input, done, total); };
  auto recording = import::read_file(options.input, read);
  progress.clear();
  if (!recording) return fail(recording.error());

  ir::GraphId graph;
  bool passes_over_eager = false;
  if (to == "dot") {
    auto chosen = choose_graph(*recording, options.graph);
    if (!chosen) return fail(chosen.error());
    graph = chosen->graph;
    passes_over_eager = chosen->passes_over_eager;
    if (!recording->graphs[graph]->facts.contains_all({ir::Fact::nodes, ir::Fact::edges})) {
      print_error(options.input + ": the input does not tell the dependency edges, and DOT would say that there are none");
      return kExitUsage;
    }
  }
  exporter::PartFile part(options.output);
  std::string summary;
  base::Result<void> result;
  try {
    if (to == "capture") {
      exporter::CaptureWriterOptions writer;
      writer.producer = "cglint " + version_text();
      writer.compression = options.output.ends_with(".gz")    ? exporter::Compression::gzip
                           : options.output.ends_with(".zst") ? exporter::Compression::zstd
                                                              : exporter::Compression::none;
      auto stats = exporter::write_capture_file(*recording, part.name(), writer);
      if (stats) summary = fmt::format("{}{} in {}", base::count_of(stats->graphs, "graph"), stats->instances > 0 ? fmt::format(" and {} equal to one of them", stats->instances) : "", base::count_of(stats->records, "record"));
      else result = std::move(stats).error();
    } else {
      auto sink = exporter::open_file_sink(part.name());
      if (!sink) {
        result = std::move(sink).error();
      } else if (to == "dot") {
        result = exporter::write_dot(*recording, graph, **sink);
        summary = fmt::format("graph {}{}", base::printable(recording->text(recording->graphs[graph]->info.name)),
                              passes_over_eager ? ", the only one that is not eager work" : "");
      } else {
        auto stats = exporter::write_chrome_trace(*recording, **sink);
        if (stats) {
          summary = base::count_of(stats->operations, "operation");
          if (stats->predicted_graphs > 0) summary += fmt::format(", {} on predicted streams", base::count_of(stats->predicted_graphs, "graph"));
          if (stats->skipped_graphs > 0) summary += fmt::format(", {} left out (no replay, no prediction)", base::count_of(stats->skipped_graphs, "graph"));
        } else {
          result = std::move(stats).error();
        }
      }
      if (sink && result) result = (*sink)->close();
    }
  } catch (const std::bad_alloc&) {
    result = import::out_of_memory(options.input);
  }
  if (result) result = part.finish();
  if (!result) {
    base::Error error = result.error();
    if (options.output == "-" && error.message.ends_with(std::strerror(EPIPE))) cglint::end_with_reader();
    if (error.file.empty() || error.file == part.name()) error.file = options.output;
    return fail(error);
  }
  if (options.output != "-") print_stderr(fmt::format("wrote {}: {}\n", base::printable(options.output), summary));
  print_spoiled(*recording, options.input);
  int code = kExitClean;
  for (const ir::Loss& loss : recording->losses) {
    if (loss.severity == ir::Loss::Severity::info) continue;
    print_stderr(fmt::format("{}: {} ({} times)\n", base::printable(options.input), base::printable(recording->text(loss.what)), loss.count));
    if (loss.severity == ir::Loss::Severity::error) code = kExitUsage;
    else if (code == kExitClean) code = kExitNothingToCheck;
  }
  return code;
}

}  // namespace

void add_convert(CLI::App& app, Cli& cli) {
  auto options = std::make_shared<ConvertOptions>();
  CLI::App* const convert = app.add_subcommand("convert", "Write an input as a capture file, DOT, or a Chrome/Perfetto trace");
  convert->add_option("input", options->input, "File to read; '-' is standard input")->required();
  convert->add_option("output", options->output, "File to write (NAME.cgl.jsonl[.gz|.zst], NAME.dot, NAME.json); '-' is standard output")->required();
  convert->add_option("--to", options->to, "Output format, where the name does not tell")->check(CLI::IsMember({"capture", "dot", "chrome-trace"}));
  convert->add_option("--graph", options->graph, "DOT: the graph to write, by name; not needed where only one is no eager work");
  convert->callback([options, &cli] { cli.run = [options] { return run_convert(*options); }; });
}

}  // namespace cglint::cli
