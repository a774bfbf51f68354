// The longest path through the graph, by measured median durations where the graph has them, else by node
// count.
#pragma once

#include <vector>

#include "analysis/node_times.h"
#include "analysis/topology.h"
#include "ir/graph.h"

namespace cglint::analysis {

// A launch-order edge lets its consumer start when the producer has started, so a path that leaves a node
// over one does not contain that node's duration. Full and programmatic edges add the producer's whole
// duration: how early a programmatic consumer starts is not known from the graph, and it can finish its own
// work only after the producer.
struct CriticalPath {
  bool measured = false;         // weights are durations in ns; else every activity node weighs 1
  std::int64_t length = 0;       // ns or nodes
  std::vector<ir::NodeId> path;  // in order; of several longest paths the one with the smallest ids
  base::IdVector<ir::NodeId, std::int64_t> slack;  // how much longer a node may take before the length grows
};

CriticalPath critical_path(const ir::Graph& graph, const TopologicalOrder& order, const NodeTimes& times);

}  // namespace cglint::analysis
