// Two nodes touch the same bytes, at least one writes them, and nothing in the graph orders the two.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <tuple>

#include "analysis/allocator_index.h"
#include "base/text.h"
#include "rules/common/arguments.h"
#include "rules/common/describe.h"
#include "rules/common/memory.h"
#include "rules/common/order.h"

namespace cglint::rules {
namespace {

using analysis::Access;
using analysis::AccessMode;
using analysis::AccessTrust;
using engine::Confidence;
using ir::Fact;
using ir::NodeId;

constexpr std::array<ir::FactSet, 1> kNeeds = {ir::FactSet{Fact::nodes, Fact::edges, Fact::kernel_params, Fact::copy_params}};
constexpr engine::RuleInfo kInfo = {
    .code = "CG401",
    .slug = "unordered-conflict",
    .family = "order",
    .summary = "Two nodes touch the same bytes, at least one writes them, and nothing in the graph orders the two.",
    .severity = engine::Severity::error,
    .status = engine::RuleStatus::preview,
    .since = "0.1.0",
    .needs = kNeeds,
    .uses = ir::FactSet{Fact::edge_data, Fact::kernel_names, Fact::allocations, Fact::allocator_state, Fact::measured_access, Fact::capture_streams,
                        Fact::source_frames},
};

// Overlapping pairs looked at before the rule gives up, and unordered ones that are compared with each other.
constexpr std::size_t kMaxPairs = 20'000'000;
constexpr std::size_t kMaxConflicts = 2'000;

struct Conflict {
  const Access* first = nullptr;   // of the node recorded first
  const Access* second = nullptr;
  ByteRange common;
  Confidence confidence = Confidence::possible;
  bool starts_in_order = false;    // an edge orders their starts, but not their memory
  [[nodiscard]] bool is_write_after_write() const { return first->may_write() && second->may_write(); }
  [[nodiscard]] bool first_writes() const { return first->may_write(); }
};

// A write of unknown extent that does not cover what it points at: scattered rows, as in a cache.
bool is_scattered(const Access& access) { return access.may_write() && !access.exact() && !access.writes_all; }

class UnorderedConflict final : public engine::Rule {
 public:
  [[nodiscard]] const engine::RuleInfo& info() const override { return kInfo; }

  void check(const engine::GraphContext& context, engine::FindingSink& sink) const override {
    const ir::Graph& graph = context.graph;
    if (graph.node_count() < 2) return;
    const analysis::AccessTable& table = context.analyses.access_table();
    const analysis::Reachability& ordered = context.analyses.memory_ordered_after();
    const analysis::Reachability& started = context.analyses.starts_after();

    // Rows by the first byte that they surely touch.
    std::vector<const Access*> rows;
    rows.reserve(table.rows().size());
    for (const std::uint32_t row : table.by_begin()) rows.push_back(&table.rows()[row]);

    const std::shared_ptr<const analysis::AllocatorIndex> blocks = context.analyses.identities().allocator_index();

    std::optional<WordHistory> history;  // made when it is asked for
    const auto is_no_pointer = [&](const Access& row) {
      if (row.known()) return false;
      if (!history) history.emplace().see(graph, context.analyses.argument_words());
      return may_be_padding(context, *history, row);
    };
    std::vector<Conflict> conflicts;
    std::size_t pairs = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const ByteRange range = sure_bytes(*rows[i]);
      for (std::size_t j = i + 1; j < rows.size() && rows[j]->begin < range.end; ++j) {
        const Access &a = *rows[i], &b = *rows[j];
        if (++pairs > kMaxPairs) return sink.not_checked({}, "too many accesses share bytes");
        if (a.node == b.node || (!a.may_write() && !b.may_write()) || (!a.known() && !b.known())) continue;
        if (ordered.ordered(a.node, b.node)) continue;
        Conflict conflict;
        const bool in_order = recorded_before(graph, a.node, b.node);
        conflict.first = in_order ? &a : &b;
        conflict.second = in_order ? &b : &a;
        conflict.common = {b.begin, std::min(range.end, sure_bytes(b).end)};
        const std::optional<Confidence> confidence = judge(context, table, ordered, *blocks, *conflict.first, *conflict.second);
        if (!confidence || is_no_pointer(a) || is_no_pointer(b)) continue;
        conflict.confidence = *confidence;
        conflict.starts_in_order = started.ordered(a.node, b.node);
        conflicts.push_back(conflict);
      }
    }
    if (!conflicts.empty()) report_causes(context, sink, ordered, std::move(conflicts));
    // What is not known of a node matters where something runs beside it.
    const base::IdVector<NodeId, bool> alone = ordered_with_all(context);
    const auto leaves_memory_open = [&](ir::EdgeId edge) { return !ordered.reaches(graph.edge_from[edge], graph.edge_to[edge]); };
    for (const NodeId node : graph.nodes()) {
      if (!has_unknown_accesses(context, node)) continue;
      const auto before = graph.in_edges(node);
      const auto after = graph.out_edges(node);
      if (!alone[node] || std::any_of(before.begin(), before.end(), leaves_memory_open) || std::any_of(after.begin(), after.end(), leaves_memory_open))
        return sink.not_checked({Fact::measured_access}, kUnknownAccesses);
    }
  }

