// Two branches overlap, but together they take as long as one after the other.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "rules/common/describe.h"
#include "rules/common/device_share.h"

namespace cglint::rules {
namespace {

using ir::Fact;
using ir::NodeId;

constexpr std::array<ir::FactSet, 1> kNeeds = {
    ir::FactSet{Fact::nodes, Fact::edges, Fact::kernel_names, Fact::launch_config, Fact::replay_streams, Fact::replay_times}};
constexpr std::array<engine::RuleOption, 4> kOptions = {{
    {engine::RuleOption::Type::integer, "min_replays", "2", "replays with overlap below which a fork is not judged", 1, 1e9},
    {engine::RuleOption::Type::number, "min_efficiency", "0.2", "share of the possible overlap from which a fork counts as overlapping", 0, 1},
    {engine::RuleOption::Type::number, "min_branch_us", "50", "branches shorter than this are not judged by how much of the device they fill: launch gaps and tails matter more", 0, 1e9},
    {engine::RuleOption::Type::number, "min_gain_percent", "2", "what overlap must save, in percent of the branches one after the other, to pay", 0, 100},
}};
constexpr engine::RuleInfo kInfo = {
    .code = "CG204",
    .slug = "overlap-does-not-pay",
    .family = "overlap",
    .summary = "Two branches overlap, but together they take as long as one after the other.",
    .severity = engine::Severity::warning,
    .status = engine::RuleStatus::preview,
    .since = "0.1.0",
    .scope = engine::RuleScope::recording,
    .needs = kNeeds,
    .uses = ir::FactSet{Fact::node_identity, Fact::kernel_params, Fact::source_frames},
    .options = kOptions,
};

// Launches of which the duration may be compared: one function, geometry and scalar arguments.
using LaunchKey = std::string;

std::int64_t median_of(std::vector<std::int64_t> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

class Check final : public engine::RecordingCheck {
 public:
  void see(const engine::GraphContext& context) override {
    const ir::Graph& graph = context.graph;
    if (!graph.facts.contains(Fact::replay_times) || graph.replays.empty() || !context.analyses.node_times().available) return;
    const std::vector<LaunchKey> keys = keys_of(graph);
    collect_alone(graph, keys);
    if (graph.facts.contains(Fact::edges) && graph.info.role != ir::GraphRole::body && graph.info.role != ir::GraphRole::eager)
      collect_forks(context, keys);
  }

  void finish(const engine::RecordingContext& context, engine::FindingSink& sink) override {
    const double min_gain = context.config.number(kInfo, "min_gain_percent") / 100;
    const std::int64_t gap_ns = gaps_.empty() ? 1'000 : median_of(gaps_);
    std::map<std::pair<std::uint32_t, std::string>, std::vector<const Fork*>> patterns;
    std::map<const Fork*, std::int64_t> serial_ns;
    std::map<std::pair<std::uint32_t, std::string>, std::vector<const Fork*>> saturated;
    const auto min_branch_ns = static_cast<std::int64_t>(context.config.number(kInfo, "min_branch_us") * 1000);
    bool incomparable = false;
    for (const Fork& fork : forks_) {
      const std::optional<std::int64_t> serial = serial_time(fork, gap_ns);
      if (!serial) {
        if (fork.shortest_ns >= min_branch_ns && fork.least_share >= kSaturated) saturated[{fork.finding.graph.index(), fork.basis}].push_back(&fork);
        else incomparable = true;
        continue;
      }
      if (static_cast<double>(fork.span_ns) < static_cast<double>(*serial) * (1 - min_gain)) continue;
      serial_ns[&fork] = *serial;
      patterns[{fork.finding.graph.index(), fork.basis}].push_back(&fork);
    }
    for (const auto& [key, members] : patterns) report(sink, key.second, members, serial_ns, gap_ns);
    for (const auto& [key, members] : saturated) report_saturated(sink, key.second, members);
    if (incomparable) sink.not_checked({}, "branches overlap, but the recording has no run of their kernels without overlap to compare with");
  }

 private:
  struct Fork {
    engine::Finding finding;     // names the graph
    std::string basis, branches;  // for people
    std::vector<LaunchKey> launches;
    std::vector<std::int64_t> overlapped_ns;  // median duration of each
    std::int64_t span_ns = 0, of_ns = 0;
    double efficiency = 0;
    // Shortest branch, and how much of the device the branches fill, the emptiest first: 1 where every kernel has a block for each
    // multiprocessor.
    std::int64_t shortest_ns = 0;
    double least_share = 0;
    std::uint32_t replays = 0;
    std::int32_t layer = -1;
    std::vector<engine::Entity> heads;
    std::vector<engine::SourceLocation> sources;
  };

  // "" for what is not a kernel.
  static std::vector<LaunchKey> keys_of(const ir::Graph& graph) {
    std::vector<LaunchKey> keys(graph.node_count());
    const bool has_allocations = graph.facts.contains(Fact::allocations);  // then a word in none of them is no address
    for (const NodeId node : graph.nodes()) {
      const ir::KernelNode* kernel = graph.kernel(node);
      if (kernel == nullptr || !kernel->function.is_valid()) continue;
      LaunchKey key = fmt::format("{} {} {} {} {} {} {} {}", kernel->function.index(), kernel->grid.x, kernel->grid.y, kernel->grid.z, kernel->block.x, kernel->block.y,
                                  kernel->block.z, kernel->dynamic_shared_bytes);
      for (const ir::ParamWord& word : graph.params_of(*kernel))
        if (!word.allocation.is_valid() && word.type != ir::ParamWord::Type::pointer && word.type != ir::ParamWord::Type::const_pointer &&
            (has_allocations || word.value < (std::uint64_t{1} << 32)))
          key += fmt::format(" {}.{}={}", word.slot, word.offset_bytes, word.value);
      keys[node.index()] = std::move(key);
    }
    return keys;
  }

  // What operations beside which no other stream of the replay was busy added to its time (as added_busy_ns counts it).
  void collect_alone(const ir::Graph& graph, const std::vector<LaunchKey>& keys) {
    const std::int64_t tolerance = analysis::clock_tolerance_ns(graph);
    std::vector<bool> beside;
    for (const ir::Replay& replay : graph.replays) {
      if (!replay.complete) continue;
      const ir::ReplayOps ops = graph.ops(replay);
      beside.assign(ops.size(), false);
      for (std::size_t i = 0; i < ops.size(); ++i)
        for (std::size_t j = i + 1; j < ops.size() && ops[j].start_ns < ops[i].end_ns; ++j) {
          if (ops[i].stream == ops[j].stream && ops[i].device == ops[j].device) continue;
          if (std::min(ops[i].end_ns, ops[j].end_ns) - ops[j].start_ns > tolerance) beside[i] = beside[j] = true;
        }
      std::int64_t busy_until = std::numeric_limits<std::int64_t>::min();
      for (std::size_t i = 0; i < ops.size(); ++i) {
        const std::int64_t added = std::max<std::int64_t>(0, ops[i].end_ns - std::max(ops[i].start_ns, busy_until));
        busy_until = std::max(busy_until, ops[i].end_ns);
        if (beside[i] || !ops[i].node.is_valid() || keys[ops[i].node.index()].empty()) continue;
        std::vector<std::int64_t>& samples = alone_[keys[ops[i].node.index()]];
        if (samples.size() < kMaxSamples) samples.push_back(added);
        if (i + 1 < ops.size() && !beside[i + 1] && ops[i].stream == ops[i + 1].stream && gaps_.size() < kMaxSamples)
          gaps_.push_back(std::max<std::int64_t>(0, ops[i + 1].start_ns - ops[i].end_ns));
      }
    }
  }

  void collect_forks(const engine::GraphContext& context, const std::vector<LaunchKey>& keys) {
    const ir::Graph& graph = context.graph;
    const auto min_replays = static_cast<std::uint32_t>(std::max<std::int64_t>(1, context.config.integer(kInfo, "min_replays")));
    const double min_efficiency = context.config.number(kInfo, "min_efficiency");
    const std::vector<analysis::ForkJoinRegion>& regions = context.analyses.fork_join_regions();
    if (regions.empty()) return;
    const std::vector<analysis::RegionOverlap>& overlaps = context.analyses.region_overlaps();
    const analysis::NodeTimes& times = context.analyses.node_times();
    const std::uint32_t multiprocessor_count = multiprocessors(context);
    for (std::size_t i = 0; i < regions.size(); ++i) {
      const analysis::ForkJoinRegion& region = regions[i];
      if (region.truncated || !region.disjoint || region.branches.size() < 2 || !overlaps[i].measured) continue;
      if (overlaps[i].replays_overlapping < min_replays || overlaps[i].efficiency() < min_efficiency) continue;
      Fork fork;
      std::vector<bool> inside(graph.node_count(), false);
      bool only_kernels = true;
      fork.least_share = 1;
      fork.shortest_ns = std::numeric_limits<std::int64_t>::max();
      for (const analysis::Branch& branch : region.branches) {
        std::int64_t branch_ns = 0;
        double filled_ns = 0;
        fork.basis += stable_sequence(context, branch.nodes) + "|";
        fork.branches += (fork.branches.empty() ? "" : " beside ") + label_list(context, branch.nodes, 2);
        fork.heads.push_back(entity_of(context, branch.head, "branch head"));
        for (const NodeId node : branch.nodes) {
          if (!analysis::is_active_work(graph, node)) continue;
          only_kernels = only_kernels && !keys[node.index()].empty();
          inside[node.index()] = true;
          fork.launches.push_back(keys[node.index()]);
          fork.overlapped_ns.push_back(times.median_ns[node]);
          branch_ns += times.median_ns[node];
          filled_ns += static_cast<double>(times.median_ns[node]) * device_share(context, node, multiprocessor_count);
        }
        fork.shortest_ns = std::min(fork.shortest_ns, branch_ns);
        fork.least_share = std::min(fork.least_share, branch_ns > 0 ? filled_ns / static_cast<double>(branch_ns) : 0);
      }
      if (!only_kernels) continue;  // copies have no geometry to be recognised by
      fork.span_ns = span_of(graph, inside);
      fork.of_ns = times.median_span_ns;
      fork.efficiency = overlaps[i].efficiency();
      fork.replays = overlaps[i].replays_overlapping;
      fork.layer = layer_of(context, region.branches.front().head);
      fork.sources = sources_of(context, region.branches.back().head, "side work");
      engine::name_graph(fork.finding, context);
      if (fork.span_ns > 0) forks_.push_back(std::move(fork));
    }
  }

  // First start to last end of the marked nodes, median over the replays.
  static std::int64_t span_of(const ir::Graph& graph, const std::vector<bool>& inside) {
    std::vector<std::int64_t> spans;
    for (const ir::Replay& replay : graph.replays) {
      std::optional<std::int64_t> first, last;
      for (const ir::ReplayOp& op : graph.ops(replay)) {
        if (!op.node.is_valid() || !inside[op.node.index()]) continue;
        first = std::min(first.value_or(op.start_ns), op.start_ns);
        last = std::max(last.value_or(op.end_ns), op.end_ns);
      }
      if (first && replay.complete) spans.push_back(*last - *first);
    }
    return spans.empty() ? 0 : median_of(std::move(spans));
  }

  // The branches one after the other: each kernel as it runs alone, with the usual gap between two. Where nothing of a kernel
  // alone is recorded there is no answer.
  [[nodiscard]] std::optional<std::int64_t> serial_time(const Fork& fork, std::int64_t gap_ns) const {
    std::int64_t total = 0;
    for (const LaunchKey& key : fork.launches) {
      const auto it = alone_.find(key);
      if (it == alone_.end()) return std::nullopt;
      total += median_of(it->second) + gap_ns;
    }
    return total - gap_ns;
  }

  // No run alone to compare with, but each branch fills the device by itself: the two only take turns.
  static void report_saturated(engine::FindingSink& sink, const std::string& basis, const std::vector<const Fork*>& members) {
    const Fork& first = *members.front();
    engine::Finding finding = common_part(members);
    finding.message = fmt::format("{} overlap, but each of them fills the device: together they take {:.1f} us of turns{}", first.branches, to_us(first.span_ns),
                                  members.size() == 1 ? std::string() : fmt::format(" ({} places)", members.size()));
    finding.evidence = {{"places", static_cast<std::int64_t>(members.size())},
                        {"overlapped_us", to_us(first.span_ns)},
                        {"shorter_branch_us", to_us(first.shortest_ns)},
                        {"device_filled", first.least_share},
                        {"rests_on", std::string("launch geometry: nearly all the time of both branches is spent in kernels with a block for each multiprocessor; no run of them alone was recorded")}};
    sink.report(std::move(finding), basis);
  }

  static engine::Finding common_part(const std::vector<const Fork*>& members) {
    const Fork& first = *members.front();
    engine::Finding finding = first.finding;
    finding.severity = kInfo.severity;
    finding.confidence = engine::Confidence::likely;
    finding.rests_on = kNeeds.front();
    for (const Fork* fork : members)
      if (finding.occurrences.size() < 256) finding.occurrences.push_back({fork->layer, fork->heads});
    finding.occurrence_count = static_cast<std::uint32_t>(members.size());
    finding.primary = {first.heads.front()};
    finding.related.assign(first.heads.begin() + 1, first.heads.end());
    finding.sources = first.sources;
    finding.fix.text = "run the branches on one stream at this size; where small batches gain from the fork, take it below a token count only";
    finding.fix.side_effects = {"smaller batches may gain from the overlap: measure each size"};
    finding.threads = {"ggml-org/llama.cpp#4719", "sgl-project/sglang#12660"};
    return finding;
  }

  void report(engine::FindingSink& sink, const std::string& basis, const std::vector<const Fork*>& members, const std::map<const Fork*, std::int64_t>& serial_ns,
              std::int64_t gap_ns) const {
    const Fork& first = *members.front();
    engine::Finding finding = common_part(members);
    std::int64_t span = 0, serial = 0, alone = 0, overlapped = 0;
    std::uint32_t replays = first.replays;
    for (const Fork* fork : members) {
      span += fork->span_ns;
      serial += serial_ns.at(fork);
      for (const LaunchKey& key : fork->launches) alone += median_of(alone_.at(key));
      for (const std::int64_t ns : fork->overlapped_ns) overlapped += ns;
      replays = std::min(replays, fork->replays);
    }
    const std::int64_t first_serial = serial_ns.at(&first);
    const double saved = first_serial > 0 ? 100.0 * static_cast<double>(first_serial - first.span_ns) / static_cast<double>(first_serial) : 0;
    finding.message = fmt::format("{} overlap, but take {:.1f} us where one after the other would take about {:.1f} us: {:.1f} % {}{}", first.branches, to_us(first.span_ns),
                                  to_us(first_serial), std::abs(saved), saved < 0 ? "more" : "less", members.size() == 1 ? std::string() : fmt::format(" ({} places)", members.size()));
    finding.evidence = {{"places", static_cast<std::int64_t>(members.size())},
                        {"replays", std::int64_t{replays}},
                        {"overlapped_us", to_us(span)},
                        {"serial_us", to_us(serial)},
                        {"kernels_alone_us", to_us(alone)},
                        {"kernels_overlapped_us", to_us(overlapped)},
                        {"gap_us", to_us(gap_ns)},
                        {"rests_on", std::string("durations of the same launches (function, geometry, scalar arguments) where no other stream was busy")}};
    if (span > serial) finding.cost = {engine::Cost::Basis::estimate, to_us(span - serial), to_us(first.of_ns), 0};
    sink.report(std::move(finding), basis);
  }

  static constexpr std::size_t kMaxSamples = 1024;
  static constexpr double kSaturated = 0.95;
  std::map<LaunchKey, std::vector<std::int64_t>> alone_;
  std::vector<std::int64_t> gaps_;
  std::vector<Fork> forks_;
};

class OverlapDoesNotPay final : public engine::Rule {
 public:
  [[nodiscard]] const engine::RuleInfo& info() const override { return kInfo; }
  [[nodiscard]] std::unique_ptr<engine::RecordingCheck> begin_recording() const override { return std::make_unique<Check>(); }
};

}  // namespace

std::unique_ptr<engine::Rule> make_overlap_does_not_pay() { return std::make_unique<OverlapDoesNotPay>(); }

}  // namespace cglint::rules
