#include "import/common/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "import/common/node_runs.h"
#include "ir/graph_builder.h"

namespace cglint::import {
namespace {

using ir::Fact;
using ir::NodeKind;

constexpr std::uint32_t kNone = ~std::uint32_t{0};

// One launch: a run of the sorted operations.
struct Group {
  std::uint32_t first = 0, count = 0;      // of the sorted operations
  std::uint32_t launch = kNone;            // launch call, if the trace has it
  std::uint32_t graph_id = 0;
  std::uint32_t process = 0;
  std::int64_t start_ns = 0, end_ns = 0;   // of the operations
  bool lost_ops = false;
  bool attached = false;                   // a cut launch, given to the graph that it is a part of
};

// One graph: the launches that belong together.
struct GraphGroup {
  std::vector<std::uint32_t> groups;
  std::uint32_t reference = 0;             // the launch with most operations
  std::vector<std::uint32_t> shapes;       // sorted shapes of the reference launch
};

// Is `part` (sorted) contained in `whole` (sorted), as multisets?
bool is_part_of(const std::vector<std::uint32_t>& part, const std::vector<std::uint32_t>& whole) {
  return std::includes(whole.begin(), whole.end(), part.begin(), part.end());
}

bool is_acyclic(std::size_t nodes, const std::vector<std::pair<std::uint32_t, std::uint32_t>>& edges) {
  if (edges.empty()) return true;
  std::vector<std::uint32_t> missing(nodes), first(nodes + 1), next(edges.size()), ready;
  for (const auto& [from, to] : edges) {
    ++missing[to];
    ++first[from + 1];
  }
  for (std::size_t i = 0; i < nodes; ++i) first[i + 1] += first[i];
  std::vector<std::uint32_t> fill(first.begin(), first.end() - 1);
  for (const auto& [from, to] : edges) next[fill[from]++] = to;
  for (std::uint32_t i = 0; i < nodes; ++i)
    if (missing[i] == 0) ready.push_back(i);
  std::size_t done = 0;
  for (; done < ready.size(); ++done)
    for (std::uint32_t e = first[ready[done]]; e < first[ready[done] + 1]; ++e)
      if (--missing[next[e]] == 0) ready.push_back(next[e]);
  return done == nodes;
}

class Builder {
 public:
  Builder(Timeline& timeline, ir::Recording& recording) : t_(timeline), recording_(recording) {}
  base::Result<void> build(const ReadOptions& options);

 private:
  void sort_operations();
  void set_repeated_apart(std::uint32_t first, std::uint32_t last);
  void check_launches();
  void group_operations();
  void group_launches();
  void attach_cut_launches();
  void attach_damaged_launches();
  [[nodiscard]] bool shows_gaps(const GraphGroup& whole, std::uint32_t part) const;
  [[nodiscard]] std::vector<std::uint32_t> sorted_shapes(const Group& group) const;
  [[nodiscard]] TimelineOp op(const Group& group, std::uint32_t i) const {
    return t_.ops[group.first + i];
  }
  [[nodiscard]] std::uint64_t key_of(const TimelineOp& op) const {
    return correlation_key(t_.lane(op.lane).process, op.correlation);
  }
  [[nodiscard]] std::uint64_t node_key(const TimelineOp& op) const {
    // "graph node id" is graph << 32 | local in some versions, the local number in others.
    const NodeKey& node = t_.node(op.node);
    return (node.node_id >> 32) == node.graph_id ? node.node_id & 0xffffffffu : node.node_id;
  }
  struct GraphInWork;
  void start_graph(GraphInWork& work);
  ir::NodeId add_node(GraphInWork& work, const TimelineOp& o);
  ir::NodeId node_with_id(GraphInWork& work, const TimelineOp& o);
  void add_replay(GraphInWork& work, const Group& group);
  base::Result<std::unique_ptr<ir::Graph>> finish_graph(GraphInWork& work, std::size_t number);
  void resolve_arrows();

  Timeline& t_;
  ir::Recording& recording_;
  std::vector<Group> groups_;
  std::vector<GraphGroup> graphs_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> dependencies_;  // op -> op, from arrows
  std::uint64_t inferred_launches_ = 0;
  std::uint64_t launches_without_ops_ = 0;
  std::uint64_t early_groups_ = 0;
  std::vector<TimelineOps::Run> repeated_;  // of the sorted operations: those that were given before, at the ends of their launches
};

struct Builder::GraphInWork {
  struct HashOfId {
    std::uint64_t operator()(std::uint64_t id) const { return base::mix_hash(0, id); }
  };
  const GraphGroup* group = nullptr;
  ir::GraphBuilder builder;
  bool has_ids = true, has_config = true, has_names = true;
  base::ValueTable<std::uint64_t, HashOfId> node_ids;  // with ids: the node's number is the id's
  std::unordered_map<std::uint32_t, std::vector<ir::NodeId>> nodes_by_shape;  // without
  std::vector<std::uint32_t> shape_of_node;
  std::unordered_map<std::uint32_t, ir::NodeId> node_of_op;  // where arrows tie operations together
  struct LastRun {
    std::size_t replay = ~std::size_t{0};
    ir::ReplayOp op;
  };
  std::vector<LastRun> last_run;  // of each node, with ids
  std::uint64_t changed_params = 0, unmatched = 0, incomplete = 0, doubled = 0;
};

std::vector<std::uint32_t> Builder::sorted_shapes(const Group& group) const {
  std::vector<std::uint32_t> shapes(group.count);
  for (std::uint32_t i = 0; i < group.count; ++i) shapes[i] = op(group, i).shape;
  std::sort(shapes.begin(), shapes.end());
  return shapes;
}

// By launch, then by time; what is equal in both stays in the order of the file. Most files have the operations of a launch
// together, so that whole runs move.
void Builder::sort_operations() {
  TimelineOps& ops = t_.ops;
  const auto count = static_cast<std::uint32_t>(ops.size());
  if (count == 0) return;
  bool sorted = true;
  std::uint32_t run_count = 0;
  std::uint64_t previous = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint64_t key = key_of(ops[i]);
    if (i == 0 || key != previous) {
      sorted = sorted && previous <= key;
      ++run_count;
    }
    previous = key;
  }
  std::vector<std::uint32_t> order;
  if (!sorted && run_count > count / 3) {
    order.resize(count);
    std::iota(order.begin(), order.end(), 0U);
    std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
      const std::uint64_t x = key_of(ops[a]), y = key_of(ops[b]);
      return x != y ? x < y : a < b;
    });
    ops.permute(0, order);
  } else if (!sorted) {
    std::vector<TimelineOps::Run> runs;
    runs.reserve(run_count);
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint64_t key = key_of(ops[i]);
      if (i == 0 || key != previous) runs.push_back({i, 0});
      ++runs.back().count;
      previous = key;
    }
    std::sort(runs.begin(), runs.end(), [&](const TimelineOps::Run& a, const TimelineOps::Run& b) {
      const std::uint64_t x = key_of(ops[a.first]), y = key_of(ops[b.first]);
      return x != y ? x < y : a.first < b.first;
    });
    ops.permute_runs(runs);
  }
  for (std::uint32_t first = 0, last = 0; first < count; first = last) {
    TimelineOp previous_op = ops[first];
    const std::uint64_t key = key_of(previous_op);
    sorted = true;
    bool ties = false;
    for (last = first + 1; last < count; ++last) {
      const TimelineOp next = ops[last];
      if (key_of(next) != key) break;
      sorted = sorted && previous_op.start_ns <= next.start_ns;
      ties = ties || previous_op.start_ns == next.start_ns;
      previous_op = next;
    }
    if (!sorted) {
      order.resize(last - first);
      std::iota(order.begin(), order.end(), 0U);
      std::stable_sort(order.begin(), order.end(),
                       [&](std::uint32_t a, std::uint32_t b) { return ops[first + a].start_ns < ops[first + b].start_ns; });
      ops.permute(first, order);
    }
    if (!sorted || ties) set_repeated_apart(first, last);
  }
  std::uint64_t repeated = 0;
  for (const TimelineOps::Run& run : repeated_) repeated += run.count;
  if (repeated != 0)
    recording_.add_loss(ir::Loss::Severity::data_loss, "GPU operations that are in the file twice were left out once", repeated,
                        ~std::uint64_t{0}, {Fact::replay_streams, Fact::replay_times});
}

