// How much of the device a kernel fills: a coarse model for estimates.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/rule.h"

namespace cglint::rules {

// Multiprocessors of the graph's GPU; 0 if the recording does not tell.
inline std::uint32_t multiprocessors(const engine::GraphContext& context) {
  std::uint32_t count = 0;
  for (const ir::ProcessId id : context.recording.processes.ids()) {
    if (context.graph.info.process.is_valid() && id != context.graph.info.process) continue;
    for (const ir::Gpu& gpu : context.recording.processes[id].gpus) count = std::max(count, gpu.sm_count);
  }
  return count;
}

// 0..1: blocks per multiprocessor, at most 1. A kernel with a block on each is taken to leave nothing: kernels of a decode step
// are bound by memory, and one block on every multiprocessor comes close to the device's bandwidth. Others (copies, fills): 0.
inline double device_share(const engine::GraphContext& context, ir::NodeId node, std::uint32_t multiprocessor_count) {
  const ir::KernelNode* kernel = context.graph.kernel(node);
  if (kernel == nullptr || multiprocessor_count == 0) return 0;
  return std::min(1.0, static_cast<double>(kernel->grid.count()) / multiprocessor_count);
}

}  // namespace cglint::rules
