#include "join/join.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "analysis/kernel_identity.h"
#include "analysis/node_times.h"
#include "analysis/predicted_streams.h"
#include "analysis/replay_streams.h"
#include "analysis/stream_graph.h"
#include "analysis/stream_model.h"
#include "analysis/topology.h"

namespace cglint::join {
namespace {

using ir::Fact;
using ir::NodeId;

constexpr double kMinimumFit = 0.98;
// The model's confidence for kinds that it covers, where the driver is unknown (as in a DOT file): the trace may tell no more.
constexpr double kCertainPrediction = 0.49;

// What a node looks like to the other recording. Tokens of equal looks share a number.
class Tokens {
 public:
  explicit Tokens(bool with_launch_config) : with_launch_config_(with_launch_config) {}

  std::uint32_t of(const ir::Graph& graph, NodeId node, const analysis::KernelIdentities& identities) {
    std::string key(1, static_cast<char>(graph.kind[node]));
    if (const ir::KernelNode* kernel = graph.kernel(node); kernel != nullptr) {
      if (kernel->function.is_valid()) key += identities.of(kernel->function).normalised;
      if (with_launch_config_) {
        for (const std::uint32_t size : {kernel->grid.x, kernel->grid.y, kernel->grid.z, kernel->block.x, kernel->block.y, kernel->block.z})
          key += '/' + std::to_string(size);
      }
    }
    return numbers_.try_emplace(std::move(key), static_cast<std::uint32_t>(numbers_.size())).first->second;
  }

 private:
  bool with_launch_config_;
  std::unordered_map<std::string, std::uint32_t> numbers_;
};

using Counts = std::map<std::uint32_t, std::size_t>;  // token -> nodes

struct Candidate {
  ir::GraphId id;
  base::IdVector<NodeId, std::uint32_t> token;
  Counts counts;
  std::size_t activities = 0;
};

Candidate describe(const ir::Recording& recording, ir::GraphId id, const analysis::KernelIdentities& identities, Tokens& tokens) {
  const ir::Graph& graph = *recording.graphs[id];
  Candidate candidate;
  candidate.id = id;
  candidate.token.assign(graph.node_count(), 0);
  for (const NodeId node : graph.nodes()) {
    if (!ir::is_activity(graph.kind[node])) continue;
    if (!graph.enabled.empty() && graph.enabled[node] == 0) continue;
    candidate.token[node] = tokens.of(graph, node, identities);
    ++candidate.counts[candidate.token[node]];
    ++candidate.activities;
  }
  return candidate;
}

// Share of the larger graph's activity nodes that both have.
double similarity(const Candidate& a, const Candidate& b) {
  std::size_t common = 0;
  for (const auto& [token, count] : a.counts)
    if (const auto it = b.counts.find(token); it != b.counts.end()) common += std::min(count, it->second);
  const std::size_t larger = std::max(a.activities, b.activities);
  return larger > 0 ? static_cast<double>(common) / static_cast<double>(larger) : 0.0;
}

// Ties the operations of one launch to nodes, by start time along the graph's order.
class LaunchMatcher {
 public:
  LaunchMatcher(const ir::Graph& graph, const Candidate& candidate) : graph_(graph), candidate_(candidate) {}

  void run(std::span<ir::ReplayOp> operations, const std::vector<std::uint32_t>& tokens, Match& match) {
    missing_.assign(graph_.node_count(), 0);
    taken_.assign(graph_.node_count(), false);
    stream_.assign(graph_.node_count(), std::nullopt);
    ready_.clear();
    waiting_.clear();
    for (const NodeId node : graph_.nodes()) missing_[node] = static_cast<std::uint32_t>(graph_.predecessors(node).size());
    for (const NodeId node : graph_.nodes())
      if (is_candidate(node)) waiting_[candidate_.token[node]].push_back(node);
    for (const NodeId node : graph_.nodes())
      if (missing_[node] == 0) become_ready(node);
    for (std::size_t i = 0; i < operations.size(); ++i) {
      ir::ReplayOp& op = operations[i];
      op.node = NodeId();
      ++match.operations;
      const NodeId node = choose(tokens[i], {op.device, op.stream}, match);
      if (!node.is_valid()) continue;
      op.node = node;
      ++match.matched;
      stream_[node] = std::pair(op.device, op.stream);
      take(node);
    }
  }

