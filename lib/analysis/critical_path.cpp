#include "analysis/critical_path.h"

#include <algorithm>

namespace cglint::analysis {

CriticalPath critical_path(const ir::Graph& graph, const TopologicalOrder& order, const NodeTimes& times) {
  CriticalPath result;
  const std::size_t n = graph.node_count();
  result.measured = times.available;
  base::IdVector<ir::NodeId, std::int64_t> weight(n, 0);
  for (const ir::NodeId node : graph.nodes())
    weight[node] = times.available ? times.median_ns[node] : (is_active_work(graph, node) ? 1 : 0);

  // before: earliest start. via: the in-edge that decides it. after: longest rest once the node has ended.
  // through: longest rest from the node's start.
  base::IdVector<ir::NodeId, std::int64_t> before(n, 0), after(n, 0), through(n, 0);
  base::IdVector<ir::NodeId, ir::NodeId> via(n);
  ir::NodeId last;
  for (const ir::NodeId node : order.order) {
    for (const ir::EdgeId edge : graph.in_edges(node)) {
      const ir::NodeId from = graph.edge_from[edge];
      const std::int64_t start = before[from] + (graph.data(edge).is_launch_order() ? 0 : weight[from]);
      if (!via[node].is_valid() || start > before[node]) {
        before[node] = start;
        via[node] = from;
      }
    }
    const std::int64_t end = before[node] + weight[node];
    if (!last.is_valid() || end > result.length || (end == result.length && node < last)) {
      result.length = end;
      last = node;
    }
  }
  for (auto it = order.order.rbegin(); it != order.order.rend(); ++it) {
    std::int64_t from_start = 0;
    for (const ir::EdgeId edge : graph.out_edges(*it)) {
      std::int64_t& rest = graph.data(edge).is_launch_order() ? from_start : after[*it];
      rest = std::max(rest, through[graph.edge_to[edge]]);
    }
    through[*it] = std::max(from_start, weight[*it] + after[*it]);
  }
  result.slack.assign(n, 0);
  for (const ir::NodeId node : graph.nodes())
    result.slack[node] = result.length - (before[node] + weight[node] + after[node]);
  for (ir::NodeId node = last; node.is_valid(); node = via[node]) result.path.push_back(node);
  std::reverse(result.path.begin(), result.path.end());
  return result;
}

}  // namespace cglint::analysis
