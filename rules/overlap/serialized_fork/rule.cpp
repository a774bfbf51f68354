// Work was forked to a side stream but is fully ordered with the main stream, so nothing can overlap.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <span>

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

// Patterns that are told apart, most frequent first; and names that all of them have together, at least. A graph whose nodes are
// nearly all joined to nearly all others has as many patterns as edges.
constexpr std::size_t kMaxPatterns = 1'000;
constexpr std::size_t kMinListedNames = 1'000'000;
constexpr std::size_t kMaxListedNamesPerNode = 2;
constexpr std::string_view kTooManyPatterns = "more patterns of side work than can be told apart: the most frequent ones were looked at";

// Places in the topological order, `end` excluded. Blocks may lie inside each other by the thousand, so no lists of nodes.
struct Range {
  std::uint32_t begin = 0, end = 0;
  [[nodiscard]] std::uint32_t size() const { return end - begin; }
  [[nodiscard]] bool empty() const { return end == begin; }
  friend bool operator==(const Range&, const Range&) = default;
};

// A run of side-stream work between two nodes of the other branch: fork and join are the nodes before and behind it.
struct Block {
  Range nodes;
  Range other;  // the main block that could have run beside it, when known
};

// Blocks of one pattern have the same names in the same order, repeats in a row counted once.
struct Pattern {
  std::vector<std::uint32_t> members;  // indices of blocks, ascending
  std::uint32_t names = 0;
};

// The names along the topological order. Ranges are compared without being walked: of all ranges of 2^k names those that are equal
// get one number, from the numbers of their halves, and a range of any length is the two of these that cover it.
class Names {
 public:
  Names(const engine::GraphContext& context, const std::vector<NodeId>& order) : changes_(order.size()) {
    std::map<std::string, std::uint32_t> numbers;
    std::uint32_t previous = 0;
    // Of a kernel that is launched often the name is made once.
    std::map<ir::FunctionId, std::uint32_t> of_function;
    for (std::size_t p = 0; p < order.size(); ++p) {
      const auto number_of_name = [&] {
        return numbers.try_emplace(stable_name(context, order[p]), static_cast<std::uint32_t>(numbers.size())).first->second;
      };
      const ir::KernelNode* const kernel = context.graph.kernel(order[p]);
      std::uint32_t number = 0;
      if (kernel != nullptr && kernel->function.is_valid()) {
        const auto [known, is_new] = of_function.try_emplace(kernel->function);
        if (is_new) known->second = number_of_name();
        number = known->second;
      } else {
        number = number_of_name();
      }
      if (p == 0 || number != previous) numbers_.push_back(number);
      previous = number;
      changes_[p] = static_cast<std::uint32_t>(numbers_.size() - 1);
    }
  }

  // By number of members, then by first member.
  [[nodiscard]] std::vector<Pattern> patterns(const std::vector<Block>& blocks) const {
    std::vector<std::vector<std::uint32_t>> by_level(32);  // blocks by the largest power of two not above their number of names
    for (std::uint32_t i = 0; i < blocks.size(); ++i)
      by_level[static_cast<std::size_t>(std::bit_width(collapsed(blocks[i].nodes).size()) - 1)].push_back(i);
    std::vector<Pattern> patterns;
    std::vector<std::uint32_t> numbers = numbers_;  // per place: of the range of 2^level names that begins there
    for (std::size_t level = 0; level < by_level.size(); ++level) {
      const std::uint32_t width = std::uint32_t{1} << level;
      std::vector<std::pair<std::array<std::uint32_t, 3>, std::uint32_t>> keys;
      keys.reserve(by_level[level].size());
      for (const std::uint32_t block : by_level[level]) {
        const Range range = collapsed(blocks[block].nodes);
        keys.push_back({{range.size(), numbers[range.begin], numbers[range.end - width]}, block});
      }
      std::sort(keys.begin(), keys.end());
      for (std::size_t i = 0; i < keys.size(); ++i) {
        if (i == 0 || keys[i].first != keys[i - 1].first) patterns.push_back({{}, keys[i].first[0]});
        patterns.back().members.push_back(keys[i].second);
      }
      if (std::all_of(by_level.begin() + static_cast<std::ptrdiff_t>(level) + 1, by_level.end(), [](const auto& none) { return none.empty(); })) break;
      double_width(numbers, width);
    }
    std::sort(patterns.begin(), patterns.end(), [](const Pattern& a, const Pattern& b) {
      return std::pair(b.members.size(), a.members.front()) < std::pair(a.members.size(), b.members.front());
    });
    return patterns;
  }

 private:
  // The range's names, as places in numbers_.
  [[nodiscard]] Range collapsed(Range range) const { return {changes_[range.begin], changes_[range.end - 1] + 1}; }

