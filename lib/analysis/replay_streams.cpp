#include "analysis/replay_streams.h"

#include <algorithm>

#include "analysis/node_times.h"

namespace cglint::analysis {
namespace {

std::uint32_t count_distinct(std::vector<StreamKey>& keys) {
  std::sort(keys.begin(), keys.end());
  return static_cast<std::uint32_t>(std::unique(keys.begin(), keys.end()) - keys.begin());
}

}  // namespace

ReplayStreams replay_streams(const ir::Graph& graph) {
  ReplayStreams result;
  if (!graph.facts.contains(ir::Fact::replay_streams)) return result;
  std::vector<StreamKey> all, kernels;
  std::uint32_t index = 0;
  for (const ir::Replay& replay : graph.replays) {
    all.clear();
    kernels.clear();
    for (const ir::ReplayOp& op : graph.ops(replay)) {
      if (!ir::is_activity(op.kind)) continue;
      all.emplace_back(op.device, op.stream);
      if (op.kind == ir::NodeKind::kernel) kernels.emplace_back(op.device, op.stream);
    }
    const std::uint32_t streams = count_distinct(all);
    const std::uint32_t kernel_streams = count_distinct(kernels);
    result.per_replay.push_back(streams);
    result.per_replay_kernels_only.push_back(kernel_streams);
    if (streams == 0) {
      ++result.empty_replays;
    } else {
      result.available = true;
      ++result.histogram[streams];
      if (!replay.complete) ++result.incomplete_replays;
    }
    if (streams > result.max) {
      result.max = streams;
      result.max_replay = index;
    }
    result.max_kernels_only = std::max(result.max_kernels_only, kernel_streams);
    ++index;
  }
  if (!result.available || !graph.facts.contains(ir::Fact::replay_times)) return result;

  std::map<StreamKey, Interval> lives;
  std::vector<Interval> operations;
  for (const ir::ReplayOp& op : graph.ops(graph.replays[ir::ReplayId(result.max_replay)])) {
    if (!ir::is_activity(op.kind)) continue;
    const Interval interval{op.start_ns, std::max(op.start_ns, op.end_ns)};
    operations.push_back(interval);
    const auto [it, is_new] = lives.try_emplace(StreamKey(op.device, op.stream), interval);
    if (is_new) continue;
    it->second.begin_ns = std::min(it->second.begin_ns, interval.begin_ns);
    it->second.end_ns = std::max(it->second.end_ns, interval.end_ns);
  }
  std::vector<Interval> life_list;
  life_list.reserve(lives.size());
  for (const auto& [key, life] : lives) life_list.push_back(life);
  // Operations of no recorded duration have run all the same: one stream at least was alive.
  result.max_live = std::max(1U, max_concurrency(life_list, 0));
  result.max_concurrent = std::max(1U, max_concurrency(operations, clock_tolerance_ns(graph)));
  return result;
}

}  // namespace cglint::analysis
