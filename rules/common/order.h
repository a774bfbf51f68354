// Which nodes nothing can run beside.
#pragma once

#include <string_view>

#include "engine/rule.h"

namespace cglint::rules {

// For each node: is it ordered with every other node by the edges (starts after)? O(nodes + edges).
base::IdVector<ir::NodeId, bool> ordered_with_all(const engine::GraphContext& context);

// Why no graph can be called free of useless streams whose width is only known from above.
inline constexpr std::string_view kWidthUnknown = "the graph has too many edges to compute how many nodes can run at once";

}  // namespace cglint::rules
