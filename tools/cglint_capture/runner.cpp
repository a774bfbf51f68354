#include "runner.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <utility>

#include "base/text.h"
#include "child.h"
#include "output.h"
#include "recording.h"

namespace cglint::capture_tool {
namespace {

using Clock = std::chrono::steady_clock;

// The exit codes of cglint-model-runner.
constexpr int kRunnerFault = 5;

Clock::time_point deadline_of(const Options& options) { return Clock::now() + std::chrono::seconds(options.timeout_s); }

std::vector<std::string> runner_arguments(const Programs& programs, const Options& options, const Json& run) {
  std::vector<std::string> arguments = {programs.runner, "run", run["model"], "--variant", run["variant"], "--preset", run["preset"]};
  for (const char* key : {"layers", "batch", "context", "seed"}) {
    arguments.push_back(std::string("--") + key);
    arguments.push_back(run[key].dump());
  }
  if (options.no_pdl) arguments.emplace_back("--no-pdl");
  if (!options.moe_config.empty()) arguments.insert(arguments.end(), {"--moe-config", options.moe_config});
  if (!options.beside.empty()) arguments.insert(arguments.end(), {"--beside", options.beside});
  if (options.serve > 0)
    arguments.insert(arguments.end(), {"--serve", std::to_string(options.serve), "--draft-tokens", std::to_string(options.draft_tokens),
                                       "--draft-layers", std::to_string(options.draft_layers)});
  return arguments;
}

// What a recording says of its run: its command, without folders.
std::string command_of(const Programs& programs, Options options, const Json& run) {
  options.moe_config.clear();
  std::vector<std::string> words = runner_arguments(programs, options, run);
  words[0] = std::filesystem::path(words[0]).filename().string();
  return fmt::to_string(fmt::join(words, " "));
}

// "k2_full mla_main_moe_main k2-tp8, 8 layers, batch 1"
std::string text_of(const HeldRun& run) {
  return fmt::format("{} {} {}, {} layers, batch {}{}", run.model, run.variant, run.preset, run.layers, run.batch, run.beside.empty() ? "" : ", beside " + run.beside);
}

Child::Environment environment_of(const Json& run) {
  if (!run.contains("connections")) return {};
  return {{"CUDA_DEVICE_MAX_CONNECTIONS", run["connections"].dump()}};
}

// The same, for a process without recorder and CUPTI.
Child::Environment bare_environment_of(const Json& run) {
  Child::Environment environment = environment_of(run);
  for (const char* injection : {"CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"}) environment.emplace_back(injection, "");
  return environment;
}

// The last message of the recorder or the linter, without their name.
std::string recorder_message(const std::string& errors) {
  std::string message;
  for (std::size_t begin = 0; begin < errors.size();) {
    const std::size_t end = std::min(errors.find('\n', begin), errors.size());
    const std::string line = errors.substr(begin, end - begin);
    if (line.starts_with("cglint: ")) message = line.substr(8);
    begin = end + 1;
  }
  return message;
}

struct Outcome {
  bool interrupted = false, timed_out = false;
  Exit exit;
  std::string error, error_kind;  // of an error event
  std::set<std::string> events;   // that came
  std::vector<std::string> wanted;  // events without which there is no result

