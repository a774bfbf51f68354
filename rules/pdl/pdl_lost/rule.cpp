// A kernel was launched programmatically, but the edge from its predecessor is a full one.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>

#include "rules/common/describe.h"
#include "rules/common/memory.h"

namespace cglint::rules {
namespace {

using engine::Confidence;
using ir::EdgeId;
using ir::Fact;
using ir::NodeId;
using ir::NodeKind;

// Without attributes the programmatic edges of the same kernel elsewhere tell what was meant.
constexpr std::array<ir::FactSet, 1> kNeeds = {ir::FactSet{Fact::nodes, Fact::edges, Fact::edge_data, Fact::kernel_names}};
constexpr engine::RuleInfo kInfo = {
    .code = "CG501",
    .slug = "pdl-lost",
    .family = "pdl",
    .summary = "A kernel was launched programmatically, but the edge from its predecessor is a full one.",
    .severity = engine::Severity::warning,
    .status = engine::RuleStatus::preview,
    .since = "0.1.0",
    .needs = kNeeds,
    .uses = ir::FactSet{Fact::kernel_attributes, Fact::kernel_images, Fact::kernel_params, Fact::capture_streams, Fact::replay_times, Fact::source_frames},
};

enum class Cause : std::uint8_t { join, node_between, attribute };

// Stream capture makes every edge into a kernel with the attribute programmatic, at joins too (CUDA 13.0), but not where one of the
// edges comes from another kind of node. The captured node does not keep the attribute there: that it was meant shows in the same
// kernel's edges elsewhere. A join costs the edge where the kernel that joins was launched without the attribute, or where a
// driver does otherwise.

struct Lost {
  NodeId node;
  NodeId predecessor;  // the kernel, or the node in the way
  NodeId joined;       // join: the tail of the other branch
  Cause cause = Cause::join;
  bool attribute = false;     // the launch asked for it
  bool elsewhere = false;     // the same kernel has a programmatic edge at another place of this graph
  bool in_chain = false;      // join: programmatic edges lead to its own predecessor and away from it
  ir::Tri waits = ir::Tri::unknown;  // its code waits on the grid dependency
  ir::Tri uses_joined = ir::Tri::unknown;  // join: does the kernel touch what the other branch writes?
};

class PdlLost final : public engine::Rule {
 public:
  [[nodiscard]] const engine::RuleInfo& info() const override { return kInfo; }

  void check(const engine::GraphContext& context, engine::FindingSink& sink) const override {
    const ir::Graph& graph = context.graph;
    // Kernels that have a programmatic edge somewhere, and the pairs that have one between them.
    std::set<ir::FunctionId> programmatic;
    std::set<std::pair<ir::FunctionId, ir::FunctionId>> pairs;
    for (const EdgeId edge : graph.edges()) {
      if (!graph.data(edge).is_programmatic()) continue;
      const ir::KernelNode *from = graph.kernel(graph.edge_from[edge]), *to = graph.kernel(graph.edge_to[edge]);
      if (from == nullptr || to == nullptr) continue;
      programmatic.insert(to->function);
      pairs.insert({from->function, to->function});
    }
    std::map<std::string, std::vector<Lost>> patterns;
    bool unknown = false;  // whether a join is at the right kernel
    std::vector<NodeId> parents;
    for (const NodeId node : graph.nodes()) {
      const std::optional<Lost> lost = examine(context, node, programmatic, pairs, parents);
      if (!lost) continue;
      unknown = unknown || (lost->cause == Cause::join && confidence_of(*lost) == Confidence::possible && lost->uses_joined == ir::Tri::unknown);
      patterns[fmt::format("{};{};{}|{}", stable_name(context, lost->predecessor), stable_name(context, node), static_cast<int>(lost->cause),
                           static_cast<int>(confidence_of(*lost)))]
          .push_back(*lost);
    }
    for (const auto& [basis, members] : patterns) report(context, sink, basis.substr(0, basis.rfind('|')), members);
    if (unknown) sink.not_checked({Fact::measured_access}, kUnknownAccesses);
  }

