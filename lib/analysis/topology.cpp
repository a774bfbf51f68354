#include "analysis/topology.h"

#include <functional>
#include <queue>

namespace cglint::analysis {

TopologicalOrder topological_order(const ir::Graph& graph) {
  const std::size_t n = graph.node_count();
  TopologicalOrder result;
  result.order.reserve(n);
  result.position.assign(n, 0);
  // Nodes are nearly always created after what they depend on: then creation order is the answer.
  bool parents_come_first = true;
  for (const ir::EdgeId edge : graph.edges()) parents_come_first = parents_come_first && graph.edge_from[edge] < graph.edge_to[edge];
  if (parents_come_first) {
    for (const ir::NodeId node : graph.nodes()) {
      result.position[node] = node.index();
      result.order.push_back(node);
    }
    return result;
  }
  std::vector<std::uint32_t> missing(n);
  std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> ready;
  for (const ir::NodeId node : graph.nodes()) {
    missing[node.index()] = static_cast<std::uint32_t>(graph.predecessors(node).size());
    if (missing[node.index()] == 0) ready.push(node.index());
  }
  while (!ready.empty()) {
    const ir::NodeId node(ready.top());
    ready.pop();
    result.position[node] = static_cast<std::uint32_t>(result.order.size());
    result.order.push_back(node);
    for (const ir::NodeId next : graph.successors(node))
      if (--missing[next.index()] == 0) ready.push(next.index());
  }
  CGLINT_CHECK(result.order.size() == n);  // the verifier refused cycles
  return result;
}

}  // namespace cglint::analysis