  // Of a child that ended as if all were well: the first event that it owes, or "".
  [[nodiscard]] std::string missing() const {
    if (exit.signal != 0 || (exit.code != 0 && exit.code != 1)) return "";
    const auto found = std::find_if(wanted.begin(), wanted.end(), [&](const std::string& event) { return !events.contains(event); });
    return found == wanted.end() ? "" : *found;
  }
};

// Reads events until the child ends; `on_event` may send orders. Lines that are none go to standard error: a tool around
// the runner may write its own.
template <typename OnEvent>
Outcome follow(Child& child, Clock::time_point deadline, const OnEvent& on_event) {
  Outcome outcome;
  std::string line;
  while (true) {
    const Child::Read read = child.read_line(line, deadline);
    if (read == Child::Read::end) break;
    if (read == Child::Read::interrupted || read == Child::Read::timeout) {
      outcome.interrupted = read == Child::Read::interrupted;
      outcome.timed_out = !outcome.interrupted;
      child.kill_group();
      break;
    }
    const Json event = Json::parse(line, nullptr, false);
    if (!event.is_object() || !event.contains("event") || !event["event"].is_string()) {
      fmt::print(stderr, "{}\n", line);
      continue;
    }
    outcome.events.insert(event["event"].get<std::string>());
    if (event["event"] == "error") {
      outcome.error = event.value("message", "unknown error");
      outcome.error_kind = event.value("kind", "");
    }
    on_event(event);
  }
  outcome.exit = child.finish(deadline);
  if (Child::is_interrupted()) outcome.interrupted = true;
  return outcome;
}

// One line that says why a child did not end well, or "".
std::string problem_of(const Outcome& outcome, const Options& options) {
  if (!outcome.error.empty()) return outcome.error;
  if (outcome.timed_out) return fmt::format("ran past {} s and was ended (--timeout)", options.timeout_s);
  if (outcome.exit.signal != 0) return fmt::format("the runner was ended by signal {}", outcome.exit.signal);
  if (outcome.exit.code == 127) return "the runner could not be started";
  if (outcome.exit.code > 1) return fmt::format("the runner ended with exit code {}", outcome.exit.code);
  if (const std::string missing = outcome.missing(); !missing.empty()) return fmt::format("the runner ended with exit code {}, but without its result: no '{}'", outcome.exit.code, missing);
  return "";
}

int exit_code_of(const Outcome& outcome) {
  if (outcome.interrupted) return kExitInterrupted;
  if (outcome.exit.code == 4) return kExitMissing;
  if (outcome.exit.code == 2) return kExitUsage;
  if (outcome.error.empty() && !outcome.missing().empty()) return kExitInternal;
  if (outcome.exit.code == 1) return kExitWrong;
  return outcome.exit.code == 0 && !outcome.timed_out ? kExitGood : kExitInternal;
}

// A folder that goes with its contents.
class ScratchFolder {
 public:
  ScratchFolder(const std::string& beside, bool is_needed) : path_(fmt::format("{}.{}.part", beside, getpid())) {
    if (!is_needed) return;
    std::error_code error;
    std::filesystem::create_directories(path_, error);
    if (error) problem_ = fmt::format("cannot make {}: {}", path_, error.message());
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const std::string& problem() const { return problem_; }
  // The recorder's file, or "".
  [[nodiscard]] std::string recording() const {
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(path_, ignored))
      if (entry.path().string().ends_with(".cgl.jsonl")) return entry.path().string();
    return "";
  }

