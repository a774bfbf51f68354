// Two chains of work that do not depend on each other run one after the other on one path.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <map>
#include <optional>
#include <set>

#include "rules/common/describe.h"
#include "rules/common/device_share.h"
#include "rules/common/memory.h"
#include "rules/common/timing.h"

namespace cglint::rules {
namespace {

using analysis::Access;
using analysis::AccessCoverage;
using engine::Confidence;
using ir::Fact;
using ir::NodeId;

constexpr std::array<ir::FactSet, 1> kNeeds = {ir::FactSet{Fact::nodes, Fact::edges, Fact::kernel_params, Fact::copy_params, Fact::replay_times}};
constexpr std::array<engine::RuleOption, 3> kOptions = {{
    {engine::RuleOption::Type::number, "fork_join_us", "2", "what a fork and its join cost, in us; taken off the gain", 0, 1e6},
    {engine::RuleOption::Type::number, "min_gain_us", "3", "gain at one place, in us, from which it is reported", 0, 1e6},
    {engine::RuleOption::Type::number, "min_gain_percent", "3", "the same, in percent of the two chains' time", 0, 100},
}};
constexpr engine::RuleInfo kInfo = {
    .code = "CG203",
    .slug = "missed-overlap",
    .family = "overlap",
    .summary = "Two chains of work that do not depend on each other run one after the other on one path.",
    .severity = engine::Severity::info,
    .status = engine::RuleStatus::preview,
    .since = "0.1.0",
    .needs = kNeeds,
    .uses = ir::FactSet{Fact::kernel_names, Fact::launch_config, Fact::allocations, Fact::measured_access, Fact::source_frames},
    .options = kOptions,
};

// How far back of a join its two chains are looked for, in nodes, and how many writers of one input are followed.
constexpr std::uint32_t kWindow = 256;
constexpr std::size_t kMaxWriters = 8;
constexpr std::size_t kMaxParents = 12;
// Accesses looked at in all: bounds that take in a whole pool would make it quadratic.
constexpr std::size_t kMaxLookedAt = 20'000'000;

using Ancestors = std::bitset<kWindow>;  // itself included; bit i is the i-th node of the window

struct Missed {
  NodeId join;
  std::vector<NodeId> longer, shorter;  // in order
  std::int64_t longer_ns = 0, shorter_ns = 0;
  double gain_us = 0;
  Confidence confidence = Confidence::likely;
  bool shares_buffers = false;
};

class MissedOverlap final : public engine::Rule {
 public:
  [[nodiscard]] const engine::RuleInfo& info() const override { return kInfo; }

  void check(const engine::GraphContext& context, engine::FindingSink& sink) const override {
    const ir::Graph& graph = context.graph;
    if (graph.node_count() < 4) return;
    const analysis::NodeTimes& times = context.analyses.node_times();
    if (!times.available) {
      if (graph.replays.empty()) return sink.not_checked({Fact::replay_times}, "no replay of this graph was recorded");
      return sink.not_checked({Fact::node_identity}, "the replay operations could not be matched to nodes");
    }
    const Dependences dependences(context);
    if (dependences.gave_up()) return sink.not_checked({}, "too many accesses share bytes");
    std::vector<Missed> found;
    for (std::uint32_t position = 0; position < dependences.size(); ++position)
      if (std::optional<Missed> missed = best_at(context, dependences, position)) found.push_back(std::move(*missed));
    // Each node belongs to one place, that of the largest gain.
    std::stable_sort(found.begin(), found.end(), [](const Missed& a, const Missed& b) { return a.gain_us > b.gain_us; });
    base::IdVector<NodeId, bool> taken(graph.node_count(), false);
    std::vector<const Missed*> places;
    for (const Missed& missed : found) {
      const auto is_taken = [&](NodeId node) { return taken[node]; };
      if (std::any_of(missed.longer.begin(), missed.longer.end(), is_taken) || std::any_of(missed.shorter.begin(), missed.shorter.end(), is_taken)) continue;
      for (const NodeId node : missed.longer) taken[node] = true;
      for (const NodeId node : missed.shorter) taken[node] = true;
      places.push_back(&missed);
    }
    std::sort(places.begin(), places.end(), [](const Missed* a, const Missed* b) { return a->join < b->join; });
    std::map<std::string, std::vector<const Missed*>> patterns;
    for (const Missed* missed : places)
      patterns[fmt::format("{}|{}|{}", stable_sequence(context, missed->shorter), stable_name(context, missed->join), static_cast<int>(missed->confidence))].push_back(missed);
    for (const auto& [basis, members] : patterns) report(context, sink, basis.substr(0, basis.rfind('|')), members);
    if (has_unknown_accesses(context)) sink.not_checked({Fact::measured_access}, kUnknownAccesses);
  }

