// A topological order of a graph's nodes: Kahn's algorithm that always takes the smallest ready NodeId, so the order
// is creation order whenever creation order is topological.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace cglint::analysis {

struct TopologicalOrder {
  std::vector<ir::NodeId> order;                       // node_count() entries
  base::IdVector<ir::NodeId, std::uint32_t> position;  // inverse of `order`
};

TopologicalOrder topological_order(const ir::Graph& graph);

}  // namespace cglint::analysis
