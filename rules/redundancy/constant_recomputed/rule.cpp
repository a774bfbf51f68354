// A kernel computes the same result from constant inputs in every replay.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "rules/common/describe.h"
#include "rules/common/memory.h"
#include "rules/common/timing.h"

namespace cglint::rules {
namespace {

using analysis::Access;
using analysis::AccessCoverage;
using analysis::AccessMode;
using analysis::KernelRole;
using engine::Confidence;
using ir::Fact;
using ir::NodeId;

constexpr std::array<ir::FactSet, 1> kNeeds = {
    ir::FactSet{Fact::nodes, Fact::edges, Fact::kernel_names, Fact::kernel_params, Fact::copy_params, Fact::allocations}};
constexpr std::array<engine::RuleOption, 1> kOptions = {{
    {engine::RuleOption::Type::integer, "min_places", "2", "launches of one kernel on different inputs that make the finding likely; below it is only possible", 1, 1e6},
}};
constexpr engine::RuleInfo kInfo = {
    .code = "CG602",
    .slug = "constant-recomputed",
    .family = "redundancy",
    .summary = "A kernel computes the same result from constant inputs in every replay.",
    .severity = engine::Severity::warning,
    .status = engine::RuleStatus::preview,
    .since = "0.1.0",
    .needs = kNeeds,
    .uses = ir::FactSet{Fact::eager_launches, Fact::measured_access, Fact::replay_times, Fact::source_frames},
    .options = kOptions,
};

class ConstantRecomputed final : public engine::Rule {
 public:
  [[nodiscard]] const engine::RuleInfo& info() const override { return kInfo; }

  void check(const engine::GraphContext& context, engine::FindingSink& sink) const override {
    const ir::Graph& graph = context.graph;
    const analysis::AccessTable& table = context.analyses.access_table();
    // By what runs: function and geometry.
    std::map<std::string, std::vector<NodeId>> patterns;
    for (const NodeId node : graph.nodes())
      if (is_candidate(context, table, node)) patterns[stable_name(context, node)].push_back(node);
    if (has_unknown_accesses(context)) sink.not_checked({Fact::measured_access}, kUnknownAccesses);
    if (patterns.empty()) return;
    drop_written_later(context, table, patterns);
    // A kernel of which nothing is known may write anything.
    const bool hidden_writers =
        std::any_of(graph.nodes().begin(), graph.nodes().end(), [&](NodeId node) { return ir::is_activity(graph.kind[node]) && table.coverage(node) == AccessCoverage::none; });
    for (const auto& [basis, members] : patterns)
      if (!members.empty()) report(context, sink, table, basis, members, hidden_writers);
  }

 private:
  // Reads memory that nothing in the graph writes, and writes memory that it does not read.
  static bool is_candidate(const engine::GraphContext& context, const analysis::AccessTable& table, NodeId node) {
    const ir::Graph& graph = context.graph;
    const ir::KernelNode* kernel = graph.kernel(node);
    if (kernel == nullptr || !kernel->function.is_valid() || !analysis::is_active_work(graph, node) || table.coverage(node) != AccessCoverage::complete) return false;
    switch (context.analyses.identities().of(kernel->function).role) {
      case KernelRole::rng:
      case KernelRole::sampling:
      case KernelRole::collective:
      case KernelRole::fill:
      case KernelRole::metadata:
        return false;
      default:
        break;
    }
    // An input is missing: that is CG301's business.
    const analysis::KernelIdentity& identity = context.analyses.identities().of(kernel->function);
    for (const ir::ParamWord& word : graph.params_of(*kernel))
      if (word.value == 0 && word.size_bytes == 8 && word.slot < identity.params.size() && identity.params[word.slot].is_pointer) return false;
    bool reads = false, writes = false;
    for (const Access& row : table.of(node)) {
      if (row.mode == AccessMode::write) {
        writes = true;
        continue;
      }
      if (row.mode != AccessMode::read) return false;
      reads = true;
      for (const Access* other : table.touching(row.begin, row.end))
        if (other->may_write() && (sure_bytes(*other).overlaps(sure_bytes(row)) || (other->begin >= row.begin && other->begin < row.end) ||
                                   (!other->exact() && same_tensor(*other, row))))
          return false;
    }
    return reads && writes;
  }

  // Two ranges of unknown end that begin in one allocation which holds nothing else may be one tensor.
  static bool same_tensor(const Access& writer, const Access& reader) { return writer.allocation.is_valid() && writer.allocation == reader.allocation; }

