// Which nodes nothing can run beside.
#pragma once

#include "engine/rule.h"

namespace cglint::rules {

// For each node: is it ordered with every other node by the edges (starts after)? O(nodes + edges).
base::IdVector<ir::NodeId, bool> ordered_with_all(const engine::GraphContext& context);

}  // namespace cglint::rules