// An operation that is given twice: the same at the same time in the same place. Puts what was given before to the end of the
// operations of one launch, [first, last), sorted by time.
void Builder::set_repeated_apart(std::uint32_t first, std::uint32_t last) {
  TimelineOps& ops = t_.ops;
  std::vector<std::uint32_t> order, again;
  std::set<std::tuple<std::int64_t, std::uint32_t, std::uint32_t, std::uint32_t>> known;  // of one moment
  std::int64_t moment = 0;
  for (std::uint32_t i = first; i < last; ++i) {
    const TimelineOp o = ops[i];
    if (i == first || o.start_ns != moment) known.clear();
    moment = o.start_ns;
    const bool starts_alone = known.empty() && (i + 1 == last || ops[i + 1].start_ns != moment);
    // What takes no time can happen twice in a moment.
    const bool is_new = starts_alone || o.dur_ns == 0 || known.emplace(o.dur_ns, o.node, o.shape, o.lane).second;
    (is_new ? order : again).push_back(i - first);
  }
  if (again.empty()) return;
  const auto count = static_cast<std::uint32_t>(again.size());
  order.insert(order.end(), again.begin(), again.end());
  ops.permute(first, order);
  repeated_.push_back({last - count, count});
}

// Launch calls, by correlation and time. An id that several calls of a process have stands for none of them.
void Builder::check_launches() {
  std::sort(t_.launches.begin(), t_.launches.end(), [](const TimelineLaunch& a, const TimelineLaunch& b) {
    return std::tie(a.correlation, a.start_ns, b.dur_ns, a.pid) < std::tie(b.correlation, b.start_ns, a.dur_ns, b.pid);
  });
  std::uint64_t repeated = 0, shared = 0;
  std::size_t kept = 0;
  for (const TimelineLaunch& launch : t_.launches) {
    if (kept != 0 && launch.correlation != 0 && t_.launches[kept - 1].correlation == launch.correlation) {
      const TimelineLaunch& before = t_.launches[kept - 1];
      const bool is_same = before.start_ns == launch.start_ns && before.dur_ns == launch.dur_ns && before.pid == launch.pid;
      repeated += is_same ? 1 : 0;
      // The runtime's call and the driver's inside it are one launch.
      if (is_same || (before.pid == launch.pid && launch.start_ns + launch.dur_ns <= before.start_ns + before.dur_ns)) continue;
      ++shared;
    }
    t_.launches[kept++] = launch;
  }
  t_.launches.resize(kept);
  const ir::FactSet facts = {Fact::replay_streams, Fact::replay_times};
  if (repeated != 0)
    recording_.add_loss(ir::Loss::Severity::data_loss, "graph launch calls that are in the file twice were left out once", repeated,
                        ~std::uint64_t{0}, facts);
  if (shared != 0)
    recording_.add_loss(ir::Loss::Severity::data_loss,
                        "graph launch calls with the correlation id of another one: their operations were told apart by time", shared,
                        ~std::uint64_t{0}, facts);
}

