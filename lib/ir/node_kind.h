// What a node of a graph does.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace cglint::ir {

// CUgraphNodeType, plus `unknown` for a type word that this version does not know.
enum class NodeKind : std::uint8_t {
  kernel,
  memcpy,
  memset,
  host,
  empty,
  event_record,
  event_wait,
  child_graph,
  mem_alloc,
  mem_free,
  ext_semaphore_signal,
  ext_semaphore_wait,
  batch_mem_op,
  conditional,
  unknown,
};
inline constexpr int kNodeKindCount = static_cast<int>(NodeKind::unknown) + 1;
std::string_view node_kind_name(NodeKind kind);  // "kernel", "memcpy", ... ; stable, used in files and reports
std::optional<NodeKind> node_kind_from_name(std::string_view name);
// Kinds that leave an activity record and therefore count as carrying a stream: kernel, memcpy, memset.
constexpr bool is_activity(NodeKind kind) {
  return kind == NodeKind::kernel || kind == NodeKind::memcpy || kind == NodeKind::memset;
}

}  // namespace cglint::ir
