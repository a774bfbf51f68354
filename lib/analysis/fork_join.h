// Fork/join regions: a node with several successors, the nearest node that all of them lead to (its immediate
// post-dominator), and the branches between. Regions nest; they are listed by fork id.
#pragma once

#include <vector>

#include "analysis/topology.h"
#include "ir/graph.h"

namespace cglint::analysis {

struct Branch {
  std::vector<ir::NodeId> nodes;           // ascending; nodes between fork and join reached first through this branch's head
  ir::NodeId head, tail;                   // successor of the fork; the branch's last node before the join
};

struct ForkJoinRegion {
  ir::NodeId fork;                         // invalid: the region starts at the graph's roots
  ir::NodeId join;                         // invalid: the branches never meet again
  std::vector<Branch> branches;            // at least two with nodes, or one plus a direct fork -> join edge
  bool has_direct_edge = false;            // fork -> join without a node between
  bool disjoint = true;                    // no edges between different branches
};

std::vector<ForkJoinRegion> find_fork_join_regions(const ir::Graph& graph, const TopologicalOrder& order);

}  // namespace cglint::analysis
