// Branches that may overlap by the graph's edges never ran at the same time in any recorded replay.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "rules/common/describe.h"
#include "rules/common/occurrences.h"

namespace cglint::rules {
namespace {

using ir::Fact;
using ir::NodeId;

constexpr std::array<ir::FactSet, 1> kNeeds = {ir::FactSet{Fact::nodes, Fact::edges, Fact::replay_streams, Fact::replay_times}};
constexpr std::array<engine::RuleOption, 3> kOptions = {{
    {engine::RuleOption::Type::integer, "min_replays", "20", "replays without any overlap that make the finding likely; below it is only possible", 1, 1e9},
    {engine::RuleOption::Type::number, "min_branch_us", "5", "branches shorter than this are not expected to overlap (launch gaps hide it)", 0, 1e9},
    {engine::RuleOption::Type::number, "max_efficiency", "0.02", "share of the possible overlap up to which it counts as lost", 0, 1},
}};
constexpr engine::RuleInfo kInfo = {
    .code = "CG202",
    .slug = "overlap-lost-at-replay",
    .family = "overlap",
    .summary = "Branches that may overlap by the graph's edges never ran at the same time in any recorded replay.",
    .severity = engine::Severity::warning,
    .status = engine::RuleStatus::stable,
    .since = "0.1.0",
    .needs = kNeeds,
    .uses = ir::FactSet{Fact::node_identity, Fact::launch_config, Fact::source_frames},
    .options = kOptions,
};

enum class Cause : std::uint8_t { same_stream, full_device, other };

class OverlapLostAtReplay final : public engine::Rule {
 public:
  [[nodiscard]] const engine::RuleInfo& info() const override { return kInfo; }

  void check(const engine::GraphContext& context, engine::FindingSink& sink) const override {
    const std::vector<analysis::ForkJoinRegion>& regions = context.analyses.fork_join_regions();
    if (regions.empty()) return;
    const analysis::NodeTimes& times = context.analyses.node_times();
    if (!times.available) {
      if (context.graph.replays.empty()) return sink.not_checked({Fact::replay_times}, "no replay of this graph was recorded");
      return sink.not_checked({Fact::node_identity}, "the replay operations could not be matched to nodes");
    }
    const std::vector<analysis::RegionOverlap>& overlaps = context.analyses.region_overlaps();
    const double min_branch_us = context.config.number(kInfo, "min_branch_us");
    const double max_efficiency = context.config.number(kInfo, "max_efficiency");
    const auto min_replays = static_cast<std::uint32_t>(std::max<std::int64_t>(1, context.config.integer(kInfo, "min_replays")));

    std::map<std::pair<std::string, Cause>, std::vector<std::size_t>> patterns;
    std::size_t truncated = 0;
    for (std::size_t i = 0; i < regions.size(); ++i) {
      const analysis::ForkJoinRegion& region = regions[i];
      const analysis::RegionOverlap& overlap = overlaps[i];
      if (region.truncated) {
        ++truncated;
        continue;
      }
      if (!region.disjoint || !overlap.measured || overlap.replays < 2 || region.branches.size() < 2) continue;
      if (to_us(overlap.median_possible_ns) < min_branch_us || overlap.efficiency() > max_efficiency) continue;
      std::string basis;
      for (const analysis::Branch& branch : region.branches) basis += stable_sequence(context, branch.nodes) + "|";
      patterns[{basis, cause_of(context, region)}].push_back(i);
    }
    if (truncated > 0) sink.not_checked({}, fmt::format("{} fork/join regions are too large to list", truncated));
    for (const auto& [key, members] : patterns) {
      const analysis::ForkJoinRegion& first = regions[members.front()];
      std::int64_t lost_ns = 0;
      std::uint32_t replays = ~0U;
      engine::Finding finding;
      for (const std::size_t i : members) {
        lost_ns += overlaps[i].median_possible_ns - overlaps[i].median_overlap_ns;
        replays = std::min(replays, overlaps[i].replays);
        std::vector<engine::Entity> entities;
        for (const analysis::Branch& branch : regions[i].branches) entities.push_back(entity_of(context, branch.head, "branch head"));
        if (lists_more(finding)) finding.occurrences.push_back({layer_of(context, regions[i].branches.front().head), std::move(entities)});
      }
      finding.occurrence_count = static_cast<std::uint32_t>(members.size());
      const Cause cause = key.second;
      finding.severity = cause == Cause::full_device ? engine::Severity::info : kInfo.severity;
      finding.confidence = replays >= min_replays ? engine::Confidence::likely : engine::Confidence::possible;
      finding.rests_on = {Fact::nodes, Fact::edges, Fact::replay_streams, Fact::replay_times};
      const std::string_view why = cause == Cause::same_stream   ? "they replay on one stream"
                                   : cause == Cause::full_device ? "one of them fills the device"
                                                                 : "although they replay on different streams";
      finding.message = fmt::format("{} branches ({} beside {}) never overlap in {} replays: {}", first.branches.size(),
                                    label_list(context, first.branches[0].nodes, 2), label_list(context, first.branches[1].nodes, 2), replays, why);
      finding.evidence = {{"replays", std::int64_t{replays}},
                          {"regions", static_cast<std::int64_t>(members.size())},
                          {"cause", std::string(cause == Cause::same_stream ? "same stream" : cause == Cause::full_device ? "device full" : "different streams")}};
      for (const analysis::Branch& branch : first.branches) {
        if (finding.primary.empty()) finding.primary.push_back(entity_of(context, branch.head, "branch head"));
        else finding.related.push_back(entity_of(context, branch.head, "branch head"));
      }
      if (first.join.is_valid()) finding.related.push_back(entity_of(context, first.join, "join"));
      finding.cost = {engine::Cost::Basis::estimate, to_us(lost_ns), to_us(times.median_span_ns), 0};
      finding.sources = sources_of(context, first.branches[1].head, "side work");
      finding.fix.text =
          cause == Cause::same_stream
              ? "change the recording order so that the driver gives the branches different streams (CG102 names the order)"
          : cause == Cause::full_device
              ? "a smaller grid for the shorter branch, or launching it first, lets both fit on the device; if not, the fork buys nothing"
              : "check that the tracer did not serialise kernels; else fewer streams or a higher CUDA_DEVICE_MAX_CONNECTIONS avoid shared hardware queues";
      finding.threads = {"NVIDIA/Megatron-LM#6643", "meta-pytorch/torchcomms#3358"};
      sink.report(std::move(finding), key.first + std::to_string(static_cast<int>(cause)));
    }
  }

