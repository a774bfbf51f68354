#include "engine/runner.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <set>
#include <tuple>
#include <utility>

#include "analysis/analyses.h"
#include "base/check.h"
#include "base/crew.h"
#include "base/text.h"
#include "engine/rule.h"

namespace cglint::engine {
namespace {

constexpr std::size_t kMaxAlsoIn = 5;
// Of graphs that are checked together: enough for several threads, little beside what the checks themselves take. Not to be chosen by
// the number of threads, see InputChecker.
constexpr std::size_t kRoundBytes = std::size_t{32} << 20;
constexpr std::size_t kCrewBytes = std::size_t{1} << 20;  // less is not worth threads

std::string fingerprint_of(std::string_view code, std::string_view basis) {
  std::string key(code);
  key += '\0';
  key += basis;
  return fmt::format("{:016x}", static_cast<std::uint64_t>(XXH3_64bits(key.data(), key.size())));
}

// The alternative of `needs` with the fewest missing facts.
ir::FactSet missing_facts(const RuleInfo& rule, ir::FactSet present) {
  ir::FactSet best;
  int best_count = -1;
  for (const ir::FactSet& alternative : rule.needs) {
    const ir::FactSet missing = alternative.minus(present);
    int count = 0;
    for (int i = 0; i < ir::kFactCount; ++i) count += missing.contains(static_cast<ir::Fact>(i)) ? 1 : 0;
    if (best_count < 0 || count < best_count) {
      best = missing;
      best_count = count;
    }
  }
  return best;
}

std::vector<std::string> reasons_for(const ir::Recording& recording, const ir::Graph& graph, ir::FactSet missing) {
  std::vector<std::string> reasons;
  for (int i = 0; i < ir::kFactCount; ++i) {
    const auto fact = static_cast<ir::Fact>(i);
    if (!missing.contains(fact)) continue;
    const auto spoiled = std::find_if(graph.spoiled.begin(), graph.spoiled.end(),
                                      [&](const ir::SpoiledFact& entry) { return entry.fact == fact; });
    const std::string_view phrase = spoiled != graph.spoiled.end() ? recording.text(spoiled->reason) : ir::fact_missing_phrase(fact);
    const auto says_it = [&](const std::string& reason) { return reason.find(phrase) != std::string::npos; };
    if (std::none_of(reasons.begin(), reasons.end(), says_it)) reasons.emplace_back(phrase);
  }
  return reasons;
}

// Higher is worse: the finding that stands for its equals in other graphs.
auto weight(const Finding& finding) {
  return std::tuple(static_cast<int>(finding.severity), static_cast<int>(finding.confidence), finding.cost.us,
                    finding.occurrence_count);
}

bool capture_failed(const ir::GraphInfo& info) {
  return info.capture_status == ir::CaptureStatus::failed || info.capture_status == ir::CaptureStatus::invalidated;
}

bool concerns_captures(const RuleInfo& rule) {
  return std::any_of(rule.needs.begin(), rule.needs.end(), [](ir::FactSet facts) { return facts.contains(ir::Fact::capture_status); });
}

}  // namespace

void name_graph(Finding& finding, const GraphContext& context) {
  finding.graph = context.graph_id;
  finding.graph_name = context.recording.text(context.graph.info.name);
  finding.graph_instances = context.graph.info.instances;
}

void Rule::check(const GraphContext&, FindingSink&) const { CGLINT_CHECK(info().scope != RuleScope::graph); }
std::unique_ptr<RecordingCheck> Rule::begin_recording() const {
  CGLINT_CHECK(info().scope != RuleScope::recording);
  return nullptr;
}

namespace {

// What checking has come to: for one graph, then for the input.
struct Results {
  std::vector<Finding> findings;
  std::vector<NotChecked> not_checked;
  std::size_t hidden_possible = 0;
  std::size_t rule_checks = 0;      // rules that really looked at a graph
  std::set<std::string_view> rules_checked;

  void add_not_checked(NotChecked entry) {
    for (NotChecked& known : not_checked) {
      if (known.code != entry.code || known.missing != entry.missing || known.reasons != entry.reasons) continue;
      known.graph_count += entry.graph_count;
      return;
    }
    not_checked.push_back(std::move(entry));
  }