void Builder::group_operations() {
  auto& ops = t_.ops;
  check_launches();
  std::sort(t_.lost_correlations.begin(), t_.lost_correlations.end());
  std::sort(t_.whole_launches.begin(), t_.whole_launches.end());

  std::vector<std::uint8_t> launch_used(t_.launches.size(), 0);
  std::vector<TimelineOps::Run> loose;
  const auto add_group = [&](std::uint32_t first, std::uint32_t count, std::uint32_t launch) {
    Group group;
    group.first = first;
    group.count = count;
    group.launch = launch;
    group.start_ns = std::numeric_limits<std::int64_t>::max();
    group.end_ns = std::numeric_limits<std::int64_t>::min();
    // Bodies of child and conditional nodes may carry ids of their own: the graph is the one that most operations name.
    std::map<std::uint32_t, std::uint32_t> votes;
    std::uint32_t last_id = 0, most = 0;
    std::uint32_t* last_vote = nullptr;
    for (std::uint32_t i = 0; i < count; ++i) {
      const TimelineOp& o = ops[first + i];
      if (const std::uint32_t graph_id = t_.node(o.node).graph_id; graph_id != 0) {
        if (last_vote == nullptr || graph_id != last_id) last_vote = &votes[last_id = graph_id];
        ++*last_vote;
      }
      group.start_ns = std::min(group.start_ns, o.start_ns);
      group.end_ns = std::max(group.end_ns, o.start_ns + o.dur_ns);
    }
    for (const auto& [id, count_of_id] : votes) {
      if (count_of_id <= most) continue;
      most = count_of_id;
      group.graph_id = id;
    }
    const std::uint64_t correlation = key_of(ops[first]);
    group.process = static_cast<std::uint32_t>(correlation >> kCorrelationBits);
    group.lost_ops = std::binary_search(t_.lost_correlations.begin(), t_.lost_correlations.end(), correlation);
    if (launch != kNone) launch_used[launch] = 1;
    if (launch == kNone) ++inferred_launches_;
    groups_.push_back(group);
  };

  std::uint32_t first = 0;
  auto repeated = repeated_.begin();
  const auto count_all = static_cast<std::uint32_t>(ops.size());
  while (first < count_all) {
    const std::uint64_t correlation = key_of(ops[first]);
    std::uint32_t last = first;
    bool has_graph_id = false;
    while (last < count_all && key_of(ops[last]) == correlation) {
      has_graph_id = has_graph_id || ops[last].node != 0;
      ++last;
    }
    const std::uint32_t behind = last;
    if (repeated != repeated_.end() && repeated->first < last) {
      last = repeated->first;
      ops.release(repeated->first, repeated->count);
      ++repeated;
    }
    const std::uint32_t count = last - first;
    const auto [begin, end] =
        std::equal_range(t_.launches.begin(), t_.launches.end(), TimelineLaunch{correlation, 0, 0, -1},
                         [](const TimelineLaunch& a, const TimelineLaunch& b) { return a.correlation < b.correlation; });
    if (correlation != 0 && begin != end) {
      // Usually one call. Where there are several an operation belongs to the last one before it.
      auto call = begin;
      std::uint32_t at = first;
      while (at < last) {
        while (call + 1 != end && (call + 1)->start_ns <= ops[at].start_ns) ++call;
        std::uint32_t stop = at + 1;
        while (stop < last && (call + 1 == end || (call + 1)->start_ns > ops[stop].start_ns)) ++stop;
        add_group(at, stop - at, static_cast<std::uint32_t>(call - t_.launches.begin()));
        at = stop;
      }
    } else if (correlation != 0 && (has_graph_id || (count > 1 && !t_.has_api_rows))) {
      // The operations name their graph, or the trace has no host rows at all: there, several operations of one call are
      // a graph launch.
      add_group(first, count, kNone);
    } else {
      if (correlation != 0 && count > 1) ++early_groups_;
      if (loose.empty() || loose.back().first + loose.back().count != first) loose.push_back({first, 0});
      loose.back().count += count;
    }
    first = behind;
  }
  for (std::size_t i = 0; i < launch_used.size(); ++i)
    if (launch_used[i] == 0 && !std::binary_search(t_.whole_launches.begin(), t_.whole_launches.end(), t_.launches[i].correlation))
      ++launches_without_ops_;

  std::size_t loose_count = 0;
  for (const TimelineOps::Run& run : loose) loose_count += run.count;
  recording_.loose_ops.reserve(loose_count);
  for (const TimelineOps::Run& run : loose) {
    for (std::uint32_t i = run.first; i < run.first + run.count; ++i) {
      const TimelineOp o = ops[i];
      const OpShape& shape = t_.shape(o.shape);
      const Lane& lane = t_.lane(o.lane);
      recording_.loose_ops.push_back({shape.name, o.start_ns, o.start_ns + o.dur_ns, lane.stream, o.correlation, lane.device, shape.kind});
      ops.release(i, 1);
    }
  }
  recording_.loose_ops.sort_by_start();
  // By time of the launch call where it is known, else of the first operation.
  std::sort(groups_.begin(), groups_.end(), [this](const Group& a, const Group& b) {
    const std::int64_t x = a.launch != kNone ? t_.launches[a.launch].start_ns : a.start_ns;
    const std::int64_t y = b.launch != kNone ? t_.launches[b.launch].start_ns : b.start_ns;
    return x != y ? x < y : a.first < b.first;
  });
}

void Builder::group_launches() {
  std::map<std::tuple<std::uint32_t, std::int64_t, std::uint32_t>, std::uint32_t> by_id;
  std::unordered_multimap<std::uint64_t, std::uint32_t> by_shapes;
  for (std::uint32_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    if (group.graph_id != 0) {
      const std::int64_t pid = group.launch != kNone ? t_.launches[group.launch].pid : -1;
      const auto [it, inserted] = by_id.try_emplace({group.process, pid, group.graph_id}, static_cast<std::uint32_t>(graphs_.size()));
      if (inserted) {
        graphs_.emplace_back();
        graphs_.back().reference = g;
      }
      GraphGroup& graph = graphs_[it->second];
      graph.groups.push_back(g);
      if (groups_[graph.reference].count < group.count) graph.reference = g;
      continue;
    }
    std::vector<std::uint32_t> shapes = sorted_shapes(group);
    std::uint64_t hash = base::mix_hash(shapes.size(), group.process);
    for (const std::uint32_t shape : shapes) hash = base::mix_hash(hash, shape);
    std::uint32_t found = kNone;
    const auto [begin, end] = by_shapes.equal_range(hash);
    for (auto it = begin; it != end && found == kNone; ++it)
      if (graphs_[it->second].shapes == shapes && groups_[graphs_[it->second].reference].process == group.process)
        found = it->second;
    if (found == kNone) {
      found = static_cast<std::uint32_t>(graphs_.size());
      graphs_.emplace_back();
      graphs_.back().reference = g;
      graphs_.back().shapes = std::move(shapes);
      by_shapes.emplace(hash, found);
    }
    graphs_[found].groups.push_back(g);
  }
}

// The first and the last launch of each device may be cut by the edge of the trace. Such a launch looks like a graph of
// its own; if its operations are a part of exactly one other graph's, it is taken for a launch of that graph.
void Builder::attach_cut_launches() {
  if (groups_.empty()) return;
  std::set<std::uint32_t> at_edge;
  std::map<std::int32_t, std::pair<std::uint32_t, std::uint32_t>> per_device;  // device -> first, last by op time
  for (std::uint32_t g = 0; g < groups_.size(); ++g) {
    const std::int32_t device = t_.lane(op(groups_[g], 0).lane).device;
    const auto [it, inserted] = per_device.try_emplace(device, g, g);
    if (inserted) continue;
    if (groups_[g].start_ns < groups_[it->second.first].start_ns) it->second.first = g;
    if (groups_[g].end_ns > groups_[it->second.second].end_ns) it->second.second = g;
  }
  for (const auto& [device, edge] : per_device) at_edge.insert({edge.first, edge.second});
  for (std::uint32_t small = 0; small < graphs_.size(); ++small) {
    GraphGroup& part = graphs_[small];
    if (part.shapes.empty() || part.groups.size() != 1) continue;
    const std::uint32_t g = part.groups.front();
    if (!at_edge.contains(g) && !groups_[g].lost_ops) continue;
    std::uint32_t whole = kNone;
    bool ambiguous = false;
    for (std::uint32_t other = 0; other < graphs_.size(); ++other) {
      if (other == small || graphs_[other].groups.empty() || graphs_[other].shapes.size() <= part.shapes.size()) continue;
      if (groups_[graphs_[other].reference].process != groups_[g].process) continue;
      if (!is_part_of(part.shapes, graphs_[other].shapes)) continue;
      ambiguous = ambiguous || whole != kNone;
      whole = other;
    }
    if (whole == kNone || ambiguous) continue;
    groups_[g].attached = true;
    graphs_[whole].groups.push_back(g);
    part.groups.clear();
  }
  std::erase_if(graphs_, [](const GraphGroup& graph) { return graph.groups.empty(); });
  for (GraphGroup& graph : graphs_) std::sort(graph.groups.begin(), graph.groups.end());
}

