// A topological order of a graph's nodes: Kahn's algorithm that always takes the smallest ready NodeId, so
// the order is creation order whenever creation order is topological.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace cglint::analysis {

// Does the node run and leave an activity record (a kernel, memcpy or memset that is not disabled)?
inline bool is_active_work(const ir::Graph& graph, ir::NodeId node) {
  return ir::is_activity(graph.kind[node]) && (graph.enabled.empty() || graph.enabled[node] != 0);
}

struct TopologicalOrder {
  std::vector<ir::NodeId> order;                       // node_count() entries
  base::IdVector<ir::NodeId, std::uint32_t> position;  // inverse of `order`
};

TopologicalOrder topological_order(const ir::Graph& graph);

}  // namespace cglint::analysis
