#include "rules/common/timing.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace cglint::rules {

base::IdVector<ir::NodeId, std::int64_t> added_busy_ns(const ir::Graph& graph) {
  constexpr std::size_t kMaxReplays = 32;
  std::vector<std::vector<std::int64_t>> samples(graph.node_count());
  std::size_t replays = 0;
  for (const ir::Replay& replay : graph.replays) {
    if (!replay.complete) continue;
    if (++replays > kMaxReplays) break;
    std::int64_t busy_until = std::numeric_limits<std::int64_t>::min();
    for (const ir::ReplayOp& op : graph.ops(replay)) {  // by start
      const std::int64_t added = std::max<std::int64_t>(0, op.end_ns - std::max(op.start_ns, busy_until));
      busy_until = std::max(busy_until, op.end_ns);
      if (op.node.is_valid()) samples[op.node.index()].push_back(added);
    }
  }
  base::IdVector<ir::NodeId, std::int64_t> result(graph.node_count(), 0);
  for (const ir::NodeId node : graph.nodes()) {
    std::vector<std::int64_t>& own = samples[node.index()];
    if (own.empty()) continue;
    const auto middle = own.begin() + static_cast<std::ptrdiff_t>(own.size() / 2);
    std::nth_element(own.begin(), middle, own.end());
    result[node] = *middle;
  }
  return result;
}

}  // namespace cglint::rules
