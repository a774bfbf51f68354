#include "rules/common/memory.h"

#include <fmt/format.h>

namespace cglint::rules {

bool recorded_before(const ir::Graph& graph, ir::NodeId a, ir::NodeId b) {
  if (!graph.sequence.empty() && graph.sequence[a] != graph.sequence[b]) return graph.sequence[a] < graph.sequence[b];
  return a < b;
}

bool has_unknown_accesses(const engine::GraphContext& context, ir::NodeId node) {
  return analysis::is_active_work(context.graph, node) && context.analyses.access_table().coverage(node) != analysis::AccessCoverage::complete;
}

bool has_unknown_accesses(const engine::GraphContext& context) {
  for (const ir::NodeId node : context.graph.nodes())
    if (has_unknown_accesses(context, node)) return true;
  return false;
}

std::string place_of(const engine::GraphContext& context, const analysis::Access& access) {
  if (access.slot == analysis::Access::kNoSlot)
    return context.graph.kind[access.node] == ir::NodeKind::kernel ? "measured"
           : access.may_write()                                    ? "destination"
                                                                   : "source";
  return access.offset_bytes == 0 ? fmt::format("parameter {}", access.slot)
                                  : fmt::format("parameter {} byte {}", access.slot, access.offset_bytes);
}

}  // namespace cglint::rules