// A launch that looks like a graph of its own but lacks few of another graph's operations may be a launch of that graph of which
// records were lost. It is taken for one where the time shows it: as much of it as the operation takes is left where it is missing.
void Builder::attach_damaged_launches() {
  constexpr std::size_t kMaxMissing = 8, kMissingPart = 4;  // at most so many, and at most one in so many of the graph's operations
  constexpr std::size_t kMaxOperations = std::size_t{1} << 28;  // that are compared
  std::vector<std::uint32_t> repeated;  // graphs with several launches, by size
  for (std::uint32_t i = 0; i < graphs_.size(); ++i)
    if (!graphs_[i].shapes.empty() && graphs_[i].groups.size() > 1) repeated.push_back(i);
  if (repeated.empty()) return;
  std::sort(repeated.begin(), repeated.end(), [this](std::uint32_t a, std::uint32_t b) {
    return graphs_[a].shapes.size() != graphs_[b].shapes.size() ? graphs_[a].shapes.size() < graphs_[b].shapes.size() : a < b;
  });
  std::uint64_t missing = 0, alike = 0, not_compared = 0;
  std::size_t compared = 0;
  for (GraphGroup& part : graphs_) {
    if (part.shapes.empty() || part.groups.size() != 1) continue;
    const std::uint32_t g = part.groups.front();
    const std::size_t size = part.shapes.size();
    auto at = std::upper_bound(repeated.begin(), repeated.end(), size,
                               [this](std::size_t count, std::uint32_t i) { return count < graphs_[i].shapes.size(); });
    std::uint32_t whole = kNone;
    bool ambiguous = false;
    for (; at != repeated.end() && graphs_[*at].shapes.size() <= size + kMaxMissing; ++at) {
      const GraphGroup& other = graphs_[*at];
      const std::size_t lacks = other.shapes.size() - size;
      if (lacks * kMissingPart > other.shapes.size()) continue;
      if (whole != kNone && graphs_[whole].shapes.size() < other.shapes.size()) break;
      if (groups_[other.reference].process != groups_[g].process) continue;
      if (compared > kMaxOperations) {
        ++not_compared;
        break;
      }
      compared += other.shapes.size();
      if (!is_part_of(part.shapes, other.shapes)) continue;
      ambiguous = ambiguous || whole != kNone;
      whole = *at;
    }
    if (whole == kNone) continue;
    if (ambiguous || !shows_gaps(graphs_[whole], g)) {
      ++alike;
      continue;
    }
    missing += graphs_[whole].shapes.size() - size;
    groups_[g].attached = groups_[g].lost_ops = true;
    graphs_[whole].groups.push_back(g);
    part.groups.clear();
  }
  std::erase_if(graphs_, [](const GraphGroup& graph) { return graph.groups.empty(); });
  for (GraphGroup& graph : graphs_) std::sort(graph.groups.begin(), graph.groups.end());
  if (missing != 0)
    recording_.add_loss(ir::Loss::Severity::data_loss, "operations are missing in graph launches: a gap shows where", missing,
                        ~std::uint64_t{0}, {Fact::replay_streams, Fact::replay_times});
  if (not_compared != 0)
    recording_.add_loss(ir::Loss::Severity::info, "graphs with one launch that were not compared with others: the trace has too many", not_compared);
  if (alike != 0)
    recording_.add_loss(ir::Loss::Severity::info,
                        "graphs with one launch that lack few operations of another graph: perhaps launches of it with lost records", alike);
}

// Whether each operation of the graph that the launch lacks leaves a gap behind: the operations around it in its stream are as far
// apart as in other launches. Without them the next one would have followed at once.
bool Builder::shows_gaps(const GraphGroup& whole, std::uint32_t part) const {
  constexpr std::size_t kLaunches = 4;  // that are compared
  const auto rows_of = [this](const Group& group) {
    std::map<std::uint32_t, std::vector<std::uint32_t>> rows;  // lane -> operations of the group
    for (std::uint32_t i = 0; i < group.count; ++i) rows[op(group, i).lane].push_back(i);
    return rows;
  };
  const Group& damaged = groups_[part];
  const Group& reference = groups_[whole.reference];
  const auto left = rows_of(damaged);
  const auto all = rows_of(reference);
  struct Gap {
    std::uint32_t lane;
    std::size_t before, behind;  // places in the reference's row
    std::int64_t left_ns;
  };
  std::vector<Gap> gaps;
  std::size_t matched = 0;
  for (const auto& [lane, row] : all) {
    const auto found = left.find(lane);
    if (found == left.end()) return false;
    const std::vector<std::uint32_t>& rest = found->second;
    std::size_t next = 0;
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (next < rest.size() && op(damaged, rest[next]).shape == op(reference, row[i]).shape) {
        ++next;
        continue;
      }
      std::size_t behind = i + 1;
      while (behind < row.size() && (next >= rest.size() || op(damaged, rest[next]).shape != op(reference, row[behind]).shape)) ++behind;
      if (i == 0 || behind == row.size()) return false;  // nothing around it
      const TimelineOp a = op(damaged, rest[next - 1]);
      gaps.push_back({lane, i - 1, behind, op(damaged, rest[next]).start_ns - (a.start_ns + a.dur_ns)});
      i = behind;
      ++next;
    }
    matched += next;
    if (next != rest.size()) return false;
  }
  if (matched != damaged.count) return false;
  // The least room that the missing operations had, and the most that they leave to the one behind them if they do not run.
  std::vector<std::int64_t> room(gaps.size(), std::numeric_limits<std::int64_t>::max()), pause(gaps.size(), 0);
  std::size_t compared = 0;
  for (const std::uint32_t g : whole.groups) {
    if (compared == kLaunches) break;
    const auto rows = rows_of(groups_[g]);
    const bool is_alike = std::equal(rows.begin(), rows.end(), all.begin(), all.end(), [&](const auto& a, const auto& b) {
      return a.first == b.first && a.second.size() == b.second.size();
    });
    if (!is_alike) continue;
    ++compared;
    for (std::size_t i = 0; i < gaps.size(); ++i) {
      const std::vector<std::uint32_t>& row = rows.at(gaps[i].lane);
      TimelineOp before = op(groups_[g], row[gaps[i].before]);
      room[i] = std::min(room[i], op(groups_[g], row[gaps[i].behind]).start_ns - (before.start_ns + before.dur_ns));
      for (std::size_t k = gaps[i].before + 1; k <= gaps[i].behind; ++k) {
        const TimelineOp o = op(groups_[g], row[k]);
        pause[i] = std::max(pause[i], o.start_ns - (before.start_ns + before.dur_ns));
        before = o;
      }
    }
  }
  if (compared < 2) return false;
  for (std::size_t i = 0; i < gaps.size(); ++i)
    if (gaps[i].left_ns < room[i] - room[i] / 5 || gaps[i].left_ns < pause[i] + pause[i] / 2) return false;
  return !gaps.empty();
}

