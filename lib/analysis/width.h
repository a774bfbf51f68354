// The width of a graph: the largest number of activity nodes (kernel, memcpy, memset; not disabled) of which
// no two are ordered by `starts after`. This many streams can be busy at once and no more; a sound program
// needs no more streams than that. Computed exactly as the smallest number of paths that cover all activity
// nodes (Dilworth): the nodes are added in topological order, and each takes over a path that has ended,
// directly or by rerouting others (augmentation), or else starts a new one. Near-linear on graphs of
// fork/join layers; work is limited to kWidthMaxSteps.
#pragma once

#include <cstdint>
#include <vector>

#include "analysis/topology.h"
#include "ir/graph.h"

namespace cglint::analysis {

// Search steps (looked-at edges) after which no path is rerouted any more: about a second or two.
inline constexpr std::uint64_t kWidthMaxSteps = 200'000'000;

struct Width {
  std::uint32_t count = 0;
  bool exact = true;                  // false: stopped at the work limit; `count` is then an upper bound
  // One witness of `count` nodes, ascending; empty when not exact. Nodes in the body of one child graph appear as its
  // node, once (Analyses::width).
  std::vector<ir::NodeId> antichain;
  std::uint64_t steps = 0;            // work done
};

Width width_of(const ir::Graph& graph, const TopologicalOrder& order,
               std::uint64_t max_steps = kWidthMaxSteps);

}  // namespace cglint::analysis