 private:
  // Who reads what whom wrote, by position in the topological order. Unknown directions count as both.
  class Dependences {
   public:
    explicit Dependences(const engine::GraphContext& context)
        : order_(context.analyses.topology()), table_(context.analyses.access_table()), parents_(order_.order.size()), opaque_before_(order_.order.size() + 1, 0), time_ns_(added_busy_ns(context.graph)) {
      for (std::uint32_t position = 0; position < parents_.size(); ++position) {
        const NodeId node = order_.order[position];
        const bool opaque = analysis::is_active_work(context.graph, node) && table_.coverage(node) == AccessCoverage::none;
        opaque_before_[position + 1] = opaque_before_[position] + (opaque ? 1U : 0U);
        std::set<std::uint32_t> parents;
        for (const Access& row : table_.of(node))
          if (row.may_read() && !gave_up()) add_writers(position, row, parents);
        parents_[position].assign(parents.begin(), parents.end());
      }
    }
    [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(parents_.size()); }
    [[nodiscard]] const std::vector<std::uint32_t>& parents(std::uint32_t position) const { return parents_[position]; }
    [[nodiscard]] NodeId node(std::uint32_t position) const { return order_.order[position]; }
    [[nodiscard]] bool gave_up() const { return looked_at_ > kMaxLookedAt; }
    [[nodiscard]] std::int64_t time_ns(NodeId node) const { return time_ns_[node]; }
    [[nodiscard]] bool has_opaque(std::uint32_t first, std::uint32_t last) const { return opaque_before_[last + 1] != opaque_before_[first]; }

   private:
    // Writers of a range by position. Buffers come back in every layer: each range is looked up once.
    using Writers = std::vector<std::pair<std::uint32_t, const Access*>>;
    const Writers& writers_of(const ByteRange& range) {
      const auto [it, inserted] = writers_.try_emplace({range.begin, range.end});
      if (inserted) {
        const std::vector<const Access*> touching = table_.touching(range.begin, range.end);
        looked_at_ += touching.size();
        for (const Access* other : touching)
          if (other->may_write()) it->second.emplace_back(order_.position[other->node], other);
        std::stable_sort(it->second.begin(), it->second.end(), [](const auto& x, const auto& y) { return x.first < y.first; });
      }
      return it->second;
    }
    void add_writers(std::uint32_t position, const Access& row, std::set<std::uint32_t>& parents) {
      const ByteRange range{row.begin, row.end};  // bounds count in full: a dependence too many only hides a gain
      const Writers& writers = writers_of(range);
      auto it = std::lower_bound(writers.begin(), writers.end(), position, [](const auto& writer, std::uint32_t at) { return writer.first < at; });
      for (std::size_t seen = 0; it != writers.begin() && seen < kMaxWriters; ++seen) {
        --it;
        parents.insert(it->first);
        // Older ones wrote another tensor at the same place: whoever writes exactly this range has made it.
        const Access& writer = *it->second;
        if (writer.mode == analysis::AccessMode::write && writer.exact() && ByteRange{writer.begin, writer.end}.contains(range)) break;
      }
    }

    const analysis::TopologicalOrder& order_;
    const analysis::AccessTable& table_;
    std::map<std::pair<std::uint64_t, std::uint64_t>, Writers> writers_;
    std::vector<std::vector<std::uint32_t>> parents_;
    std::vector<std::uint32_t> opaque_before_;
    base::IdVector<NodeId, std::int64_t> time_ns_;
    std::size_t looked_at_ = 0;
  };

