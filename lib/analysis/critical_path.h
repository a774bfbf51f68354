// The longest path through the graph, by measured median durations where the graph has them, else by node count.
#pragma once

#include <vector>

#include "analysis/node_times.h"
#include "analysis/topology.h"
#include "ir/graph.h"

namespace cglint::analysis {

struct CriticalPath {
  bool measured = false;                               // weights are durations in ns; else every activity node weighs 1
  std::int64_t length = 0;                             // ns or nodes
  std::vector<ir::NodeId> path;                        // in order
  base::IdVector<ir::NodeId, std::int64_t> slack;      // how much longer a node may take before the length grows
};

CriticalPath critical_path(const ir::Graph& graph, const TopologicalOrder& order, const NodeTimes& times);

}  // namespace cglint::analysis
