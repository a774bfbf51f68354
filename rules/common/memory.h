// What the rules about memory share.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "analysis/access_table.h"
#include "engine/rule.h"

namespace cglint::rules {

struct ByteRange {
  std::uint64_t begin = 0, end = 0;
  [[nodiscard]] std::uint64_t size() const { return end - begin; }
  [[nodiscard]] bool overlaps(const ByteRange& other) const { return begin < other.end && other.begin < end; }
  [[nodiscard]] bool contains(const ByteRange& other) const { return begin <= other.begin && other.end <= end; }
};

// The bytes that an access surely spans: all of them where the extent is known, else the first one. A range that is only
// bounded may end anywhere: in a pooled segment the bound takes in other tensors.
inline ByteRange sure_bytes(const analysis::Access& access) {
  return access.exact() ? ByteRange{access.begin, access.end} : ByteRange{access.begin, access.begin + 1};
}

// Every byte of the range gets a new value, whatever was there.
inline bool overwrites(const analysis::Access& access) {
  return access.writes_all && access.exact() && access.mode == analysis::AccessMode::write;
}

// Is `a` recorded before `b`? By sequence number where there is one, else by node order.
bool recorded_before(const ir::Graph& graph, ir::NodeId a, ir::NodeId b);

// Why a rule is not checked, and whether it holds: for one node (which runs and touches memory), or for any.
inline constexpr std::string_view kUnknownAccesses =
    "the accesses of some kernels are not known (no signature, no entry in the kernel table, not measured)";
bool has_unknown_accesses(const engine::GraphContext& context, ir::NodeId node);
bool has_unknown_accesses(const engine::GraphContext& context);

// "parameter 5", "parameter 0 byte 32", "destination".
std::string place_of(const engine::GraphContext& context, const analysis::Access& access);

}  // namespace cglint::rules