  static void double_width(std::vector<std::uint32_t>& numbers, std::uint32_t width) {
    if (numbers.size() <= width) return numbers.clear();
    std::vector<std::pair<std::uint64_t, std::uint32_t>> pairs(numbers.size() - width);
    for (std::uint32_t i = 0; i < pairs.size(); ++i) pairs[i] = {std::uint64_t{numbers[i]} << 32 | numbers[i + width], i};
    std::sort(pairs.begin(), pairs.end());
    numbers.resize(pairs.size());
    std::uint32_t number = 0;
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      if (i > 0 && pairs[i].first != pairs[i - 1].first) ++number;
      numbers[pairs[i].second] = number;
    }
  }

  std::vector<std::uint32_t> numbers_;  // of names, each different from the one before
  std::vector<std::uint32_t> changes_;  // per place in the topological order: its place in numbers_
};

class SerializedFork final : public engine::Rule {
 public:
  [[nodiscard]] const engine::RuleInfo& info() const override { return kInfo; }

  void check(const engine::GraphContext& context, engine::FindingSink& sink) const override {
    const ir::Graph& graph = context.graph;
    if (graph.node_count() < 3) return;
    const analysis::TopologicalOrder& order = context.analyses.topology();
    const std::vector<ir::EdgeId>& implied_edges = context.analyses.implied_edges();
    const bool has_streams = graph.facts.contains(Fact::capture_streams) && !graph.capture_stream.empty();
    if (!has_streams && implied_edges.empty()) return;
    const base::IdVector<NodeId, bool> ordered = ordered_with_all(context);
    const std::vector<Block> blocks = has_streams ? blocks_from_streams(graph, order, ordered)
                                                  : blocks_from_edges(graph, order, ordered, implied_edges);
    if (blocks.empty()) return;

    // One finding per pattern of side work.
    std::vector<Pattern> patterns = Names(context, order.order).patterns(blocks);
    std::size_t told = 0, names = 0;
    const std::size_t most_names = std::max(kMinListedNames, kMaxListedNamesPerNode * graph.node_count());
    while (told < patterns.size() && told < kMaxPatterns && names + patterns[told].names <= most_names) names += patterns[told++].names;
    if (told < patterns.size()) sink.not_checked({}, kTooManyPatterns);
    patterns.resize(told);
    const std::vector<std::int64_t> ns_before = times_before(context, order);
    for (const Pattern& pattern : patterns) report(context, sink, blocks, pattern, ns_before, has_streams, implied_edges.size());
  }

 private:
  // With capture streams: maximal runs of one side stream's nodes, all of them ordered with everything.
  static std::vector<Block> blocks_from_streams(const ir::Graph& graph, const analysis::TopologicalOrder& order,
                                                const base::IdVector<NodeId, bool>& ordered) {
    ir::StreamId origin = graph.info.origin_stream;
    if (!origin.is_valid()) origin = graph.capture_stream[order.order.front()];
    const auto count = static_cast<std::uint32_t>(order.order.size());
    std::vector<Block> blocks;
    std::uint32_t main_begin = 0;  // of the run before, if it is the main stream's
    for (std::uint32_t p = 0; p < count;) {
      const ir::StreamId stream = graph.capture_stream[order.order[p]];
      std::uint32_t end = p + 1;
      while (end < count && graph.capture_stream[order.order[end]] == stream) ++end;
      const auto first = order.order.begin() + p, last = order.order.begin() + end;
      const bool carries_work = std::any_of(first, last, [&](NodeId node) { return ir::is_activity(graph.kind[node]); });
      if (stream != origin && stream.is_valid() && carries_work && p > 0 && end < count &&
          std::all_of(first, last, [&](NodeId node) { return ordered[node]; }))
        blocks.push_back({.nodes = {p, end}, .other = {main_begin, p}});
      main_begin = stream == origin ? p : end;
      p = end;
    }
    return blocks;
  }