 private:
  static Cause cause_of(const engine::GraphContext& context, const analysis::ForkJoinRegion& region) {
    const ir::Graph& graph = context.graph;
    std::vector<std::set<analysis::StreamKey>> streams(region.branches.size());
    base::IdVector<NodeId, std::int32_t> branch_of(graph.node_count(), -1);
    for (std::size_t b = 0; b < region.branches.size(); ++b)
      for (const NodeId node : region.branches[b].nodes) branch_of[node] = static_cast<std::int32_t>(b);
    for (const ir::ReplayOp& op : graph.replay_ops)
      if (op.node.is_valid() && branch_of[op.node] >= 0) streams[static_cast<std::size_t>(branch_of[op.node])].insert({op.device, op.stream});
    for (std::size_t a = 0; a < streams.size(); ++a)
      for (std::size_t b = a + 1; b < streams.size(); ++b)
        for (const analysis::StreamKey& key : streams[a])
          if (streams[b].contains(key)) return Cause::same_stream;
    std::uint32_t sm_count = 0;
    for (const ir::Process& process : context.recording.processes)
      for (const ir::Gpu& gpu : process.gpus) sm_count = std::max(sm_count, gpu.sm_count);
    if (sm_count > 0) {
      for (const analysis::Branch& branch : region.branches)
        for (const NodeId node : branch.nodes)
          if (const ir::KernelNode* kernel = graph.kernel(node); kernel != nullptr && kernel->grid.count() >= sm_count) return Cause::full_device;
    }
    return Cause::other;
  }
};

}  // namespace

std::unique_ptr<engine::Rule> make_overlap_lost_at_replay() { return std::make_unique<OverlapLostAtReplay>(); }

}  // namespace cglint::rules