// An arrow leaves a row where its source ends and enters one where its target starts; otherwise it binds to the operation
// of the row that contains its time.
void Builder::resolve_arrows() {
  if (t_.arrows.empty()) return;
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<std::uint32_t>> rows;
  auto repeated = repeated_.begin();
  for (std::uint32_t i = 0; i < t_.ops.size(); ++i) {
    if (repeated != repeated_.end() && i == repeated->first) {
      i += repeated->count - 1;
      ++repeated;
      continue;
    }
    const Lane& lane = t_.lane(t_.ops[i].lane);
    rows[{lane.pid, lane.tid}].push_back(i);
  }
  for (auto& [key, row] : rows)
    std::sort(row.begin(), row.end(),
              [&](std::uint32_t a, std::uint32_t b) { return t_.ops[a].start_ns < t_.ops[b].start_ns; });
  const auto find = [&](const TimelineArrow& arrow) -> std::uint32_t {
    constexpr std::int64_t kRounding = 1;  // ns: start and duration are printed, the end is their sum
    constexpr int kLookBack = 8;           // operations of one row hardly overlap
    const auto it = rows.find({arrow.pid, arrow.tid});
    if (it == rows.end()) return kNone;
    const auto& row = it->second;
    auto at = std::upper_bound(row.begin(), row.end(), arrow.ts_ns + kRounding,
                               [&](std::int64_t ts, std::uint32_t i) { return ts < t_.ops[i].start_ns; });
    std::uint32_t inside = kNone;
    for (int step = 0; step < kLookBack && at != row.begin(); ++step) {
      const TimelineOp& o = t_.ops[*--at];
      const std::int64_t edge = arrow.is_start ? o.start_ns + o.dur_ns : o.start_ns;
      if (edge - kRounding <= arrow.ts_ns && arrow.ts_ns <= edge + kRounding) return *at;
      if (inside == kNone && o.start_ns <= arrow.ts_ns && arrow.ts_ns <= o.start_ns + o.dur_ns) inside = *at;
    }
    return inside;
  };
  std::stable_sort(t_.arrows.begin(), t_.arrows.end(), [](const TimelineArrow& a, const TimelineArrow& b) {
    return a.id != b.id ? a.id < b.id : a.is_start > b.is_start;
  });
  std::uint64_t unbound = 0;
  std::size_t i = 0;
  while (i < t_.arrows.size()) {
    std::size_t end = i;
    while (end < t_.arrows.size() && t_.arrows[end].id == t_.arrows[i].id) ++end;
    const std::uint32_t from = t_.arrows[i].is_start ? find(t_.arrows[i]) : kNone;
    for (std::size_t k = i; k < end; ++k) {
      if (t_.arrows[k].is_start) continue;
      const std::uint32_t to = find(t_.arrows[k]);
      if (from == kNone || to == kNone || from == to) {
        ++unbound;
      } else {
        dependencies_.emplace_back(from, to);
      }
    }
    i = end;
  }
  std::sort(dependencies_.begin(), dependencies_.end());
  if (unbound != 0)
    recording_.add_loss(ir::Loss::Severity::data_loss, "dependency arrows that bind to no operation", unbound,
                        ~std::uint64_t{0}, {Fact::edges});
}

// The nodes: those of the launch with most operations.
void Builder::start_graph(GraphInWork& work) {
  for (const std::uint32_t g : work.group->groups)
    for (std::uint32_t i = 0; i < groups_[g].count; ++i) work.has_ids = work.has_ids && t_.node(op(groups_[g], i).node).node_id != 0;
  const Group& reference = groups_[work.group->reference];
  for (std::uint32_t i = 0; i < reference.count; ++i) {
    const TimelineOp o = op(reference, i);
    if (work.has_ids) {
      node_with_id(work, o);  // the body of a loop runs several times
    } else {
      work.nodes_by_shape[o.shape].push_back(add_node(work, o));
    }
  }
  std::size_t total_ops = 0;
  for (const std::uint32_t g : work.group->groups) total_ops += groups_[g].count;
  work.builder.graph().replay_ops.reserve(total_ops);
}

ir::NodeId Builder::add_node(GraphInWork& work, const TimelineOp& o) {
  ir::GraphBuilder& builder = work.builder;
  const OpShape& shape = t_.shape(o.shape);
  ir::NodeId id;
  if (shape.kind == NodeKind::kernel) {
    ir::KernelNode kernel;
    kernel.function = recording_.intern_function(recording_.text(shape.name));
    kernel.grid = shape.grid;
    kernel.block = shape.block;
    kernel.registers_per_thread = shape.registers;
    // The trace gives static and dynamic shared memory as one number.
    kernel.dynamic_shared_bytes = shape.shared_bytes;
    kernel.priority = shape.priority;
    work.has_config = work.has_config && shape.grid.x != 0 && shape.block.x != 0;
    work.has_names = work.has_names && shape.name != ir::kEmptyString;
    id = builder.add_kernel(shape.name, kernel);
  } else if (shape.kind == NodeKind::memcpy) {
    ir::MemcpyNode copy;
    copy.width_bytes = shape.bytes;
    id = builder.add_memcpy(shape.name, copy);
  } else if (shape.kind == NodeKind::event_record) {
    id = builder.add_event(shape.kind, shape.name, {});
  } else if (shape.kind == NodeKind::host) {
    id = builder.add_host(shape.name, {});
  } else {
    ir::MemsetNode fill;
    fill.width = shape.bytes;
    id = builder.add_memset(shape.name, fill);
  }
  const std::int32_t device = t_.lane(o.lane).device;
  if (device >= 0 && device <= std::numeric_limits<std::int16_t>::max()) builder.set_device(id, static_cast<std::int16_t>(device));
  work.shape_of_node.push_back(o.shape);
  return id;
}

