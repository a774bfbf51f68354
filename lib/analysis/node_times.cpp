#include "analysis/node_times.h"

#include <algorithm>
#include <functional>

namespace cglint::analysis {
namespace {

// Middle element, or the mean of the two middle ones (rounded down). Reorders `values`.
std::int64_t median(std::vector<std::int64_t>::iterator first, std::vector<std::int64_t>::iterator last) {
  if (first == last) return 0;
  const auto half = (last - first) / 2;
  std::nth_element(first, first + half, last);
  const std::int64_t upper = first[half];
  if ((last - first) % 2 != 0) return upper;
  const std::int64_t lower = *std::max_element(first, first + half);
  return lower + (upper - lower) / 2;
}

// Nearest-rank percentile of sorted values.
std::int64_t percentile(const std::vector<std::int64_t>& sorted, std::size_t percent) {
  if (sorted.empty()) return 0;
  const std::size_t rank = (sorted.size() * percent + 99) / 100;
  return sorted[std::max<std::size_t>(rank, 1) - 1];
}

}  // namespace

NodeTimes node_times(const ir::Graph& graph, std::size_t max_samples) {
  NodeTimes result;
  const std::size_t n = graph.node_count();
  result.median_ns.assign(n, 0);
  result.samples.assign(n, 0);
  if (!graph.facts.contains(ir::Fact::replay_times)) return result;

  // Pass 1 counts each node's samples. Later passes fill them in, node by node in one flat array, for as many nodes as have
  // max_samples together: long traces have tens of millions.
  constexpr std::uint32_t kNone = ~std::uint32_t{0};
  std::vector<std::uint32_t> last_replay(n, kNone);
  std::vector<std::int64_t> spans, partial_spans;
  std::uint32_t replay_index = 0;
  for (const ir::Replay& replay : graph.replays) {
    bool any = false;
    std::int64_t begin = 0, end = 0;
    for (const ir::ReplayOp& op : graph.ops(replay)) {
      begin = any ? std::min(begin, op.start_ns) : op.start_ns;
      end = any ? std::max(end, op.end_ns) : op.end_ns;
      any = true;
      if (!op.node.is_valid() || last_replay[op.node.index()] == replay_index) continue;
      last_replay[op.node.index()] = replay_index;
      ++result.samples[op.node];
      result.available = true;
    }
    if (any) (replay.complete ? spans : partial_spans).push_back(std::max<std::int64_t>(end - begin, 0));
    ++replay_index;
  }
  std::vector<std::int64_t> samples;
  std::vector<std::size_t> next(n);  // behind the node's last sample
  for (std::size_t from = 0, until = 0; from < n; from = until) {
    std::size_t count = 0;
    for (; until < n && (until == from || count + result.samples.raw()[until] <= max_samples); ++until) {
      next[until] = count;
      count += result.samples.raw()[until];
    }
    samples.assign(count, 0);
    std::fill(last_replay.begin(), last_replay.end(), kNone);
    replay_index = 0;
    for (const ir::Replay& replay : graph.replays) {
      for (const ir::ReplayOp& op : graph.ops(replay)) {
        const std::uint32_t node = op.node.index();
        if (node < from || node >= until) continue;
        if (last_replay[node] != replay_index) {
          last_replay[node] = replay_index;
          ++next[node];
        }
        samples[next[node] - 1] += std::max<std::int64_t>(op.dur_ns(), 0);
      }
      ++replay_index;
    }
    for (std::size_t i = from; i < until; ++i) {
      const auto last = samples.begin() + static_cast<std::ptrdiff_t>(next[i]);
      result.median_ns.raw()[i] = median(last - static_cast<std::ptrdiff_t>(result.samples.raw()[i]), last);
    }
  }

  if (spans.empty() && !partial_spans.empty()) {
    spans = std::move(partial_spans);
    result.span_is_lower_bound = true;
  }
  std::sort(spans.begin(), spans.end());
  result.median_span_ns = median(spans.begin(), spans.end());
  std::sort(spans.begin(), spans.end());
  result.p10_span_ns = percentile(spans, 10);
  result.p90_span_ns = percentile(spans, 90);
  return result;
}

std::vector<Interval> interval_union(std::vector<Interval> intervals) {
  std::erase_if(intervals, [](const Interval& i) { return i.end_ns <= i.begin_ns; });
  const auto by_begin = [](const Interval& a, const Interval& b) { return a.begin_ns < b.begin_ns; };
  if (!std::is_sorted(intervals.begin(), intervals.end(), by_begin))
    std::sort(intervals.begin(), intervals.end(), by_begin);
  std::size_t kept = 0;
  for (const Interval& interval : intervals) {
    if (kept > 0 && interval.begin_ns <= intervals[kept - 1].end_ns)
      intervals[kept - 1].end_ns = std::max(intervals[kept - 1].end_ns, interval.end_ns);
    else
      intervals[kept++] = interval;
  }
  intervals.resize(kept);
  return intervals;
}

std::int64_t total_ns(const std::vector<Interval>& disjoint) {
  std::int64_t total = 0;
  for (const Interval& interval : disjoint) total += interval.dur_ns();
  return total;
}

std::int64_t intersection_ns(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  std::int64_t total = 0;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const std::int64_t begin = std::max(a[i].begin_ns, b[j].begin_ns);
    const std::int64_t end = std::min(a[i].end_ns, b[j].end_ns);
    if (begin < end) total += end - begin;
    if (a[i].end_ns < b[j].end_ns)
      ++i;
    else
      ++j;
  }
  return total;
}

std::uint32_t max_concurrency(const std::vector<Interval>& intervals, std::int64_t tolerance_ns) {
  // Two intervals overlap by more than t exactly if they still meet after t is cut off each one's end; and
  // intervals that meet pairwise have an instant in common. So the answer is the greatest depth of the
  // shortened intervals.
  std::vector<std::int64_t> begins, ends;
  bool any = false;
  for (const Interval& interval : intervals) {
    if (interval.end_ns <= interval.begin_ns) continue;
    any = true;  // on its own an interval counts, however short
    if (interval.end_ns - interval.begin_ns <= tolerance_ns) continue;
    begins.push_back(interval.begin_ns);
    ends.push_back(interval.end_ns - tolerance_ns);
  }
  std::sort(begins.begin(), begins.end());
  std::sort(ends.begin(), ends.end());
  std::size_t depth = any ? 1 : 0;
  for (std::size_t i = 0, ended = 0; i < begins.size(); ++i) {
    while (ends[ended] <= begins[i]) ++ended;
    depth = std::max(depth, i + 1 - ended);
  }
  return static_cast<std::uint32_t>(depth);
}

std::int64_t clock_tolerance_ns(const ir::Graph& graph) {
  const bool whole_us =
      !graph.replay_ops.empty() &&
      std::all_of(graph.replay_ops.begin(), graph.replay_ops.end(),
                  [](const ir::ReplayOp& op) { return op.start_ns % 1000 == 0 && op.end_ns % 1000 == 0; });
  return whole_us ? 2000 : 100;
}

}  // namespace cglint::analysis
