// The rule interface. A rule is one folder under rules/ (rule.cpp, rule.md, fixtures) and one line in
// rules/rules.def; RuleInfo is the only place where its code, name, severity, needs and options are written.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string_view>

#include "analysis/analyses.h"
#include "engine/config.h"
#include "engine/finding.h"
#include "ir/facts.h"
#include "ir/recording.h"

namespace cglint::engine {

enum class RuleStatus : std::uint8_t { preview, stable, deprecated, removed };
std::string_view rule_status_name(RuleStatus status);

// graph: sees one graph at a time. recording: sees all graphs of one input. set: sees all inputs (ranks, variants).
enum class RuleScope : std::uint8_t { graph, recording, set };

struct RuleOption {
  enum class Type : std::uint8_t { integer, number, boolean, text } type;
  std::string_view name;             // snake_case
  std::string_view default_value;    // as a user would write it
  std::string_view help;
  double min = std::numeric_limits<double>::lowest();   // of numbers and integers, both included
  double max = std::numeric_limits<double>::max();
};

struct RuleInfo {
  std::string_view code;             // permanent, never reused
  std::string_view slug;             // names the bad pattern
  std::string_view family;           // streams, overlap, addresses, ...
  std::string_view summary;          // one sentence, also the first line of rule.md
  Severity severity;                 // default; a finding may be raised or lowered by its measured cost
  RuleStatus status;
  std::string_view since;            // version
  RuleScope scope = RuleScope::graph;
  // Alternatives: the rule can be checked where at least one of these sets is present. Never empty.
  std::span<const ir::FactSet> needs;
  // Facts that raise the confidence or add cost and sources; informative.
  ir::FactSet uses{};
  std::span<const RuleOption> options{};
  // Codes whose findings on the same graph are consequences of this rule's finding.
  std::span<const std::string_view> explains{};
  // The rule is only active when the user gives a limit (for example --max-streams); else it is not listed at all.
  bool opt_in = false;
};

// Receives findings. The engine fills file and fingerprint, and for rules of scope `graph` the graph, its name and instances; a
// RecordingCheck fills these itself (name_graph()).
class FindingSink {
 public:
  virtual ~FindingSink() = default;
  // `fingerprint_basis` must not contain addresses, node numbers or layer counts: usually the pattern's kernel names.
  virtual void report(Finding finding, std::string_view fingerprint_basis) = 0;
  // For what turns out to be uncheckable while running, although the declared facts were there.
  virtual void not_checked(ir::FactSet missing, std::string_view reason) = 0;
  // The same of what the user asked for otherwise than by --select, as by giving tables that are for this rule alone.
  virtual void not_checked_although_asked_for(std::string_view reason) = 0;
};

struct GraphContext {
  const ir::Recording& recording;
  ir::GraphId graph_id;
  const ir::Graph& graph;
  analysis::Analyses& analyses;      // lazy, shared by all rules of this graph
  const Config& config;
  const RuleInfo& rule;              // for option lookups
};

// The finding is about the graph of `context`.
void name_graph(Finding& finding, const GraphContext& context);

struct RecordingContext {
  const ir::Recording& recording;    // its graphs may all be gone by now
  const analysis::KernelIdentities& identities;
  const Config& config;
  const RuleInfo& rule;
};

// What a rule of scope `recording` gathers from the graphs of one input while they pass by. Graphs are dropped after they were
// seen, and the recording is moved between the last graph and finish(): keep ids and values, no references.
class RecordingCheck {
 public:
  virtual ~RecordingCheck() = default;
  // In file order: every graph whose facts satisfy the rule's needs, and every body and eager graph, whatever its facts.
  virtual void see(const GraphContext& context) = 0;
  // The whole input was read: allocations have their last state. Called only if a graph satisfied the needs.
  virtual void finish(const RecordingContext& context, FindingSink& sink) = 0;
};

class Rule {
 public:
  virtual ~Rule() = default;
  [[nodiscard]] virtual const RuleInfo& info() const = 0;
  // For opt-in rules: whether the user gave the limit that the rule checks.
  [[nodiscard]] virtual bool active(const Config&) const { return true; }
  // Scope `graph`: called once per graph whose facts satisfy `needs`. Keeps no state, does no I/O, reads no global.
  virtual void check(const GraphContext& context, FindingSink& sink) const;
  // Scope `recording`: a fresh check for one input.
  [[nodiscard]] virtual std::unique_ptr<RecordingCheck> begin_recording() const;
};

// All rules in code order. Built from rules/rules.def.
std::span<const std::unique_ptr<Rule>> all_rules();
const Rule* find_rule(std::string_view code_or_slug);
// The rule's page (rule.md), embedded at build time.
std::string_view rule_page(std::string_view code);

}  // namespace cglint::engine