  void append(Results&& more) {
    std::move(more.findings.begin(), more.findings.end(), std::back_inserter(findings));
    for (NotChecked& entry : more.not_checked) add_not_checked(std::move(entry));
    hidden_possible += more.hidden_possible;
    rule_checks += more.rule_checks;
    rules_checked.merge(more.rules_checked);
  }

  // Between the findings from `first` on; with `and_earlier`, also between these and the ones before.
  void link_causes(std::size_t first, bool and_earlier) {
    for (std::size_t i = and_earlier ? 0 : first; i < findings.size(); ++i) {
      const auto& explains = find_rule(findings[i].code)->info().explains;
      if (explains.empty()) continue;
      for (std::size_t j = and_earlier && i >= first ? 0 : first; j < findings.size(); ++j) {
        if (findings[i].graph != findings[j].graph) continue;
        if (std::find(explains.begin(), explains.end(), findings[j].code) != explains.end())
          findings[j].causes.push_back(findings[i].fingerprint);
      }
    }
  }
};

// Takes what one rule says of one graph, or of the input, and adds what the engine knows.
class Sink final : public FindingSink {
 public:
  // `graph` is null for the input as a whole.
  Sink(const Config& config, const std::string& file, const ir::Recording& recording, const ir::Graph* graph, ir::GraphId graph_id,
       const RuleInfo& info, Results& results)
      : config_(config), file_(file), recording_(recording), graph_(graph), graph_id_(graph_id), info_(info), results_(results) {}

  void report(Finding finding, std::string_view fingerprint_basis) override {
    finding.code = info_.code;
    finding.slug = info_.slug;
    finding.file = file_;
    if (graph_ != nullptr) {
      finding.graph = graph_id_;
      finding.graph_name = recording_.text(graph_->info.name);
      finding.graph_instances = graph_->info.instances;
    }
    finding.fingerprint = fingerprint_of(info_.code, fingerprint_basis);
    if (const auto it = config_.severity.find(finding.code); it != config_.severity.end()) finding.severity = it->second;
    if (finding.confidence < config_.min_confidence) {
      ++results_.hidden_possible;
      return;
    }
    results_.findings.push_back(std::move(finding));
  }

  void not_checked(ir::FactSet missing, std::string_view reason) override { add_not_checked(missing, {std::string(reason)}); }
  void not_checked_although_asked_for(std::string_view reason) override { add_not_checked({}, {std::string(reason)}, true); }

  void add_not_checked(ir::FactSet missing, std::vector<std::string> reasons, bool asked_for = false) {
    any_not_checked_ = true;
    NotChecked entry;
    entry.code = info_.code;
    entry.slug = info_.slug;
    entry.file = file_;
    if (graph_ != nullptr) entry.graph_name = recording_.text(graph_->info.name);
    entry.missing = missing;
    entry.reasons = std::move(reasons);
    entry.requested = asked_for || config_.requested_by_name(info_) || info_.opt_in;
    results_.add_not_checked(std::move(entry));
  }

  [[nodiscard]] bool any_not_checked() const { return any_not_checked_; }

