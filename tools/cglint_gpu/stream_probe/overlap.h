// Replays graphs of spinning kernels without any tracer and writes when each kernel started and ended.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stream_probe/graph_spec.h"

namespace cglint::gpu {

struct OverlapOptions {
  uint64_t spin_ns = 30000;
  int replays = 3;
  double budget_s = 1e9;
};

// Replays each graph `replays` times after one warm-up and appends one JSON line per graph to `out_path`: the
// graph as in measure, with empty `streams`, and "stamps": per replay a list of [start_ns, end_ns] per node,
// counted from the replay's first start
// (%globaltimer); nodes that are no kernel have [-1,-1]. CUPTI is not loaded by this, and a line says
// "tracer":true if some tracer's library is mapped in the process all the same. Returns the number of graphs
// done; `wrong` says what ended it early.
size_t measure_overlap(const std::vector<GraphSpec>& specs, const OverlapOptions& options,
                       const std::string& out_path, std::string& wrong);

}  // namespace cglint::gpu