// A new node if none has the operation's id yet.
ir::NodeId Builder::node_with_id(GraphInWork& work, const TimelineOp& o) {
  const ir::NodeId node(work.node_ids.intern(node_key(o)));
  if (node.index() < work.shape_of_node.size()) return node;
  const ir::NodeId added = add_node(work, o);
  CGLINT_CHECK(added == node);
  work.builder.set_source_id(node, t_.node(o.node).node_id);
  return node;
}

// Operations that the reference launch lacks become nodes if they have an id. What runs while its own node runs is left out.
void Builder::add_replay(GraphInWork& work, const Group& group) {
  ir::Graph& graph = work.builder.graph();
  ir::Replay replay;
  replay.ops.first = static_cast<std::uint32_t>(graph.replay_ops.size());
  replay.correlation = op(group, 0).correlation;
  if (group.launch != kNone) {
    const TimelineLaunch& launch = t_.launches[group.launch];
    replay.host_start_ns = launch.start_ns;
    replay.host_end_ns = launch.start_ns + launch.dur_ns;
  }
  std::unordered_map<std::uint32_t, std::uint32_t> seen;  // shape -> operations
  for (std::uint32_t i = 0; i < group.count; ++i) {
    const TimelineOp o = op(group, i);
    const Lane& lane = t_.lane(o.lane);
    ir::ReplayOp replay_op;
    replay_op.start_ns = o.start_ns;
    replay_op.end_ns = o.start_ns + o.dur_ns;
    replay_op.stream = lane.stream;
    replay_op.device = lane.device;
    replay_op.kind = t_.shape(o.shape).kind;
    if (work.has_ids) {
      replay_op.node = node_with_id(work, o);
      if (work.last_run.size() < work.shape_of_node.size()) work.last_run.resize(work.shape_of_node.size());
      GraphInWork::LastRun& last = work.last_run[replay_op.node.index()];
      if (last.replay == graph.replays.size() && runs_into(last.op, replay_op)) {
        ++work.doubled;
        continue;
      }
      last = {graph.replays.size(), replay_op};
      if (work.shape_of_node[replay_op.node.index()] != o.shape) ++work.changed_params;
    } else {
      const auto it = work.nodes_by_shape.find(o.shape);
      const std::uint32_t nth = seen[o.shape]++;
      if (it != work.nodes_by_shape.end() && nth < it->second.size()) {
        replay_op.node = it->second[nth];
      } else {
        ++work.unmatched;
      }
    }
    if (!dependencies_.empty() && replay_op.node.is_valid()) work.node_of_op.emplace(group.first + i, replay_op.node);
    graph.replay_ops.push_back(replay_op);
  }
  t_.ops.release(group.first, group.count);
  replay.ops.count = static_cast<std::uint32_t>(graph.replay_ops.size()) - replay.ops.first;
  replay.complete = !group.lost_ops && !t_.lost_anywhere;  // if no other launch has more: finish_graph()
  graph.replays.push_back(replay);
}

base::Result<std::unique_ptr<ir::Graph>> Builder::finish_graph(GraphInWork& work, std::size_t number) {
  ir::GraphBuilder& builder = work.builder;
  ir::Graph& graph = builder.graph();
  const Group& reference = groups_[work.group->reference];
  bool has_nvtx = false;
  if (!t_.node_nvtx.empty() && work.has_ids) {
    for (const ir::NodeId node : graph.nodes()) {
      const auto it = t_.node_nvtx.find({reference.process, graph.source_id[node]});
      if (it == t_.node_nvtx.end() || !it->second.is_valid()) continue;
      builder.set_nvtx(node, it->second);
      has_nvtx = true;
    }
  }

  // Edges, where arrows draw them.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> edges;
  std::vector<std::uint8_t> has_predecessor(graph.node_count(), 0);
  for (const auto& [from, to] : dependencies_) {
    const auto a = work.node_of_op.find(from);
    const auto b = work.node_of_op.find(to);
    if (a == work.node_of_op.end() || b == work.node_of_op.end() || a->second == b->second) continue;
    edges.emplace_back(a->second.index(), b->second.index());
    has_predecessor[b->second.index()] = 1;
  }
  if (!is_acyclic(graph.node_count(), edges)) {
    recording_.add_loss(ir::Loss::Severity::data_loss, "dependency arrows that form a cycle were left out", edges.size(),
                        ~std::uint64_t{0}, {Fact::edges});
    edges.clear();
  }
  const bool has_edges = !edges.empty();
  for (const auto& [from, to] : edges) builder.add_edge(ir::NodeId(from), ir::NodeId(to));

  graph.info.process = ir::ProcessId(reference.process < recording_.processes.size() ? reference.process : 0);
  graph.info.source_id = reference.graph_id;
  graph.info.name = recording_.intern(reference.graph_id != 0 ? fmt::format("graph {}", reference.graph_id)
                                                              : fmt::format("traced graph {}", number + 1));
  graph.info.instantiated = true;
  graph.facts = {Fact::nodes, Fact::replay_streams, Fact::replay_times};
  if (work.has_names) graph.facts.insert(Fact::kernel_names);
  if (work.has_config) graph.facts.insert(Fact::launch_config);
  if (work.has_ids) graph.facts.insert(Fact::node_identity);
  if (has_edges) graph.facts.insert(Fact::edges);
  if (has_nvtx) graph.facts.insert(Fact::nvtx);
  const auto spoil = [&](Fact fact, std::string_view reason) {
    if (!graph.facts.contains(fact)) return;
    graph.facts.erase(fact);
    graph.spoiled.push_back({fact, recording_.intern(reason)});
  };
  for (const ir::SpoiledFact& entry : t_.spoiled) spoil(entry.fact, recording_.text(entry.reason));
  if (has_edges && std::count(has_predecessor.begin(), has_predecessor.end(), std::uint8_t{0}) > 1)
    spoil(Fact::edges,
          "several operations have no dependency arrow: arrows through nodes that the profiler does not record are missing");
  if (t_.is_amd)
    spoil(Fact::replay_streams, "ROCm traces report one stream for every operation of a graph launch");
  if (t_.streams_rewritten)
    spoil(Fact::replay_streams,
          "the trace was rewritten by torch.cuda._annotate_cuda_graph_trace, which replaces stream ids");
  // Nodes have names: that no launch has them all shows what was lost, unless they are alternatives.
  std::uint32_t most = 0;
  for (const ir::Replay& replay : graph.replays) most = std::max(most, replay.ops.count);
  for (ir::Replay& replay : graph.replays) {
    replay.complete = replay.complete && replay.ops.count == most;
    work.incomplete += replay.complete ? 0 : 1;
  }
  if (work.has_ids && most < graph.node_count()) {
    recording_.add_loss(ir::Loss::Severity::data_loss,
                        "nodes that some launches of a graph have while none has them all: lost records, or bodies of conditional nodes",
                        graph.node_count() - most, ~std::uint64_t{0}, {Fact::replay_streams, Fact::replay_times});
    for (ir::Replay& replay : graph.replays) replay.complete = false;
  }
  if (work.doubled != 0)
    recording_.add_loss(ir::Loss::Severity::data_loss, "operations of nodes that were still running in the same launch were left out",
                        work.doubled, ~std::uint64_t{0}, {Fact::replay_streams, Fact::replay_times});
  // A lost operation could have been any launch's: no count of this trace proves that there were not more.
  for (const ir::Loss& loss : recording_.losses) {
    if (loss.severity != ir::Loss::Severity::data_loss) continue;
    for (const Fact fact : {Fact::replay_streams, Fact::replay_times, Fact::edges, Fact::kernel_names})
      if (loss.facts.contains(fact)) spoil(fact, recording_.text(loss.what));
  }
  if (work.unmatched != 0)
    recording_.add_loss(ir::Loss::Severity::info, "operations of a launch that the graph's fullest launch does not have",
                        work.unmatched);
  if (work.changed_params != 0)
    recording_.add_loss(ir::Loss::Severity::info,
                        "operations whose kernel or size differs between launches of one graph (updated in place)",
                        work.changed_params);
  if (work.incomplete != 0)
    recording_.add_loss(ir::Loss::Severity::info,
                        "graph launches with fewer operations than others of the same graph: incomplete", work.incomplete);
  return builder.finish();
}