 private:
  const Config& config_;
  const std::string& file_;
  const ir::Recording& recording_;
  const ir::Graph* graph_;
  ir::GraphId graph_id_;
  const RuleInfo& info_;
  Results& results_;
  bool any_not_checked_ = false;
};

// Whether the rule can look at the graph of `sink`; says so if not.
bool can_check(const Config& config, const RuleInfo& info, const ir::Recording& recording, const ir::Graph& graph, Sink& sink) {
  ir::FactSet given;  // by the user, not by the input
  if (config.moe_configs != nullptr) given.insert(ir::Fact::moe_config_table);
  if (const ir::FactSet missing = missing_facts(info, graph.facts.unite(given)); !missing.empty()) {
    sink.add_not_checked(missing, reasons_for(recording, graph, missing));
    return false;
  }
  if (capture_failed(graph.info) && !concerns_captures(info)) {
    sink.add_not_checked({}, {"the capture failed, so there is no such graph"});
    return false;
  }
  return true;
}

GraphSummary summary_of(const ir::Recording& recording, ir::GraphId graph_id, const ir::Graph& graph, analysis::Analyses& analyses) {
  GraphSummary line;
  line.name = recording.text(graph.info.name);
  line.graph = graph_id;
  line.instances = graph.info.instances;
  line.nodes = graph.node_count();
  line.edges = graph.edge_count();
  line.has_edges = graph.facts.contains(ir::Fact::edges);
  line.replays = graph.replays.size();
  if (graph.facts.contains(ir::Fact::replay_streams) && analyses.replay_streams().available) {
    const analysis::ReplayStreams& streams = analyses.replay_streams();
    line.streams_measured = streams.max;
    line.streams_kernels_only = streams.max_kernels_only;
    line.stream_histogram = streams.histogram;
  }
  if (line.has_edges) {
    const analysis::PredictedStreams& predicted = analyses.predicted_streams();
    if (predicted.available) line.streams_predicted = predicted.count;
    line.prediction_note = predicted.note;
  }
  if (const analysis::Layers& layers = analyses.layers(); layers.count > 0) line.layers = layers.count;
  line.checkable = (graph.facts.contains(ir::Fact::nodes) && graph.node_count() > 0) ||
                   (graph.facts.contains(ir::Fact::capture_status) && capture_failed(graph.info));
  return line;
}

// Bodies are reached through the graph that holds them, eager launches through the recording.
bool is_held_for_others(const ir::Graph& graph) {
  return graph.info.role == ir::GraphRole::body || graph.info.role == ir::GraphRole::eager;
}

// About what the graph takes in memory.
std::size_t bytes_of(const ir::Graph& graph) {
  constexpr std::size_t kGraphBytes = 2048, kNodeBytes = 80, kEdgeBytes = 24, kReplayOpBytes = 14;
  return kGraphBytes + graph.node_count() * kNodeBytes + graph.edge_count() * kEdgeBytes + graph.kernels.size() * sizeof(ir::KernelNode) +
         graph.memcpys.size() * sizeof(ir::MemcpyNode) + graph.memsets.size() * sizeof(ir::MemsetNode) +
         graph.params.size() * sizeof(ir::ParamWord) + graph.sync_ops.size() * sizeof(ir::SyncOp) + graph.replays.size() * sizeof(ir::Replay) + graph.replay_ops.size() * kReplayOpBytes +
         graph.measured_accesses.size() * sizeof(ir::MeasuredAccess) + graph.instance_infos.size() * sizeof(ir::GraphInfo);
}

// One graph of a round.
struct GraphWork {
  ir::GraphId id;
  const ir::Graph* graph = nullptr;
  std::unique_ptr<analysis::Analyses> analyses;  // until the rules of scope `recording` have seen the graph
  std::optional<GraphSummary> summary;           // none for bodies and eager launches
  Results results;
  bool is_done = false;                          // by the rules of scope `graph`
};

}  // namespace

struct InputChecker::State {
  State(const Config& config_in, const analysis::KernelTable& kernels_in, std::string file_in, unsigned threads_in)
      : config(config_in), kernels(kernels_in), threads(threads_in) {
    summary.file = std::move(file_in);
  }

  const Config& config;
  const analysis::KernelTable& kernels;
  const unsigned threads;
  InputSummary summary;
  Results results;
  std::vector<base::Error> errors;  // the input could not be read
  std::size_t checkable_graphs = 0, graphs_without_node_rows = 0;
  bool joined_elsewhere = false;

  std::vector<bool> taken;              // by graph: checked, or waits in `round`
  std::vector<ir::GraphId> round;
  std::size_t round_bytes = 0;
  std::unique_ptr<base::Crew> crew;     // made for the first round that is worth it

  // Rules of scope `recording`, in code order.
  struct Gathering {
    const Rule* rule = nullptr;
    std::unique_ptr<RecordingCheck> check;
    bool saw_graph = false;          // one that satisfied the needs
  };
  std::vector<Gathering> gatherings;
  bool gatherings_begun = false;

  const ir::Recording* identities_of = nullptr;
  std::unique_ptr<analysis::KernelIdentities> identities;

