#include "engine/runner.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "analysis/analyses.h"
#include "base/check.h"
#include "base/text.h"
#include "engine/rule.h"

namespace cglint::engine {
namespace {

constexpr std::size_t kMaxAlsoIn = 5;

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

struct InputChecker::State final : FindingSink {
  State(const Config& config_in, const analysis::KernelTable& kernels_in, std::string file_in)
      : config(config_in), kernels(kernels_in) {
    summary.file = std::move(file_in);
  }

  const Config& config;
  const analysis::KernelTable& kernels;
  InputSummary summary;
  std::vector<Finding> findings;
  std::vector<NotChecked> not_checked_entries;
  std::vector<base::Error> errors;  // the input could not be read
  std::size_t hidden_possible = 0;
  std::vector<bool> checked;
  std::size_t checkable_graphs = 0, graphs_without_node_rows = 0;
  bool joined_elsewhere = false;
  std::set<std::string> rules_checked;
  std::size_t rule_checks = 0;      // rules that really looked at a graph

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

  // What is being checked.
  const ir::Recording* recording = nullptr;
  const ir::Graph* graph = nullptr;  // null: the input as a whole
  ir::GraphId graph_id;
  const Rule* rule = nullptr;
  std::size_t unchecked_count = 0;

  void report(Finding finding, std::string_view fingerprint_basis) override {
    const RuleInfo& info = rule->info();
    finding.code = info.code;
    finding.slug = info.slug;
    finding.file = summary.file;
    if (graph != nullptr) {
      finding.graph = graph_id;
      finding.graph_name = recording->text(graph->info.name);
      finding.graph_instances = graph->info.instances;
    }
    finding.fingerprint = fingerprint_of(info.code, fingerprint_basis);
    if (const auto it = config.severity.find(finding.code); it != config.severity.end()) finding.severity = it->second;
    if (finding.confidence < config.min_confidence) {
      ++hidden_possible;
      return;
    }
    findings.push_back(std::move(finding));
  }

  void not_checked(ir::FactSet missing, std::string_view reason) override { add_not_checked(missing, {std::string(reason)}); }