 private:
  using Stream = std::pair<std::int32_t, std::uint64_t>;

  [[nodiscard]] bool is_candidate(NodeId node) const {
    return ir::is_activity(graph_.kind[node]) && (graph_.enabled.empty() || graph_.enabled[node] != 0);
  }

  // Nodes without records are passed through as soon as they are ready.
  void become_ready(NodeId node) {
    if (taken_[node]) return;
    if (is_candidate(node)) ready_[candidate_.token[node]].push_back(node);
    else take(node);
  }

  void take(NodeId first) {
    std::vector<NodeId> stack{first};
    while (!stack.empty()) {
      const NodeId node = stack.back();
      stack.pop_back();
      if (taken_[node]) continue;
      taken_[node] = true;
      for (const NodeId next : graph_.successors(node)) {
        if (--missing_[next] != 0 || taken_[next]) continue;
        if (is_candidate(next)) ready_[candidate_.token[next]].push_back(next);
        else stack.push_back(next);
      }
    }
  }

  NodeId choose(std::uint32_t token, Stream stream, Match& match) {
    if (const auto it = ready_.find(token); it != ready_.end()) {
      auto& list = it->second;
      std::erase_if(list, [&](NodeId node) { return taken_[node]; });
      if (!list.empty()) {
        const auto continues = [&](NodeId node) {
          const auto before = graph_.predecessors(node);
          return std::any_of(before.begin(), before.end(), [&](NodeId from) { return stream_[from] == stream; });
        };
        auto best = std::min_element(list.begin(), list.end(), [&](NodeId a, NodeId b) {
          return std::tuple(!continues(a), a) < std::tuple(!continues(b), b);
        });
        if (list.size() > 1) {
          const auto same_stream = std::count_if(list.begin(), list.end(), continues);
          if (same_stream != 1) ++match.ambiguous;
        }
        return *best;
      }
    }
    // Nothing ready looks like it (equal start times, programmatic edges, a record lost before): the first left.
    if (const auto it = waiting_.find(token); it != waiting_.end()) {
      for (const NodeId node : it->second) {
        if (taken_[node]) continue;
        ++match.out_of_order;
        return node;
      }
    }
    return NodeId();
  }