 private:
  std::string path_, problem_;
};

// The report of cglint lint on `file`; the error is one line.
base::Result<Json> lint(const Programs& programs, const Options& options, const std::string& file) {
  std::vector<std::string> arguments = {programs.cglint, "lint", "--format", "json", "--no-progress"};
  if (const std::string& tables = options.moe_config.empty() ? options.lint_moe_config : options.moe_config; !tables.empty())
    arguments.insert(arguments.end(), {"--moe-config", tables});
  arguments.push_back(file);
  Child child(arguments, {}, true);
  std::string text, line;
  const Clock::time_point deadline = deadline_of(options);
  while (child.read_line(line, deadline) == Child::Read::line) text += line + '\n';
  const Exit exit = child.finish(deadline);
  Json report = Json::parse(text, nullptr, false);
  if (report.is_object() && report.contains("findings")) return report;
  // What is wrong with the options comes without a report.
  if (const std::string said = recorder_message(child.errors()); exit.code == 2 && !said.empty())
    return base::make_error(base::ErrorCode::usage, said.starts_with("error: ") ? said.substr(7) : said);
  return base::make_error(base::ErrorCode::internal, fmt::format("cglint lint gave no report (exit code {})", exit.code)).with_file(file);
}

// Would a replay read addresses that are not there? The reason, or "".
std::string unsafe_to_replay(const Json& report) {
  for (const Json& finding : report["findings"])
    if (finding.value("code", "").starts_with("CG3") && finding.value("severity", "") == "error")
      return fmt::format("{} {}", finding.value("code", ""), finding.value("message", ""));
  return "";
}

void add_report(const Json& report, const std::vector<RecordedGraph>& graphs, Json& run) {
  std::set<std::string> codes, unchecked;
  for (const Json& finding : report["findings"])
    if (!finding.value("suppressed", false)) codes.insert(finding.value("code", ""));
  for (const Json& entry : report.value("not_checked", Json::array())) unchecked.insert(entry.value("code", ""));
  run["findings"] = codes;
  run["not_checked"] = unchecked;
  Json per_graph = Json::array();
  std::int64_t predicted = -1;
  for (const RecordedGraph& graph : graphs) {
    Json entry = {{"name", graph.name}, {"nodes", graph.nodes}};
    for (const Json& input : report.value("inputs", Json::array()))
      for (const Json& listed : input.value("graphs", Json::array()))
        if (listed.value("name", "") == graph.name && listed.contains("streams_predicted")) entry["streams_predicted"] = listed["streams_predicted"];
    if (graph.streams_measured > 0) entry["streams_measured"] = graph.streams_measured;
    if (entry.contains("streams_predicted")) predicted = std::max(predicted, entry["streams_predicted"].get<std::int64_t>());
    per_graph.push_back(std::move(entry));
  }
  if (predicted >= 0) run["streams_predicted"] = predicted;
  if (graphs.size() > 1) run["graphs"] = std::move(per_graph);
}

// Why each rule could not look.
std::map<std::string, std::string> reasons_of(const Json& report) {
  std::map<std::string, std::string> reasons;
  for (const Json& entry : report.value("not_checked", Json::array())) reasons.emplace(entry.value("code", ""), entry.value("reason", ""));
  return reasons;
}

void verify(const Manifest* manifest, int published_layers, const std::map<std::string, std::string>& unchecked, Json& run) {
  Json differences = Json::array();
  const RunKey key{run["variant"], run["preset"], run["layers"], published_layers, run["batch"], run.value("beside", "")};
  const auto expected = manifest == nullptr ? std::nullopt : manifest->expected(key);
  if (!expected) {
    differences.push_back("the manifest says nothing about this run");
  } else {
    const auto found = run.value("findings", std::vector<std::string>());
    std::vector<std::string> lacking, beyond;
    std::set_difference(expected->codes.begin(), expected->codes.end(), found.begin(), found.end(), std::back_inserter(lacking));
    std::set_difference(found.begin(), found.end(), expected->codes.begin(), expected->codes.end(), std::back_inserter(beyond));
    if (!run.contains("findings")) differences.push_back("nothing was linted");
    for (const std::string& code : expected->checked)
      if (const auto reason = unchecked.find(code); reason != unchecked.end()) {
        differences.push_back(fmt::format("{} was not checked: {}", code, reason->second));
        std::erase(lacking, code);
      }
    if (!lacking.empty()) differences.push_back(fmt::format("expected, not found: {}", fmt::join(lacking, " ")));
    if (!beyond.empty()) differences.push_back(fmt::format("found, not expected: {}", fmt::join(beyond, " ")));
    if (const auto streams = Manifest::expected_streams(*expected, key)) {
      for (const char* kind : {"streams_predicted", "streams_measured"})
        if (run.contains(kind) && run[kind] != *streams) differences.push_back(fmt::format("{} streams expected, {} {}", *streams, run[kind].dump(), kind + 8));
      run["expected_streams"] = *streams;
    }
    run["expected"] = expected->codes;
  }
  const bool ok = differences.empty();
  run["verify"] = {{"ok", ok}, {"differences", std::move(differences)}};
}

// Adds to run["verify"] what the linter's report on a kept recording has against it.
void verify_report(const Json& report, const Manifest& manifest, int published_layers, Json& run) {
  add_report(report, {}, run);
  for (const Json& input : report.value("inputs", Json::array()))
    for (const Json& graph : input.value("graphs", Json::array()))
      for (const char* kind : {"streams_predicted", "streams_measured"})
        if (graph.contains(kind)) run[kind] = std::max(run.value(kind, std::int64_t{0}), graph[kind].get<std::int64_t>());
  verify(&manifest, published_layers, reasons_of(report), run);
  Json& differences = run["verify"]["differences"];
  if (published_layers == 0) differences.push_back("the manifest does not say how many layers the preset has");
  for (const Json& error : report.value("errors", Json::array())) differences.push_back(error.value("message", "an error"));
  for (const Json& input : report.value("inputs", Json::array())) {
    for (const Json& loss : input.value("losses", Json::array()))
      if (loss.value("severity", "") != "info") differences.push_back("not whole: " + loss.value("what", ""));
    if (input.value("nothing_to_check", false)) differences.push_back("nothing to check: " + input.value("reason", ""));
  }
}

// What an untraced child tells of itself.
void take_event(const Json& event, Json& run, Json& gpu) {
  const std::string name = event["event"];
  Json facts = event;
  facts.erase("event");
  if (name == "gpu") gpu = std::move(facts);
  else if (name == "prepared") run["model_memory_bytes"] = run.value("model_memory_bytes", std::int64_t{0}) + facts.value("persistent_bytes", std::int64_t{0});
  else if (name == "captured") run["nodes"] = facts["nodes"], run["capture_us"] = facts["capture_us"];
  else if (name == "timing" || name == "executable" || name == "output" || name == "check" || name == "capture_failed") run[name] = std::move(facts);
}

// One "access" event of the runner.
bool read_access(const Json& event, AccessFacts& facts) {
  try {
    AccessFacts::Node node;
    node.number = event.at("node");
    for (const Json& word : event.at("words")) node.words.push_back({word.at(0), word.at(1), word.at(2), word.at(3)});
    for (const Json& range : event.at("ranges")) {
      const std::string mode = range.at(3);
      node.ranges.push_back({range.at(0), range.at(1), range.at(2), mode.find('r') != std::string::npos, mode.find('w') != std::string::npos});
    }
    facts.nodes.push_back(std::move(node));
    return true;
  } catch (const Json::exception&) {
    return false;
  }
}

// A kernel that is launched alone.
struct NullNode {
  struct Word {
    std::uint16_t slot = 0, offset = 0;
    std::uint64_t value = 0;
  };
  std::uint32_t number = 0;
  std::string function;
  std::vector<Word> words;  // its null ones, the likeliest addresses first
  std::string message;      // of its fault, or why it was refused
};

// An "isolating" event of the runner.
std::optional<NullNode> read_null_node(const Json& event) {
  try {
    NullNode node;
    node.number = event.at("node");
    node.function = event.value("function", "");
    for (const Json& word : event.at("words")) node.words.push_back({word.at(0), word.at(1), word.at(2)});
    std::stable_partition(node.words.begin(), node.words.end(), [](const NullNode::Word& word) { return word.value == 0; });
    return node;
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

Json said_of(const NullNode& node) {
  return {{"node", node.number}, {"function", node.function}, {"null_words", node.words.size()}, {"message", node.message}};
}

// More processes for one node than anybody waits for.
constexpr std::size_t kMostPatches = 64;

UntracedFacts untraced_facts(const Json& run) {
  UntracedFacts facts;
  facts.batch = run["batch"];
  const auto read = [&](const char* group, const char* key, auto& out) {
    if (run.contains(group) && run[group].contains(key) && run[group][key].is_number()) run[group][key].get_to(out);
  };
  read("timing", "samples", facts.timing.samples);
  read("timing", "median_us", facts.timing.median_us);
  read("timing", "p10_us", facts.timing.p10_us);
  read("timing", "p90_us", facts.timing.p90_us);
  read("timing", "launch_cpu_us", facts.timing.launch_cpu_us);
  read("executable", "instantiate_us", facts.instantiate_us);
  read("executable", "upload_us", facts.upload_us);
  read("executable", "memory_bytes", facts.memory_bytes);
  return facts;
}

class Execution {
 public:
  Execution(const Programs& programs, const Options& options, const Manifest* manifest, Planned& planned, Json& gpu)
      : programs_(programs), options_(options), manifest_(manifest), planned_(planned), run_(planned.run), gpu_(gpu), scratch_(planned.recording, !options.check_only) {}

  int run() {
    if (!scratch_.problem().empty()) return give_up(kExitUsage, scratch_.problem());
    const bool traces = !options_.no_trace && !options_.check_only;
    if (traces) {
      if (const int code = traced(); code != kExitGood) return code;
    } else if (planned_.may_fault) {
      not_replayed_ = "the variant reads a null address";
    }
    // Two graphs in turn are for the recording; times are those of the runs of each.
    const bool traced_alone = traces && (planned_.capture_fails || !options_.beside.empty());
    const int measured = traced_alone ? kExitGood : untraced();
    if (measured == kExitInterrupted) keep_torn();
    if (measured == kExitInterrupted || measured == kExitUsage) return measured;
    int code = measured;
    if (options_.measure_access && traces && !planned_.capture_fails) {
      const int access = not_replayed_.empty() ? measure_access() : prove_nulls();
      if (access == kExitInterrupted) keep_torn();
      if (access == kExitInterrupted) return access;
      code = code == kExitGood ? access : code;
    }
    if (const int written = write(traces); written != kExitGood && (code == kExitGood || code == kExitWrong)) code = written == kExitMissing && code == kExitWrong ? code : written;
    if (options_.verify) {
      verify(manifest_, planned_.published_layers, unchecked_, run_);
      if (!run_["verify"]["ok"].get<bool>() && (code == kExitGood || code == kExitMissing)) code = kExitWrong;
    }
    return code;
  }

 private:
  int give_up(int code, const std::string& reason) {
    run_["error"] = reason;
    return code;
  }

  // Records; lints when the graph is on disk and decides whether it is replayed.
  int traced() {
    std::vector<std::string> arguments = {programs_.record, "-o", scratch_.path() + "/", "--replays", std::to_string(std::max(options_.replays, options_.serve * options_.draft_tokens)), "--no-python-stacks", "--redact", "--exec", "--"};
    for (std::string& argument : runner_arguments(programs_, options_, run_)) arguments.push_back(std::move(argument));
    arguments.insert(arguments.end(), {"--wait", "--replays", std::to_string(options_.replays)});
    Child child(arguments, environment_of(run_));
    base::Result<void> linted;
    bool goes_on = false;
    const Clock::time_point deadline = deadline_of(options_);
    Outcome outcome = follow(child, deadline, [&](const Json& event) {
      if (event["event"] == "gpu") take_event(event, run_, gpu_);
      if (event["event"] == "captured") take_event(event, run_, gpu_);
      if (event["event"] == "capture_failed") take_event(event, run_, gpu_);
      if (event["event"] != "instantiated") return;
      run_["nodes"] = event["nodes"];
      if (planned_.may_fault) not_replayed_ = "the variant reads a null address";
      if (const std::string file = scratch_.recording(); !file.empty()) {
        if (auto report = lint(programs_, options_, file)) {
          if (std::string reason = unsafe_to_replay(*report); !reason.empty()) not_replayed_ = std::move(reason);
        } else {
          linted = std::move(report).error();
        }
      }
      goes_on = not_replayed_.empty() && linted;
      child.send(goes_on ? "go\n" : "stop\n");
    });
    outcome.wanted = planned_.capture_fails ? std::vector<std::string>{"capture_failed"} : std::vector<std::string>{"instantiated"};
    if (goes_on) outcome.wanted.emplace_back("replayed");
    const std::string said = recorder_message(child.errors());
    if (outcome.interrupted) {
      keep_torn();
      return kExitInterrupted;
    }
    if (!linted) return give_up(kExitInternal, linted.error().to_string());
    const std::string problem = problem_of(outcome, options_);
    if (!problem.empty() && !(planned_.capture_fails && run_.contains("capture_failed"))) {
      keep_torn();
      if (outcome.exit.code == kRunnerFault) run_["fault"] = problem;
      return give_up(exit_code_of(outcome), problem);
    }
    if (scratch_.recording().empty() && !planned_.capture_fails)
      run_["not_traced"] = said.empty() ? "the recorder wrote nothing" : said;
    return planned_.capture_fails ? exit_code_of(outcome) : kExitGood;
  }

  // Measures without recorder and CUPTI; a graph that must not be replayed only in a child of its own, if asked to.
  int untraced() {
    int code = child_without_recorder(!not_replayed_.empty());
    if (code == kExitInterrupted) return code;
    if (!not_replayed_.empty()) {
      if (!options_.force) {
        run_["not_replayed"] = not_replayed_;
      } else {
        run_["replayed_by_force"] = not_replayed_;
        code = std::max(code, child_without_recorder(false));
      }
    }
    return code;
  }

  int child_without_recorder(bool no_replay) {
    std::vector<std::string> arguments = runner_arguments(programs_, options_, run_);
    if (no_replay) arguments.emplace_back("--no-replay");
    if (options_.no_check) arguments.emplace_back("--no-check");
    arguments.insert(arguments.end(), {"--samples", std::to_string(options_.check_only ? 0 : options_.samples)});
    const std::string dot = !options_.check_only && scratch_.recording().empty() ? scratch_.path() + "/graph.dot" : "";
    if (!dot.empty()) arguments.insert(arguments.end(), {"--dot", dot});
    Child child(arguments, bare_environment_of(run_));
    Outcome outcome = follow(child, deadline_of(options_), [&](const Json& event) { take_event(event, run_, gpu_); });
    outcome.wanted = results_of_untraced(no_replay);
    if (outcome.interrupted) return kExitInterrupted;
    if (outcome.exit.code == kRunnerFault && !not_replayed_.empty()) {  // what was to be shown
      run_["fault"] = problem_of(outcome, options_);
      return kExitGood;
    }
    if (run_.contains("capture_failed") && planned_.capture_fails) return exit_code_of(outcome);
    if (const std::string problem = problem_of(outcome, options_); !problem.empty()) {
      if (outcome.exit.code == kRunnerFault) run_["fault"] = problem;
      return give_up(exit_code_of(outcome), problem);
    }
    std::error_code ignored;
    if (!dot.empty() && options_.serve == 0 && !std::filesystem::exists(dot, ignored)) return give_up(kExitInternal, "the runner ended well, but did not write the graph that it was asked for (--dot)");
    return exit_code_of(outcome);
  }

  // The events that tell what a child without recorder found.
  [[nodiscard]] std::vector<std::string> results_of_untraced(bool no_replay) const {
    if (planned_.capture_fails) return {"capture_failed"};
    std::vector<std::string> wanted = {"captured"};
    const bool timed = options_.samples > 0 && !options_.check_only;
    if (options_.serve > 0) {
      if (timed) wanted.emplace_back("timing");
      return wanted;
    }
    if (!no_replay) wanted.emplace_back("output");
    if (!no_replay && !options_.no_check) wanted.emplace_back("check");
    if (!no_replay && timed) wanted.emplace_back("timing");
    if (timed) wanted.emplace_back("executable");
    return wanted;
  }

  int measure_access() {
    std::vector<std::string> arguments = runner_arguments(programs_, options_, run_);
    arguments.emplace_back("--measure-access");
    Child child(arguments, environment_of(run_));
    bool is_readable = true;
    Outcome outcome = follow(child, deadline_of(options_), [&](const Json& event) {
      if (event["event"] == "access") is_readable = read_access(event, accesses_) && is_readable;
      if (event["event"] == "accesses") {
        run_["accesses"] = event;
        run_["accesses"].erase("event");
      }
    });
    outcome.wanted = {"accesses"};
    if (outcome.interrupted) return kExitInterrupted;
    std::string problem = problem_of(outcome, options_);
    if (problem.empty() && !is_readable) problem = "what the runner says of accesses cannot be read";
    if (problem.empty()) return exit_code_of(outcome);
    accesses_ = {};
    return give_up(exit_code_of(outcome) == kExitGood ? kExitInternal : exit_code_of(outcome), problem);
  }

  // What a process of the runner tells of kernels that it launches alone.
  struct Isolated {
    Outcome outcome;
    std::optional<NullNode> fault;      // the launch that ended it
    std::vector<NullNode> refused;
    Json facts;                         // of its "isolation" event
    std::size_t launches = 0;           // that went through
    bool is_readable = true;
  };
  Isolated isolate(std::size_t first, const std::vector<std::string>& patch) {
    std::vector<std::string> arguments = runner_arguments(programs_, options_, run_);
    arguments.insert(arguments.end(), {"--isolate", std::to_string(first)});
    arguments.insert(arguments.end(), patch.begin(), patch.end());
    Child child(arguments, bare_environment_of(run_));
    Isolated isolated;
    std::optional<NullNode> running;
    isolated.outcome = follow(child, deadline_of(options_), [&](const Json& event) {
      if (event["event"] == "isolating") {
        running = read_null_node(event);
        isolated.is_readable = isolated.is_readable && running;
      } else if (event["event"] == "isolated") {
        if (running && event.contains("refused")) running->message = event.value("refused", ""), isolated.refused.push_back(*running);
        else ++isolated.launches;
        running.reset();
      } else if (event["event"] == "isolation") {
        isolated.facts = event;
        isolated.facts.erase("event");
      }
    });
    isolated.outcome.wanted = {patch.empty() ? "isolation" : "isolated"};
    ++isolation_processes_;
    if (running && isolated.outcome.exit.code == kRunnerFault) {
      running->message = isolated.outcome.error;
      isolated.fault = running;
    } else if (running && isolated.outcome.timed_out) {
      isolated.outcome.error = fmt::format("node {} alone ran past {} s and was ended (--timeout)", running->number, options_.timeout_s);
    }
    return isolated;
  }

  // Of a graph that is not replayed: which kernels dereference a null argument. Each kind of kernel is launched alone; where one faults, its
  // process ends, and the next goes on behind it. What is proven is added to `accesses_`, what is not is said.
  int prove_nulls() {
    const Clock::time_point begin = Clock::now();
    Json proof = {{"proven", Json::array()}, {"not_proven", Json::array()}, {"refused", Json::array()}};
    std::vector<NullNode> faulting;
    int code = kExitGood;
    const auto stop = [&](const Isolated& isolated) {
      if (isolated.outcome.interrupted) return kExitInterrupted;
      std::string problem = isolated.fault ? "" : problem_of(isolated.outcome, options_);
      if (problem.empty() && !isolated.is_readable) problem = "what the runner says of kernels alone cannot be read";
      if (problem.empty()) return kExitGood;
      const int given = exit_code_of(isolated.outcome);
      return give_up(given == kExitGood ? kExitInternal : given, problem);
    };
    std::size_t first = 0, launches = 0;
    for (bool is_done = false; !is_done && code == kExitGood;) {
      const Isolated isolated = isolate(first, {});
      code = stop(isolated);
      launches += isolated.launches + (isolated.fault ? 1 : 0);
      for (const NullNode& node : isolated.refused) proof["refused"].push_back(said_of(node));
      for (const char* name : {"nodes", "kernels", "kinds"})
        if (isolated.facts.contains(name)) proof[name] = isolated.facts[name];
      is_done = !isolated.fault || isolated.fault->number < first;
      if (is_done) continue;
      faulting.push_back(*isolated.fault);
      first = std::size_t{isolated.fault->number} + 1;
    }
    for (const NullNode& node : faulting) {
      if (code == kExitInterrupted) break;
      const int one = prove(node, stop, proof);
      if (code == kExitGood || one == kExitInterrupted) code = one;
    }
    proof["launches"] = launches;
    proof["processes"] = isolation_processes_;
    proof["seconds"] = std::chrono::duration<double>(Clock::now() - begin).count();
    run_["null_proof"] = std::move(proof);
    return code;
  }

  // Which null word it is: the launch goes through with memory in its place, and faults with an address that has none.
  template <typename Stop>
  int prove(const NullNode& node, const Stop& stop, Json& proof) {
    std::string why = "no single null word explains the fault: with memory in the place of any one of them it faults too";
    if (node.words.size() > kMostPatches) why = fmt::format("no single one of the first {} null words explains the fault; {} were not tried", kMostPatches, node.words.size() - kMostPatches);
    for (std::size_t i = 0; i < std::min(node.words.size(), kMostPatches); ++i) {
      const NullNode::Word& word = node.words[i];
      const std::string place = fmt::format("{}:{}", word.slot, word.offset);
      const Isolated with_memory = isolate(node.number, {"--patch", place});
      if (const int code = stop(with_memory); code != kExitGood) return code;
      if (with_memory.fault) continue;
      if (with_memory.launches == 0) {
        why = fmt::format("the launch with memory in the place of argument {} byte {} was refused", word.slot, word.offset);
        continue;
      }
      // A number would do with one large value as with another.
      const Isolated without = isolate(node.number, {"--patch", place, "--unmapped"});
      if (const int code = stop(without); code != kExitGood) return code;
      if (!without.fault) {
        why = fmt::format("with another value in argument {} byte {} the launch goes through, be it an address or not", word.slot, word.offset);
        continue;
      }
      Json said = said_of(node);
      said["argument"] = word.slot;
      said["byte"] = word.offset;
      said["value"] = word.value;
      proof["proven"].push_back(std::move(said));
      accesses_.nulls.push_back({node.number, word.slot, word.offset, word.value});
      progress(fmt::format("node {} alone faults, and not with memory in the place of argument {} byte {}", node.number, word.slot, word.offset));
      return kExitGood;
    }
    Json said = said_of(node);
    said["why"] = why;
    proof["not_proven"].push_back(std::move(said));
    progress(fmt::format("node {} alone faults: {}", node.number, why));
    return kExitGood;
  }

  void progress(const std::string& text) const {
    if (!options_.quiet) fmt::print(stderr, "  {}\n", base::printable(text, 300));
  }

  // The capture file, from the recording or, where there is none, from the graph's DOT dump.
  int write(bool traces) {
    std::string from = scratch_.recording(), note;
    if (from.empty()) {
      from = scratch_.path() + "/graph.dot";
      std::error_code ignored;
      if (!std::filesystem::exists(from, ignored)) return traces && !planned_.capture_fails ? kExitMissing : kExitGood;
      if (traces) note = "not traced: " + run_.value("not_traced", std::string("the recorder wrote nothing"));
    }
    if (options_.check_only) return kExitGood;
    std::vector<UntracedFacts> facts;
    if (options_.serve == 0 && options_.beside.empty()) facts.push_back(untraced_facts(run_));
    auto recorded = write_recording(from, planned_.recording, command_of(programs_, options_, run_), facts, accesses_, note);
    if (!recorded) return give_up(kExitInternal, recorded.error().to_string());
    run_["recording"] = std::filesystem::path(planned_.recording).filename().string();
    std::uint32_t measured = 0;
    for (const RecordedGraph& graph : recorded->graphs) measured = std::max(measured, graph.streams_measured);
    if (measured > 0) run_["streams_measured"] = measured;
    if (options_.serve > 0) run_["streams_total"] = recorded->total_streams;
    auto report = lint(programs_, options_, planned_.recording);
    if (!report) return give_up(kExitInternal, report.error().to_string());
    add_report(*report, recorded->graphs, run_);
    unchecked_ = reasons_of(*report);
    return note.empty() ? kExitGood : kExitMissing;
  }

  // What a run that ended early has recorded, under the name it would have had.
  void keep_torn() {
    const std::string from = scratch_.recording();
    if (from.empty()) return;
    if (auto recorded = write_recording(from, planned_.recording, command_of(programs_, options_, run_), {}, {}, "the run ended early")) run_["recording"] = std::filesystem::path(planned_.recording).filename().string();
  }

  const Programs& programs_;
  const Options& options_;
  const Manifest* manifest_;
  Planned& planned_;
  Json& run_;
  Json& gpu_;
  ScratchFolder scratch_;
  std::string not_replayed_;
  std::map<std::string, std::string> unchecked_;  // rules that could not look at the recording: why
  AccessFacts accesses_;
  int isolation_processes_ = 0;
};

}  // namespace

std::string find_programs(Programs& programs) {
  std::error_code ignored;
  const std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  programs = {(folder / "cglint").string(), (folder / "cglint-record").string(), (folder / "cglint-model-runner").string()};
  for (const std::string* const program : {&programs.cglint, &programs.record, &programs.runner})
    if (access(program->c_str(), X_OK) != 0) {
      const std::string name = std::filesystem::path(*program).filename().string();
      return fmt::format("{} is not in {}, beside this program: a build without the CUDA toolkit has none; with the toolkit it is built by 'cmake --build BUILD --target {}'", name, folder.string(), name);
    }
  return "";
}

base::Result<Json> list_models(const Programs& programs) {
  Child child({programs.runner, "list"}, {}, true);
  std::string text, line;
  const Clock::time_point deadline = Clock::now() + std::chrono::seconds(30);
  while (child.read_line(line, deadline) == Child::Read::line) text += line + '\n';
  const Exit exit = child.finish(deadline);
  Json list = Json::parse(text, nullptr, false);
  if (exit.code == 0 && list.is_object() && list.contains("models")) return list;
  return base::make_error(base::ErrorCode::internal, fmt::format("{} does not list its models (exit code {})", programs.runner, exit.code));
}

int verify_recordings(const Programs& programs, const Options& options, const Manifest& manifest) {
  int code = kExitGood;
  Json runs = Json::array();
  for (const std::string& file : options.recordings) {
    const std::string name = std::filesystem::path(file).filename().string();
    static const std::regex kName(R"((?:[^.]+\.)?([^.]+)\.([^.]+)\.b(\d{1,5})(?:\.l(\d{1,4}))?(?:\.beside-([^.]+))?(?:\.[^.]+)*\.cgl\.jsonl(?:\.gz|\.zst)?)");
    std::smatch parts;
    if (!std::regex_match(name, parts, kName)) {
      code = complain(fmt::format("{}: the name is not [MODEL.]VARIANT.PRESET.bBATCH[.lLAYERS][.beside-VARIANT].cgl.jsonl[.gz|.zst]", file));
      continue;
    }
    const int published = manifest.layers_of(parts[2].str());
    HeldRun asked{options.model, parts[1], parts[2], parts[5], parts[4].matched ? std::stoi(parts[4]) : published, std::stoi(parts[3])};
    Json run = {{"recording", file}, {"variant", asked.variant}, {"preset", asked.preset}, {"batch", asked.batch}, {"layers", asked.layers}};
    if (!asked.beside.empty()) run["beside"] = asked.beside;
    const auto held = held_run(file);  // of what is in it the linter says what cannot be read
    if (!held && (held.error().code == base::ErrorCode::not_found || held.error().code == base::ErrorCode::io || held.error().code == base::ErrorCode::usage)) {
      code = complain(held.error().to_string());
      continue;
    }
    if (asked.layers == 0 && held && *held) asked.layers = (*held)->layers;
    if (held && *held && **held != asked) {
      const std::string other = fmt::format("holds {}; asked for was {}", base::printable(text_of(**held), 300), text_of(asked));
      run["verify"] = {{"ok", false}, {"differences", Json::array({other})}};
    } else {
      auto report = lint(programs, options, file);
      if (Child::is_interrupted()) return kExitInterrupted;
      if (!report) {
        complain(report.error().to_string());
        if (report.error().code == base::ErrorCode::usage) return kExitUsage;  // the others end the same way
        code = kExitInternal;
        continue;
      }
      verify_report(*report, manifest, published, run);
      if (held && !*held) run["verify"]["differences"].push_back("does not say which run it holds");
    }
    Json& differences = run["verify"]["differences"];
    run["verify"]["ok"] = differences.empty();
    if (!differences.empty() && code == kExitGood) code = kExitWrong;
    if (options.format == "text") {
      const auto texts = differences.get<std::vector<std::string>>(), found = run.value("findings", std::vector<std::string>());
      if (!print_output(fmt::format("{}: {}\n", file, !texts.empty() ? fmt::to_string(fmt::join(texts, "; ")) : found.empty() ? "as expected: no finding" : fmt::format("as expected: {}", fmt::join(found, " ")))))
        return kExitUsage;
    }
    runs.push_back(std::move(run));
  }
  if (options.format == "json" && !print_output(Json{{"runs", std::move(runs)}}.dump(1, ' ', false, Json::error_handler_t::replace) + "\n")) return kExitUsage;
  return code;
}

int execute(const Programs& programs, const Options& options, const Manifest* manifest, Planned& planned, Json& gpu) {
  return Execution(programs, options, manifest, planned, gpu).run();
}

}  // namespace cglint::capture_tool