 private:
  // Whether a row of unknown direction comes from a word of which nothing in the graph says that it is a pointer: the padding of a
  // struct holds what the caller's stack held before.
  static bool may_be_padding(const engine::GraphContext& context, const WordHistory& history, const Access& row) {
    const ir::KernelNode* const kernel = context.graph.kernel(row.node);
    if (kernel == nullptr || !kernel->function.is_valid()) return false;
    const auto words = context.graph.params_of(*kernel);
    const auto word = std::find_if(words.begin(), words.end(),
                                   [&](const ir::ParamWord& w) { return w.slot == row.slot && w.offset_bytes == row.offset_bytes; });
    return word != words.end() && !history.is_pointer(context.recording, context.analyses.identities().of(kernel->function), kernel->function,
                                                      static_cast<std::size_t>(word - words.begin()));
  }

  static std::optional<Confidence> judge(const engine::GraphContext& context, const analysis::AccessTable& table, const analysis::Reachability& ordered,
                                         const analysis::AllocatorIndex& blocks, const Access& a, const Access& b) {
    const ir::Graph& graph = context.graph;
    // One direction is known, the other told by the type: a kernel that marks its inputs as const writes the others.
    const Access& unknown = a.known() ? b : a;
    const Access& known = a.known() ? a : b;
    if (!unknown.known() && unknown.looks_written && a.begin == b.begin && !has_own_writer(graph, table, ordered, unknown, known)) return Confidence::likely;
    if (!a.known() || !b.known()) {
      // Only where both were given the same buffer: a block that begins there.
      const bool same_block = a.begin == b.begin && blocks.begins_at(a.begin);
      return same_block ? std::optional(Confidence::possible) : std::nullopt;
    }
    const bool both_exact = a.exact() && b.exact();
    const auto recorded = [](const Access& row) { return row.trust == AccessTrust::parameter || row.trust == AccessTrust::measured; };
    if (recorded(a) && recorded(b) && both_exact) return Confidence::certain;
    const ir::KernelNode *ka = graph.kernel(a.node), *kb = graph.kernel(b.node);
    const bool same_use = ka != nullptr && kb != nullptr && ka->function == kb->function && a.slot == b.slot && a.offset_bytes == b.offset_bytes;
    // The same kernel adds to the same buffer twice: atomics, or counters that it keeps.
    if (same_use && a.mode == AccessMode::read_write && b.mode == AccessMode::read_write) return Confidence::possible;
    // Two caches in one, two microbatches: scattered rows of one buffer, each with its own.
    if (is_scattered(a) && is_scattered(b)) return Confidence::possible;
    if ((is_scattered(a) && has_own_writer(graph, table, ordered, a, b)) || (is_scattered(b) && has_own_writer(graph, table, ordered, b, a)))
      return Confidence::possible;
    return Confidence::likely;
  }

