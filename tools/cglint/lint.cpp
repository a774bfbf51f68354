// cglint lint FILE...
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <limits>
#include <new>
#include <optional>
#include <span>
#include <thread>

#include "base/text.h"
#include "commands.h"
#include "engine/rule.h"
#include "engine/runner.h"
#include "export/part_file.h"
#include "import/common/importer.h"
#include "join/join.h"
#include "report/json.h"
#include "report/text.h"
#include "tables/moe_config.h"

namespace cglint::cli {
namespace {

struct LintOptions {
  std::vector<std::string> files;
  engine::Config config;
  std::vector<std::string> rule_options;
  std::string kernel_table, moe_config;
  std::string format = "text";
  std::string output;
  std::string fail_on = "warning", confidence = "likely", streams_from = "best", colour = "auto";
  bool no_join = false, force_join = false;
  bool quiet = false, statistics = false, no_progress = false, exit_zero = false, check_options = false;
  unsigned jobs = 0;
};

unsigned jobs_of(const LintOptions& options) {
  return options.jobs != 0 ? options.jobs : std::max(1U, std::thread::hardware_concurrency());
}

engine::InputChecker check_file(const std::string& path, const LintOptions& options, const analysis::KernelTable& kernels,
                                Progress& progress, unsigned threads) {
  engine::InputChecker checker(options.config, kernels, path, threads);
  import::ReadOptions read;
  read.threads = threads;
  read.on_graph = [&](ir::Recording& recording, ir::GraphId graph) { checker.add_graph(recording, graph); };
  read.on_progress = [&](std::uint64_t done, std::uint64_t total) { progress.update(path, done, total); };
  try {
    auto recording = import::read_file(path, read);
    if (!recording)
      checker.fail(std::move(recording).error());
    else
      checker.finish(*recording);
  } catch (const std::bad_alloc&) {
    checker.fail(import::out_of_memory(path));
  }
  return checker;
}

// A structure file and a timeline given together describe one program: the trace's replays are moved into the graphs.
// Returns false if the two are not such a pair (the caller then checks them one by one).
bool is_structure(std::string_view importer) { return importer == "dot" || importer == "capture"; }
bool is_timeline(std::string_view importer) { return importer == "kineto" || importer == "nsys-sqlite"; }

bool check_joined(const std::string& structure_path, const std::string& timeline_path, const LintOptions& options,
                  const analysis::KernelTable& kernels, Progress& progress, std::vector<std::unique_ptr<engine::InputChecker>>& out) {
  const auto read_whole = [&](const std::string& path) {
    import::ReadOptions read;
    read.threads = jobs_of(options);
    read.on_progress = [&](std::uint64_t done, std::uint64_t total) { progress.update(path, done, total); };
    return import::read_file(path, read);
  };
  auto structure = read_whole(structure_path);
  auto timeline = read_whole(timeline_path);
  if (!structure || !timeline) return false;
  auto structure_checker = std::make_unique<engine::InputChecker>(options.config, kernels, structure_path, jobs_of(options));
  auto timeline_checker = std::make_unique<engine::InputChecker>(options.config, kernels, timeline_path, jobs_of(options));
  const join::Report joined = join::join_timeline(*structure, *timeline, options.force_join);
  for (const join::Match& match : joined.matches)
    structure_checker->add_join({timeline_path, match.timeline_graph, match.structure_graph, match.by_id, match.replays, match.operations,
                                 match.matched, match.ambiguous, match.out_of_order,
                                 match.doubt ? fmt::format("predicted to replay on {}, the launches use {}; joined because {}",
                                                           base::count_of(match.doubt->predicted, "stream"), match.doubt->measured, match.doubt->why_joined)
                                             : std::string()});
  for (const join::Contradiction& found : joined.contradictions)
    structure_checker->set_join_problem(fmt::format("graph {} is predicted to replay on {}, but its launches in {} use {}: taken for another recording and checked "
                                                    "separately (--join joins them all the same)",
                                                    found.structure_graph, base::count_of(found.predicted, "stream"), timeline_path, found.measured));
  if (!joined.contradictions.empty()) {
    if (!joined.matches.empty()) timeline_checker->joined_elsewhere();
  } else if (joined.matches.empty()) structure_checker->set_join_problem("no graph launch in " + timeline_path + " fits a graph of this file; they were checked separately");
  else timeline_checker->joined_elsewhere();
  structure_checker->finish(*structure);
  timeline_checker->finish(*timeline);
  out[0] = std::move(structure_checker);
  out[1] = std::move(timeline_checker);
  return true;
}

// Whether these are a structure file and a timeline that can be read twice; the structure file is then the first.
bool find_pair(std::vector<InputPath>& paths) {
  if (paths.size() != 2 || std::any_of(paths.begin(), paths.end(), [](const InputPath& each) { return each.error || each.path == "-"; })) return false;
  const std::string first = import::recognise_file(paths[0].path), second = import::recognise_file(paths[1].path);
  if (is_structure(second) && is_timeline(first)) std::swap(paths[0], paths[1]);
  return (is_structure(first) && is_timeline(second)) || (is_structure(second) && is_timeline(first));
}

// What is left to ask of options where no input is to be read, as those have been read that they name.
int check_options(const LintOptions& options) {
  if (!options.files.empty()) {
    print_error(fmt::format("'{}' is no option: --check-options reads no input", base::printable(options.files.front())));
    return kExitUsage;
  }
  if (options.force_join) {
    print_error("--join is for one structure file (DOT or a capture file) and one trace of it");
    return kExitUsage;
  }
  if (options.output.empty()) return kExitClean;
  const base::Result<void> writable = exporter::check_writable(options.output);
  if (!writable) print_error(writable.error().to_string());
  return writable ? kExitClean : kExitUsage;
}

int run_lint(LintOptions& options) {
  engine::Config& config = options.config;
  // Without findings' say, what could not be checked or was lost still counts.
  if (options.fail_on == "never" || options.exit_zero) config.fail_on = std::nullopt;
  else config.fail_on = engine::severity_from_name(options.fail_on);
  config.min_confidence = *engine::confidence_from_name(options.confidence);
  config.streams_from = options.streams_from == "measured" ? engine::StreamsFrom::measured
                        : options.streams_from == "predicted" ? engine::StreamsFrom::predicted
                                                              : engine::StreamsFrom::best;
  for (const std::string& item : options.rule_options) {
    const std::size_t equals = item.find('=');
    if (equals == std::string::npos) {
      print_error(fmt::format("--option {}: expected CODE.OPTION=VALUE", base::printable(item)));
      return kExitUsage;
    }
    std::string key = item.substr(0, equals);
    // A rule goes by its name as well.
    if (const std::size_t dot = key.find('.'); dot != std::string::npos)
      if (const engine::Rule* const rule = engine::find_rule(std::string_view(key).substr(0, dot)); rule != nullptr)
        key = std::string(rule->info().code) + key.substr(dot);
    const auto [known, is_new] = config.options.emplace(key, item.substr(equals + 1));
    if (!is_new && known->second != item.substr(equals + 1)) {
      print_error(fmt::format("--option {} is given twice: {} and {}", base::printable(key), base::printable(known->second), base::printable(item.substr(equals + 1))));
      return kExitUsage;
    }
  }
  if (const auto valid = engine::validate(config); !valid) {
    print_error(valid.error().to_string());
    return kExitUsage;
  }
  const analysis::KernelTable* kernels = &analysis::KernelTable::builtin();
  analysis::KernelTable user_table;
  if (!options.kernel_table.empty()) {
    auto table = analysis::KernelTable::with_user_table(options.kernel_table);
    if (!table) {
      print_error(table.error().to_string());
      return kExitUsage;
    }
    user_table = std::move(*table);
    kernels = &user_table;
  }
  if (!options.moe_config.empty()) {
    auto directory = tables::MoeConfigDirectory::read(options.moe_config);
    if (!directory) {
      print_error(directory.error().to_string());
      return kExitUsage;
    }
    config.moe_configs = std::make_shared<const tables::MoeConfigDirectory>(std::move(*directory));
  }
  if (options.check_options) return check_options(options);
  std::vector<InputPath> paths = input_paths(options.files);
  if (overwrites_input(options.output, paths)) return kExitUsage;

  Progress progress(!options.no_progress && !options.quiet);
  std::vector<std::unique_ptr<engine::InputChecker>> slots(paths.size());
  std::atomic<std::size_t> next{0};
  const unsigned jobs = jobs_of(options);
  const unsigned files_at_once = static_cast<unsigned>(std::clamp<std::size_t>(paths.size(), 1, jobs));
  const auto work = [&] {
    for (std::size_t i = next.fetch_add(1); i < paths.size(); i = next.fetch_add(1))
      if (paths[i].error) {
        slots[i] = std::make_unique<engine::InputChecker>(config, *kernels, paths[i].path);
        slots[i]->fail(std::move(*paths[i].error));
      } else {
        slots[i] = std::make_unique<engine::InputChecker>(check_file(paths[i].path, options, *kernels, progress, jobs / files_at_once));
      }
  };
  const bool is_pair = find_pair(paths);
  if (options.force_join && !is_pair) {
    print_error("--join is for one structure file (DOT or a capture file) and one trace of it");
    return kExitUsage;
  }
  bool done = false;
  if (is_pair && !options.no_join)
    try {
      done = check_joined(paths[0].path, paths[1].path, options, *kernels, progress, slots);
    } catch (const std::bad_alloc&) {
      for (std::size_t i = 0; i < paths.size(); ++i) {
        slots[i] = std::make_unique<engine::InputChecker>(config, *kernels, paths[i].path);
        slots[i]->fail(import::out_of_memory(paths[i].path));
      }
      done = true;
    }
  if (!done) {
    std::vector<std::jthread> threads;
    for (unsigned i = 1; i < files_at_once; ++i) threads.emplace_back(work);
    work();
  }
  progress.clear();
  std::vector<engine::InputChecker> inputs;
  inputs.reserve(slots.size());
  for (auto& slot : slots) inputs.push_back(std::move(*slot));
  const engine::Report report = engine::merge_inputs(config, std::move(inputs));

  for (const base::Error& error : report.errors) print_error(error.to_string());
  std::string text;
  if (options.format == "json") {
    text = report::render_json(report, config, version_text());
  } else if (!report.inputs.empty() || report.errors.empty()) {
    report::TextOptions text_options;
    text_options.quiet = options.quiet;
    text_options.statistics = options.statistics;
    const ColourWhen when = options.colour == "always" ? ColourWhen::always : options.colour == "never" ? ColourWhen::never : ColourWhen::automatic;
    text_options.colour = (when == ColourWhen::always || options.output.empty() || options.output == "-") && use_colour(when, STDOUT_FILENO);
    text = report::render_text(report, config, text_options);
  }
  if (!text.empty() && !write_output(options.output, text)) return kExitUsage;
  const int code = report.exit_code(config);
  // An exit code is never without its reason on the terminal.
  const bool elsewhere = options.quiet || options.format == "json" || !(options.output.empty() || options.output == "-");
  const bool is_reason = code == kExitUsage || code == kExitNothingToCheck;
  if (elsewhere) {
    for (const engine::InputSummary& input : report.inputs) {
      // A loss is told whatever the exit code is: findings (1) say nothing of what was not there to be checked.
      for (const auto& loss : input.losses)
        if (loss.severity != "info")
          print_error(fmt::format("{}: {} ({}{})", input.file, loss.what, base::count_of(loss.count, "time"),
                                  loss.offset_bytes != ~std::uint64_t{0} ? fmt::format(", first at byte {}", loss.offset_bytes) : ""));
      if (is_reason && input.nothing_to_check) print_error(fmt::format("{}: nothing to check: {}", input.file, input.nothing_reason));
    }
    if (is_reason)
      for (const engine::NotChecked& entry : report.not_checked)
        if (entry.requested || config.fail_on_unchecked) print_error(fmt::format("{}: {} not checked: {}", entry.file, entry.code, entry.reason()));
  }
  return code;
}

}  // namespace

void add_lint(CLI::App& app, Cli& cli) {
  auto options = std::make_shared<LintOptions>();
  CLI::App* const lint = app.add_subcommand("lint", "Check graphs and traces, report violations with a fix");
  CLI::Option* const files = lint->add_option("files", options->files, "Files, directories or globs; '-' is standard input")->required();
  lint->add_option("--max-streams", options->config.max_streams, "Stream budget per graph (CG103); exit 4 if it cannot be checked")
      ->check(CLI::Range(1U, std::numeric_limits<unsigned>::max()));
  lint->add_option("--streams-from", options->streams_from, "Which stream count a budget uses: best (measured where there is a trace), measured, predicted")
      ->check(CLI::IsMember({"best", "measured", "predicted"}))->capture_default_str()->needs("--max-streams");
  lint->add_option("--select", options->config.select, "Rules to run: codes, prefixes (CG1), names, families or ALL")->delimiter(',')->allow_extra_args(false);
  lint->add_option("--ignore", options->config.ignore, "Rules to leave out; the most exact of --select and --ignore wins")->delimiter(',')->allow_extra_args(false);
  lint->add_option("--option", options->rule_options, "A rule option, CODE.OPTION=VALUE (see 'cglint explain CODE')")->allow_extra_args(false);
  lint->add_option("--fail-on", options->fail_on, "Lowest severity that makes the run exit 1")
      ->check(CLI::IsMember({"info", "warning", "error", "never"}))->capture_default_str();
  lint->add_flag("--exit-zero", options->exit_zero, "The same as --fail-on never: findings alone leave the exit code 0");
  lint->add_flag("--fail-on-unchecked", options->config.fail_on_unchecked, "Exit 4 if any selected rule could not be checked");
  lint->add_option("--confidence", options->confidence, "Lowest confidence that is reported")
      ->check(CLI::IsMember({"possible", "likely", "certain"}))->capture_default_str();
  lint->add_option("--kernel-table", options->kernel_table, "A known-kernel table (TOML) that extends the built-in one");
  lint->add_option("--moe-config", options->moe_config, "A folder of tuned fused-MoE configurations, named and formed as vLLM does (CG605)");
  lint->add_flag("--no-join", options->no_join, "Check a structure file and a trace separately instead of joining them");
  lint->add_flag("--join", options->force_join, "Join a structure file and a trace even if their stream counts contradict each other")->excludes("--no-join");
  lint->add_option("--format", options->format, "Output format")->check(CLI::IsMember({"text", "json"}))->capture_default_str();
  lint->add_option("-o,--output", options->output, "Write the report to a file");
  lint->add_flag("-q,--quiet", options->quiet, "One line per finding, nothing else");
  lint->add_flag("--statistics", options->statistics, "Counts per rule instead of the findings, in a text report");
  lint->add_option("-j,--jobs", options->jobs,
                   "Threads for files, and for the graphs within a file (default: the number of cores); the report is the same for any number")
      ->check(CLI::Range(1, 1024));
  lint->add_option("--color", options->colour, "Colour: auto (on a terminal, unless NO_COLOR is set), always, never")
      ->check(CLI::IsMember({"auto", "always", "never"}))->capture_default_str();
  lint->add_flag("--no-progress", options->no_progress, "No progress line on stderr");
  const auto check_options_only = [options, files] {
    options->check_options = true;
    files->required(false);
  };
  lint->add_flag_callback("--check-options", check_options_only, "Check the options, what they name and that --output can be written, and read no input: exit 0 or 2. 'cglint record --lint' does so before it runs its command");
  lint->callback([options, &cli] { cli.run = [options] { return run_lint(*options); }; });
}

}  // namespace cglint::cli