  // Inputs that a launch outside the graph writes after the capture change between replays.
  static void drop_written_later(const engine::GraphContext& context, const analysis::AccessTable& table, std::map<std::string, std::vector<NodeId>>& patterns) {
    const std::uint64_t captured = context.graph.info.begin_sequence;
    std::vector<ByteRange> written;
    for (const ir::GraphId id : context.recording.graphs.ids()) {
      const ir::Graph* eager = context.recording.graphs[id].get();
      if (eager == nullptr || eager->info.role != ir::GraphRole::eager || eager->info.process != context.graph.info.process) continue;
      const bool has_later = eager->sequence.empty() || captured == 0 ||
                             std::any_of(eager->nodes().begin(), eager->nodes().end(), [&](NodeId node) { return eager->sequence[node] >= captured; });
      if (!has_later) continue;
      const analysis::AccessTable launches = analysis::build_access_table(context.recording, *eager, context.analyses.identities());
      for (const Access& row : launches.rows()) {
        if (!row.known() || !row.may_write()) continue;
        if (!eager->sequence.empty() && captured != 0 && eager->sequence[row.node] < captured) continue;  // loading and warm-up
        written.push_back(sure_bytes(row));
      }
    }
    if (written.empty()) return;
    std::sort(written.begin(), written.end(), [](const ByteRange& a, const ByteRange& b) { return a.begin < b.begin; });
    std::vector<std::uint64_t> furthest;
    for (const ByteRange& range : written) furthest.push_back(std::max(furthest.empty() ? 0 : furthest.back(), range.end));
    const auto is_written = [&](const ByteRange& range) {
      const auto after = std::lower_bound(written.begin(), written.end(), range.end, [](const ByteRange& r, std::uint64_t end) { return r.begin < end; });
      return after != written.begin() && furthest[static_cast<std::size_t>(after - written.begin()) - 1] > range.begin;
    };
    for (auto& [basis, members] : patterns)
      std::erase_if(members, [&](NodeId node) {
        return std::any_of(table.of(node).begin(), table.of(node).end(), [&](const Access& row) { return row.mode == AccessMode::read && is_written(sure_bytes(row)); });
      });
  }

  static void report(const engine::GraphContext& context, engine::FindingSink& sink, const analysis::AccessTable& table, const std::string& basis,
                     const std::vector<NodeId>& members, bool hidden_writers) {
    const ir::Graph& graph = context.graph;
    // A buffer that every launch reads may be an input of the step (positions, lengths), which changes between replays although
    // nothing recorded writes it. A buffer of each launch's own is a parameter of its layer.
    std::map<std::pair<std::uint16_t, std::uint16_t>, std::set<std::uint64_t>> inputs;
    std::int64_t bytes = 0;
    bool older = true;
    for (const NodeId node : members)
      for (const Access& row : table.of(node)) {
        if (row.mode != AccessMode::read) continue;
        inputs[{row.slot, row.offset_bytes}].insert(row.begin);
        if (row.exact()) bytes += static_cast<std::int64_t>(row.end - row.begin);
        // Allocated while the graph was captured: an activation.
        if (context.recording.allocations.contains(row.allocation) && graph.info.begin_sequence != 0 &&
            context.recording.allocations[row.allocation].alloc_sequence >= graph.info.begin_sequence)
          older = false;
      }
    const auto min_places = static_cast<std::size_t>(std::max<std::int64_t>(1, context.config.integer(kInfo, "min_places")));
    const bool own_inputs = std::all_of(inputs.begin(), inputs.end(), [&](const auto& slot) { return slot.second.size() >= std::min<std::size_t>(min_places, 2); });
    const std::string label = context.analyses.identities().label(graph, members.front());
    engine::Finding finding;
    finding.severity = kInfo.severity;
    finding.confidence = members.size() >= min_places && own_inputs && older && !hidden_writers ? Confidence::likely : Confidence::possible;
    finding.rests_on = {Fact::nodes, Fact::edges, Fact::kernel_names, Fact::kernel_params, Fact::copy_params, Fact::allocations};
    finding.message = fmt::format("{} computes the same in every replay: nothing writes its inputs{}", label,
                                  members.size() == 1 ? std::string() : fmt::format(", {} times", members.size()));
    std::size_t distinct = 0;
    for (const auto& [slot, addresses] : inputs) distinct = std::max(distinct, addresses.size());
    finding.evidence = {{"launches_per_replay", static_cast<std::int64_t>(members.size())}, {"different_inputs", static_cast<std::int64_t>(distinct)}};
    if (bytes > 0) finding.evidence.emplace_back("bytes_read_per_replay", bytes);
    finding.evidence.emplace_back("launches_outside_capture_recorded", graph.facts.contains(Fact::eager_launches));
    std::int64_t time_ns = 0;
    const analysis::NodeTimes& times = context.analyses.node_times();
    const base::IdVector<NodeId, std::int64_t> added = added_busy_ns(context.graph);
    for (const NodeId node : members) {
      if (times.available) time_ns += added[node];
      if (finding.occurrences.size() < 256) finding.occurrences.push_back({layer_of(context, node), {entity_of(context, node, "recomputes")}});
    }
    finding.occurrence_count = static_cast<std::uint32_t>(members.size());
    finding.primary = {entity_of(context, members.front(), "recomputes")};
    if (time_ns > 0) finding.cost = {engine::Cost::Basis::estimate, to_us(time_ns), to_us(times.median_span_ns), 0};
    finding.sources = sources_of(context, members.front(), "recomputes");
    finding.fix.text = "compute it once when the weights are loaded, keep the result, and let the graph read that";
    finding.fix.side_effects = {"the result takes memory of its own; after a weight update it must be made again"};
    finding.threads = {"vllm-project/vllm#39999"};
    sink.report(std::move(finding), basis);
  }
};

}  // namespace

std::unique_ptr<engine::Rule> make_constant_recomputed() { return std::make_unique<ConstantRecomputed>(); }

}  // namespace cglint::rules