  // Another launch of the writer's kernel, unordered with it, writes the same buffer before `reader`: then reader may be after
  // that one's rows (two microbatches that share a cache).
  static bool has_own_writer(const ir::Graph& graph, const analysis::AccessTable& table, const analysis::Reachability& ordered, const Access& writer,
                             const Access& reader) {
    const ir::KernelNode* kernel = graph.kernel(writer.node);
    if (kernel == nullptr) return false;
    for (const Access* other : table.touching(writer.begin, writer.begin + 1)) {
      if (other->node == writer.node || other->begin != writer.begin || !other->may_write() || (!other->known() && !other->looks_written)) continue;
      const ir::KernelNode* other_kernel = graph.kernel(other->node);
      if (other_kernel != nullptr && other_kernel->function == kernel->function && ordered.reaches(other->node, reader.node) &&
          ordered.unordered(other->node, writer.node))
        return true;
    }
    return false;
  }

  // An edge from the first node of one conflict to its second may order the nodes of others too: they have one cause.
  static void report_causes(const engine::GraphContext& context, engine::FindingSink& sink, const analysis::Reachability& ordered,
                            std::vector<Conflict> conflicts) {
    // The strongest of a node pair speaks for it.
    std::map<std::pair<NodeId, NodeId>, Conflict> by_nodes;
    for (const Conflict& conflict : conflicts) {
      const auto [it, inserted] = by_nodes.try_emplace({conflict.first->node, conflict.second->node}, conflict);
      if (!inserted && std::tuple(conflict.confidence, conflict.common.size()) > std::tuple(it->second.confidence, it->second.common.size())) it->second = conflict;
    }
    conflicts.clear();
    for (const auto& [nodes, conflict] : by_nodes) conflicts.push_back(conflict);
    std::stable_sort(conflicts.begin(), conflicts.end(), [](const Conflict& a, const Conflict& b) { return a.confidence > b.confidence; });
    std::size_t left_out = 0;
    if (conflicts.size() > kMaxConflicts) {
      left_out = conflicts.size() - kMaxConflicts;
      conflicts.resize(kMaxConflicts);
    }
    const auto reaches = [&](NodeId a, NodeId b) { return a == b || ordered.reaches(a, b); };
    std::vector<const Conflict*> roots;
    std::map<const Conflict*, std::size_t> consequences;
    const auto explains = [&](const Conflict& cause, const Conflict& conflict) {
      return &cause != &conflict && cause.confidence >= conflict.confidence && reaches(conflict.first->node, cause.first->node) &&
             reaches(cause.second->node, conflict.second->node);
    };
    std::vector<const Conflict*> others;
    for (const Conflict& conflict : conflicts) {
      const bool explained = std::any_of(conflicts.begin(), conflicts.end(), [&](const Conflict& cause) { return explains(cause, conflict); });
      (explained ? others : roots).push_back(&conflict);
    }
    for (const Conflict* other : others) {
      const auto root = std::find_if(roots.begin(), roots.end(), [&](const Conflict* cause) { return explains(*cause, *other); });
      if (root != roots.end()) ++consequences[*root];
    }
    struct Pattern {
      std::vector<const Conflict*> members;
      std::size_t consequences = 0;
    };
    std::map<std::string, Pattern> patterns;
    for (const Conflict* root : roots) {
      const auto part = [&](const Access& access) {
        return fmt::format("{}:{}:{}", stable_name(context, access.node), access.slot, access.offset_bytes);
      };
      Pattern& pattern = patterns[fmt::format("{}|{}|{}", part(*root->first), part(*root->second), static_cast<int>(root->confidence))];
      pattern.members.push_back(root);
      pattern.consequences += consequences[root];
    }
    for (const auto& [basis, pattern] : patterns) report_pattern(context, sink, basis.substr(0, basis.rfind('|')), pattern.members, pattern.consequences, left_out);
  }