  // The two chains that meet at `position` of which the overlap would gain most.
  static std::optional<Missed> best_at(const engine::GraphContext& context, const Dependences& dependences, std::uint32_t position) {
    std::vector<std::uint32_t> parents = dependences.parents(position);
    if (parents.size() < 2) return std::nullopt;
    if (parents.size() > kMaxParents) parents.erase(parents.begin(), parents.end() - kMaxParents);  // the latest
    const std::uint32_t first = position > kWindow ? position - kWindow : 0;
    std::vector<Ancestors> ancestors(position - first);
    for (std::uint32_t at = first; at < position; ++at) {
      Ancestors& own = ancestors[at - first];
      own.set(at - first);
      for (const std::uint32_t parent : dependences.parents(at))
        if (parent >= first) own |= ancestors[parent - first];
    }
    std::optional<Missed> best;
    for (std::size_t a = 0; a < parents.size(); ++a)
      for (std::size_t b = a + 1; b < parents.size(); ++b) {
        if (parents[a] < first || parents[b] < first) continue;
        const Ancestors &of_a = ancestors[parents[a] - first], &of_b = ancestors[parents[b] - first];
        if (of_b.test(parents[a] - first)) continue;  // b needs a; positions ascend
        std::optional<Missed> missed = examine(context, dependences, first, position, of_a & ~of_b, of_b & ~of_a);
        if (missed && (!best || missed->gain_us > best->gain_us)) best = std::move(missed);
      }
    return best;
  }

  static bool one_stream(const ir::Graph& graph, const std::vector<NodeId>& a, const std::vector<NodeId>& b) {
    if (!graph.facts.contains(Fact::capture_streams) || graph.capture_stream.empty()) return true;
    const auto same = [&](NodeId node) { return graph.capture_stream[node] == graph.capture_stream[a.front()]; };
    return std::all_of(a.begin(), a.end(), same) && std::all_of(b.begin(), b.end(), same);
  }

  static std::optional<Missed> examine(const engine::GraphContext& context, const Dependences& dependences, std::uint32_t first, std::uint32_t join,
                                       const Ancestors& a, const Ancestors& b) {
    const ir::Graph& graph = context.graph;
    std::vector<NodeId> only_a, only_b;
    std::uint32_t begin = join;
    for (std::uint32_t i = 0; i < join - first; ++i) {
      if (a[i] == b[i] || !analysis::is_active_work(graph, dependences.node(first + i))) continue;
      (a[i] ? only_a : only_b).push_back(dependences.node(first + i));
      begin = std::min(begin, first + i);
    }
    if (only_a.empty() || only_b.empty()) return std::nullopt;
    // Work that is on another stream already waits too long for it: CG201.
    if (!one_stream(graph, only_a, only_b)) return std::nullopt;
    // Nothing is known of a node between: it may carry a dependence.
    if (dependences.has_opaque(begin, join)) return std::nullopt;
    Missed missed;
    missed.join = dependences.node(join);
    const std::uint32_t count = multiprocessors(context);
    double work_ns = 0;
    const auto sum = [&](const std::vector<NodeId>& nodes) {
      std::int64_t total = 0;
      for (const NodeId node : nodes) {
        total += dependences.time_ns(node);
        work_ns += static_cast<double>(dependences.time_ns(node)) * device_share(context, node, count);
      }
      return total;
    };
    const std::int64_t a_ns = sum(only_a), b_ns = sum(only_b);
    const double best_ns = std::max({static_cast<double>(a_ns), static_cast<double>(b_ns), work_ns});
    missed.gain_us = (static_cast<double>(a_ns + b_ns) - best_ns) / 1000.0 - context.config.number(kInfo, "fork_join_us");
    if (missed.gain_us < context.config.number(kInfo, "min_gain_us") ||
        missed.gain_us < to_us(a_ns + b_ns) * context.config.number(kInfo, "min_gain_percent") / 100)
      return std::nullopt;
    const analysis::Reachability& ordered = context.analyses.starts_after();
    for (const NodeId x : only_a)
      for (const NodeId y : only_b)
        if (ordered.unordered(x, y)) return std::nullopt;  // they may overlap already
    missed.longer_ns = std::max(a_ns, b_ns);
    missed.shorter_ns = std::min(a_ns, b_ns);
    missed.longer = a_ns >= b_ns ? only_a : only_b;
    missed.shorter = a_ns >= b_ns ? only_b : only_a;
    // Where the device's size is not known the gain is only bounded; where a direction is not known it is not certain that
    // nothing flows.
    if (count == 0) missed.confidence = Confidence::possible;
    const analysis::AccessTable& table = context.analyses.access_table();
    for (const std::vector<NodeId>* chain : {&only_a, &only_b})
      for (const NodeId node : *chain)
        if (table.coverage(node) != AccessCoverage::complete) missed.confidence = Confidence::possible;
    for (const NodeId x : only_a)
      for (const NodeId y : only_b)
        for (const analysis::AccessConflict& conflict : table.conflicts(x, y))
          missed.shares_buffers = missed.shares_buffers || sure_bytes(*conflict.first).overlaps(sure_bytes(*conflict.second));
    return missed;
  }