  // In a bare DAG: an edge u -> w beside a longer path u -> S -> w says that w was recorded after u on u's stream while
  // S was recorded elsewhere; the same edge over the main block (side tail -> next side head) proves the second stream.
  static std::vector<Block> blocks_from_edges(const ir::Graph& graph, const analysis::TopologicalOrder& order,
                                              const base::IdVector<NodeId, bool>& ordered,
                                              const std::vector<ir::EdgeId>& implied_edges) {
    std::vector<std::uint32_t> unordered_before(order.order.size() + 1, 0);
    for (std::size_t p = 0; p < order.order.size(); ++p) unordered_before[p + 1] = unordered_before[p] + (ordered[order.order[p]] ? 0 : 1);
    std::vector<Range> spans;
    for (const ir::EdgeId edge : implied_edges) {
      const Range span{order.position[graph.edge_from[edge]] + 1, order.position[graph.edge_to[edge]]};
      if (!span.empty() && unordered_before[span.end] == unordered_before[span.begin]) spans.push_back(span);
    }
    std::stable_sort(spans.begin(), spans.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
    // A span whose first node follows the previous span's last node directly alternates with it: the shorter one of
    // the two kinds is the side work, the other the main work that it waits for.
    std::vector<Block> blocks;
    for (std::size_t i = 0; i < spans.size(); ++i) {
      const bool before = i > 0 && spans[i].begin == spans[i - 1].end;
      const bool after = i + 1 < spans.size() && spans[i + 1].begin == spans[i].end;
      const std::size_t other_size = before ? spans[i - 1].size() : after ? spans[i + 1].size() : 0;
      if (other_size != 0 && other_size < spans[i].size()) continue;  // this is the main block
      if (other_size != 0 && other_size == spans[i].size() && before && !blocks.empty() && blocks.back().nodes == spans[i - 1])
        continue;  // equal halves: count each pair once
      Block block{.nodes = spans[i], .other = {}};
      if (before) block.other = spans[i - 1];
      else if (after) block.other = spans[i + 1];
      blocks.push_back(block);
    }
    return blocks;
  }

  // Per place in the topological order: the median times of the nodes before it. Empty where times are unknown.
  static std::vector<std::int64_t> times_before(const engine::GraphContext& context, const analysis::TopologicalOrder& order) {
    const analysis::NodeTimes& times = context.analyses.node_times();
    if (!times.available) return {};
    std::vector<std::int64_t> before(order.order.size() + 1, 0);
    for (std::size_t p = 0; p < order.order.size(); ++p) before[p + 1] = before[p] + times.median_ns[order.order[p]];
    return before;
  }

  static void report(const engine::GraphContext& context, engine::FindingSink& sink, const std::vector<Block>& blocks, const Pattern& pattern,
                     const std::vector<std::int64_t>& ns_before, bool has_streams, std::size_t implied_count) {
    const ir::Graph& graph = context.graph;
    const std::vector<NodeId>& order = context.analyses.topology().order;
    const std::vector<std::uint32_t>& members = pattern.members;
    const Block& first = blocks[members.front()];
    const std::span<const NodeId> nodes = std::span(order).subspan(first.nodes.begin, first.nodes.size());
    const NodeId fork = order[first.nodes.begin - 1], join = order[first.nodes.end];
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
                                  label_list(context, nodes),
                                  has_streams ? "it waits for the main stream's last kernel and the main stream waits for it"
                                              : "the graph is one chain there, with an edge that the longer path already implies",
                                  times);
    if (!has_streams) finding.evidence = {{"edges", static_cast<std::int64_t>(graph.edge_count())}, {"implied_edges", static_cast<std::int64_t>(implied_count)}};
    finding.evidence.emplace_back("blocks", static_cast<std::int64_t>(members.size()));
    finding.evidence.emplace_back("nodes_per_block", static_cast<std::int64_t>(first.nodes.size()));

    const auto ns_of = [&](Range range) { return ns_before[range.end] - ns_before[range.begin]; };
    std::int64_t gain_ns = 0;
    for (const std::uint32_t member : members) {
      const Range range = blocks[member].nodes;
      const NodeId head = order[range.begin];
      if (lists_more(finding))
        finding.occurrences.push_back({layer_of(context, head),
                                       {entity_of(context, head, "side head"), entity_of(context, order[range.end - 1], "side tail"),
                                        entity_of(context, order[range.begin - 1], "waits for"), entity_of(context, order[range.end], "join")}});
      if (!ns_before.empty()) gain_ns += std::min(ns_of(range), ns_of(blocks[member].other));
    }
    finding.occurrence_count = static_cast<std::uint32_t>(members.size());
    finding.primary = {entity_of(context, nodes.front(), "side head")};
    finding.related = {entity_of(context, fork, "waits for"), entity_of(context, join, "join")};
    if (gain_ns > 0) {
      finding.cost.basis = engine::Cost::Basis::estimate;
      finding.cost.us = to_us(gain_ns);
      finding.cost.of_us = to_us(context.analyses.node_times().median_span_ns);
      finding.evidence.emplace_back("estimate", std::string("upper bound: the shorter of the two branches, summed over all blocks"));
    }
    // The wait that makes the side work late is the source to change; else the side work itself.
    for (const ir::EdgeId edge : graph.in_edges(nodes.front())) {
      if (graph.edge_sync.empty() || !graph.edge_sync[edge].is_valid()) continue;
      const ir::SyncOp& sync = graph.sync_ops[graph.edge_sync[edge]];
      if (auto wait = sources_of(context, sync.stack, "wait"); !wait.empty()) {
        finding.sources = std::move(wait);
        break;
      }
    }
    for (engine::SourceLocation& source : sources_of(context, nodes.front(), "side work")) finding.sources.push_back(std::move(source));
    finding.fix.text =
        "let the side stream wait on an event recorded where its inputs are ready (before the main branch), not on the main branch's "
        "end; keep the join where it is, and record the side branch's last kernel after the main branch's last one (CG102)";
    finding.threads = {"sgl-project/sglang#30460", "sgl-project/sglang#12660"};
    sink.report(std::move(finding), stable_sequence(context, nodes));
  }
};

}  // namespace

std::unique_ptr<engine::Rule> make_serialized_fork() { return std::make_unique<SerializedFork>(); }

}  // namespace cglint::rules
