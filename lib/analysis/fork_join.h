// Fork/join regions: a node with several successors, the nearest node that all of them lead to (its immediate
// post-dominator), and the branches between. The graph's roots, if there are several, make one region more.
// Regions nest: a branch lists its inner regions' nodes too.
#pragma once

#include <cstdint>
#include <vector>

#include "analysis/topology.h"
#include "ir/graph.h"

namespace cglint::analysis {

struct Branch {
  // Ascending; nodes between fork and join that belong to this branch: its head, and every node whose first
  // predecessor in the region (in topological order) does. Each node of a region is in exactly one branch.
  std::vector<ir::NodeId> nodes;
  ir::NodeId head;  // a successor of the fork (or a root)
  // The last of the nodes (in topological order) with an edge to the join; if there is none (no join, or the
  // branch leads there only through another one), the last of the nodes.
  ir::NodeId tail;
};

struct ForkJoinRegion {
  ir::NodeId fork;               // invalid: the region starts at the graph's roots
  ir::NodeId join;               // invalid: the branches never all meet again
  std::vector<Branch> branches;  // by head; at least two, or one plus a direct fork -> join edge
  bool has_direct_edge = false;  // fork -> join without a node between
  bool disjoint = true;          // no edges between different branches
  // Listing stopped at the limit of find_fork_join_regions: `branches` holds the heads, but not all nodes,
  // and `disjoint` is not known.
  bool truncated = false;
};

// The region of the roots first, then by fork id. Many regions without a join (a chain from which dead ends
// branch off), or regions nested thousands deep, would make lists of quadratic length: after kMinListedNodes
// nodes, or kMaxListedNodesPerNode x node_count() if that is more, the regions not yet listed (the outer
// ones) are truncated.
inline constexpr std::size_t kMaxListedNodesPerNode = 16;
inline constexpr std::size_t kMinListedNodes = 1'000'000;
std::vector<ForkJoinRegion> find_fork_join_regions(const ir::Graph& graph, const TopologicalOrder& order);

}  // namespace cglint::analysis
