// Work was forked to a side stream but is fully ordered with the main stream, so nothing can overlap.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "rules/common/describe.h"
#include "rules/common/order.h"
#include "rules/common/occurrences.h"

namespace cglint::rules {
namespace {

using ir::Fact;
using ir::NodeId;

constexpr std::array<ir::FactSet, 1> kNeeds = {ir::FactSet{Fact::nodes, Fact::edges}};
constexpr std::array<engine::RuleOption, 1> kOptions = {{
    {engine::RuleOption::Type::integer, "min_repeats", "2",
     "without capture streams: how often the pattern must repeat before it is reported as likely", 1, 1e6},
}};
constexpr engine::RuleInfo kInfo = {
    .code = "CG201",
    .slug = "serialized-fork",
    .family = "overlap",
    .summary = "Work was forked to a side stream but is fully ordered with the main stream, so nothing can overlap.",
    .severity = engine::Severity::warning,
    .status = engine::RuleStatus::stable,
    .since = "0.1.0",
    .needs = kNeeds,
    .uses = ir::FactSet{Fact::capture_streams, Fact::sync_ops, Fact::source_frames, Fact::replay_times},
    .options = kOptions,
};

// A run of side-stream work between two nodes of the other branch.
struct Block {
  NodeId fork, join;
  std::vector<NodeId> nodes;       // in topological order
  std::vector<NodeId> other;       // the main block that could have run beside it, when known
  ir::EdgeId edge;                 // the implied edge, or invalid
};

class SerializedFork final : public engine::Rule {
 public:
  [[nodiscard]] const engine::RuleInfo& info() const override { return kInfo; }

  void check(const engine::GraphContext& context, engine::FindingSink& sink) const override {
    const ir::Graph& graph = context.graph;
    if (graph.node_count() < 3) return;
    const analysis::TopologicalOrder& order = context.analyses.topology();
    const std::vector<ir::EdgeId>& implied_edges = context.analyses.implied_edges();
    const base::IdVector<NodeId, bool> ordered = ordered_with_all(context);
    const bool has_streams = graph.facts.contains(Fact::capture_streams) && !graph.capture_stream.empty();
    std::vector<Block> blocks = has_streams ? blocks_from_streams(graph, order, ordered)
                                            : blocks_from_edges(graph, order, ordered, implied_edges);
    if (blocks.empty()) return;

    // One finding per pattern of side work.
    std::map<std::string, std::vector<const Block*>> patterns;
    for (const Block& block : blocks) patterns[stable_sequence(context, block.nodes)].push_back(&block);
    for (const auto& [basis, members] : patterns) report(context, sink, basis, members, has_streams, implied_edges.size());
  }

 private:
  // With capture streams: maximal runs of one side stream's nodes, all of them ordered with everything.
  static std::vector<Block> blocks_from_streams(const ir::Graph& graph, const analysis::TopologicalOrder& order,
                                                const base::IdVector<NodeId, bool>& ordered) {
    ir::StreamId origin = graph.info.origin_stream;
    if (!origin.is_valid()) origin = graph.capture_stream[order.order.front()];
    std::vector<Block> blocks;
    for (std::size_t p = 0; p < order.order.size();) {
      const ir::StreamId stream = graph.capture_stream[order.order[p]];
      std::size_t end = p + 1;
      while (end < order.order.size() && graph.capture_stream[order.order[end]] == stream) ++end;
      const auto first = order.order.begin() + static_cast<std::ptrdiff_t>(p);
      const auto last = order.order.begin() + static_cast<std::ptrdiff_t>(end);
      const bool carries_work = std::any_of(first, last, [&](NodeId node) { return ir::is_activity(graph.kind[node]); });
      if (stream != origin && stream.is_valid() && carries_work && p > 0 && end < order.order.size() &&
          std::all_of(first, last, [&](NodeId node) { return ordered[node]; })) {
        Block block;
        block.fork = order.order[p - 1];
        block.join = order.order[end];
        block.nodes.assign(first, last);
        for (std::size_t q = p; q-- > 0 && graph.capture_stream[order.order[q]] == origin;)
          block.other.insert(block.other.begin(), order.order[q]);
        blocks.push_back(std::move(block));
      }
      p = end;
    }
    return blocks;
  }

  // In a bare DAG: an edge u -> w beside a longer path u -> S -> w says that w was recorded after u on u's stream while
  // S was recorded elsewhere; the same edge over the main block (side tail -> next side head) proves the second stream.
  static std::vector<Block> blocks_from_edges(const ir::Graph& graph, const analysis::TopologicalOrder& order,
                                              const base::IdVector<NodeId, bool>& ordered,
                                              const std::vector<ir::EdgeId>& implied_edges) {
    std::vector<Block> spans;
    for (const ir::EdgeId edge : implied_edges) {
      const std::uint32_t from = order.position[graph.edge_from[edge]];
      const std::uint32_t to = order.position[graph.edge_to[edge]];
      Block block;
      block.fork = graph.edge_from[edge];
      block.join = graph.edge_to[edge];
      block.edge = edge;
      bool serial = true;
      for (std::uint32_t p = from + 1; p < to && serial; ++p) {
        serial = ordered[order.order[p]];
        block.nodes.push_back(order.order[p]);
      }
      if (serial && !block.nodes.empty()) spans.push_back(std::move(block));
    }
    std::sort(spans.begin(), spans.end(), [&](const Block& a, const Block& b) {
      return order.position[a.nodes.front()] < order.position[b.nodes.front()];
    });
    // A span whose first node follows the previous span's last node directly alternates with it: the shorter one of
    // the two kinds is the side work, the other the main work that it waits for.
    std::vector<Block> blocks;
    for (std::size_t i = 0; i < spans.size(); ++i) {
      const auto begins_after = [&](const Block& a, const Block& b) {
        return order.position[b.nodes.front()] == order.position[a.nodes.back()] + 1;
      };
      const bool before = i > 0 && begins_after(spans[i - 1], spans[i]);
      const bool after = i + 1 < spans.size() && begins_after(spans[i], spans[i + 1]);
      const std::size_t other_size = before ? spans[i - 1].nodes.size() : after ? spans[i + 1].nodes.size() : 0;
      if (other_size != 0 && other_size < spans[i].nodes.size()) continue;  // this is the main block
      if (other_size != 0 && other_size == spans[i].nodes.size() && before && !blocks.empty() &&
          blocks.back().nodes == spans[i - 1].nodes)
        continue;  // equal halves: count each pair once
      Block block = spans[i];
      if (before) block.other = spans[i - 1].nodes;
      else if (after) block.other = spans[i + 1].nodes;
      blocks.push_back(std::move(block));
    }
    return blocks;
  }

