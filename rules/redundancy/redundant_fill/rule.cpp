// A fill whose whole range is overwritten before anything reads it.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>

#include "rules/common/describe.h"
#include "rules/common/memory.h"
#include "rules/common/timing.h"

namespace cglint::rules {
namespace {

using analysis::Access;
using analysis::AccessCoverage;
using analysis::AccessTrust;
using engine::Confidence;
using ir::Fact;
using ir::NodeId;

constexpr std::array<ir::FactSet, 1> kNeeds = {ir::FactSet{Fact::nodes, Fact::edges, Fact::kernel_params, Fact::copy_params}};
constexpr engine::RuleInfo kInfo = {
    .code = "CG601",
    .slug = "redundant-fill",
    .family = "redundancy",
    .summary = "A fill whose whole range is overwritten before anything reads it.",
    .severity = engine::Severity::warning,
    .status = engine::RuleStatus::preview,
    .since = "0.1.0",
    .needs = kNeeds,
    .uses = ir::FactSet{Fact::edge_data, Fact::kernel_names, Fact::allocations, Fact::measured_access, Fact::replay_times, Fact::source_frames},
};

struct Redundant {
  NodeId fill;
  NodeId overwriter;  // the last one, where several are needed
  std::uint64_t bytes = 0;
  Confidence confidence = Confidence::likely;
};

class RedundantFill final : public engine::Rule {
 public:
  [[nodiscard]] const engine::RuleInfo& info() const override { return kInfo; }

  void check(const engine::GraphContext& context, engine::FindingSink& sink) const override {
    const ir::Graph& graph = context.graph;
    std::map<std::string, std::vector<Redundant>> patterns;
    for (const NodeId node : graph.nodes()) {
      if (!is_fill(context, node)) continue;
      if (const std::optional<Redundant> found = examine(context, node))
        patterns[fmt::format("{};{}|{}", stable_name(context, node), stable_name(context, found->overwriter), static_cast<int>(found->confidence))].push_back(*found);
    }
    for (const auto& [basis, members] : patterns) report(context, sink, basis.substr(0, basis.rfind('|')), members);
    // A fill, or a kernel that overwrites one, may be among those that nobody knows.
    if (has_unknown_accesses(context)) sink.not_checked({Fact::measured_access}, kUnknownAccesses);
  }

 private:
  static bool is_fill(const engine::GraphContext& context, NodeId node) {
    if (!analysis::is_active_work(context.graph, node)) return false;
    if (context.graph.kind[node] == ir::NodeKind::memset) return true;
    const ir::KernelNode* kernel = context.graph.kernel(node);
    return kernel != nullptr && kernel->function.is_valid() &&
           context.analyses.identities().of(kernel->function).role == analysis::KernelRole::fill;
  }

  // Does the bounded read `row`, which begins below `range`, reach it? Not if what it points at is known to end before, or if
  // somebody's buffer begins between the two.
  static bool may_reach(const analysis::AccessTable& table, const Access& row, const ByteRange& range) {
    for (const Access* other : table.touching(row.begin, range.begin)) {
      if (other->begin > row.begin) return false;
      if (other->begin == row.begin && other->exact() && other->end <= range.begin) return false;
    }
    return true;
  }