  static void report_pattern(const engine::GraphContext& context, engine::FindingSink& sink, const std::string& basis,
                             const std::vector<const Conflict*>& members, std::size_t consequences, std::size_t left_out) {
    const ir::Graph& graph = context.graph;
    const Conflict& first = *members.front();
    const Access &a = *first.first, &b = *first.second;
    const auto label = [&](const Access& access) { return context.analyses.identities().label(graph, access.node); };
    engine::Finding finding;
    finding.severity = kInfo.severity;
    finding.confidence = first.confidence;
    finding.rests_on = {Fact::nodes, Fact::edges, Fact::kernel_params, Fact::copy_params};
    for (const Access* row : {&a, &b}) {
      if (row->trust == AccessTrust::measured) finding.rests_on.insert(Fact::measured_access);
      if (row->trust == AccessTrust::table || row->trust == AccessTrust::signature) finding.rests_on.insert(Fact::kernel_names);
    }
    const std::string_view relation = !a.known() || !b.known() ? "may write" : "writes";
    const Access &writer = a.may_write() ? a : b, &other = a.may_write() ? b : a;
    finding.message = fmt::format("{} {} memory that {} {}, and {}{}", label(writer), relation, label(other),
                                  !other.known()                     ? "was given too"
                                  : first.is_write_after_write()     ? "writes too"
                                                                     : "reads",
                                  first.starts_in_order ? "the edges between them do not order memory" : "nothing orders the two",
                                  members.size() == 1 ? std::string() : fmt::format(": {} times", members.size()));
    finding.evidence = {{"bytes", static_cast<std::int64_t>(first.common.size())},
                        {"bytes_are_a_lower_bound", !a.exact() || !b.exact()},
                        {"first", fmt::format("{} {} ({})", label(a), place_of(context, a), access_trust_name(a.trust))},
                        {"second", fmt::format("{} {} ({})", label(b), place_of(context, b), access_trust_name(b.trust))},
                        {"places", static_cast<std::int64_t>(members.size())}};
    if (consequences > 0) finding.evidence.emplace_back("further_conflicts_ordered_by_the_same_edge", static_cast<std::int64_t>(consequences));
    if (left_out > 0) finding.evidence.emplace_back("conflicts_not_compared", static_cast<std::int64_t>(left_out));
    for (const Conflict* member : members)
      if (finding.occurrences.size() < 256)
        finding.occurrences.push_back({layer_of(context, member->second->node),
                                       {entity_of(context, member->first->node, member->first->may_write() ? "writes" : "reads"),
                                        entity_of(context, member->second->node, member->second->may_write() ? "writes" : "reads")}});
    finding.occurrence_count = static_cast<std::uint32_t>(members.size());
    finding.primary = {entity_of(context, writer.node, "writes")};
    finding.related = {entity_of(context, other.node, first.is_write_after_write() ? "writes" : other.known() ? "reads" : "same buffer")};
    finding.sources = sources_of(context, b.node, "needs a wait");
    for (engine::SourceLocation& source : sources_of(context, a.node, "to wait for")) finding.sources.push_back(std::move(source));
    finding.fix.text = first.first_writes() && !first.is_write_after_write()
                           ? fmt::format("record an event after {} and let the stream of {} wait for it before that launch (a join that is missing or too late)", label(a), label(b))
                           : fmt::format("let {} wait for {}, or give it a buffer of its own (a tensor that one branch releases while another still uses it: keep it until the join)",
                                         label(b), label(a));
    for (const Conflict* member : members) {
      engine::Edit edit;
      edit.kind = engine::Edit::Kind::add_edge;
      edit.nodes = {member->first->node.index(), member->second->node.index()};
      finding.fix.edits.push_back(std::move(edit));
    }
    finding.fix.side_effects = {"the two no longer overlap"};
    finding.threads = {"NVIDIA/TensorRT-LLM#15265", "vllm-project/vllm#52033"};
    sink.report(std::move(finding), basis);
  }
};

}  // namespace

std::unique_ptr<engine::Rule> make_unordered_conflict() { return std::make_unique<UnorderedConflict>(); }

}  // namespace cglint::rules