  void use(const ir::Recording& recording) {
    if (identities_of != &recording) {
      identities = std::make_unique<analysis::KernelIdentities>(recording, kernels);
      identities_of = &recording;
    }
    if (gatherings_begun) return;
    gatherings_begun = true;
    for (const auto& each : all_rules()) {
      const RuleInfo& info = each->info();
      if (info.scope != RuleScope::recording || !config.selected(info) || (info.opt_in && !each->active(config))) continue;
      gatherings.push_back({each.get(), each->begin_recording(), false});
    }
  }

  // Whether the graph was not taken before.
  bool take(ir::GraphId graph) {
    if (taken.size() <= graph.index()) taken.resize(std::size_t{graph.index()} + 1, false);
    if (taken[graph.index()]) return false;
    taken[graph.index()] = true;
    return true;
  }

  // Whether the round is full with it.
  bool add_to_round(const ir::Recording& recording, ir::GraphId graph) {
    CGLINT_CHECK(recording.graphs.contains(graph) && recording.graphs[graph] != nullptr);
    round.push_back(graph);
    round_bytes += bytes_of(*recording.graphs[graph]);
    return round_bytes >= kRoundBytes;
  }

  // Checks the graphs of the round, several at a time. As soon as a graph and all before it are through, the thread that sees that shows
  // them to the rules of scope `recording` and adds up.
  void check_round(const ir::Recording& recording) {
    use(recording);
    std::vector<GraphWork> works(round.size());
    for (std::size_t i = 0; i < works.size(); ++i) {
      works[i].id = round[i];
      works[i].graph = recording.graphs[round[i]].get();
    }
    std::mutex mutex;
    std::size_t next = 0;        // to be added up
    bool is_adding_up = false;   // some thread is at it
    const auto check_one = [&](std::size_t i) {
      check_graph(recording, works[i]);
      std::unique_lock lock(mutex);
      works[i].is_done = true;
      if (is_adding_up) return;
      is_adding_up = true;
      while (next < works.size() && works[next].is_done) {
        GraphWork& work = works[next];
        lock.unlock();
        conclude(recording, work);
        lock.lock();
        ++next;
      }
      is_adding_up = false;
    };
    if (threads > 1 && works.size() > 1 && round_bytes >= kCrewBytes) {
      if (crew == nullptr) crew = std::make_unique<base::Crew>(threads);
      crew->run(works.size(), check_one);
    } else {
      for (std::size_t i = 0; i < works.size(); ++i) check_one(i);
    }
    CGLINT_CHECK(next == works.size());
    round.clear();
    round_bytes = 0;
  }

  // Rules of scope `graph`. Called by several threads, for different graphs.
  void check_graph(const ir::Recording& recording, GraphWork& work) const {
    work.analyses = std::make_unique<analysis::Analyses>(recording, work.id, *identities);
    const ir::Graph& graph = *work.graph;
    if (is_held_for_others(graph)) return;
    work.summary = summary_of(recording, work.id, graph, *work.analyses);
    for (const auto& rule : all_rules()) {
      const RuleInfo& info = rule->info();
      if (info.scope != RuleScope::graph || !config.selected(info)) continue;
      if (info.opt_in && !rule->active(config)) continue;
      Sink sink(config, summary.file, recording, &graph, work.id, info, work.results);
      if (!can_check(config, info, recording, graph, sink)) continue;
      base::set_check_context(info.code.data());
      rule->check({recording, work.id, graph, *work.analyses, config, info}, sink);
      if (!sink.any_not_checked()) {
        ++work.results.rule_checks;
        work.results.rules_checked.insert(info.code);
      }
      base::set_check_context("");
    }
    work.results.link_causes(0, false);
  }

