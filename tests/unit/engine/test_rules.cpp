#include "test_rules.h"

#include <array>

#include "engine/rule.h"

namespace cglint::engine {
namespace {

using ir::Fact;

constexpr std::array<ir::FactSet, 1> kNodes = {ir::FactSet{Fact::nodes}};
constexpr std::array<ir::FactSet, 1> kEdges = {ir::FactSet{Fact::nodes, Fact::edges}};
constexpr std::array<ir::FactSet, 2> kEither = {ir::FactSet{Fact::edges, Fact::edge_data}, ir::FactSet{Fact::replay_streams}};
constexpr std::array<std::string_view, 1> kExplains = {"CG001"};
constexpr std::array<std::string_view, 1> kExplainsEdges = {"CG002"};
constexpr std::array<RuleOption, 2> kOptions = {{{RuleOption::Type::integer, "limit", "3", "a number"},
                                                 {RuleOption::Type::boolean, "strict", "false", "a switch"}}};

constexpr RuleInfo info(std::string_view code, std::string_view slug, std::span<const ir::FactSet> needs) {
  RuleInfo value{.code = code, .slug = slug, .family = "test", .summary = "A test rule.", .severity = Severity::warning,
                 .status = RuleStatus::stable, .since = "0.1.0", .needs = needs};
  return value;
}

class TestRule final : public Rule {
 public:
  TestRule(RuleInfo rule_info, void (*body)(const GraphContext&, FindingSink&)) : info_(rule_info), body_(body) {}
  [[nodiscard]] const RuleInfo& info() const override { return info_; }
  [[nodiscard]] bool active(const Config& config) const override { return config.max_streams.has_value(); }
  void check(const GraphContext& context, FindingSink& sink) const override { body_(context, sink); }

 private:
  RuleInfo info_;
  void (*body_)(const GraphContext&, FindingSink&);
};

class Gather final : public RecordingCheck {
 public:
  void see(const GraphContext& context) override {
    nodes_ += context.graph.node_count();
    if (context.graph.facts.contains(Fact::edges)) name_graph(finding_, context);
  }
  void finish(const RecordingContext&, FindingSink& sink) override {
    finding_.message = std::to_string(nodes_) + " nodes";
    sink.report(finding_, "gathered");
  }

 private:
  Finding finding_;
  std::size_t nodes_ = 0;
};

class GatheringRule final : public Rule {
 public:
  explicit GatheringRule(RuleInfo rule_info) : info_(rule_info) {}
  [[nodiscard]] const RuleInfo& info() const override { return info_; }
  [[nodiscard]] std::unique_ptr<RecordingCheck> begin_recording() const override { return std::make_unique<Gather>(); }

 private:
  RuleInfo info_;
};

void simple(const GraphContext& context, FindingSink& sink) {
  Finding finding;
  finding.severity = Severity::warning;
  finding.message = "fires";
  finding.cost.us = static_cast<double>(context.graph.node_count());
  sink.report(finding, "basis");
}

}  // namespace

std::span<const std::unique_ptr<Rule>> all_rules() {
  static const auto rules = [] {
    std::vector<std::unique_ptr<Rule>> list;
    const auto add = [&](RuleInfo rule_info, void (*body)(const GraphContext&, FindingSink&)) {
      list.push_back(std::make_unique<TestRule>(rule_info, body));
    };
    RuleInfo always = info("CG001", "always", kNodes);
    always.options = kOptions;
    add(always, simple);
    add(info("CG002", "needs-edges", kEdges), simple);
    add(info("CG003", "either", kEither), simple);
    add(info("CG004", "hesitant", kNodes), [](const GraphContext&, FindingSink& sink) {
      Finding finding;
      finding.confidence = Confidence::possible;
      sink.report(finding, "possible");
    });
    RuleInfo limited = info("CG005", "limited", kEdges);
    limited.opt_in = true;
    add(limited, [](const GraphContext&, FindingSink& sink) {
      Finding finding;
      finding.severity = Severity::error;
      sink.report(finding, "limit");
    });
    RuleInfo cause = info("CG006", "cause", kNodes);
    cause.explains = kExplains;
    add(cause, simple);
    add(info("CG007", "late-doubt", kNodes), [](const GraphContext&, FindingSink& sink) { sink.not_checked({Fact::nvtx}, "no ranges after all"); });
    RuleInfo retired = info("CG008", "retired", kNodes);
    retired.status = RuleStatus::removed;
    add(retired, simple);
    add(info("CG009", "twice", kNodes), [](const GraphContext&, FindingSink& sink) {
      for (int layer = 0; layer < 2; ++layer) {
        Finding finding;
        finding.occurrences.push_back({layer, {}});
        sink.report(finding, "pattern");
      }
    });
    RuleInfo gathers = info("CG010", "gathers", kEdges);
    gathers.scope = RuleScope::recording;
    gathers.explains = kExplainsEdges;
    list.push_back(std::make_unique<GatheringRule>(gathers));
    return list;
  }();
  return rules;
}

const Rule* find_rule(std::string_view code_or_slug) {
  for (const auto& rule : all_rules())
    if (rule->info().code == code_or_slug || rule->info().slug == code_or_slug) return rule.get();
  return nullptr;
}

std::string_view rule_page(std::string_view) { return {}; }

}  // namespace cglint::engine
