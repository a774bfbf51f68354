// Per-node times over the replays of a graph.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/graph.h"

namespace cglint::analysis {

struct NodeTimes {
  bool available = false;                            // some replay operations are matched to nodes
  base::IdVector<ir::NodeId, std::int64_t> median_ns;  // 0 for nodes without records
  base::IdVector<ir::NodeId, std::uint32_t> samples;
  std::int64_t median_span_ns = 0;                   // first start to last end of a replay, median over replays
  std::int64_t p10_span_ns = 0, p90_span_ns = 0;
};

NodeTimes node_times(const ir::Graph& graph);

// Half-open time intervals, in ns.
struct Interval {
  std::int64_t begin_ns = 0, end_ns = 0;
};
// Sorted, disjoint union. Empty intervals vanish.
std::vector<Interval> interval_union(std::vector<Interval> intervals);
std::int64_t total_ns(const std::vector<Interval>& disjoint);
// Length of the intersection of two disjoint sorted lists.
std::int64_t intersection_ns(const std::vector<Interval>& a, const std::vector<Interval>& b);
// Largest number of intervals that contain one instant; intervals that only touch, or overlap by at most
// `tolerance_ns` (integer-microsecond rounding, tracer jitter), do not count as concurrent.
std::uint32_t max_concurrency(const std::vector<Interval>& intervals, std::int64_t tolerance_ns);

}  // namespace cglint::analysis
