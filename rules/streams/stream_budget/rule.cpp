// A graph needs more streams than the budget given with --max-streams.
#include <fmt/format.h>

#include <array>

#include "rules/common/describe.h"

namespace cglint::rules {
namespace {

using ir::Fact;

constexpr std::array<ir::FactSet, 2> kNeeds = {ir::FactSet{Fact::nodes, Fact::replay_streams},
                                               ir::FactSet{Fact::nodes, Fact::edges, Fact::creation_order}};
constexpr engine::RuleInfo kInfo = {
    .code = "CG103",
    .slug = "stream-budget",
    .family = "streams",
    .summary = "A graph needs more streams than the budget given with --max-streams.",
    .severity = engine::Severity::error,
    .status = engine::RuleStatus::stable,
    .since = "0.1.0",
    .needs = kNeeds,
    .uses = {},
    .options = {},
    .opt_in = true,
};

class StreamBudget final : public engine::Rule {
 public:
  [[nodiscard]] const engine::RuleInfo& info() const override { return kInfo; }
  [[nodiscard]] bool active(const engine::Config& config) const override { return config.max_streams.has_value(); }

  void check(const engine::GraphContext& context, engine::FindingSink& sink) const override {
    const std::uint32_t budget = *context.config.max_streams;
    const bool has_replays = context.graph.facts.contains(Fact::replay_streams) && context.analyses.replay_streams().available;
    bool measured = false;
    switch (context.config.streams_from) {
      case engine::StreamsFrom::measured:
        if (!has_replays) return sink.not_checked({Fact::replay_streams}, "--streams-from measured, but no replay with streams was recorded");
        measured = true;
        break;
      case engine::StreamsFrom::predicted: break;
      case engine::StreamsFrom::best: measured = has_replays; break;
    }
    std::uint32_t count = 0;
    engine::Finding finding;
    if (measured) {
      const analysis::ReplayStreams& streams = context.analyses.replay_streams();
      count = streams.max;
      finding.rests_on = {Fact::nodes, Fact::replay_streams};
      finding.evidence = {{"streams", std::int64_t{count}}, {"basis", std::string("measured")}, {"streams_per_launch", streams.histogram}};
    } else {
      if (!context.graph.facts.contains_all({Fact::edges, Fact::creation_order}))
        return sink.not_checked(ir::FactSet{Fact::edges, Fact::creation_order}.minus(context.graph.facts),
                                "a prediction needs the dependency edges and the creation order");
      const analysis::PredictedStreams& predicted = context.analyses.predicted_streams();
      if (!predicted.available) return sink.not_checked({}, predicted.note.empty() ? "streams cannot be predicted for this graph" : predicted.note);
      count = predicted.count;
      finding.rests_on = {Fact::nodes, Fact::edges, Fact::creation_order};
      finding.confidence = engine::Confidence::likely;
      finding.evidence = {{"streams", std::int64_t{count}}, {"basis", std::string("predicted")}, {"model_confidence", predicted.confidence}};
      if (!predicted.note.empty()) finding.evidence.emplace_back("note", predicted.note);
    }
    if (count <= budget) return;
    finding.severity = kInfo.severity;
    finding.evidence.emplace_back("budget", std::int64_t{budget});
    finding.message = fmt::format("{} on {} {}, over the budget of {}", measured ? "replays" : "is predicted to replay", count,
                                  count == 1 ? "stream" : "streams", budget);
    finding.sources = capture_sources(context);
    finding.fix.text = "see CG101 and CG102 for where the streams come from, or raise --max-streams if the branches are meant";
    sink.report(std::move(finding), "budget");
  }
};

}  // namespace

std::unique_ptr<engine::Rule> make_stream_budget() { return std::make_unique<StreamBudget>(); }

}  // namespace cglint::rules
