// The width of a graph: the largest number of activity nodes (kernel, memcpy, memset) of which no two are ordered. This
// many streams can be busy at once and no more; a sound program needs no more streams than that. Computed exactly as the
// smallest number of paths that cover all activity nodes (Dilworth), by reducing a greedy path cover with augmenting paths.
#pragma once

#include <cstdint>
#include <vector>

#include "analysis/topology.h"
#include "ir/graph.h"

namespace cglint::analysis {

struct Width {
  std::uint32_t count = 0;
  bool exact = true;                       // false: stopped at a work limit; `count` is then an upper bound
  std::vector<ir::NodeId> antichain;       // one witness of `count` nodes, ascending; empty when not exact
};

Width width_of(const ir::Graph& graph, const TopologicalOrder& order);

}  // namespace cglint::analysis