  void add_not_checked(ir::FactSet missing, std::vector<std::string> reasons) {
    ++unchecked_count;
    const RuleInfo& info = rule->info();
    for (NotChecked& entry : not_checked_entries) {
      if (entry.code == info.code && entry.missing == missing && entry.reasons == reasons) {
        ++entry.graph_count;
        return;
      }
    }
    NotChecked entry;
    entry.code = info.code;
    entry.slug = info.slug;
    entry.file = summary.file;
    if (graph != nullptr) entry.graph_name = recording->text(graph->info.name);
    entry.missing = missing;
    entry.reasons = std::move(reasons);
    entry.requested = config.requested_by_name(info) || info.opt_in;
    not_checked_entries.push_back(std::move(entry));
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

  void use(const ir::Recording& recording_in) {
    if (identities_of != &recording_in) {
      identities = std::make_unique<analysis::KernelIdentities>(recording_in, kernels);
      identities_of = &recording_in;
    }
    recording = &recording_in;
    if (gatherings_begun) return;
    gatherings_begun = true;
    for (const auto& each : all_rules()) {
      const RuleInfo& info = each->info();
      if (info.scope != RuleScope::recording || !config.selected(info) || (info.opt_in && !each->active(config))) continue;
      gatherings.push_back({each.get(), each->begin_recording(), false});
    }
  }

  // Shows the graph to the rules of scope `recording`.
  void gather(const ir::Recording& of, analysis::Analyses& analyses, bool always) {
    for (Gathering& each : gatherings) {
      rule = each.rule;
      const RuleInfo& info = rule->info();
      if (!always) {
        if (!can_check(info)) continue;
        each.saw_graph = true;
      }
      base::set_check_context(info.code.data());
      each.check->see({of, graph_id, *graph, analyses, config, info});
      base::set_check_context("");
    }
  }

  // Whether the current rule can look at the current graph; says so if not.
  bool can_check(const RuleInfo& info) {
    ir::FactSet given;  // by the user, not by the input
    if (config.moe_configs != nullptr) given.insert(ir::Fact::moe_config_table);
    if (const ir::FactSet missing = missing_facts(info, graph->facts.unite(given)); !missing.empty()) {
      add_not_checked(missing, reasons_for(*recording, *graph, missing));
      return false;
    }
    if (capture_failed(graph->info) && !concerns_captures(info)) {
      add_not_checked({}, {"the capture failed, so there is no such graph"});
      return false;
    }
    return true;
  }

  void finish_gathering(const ir::Recording& of) {
    use(of);
    graph = nullptr;
    const std::size_t first = findings.size();
    for (Gathering& each : gatherings) {
      if (!each.saw_graph) continue;
      rule = each.rule;
      const RuleInfo& info = rule->info();
      base::set_check_context(info.code.data());
      const std::size_t unchecked_before = unchecked_count;
      each.check->finish({of, *identities, config, info}, *this);
      if (unchecked_count == unchecked_before || findings.size() > first) {
        ++rule_checks;
        rules_checked.insert(std::string(info.code));
      }
      base::set_check_context("");
    }
    link_causes(first, true);
  }

  void summarise(analysis::Analyses& analyses) {
    GraphSummary line;
    line.name = recording->text(graph->info.name);
    line.graph = graph_id;
    line.instances = graph->info.instances;
    line.nodes = graph->node_count();
    line.edges = graph->edge_count();
    line.has_edges = graph->facts.contains(ir::Fact::edges);
    line.replays = graph->replays.size();
    summary.graph_launches += graph->replays.size();
    if (graph->facts.contains(ir::Fact::replay_streams) && analyses.replay_streams().available) {
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
    line.checkable = (graph->facts.contains(ir::Fact::nodes) && graph->node_count() > 0) ||
                     (graph->facts.contains(ir::Fact::capture_status) && capture_failed(graph->info));
    if (line.checkable) ++checkable_graphs;
    if (!graph->facts.contains(ir::Fact::nodes)) ++graphs_without_node_rows;
    summary.graph_summaries.push_back(std::move(line));
  }
};

InputChecker::InputChecker(const Config& config, const analysis::KernelTable& kernels, std::string file)
    : state_(std::make_unique<State>(config, kernels, std::move(file))) {}
InputChecker::~InputChecker() = default;
InputChecker::InputChecker(InputChecker&&) noexcept = default;

void InputChecker::check_graph(const ir::Recording& recording, ir::GraphId graph_id) {
  State& state = *state_;
  CGLINT_CHECK(recording.graphs.contains(graph_id) && recording.graphs[graph_id] != nullptr);
  const ir::Graph& graph = *recording.graphs[graph_id];
  if (state.checked.size() <= graph_id.index()) state.checked.resize(graph_id.index() + 1, false);
  if (state.checked[graph_id.index()]) return;
  state.checked[graph_id.index()] = true;
  state.use(recording);
  state.graph = &graph;
  state.graph_id = graph_id;
  analysis::Analyses analyses(recording, graph_id, *state.identities);
  // Bodies are reached through the graph that holds them, eager launches through the recording.
  if (graph.info.role == ir::GraphRole::body || graph.info.role == ir::GraphRole::eager) return state.gather(recording, analyses, true);
  const std::size_t first_finding = state.findings.size();
  ++state.summary.graphs;
  state.summarise(analyses);
  state.gather(recording, analyses, false);
  for (const auto& rule : all_rules()) {
    const RuleInfo& info = rule->info();
    if (info.scope != RuleScope::graph || !state.config.selected(info)) continue;
    if (info.opt_in && !rule->active(state.config)) continue;
    state.rule = rule.get();
    if (!state.can_check(info)) continue;
    base::set_check_context(info.code.data());
    const std::size_t unchecked_before = state.unchecked_count;
    rule->check({recording, graph_id, graph, analyses, state.config, info}, state);
    if (state.unchecked_count == unchecked_before) {
      ++state.rule_checks;
      state.rules_checked.insert(std::string(info.code));
    }
    base::set_check_context("");
  }
  state.link_causes(first_finding, false);
}

void InputChecker::finish(const ir::Recording& recording) {
  State& state = *state_;
  for (const ir::GraphId id : recording.graphs.ids())
    if (recording.graphs[id] != nullptr) check_graph(recording, id);
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
                                   : std::string("the trace has no GPU activity");
    else
      summary.nothing_reason = "the input holds no graph with nodes";
  } else if (state.rule_checks == 0 && !state.not_checked_entries.empty()) {
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
  std::set<std::string> checked;
  for (InputChecker& input : inputs) {
    InputChecker::State& state = *input.state_;
    checked.insert(state.rules_checked.begin(), state.rules_checked.end());
    for (base::Error& error : state.errors) report.errors.push_back(std::move(error));
    if (!state.errors.empty()) continue;
    report.hidden_possible += state.hidden_possible;

    // Equal findings over several graphs become one.
    std::vector<Finding> merged;
    std::map<std::pair<std::string, std::string>, std::size_t> by_fingerprint;
    for (Finding& finding : state.findings) {
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
    std::stable_sort(state.not_checked_entries.begin(), state.not_checked_entries.end(),
                     [](const NotChecked& a, const NotChecked& b) { return a.code < b.code; });
    for (NotChecked& entry : state.not_checked_entries) report.not_checked.push_back(std::move(entry));
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
