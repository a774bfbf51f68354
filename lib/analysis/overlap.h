// How much of a fork's branches really ran at the same time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "analysis/fork_join.h"
#include "analysis/node_times.h"
#include "ir/graph.h"

namespace cglint::analysis {

// A branch is busy while one of its operations runs. Replays count if at least two branches have records. All
// times are of the replay as traced.
struct RegionOverlap {
  bool measured = false;      // some replay counted; never for a truncated region
  std::uint32_t replays = 0;  // with records for at least two branches
  // In which two branches ran together for longer than the clock's tolerance.
  std::uint32_t replays_overlapping = 0;
  // What overlap hid: summed branch times minus the time in which any branch was busy (an instant with k busy
  // branches counts k - 1; with two branches, the time in which both were busy).
  std::int64_t median_overlap_ns = 0;
  std::int64_t median_possible_ns = 0;  // summed branch times minus the longest: what full overlap would hide
  std::int64_t median_busy_ns = 0;      // time in which any branch was busy
  // median_overlap_ns / median_possible_ns, 0 where nothing is possible.
  [[nodiscard]] double efficiency() const {
    return median_possible_ns > 0
               ? static_cast<double>(median_overlap_ns) / static_cast<double>(median_possible_ns)
               : 0.0;
  }
};

// One entry per region, same order.
std::vector<RegionOverlap> region_overlaps(const ir::Graph& graph,
                                           const std::vector<ForkJoinRegion>& regions);

// Whole-timeline numbers of a set of operations (for `inspect`).
struct TimelineStats {
  std::int64_t span_ns = 0, busy_ns = 0, idle_ns = 0;  // busy: union of all operations; idle: span - busy
  std::int64_t overlap_ns = 0;                         // summed durations - busy
  struct Gap {
    std::int64_t begin_ns = 0, dur_ns = 0;
    std::size_t after_op = 0, before_op = 0;  // indices into the operations given
  };
  std::vector<Gap> largest_gaps;  // at most 5, longest first, then earliest first
};
// Operations in any order. One of no duration is not busy time, but it ends a gap.
TimelineStats timeline_stats(std::span<const ir::ReplayOp> operations);

// The same for operations that come one by one, by rising start: nothing is kept of them but the largest gaps.
class TimelineScan {
 public:
  void add(std::int64_t start_ns, std::int64_t end_ns, std::size_t op);
  [[nodiscard]] TimelineStats finish() const;

 private:
  TimelineStats stats_;  // overlap_ns: summed durations
  bool any_ = false;
  std::int64_t begin_ns_ = 0, end_ns_ = 0;
  std::size_t last_ = 0;  // the operation that ends last
};

}  // namespace cglint::analysis