  static std::optional<Redundant> examine(const engine::GraphContext& context, NodeId fill) {
    const ir::Graph& graph = context.graph;
    const analysis::AccessTable& table = context.analyses.access_table();
    const analysis::Reachability& ordered = context.analyses.memory_ordered_after();
    if (table.of(fill).empty()) return std::nullopt;
    Redundant result;
    result.fill = fill;
    bool all_parameters = true;
    for (const Access& filled : table.of(fill)) {
      if (!overwrites(filled)) return std::nullopt;
      all_parameters = all_parameters && filled.trust == AccessTrust::parameter;
      const ByteRange range{filled.begin, filled.end};
      result.bytes += range.size();

      // Who overwrites it, first come first: a cover of the range by writes that come after the fill.
      std::vector<const Access*> writes;
      for (const Access* row : table.touching(range.begin, range.end))
        if (row->node != fill && overwrites(*row) && ordered.reaches(fill, row->node)) writes.push_back(row);
      const analysis::TopologicalOrder& order = context.analyses.topology();
      std::stable_sort(writes.begin(), writes.end(), [&](const Access* a, const Access* b) { return order.position[a->node] < order.position[b->node]; });
      std::vector<const Access*> cover;
      std::uint64_t missing_from = 0;
      const auto covered = [&] {
        std::vector<const Access*> by_begin = cover;
        std::sort(by_begin.begin(), by_begin.end(), [](const Access* a, const Access* b) { return a->begin < b->begin; });
        missing_from = range.begin;
        for (const Access* row : by_begin)
          if (row->begin <= missing_from) missing_from = std::max(missing_from, row->end);
        return missing_from >= range.end;
      };
      for (const Access* row : writes) {
        cover.push_back(row);
        if (covered()) break;
      }
      if (cover.empty() || !covered()) return std::nullopt;

      // Everybody else who may read it must come before the fill, or after all of the cover.
      for (const Access* row : table.touching(range.begin, range.end)) {
        if (row->node == fill || !row->may_read()) continue;
        if (!sure_bytes(*row).overlaps(range) && !may_reach(table, *row, range)) continue;
        if (ordered.reaches(row->node, fill)) continue;
        const bool after_all = std::all_of(cover.begin(), cover.end(), [&](const Access* write) { return write->node != row->node && ordered.reaches(write->node, row->node); });
        if (!after_all) return std::nullopt;
      }
      // Other writes may come anywhere but unordered with the fill: then it is not clear whose bytes are left.
      for (const Access* row : table.touching(range.begin, range.end))
        if (row->node != fill && row->may_write() && sure_bytes(*row).overlaps(range) && ordered.unordered(row->node, fill)) return std::nullopt;
      for (const Access* row : cover) {
        all_parameters = all_parameters && row->trust == AccessTrust::parameter;
        if (!result.overwriter.is_valid() || order.position[row->node] > order.position[result.overwriter]) result.overwriter = row->node;
      }
    }
    // Nodes between of which something is unknown may read it through a pointer that nobody sees.
    bool hidden = false;
    bool opaque = false;
    for (const NodeId node : graph.nodes()) {
      if (node == fill || table.coverage(node) == AccessCoverage::complete || !ir::is_activity(graph.kind[node])) continue;
      if (ordered.reaches(node, fill) || (result.overwriter.is_valid() && (node == result.overwriter || ordered.reaches(result.overwriter, node)))) continue;
      hidden = true;
      opaque = opaque || table.coverage(node) == AccessCoverage::none;
    }
    result.confidence = opaque ? Confidence::possible : all_parameters && !hidden ? Confidence::certain : Confidence::likely;
    return result;
  }

  static void report(const engine::GraphContext& context, engine::FindingSink& sink, const std::string& basis, const std::vector<Redundant>& members) {
    const Redundant& first = members.front();
    const auto label = [&](NodeId node) { return context.analyses.identities().label(context.graph, node); };
    engine::Finding finding;
    finding.severity = kInfo.severity;
    finding.confidence = first.confidence;
    finding.rests_on = {Fact::nodes, Fact::edges, Fact::kernel_params, Fact::copy_params};
    finding.message = fmt::format("{} fills {} bytes that {} overwrites before anything reads them{}", label(first.fill), first.bytes, label(first.overwriter),
                                  members.size() == 1 ? std::string() : fmt::format(": {} times", members.size()));
    std::int64_t bytes = 0, time_ns = 0;
    const analysis::NodeTimes& times = context.analyses.node_times();
    const base::IdVector<NodeId, std::int64_t> added = added_busy_ns(context.graph);
    for (const Redundant& member : members) {
      bytes += static_cast<std::int64_t>(member.bytes);
      if (times.available) time_ns += added[member.fill];
      if (finding.occurrences.size() < 256)
        finding.occurrences.push_back({layer_of(context, member.fill), {entity_of(context, member.fill, "fill"), entity_of(context, member.overwriter, "overwrites")}});
      engine::Edit edit;
      edit.kind = engine::Edit::Kind::drop_node;
      edit.nodes = {member.fill.index()};
      finding.fix.edits.push_back(std::move(edit));
    }
    finding.occurrence_count = static_cast<std::uint32_t>(members.size());
    finding.evidence = {{"fills", static_cast<std::int64_t>(members.size())}, {"bytes_per_replay", bytes}};
    finding.primary = {entity_of(context, first.fill, "fill")};
    finding.related = {entity_of(context, first.overwriter, "overwrites")};
    if (time_ns > 0) {
      finding.cost = {engine::Cost::Basis::estimate, to_us(time_ns), to_us(times.median_span_ns), 0};
      finding.evidence.emplace_back("estimate", std::string("what the fills add to the busy time of the trace"));
    }
    finding.sources = sources_of(context, first.fill, "fill");
    finding.fix.text = "allocate without a fill (empty instead of zeros): the next kernel writes all of it";
    finding.fix.side_effects = {"a later version of the writer that leaves padding unwritten needs the fill again"};
    finding.threads = {"vllm-project/vllm#28182", "ROCm/aiter#3615"};
    sink.report(std::move(finding), basis);
  }
};

}  // namespace

std::unique_ptr<engine::Rule> make_redundant_fill() { return std::make_unique<RedundantFill>(); }

}  // namespace cglint::rules
