// Each layer captures its side branch on a stream of its own instead of one that is kept.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <vector>

#include "base/text.h"
#include "rules/common/describe.h"
#include "rules/common/occurrences.h"

namespace cglint::rules {
namespace {

using ir::Fact;
using ir::NodeId;
using ir::StreamId;

constexpr std::array<ir::FactSet, 1> kNeeds = {ir::FactSet{Fact::nodes, Fact::edges, Fact::capture_streams}};
constexpr std::array<engine::RuleOption, 1> kOptions = {{
    {engine::RuleOption::Type::integer, "min_branches", "3", "side branches on streams of their own that are reported", 3, 1e6},
}};
constexpr std::array<std::string_view, 2> kExplains = {"CG101", "CG102"};
constexpr engine::RuleInfo kInfo = {
    .code = "CG104",
    .slug = "side-stream-per-layer",
    .family = "streams",
    .summary = "Each layer captures its side branch on a stream of its own instead of one that is kept.",
    .severity = engine::Severity::warning,
    .status = engine::RuleStatus::preview,
    .since = "0.1.0",
    .needs = kNeeds,
    .uses = ir::FactSet{Fact::sync_ops, Fact::source_frames},
    .options = kOptions,
    .explains = kExplains,
};

// A fork/join region with work on streams other than that of the fork.
struct Fork {
  const analysis::ForkJoinRegion* region = nullptr;
  NodeId head;                       // first node of the side work
  std::set<StreamId> streams;
};

class SideStreamPerLayer final : public engine::Rule {
 public:
  [[nodiscard]] const engine::RuleInfo& info() const override { return kInfo; }

  void check(const engine::GraphContext& context, engine::FindingSink& sink) const override {
    const ir::Graph& graph = context.graph;
    if (graph.capture_stream.empty()) return sink.not_checked({Fact::capture_streams}, "the capture streams of the nodes are not known");
    // Regions of one kind: the same kernel begins the side work.
    std::map<std::uint64_t, std::vector<Fork>> kinds;
    const auto& regions = context.analyses.fork_join_regions();
    base::IdVector<NodeId, bool> is_fork(graph.node_count(), false);
    for (const analysis::ForkJoinRegion& region : regions)
      if (region.fork.is_valid() && region.join.is_valid()) is_fork[region.fork] = true;
    for (const analysis::ForkJoinRegion& region : regions) {
      if (!region.fork.is_valid() || !region.join.is_valid() || region.truncated) continue;
      const StreamId main = graph.capture_stream[region.fork];
      Fork fork;
      fork.region = &region;
      bool holds_others = false;
      StreamId last;
      for (const analysis::Branch& branch : region.branches) {
        for (const NodeId node : branch.nodes) {
          holds_others = holds_others || is_fork[node];
          const StreamId stream = graph.capture_stream[node];
          if (!stream.is_valid() || stream == main || !ir::is_activity(graph.kind[node])) continue;
          if (!fork.head.is_valid() || node < fork.head) fork.head = node;
          if (stream != last) fork.streams.insert(stream);
          last = stream;
        }
      }
      if (fork.streams.empty() || holds_others) continue;
      const ir::KernelNode* const kernel = graph.kernel(fork.head);
      const std::uint64_t kind = kernel != nullptr && kernel->function.is_valid() ? kernel->function.index()
                                                                                  : (std::uint64_t{1} << 32) + static_cast<std::uint64_t>(graph.kind[fork.head]);
      kinds[kind].push_back(std::move(fork));
    }
    for (auto& [kind, members] : kinds) {
      std::sort(members.begin(), members.end(), [](const Fork& a, const Fork& b) { return a.head < b.head; });
      judge(context, sink, members);
    }
  }

 private:
  static void judge(const engine::GraphContext& context, engine::FindingSink& sink, const std::vector<Fork>& members) {
    std::set<StreamId> all;
    std::size_t most = 0, changes = 0;
    for (std::size_t i = 0; i < members.size(); ++i) {
      all.insert(members[i].streams.begin(), members[i].streams.end());
      most = std::max(most, members[i].streams.size());
      if (i > 0 && std::none_of(members[i].streams.begin(), members[i].streams.end(), [&](StreamId s) { return members[i - 1].streams.contains(s); })) ++changes;
    }
    const auto least = static_cast<std::size_t>(std::max<std::int64_t>(3, context.config.integer(kInfo, "min_branches")));
    // A rotating pool of streams hands each one out again after many layers; two or three that alternate are meant.
    const bool per_layer = members.size() >= least && all.size() >= least && all.size() > 2 * most && 2 * changes >= members.size() - 1 &&
                           all.size() >= std::min<std::size_t>(members.size() / 2, 8);
    if (!per_layer) return;
    engine::Finding finding;
    finding.severity = kInfo.severity;
    finding.confidence = engine::Confidence::certain;
    finding.rests_on = {Fact::nodes, Fact::edges, Fact::capture_streams};
    std::vector<NodeId> side;
    for (const analysis::Branch& branch : members.front().region->branches)
      for (const NodeId node : branch.nodes)
        if (members.front().streams.contains(context.graph.capture_stream[node])) side.push_back(node);
    std::sort(side.begin(), side.end());
    finding.message = fmt::format("{} side branches ({}) are captured on {} different streams where {}", members.size(), label_list(context, side), all.size(),
                                  most == 1 ? "one that is kept would do" : fmt::format("{} that are kept would do", most));
    finding.evidence = {{"side_branches", static_cast<std::int64_t>(members.size())}, {"side_streams", static_cast<std::int64_t>(all.size())},
                        {"side_streams_at_once", static_cast<std::int64_t>(most)}};
    const Fork& second = members[1];  // the first branch needs a stream in any case
    finding.primary = {entity_of(context, second.head, "side branch")};
    finding.related = {entity_of(context, second.region->fork, "fork"), entity_of(context, second.region->join, "join")};
    set_occurrences(finding, members, [&](const Fork& fork) {
      return engine::Occurrence{layer_of(context, fork.head), {entity_of(context, fork.head, "side branch"), entity_of(context, fork.region->fork, "fork")}};
    });
    for (const ir::EdgeId edge : context.graph.in_edges(second.head)) {
      if (context.graph.edge_sync.empty() || !context.graph.edge_sync[edge].is_valid()) continue;
      finding.sources = sources_of(context, context.graph.sync_ops[context.graph.edge_sync[edge]].stack, "the side stream waits");
      if (!finding.sources.empty()) break;
    }
    for (engine::SourceLocation& place : sources_of(context, second.head, "side work")) finding.sources.push_back(std::move(place));
    finding.fix.text =
        "make the side stream once and use it in every layer (one per device and role, not one per layer and none from a rotating pool such as "
        "torch.cuda.Stream()): at replay each side branch then goes on where the one before it ended";
    finding.fix.side_effects = {"a side branch then waits for the side branch of the layer before"};
    finding.threads = {"vllm-project/vllm#28406", "vllm-project/vllm-ascend#3667"};
    const std::string basis = stable_sequence(context, side);
    sink.report(std::move(finding), basis);
  }
};

}  // namespace

std::unique_ptr<engine::Rule> make_side_stream_per_layer() { return std::make_unique<SideStreamPerLayer>(); }

}  // namespace cglint::rules
