// The recorded order lets a join continue on the side branch's stream, so that the main branch's stream is
// lost.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <set>
#include <span>

#include "analysis/order_search.h"
#include "analysis/predicted_streams.h"
#include "rules/common/describe.h"
#include "rules/common/occurrences.h"
#include "rules/common/order.h"

namespace cglint::rules {
namespace {

using analysis::OrderEdit;
using analysis::OrderMove;
using analysis::OrderPattern;
using analysis::OrderSearchResult;
using ir::Fact;
using ir::NodeId;

constexpr std::array<ir::FactSet, 1> kNeeds = {ir::FactSet{Fact::nodes, Fact::edges, Fact::creation_order}};
constexpr std::array<engine::RuleOption, 2> kOptions = {{
    {engine::RuleOption::Type::integer, "min_gain", "2",
     "streams that another order must save to be worth a finding", 1},
    {engine::RuleOption::Type::integer, "slack", "2",
     "where no order helps: streams above the graph's width that are not reported", 0},
}};
constexpr std::array<std::string_view, 1> kExplains = {"CG101"};
constexpr engine::RuleInfo kInfo = {
    .code = "CG102",
    .slug = "join-follows-side-branch",
    .family = "streams",
    .summary =
        "The recorded order lets a join continue on the side branch's stream, so that the main branch's "
        "stream is lost.",
    .severity = engine::Severity::warning,
    .status = engine::RuleStatus::stable,
    .since = "0.1.0",
    .needs = kNeeds,
    .uses = ir::FactSet{Fact::edge_data, Fact::capture_streams, Fact::sync_ops, Fact::allocations,
                        Fact::kernel_params, Fact::allocator_state, Fact::nvtx, Fact::source_frames},
    .options = kOptions,
    .explains = kExplains,
};

NodeId id(std::uint32_t node) {
  return NodeId(node);
}

std::vector<NodeId> ids(const std::vector<std::uint32_t>& nodes) {
  std::vector<NodeId> list;
  for (const std::uint32_t node : nodes) list.push_back(id(node));
  return list;
}

std::string plural(std::size_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

// The number of a node in the input, as reports have it.
std::uint64_t number_of(const engine::GraphContext& context, std::uint32_t node) {
  return entity_of(context, id(node), "").source_id;
}

// "node 4", "nodes 2-4", "nodes 2, 5-7".
std::string node_numbers(const engine::GraphContext& context, const std::vector<std::uint32_t>& nodes) {
  std::string text = nodes.size() == 1 ? "node " : "nodes ";
  for (std::size_t i = 0; i < nodes.size();) {
    std::size_t end = i + 1;
    while (end < nodes.size() && number_of(context, nodes[end]) == number_of(context, nodes[end - 1]) + 1)
      ++end;
    text += fmt::format("{}{}", i == 0 ? "" : ", ", number_of(context, nodes[i]));
    if (end - i > 1) text += fmt::format("-{}", number_of(context, nodes[end - 1]));
    i = end;
  }
  return text;
}

// "in 60 layers" where layers are known, else "in 60 places".
std::string where(const engine::GraphContext& context, std::span<const OrderPattern> patterns) {
  std::set<std::int32_t> layers;
  std::size_t moves = 0;
  for (const OrderPattern& pattern : patterns) {
    moves += pattern.moves.size();
    for (const OrderMove& move : pattern.moves) layers.insert(layer_of(context, id(move.winner)));
  }
  if (!layers.empty() && *layers.begin() >= 0) return "in " + plural(layers.size(), "layer");
  return "in " + plural(moves, "place");
}

// Edits one by one, those that look alike told once: which nodes go right before which.
std::vector<std::string> edit_texts(const engine::GraphContext& context,
                                    const std::vector<OrderEdit>& edits) {
  constexpr std::size_t kMaxTexts = 6;
  struct Group {
    const OrderEdit* first = nullptr;
    std::size_t count = 0;
  };
  std::vector<std::string> names;
  std::vector<Group> groups;
  for (const OrderEdit& edit : edits) {
    const std::string before = edit.before == analysis::kNoNode ? "" : stable_name(context, id(edit.before));
    std::string name = stable_sequence(context, ids(edit.nodes)) + ">" + before;
    const auto known = std::find(names.begin(), names.end(), name);
    if (known != names.end()) {
      ++groups[static_cast<std::size_t>(known - names.begin())].count;
      continue;
    }
    names.push_back(std::move(name));
    groups.push_back({&edit, 1});
  }
  std::vector<std::string> texts;
  std::size_t left = 0;
  for (const Group& group : groups) {
    if (texts.size() == kMaxTexts) {
      left += group.count;
      continue;
    }
    const OrderEdit& edit = *group.first;
    const std::string place = edit.before == analysis::kNoNode
                                  ? std::string("last of all")
                                  : fmt::format("right before node {} ({})", number_of(context, edit.before),
                                                entity_of(context, id(edit.before), "").label);
    texts.push_back(fmt::format("{}record {} ({}) later, {}",
                                group.count == 1 ? "" : fmt::format("in {} places, the first: ", group.count),
                                node_numbers(context, edit.nodes), label_list(context, ids(edit.nodes)),
                                place));
  }
  if (left > 0) texts.push_back(plural(left, "more block") + " as in the list of edits");
  return texts;
}

// The edge winner -> join: its call is the wait that a reader has to look for.
engine::Finding& add_sources(engine::Finding& finding, const engine::GraphContext& context,
                             const OrderSearchResult& result) {
  const OrderMove& move = result.patterns[0].moves[0];
  const OrderEdit& edit = result.edits[0];
  const ir::Graph& graph = context.graph;
  for (const ir::EdgeId edge : graph.in_edges(id(move.before))) {
    if (graph.edge_from[edge] != id(move.winner) || graph.edge_sync.empty() ||
        !graph.edge_sync[edge].is_valid())
      continue;
    finding.sources = sources_of(context, graph.sync_ops[graph.edge_sync[edge]].stack, "wait");
  }
  const auto add = [&](std::uint32_t node, std::string_view role) {
    for (auto& place : sources_of(context, id(node), role)) finding.sources.push_back(std::move(place));
  };
  add(edit.nodes.front(), "first launch of the block to record later");
  if (result.moves_are_edits) {
    add(move.after, "launch to record before it");
  } else if (edit.before != analysis::kNoNode) {
    add(edit.before, "launch to record right after it");
  }
  return finding;
}

// Inputs of the moved blocks whose memory is freed or released between the old place and the new one, which
// may be anywhere before the wait.
struct Releases {
  std::size_t nodes = 0;
  std::string example;
};

Releases find_releases(const engine::GraphContext& context, const OrderSearchResult& result) {
  const ir::Graph& graph = context.graph;
  Releases releases;
  if (graph.sequence.empty()) return releases;
  for (const OrderEdit& edit : result.edits) {
    const std::uint64_t wait = edit.before == analysis::kNoNode ? std::numeric_limits<std::uint64_t>::max()
                                                                : graph.sequence[id(edit.before)];
    for (const std::uint32_t moved : edit.nodes) {
      const NodeId node = id(moved);
      const ir::KernelNode* kernel = graph.kernel(node);
      if (kernel == nullptr) continue;
      const std::uint64_t old_place = graph.sequence[node];
      const auto between = [&](std::uint64_t sequence) { return sequence > old_place && sequence < wait; };
      bool released = false;
      for (const ir::ParamWord& word : graph.params_of(*kernel)) {
        if (word.allocation.is_valid() &&
            between(context.recording.allocations[word.allocation].free_sequence))
          released = true;
        for (const ir::AllocatorBlock& block : context.recording.allocator_blocks) {
          released =
              released || (block.state != ir::AllocatorBlock::State::active && between(block.sequence) &&
                           word.value >= block.base && word.value - block.base < block.size_bytes);
        }
      }
      if (!released) continue;
      if (releases.nodes++ == 0) releases.example = entity_of(context, node, "").label;
    }
  }
  return releases;
}

void add_side_effects(engine::Finding& finding, const engine::GraphContext& context,
                      const OrderSearchResult& result) {
  // The indices are those of the model's edges, which begin with the graph's own, in their order.
  const auto edges = [&](const std::vector<std::uint32_t>& list, std::string_view what) {
    const ir::EdgeId first(list.front());
    return fmt::format("{} {} (first: {} to {}, nodes {} and {})", plural(list.size(), "programmatic edge"),
                       what, entity_of(context, context.graph.edge_from[first], "").label,
                       entity_of(context, context.graph.edge_to[first], "").label,
                       number_of(context, context.graph.edge_from[first].index()),
                       number_of(context, context.graph.edge_to[first].index()));
  };
  if (!result.programmatic_lost.empty()) {
    finding.fix.side_effects.push_back(
        edges(result.programmatic_lost, "lost") +
        ": consumer and producer no longer follow each other on one stream, so they no longer overlap");
  }
  if (!result.programmatic_gained.empty()) {
    finding.fix.side_effects.push_back(edges(result.programmatic_gained, "gained") +
                                       ": consumer and producer now follow each other on one stream");
  }
  const ir::FactSet needed{Fact::kernel_params, Fact::allocations};
  if (context.graph.facts.contains_all(needed) && !context.graph.sequence.empty()) {
    const Releases releases = find_releases(context, result);
    if (releases.nodes > 0) {
      finding.fix.side_effects.push_back(fmt::format(
          "memory used by {} of the block{} is freed or released before the wait (first: {}): "
          "take a reference first, else the replay finds whatever is there by then",
          plural(releases.nodes, "kernel"), finding.occurrence_count == 1 ? "" : "s", releases.example));
    }
  } else {
    finding.fix.side_effects.push_back(
        "not checked: whether an input of the block is freed or released before the wait (take a reference "
        "first "
        "if so)");
  }
}

class JoinFollowsSideBranch final : public engine::Rule {
 public:
  [[nodiscard]] const engine::RuleInfo& info() const override { return kInfo; }

  void check(const engine::GraphContext& context, engine::FindingSink& sink) const override {
    const analysis::PredictedStreams& predicted = context.analyses.predicted_streams();
    if (!predicted.available) {
      return sink.not_checked(
          {}, predicted.note.empty() ? "streams cannot be predicted for this graph" : predicted.note);
    }
    const analysis::Width& width = context.analyses.width();
    if (predicted.count <= 1) return;
    if (predicted.count <= width.count) {
      if (!width.exact) sink.not_checked({}, kWidthUnknown);
      return;
    }

    const analysis::StreamRun& run = *context.analyses.stream_run();  // there, as streams were predicted
    std::vector<std::uint32_t> labels;
    std::vector<std::int32_t> streams;
    labels.reserve(context.graph.node_count());
    streams.reserve(context.graph.capture_stream.size());
    for (const NodeId node : context.graph.nodes()) {
      labels.push_back(context.graph.name[node].index());
      if (context.graph.capture_stream.empty()) continue;
      const ir::StreamId stream = context.graph.capture_stream[node];
      streams.push_back(stream.is_valid() ? static_cast<std::int32_t>(stream.index()) : -1);
    }
    analysis::OrderSearchInput input;
    input.graph = run.columns.view();
    input.as_given = &run.prediction;
    input.label = labels;
    input.capture_stream = streams;
    input.needed_streams = std::max(1U, width.count);
    // About a second at most: a prediction takes a second for some two million nodes with two edges each.
    constexpr std::size_t kNodeBudget = 2'000'000;
    const std::size_t size = std::max(run.columns.kinds.size(), run.columns.edges.size() / 2);
    input.max_evaluations = static_cast<std::uint32_t>(std::clamp<std::size_t>(kNodeBudget / (size + 1), 16, 400));
    const OrderSearchResult result = analysis::search_order(input);
    const auto min_gain = context.config.integer(kInfo, "min_gain"),
               slack = context.config.integer(kInfo, "slack");

    engine::Finding finding;
    finding.severity = kInfo.severity;
    finding.confidence =
        predicted.confidence >= 0.4 ? engine::Confidence::likely : engine::Confidence::possible;
    finding.rests_on = {Fact::nodes, Fact::edges, Fact::creation_order};
    finding.threads = {"sgl-project/sglang#30460", "sgl-project/sglang#29463", "sgl-project/sglang#39420"};
    finding.evidence = {{"streams_predicted", std::int64_t{result.streams_before}},
                        {"width", std::int64_t{width.count}},
                        {"model_confidence", predicted.confidence}};
    if (!predicted.note.empty()) finding.evidence.emplace_back("note", predicted.note);
    if (result.verdict == OrderSearchResult::Verdict::improved &&
        std::int64_t{result.streams_before} - result.streams_after >= min_gain) {
      if (result.patterns.empty())
        report_creation(std::move(finding), context, result, width.count, sink);
      else
        report_order(std::move(finding), context, result, width.count, slack, sink);
    } else if (has_fresh_branches(result, result.streams_before, width.count, slack)) {
      report_fresh(std::move(finding), context, result, width.count, sink);
    } else if (result.cut_short) {
      sink.not_checked({}, "the graph has too many edges or nodes for a full search of an order that needs fewer streams");
    }
  }

 private:
  // Enough branches start on a fresh stream, and enough streams are left, to say so.
  static bool has_fresh_branches(const OrderSearchResult& result, std::uint32_t streams, std::uint32_t width,
                                 std::int64_t slack) {
    return result.fresh_heads.size() >= 3 && std::int64_t{streams} > std::int64_t{width} + slack;
  }

  static void report_order(engine::Finding finding, const engine::GraphContext& context,
                           const OrderSearchResult& result, std::uint32_t width, std::int64_t slack,
                           engine::FindingSink& sink) {
    const OrderMove& first = result.patterns[0].moves[0];
    const engine::Entity join = entity_of(context, id(first.before), "join");
    const engine::Entity winner =
        entity_of(context, id(first.winner), "tail that takes the join, recorded first:");
    const engine::Entity loser =
        entity_of(context, id(first.after), "tail whose stream is lost, recorded last:");
    finding.message = fmt::format(
        "predicted to replay on {} streams where {} can be busy at once: {} joins continue on the branch "
        "whose tail was recorded first, "
        "the other branch's stream is lost each time; another order of recording needs {}",
        result.streams_before, width, where(context, result.patterns),
        plural(result.streams_after, "stream"));
    finding.evidence.emplace_back("streams_in_better_order", std::int64_t{result.streams_after});
    std::size_t moves = 0;
    std::vector<std::string> texts;
    std::string basis;
    for (const OrderPattern& pattern : result.patterns) {
      const OrderMove& move = pattern.moves[0];
      moves += pattern.moves.size();
      basis += stable_sequence(context, ids(move.nodes)) + ">" + stable_name(context, id(move.before)) + "|";
      if (result.moves_are_edits)
        texts.push_back(
            fmt::format("{}: record {} ({}) after {}, before the wait of {}; the first is {}, after node {}, "
                        "before node {}",
                        where(context, {&pattern, 1}),
                        move.nodes.size() == 1 ? std::string("the node")
                                               : fmt::format("the block of {} nodes", move.nodes.size()),
                        label_list(context, ids(move.nodes)), entity_of(context, id(move.after), "").label,
                        entity_of(context, id(move.before), "").label, node_numbers(context, move.nodes),
                        number_of(context, move.after), number_of(context, move.before)));
      for (const OrderMove& each : pattern.moves) {
        if (!lists_more(finding)) continue;
        finding.occurrences.push_back({layer_of(context, id(each.winner)),
                                       {entity_of(context, id(each.before), "join"),
                                        entity_of(context, id(each.winner), "tail that takes the join"),
                                        entity_of(context, id(each.after), "tail whose stream is lost")}});
      }
    }
    for (const OrderEdit& edit : result.edits)
      finding.fix.edits.push_back({engine::Edit::Kind::move_later, edit.nodes, edit.before, ""});
    if (!result.moves_are_edits) texts = edit_texts(context, result.edits);
    finding.evidence.emplace_back("blocks_to_move", static_cast<std::int64_t>(result.edits.size()));
    finding.occurrence_count = static_cast<std::uint32_t>(moves);
    finding.primary = {join};
    finding.related = {winner, loser};
    for (std::size_t i = 0; i < texts.size(); ++i) finding.fix.text += (i == 0 ? "" : "; ") + texts[i];
    finding.fix.text +=
        fmt::format(" ({} to {} streams by the model)", result.streams_before, result.streams_after);
    if (has_fresh_branches(result, result.streams_after, width, slack)) {
      const std::uint32_t head = result.fresh_heads.front();
      finding.evidence.emplace_back("fresh_branches", static_cast<std::int64_t>(result.fresh_heads.size()));
      finding.fix.text += fmt::format(
          "; of the rest, {} branches start on a fresh stream each (the first is {}, node {}): keep one side "
          "stream per "
          "role for all layers",
          result.fresh_heads.size(), entity_of(context, id(head), "").label, number_of(context, head));
    }
    add_sources(finding, context, result);
    add_side_effects(finding, context, result);
    sink.report(std::move(finding), basis);
  }

  // No join to name: nodes were created before nodes that they wait for, as calls that add edges one by one can do.
  static void report_creation(engine::Finding finding, const engine::GraphContext& context,
                              const OrderSearchResult& result, std::uint32_t width,
                              engine::FindingSink& sink) {
    finding.message = fmt::format(
        "predicted to replay on {} streams where {} can be busy at once: nodes were created before nodes that they "
        "wait for; another order of creation needs {}",
        result.streams_before, width, plural(result.streams_after, "stream"));
    finding.evidence.emplace_back("streams_in_better_order", std::int64_t{result.streams_after});
    finding.evidence.emplace_back("blocks_to_move", static_cast<std::int64_t>(result.edits.size()));
    std::string basis = "creation:";
    for (const OrderEdit& edit : result.edits) {
      basis += stable_sequence(context, ids(edit.nodes)) + "|";
      finding.fix.edits.push_back({engine::Edit::Kind::move_later, edit.nodes, edit.before, ""});
    }
    finding.occurrence_count = static_cast<std::uint32_t>(result.edits.size());
    const NodeId first = id(result.edits.front().nodes.front());
    finding.primary = {entity_of(context, first, "to create later")};
    finding.sources = sources_of(context, first, "node to create later");
    for (const std::string& text : edit_texts(context, result.edits))
      finding.fix.text += (finding.fix.text.empty() ? "" : "; ") + text;
    finding.fix.text +=
        fmt::format(" ({} to {} streams by the model)", result.streams_before, result.streams_after);
    add_side_effects(finding, context, result);
    sink.report(std::move(finding), basis);
  }

  enum class SideRecorded : std::uint8_t { unknown, first, last };

  // Whether most of the fresh branches start before the other branches of their fork do.
  static SideRecorded side_recorded(const engine::GraphContext& context, const OrderSearchResult& result) {
    const ir::Graph& graph = context.graph;
    if (graph.capture_stream.empty()) return SideRecorded::unknown;
    std::size_t first = 0;
    for (const std::uint32_t head : result.fresh_heads) {
      bool has_later_sibling = false;
      for (const ir::EdgeId in : graph.in_edges(id(head))) {
        for (const ir::EdgeId out : graph.out_edges(graph.edge_from[in]))
          has_later_sibling = has_later_sibling || graph.edge_to[out].index() > head;
      }
      first += has_later_sibling ? 1 : 0;
    }
    return first * 2 > result.fresh_heads.size() ? SideRecorded::first : SideRecorded::last;
  }

  static void report_fresh(engine::Finding finding, const engine::GraphContext& context,
                           const OrderSearchResult& result, std::uint32_t width, engine::FindingSink& sink) {
    finding.message = fmt::format(
        "predicted to replay on {} streams where {} can be busy at once: {} branches start on a fresh stream "
        "and wait for nothing that "
        "an earlier side branch recorded, so none of its streams can go on; no order of recording helps",
        result.streams_before, width, result.fresh_heads.size());
    finding.evidence.emplace_back("fresh_branches", static_cast<std::int64_t>(result.fresh_heads.size()));
    std::set<std::string> names;
    for (const std::uint32_t head : result.fresh_heads) {
      names.insert(stable_name(context, id(head)));
      if (!lists_more(finding)) continue;
      finding.occurrences.push_back(
          {layer_of(context, id(head)), {entity_of(context, id(head), "opens a stream")}});
    }
    finding.occurrence_count = static_cast<std::uint32_t>(result.fresh_heads.size());
    finding.primary = {entity_of(context, id(result.fresh_heads.front()), "opens a stream")};
    finding.sources = sources_of(context, id(result.fresh_heads.front()), "first launch of the branch");
    finding.fix.text =
        "keep one side stream per role for all layers, instead of a new one (or one from a rotating pool) "
        "per layer: then each side "
        "branch follows the one before it and inherits its stream";
    switch (side_recorded(context, result)) {
      case SideRecorded::first:
        finding.fix.text +=
            "; and record the main branch first, up to its last kernel before the join: both are needed, "
            "since "
            "the join continues on the branch whose last kernel was recorded first";
        break;
      case SideRecorded::unknown:
        finding.fix.text +=
            "; and if the side branch's last kernel is recorded before the main branch's, record the main "
            "branch's first: then both are needed, since the join continues on the branch whose last kernel "
            "was recorded first";
        break;
      case SideRecorded::last:
        break;
    }
    finding.fix.side_effects.push_back("a side branch then waits for the side branch of the layer before");
    std::string basis = "fresh:";
    for (const std::string& name : names) basis += name + ";";
    sink.report(std::move(finding), basis);
  }
};

}  // namespace

std::unique_ptr<engine::Rule> make_join_follows_side_branch() {
  return std::make_unique<JoinFollowsSideBranch>();
}

}  // namespace cglint::rules
