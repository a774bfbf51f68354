// Which bytes each node of a graph reads and writes, how sure that is, and from what it is known. Rules about
// order, redundancy and overlap use this table alone.
//
// Sources, from weak to strong (AccessTrust): a pointer argument says where but not what (unknown: it may be
// read, written, both or neither); `const T*` in a signature says read; a known-kernel table gives direction
// and size; an isolated run of the node measures it; parameters of copies and fills state it.
//
// What the table cannot see: device globals, memory behind pointers in memory, and kernels that cast
// constness away. coverage() says per node whether anything is known to be missing; absence of a row proves
// nothing where it is not `complete`.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "analysis/kernel_identity.h"
#include "ir/graph.h"
#include "ir/recording.h"

namespace cglint::analysis {

enum class AccessTrust : std::uint8_t { pointer, signature, table, measured, parameter };
std::string_view access_trust_name(AccessTrust trust);

enum class AccessExtent : std::uint8_t {
  exact,       // these bytes, all of them
  bounding,    // within these bytes: a span that a table gives, or to the end of the allocation or allocator block
  start_only,  // begins here; `end` is begin + 1
};

struct Access {
  static constexpr std::uint16_t kNoSlot = 0xffff;
  ir::NodeId node;
  std::uint64_t begin = 0, end = 0;  // byte addresses, half-open, never empty
  AccessMode mode = AccessMode::unknown;
  AccessTrust trust = AccessTrust::pointer;
  AccessExtent extent = AccessExtent::bounding;
  bool writes_all = false;       // everything it covers is written before it is read
  bool looks_written = false;    // direction unknown, but a pointer to mutable in a signature that has pointers to const
  std::uint16_t slot = kNoSlot;  // kernel parameter and byte in it; kNoSlot for other nodes and measured rows
  std::uint16_t offset_bytes = 0;
  ir::AllocationId allocation;  // where known
  [[nodiscard]] bool exact() const { return extent == AccessExtent::exact; }
  [[nodiscard]] bool may_read() const { return mode != AccessMode::write && mode != AccessMode::none; }
  [[nodiscard]] bool may_write() const { return mode != AccessMode::read && mode != AccessMode::none; }
  [[nodiscard]] bool known() const { return mode != AccessMode::unknown; }
};

// none: nothing is known of the node's memory. partial: there are rows, but something may be missing or its
// direction is unknown. complete: every pointer that the node was given has a row with a direction.
enum class AccessCoverage : std::uint8_t { none, partial, complete };

// Two accesses of different nodes that overlap and of which at least one writes.
struct AccessConflict {
  // certain: directions known, both ranges exact. likely: directions known, a range is only bounded.
  // possible: a direction is unknown, or only the start of a range is known.
  enum class Strength : std::uint8_t { possible, likely, certain } strength = Strength::possible;
  const Access* first = nullptr;  // row of the node asked for first; else the one with the smaller NodeId
  const Access* second = nullptr;
  std::uint64_t begin = 0, end = 0;  // the common bytes
};

class AccessTable {
 public:
  // All rows, by node, then begin, then end.
  [[nodiscard]] std::span<const Access> rows() const { return rows_; }
  [[nodiscard]] std::span<const Access> of(ir::NodeId node) const {
    return std::span(rows_).subspan(first_[node.index()], first_[node.index() + 1] - first_[node.index()]);
  }
  // Numbers of all rows, by (begin, row).
  [[nodiscard]] std::span<const std::uint32_t> by_begin() const { return by_begin_; }
  [[nodiscard]] AccessCoverage coverage(ir::NodeId node) const { return coverage_[node]; }

  // Rows that touch [begin, end), in row order. O(log n + answers).
  [[nodiscard]] std::vector<const Access*> touching(std::uint64_t begin, std::uint64_t end) const;
  // Nodes that may write / may read some byte of [begin, end); each once, ascending. With `known_only`,
  // accesses of unknown direction do not count.
  [[nodiscard]] std::vector<ir::NodeId> writers(std::uint64_t begin, std::uint64_t end,
                                                bool known_only = false) const;
  [[nodiscard]] std::vector<ir::NodeId> readers(std::uint64_t begin, std::uint64_t end,
                                                bool known_only = false) const;

  // Conflicts of two nodes, strongest first.
  [[nodiscard]] std::vector<AccessConflict> conflicts(ir::NodeId a, ir::NodeId b) const;
  [[nodiscard]] bool conflict(ir::NodeId a, ir::NodeId b) const;
  // Every pair of overlapping rows of different nodes of which one may write, until `visit` returns false;
  // returns whether it ran to the end. Pairs that only read cost nothing; the order is deterministic (by
  // address).
  bool for_each_conflict(const std::function<bool(const AccessConflict&)>& visit) const;

 private:
  friend AccessTable build_access_table(const ir::Recording&, const ir::Graph&, const KernelIdentities&);
  void build_index();
  template <typename Visit>
  void visit_touching(std::uint64_t begin, std::uint64_t end, Visit visit) const;
  [[nodiscard]] std::vector<ir::NodeId> nodes_where(std::uint64_t begin, std::uint64_t end, bool writes,
                                                    bool known_only) const;

  std::vector<Access> rows_;
  std::vector<std::uint32_t> first_{0};  // per node, one more than nodes
  base::IdVector<ir::NodeId, AccessCoverage> coverage_;
  std::vector<std::uint32_t> by_begin_;  // row numbers by (begin, row)
  std::vector<std::uint64_t> max_end_;   // per position: the largest end in its subtree
};

// Child graphs and conditionals carry the rows of their bodies. Disabled nodes touch nothing.
AccessTable build_access_table(const ir::Recording& recording, const ir::Graph& graph,
                               const KernelIdentities& identities);

}  // namespace cglint::analysis
