// What an operation adds to the time in which a replay is busy.
#pragma once

#include "ir/graph.h"

namespace cglint::rules {

// Per node, in ns, median over the replays: the part of its operation that comes after everything that started earlier has
// ended. A kernel behind a programmatic edge starts before its predecessor ends and waits: its own duration counts that wait.
// 0 for nodes without records. At most 32 replays are looked at.
base::IdVector<ir::NodeId, std::int64_t> added_busy_ns(const ir::Graph& graph);

}  // namespace cglint::rules