  const ir::Graph& graph_;
  const Candidate& candidate_;
  base::IdVector<NodeId, std::uint32_t> missing_;
  base::IdVector<NodeId, bool> taken_;
  base::IdVector<NodeId, std::optional<Stream>> stream_;
  std::unordered_map<std::uint32_t, std::vector<NodeId>> ready_, waiting_;
};

// Node of `graph` by the id in the input, if both sides carry ids of one kind.
std::optional<std::unordered_map<std::uint64_t, NodeId>> node_ids(const ir::Graph& graph, const ir::Graph& traced) {
  if (!traced.facts.contains(Fact::node_identity) || !graph.facts.contains(Fact::node_identity)) return std::nullopt;
  if (graph.source_id.empty() || traced.source_id.empty()) return std::nullopt;
  std::unordered_map<std::uint64_t, NodeId> ids;
  for (const NodeId node : graph.nodes()) ids.emplace(graph.source_id[node] & 0xffffffffU, node);
  if (ids.size() != graph.node_count()) return std::nullopt;
  for (const NodeId node : traced.nodes()) {
    const auto it = ids.find(traced.source_id[node] & 0xffffffffU);
    if (it == ids.end() || graph.kind[it->second] != traced.kind[node]) return std::nullopt;
  }
  return ids;
}

// What the operations of a replay look like.
std::vector<std::uint32_t> tokens_of(std::span<const ir::ReplayOp> operations, const Candidate& traced) {
  std::vector<std::uint32_t> tokens;
  tokens.reserve(operations.size());
  for (const ir::ReplayOp& op : operations) tokens.push_back(op.node.is_valid() ? traced.token[op.node] : ~std::uint32_t{0});
  return tokens;
}

void move_replays(ir::Graph& graph, const Candidate& candidate, ir::Graph& traced, const Candidate& traced_candidate, Match& match) {
  const auto ids = node_ids(graph, traced);
  match.by_id = ids.has_value();
  LaunchMatcher matcher(graph, candidate);
  // Nodes that leave an operation in each launch. Those of bodies are in graphs of their own.
  const auto nodes = graph.nodes();
  const auto expected = static_cast<std::uint64_t>(std::count_if(nodes.begin(), nodes.end(), [&](NodeId node) { return analysis::is_active_work(graph, node); }));
  std::vector<std::uint32_t> last_launch(graph.node_count(), 0);  // in which the node ran, from 1
  for (ir::Replay replay : traced.replays) {
    const auto first = static_cast<std::uint32_t>(graph.replay_ops.size());
    const auto source = traced.ops(replay);
    std::vector<ir::ReplayOp> operations(source.begin(), source.end());
    const std::vector<std::uint32_t> tokens = tokens_of(operations, traced_candidate);
    if (ids) {
      for (ir::ReplayOp& op : operations) {
        ++match.operations;
        const auto it = op.node.is_valid() ? ids->find(traced.source_id[op.node] & 0xffffffffU) : ids->end();
        op.node = it != ids->end() ? it->second : NodeId();
        match.matched += op.node.is_valid() ? 1 : 0;
      }
    } else {
      matcher.run(operations, tokens, match);
    }
    ++match.replays;
    std::uint64_t present = 0;
    for (const ir::ReplayOp& op : operations) {
      graph.replay_ops.push_back(op);
      if (op.node.is_valid() && std::exchange(last_launch[op.node.index()], static_cast<std::uint32_t>(match.replays)) != match.replays)
        present += analysis::is_active_work(graph, op.node) ? 1 : 0;
    }
    // The trace has fewer operations than the structure has nodes, in all launches perhaps: it cannot know, the structure does.
    if (replay.complete && present < expected) {
      match.missing += expected - present;
      replay.complete = false;
    }
    replay.ops.first = first;
    graph.replays.push_back(replay);
  }
  for (const Fact fact : {Fact::replay_streams, Fact::replay_times})
    if (traced.facts.contains(fact)) graph.facts.insert(fact);
  if (ids) graph.facts.insert(Fact::node_identity);
}

// What the trace knows about the process and its GPUs, where the structure does not.
void copy_processes(ir::Recording& to, const ir::Recording& from) {
  const bool has_gpu = std::any_of(to.processes.begin(), to.processes.end(), [](const ir::Process& p) { return !p.gpus.empty(); });
  if (has_gpu) return;
  for (ir::Process process : from.processes) {
    for (ir::StringId* text : {&process.host, &process.command, &process.driver_release, &process.framework, &process.framework_version})
      *text = to.intern(from.text(*text));
    for (ir::Gpu& gpu : process.gpus) {
      gpu.name = to.intern(from.text(gpu.name));
      gpu.uuid = to.intern(from.text(gpu.uuid));
    }
    for (auto& [name, value] : process.environment) {
      name = to.intern(from.text(name));
      value = to.intern(from.text(value));
    }
    to.processes.push_back(std::move(process));
  }
}

// The stream counts, if the graph's prediction is as good as certain and the trace's largest launch shows another one.
std::optional<Contradiction> stream_contradiction(const ir::Recording& structure, const Candidate& target, const ir::Recording& timeline,
                                                  const Candidate& source) {
  const ir::Graph& graph = *structure.graphs[target.id];
  const ir::Graph& traced = *timeline.graphs[source.id];
  if (!traced.facts.contains(Fact::replay_streams)) return std::nullopt;
  const analysis::ReplayStreams measured = analysis::replay_streams(traced);
  const analysis::PredictedStreams predicted = analysis::predict_streams(structure, graph);
  if (!measured.available || !predicted.available || predicted.confidence < kCertainPrediction || predicted.count == measured.max) return std::nullopt;
  return Contradiction{std::string(structure.text(graph.info.name)), std::string(timeline.text(traced.info.name)), predicted.count, measured.max};
}

// Whether every operation of the first complete launch is a node of the graph, and starts after all of its predecessors.
bool launch_follows_edges(const ir::Graph& graph, const Candidate& target, const ir::Graph& traced, const Candidate& source) {
  const auto replay = std::find_if(traced.replays.begin(), traced.replays.end(), [](const ir::Replay& r) { return r.complete; });
  if (replay == traced.replays.end()) return false;
  const ir::ReplayOps ops = traced.ops(*replay);
  std::vector<ir::ReplayOp> operations(ops.begin(), ops.end());
  Match match;
  LaunchMatcher(graph, target).run(operations, tokens_of(operations, source), match);
  return match.matched == match.operations && match.out_of_order == 0;
}

// Whether the trace's nodes, by their ids, are the graph's nodes in the order of creation.
bool ids_give_creation_order(const ir::Graph& graph, const Candidate& target, const ir::Graph& traced, const Candidate& source) {
  if (!traced.facts.contains(Fact::node_identity) || traced.source_id.empty() || !graph.facts.contains(Fact::creation_order)) return false;
  std::vector<NodeId> by_id;
  for (const NodeId node : traced.nodes())
    if (ir::is_activity(traced.kind[node])) by_id.push_back(node);
  std::stable_sort(by_id.begin(), by_id.end(), [&](NodeId a, NodeId b) { return traced.source_id[a] < traced.source_id[b]; });
  std::size_t next = 0;
  for (const NodeId node : graph.nodes()) {
    if (!ir::is_activity(graph.kind[node]) || (!graph.enabled.empty() && graph.enabled[node] == 0)) continue;
    if (next == by_id.size() || source.token[by_id[next]] != target.token[node]) return false;
    ++next;
  }
  return next == by_id.size();
}

// Without a programmatic launch the kernels of a stream run one after the other.
bool streams_overlap_themselves(const ir::Graph& traced) {
  if (!traced.facts.contains(Fact::replay_times)) return false;
  const std::int64_t tolerance = analysis::clock_tolerance_ns(traced);
  std::map<analysis::StreamKey, std::int64_t> end;
  for (const ir::Replay& replay : traced.replays) {
    end.clear();
    for (const ir::ReplayOp& op : traced.ops(replay)) {
      if (op.kind != ir::NodeKind::kernel) continue;
      const auto [it, is_first] = end.try_emplace({op.device, op.stream}, op.end_ns);
      if (!is_first && it->second - op.start_ns > tolerance) return true;
      it->second = std::max(it->second, op.end_ns);
    }
  }
  return false;
}

// Whether the graph would have `count` streams if its edges between kernels were programmatic: all of them, or those into kernels
// with one predecessor.
bool programmatic_edges_give(const ir::Recording& structure, const ir::Graph& graph, std::uint32_t count) {
  analysis::StreamGraphColumns columns = analysis::stream_graph(structure, graph);
  std::vector<std::uint32_t> predecessors(columns.kinds.size());
  for (const analysis::StreamEdge& edge : columns.edges) ++predecessors[edge.to];
  for (const bool all : {false, true}) {
    for (analysis::StreamEdge& edge : columns.edges)
      if (columns.kinds[edge.from] == analysis::StreamNodeKind::kernel && columns.kinds[edge.to] == analysis::StreamNodeKind::kernel &&
          (all || predecessors[edge.to] == 1))
        edge.type = analysis::StreamEdgeType::programmatic;
    if (analysis::predict_stream_count(columns.view()) == count) return true;
  }
  return false;
}

// Why the two are taken for a pair although their stream counts contradict each other; empty if they are not.
std::string_view reason_to_join(const ir::Recording& structure, const Candidate& target, const ir::Recording& timeline, const Candidate& source,
                                std::uint32_t measured) {
  const ir::Graph& graph = *structure.graphs[target.id];
  const ir::Graph& traced = *timeline.graphs[source.id];
  if (!launch_follows_edges(graph, target, traced, source)) return {};
  if (ids_give_creation_order(graph, target, traced, source)) return "the trace's node ids are in the order of the graph's nodes";
  if (graph.facts.contains(Fact::edge_data)) return {};
  if (streams_overlap_themselves(traced)) return "kernels of one stream overlap, as programmatic launches do, which the graph's edges do not tell";
  if (programmatic_edges_give(structure, graph, measured)) return "programmatic edges, which the graph's edges do not tell, would give that number";
  return {};
}

bool takes_replays(const ir::Graph& graph) {
  return graph.info.role != ir::GraphRole::body && graph.info.role != ir::GraphRole::eager && graph.replays.empty() &&
         graph.facts.contains_all({Fact::nodes, Fact::edges});
}

}  // namespace

Report join_timeline(ir::Recording& structure, ir::Recording& timeline, bool force) {
  Report report;
  const analysis::KernelIdentities structure_names(structure, analysis::KernelTable::builtin());
  const analysis::KernelIdentities timeline_names(timeline, analysis::KernelTable::builtin());
  bool launch_configs = true;
  for (const auto& graph : structure.graphs) launch_configs = launch_configs && (graph == nullptr || graph->facts.contains(Fact::launch_config));
  for (const auto& graph : timeline.graphs) launch_configs = launch_configs && (graph == nullptr || graph->facts.contains(Fact::launch_config));
  Tokens tokens(launch_configs);
  std::vector<Candidate> targets;
  for (const ir::GraphId id : structure.graphs.ids())
    if (structure.graphs[id] != nullptr && takes_replays(*structure.graphs[id])) targets.push_back(describe(structure, id, structure_names, tokens));

  std::vector<bool> used(targets.size(), false);
  for (const ir::GraphId id : timeline.graphs.ids()) {
    if (timeline.graphs[id] == nullptr || timeline.graphs[id]->replays.empty()) continue;
    ir::Graph& traced = *timeline.graphs[id];
    const Candidate source = describe(timeline, id, timeline_names, tokens);
    std::size_t best = targets.size();
    double best_fit = kMinimumFit;
    std::optional<Contradiction> contradiction;
    std::optional<Doubt> best_doubt;
    for (std::size_t t = 0; t < targets.size(); ++t) {
      const double fit = similarity(targets[t], source);
      if (fit < kMinimumFit) continue;
      std::optional<Doubt> doubt;
      if (auto found = force ? std::nullopt : stream_contradiction(structure, targets[t], timeline, source)) {
        const std::string_view why = reason_to_join(structure, targets[t], timeline, source, found->measured);
        if (why.empty()) {
          contradiction = std::move(found);
          continue;
        }
        doubt = Doubt{found->predicted, found->measured, why};
      }
      // One that raises no doubt comes first.
      if (best == targets.size() || std::tuple(!doubt, fit, !used[t]) > std::tuple(!best_doubt, best_fit, !used[best])) {
        best = t;
        best_fit = fit;
        best_doubt = doubt;
      }
    }
    if (best == targets.size()) {
      if (contradiction) report.contradictions.push_back(std::move(*contradiction));
      else report.unmatched_timeline.emplace_back(timeline.text(traced.info.name));
      continue;
    }
    used[best] = true;
    ir::Graph& graph = *structure.graphs[targets[best].id];
    Match match;
    match.structure_graph = structure.text(graph.info.name);
    match.timeline_graph = timeline.text(traced.info.name);
    match.doubt = best_doubt;
    move_replays(graph, targets[best], traced, source, match);
    if (match.missing != 0) {
      constexpr ir::FactSet kFacts = {Fact::replay_streams, Fact::replay_times};
      structure.add_loss(ir::Loss::Severity::data_loss, "nodes of the graph without an operation in launches that the trace gives as whole", match.missing,
                         ~std::uint64_t{0}, kFacts);
      for (const Fact fact : {Fact::replay_streams, Fact::replay_times}) {
        if (!graph.facts.contains(fact)) continue;
        graph.facts.erase(fact);
        graph.spoiled.push_back({fact, structure.intern("launches lack operations of nodes of the graph")});
      }
    }
    report.matches.push_back(std::move(match));
    timeline.graphs[id].reset();
  }
  for (std::size_t t = 0; t < targets.size(); ++t)
    if (!used[t]) report.unmatched_structure.emplace_back(structure.text(structure.graphs[targets[t].id]->info.name));
  if (!report.matches.empty()) {
    structure.has_timeline = true;
    copy_processes(structure, timeline);
  }
  return report;
}

}  // namespace cglint::join
