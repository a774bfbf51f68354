// Which nodes are ordered. Two relations over the same nodes:
//   starts_after:          b starts after a has started/finished as the edge type says; every edge counts. Width and
//                          overlap use it.
//   memory_ordered_after:  b sees a's writes. A full edge orders memory. A programmatic edge does so only if the consumer
//                          waits on its grid dependency and, transitively, its producers did; a launch-order edge never.
// Stored by chain cover: for every node and every chain, the first position on the chain that the node reaches. Memory is
// nodes x chains x 4 bytes; where that would exceed a closure in bits, the closure is used instead.
#pragma once

#include <cstdint>
#include <vector>

#include "analysis/topology.h"
#include "ir/graph.h"
#include "ir/recording.h"

namespace cglint::analysis {

class Reachability {
 public:
  // A path a -> ... -> b of at least one edge.
  [[nodiscard]] bool reaches(ir::NodeId a, ir::NodeId b) const;
  [[nodiscard]] bool ordered(ir::NodeId a, ir::NodeId b) const { return a == b || reaches(a, b) || reaches(b, a); }
  [[nodiscard]] bool unordered(ir::NodeId a, ir::NodeId b) const { return !ordered(a, b); }
  // memory_ordered_after only: some edge's effect had to be assumed because the kernel image is unknown.
  [[nodiscard]] bool assumed_grid_dependency_wait() const { return assumed_; }
  [[nodiscard]] std::size_t chain_count() const { return chain_count_; }

 private:
  friend Reachability starts_after(const ir::Graph&, const TopologicalOrder&);
  friend Reachability memory_ordered_after(const ir::Recording&, const ir::Graph&, const TopologicalOrder&);
  friend class ReachabilityBuilder;
  std::size_t node_count_ = 0, chain_count_ = 0;
  std::vector<std::uint32_t> chain_, position_;      // per node
  std::vector<std::uint32_t> first_reached_;         // node-major [node][chain]; ~0 = none
  std::vector<std::uint64_t> closure_;               // used when chain cover would be larger
  std::size_t closure_words_ = 0;
  bool assumed_ = false;
};

Reachability starts_after(const ir::Graph& graph, const TopologicalOrder& order);
// Programmatic edges of kernels whose image is unknown are taken to order memory (and `assumed` is set).
Reachability memory_ordered_after(const ir::Recording& recording, const ir::Graph& graph, const TopologicalOrder& order);

// Edges u -> w that a longer path u -> ... -> w already implies (ids ascending).
std::vector<ir::EdgeId> transitively_implied_edges(const ir::Graph& graph, const TopologicalOrder& order,
                                                   const Reachability& reach);

}  // namespace cglint::analysis