  // Called by one thread at a time, in file order.
  void conclude(const ir::Recording& recording, GraphWork& work) {
    const ir::Graph& graph = *work.graph;
    if (work.summary) {
      ++summary.graphs;
      summary.graph_launches += graph.replays.size();
      if (work.summary->checkable) ++checkable_graphs;
      if (!graph.facts.contains(ir::Fact::nodes)) ++graphs_without_node_rows;
      summary.graph_summaries.push_back(*std::move(work.summary));
    }
    for (Gathering& each : gatherings) {
      const RuleInfo& info = each.rule->info();
      if (!is_held_for_others(graph)) {
        Sink sink(config, summary.file, recording, &graph, work.id, info, work.results);
        if (!can_check(config, info, recording, graph, sink)) continue;
        each.saw_graph = true;
      }
      base::set_check_context(info.code.data());
      each.check->see({recording, work.id, graph, *work.analyses, config, info});
      base::set_check_context("");
    }
    results.append(std::move(work.results));
    work = GraphWork();
  }

  void finish_gathering(const ir::Recording& recording) {
    use(recording);
    const std::size_t first = results.findings.size();
    for (Gathering& each : gatherings) {
      if (!each.saw_graph) continue;
      const RuleInfo& info = each.rule->info();
      Sink sink(config, summary.file, recording, nullptr, ir::GraphId(), info, results);
      base::set_check_context(info.code.data());
      each.check->finish({recording, *identities, config, info}, sink);
      if (!sink.any_not_checked() || results.findings.size() > first) {
        ++results.rule_checks;
        results.rules_checked.insert(info.code);
      }
      base::set_check_context("");
    }
    results.link_causes(first, true);
  }
};

InputChecker::InputChecker(const Config& config, const analysis::KernelTable& kernels, std::string file, unsigned threads)
    : state_(std::make_unique<State>(config, kernels, std::move(file), threads)) {}
InputChecker::~InputChecker() = default;
InputChecker::InputChecker(InputChecker&&) noexcept = default;

void InputChecker::add_graph(ir::Recording& recording, ir::GraphId graph) {
  State& state = *state_;
  if (!state.take(graph) || !state.add_to_round(recording, graph)) return;
  const std::vector<ir::GraphId> checked = state.round;
  state.check_round(recording);
  for (const ir::GraphId id : checked)
    if (!is_held_for_others(*recording.graphs[id])) recording.graphs[id].reset();
}

void InputChecker::finish(const ir::Recording& recording) {
  State& state = *state_;
  for (const ir::GraphId id : recording.graphs.ids())
    if (recording.graphs[id] != nullptr && state.take(id) && state.add_to_round(recording, id)) state.check_round(recording);
  state.check_round(recording);
  state.crew.reset();
  state.finish_gathering(recording);
  InputSummary& summary = state.summary;
  summary.format = recording.format;
  for (const ir::LooseOp& op : recording.loose_ops)
    if (op.kind == ir::NodeKind::kernel) ++summary.loose_kernels;
  for (const ir::Loss& loss : recording.losses) {
    InputSummary::LossLine line;
    line.severity = loss.severity == ir::Loss::Severity::info ? "info"
                    : loss.severity == ir::Loss::Severity::data_loss ? "data_loss" : "error";
    line.what = recording.text(loss.what);
    line.count = loss.count;
    line.offset_bytes = loss.offset_bytes;
    line.facts = loss.facts;
    summary.has_error_loss |= loss.severity == ir::Loss::Severity::error;
    summary.has_data_loss |= loss.severity == ir::Loss::Severity::data_loss;
    summary.losses.push_back(std::move(line));
  }
  if (state.joined_elsewhere && state.summary.graphs == 0) return;
  if (state.checkable_graphs == 0) {
    summary.nothing_to_check = true;
    if (state.graphs_without_node_rows > 0)
      summary.nothing_reason = ir::fact_missing_phrase(ir::Fact::nodes);
    else if (summary.graphs > 0)
      summary.nothing_reason = summary.graphs == 1 ? "the graph has no nodes" : "the graphs have no nodes";
    else if (recording.has_timeline)
      summary.nothing_reason = summary.loose_kernels > 0
                                   ? fmt::format("{}, but no graph launch", base::count_of(summary.loose_kernels, "GPU kernel"))
                                   : std::string(summary.has_data_loss || summary.has_error_loss ? "what is left of the input has no whole graph and no GPU activity"
                                                                                                : "the trace has no GPU activity");
    else
      summary.nothing_reason = "the input holds no graph with nodes";
  } else if (state.results.rule_checks == 0 && !state.results.not_checked.empty()) {
    summary.nothing_to_check = true;
    summary.nothing_reason = "no rule could be checked";
  }
}

void InputChecker::fail(base::Error error) { state_->errors.push_back(std::move(error)); }
void InputChecker::add_join(InputSummary::JoinLine line) { state_->summary.joins.push_back(std::move(line)); }
void InputChecker::set_join_problem(std::string problem) { state_->summary.join_problem = std::move(problem); }
void InputChecker::joined_elsewhere() { state_->joined_elsewhere = true; }

Report merge_inputs(const Config& config, std::vector<InputChecker> inputs) {
  Report report;
  for (const auto& rule : all_rules()) {
    const RuleInfo& info = rule->info();
    if (config.selected(info) && (!info.opt_in || rule->active(config))) report.rules_run.emplace_back(info.code);
  }
  std::set<std::string_view> checked;
  for (InputChecker& input : inputs) {
    InputChecker::State& state = *input.state_;
    checked.insert(state.results.rules_checked.begin(), state.results.rules_checked.end());
    for (base::Error& error : state.errors) report.errors.push_back(std::move(error));
    if (!state.errors.empty()) continue;
    report.hidden_possible += state.results.hidden_possible;

    // Equal findings over several graphs become one.
    std::vector<Finding> merged;
    std::map<std::pair<std::string, std::string>, std::size_t> by_fingerprint;
    for (Finding& finding : state.results.findings) {
      const auto [it, inserted] = by_fingerprint.try_emplace({finding.code, finding.fingerprint}, merged.size());
      if (inserted) {
        merged.push_back(std::move(finding));
        continue;
      }
      Finding& known = merged[it->second];
      const bool worse = weight(finding) > weight(known);
      if (worse) std::swap(known, finding);
      if (finding.graph == known.graph) {
        known.occurrences.insert(known.occurrences.end(), finding.occurrences.begin(), finding.occurrences.end());
        known.occurrence_count += finding.occurrence_count;
        continue;
      }
      known.graph_instances += finding.graph_instances;
      known.also_in.insert(known.also_in.end(), finding.also_in.begin(), finding.also_in.end());
      known.also_in.push_back(finding.graph_name);
      if (known.also_in.size() > kMaxAlsoIn) known.also_in.resize(kMaxAlsoIn);
    }
    std::stable_sort(merged.begin(), merged.end(), [](const Finding& a, const Finding& b) {
      const auto key = [](const Finding& f) {
        return std::tuple(f.graph, std::string_view(f.code), f.primary.empty() ? 0U : f.primary.front().id);
      };
      return key(a) < key(b);
    });
    for (Finding& finding : merged) report.findings.push_back(std::move(finding));
    std::stable_sort(state.results.not_checked.begin(), state.results.not_checked.end(),
                     [](const NotChecked& a, const NotChecked& b) { return a.code < b.code; });
    for (NotChecked& entry : state.results.not_checked) report.not_checked.push_back(std::move(entry));
    report.inputs.push_back(std::move(state.summary));
  }
  report.rules_checked.assign(checked.begin(), checked.end());
  return report;
}

int Report::exit_code(const Config& config) const {
  if (std::any_of(errors.begin(), errors.end(), [](const base::Error& e) { return e.code == base::ErrorCode::internal; }))
    return 3;
  if (!errors.empty()) return 2;
  if (std::any_of(inputs.begin(), inputs.end(), [](const InputSummary& input) { return input.has_error_loss; })) return 2;
  if (config.fail_on && std::any_of(findings.begin(), findings.end(), [&](const Finding& finding) {
        return !finding.suppressed && finding.severity >= *config.fail_on;
      }))
    return 1;
  if (inputs.empty() || std::any_of(inputs.begin(), inputs.end(), [](const InputSummary& input) { return input.nothing_to_check; }))
    return 4;
  if (std::any_of(inputs.begin(), inputs.end(), [](const InputSummary& input) { return input.has_data_loss; })) return 4;
  if (std::any_of(not_checked.begin(), not_checked.end(), [&](const NotChecked& entry) { return entry.requested || config.fail_on_unchecked; }))
    return 4;
  return 0;
}

}  // namespace cglint::engine