base::Result<void> Builder::build(const ReadOptions& options) {
  sort_operations();
  resolve_arrows();
  group_operations();
  group_launches();
  attach_cut_launches();
  attach_damaged_launches();
  if (inferred_launches_ != 0)
    recording_.add_loss(ir::Loss::Severity::info,
                        "graph launches whose launch call is not in the trace; found by their shared correlation id",
                        inferred_launches_);
  if (early_groups_ != 0)
    recording_.add_loss(ir::Loss::Severity::info,
                        "groups of operations whose call is not in the trace (perhaps graphs launched before it began): "
                        "counted as loose operations",
                        early_groups_);
  if (launches_without_ops_ != 0)
    recording_.add_loss(ir::Loss::Severity::info, "graph launch calls without GPU operations in the trace",
                        launches_without_ops_);
  // Launches in the order of time, of all graphs together: that is nearly the order in which operations are stored, so that those
  // behind are given back while the replays grow.
  std::vector<GraphInWork> works(graphs_.size());
  std::vector<std::uint32_t> work_of_group(groups_.size(), kNone);
  for (std::uint32_t i = 0; i < graphs_.size(); ++i) {
    works[i].group = &graphs_[i];
    for (const std::uint32_t g : graphs_[i].groups) work_of_group[g] = i;
    start_graph(works[i]);
  }
  for (std::uint32_t g = 0; g < groups_.size(); ++g)
    if (work_of_group[g] != kNone) add_replay(works[work_of_group[g]], groups_[g]);
  for (std::size_t i = 0; i < works.size(); ++i) {
    auto graph = finish_graph(works[i], i);
    if (!graph) return std::move(graph).error();
    works[i] = GraphInWork();
    const ir::GraphId id = recording_.graphs.push_back(*std::move(graph));
    if (options.on_graph) options.on_graph(recording_, id);
  }
  return {};
}

}  // namespace

std::uint64_t Timeline::HashOfShape::operator()(const OpShape& s) const {
  using base::mix_hash;
  std::uint64_t h = mix_hash(static_cast<std::uint64_t>(s.kind), s.name.index());
  h = mix_hash(h, (std::uint64_t{s.grid.x} << 32) | s.grid.y);
  h = mix_hash(h, (std::uint64_t{s.grid.z} << 32) | s.block.x);
  h = mix_hash(h, (std::uint64_t{s.block.y} << 32) | s.block.z);
  h = mix_hash(h, (std::uint64_t{s.registers} << 32) | s.shared_bytes);
  return mix_hash(mix_hash(h, s.bytes), static_cast<std::uint32_t>(s.priority));
}

