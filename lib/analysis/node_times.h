// Per-node times over the replays of a graph.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/graph.h"

namespace cglint::analysis {

struct NodeTimes {
  bool available = false;  // the input has replay times and some operations are matched to nodes
  base::IdVector<ir::NodeId, std::int64_t> median_ns;  // 0 for nodes without records
  base::IdVector<ir::NodeId, std::uint32_t> samples;   // replays that have a record of the node
  // First start to last end of a replay, over the complete replays. Where no replay is complete, over the
  // others: then the spans are lower bounds. Percentiles are nearest-rank.
  std::int64_t median_span_ns = 0;
  std::int64_t p10_span_ns = 0, p90_span_ns = 0;
  bool span_is_lower_bound = false;
};

// Several operations of one node in one replay (a loop body, a split copy) count as their summed duration.
// At most `max_samples` durations (or those of one node) are held at once; each further lot takes a walk over the operations.
NodeTimes node_times(const ir::Graph& graph, std::size_t max_samples = std::size_t{1} << 24);

// Half-open time intervals, in ns.
struct Interval {
  std::int64_t begin_ns = 0, end_ns = 0;
  [[nodiscard]] std::int64_t dur_ns() const { return end_ns - begin_ns; }
  friend bool operator==(const Interval&, const Interval&) = default;
};
// Sorted, disjoint union; intervals that touch become one. Empty intervals vanish.
std::vector<Interval> interval_union(std::vector<Interval> intervals);
std::int64_t total_ns(const std::vector<Interval>& disjoint);
// Length of the intersection of two disjoint sorted lists.
std::int64_t intersection_ns(const std::vector<Interval>& a, const std::vector<Interval>& b);
// Largest number of intervals that contain one instant; intervals that only touch, or overlap by at most
// `tolerance_ns` (integer-microsecond rounding, tracer jitter), do not count as concurrent.
std::uint32_t max_concurrency(const std::vector<Interval>& intervals, std::int64_t tolerance_ns);

// How long two operations of one stream may seem to overlap because of the clock: 2 us where every time of
// the graph's replays is a whole microsecond (start and duration are rounded apart; such traces show 2 us on
// a single stream), else 100 ns (GPU timestamps advance in steps of 32 ns).
std::int64_t clock_tolerance_ns(const ir::Graph& graph);

}  // namespace cglint::analysis
