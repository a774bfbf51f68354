#include "rules/common/order.h"

#include <vector>

namespace cglint::rules {

// In the transitive reduction a node is ordered with all others exactly where no edge passes over its place in a topological
// order, no earlier node is a sink and no later node is a source.
base::IdVector<ir::NodeId, bool> ordered_with_all(const engine::GraphContext& context) {
  const ir::Graph& graph = context.graph;
  const analysis::TopologicalOrder& order = context.analyses.topology();
  std::vector<bool> implied(graph.edge_count(), false);
  for (const ir::EdgeId edge : context.analyses.implied_edges()) implied[edge.index()] = true;
  const std::size_t n = graph.node_count();
  std::vector<std::int64_t> open(n + 1, 0);
  std::vector<std::uint32_t> outs(n, 0), ins(n, 0);
  for (const ir::EdgeId edge : graph.edges()) {
    if (implied[edge.index()]) continue;
    const std::uint32_t from = order.position[graph.edge_from[edge]];
    const std::uint32_t to = order.position[graph.edge_to[edge]];
    ++open[from + 1];
    --open[to];
    ++outs[from];
    ++ins[to];
  }
  std::vector<bool> source_after(n + 1, false);
  for (std::size_t p = n; p-- > 0;) source_after[p] = source_after[p + 1] || ins[p] == 0;
  base::IdVector<ir::NodeId, bool> result(n, false);
  bool sink_before = false;
  std::int64_t passing = 0;
  for (std::size_t p = 0; p < n; ++p) {
    passing += open[p];
    result[order.order[p]] = passing == 0 && !sink_before && !source_after[p + 1];
    sink_before = sink_before || outs[p] == 0;
  }
  return result;
}

}  // namespace cglint::rules