namespace {

// Whose operations the rows of a trace show. A row is what was drawn as one process's, usually a device of it.
class RowOwners {
 public:
  RowOwners(const std::vector<TimelineLaunch>& launches, const std::vector<Lane>& lanes) {
    for (const TimelineLaunch& launch : launches)
      if (launch.correlation != 0)
        calls_[static_cast<std::uint32_t>(launch.correlation)].push_back({process_of(launch), launch.start_ns});
    for (auto& [correlation, calls] : calls_)
      std::sort(calls.begin(), calls.end(), [](const Call& a, const Call& b) { return a.start_ns < b.start_ns; });
    std::map<std::pair<std::int64_t, std::int32_t>, std::uint32_t> number;
    for (const Lane& lane : lanes) row_of_lane_.push_back(number.try_emplace({lane.pid, lane.device}, static_cast<std::uint32_t>(number.size())).first->second);
    rows_.resize(number.size());
  }
  void look_at(const TimelineOp& op) {
    const auto it = calls_.find(op.correlation);
    if (op.correlation == 0 || it == calls_.end()) return;
    Row& row = rows_[row_of_lane_[op.lane]];
    const std::vector<Call>& calls = it->second;
    if (calls.front().process == calls.back().process && is_of_one(calls)) {
      ++row.votes[calls.front().process];
      if (!seen_.insert(std::uint64_t{row_of_lane_[op.lane]} << 32 | op.correlation).second) row.graphs_of.insert(calls.front().process);
    } else if (calls.size() <= kMaxCalls) {
      // Nothing starts before its call: a process that called later has not launched it.
      for (const Call& call : calls) {
        bool& is_possible = row.is_possible.try_emplace(call.process, true).first->second;
        is_possible = is_possible && first_call(calls, call.process) <= op.start_ns + kClockErrorNs;
      }
    }
  }
  void decide() {
    std::set<std::uint32_t> placed;
    // Ids that one process has tell it. Another's operation outside of graphs may have the same, but only one has each.
    for (Row& row : rows_) {
      std::uint64_t all = 0, most = 0;
      std::uint32_t winner = kNone;
      for (const auto& [process, count] : row.votes) {
        all += count;
        if (count > most) winner = process;
        most = std::max(most, count);
      }
      if (row.graphs_of.size() == 1) winner = *row.graphs_of.begin();
      if (winner != kNone && (row.graphs_of.size() == 1 || (row.graphs_of.empty() && most * 4 >= all * 3))) placed.insert(row.owner = winner);
    }
    for (Row& row : rows_) {
      if (row.owner != kNone || !row.votes.empty()) continue;
      const auto is_possible = [](const auto& entry) { return entry.second; };
      if (std::count_if(row.is_possible.begin(), row.is_possible.end(), is_possible) != 1) continue;
      placed.insert(row.owner = std::find_if(row.is_possible.begin(), row.is_possible.end(), is_possible)->first);
    }
    // A process without a row whose operations can be in one row only.
    for (int round = 0; round < kMaxRounds; ++round) {
      std::map<std::uint32_t, std::vector<Row*>> places;
      for (Row& row : rows_)
        if (row.owner == kNone && row.votes.empty())
          for (const auto& [process, is_possible] : row.is_possible)
            if (is_possible && !placed.contains(process)) places[process].push_back(&row);
      bool any = false;
      for (const auto& [process, rows] : places) {
        if (rows.size() != 1 || rows.front()->owner != kNone) continue;
        placed.insert(rows.front()->owner = process);
        any = true;
      }
      if (!any) break;
    }
    // One without a row: its operations are in another's.
    for (Row& row : rows_) {
      const auto is_homeless = [&](const auto& entry) { return !placed.contains(entry.first); };
      if (row.votes.empty() && std::any_of(row.is_possible.begin(), row.is_possible.end(), is_homeless)) row.owner = kNone;
    }
  }
  // kNone: it cannot be told.
  [[nodiscard]] std::uint32_t of_lane(std::size_t lane) const { return rows_[row_of_lane_[lane]].owner; }
  // Of the last call with the operation's id before it; kNone if no call has it.
  [[nodiscard]] std::uint32_t of_call(const TimelineOp& op, bool& is_certain) const {
    const auto it = op.correlation == 0 ? calls_.end() : calls_.find(op.correlation);
    if (it == calls_.end()) return kNone;
    const std::vector<Call>& calls = it->second;
    is_certain = is_of_one(calls);
    const auto behind = std::upper_bound(calls.begin(), calls.end(), op.start_ns, [](std::int64_t ns, const Call& call) { return ns < call.start_ns; });
    return (behind == calls.begin() ? behind : behind - 1)->process;
  }

 private:
  static constexpr std::size_t kMaxCalls = 64;            // with one id that are looked at
  static constexpr int kMaxRounds = 64;
  static constexpr std::int64_t kClockErrorNs = 100'000;  // between host and device
  struct Call {
    std::uint32_t process;
    std::int64_t start_ns;
  };
  struct Row {
    std::map<std::uint32_t, std::uint64_t> votes;
    std::set<std::uint32_t> graphs_of;          // processes with a launch of several operations in it
    std::map<std::uint32_t, bool> is_possible;  // of those that share ids
    std::uint32_t owner = kNone;
  };
  static std::uint32_t process_of(const TimelineLaunch& launch) { return static_cast<std::uint32_t>(launch.correlation >> kCorrelationBits); }
  static bool is_of_one(const std::vector<Call>& calls) {
    return std::all_of(calls.begin(), calls.end(), [&](const Call& call) { return call.process == calls.front().process; });
  }
  static std::int64_t first_call(const std::vector<Call>& calls, std::uint32_t process) {
    return std::find_if(calls.begin(), calls.end(), [&](const Call& call) { return call.process == process; })->start_ns;
  }

  std::unordered_map<std::uint32_t, std::vector<Call>> calls_;  // by correlation id, in time order
  std::vector<std::uint32_t> row_of_lane_;
  std::unordered_set<std::uint64_t> seen_;  // row << 32 | correlation id
  std::vector<Row> rows_;
};

}  // namespace

void Timeline::separate_processes() {
  for (std::vector<std::uint64_t>* list : {&lost_correlations, &whole_launches}) {
    const std::vector<std::uint64_t> ids = std::move(*list);
    list->clear();
    for (std::uint32_t process = 0; process < recording_.processes.size(); ++process)
      for (const std::uint64_t id : ids) list->push_back(correlation_key(process, id));
  }
  RowOwners owners(launches, lanes_);
  for (std::size_t i = 0; i < ops.size(); ++i) owners.look_at(ops[i]);
  owners.decide();
  bool any_shared = false;
  const std::size_t lane_count = lanes_.size();
  for (std::size_t i = 0; i < lane_count; ++i) {
    const std::uint32_t owner = owners.of_lane(i);
    any_shared = any_shared || owner == kNone;
    if (owner != kNone) lanes_[i].process = owner;
  }
  if (!any_shared) return;
  // Rows that several processes have, or that nothing tells of: there the call decides.
  TimelineOps separated;
  std::uint64_t uncertain = 0;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    TimelineOp op = ops[i];
    ops.release(i, 1);
    bool is_certain = false;
    if (owners.of_lane(op.lane) == kNone) {
      if (const std::uint32_t process = owners.of_call(op, is_certain); process != kNone) {
        Lane lane = lanes_[op.lane];
        lane.process = process;
        op.lane = intern_lane(lane);
        uncertain += is_certain ? 0 : 1;
      }
    }
    separated.push_back(op);
  }
  ops = std::move(separated);
  if (uncertain != 0)
    recording_.add_loss(ir::Loss::Severity::data_loss,
                        "operations whose correlation id launch calls of several processes have, in rows that do not tell of which process they are",
                        uncertain, ~std::uint64_t{0}, {Fact::replay_streams, Fact::replay_times});
}

std::uint32_t Timeline::intern_lane(const Lane& lane) {
  // Few lanes, and events of one lane come in runs: look from the newest.
  for (std::size_t i = lanes_.size(); i-- > 0;)
    if (lanes_[i] == lane) return static_cast<std::uint32_t>(i);
  lanes_.push_back(lane);
  return static_cast<std::uint32_t>(lanes_.size() - 1);
}

void Timeline::forget_row_streams() {
  for (Lane& lane : lanes_)
    if (lane.stream_of_row) lane.stream = 0;
}

void Timeline::forget_row_devices() {
  for (Lane& lane : lanes_)
    if (lane.device_of_row) lane.device = -1;
}

base::Result<void> Timeline::build_graphs(const ReadOptions& options) {
  Builder builder(*this, recording_);
  return builder.build(options);
}

}  // namespace cglint::import