 private:
  // `parents`: memory to work in.
  static std::optional<Lost> examine(const engine::GraphContext& context, NodeId node, const std::set<ir::FunctionId>& programmatic,
                                     const std::set<std::pair<ir::FunctionId, ir::FunctionId>>& pairs, std::vector<NodeId>& parents) {
    const ir::Graph& graph = context.graph;
    const ir::KernelNode* kernel = graph.kernel(node);
    if (kernel == nullptr || !analysis::is_active_work(graph, node) || graph.in_edges(node).empty()) return std::nullopt;
    for (const EdgeId edge : graph.in_edges(node))
      if (!graph.data(edge).is_full()) return std::nullopt;
    Lost lost;
    lost.node = node;
    lost.attribute = kernel->programmatic_serialization == ir::Tri::yes;
    lost.elsewhere = programmatic.contains(kernel->function);
    if (context.recording.functions.contains(kernel->function)) lost.waits = context.recording.functions[kernel->function].has_grid_dependency_wait;
    // Predecessors without those that are only transitive.
    const std::vector<EdgeId>& implied = context.analyses.implied_edges();
    parents.clear();
    for (const EdgeId edge : graph.in_edges(node))
      if (!std::binary_search(implied.begin(), implied.end(), edge)) parents.push_back(graph.edge_from[edge]);
    if (parents.empty()) return std::nullopt;
    lost.predecessor = own_predecessor(graph, node, parents);
    if (parents.size() > 1) {
      lost.in_chain = is_chained(graph, node, lost.predecessor);
      // A kernel that joins without the attribute may be one that cannot do with it; in the middle of a chain it breaks that chain.
      if (!lost.attribute && (!lost.in_chain || lost.waits == ir::Tri::no)) return std::nullopt;
      lost.cause = Cause::join;
      for (const NodeId parent : parents)
        if (parent != lost.predecessor) lost.joined = parent;
      lost.uses_joined = uses(context, node, lost.predecessor, parents);
      return lost;
    }
    if (graph.kind[lost.predecessor] != NodeKind::kernel) {
      if (!lost.attribute && !lost.elsewhere) return std::nullopt;
      // Something stands between two kernels. At the start of a graph there is nothing to overlap with.
      if (!has_kernel_before(graph, lost.predecessor)) return std::nullopt;
      lost.cause = Cause::node_between;
      return lost;
    }
    // One kernel before it and a full edge. Launched plainly although the same two kernels are chained programmatically
    // elsewhere; an attribute that had no effect is as good.
    // A branch that starts on another stream cannot be: serialization is a stream's.
    if (graph.facts.contains(Fact::capture_streams) && !graph.capture_stream.empty() && graph.capture_stream[lost.predecessor] != graph.capture_stream[node])
      return std::nullopt;
    const ir::KernelNode* before = graph.kernel(lost.predecessor);  // null: a kernel whose launch was not recorded
    if (!lost.attribute && (before == nullptr || !pairs.contains({before->function, kernel->function}))) return std::nullopt;
    lost.cause = Cause::attribute;
    return lost;
  }

  // The one on the node's own capture stream; else the last recorded kernel.
  static NodeId own_predecessor(const ir::Graph& graph, NodeId node, const std::vector<NodeId>& parents) {
    if (graph.facts.contains(Fact::capture_streams) && !graph.capture_stream.empty())
      for (const NodeId parent : parents)
        if (graph.capture_stream[parent] == graph.capture_stream[node]) return parent;
    NodeId best = parents.front();
    for (const NodeId parent : parents)
      if (graph.kernel(best) == nullptr || (graph.kernel(parent) != nullptr && recorded_before(graph, best, parent))) best = parent;
    return best;
  }

  static bool is_chained(const ir::Graph& graph, NodeId node, NodeId predecessor) {
    const auto programmatic = [&](EdgeId edge) { return graph.data(edge).is_programmatic(); };
    const auto before = graph.in_edges(predecessor);
    const auto after = graph.out_edges(node);
    return graph.kernel(predecessor) != nullptr && std::any_of(before.begin(), before.end(), programmatic) && std::any_of(after.begin(), after.end(), programmatic);
  }

  static bool has_kernel_before(const ir::Graph& graph, NodeId node) {
    for (int steps = 0; steps < 16; ++steps) {
      const auto before = graph.predecessors(node);
      if (before.empty()) return false;
      node = before.front();
      if (graph.kernel(node) != nullptr) return true;
    }
    return false;
  }

