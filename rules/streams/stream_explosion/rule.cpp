// A graph replays on more streams than its branches can use, usually one new stream per layer.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "rules/common/describe.h"
#include "rules/common/occurrences.h"
#include "rules/common/order.h"

namespace cglint::rules {
namespace {

using ir::Fact;

constexpr std::array<ir::FactSet, 1> kNeeds = {ir::FactSet{Fact::nodes, Fact::replay_streams}};
constexpr std::array<engine::RuleOption, 2> kOptions = {{
    {engine::RuleOption::Type::integer, "slack", "2",
     "streams above what the graph can use (its width, or the streams alive at once) that are not reported", 0, 4096},
    {engine::RuleOption::Type::number, "growing_layers", "0.5",
     "without dependency edges: share of the layers that must open a stream of their own (0..1)", 0, 1},
}};
constexpr engine::RuleInfo kInfo = {
    .code = "CG101",
    .slug = "stream-explosion",
    .family = "streams",
    .summary = "A graph replays on more streams than its branches can use, usually one new stream per layer.",
    .severity = engine::Severity::warning,
    .status = engine::RuleStatus::stable,
    .since = "0.1.0",
    .needs = kNeeds,
    .uses = ir::FactSet{Fact::edges, Fact::replay_times, Fact::nvtx},
    .options = kOptions,
};

class StreamExplosion final : public engine::Rule {
 public:
  [[nodiscard]] const engine::RuleInfo& info() const override { return kInfo; }

  void check(const engine::GraphContext& context, engine::FindingSink& sink) const override {
    const analysis::ReplayStreams& streams = context.analyses.replay_streams();
    if (!streams.available) return sink.not_checked({Fact::replay_streams}, "no replay of this graph was recorded");
    const auto slack = static_cast<std::uint32_t>(std::max<std::int64_t>(0, context.config.integer(kInfo, "slack")));
    const bool has_edges = context.graph.facts.contains(Fact::edges);

    // What the graph can use: its width where the edges are known, else the streams alive at one time.
    const std::uint32_t useful = has_edges ? context.analyses.width().count : std::max(streams.max_live, streams.max_concurrent);
    if (streams.max <= useful + slack) {
      if (has_edges && !context.analyses.width().exact && streams.max > 1 + slack) sink.not_checked({}, kWidthUnknown);
      return;
    }

    // Where the streams come from: the first operation on each, in the replay that has most of them.
    const ir::Replay& replay = context.graph.replays[ir::ReplayId(streams.max_replay)];
    std::set<analysis::StreamKey> seen;
    std::vector<ir::NodeId> openers;
    for (const ir::ReplayOp& op : context.graph.ops(replay)) {
      if (!ir::is_activity(op.kind) || !seen.insert({op.device, op.stream}).second) continue;
      if (seen.size() > 1 && op.node.is_valid()) openers.push_back(op.node);  // the first one is where the graph starts
    }
    const analysis::Layers& layers = context.analyses.layers();
    // A layer that forks runs on two streams at least; a "layer" on one stream may be one of many equal branches.
    std::map<std::int32_t, std::set<analysis::StreamKey>> streams_in_layer;
    for (const ir::ReplayOp& op : context.graph.ops(replay)) {
      const std::int32_t layer = op.node.is_valid() ? layer_of(context, op.node) : -1;
      if (layer >= 0) streams_in_layer[layer].insert({op.device, op.stream});
    }
    std::set<std::int32_t> opening_layers;
    for (const ir::NodeId node : openers)
      if (const std::int32_t layer = layer_of(context, node); layer >= 0 && streams_in_layer[layer].size() >= 2) opening_layers.insert(layer);
    const bool grows = layers.count >= 3 && opening_layers.size() >= 3 &&
                       static_cast<double>(opening_layers.size()) >=
                           context.config.number(kInfo, "growing_layers") * static_cast<double>(layers.count);
    // Without edges a wide one-time fork of short kernels looks the same by its count alone: only growth proves it.
    if (!has_edges && !grows) return;

    engine::Finding finding;
    finding.severity = kInfo.severity;
    finding.confidence = has_edges ? engine::Confidence::certain : engine::Confidence::likely;
    finding.rests_on = {Fact::nodes, Fact::replay_streams};
    if (has_edges) finding.rests_on.insert(Fact::edges);
    finding.message = fmt::format(
        "replays on {} streams where {} can be busy at once{}; measured over {}", streams.max, useful,
        grows ? fmt::format(": {} of {} layers open a stream of their own", opening_layers.size(), layers.count) : std::string(),
        streams.per_replay.size() == 1 ? "1 launch" : fmt::format("{} launches", streams.per_replay.size()));
    finding.evidence = {{"streams", std::int64_t{streams.max}},
                        {"streams_kernels_only", std::int64_t{streams.max_kernels_only}},
                        {has_edges ? "width" : "streams_alive_at_once", std::int64_t{useful}},
                        {"busy_at_once", std::int64_t{streams.max_concurrent}},
                        {"streams_per_launch", streams.histogram}};
    if (layers.count > 0) {
      finding.evidence.emplace_back("layers", std::int64_t{layers.count});
      finding.evidence.emplace_back("layers_that_open_a_stream", static_cast<std::int64_t>(opening_layers.size()));
    }
    if (!openers.empty()) finding.primary.push_back(entity_of(context, openers.front(), "opens a stream"));
    set_occurrences(finding, openers, [&](ir::NodeId node) {
      return engine::Occurrence{layer_of(context, node), {entity_of(context, node, "opens a stream")}};
    });
    if (!openers.empty()) finding.sources = sources_of(context, openers.front(), "opens a stream");
    finding.fix.text =
        "record the last kernel of each layer's main branch before the last kernel of its side branch, and keep one side stream "
        "for all layers: the driver lets the join continue on the stream of its oldest parent and never reuses the other one";
    finding.threads = {"sgl-project/sglang#30460", "sgl-project/sglang#39420", "pytorch/pytorch#152114"};
    std::set<std::string> names;
    for (const ir::NodeId node : openers) names.insert(stable_name(context, node));
    std::string basis;
    for (const std::string& name : names) basis += name + ";";
    sink.report(std::move(finding), basis);
  }
};

}  // namespace

std::unique_ptr<engine::Rule> make_stream_explosion() { return std::make_unique<StreamExplosion>(); }

}  // namespace cglint::rules