  static void report(const engine::GraphContext& context, engine::FindingSink& sink, const std::string& basis,
                     const std::vector<const Block*>& members, bool has_streams, std::size_t implied_count) {
    const ir::Graph& graph = context.graph;
    const Block& first = *members.front();
    const bool alternating = !first.other.empty();
    engine::Finding finding;
    finding.severity = kInfo.severity;
    finding.rests_on = {Fact::nodes, Fact::edges};
    if (has_streams) {
      finding.rests_on.insert(Fact::capture_streams);
      finding.confidence = engine::Confidence::certain;
    } else {
      const auto repeats = static_cast<std::size_t>(std::max<std::int64_t>(1, context.config.integer(kInfo, "min_repeats")));
      finding.confidence = alternating && members.size() >= repeats ? engine::Confidence::likely : engine::Confidence::possible;
    }
    const std::string times = members.size() == 1 ? std::string() : fmt::format(", {} times", members.size());
    finding.message = fmt::format("{} of side work ({}) cannot overlap with anything: {}{}",
                                  first.nodes.size() == 1 ? "one node" : fmt::format("a block of {} nodes", first.nodes.size()),
                                  label_list(context, first.nodes),
                                  has_streams ? "it waits for the main stream's last kernel and the main stream waits for it"
                                              : "the graph is one chain there, with an edge that the longer path already implies",
                                  times);
    if (!has_streams) finding.evidence = {{"edges", static_cast<std::int64_t>(graph.edge_count())}, {"implied_edges", static_cast<std::int64_t>(implied_count)}};
    finding.evidence.emplace_back("blocks", static_cast<std::int64_t>(members.size()));
    finding.evidence.emplace_back("nodes_per_block", static_cast<std::int64_t>(first.nodes.size()));

    const analysis::NodeTimes& times_of = context.analyses.node_times();
    std::int64_t gain_ns = 0;
    for (const Block* block : members) {
      std::vector<engine::Entity> entities{entity_of(context, block->nodes.front(), "side head"), entity_of(context, block->nodes.back(), "side tail"),
                                           entity_of(context, block->fork, "waits for"), entity_of(context, block->join, "join")};
      if (lists_more(finding)) finding.occurrences.push_back({layer_of(context, block->nodes.front()), std::move(entities)});
      if (!times_of.available) continue;
      std::int64_t side_ns = 0, main_ns = 0;
      for (const NodeId node : block->nodes) side_ns += times_of.median_ns[node];
      for (const NodeId node : block->other) main_ns += times_of.median_ns[node];
      gain_ns += std::min(side_ns, main_ns);
    }
    finding.occurrence_count = static_cast<std::uint32_t>(members.size());
    finding.primary = {entity_of(context, first.nodes.front(), "side head")};
    finding.related = {entity_of(context, first.fork, "waits for"), entity_of(context, first.join, "join")};
    if (times_of.available && gain_ns > 0) {
      finding.cost.basis = engine::Cost::Basis::estimate;
      finding.cost.us = to_us(gain_ns);
      finding.cost.of_us = to_us(times_of.median_span_ns);
      finding.evidence.emplace_back("estimate", std::string("upper bound: the shorter of the two branches, summed over all blocks"));
    }
    // The wait that makes the side work late is the source to change; else the side work itself.
    for (const ir::EdgeId edge : graph.in_edges(first.nodes.front())) {
      if (graph.edge_sync.empty() || !graph.edge_sync[edge].is_valid()) continue;
      const ir::SyncOp& sync = graph.sync_ops[graph.edge_sync[edge]];
      if (auto wait = sources_of(context, sync.stack, "wait"); !wait.empty()) {
        finding.sources = std::move(wait);
        break;
      }
    }
    for (engine::SourceLocation& source : sources_of(context, first.nodes.front(), "side work")) finding.sources.push_back(std::move(source));
    finding.fix.text =
        "let the side stream wait on an event recorded where its inputs are ready (before the main branch), not on the main branch's "
        "end; keep the join where it is, and record the side branch's last kernel after the main branch's last one (CG102)";
    finding.threads = {"sgl-project/sglang#30460", "sgl-project/sglang#12660"};
    sink.report(std::move(finding), basis);
  }
};

}  // namespace

std::unique_ptr<engine::Rule> make_serialized_fork() { return std::make_unique<SerializedFork>(); }

}  // namespace cglint::rules
