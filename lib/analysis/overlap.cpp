#include "analysis/overlap.h"

#include <algorithm>
#include <numeric>

namespace cglint::analysis {
namespace {

std::int64_t median(std::vector<std::int64_t>& values) {
  if (values.empty()) return 0;
  const auto half = static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), values.begin() + half, values.end());
  const std::int64_t upper = values[static_cast<std::size_t>(half)];
  if (values.size() % 2 != 0) return upper;
  const std::int64_t lower = *std::max_element(values.begin(), values.begin() + half);
  return lower + (upper - lower) / 2;
}

}  // namespace

std::vector<RegionOverlap> region_overlaps(const ir::Graph& graph,
                                           const std::vector<ForkJoinRegion>& regions) {
  std::vector<RegionOverlap> result(regions.size());
  if (!graph.facts.contains(ir::Fact::replay_times)) return result;
  struct Samples {
    std::vector<std::int64_t> overlap, possible, busy;
  };
  std::vector<Samples> samples(regions.size());
  const std::int64_t tolerance = clock_tolerance_ns(graph);
  const std::size_t n = graph.node_count();
  std::vector<std::uint32_t> first(n + 1), next(n), op_of_node;
  std::vector<Interval> branch, all;

  for (const ir::Replay& replay : graph.replays) {
    // The operations of each node in this replay.
    const ir::ReplayOps ops = graph.ops(replay);
    std::fill(first.begin(), first.end(), 0);
    for (const ir::ReplayOp& op : ops)
      if (op.node.is_valid()) ++first[op.node.index() + 1];
    std::partial_sum(first.begin(), first.end(), first.begin());
    op_of_node.resize(first[n]);
    std::copy(first.begin(), first.end() - 1, next.begin());
    for (std::uint32_t i = 0; i < ops.size(); ++i)
      if (ops[i].node.is_valid()) op_of_node[next[ops[i].node.index()]++] = i;

    for (std::size_t r = 0; r < regions.size(); ++r) {
      if (regions[r].truncated) continue;  // the branches are not known in full
      std::uint32_t recorded_branches = 0;
      std::int64_t sum = 0, longest = 0;
      all.clear();
      for (const Branch& b : regions[r].branches) {
        bool recorded = false;
        branch.clear();
        for (const ir::NodeId node : b.nodes)
          for (std::uint32_t k = first[node.index()]; k < first[node.index() + 1]; ++k) {
            recorded = true;
            branch.push_back({ops[op_of_node[k]].start_ns, ops[op_of_node[k]].end_ns});
          }
        if (!recorded) continue;
        ++recorded_branches;
        branch = interval_union(std::move(branch));
        const std::int64_t busy = total_ns(branch);
        sum += busy;
        longest = std::max(longest, busy);
        all.insert(all.end(), branch.begin(), branch.end());
      }
      if (recorded_branches < 2) continue;
      all = interval_union(std::move(all));
      const std::int64_t busy = total_ns(all);
      samples[r].overlap.push_back(sum - busy);
      samples[r].possible.push_back(sum - longest);
      samples[r].busy.push_back(busy);
      if (sum - busy > tolerance) ++result[r].replays_overlapping;
    }
  }
  for (std::size_t r = 0; r < regions.size(); ++r) {
    result[r].replays = static_cast<std::uint32_t>(samples[r].busy.size());
    result[r].measured = result[r].replays > 0;
    result[r].median_overlap_ns = median(samples[r].overlap);
    result[r].median_possible_ns = median(samples[r].possible);
    result[r].median_busy_ns = median(samples[r].busy);
  }
  return result;
}

TimelineStats timeline_stats(std::span<const ir::ReplayOp> operations) {
  std::vector<std::size_t> order(operations.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return operations[a].start_ns < operations[b].start_ns;
  });
  TimelineScan scan;
  for (const std::size_t i : order) scan.add(operations[i].start_ns, operations[i].end_ns, i);
  return scan.finish();
}

void TimelineScan::add(std::int64_t start_ns, std::int64_t end_ns, std::size_t op) {
  constexpr std::size_t kGaps = 5;
  end_ns = std::max(start_ns, end_ns);
  if (!any_) {
    any_ = true;
    begin_ns_ = end_ns_ = start_ns;
    last_ = op;
  }
  if (start_ns > end_ns_) {
    const TimelineStats::Gap gap{end_ns_, start_ns - end_ns_, last_, op};
    stats_.idle_ns += gap.dur_ns;
    auto& gaps = stats_.largest_gaps;
    gaps.insert(std::upper_bound(gaps.begin(), gaps.end(), gap, [](const auto& a, const auto& b) { return a.dur_ns > b.dur_ns; }), gap);
    if (gaps.size() > kGaps) gaps.pop_back();
  }
  stats_.overlap_ns += end_ns - start_ns;
  if (end_ns >= end_ns_) {
    end_ns_ = end_ns;
    last_ = op;
  }
}

TimelineStats TimelineScan::finish() const {
  TimelineStats result = stats_;
  result.span_ns = end_ns_ - begin_ns_;
  result.busy_ns = result.span_ns - result.idle_ns;
  result.overlap_ns -= result.busy_ns;
  return result;
}

}  // namespace cglint::analysis
