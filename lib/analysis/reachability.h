// Which nodes are ordered. Two relations over the same nodes:
//   starts_after:          b starts after a has started/finished as the edge type says; every edge counts.
//   Width and
//                          overlap use it.
//   memory_ordered_after:  b sees a's writes: a is known to be complete when b starts, or when b's wait on
//   its grid
//                          dependency returns. A full edge orders memory. A programmatic edge does so only if
//                          the consumer waits on its grid dependency and, transitively, its producers did; a
//                          launch-order edge never. The reasoning is in reachability.cpp. Where a kernel
//                          waits, all that it does is taken to come after its wait.
// Stored by chain cover: for every node and every chain, the last position on the chain that leads to the
// node. Memory is at most nodes x chains x 4 bytes. Where a triangular bit matrix is smaller (wide graphs),
// that is used instead; where both would exceed kMaxBytes, each query is a search pruned by interval labels
// (GRAIL: Yildirim, Chaoji, Zaki, PVLDB 3(1), 2010).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "analysis/topology.h"
#include "ir/graph.h"
#include "ir/recording.h"

namespace cglint::analysis {

class Reachability {
 public:
  enum class Storage : std::uint8_t { chains, bits, search };
  // Limit of a chain cover or bit matrix.
  static constexpr std::size_t kMaxBytes = std::size_t{64} << 20;

  // A path a -> ... -> b of at least one edge.
  [[nodiscard]] bool reaches(ir::NodeId a, ir::NodeId b) const;
  [[nodiscard]] bool ordered(ir::NodeId a, ir::NodeId b) const {
    return a == b || reaches(a, b) || reaches(b, a);
  }
  [[nodiscard]] bool unordered(ir::NodeId a, ir::NodeId b) const { return !ordered(a, b); }
  // memory_ordered_after only: some edge's effect had to be assumed because the kernel image is unknown.
  // Which pairs rest on that: those that are ordered with UnknownImage::waits and not with never_waits.
  [[nodiscard]] bool assumed_grid_dependency_wait() const { return assumed_; }
  // Chains of the cover (0 for other storage): at least the width of the relation, over nodes of every kind.
  [[nodiscard]] std::size_t chain_count() const { return chain_count_; }
  [[nodiscard]] Storage storage() const { return storage_; }
  [[nodiscard]] std::size_t memory_bytes() const;

 private:
  friend class ReachabilityBuilder;
  friend std::vector<ir::EdgeId> transitively_implied_edges(const ir::Graph&, const TopologicalOrder&,
                                                            const Reachability&);

  // The relation is kept over moments. Every node has the moment `target` by which its work can rely on
  // others, and is itself known complete behind those arcs that leave `target` and carry it (see
  // reachability.cpp). Moments are numbered topologically; where all edges are full there is one per node.
  std::vector<std::uint32_t> start_, target_;  // moment of each node's start, and of its work
  Storage storage_ = Storage::chains;
  std::size_t chain_count_ = 0;
  std::vector<std::uint32_t> chain_, position_;  // per node; positions count from 1
  std::vector<std::uint64_t> row_first_;         // per moment, into cells_ (chains) or bits_ (bits)
  std::vector<std::uint32_t> cells_;  // row of a moment: per chain the last position known complete, or 0
  std::vector<std::uint32_t> rank_;   // bits: column of each node
  std::vector<std::uint64_t> bits_;
  std::vector<ir::EdgeId> implied_;  // chains and bits; ascending
  // Search: arcs into each moment as (moment << 1 | carries), and label_count_ intervals per moment.
  std::vector<std::uint32_t> arc_first_, arcs_;
  std::vector<std::uint32_t> label_low_, label_high_;
  bool assumed_ = false;
};

// `storage` overrides the choice by size (tests, benchmarks).
Reachability starts_after(const ir::Graph& graph, const TopologicalOrder& order,
                          std::optional<Reachability::Storage> storage = std::nullopt);
// What to assume of a kernel whose image is unknown: that it waits on its grid dependency (and `assumed` is
// set), or that it does not (what is ordered then is so for certain).
enum class UnknownImage : std::uint8_t { waits, never_waits };
Reachability memory_ordered_after(const ir::Recording& recording, const ir::Graph& graph,
                                  const TopologicalOrder& order, UnknownImage unknown = UnknownImage::waits,
                                  std::optional<Reachability::Storage> storage = std::nullopt);

// Edges u -> w that the rest of the graph already implies in the sense of `reach` (ids ascending). For
// starts_after: a longer path u -> ... -> w. For memory_ordered_after: u is known complete before w starts,
// without this edge. The set may be removed as a whole: each edge is implied by edges that are not in the
// set.
std::vector<ir::EdgeId> transitively_implied_edges(const ir::Graph& graph, const TopologicalOrder& order,
                                                   const Reachability& reach);

}  // namespace cglint::analysis
