#include "analysis/width.h"

#include <algorithm>

namespace cglint::analysis {
namespace {

// A minimum flow with lower bounds, grown node by node.
//
// Every node v is split into in(v) -> out(v). Paths may share nodes; an activity node needs at least one path
// through it (demand 1), others none. A path may start at any in(v) and end at any out(v); the number of
// starts is to be smallest. Nodes are added in topological order. A new activity node w needs a unit at
// in(w), and looks for one in the residual:
//   at in(v):  take a unit from out(p) of a predecessor p, over p -> v; or, if more paths go through v than
//   it demands,
//              send one fewer through v, which then lacks at out(v);
//   at out(v): a path that has ended here goes on (found); or bring one more unit through v, from in(v); or
//   call back
//              the unit that flows over an edge v -> x, which x then lacks at in(x).
// If there is none, a new path starts at w, and the answer grows by one.
//
// The set of states that a failed search has seen is closed and holds no ended path, and stays so: a flow
// changes only along found walks, none of which can pass through the set, and paths end only at nodes added
// later. So states of failed searches are never looked at again ("dead"), and all failed searches together
// cost one pass over the graph.
//
// Each path starts in the dead set (where its search failed) and ends outside it. Flow leaves the dead set
// only through a node with in(v) dead and out(v) alive, and at most once (the dead set holds all ancestors of
// what it holds); exactly one unit passes there, for if more than demanded passed, out(v) would be dead. Two
// such nodes cannot be ordered, as the earlier one's out would be dead. Hence these nodes are an antichain as
// large as the number of paths: the witness.
class PathCover {
 public:
  PathCover(const ir::Graph& graph, std::uint64_t max_steps)
      : graph_(graph),
        max_steps_(max_steps),
        through_(graph.node_count(), 0),
        ended_(graph.node_count(), 0),
        flow_(graph.edge_count(), 0),
        seen_(2 * graph.node_count(), 0),
        came_from_(2 * graph.node_count()) {}

  Width run(const TopologicalOrder& order) {
    Width width;
    for (const ir::NodeId node : order.order) {
      const bool is_activity = is_active_work(graph_, node);
      pull_forced(node);
      if (!is_activity || through_[node.index()] > 0) continue;
      if (width.exact && steps_ >= max_steps_) width.exact = false;
      if (width.exact ? find(node.index()) : find_adjacent(node)) continue;
      ++through_[node.index()];
      ++ended_[node.index()];
      ++width.count;
    }
    width.steps = steps_;
    if (!width.exact) return width;
    for (const ir::NodeId node : graph_.nodes())
      if (is_active_work(graph_, node) && seen_[in(node.index())] == kDead &&
          seen_[out(node.index())] != kDead)
        width.antichain.push_back(node);
    CGLINT_CHECK(width.antichain.size() == width.count);
    return width;
  }

 private:
  static constexpr std::uint32_t kDead = ~std::uint32_t{0};
  static std::uint32_t in(std::uint32_t node) { return 2 * node; }
  static std::uint32_t out(std::uint32_t node) { return 2 * node + 1; }
  // Demand of the nodes that were added so far.
  [[nodiscard]] std::uint32_t demand(std::uint32_t node) const {
    return is_active_work(graph_, ir::NodeId(node)) ? 1 : 0;
  }

  void send(ir::EdgeId edge, std::uint32_t units) {
    flow_[edge.index()] += units;
    ended_[graph_.edge_from[edge].index()] -= units;
    through_[graph_.edge_to[edge].index()] += units;
    ended_[graph_.edge_to[edge].index()] += units;
  }

  // All that ended at a predecessor whose only successor is `node` can go on nowhere else: it goes on at
  // once, which keeps ended paths near the nodes that will want them.
  void pull_forced(ir::NodeId node) {
    for (const ir::EdgeId edge : graph_.in_edges(node)) {
      const ir::NodeId from = graph_.edge_from[edge];
      if (graph_.successors(from).size() == 1 && ended_[from.index()] > 0) send(edge, ended_[from.index()]);
    }
  }

  // Beyond the work limit: only a path that ended at a predecessor is taken.
  bool find_adjacent(ir::NodeId node) {
    for (const ir::EdgeId edge : graph_.in_edges(node)) {
      if (ended_[graph_.edge_from[edge].index()] == 0) continue;
      send(edge, 1);
      return true;
    }
    return false;
  }

  bool find(std::uint32_t node) {
    ++round_;
    queue_.clear();
    push(in(node), kNoEdge, 0);
    for (std::size_t head = 0; head < queue_.size(); ++head) {
      const std::uint32_t state = queue_[head];
      const std::uint32_t v = state / 2;
      ++steps_;
      if (state % 2 == 0) {
        const std::span<const ir::EdgeId> edges = graph_.in_edges(ir::NodeId(v));
        steps_ += edges.size();
        for (const ir::EdgeId edge : edges) push(out(graph_.edge_from[edge].index()), edge.index(), state);
        if (through_[v] > demand(v)) push(out(v), kNoEdge, state);
        continue;
      }
      if (ended_[v] > 0) {
        apply(state);
        return true;
      }
      push(in(v), kNoEdge, state);
      const auto edges = graph_.out_edges(ir::NodeId(v));
      steps_ += edges.size();
      for (const ir::EdgeId edge : edges)
        if (flow_[edge.index()] > 0) push(in(graph_.edge_to[edge].index()), edge.index(), state);
    }
    for (const std::uint32_t state : queue_) seen_[state] = kDead;
    return false;
  }

  static constexpr std::uint32_t kNoEdge = ~std::uint32_t{0};
  struct Step {
    std::uint32_t edge = kNoEdge, previous = 0;
  };
  void push(std::uint32_t state, std::uint32_t edge, std::uint32_t previous) {
    if (seen_[state] == kDead || seen_[state] == round_) return;
    seen_[state] = round_;
    came_from_[state] = {edge, previous};
    queue_.push_back(state);
  }

  // Moves the unit that ended at `state` along the walk to where it was wanted.
  void apply(std::uint32_t state) {
    --ended_[state / 2];
    while (state != queue_.front()) {
      const Step step = came_from_[state];
      const std::uint32_t wanted = step.previous;
      if (step.edge == kNoEdge) {
        // in(v) wanted it from out(v): one fewer goes through v. out(v) wanted it from in(v): one more.
        if (wanted % 2 == 0)
          --through_[wanted / 2];
        else
          ++through_[wanted / 2];
      } else if (wanted % 2 == 0) {
        ++flow_[step.edge];
      } else {
        --flow_[step.edge];
      }
      state = wanted;
    }
    ++through_[state / 2];
    ++ended_[state / 2];
  }

  const ir::Graph& graph_;
  std::uint64_t max_steps_, steps_ = 0;
  std::vector<std::uint32_t> through_,
      ended_;                        // per node: units through it, and how many of them go no further
  std::vector<std::uint32_t> flow_;  // per edge
  std::vector<std::uint32_t> seen_;  // per state: round of the last search that saw it, or kDead
  std::vector<Step> came_from_;      // per state
  std::vector<std::uint32_t> queue_;
  std::uint32_t round_ = 0;
};

}  // namespace

Width width_of(const ir::Graph& graph, const TopologicalOrder& order, std::uint64_t max_steps) {
  CGLINT_CHECK(graph.node_count() < (std::uint32_t{1} << 31));
  return PathCover(graph, max_steps).run(order);
}

}  // namespace cglint::analysis
