// Replays for the tests of lib/analysis.
#pragma once

#include <algorithm>
#include <vector>

#include "ir/graph_builder.h"

namespace cglint::testing {

inline ir::ReplayOp op(ir::NodeId node, std::int64_t start_ns, std::int64_t end_ns, std::uint64_t stream = 0,
                       std::int32_t device = 0, ir::NodeKind kind = ir::NodeKind::kernel) {
  ir::ReplayOp result;
  result.node = node;
  result.start_ns = start_ns;
  result.end_ns = end_ns;
  result.stream = stream;
  result.device = device;
  result.kind = kind;
  return result;
}

inline void add_replay(ir::GraphBuilder& builder, std::vector<ir::ReplayOp> ops, bool complete = true) {
  std::stable_sort(ops.begin(), ops.end(),
                   [](const ir::ReplayOp& a, const ir::ReplayOp& b) { return a.start_ns < b.start_ns; });
  ir::Graph& graph = builder.graph();
  graph.facts.insert(ir::Fact::replay_times);
  graph.facts.insert(ir::Fact::replay_streams);
  ir::Replay replay;
  replay.complete = complete;
  replay.ops = {static_cast<std::uint32_t>(graph.replay_ops.size()), static_cast<std::uint32_t>(ops.size())};
  for (const ir::ReplayOp& o : ops) graph.replay_ops.push_back(o);
  graph.replays.push_back(replay);
}

}  // namespace cglint::testing