  static void report(const engine::GraphContext& context, engine::FindingSink& sink, const std::string& basis, const std::vector<const Missed*>& members) {
    const Missed& first = *members.front();
    engine::Finding finding;
    finding.severity = kInfo.severity;
    finding.confidence = first.confidence;
    finding.rests_on = kNeeds.front();
    double gain_us = 0;
    bool shares_buffers = false;
    for (const Missed* missed : members) {
      gain_us += missed->gain_us;
      shares_buffers = shares_buffers || missed->shares_buffers;
      if (finding.occurrences.size() < 256)
        finding.occurrences.push_back({layer_of(context, missed->join),
                                       {entity_of(context, missed->shorter.front(), "side head"), entity_of(context, missed->shorter.back(), "side tail"),
                                        entity_of(context, missed->longer.front(), "main head"), entity_of(context, missed->longer.back(), "main tail"),
                                        entity_of(context, missed->join, "join")}});
    }
    finding.occurrence_count = static_cast<std::uint32_t>(members.size());
    finding.message = fmt::format("{} ({:.1f} us) and {} ({:.1f} us) do not depend on each other but run one after the other{}: overlapped, about {:.1f} us {}",
                                  label_list(context, first.shorter, 3), to_us(first.shorter_ns), label_list(context, first.longer, 3), to_us(first.longer_ns),
                                  members.size() == 1 ? std::string() : fmt::format(", {} times", members.size()), gain_us,
                                  "less per replay");
    const analysis::NodeTimes& times = context.analyses.node_times();
    finding.cost = {engine::Cost::Basis::estimate, gain_us, to_us(times.median_span_ns), 0};
    finding.evidence = {{"places", static_cast<std::int64_t>(members.size())},
                        {"shorter_us", to_us(first.shorter_ns)},
                        {"longer_us", to_us(first.longer_ns)},
                        {"multiprocessors", static_cast<std::int64_t>(multiprocessors(context))},
                        {"estimate", std::string("what each kernel adds to the busy time of the trace; a kernel with a block for each multiprocessor leaves no room for another; fork and join taken off")}};
    finding.primary = {entity_of(context, first.shorter.front(), "side head")};
    finding.related = {entity_of(context, first.longer.front(), "main head"), entity_of(context, first.join, "join")};
    finding.sources = sources_of(context, first.shorter.front(), "could run beside");
    finding.fix.text = fmt::format(
        "run {} on a side stream that waits for an event recorded where their inputs are ready, and join before {}; one side stream for all layers, its last kernel recorded after the main "
        "branch's last one (CG102)",
        label_list(context, first.shorter, 3), context.analyses.identities().label(context.graph, first.join));
    if (shares_buffers) finding.fix.side_effects.emplace_back("the two use the same scratch memory: each needs its own");
    finding.threads = {"sgl-project/sglang#12660", "sgl-project/sglang#5121"};
    sink.report(std::move(finding), basis);
  }
};

}  // namespace

std::unique_ptr<engine::Rule> make_missed_overlap() { return std::make_unique<MissedOverlap>(); }

}  // namespace cglint::rules