  // Does anything that the joined branches do concern the node? No only if all their accesses are known.
  static ir::Tri uses(const engine::GraphContext& context, NodeId node, NodeId predecessor, const std::vector<NodeId>& parents) {
    const ir::Graph& graph = context.graph;
    if (!graph.facts.contains(Fact::kernel_params) || has_unknown_accesses(context, node)) return ir::Tri::unknown;
    const analysis::AccessTable& table = context.analyses.access_table();
    const analysis::Reachability& ordered = context.analyses.starts_after();
    ir::Tri result = ir::Tri::no;
    for (const NodeId parent : parents) {
      if (parent == predecessor) continue;
      for (const NodeId other : graph.nodes()) {
        if (other != parent && !ordered.reaches(other, parent)) continue;
        if (other == predecessor || ordered.reaches(other, predecessor)) continue;
        if (table.conflict(other, node)) return ir::Tri::yes;
        if (has_unknown_accesses(context, other)) result = ir::Tri::unknown;
      }
    }
    return result;
  }

  static Confidence confidence_of(const Lost& lost) {
    switch (lost.cause) {
      case Cause::join:
        if (lost.elsewhere && lost.attribute) return Confidence::certain;
        if (lost.in_chain && lost.waits == ir::Tri::yes) return Confidence::likely;
        return lost.uses_joined == ir::Tri::no ? Confidence::likely : Confidence::possible;
      case Cause::node_between:
        return lost.attribute ? Confidence::certain : Confidence::likely;
      case Cause::attribute:
        return lost.elsewhere ? Confidence::likely : Confidence::possible;
    }
    return Confidence::possible;
  }

  // End of the predecessor to start of the node, median over the replays; negative where they overlap.
  static std::optional<std::int64_t> gap_ns(const ir::Graph& graph, NodeId from, NodeId to) {
    std::vector<std::int64_t> gaps;
    for (const ir::Replay& replay : graph.replays) {
      std::int64_t end = 0, start = 0;
      bool has_end = false, has_start = false;
      for (const ir::ReplayOp& op : graph.ops(replay)) {
        if (op.node == from) end = std::max(has_end ? end : op.end_ns, op.end_ns), has_end = true;
        if (op.node == to) start = has_start ? std::min(start, op.start_ns) : op.start_ns, has_start = true;
      }
      if (has_end && has_start) gaps.push_back(start - end);
    }
    if (gaps.empty()) return std::nullopt;
    std::nth_element(gaps.begin(), gaps.begin() + static_cast<std::ptrdiff_t>(gaps.size() / 2), gaps.end());
    return gaps[gaps.size() / 2];
  }

  // Gap before the same kernel where its edge is programmatic.
  static std::optional<std::int64_t> programmatic_gap_ns(const ir::Graph& graph, ir::FunctionId function) {
    std::vector<std::int64_t> gaps;
    for (const EdgeId edge : graph.edges()) {
      const ir::KernelNode* to = graph.kernel(graph.edge_to[edge]);
      if (to == nullptr || to->function != function || !graph.data(edge).is_programmatic()) continue;
      if (const auto gap = gap_ns(graph, graph.edge_from[edge], graph.edge_to[edge])) gaps.push_back(*gap);
      if (gaps.size() >= 16) break;
    }
    if (gaps.empty()) return std::nullopt;
    std::nth_element(gaps.begin(), gaps.begin() + static_cast<std::ptrdiff_t>(gaps.size() / 2), gaps.end());
    return gaps[gaps.size() / 2];
  }

  static void report(const engine::GraphContext& context, engine::FindingSink& sink, const std::string& basis, const std::vector<Lost>& members) {
    const ir::Graph& graph = context.graph;
    const Lost& first = members.front();
    const auto label = [&](NodeId node) { return context.analyses.identities().label(graph, node); };
    engine::Finding finding;
    finding.severity = kInfo.severity;
    finding.confidence = confidence_of(first);
    finding.rests_on = {Fact::nodes, Fact::edges, Fact::edge_data};
    if (first.attribute) finding.rests_on.insert(Fact::kernel_attributes);
    if (first.cause == Cause::join && first.in_chain && first.waits == ir::Tri::yes) finding.rests_on.insert(Fact::kernel_images);
    if (first.uses_joined == ir::Tri::no) finding.rests_on.insert(Fact::kernel_params);
    std::string why;
    switch (first.cause) {
      case Cause::join:
        why = fmt::format("it also waits for {}{}", label(first.joined), first.attribute ? "" : " and was launched without the attribute");
        break;
      case Cause::node_between:
        why = fmt::format("a {} node stands before it", ir::node_kind_name(graph.kind[first.predecessor]));
        break;
      case Cause::attribute:
        why = first.attribute ? "its attribute had no effect" : "it was launched without the attribute here";
        break;
    }
    finding.message = fmt::format("{} has no programmatic edge from {}: {}{}", label(first.node), label(first.predecessor), why,
                                  members.size() == 1 ? std::string() : fmt::format(", {} times", members.size()));
    finding.evidence = {{"cause", std::string(first.cause == Cause::join ? "join" : first.cause == Cause::node_between ? "node between" : "attribute")},
                        {"places", static_cast<std::int64_t>(members.size())},
                        {"launched_programmatically", first.attribute},
                        {"between_programmatic_edges", first.in_chain},
                        {"programmatic_edge_elsewhere", first.elsewhere}};
    if (first.cause == Cause::join) finding.evidence.emplace_back("uses_what_it_joins", std::string(first.uses_joined == ir::Tri::yes ? "yes" : first.uses_joined == ir::Tri::no ? "no" : "unknown"));
    std::int64_t lost_ns = 0;
    std::optional<std::int64_t> usual;
    if (const ir::KernelNode* kernel = graph.kernel(first.node); kernel != nullptr && graph.facts.contains(Fact::replay_times))
      usual = programmatic_gap_ns(graph, kernel->function);
    for (std::size_t i = 0; i < members.size(); ++i) {
      const Lost& member = members[i];
      std::vector<engine::Entity> entities{entity_of(context, member.node, "lost"), entity_of(context, member.predecessor, "predecessor")};
      if (member.joined.is_valid()) entities.push_back(entity_of(context, member.joined, "joined"));
      if (finding.occurrences.size() < 256) finding.occurrences.push_back({layer_of(context, member.node), std::move(entities)});
      if (usual && i < 64)
        if (const auto gap = gap_ns(graph, member.predecessor, member.node)) lost_ns += std::max<std::int64_t>(0, *gap - *usual);
    }
    if (usual && members.size() > 64) lost_ns = lost_ns * static_cast<std::int64_t>(members.size()) / 64;
    finding.occurrence_count = static_cast<std::uint32_t>(members.size());
    if (lost_ns > 0) {
      finding.cost = {members.size() > 64 ? engine::Cost::Basis::estimate : engine::Cost::Basis::measured, to_us(lost_ns), to_us(context.analyses.node_times().median_span_ns), 0};
      finding.evidence.emplace_back("gap_us_with_programmatic_edge", to_us(*usual));
    }
    finding.primary = {entity_of(context, first.node, "lost")};
    finding.related = {entity_of(context, first.predecessor, "predecessor")};
    if (first.joined.is_valid()) finding.related.push_back(entity_of(context, first.joined, "joined"));
    for (const EdgeId edge : graph.in_edges(first.node)) {
      if (first.cause != Cause::join || graph.edge_sync.empty() || !graph.edge_sync[edge].is_valid()) continue;
      if (auto wait = sources_of(context, graph.sync_ops[graph.edge_sync[edge]].stack, "wait"); !wait.empty()) finding.sources = std::move(wait);
    }
    for (engine::SourceLocation& source : sources_of(context, first.node, "launch")) finding.sources.push_back(std::move(source));
    finding.fix.text = first.cause == Cause::join && !first.attribute
                           ? fmt::format("launch {} with programmatic stream serialization, let an earlier kernel of the chain join, or fold it into the kernel before", label(first.node))
                       : first.cause == Cause::join
                           ? fmt::format("wait for the other branch one kernel earlier or later, where nothing is launched programmatically, so that {} directly follows {} again", label(first.node), label(first.predecessor))
                       : first.cause == Cause::node_between ? "move the copy, fill or event off the chain, or fold it into one of the two kernels"
                                                            : "launch it with programmatic stream serialization, as in the other places";
    if (first.cause == Cause::join) finding.fix.side_effects = {"the kernel that waits instead starts later"};
    finding.threads = {"sgl-project/sglang#30460", "flashinfer-ai/flashinfer#3588"};
    sink.report(std::move(finding), basis);
  }
};

}  // namespace

std::unique_ptr<engine::Rule> make_pdl_lost() { return std::make_unique<PdlLost>(); }

}  // namespace cglint::rules
