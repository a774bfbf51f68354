#include "analysis/stream_model.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <unordered_map>
#include <utility>

namespace cglint::analysis {
namespace {

// Measured graphs with the kind, in tests/data/streams; the test there holds each share.
constexpr StreamKindAgreement kAgreement580[] = {
    {StreamNodeKind::kernel, 1.0, 184454},          {StreamNodeKind::memcpy_on_device, 1.0, 20575},
    {StreamNodeKind::memcpy_with_host, 1.0, 12477}, {StreamNodeKind::memset, 1.0, 34223},
    {StreamNodeKind::memset_large, 1.0, 600},       {StreamNodeKind::host, 1.0, 9238},
    {StreamNodeKind::event_record, 1.0, 8963},      {StreamNodeKind::event_wait, 1.0, 7678},
    {StreamNodeKind::batch_mem_op, 1.0, 2666},      {StreamNodeKind::empty, 1.0, 32015},
    {StreamNodeKind::mem_alloc, 1.0, 2392},         {StreamNodeKind::mem_free, 1.0, 2392},
    {StreamNodeKind::child_graph, 1.0, 8180},       {StreamNodeKind::conditional, 0.998, 20293},
};

// A kind below this share of exactly predicted graphs is named as weak.
constexpr double kGoodAgreement = 0.995;
// Adjacency lists that may grow: slices of one pool. A list that outgrows its slice moves to the end of the
// pool.
class Lists {
 public:
  // Builds the lists `key(edge) -> value(edge)` by two counting sorts: values ascend within each list.
  void build(std::size_t node_count, std::span<const std::uint32_t> keys,
             std::span<const std::uint32_t> values) {
    slice_.assign(node_count, Slice());
    for (const std::uint32_t key : keys) ++slice_[key].capacity;
    std::uint32_t first = 0;
    for (Slice& slice : slice_) {
      slice.first = first;
      first += slice.capacity;
    }
    pool_.resize(keys.size());
    for (std::size_t i = 0; i < keys.size(); ++i) {
      Slice& slice = slice_[keys[i]];
      pool_[slice.first + slice.size++] = values[i];
    }
  }
  [[nodiscard]] std::span<const std::uint32_t> operator[](std::uint32_t node) const {
    return std::span(pool_).subspan(slice_[node].first, slice_[node].size);
  }
  void push(std::uint32_t node, std::uint32_t value) {
    Slice& slice = slice_[node];
    if (slice.size == slice.capacity) {
      const auto moved_to = static_cast<std::uint32_t>(pool_.size());
      pool_.resize(pool_.size() + 2 * std::size_t{slice.capacity} + 4);
      std::copy_n(pool_.begin() + slice.first, slice.size, pool_.begin() + moved_to);
      slice.first = moved_to;
      slice.capacity = 2 * slice.capacity + 4;
    }
    pool_[slice.first + slice.size++] = value;
  }
  void set(std::uint32_t node, std::uint32_t index, std::uint32_t value) {
    pool_[slice_[node].first + index] = value;
  }
  void pop(std::uint32_t node) { --slice_[node].size; }
  void clear(std::uint32_t node) { slice_[node].size = 0; }

 private:
  struct Slice {
    std::uint32_t first = 0, size = 0, capacity = 0;
  };
  std::vector<Slice> slice_;
  std::vector<std::uint32_t> pool_;
};

// The edges that are not full: few or none in most graphs, and asked for at every fork.
class TypedEdges {
 public:
  // Of edges that are given twice the later counts.
  void build(std::size_t node_count, std::span<const StreamEdge> edges) {
    items_.clear();
    for (const StreamEdge& edge : edges)
      if (edge.type != StreamEdgeType::full) items_.push_back(edge);
    if (items_.empty()) return;
    const auto before = [](const StreamEdge& a, const StreamEdge& b) { return a.from != b.from ? a.from < b.from : a.to < b.to; };
    if (!std::is_sorted(items_.begin(), items_.end(), before)) std::stable_sort(items_.begin(), items_.end(), before);
    const auto same = [](const StreamEdge& a, const StreamEdge& b) { return a.from == b.from && a.to == b.to; };
    const auto kept = std::unique(items_.rbegin(), items_.rend(), same).base();
    items_.erase(items_.begin(), kept);
    first_.assign(node_count + 1, 0);
    for (const StreamEdge& edge : items_) ++first_[edge.from + 1];
    for (std::size_t v = 0; v < node_count; ++v) first_[v + 1] += first_[v];
  }
  [[nodiscard]] bool empty() const { return items_.empty(); }
  [[nodiscard]] StreamEdgeType type(std::uint32_t from, std::uint32_t to) const {
    const StreamEdge* const found = find(from, to);
    return found == nullptr ? StreamEdgeType::full : found->type;
  }
  void make_full(std::uint32_t from, std::uint32_t to) {
    if (const StreamEdge* const found = find(from, to))
      items_[static_cast<std::size_t>(found - items_.data())].type = StreamEdgeType::full;
  }

 private:
  [[nodiscard]] const StreamEdge* find(std::uint32_t from, std::uint32_t to) const {
    if (items_.empty() || first_[from] == first_[from + 1]) return nullptr;
    const auto end = items_.begin() + first_[from + 1];
    const auto found = std::lower_bound(items_.begin() + first_[from], end, to,
                                        [](const StreamEdge& edge, std::uint32_t value) { return edge.to < value; });
    return found != end && found->to == to ? &*found : nullptr;
  }

  std::vector<StreamEdge> items_;     // by (from, to), each pair once
  std::vector<std::uint32_t> first_;  // by `from`; set where there are items
};

// Edges without duplicates, sorted by (from, to): two stable counting sorts. False if an index is out of
// range.
bool sorted_edges(const StreamGraph& graph, std::vector<std::uint32_t>& from,
                  std::vector<std::uint32_t>& to) {
  const std::size_t n = graph.node_count();
  bool sorted = true;
  for (std::size_t i = 0; i < graph.edges.size(); ++i) {
    const StreamEdge& edge = graph.edges[i];
    if (edge.from >= n || edge.to >= n || edge.from == edge.to) return false;
    if (i > 0) {
      const StreamEdge& before = graph.edges[i - 1];
      sorted = sorted && (before.from < edge.from || (before.from == edge.from && before.to < edge.to));
    }
  }
  from.clear();
  to.clear();
  from.reserve(graph.edges.size());
  to.reserve(graph.edges.size());
  if (sorted) {
    for (const StreamEdge& edge : graph.edges) {
      from.push_back(edge.from);
      to.push_back(edge.to);
    }
    return true;
  }
  std::vector<std::uint32_t> start(n + 1, 0), by_to(graph.edges.size());
  for (const StreamEdge& edge : graph.edges) ++start[edge.to + 1];
  for (std::size_t v = 0; v < n; ++v) start[v + 1] += start[v];
  for (std::uint32_t i = 0; i < graph.edges.size(); ++i) by_to[start[graph.edges[i].to]++] = i;
  start.assign(n + 1, 0);
  std::vector<std::uint32_t> by_from(graph.edges.size());
  for (const StreamEdge& edge : graph.edges) ++start[edge.from + 1];
  for (std::size_t v = 0; v < n; ++v) start[v + 1] += start[v];
  for (const std::uint32_t i : by_to) by_from[start[graph.edges[i].from]++] = i;
  for (const std::uint32_t i : by_from) {
    const StreamEdge& edge = graph.edges[i];
    if (!from.empty() && from.back() == edge.from && to.back() == edge.to) continue;
    from.push_back(edge.from);
    to.push_back(edge.to);
  }
  return true;
}

// How the model treats a node kind.
enum class Treatment : std::uint8_t {
  plain,   // as a kernel
  apart,   // starts an origin of its own
  bypass,  // removed, unless it joins several parents and forks to several children: then apart
};
constexpr Treatment treatment(StreamNodeKind kind) {
  switch (kind) {
    case StreamNodeKind::kernel:
    case StreamNodeKind::memcpy_on_device:
    case StreamNodeKind::memset_large:
      return Treatment::plain;
    case StreamNodeKind::empty:
    case StreamNodeKind::mem_alloc:
    case StreamNodeKind::mem_free:
      return Treatment::bypass;
    default:
      return Treatment::apart;
  }
}

// One run of the model. Nodes are numbered by creation throughout; `order_` is the order of visit.
class Predictor {
 public:
  Predictor(const StreamGraph& graph, const StreamModel& model)
      : graph_(graph), model_(model), n_(graph.node_count()) {}

  // False for a cyclic or out-of-range graph.
  bool run() {
    std::vector<std::uint32_t> from, to;
    if (!sorted_edges(graph_, from, to) || !find_bodies()) return false;
    children_.build(n_, from, to);
    parents_.build(n_, to, from);
    treatment_.resize(n_);
    std::transform(graph_.kinds.begin(), graph_.kinds.end(), treatment_.begin(), treatment);
    typed_.build(n_, graph_.edges);
    if (!typed_.empty()) {
      passed_over_.assign(n_, false);
      sole_close_.assign(n_, false);
    }
    removed_.assign(n_, false);
    if (!remove_nodes()) return false;
    find_visit_order();
    if (order_.size() + removed_count_ != n_) return false;
    find_funnels();
    find_origins();
    nodes_.assign(n_, StreamNode());
    for (const std::uint32_t v : order_) visit(v);
    return true;
  }

  [[nodiscard]] std::uint32_t created_streams() const { return streams_; }
  std::vector<StreamNode>& nodes() { return nodes_; }
  std::vector<std::uint32_t>& order() { return order_; }
  [[nodiscard]] const std::vector<bool>& funnels() const { return funnel_; }
  [[nodiscard]] std::span<const std::uint32_t> children(std::uint32_t v) const { return children_[v]; }

 private:
  static std::uint64_t key(std::uint32_t first, std::uint32_t second) {
    return std::uint64_t{first} << 32 | second;
  }

  // The run of nodes that each child-graph node owns. False where owners are not as StreamGraph says.
  bool find_bodies() {
    own_count_ = n_;
    if (graph_.owner.empty()) return true;
    if (graph_.owner.size() != n_) return false;
    body_.assign(n_, Run());
    own_count_ = 0;
    for (std::uint32_t v = 0; v < n_; ++v) {
      const std::uint32_t owner = graph_.owner[v];
      if (owner == kNoNode) {
        if (own_count_ != v) return false;
        ++own_count_;
        continue;
      }
      if (owner >= v || graph_.kinds[owner] != StreamNodeKind::child_graph) return false;
      Run& body = body_[owner];
      if (body.count == 0) body.first = v;
      if (body.first + body.count != v) return false;
      ++body.count;
    }
    return std::all_of(graph_.edges.begin(), graph_.edges.end(), [&](const StreamEdge& edge) {
      return graph_.owner[edge.from] == graph_.owner[edge.to];
    });
  }

  // What is not there any more when the driver assigns streams, in one pass in creation order.
  //
  // Empty nodes with fewer than two parents or fewer than two children carry no order that edges could not
  // carry: their parents are connected to their children.
  // The body of a child graph takes the place of its node, and is looked at next: its roots become the
  // children of the node's parents, the node's children those of its leaves.
  //
  // New children are appended, then the last entry takes the removed node's place: so the order of a list
  // changes, and that order matters later. False if bodies of many roots and leaves in a row ask for more new
  // dependencies than kMaxInlinedDependencies.
  bool remove_nodes() {
    removed_count_ = 0;
    scan_.clear();
    scan_.reserve(n_);
    if (std::find(treatment_.begin(), treatment_.end(), Treatment::bypass) == treatment_.end() &&
        std::find(graph_.kinds.begin(), graph_.kinds.end(), StreamNodeKind::child_graph) ==
            graph_.kinds.end()) {
      scan_.resize(n_);
      std::iota(scan_.begin(), scan_.end(), 0U);
      return true;
    }
    // (owner << 32 | entry) -> index of the entry in the owner's list, for the lists next to a node that may
    // go.
    std::unordered_map<std::uint64_t, std::uint32_t> child_at, parent_at;
    const auto is_child_graph = [&](std::uint32_t v) {
      return graph_.kinds[v] == StreamNodeKind::child_graph;
    };
    const auto may_go = [&](std::uint32_t v) {
      return treatment_[v] == Treatment::bypass || is_child_graph(v);
    };
    const auto index_lists = [&](const Lists& lists, auto& at) {
      for (std::uint32_t v = 0; v < n_; ++v) {
        const std::span<const std::uint32_t> list = lists[v];
        if (!may_go(v) && std::none_of(list.begin(), list.end(), may_go)) continue;
        for (std::uint32_t i = 0; i < list.size(); ++i) at.emplace(key(v, list[i]), i);
      }
    };
    index_lists(children_, child_at);
    index_lists(parents_, parent_at);
    const auto append = [&](Lists& lists, auto& at, std::uint32_t owner, std::uint32_t entry) {
      if (at.emplace(key(owner, entry), static_cast<std::uint32_t>(lists[owner].size())).second) {
        lists.push(owner, entry);
      }
    };
    const auto swap_remove = [&](Lists& lists, auto& at, std::uint32_t owner, std::uint32_t entry) {
      const auto found = at.find(key(owner, entry));
      const std::uint32_t index = found->second, last = lists[owner].back();
      at.erase(found);
      lists.set(owner, index, last);
      if (last != entry) at[key(owner, last)] = index;
      lists.pop(owner);
    };
    const auto remove = [&](std::uint32_t v) {
      children_.clear(v);
      parents_.clear(v);
      removed_[v] = true;
      ++removed_count_;
    };
    // The lists of v do not change in the loops below, but the pool behind them may move: entries are read by
    // index.
    const auto bypass = [&](std::uint32_t v) {
      for (std::uint32_t p = 0; p < parents_[v].size(); ++p) {
        const std::uint32_t parent = parents_[v][p];
        for (std::uint32_t c = 0; c < children_[v].size(); ++c) {
          const std::uint32_t child = children_[v][c];
          append(children_, child_at, parent, child);
          typed_.make_full(parent, child);  // the way over v is a full dependency
        }
        swap_remove(children_, child_at, parent, v);
      }
      for (std::uint32_t c = 0; c < children_[v].size(); ++c) {
        const std::uint32_t child = children_[v][c];
        for (std::uint32_t p = 0; p < parents_[v].size(); ++p)
          append(parents_, parent_at, child, parents_[v][p]);
        swap_remove(parents_, parent_at, child, v);
      }
      remove(v);
    };
    std::size_t dependencies = 0;
    const auto inline_body = [&](std::uint32_t v) {
      const Run body = body_[v];
      std::vector<std::uint32_t> roots, leaves;
      for (std::uint32_t b = body.first; b < body.first + body.count; ++b) {
        if (parents_[b].empty()) roots.push_back(b);
        if (children_[b].empty()) leaves.push_back(b);
      }
      const std::vector<std::uint32_t> parents(parents_[v].begin(), parents_[v].end());
      const std::vector<std::uint32_t> children(children_[v].begin(), children_[v].end());
      dependencies += parents.size() * roots.size() + children.size() * leaves.size();
      if (dependencies > kMaxInlinedDependencies) return false;
      for (const std::uint32_t parent : parents) {
        for (const std::uint32_t root : roots) append(children_, child_at, parent, root);
        swap_remove(children_, child_at, parent, v);
      }
      for (const std::uint32_t child : children) {
        for (const std::uint32_t leaf : leaves) append(parents_, parent_at, child, leaf);
        swap_remove(parents_, parent_at, child, v);
      }
      for (const std::uint32_t root : roots) {
        for (const std::uint32_t parent : parents) append(parents_, parent_at, root, parent);
      }
      for (const std::uint32_t leaf : leaves) {
        for (const std::uint32_t child : children) append(children_, child_at, leaf, child);
      }
      remove(v);
      return true;
    };
    // Runs of nodes still to look at, the innermost body last.
    std::vector<Run> open{{0, static_cast<std::uint32_t>(own_count_)}};
    while (!open.empty()) {
      Run& run = open.back();
      if (run.count == 0) {
        open.pop_back();
        continue;
      }
      const std::uint32_t v = run.first++;
      --run.count;
      if (is_child_graph(v) && !body_.empty() && body_[v].count > 0) {
        if (!inline_body(v)) return false;
        open.push_back(body_[v]);
      } else if (may_go(v)) {
        if (parents_[v].size() < 2 || children_[v].size() < 2) {
          bypass(v);
        } else {
          treatment_[v] = Treatment::apart;
          scan_.push_back(v);
        }
      } else {
        scan_.push_back(v);
      }
    }
    return true;
  }

  void find_visit_order() {
    // Where parents come before their children, as in captured graphs, nothing waits.
    bool parents_come_first = scan_.size() == n_;
    for (std::uint32_t v = 0; v < n_ && parents_come_first; ++v)
      for (const std::uint32_t parent : parents_[v]) parents_come_first = parents_come_first && parent < v;
    if (parents_come_first) {
      order_ = scan_;
      return;
    }
    std::vector<std::uint32_t> open_parents(n_), rank(n_, 0);
    for (std::uint32_t v = 0; v < n_; ++v) open_parents[v] = static_cast<std::uint32_t>(parents_[v].size());
    for (std::uint32_t i = 0; i < scan_.size(); ++i) rank[scan_[i]] = i;
    std::vector<bool> done(n_, false);
    order_.clear();
    order_.reserve(n_);
    for (const std::uint32_t start : scan_) {
      if (done[start] || open_parents[start] != 0) continue;
      std::size_t next = order_.size();
      order_.push_back(start);  // the end of `order_` is the queue
      for (; next < order_.size(); ++next) {
        const std::uint32_t v = order_[next];
        done[v] = true;
        for (const std::uint32_t child : children_[v]) {
          if (--open_parents[child] == 0 && rank[child] < rank[start]) order_.push_back(child);
        }
      }
    }
  }

  // A funnel is a node that every other node is ordered before or after, and that no edge bypasses. In the
  // order of visit, which is topological, that holds for v exactly if no edge passes over v, no node before v
  // is a sink and no node after v is a source: then each earlier node has an edge that stays before v or ends
  // in v, and so reaches v; and likewise for later nodes.
  // What comes after a conditional node is no funnel: the nodes of its bodies run beside it.
  void find_funnels() {
    std::vector<std::uint32_t> position(n_, 0);
    for (std::uint32_t i = 0; i < order_.size(); ++i) position[order_[i]] = i;
    std::vector<std::int32_t> step(order_.size() + 1,
                                   0);  // change of the number of edges that pass over a position
    std::uint32_t sources_to_come = 0;
    for (const std::uint32_t v : order_) {
      sources_to_come += parents_[v].empty();
      for (const std::uint32_t child : children_[v]) {
        ++step[position[v] + 1];
        --step[position[child]];
      }
    }
    funnel_.assign(n_, false);
    std::int32_t passing = 0;
    bool sink_before = false, conditional_before = false;
    for (std::uint32_t i = 0; i < order_.size(); ++i) {
      const std::uint32_t v = order_[i];
      passing += step[i];
      sources_to_come -= parents_[v].empty();
      funnel_[v] = passing == 0 && !sink_before && sources_to_come == 0 && !conditional_before;
      conditional_before = conditional_before || graph_.kinds[v] == StreamNodeKind::conditional;
      sink_before = sink_before || children_[v].empty();
    }
  }

  // Every root, every node that is not plain, and every child of such a node starts an origin of its own;
  // other nodes belong to the youngest origin among their parents', and are `mixed` if those differ. A node
  // with a launch-order edge to one that starts an origin starts one, too.
  void find_origins() {
    apart_.assign(n_, false);
    mixed_.assign(n_, false);
    for (const std::uint32_t v : order_) {
      bool apart = treatment_[v] != Treatment::plain;
      for (const std::uint32_t parent : parents_[v]) apart = apart || treatment_[parent] != Treatment::plain;
      apart_[v] = apart;
    }
    if (!typed_.empty()) {
      for (std::size_t i = order_.size(); i-- > 0;) {
        const std::uint32_t v = order_[i];
        for (const std::uint32_t child : children_[v]) {
          if (apart_[child] && edge_type(v, child) == StreamEdgeType::launch_order) apart_[v] = true;
        }
      }
    }
    std::vector<std::uint32_t> origin(n_, 0);
    for (std::uint32_t i = 0; i < order_.size(); ++i) {
      const std::uint32_t v = order_[i];
      std::uint32_t youngest = 0, oldest = kNoNode;
      for (const std::uint32_t parent : parents_[v]) {
        youngest = std::max(youngest, origin[parent]);
        oldest = std::min(oldest, origin[parent]);
      }
      mixed_[v] = !apart_[v] && !parents_[v].empty() && youngest != oldest;
      origin[v] = apart_[v] || parents_[v].empty() ? i : youngest;
    }
  }

  // Three plain funnels in a row, each the only child of the one before, over full edges.
  [[nodiscard]] bool starts_straight_run(std::uint32_t v) const {
    for (int i = 0; i < 3; ++i) {
      if (!funnel_[v] || treatment_[v] != Treatment::plain) return false;
      if (i == 2) break;
      if (children_[v].size() != 1) return false;
      const std::uint32_t next = children_[v][0];
      if (!typed_.empty() && edge_type(v, next) != StreamEdgeType::full) return false;
      v = next;
    }
    return true;
  }

  [[nodiscard]] bool is_placed(std::uint32_t v) const { return nodes_[v].stream != kNoStream; }
  void place(std::uint32_t v, std::int32_t stream, StreamOrigin origin, std::uint32_t by = kNoNode) {
    nodes_[v].stream = stream;
    nodes_[v].origin = origin;
    nodes_[v].by = by;
  }
  // Places `child` on `stream`, which is either v's own or one that was just made.
  void give(std::uint32_t v, std::uint32_t child, std::int32_t stream) {
    const bool own = stream == nodes_[v].stream;
    place(child, stream, own ? StreamOrigin::handed_on : StreamOrigin::opened_at_fork, v);
    if (own) nodes_[v].heir = child;
  }
  std::int32_t make_stream() { return static_cast<std::int32_t>(streams_++); }

  void visit(std::uint32_t v) {
    if (streams_ > 0 && (starts_straight_run(v) || (funnel_[v] && !is_placed(v)))) {
      place(v, 0, StreamOrigin::rejoins_launch);
    } else if (!is_placed(v)) {
      place(v, make_stream(), StreamOrigin::opened_late);
      if (streams_ == 1) nodes_[v].origin = StreamOrigin::launch;
    }
    if (!children_[v].empty() && !hand_over_to_only_child(v)) hand_over(v);
  }

  // The most frequent case of hand_over(), with the same outcome: one plain child of one origin, behind a full edge. False: another case.
  bool hand_over_to_only_child(std::uint32_t v) {
    const std::span<const std::uint32_t> children = children_[v];
    if (children.size() != 1 || model_.many_children <= 1) return false;
    const std::uint32_t child = children[0];
    if (apart_[child] || mixed_[child] || edge_type(v, child) != StreamEdgeType::full) return false;
    if (!funnel_[child] && !is_placed(child)) give(v, child, nodes_[v].stream);
    return true;
  }

  // Passes v's stream to at most one child, and opens streams for some of the others. Children that are left
  // without one may get one from another parent; else they open a stream when they are visited.
  void hand_over(std::uint32_t v) {
    std::vector<std::uint32_t>& list = list_;
    list.assign(children_[v].begin(), children_[v].end());
    std::size_t plain_count = 0, mixed_count = 0, close_count = 0;
    const StreamEdgeType close_type = type_of_close_children(v);
    const auto is_close = [&](std::uint32_t child) {
      return close_type != StreamEdgeType::full && !apart_[child] && !mixed_[child] &&
             edge_type(v, child) == close_type && (funnel_[child] || !passed_over_[child]);
    };
    for (const std::uint32_t child : list) {
      plain_count += !apart_[child];
      mixed_count += mixed_[child];
      close_count += is_close(child);
    }
    if (plain_count == 0) {
      if (list.size() == 1 || !funnel_[list[0]]) offer_to_apart(v, list);
      return;
    }
    // Children of several origins together count as one branch. With many branches all but the close ones are
    // treated as the mixed ones are.
    std::size_t branches = plain_count - mixed_count + (mixed_count > 0);
    const bool many = branches >= model_.many_children;
    const bool single = plain_count == 1 && mixed_count == 0;
    const auto goes_to_back = [&](std::uint32_t child) {
      return mixed_[child] || (many && !apart_[child] && !is_close(child));
    };
    if (many || mixed_count > 0) {
      std::size_t back = list.size();
      for (std::size_t i = list.size(); i-- > 0;) {
        if (goes_to_back(list[i])) std::swap(list[i], list[--back]);
      }
    }
    // A funnel of another origin at the front makes v's stream unavailable, without taking it.
    const bool withheld = list.size() > 1 && apart_[list[0]] && funnel_[list[0]];
    std::int32_t current = withheld ? kNoStream : nodes_[v].stream;

    // A single plain child, or all of many in their first order, are served like mixed ones: one of them,
    // from the back.
    close_.clear();
    front_.clear();
    back_.clear();
    if (single || (many && close_count == 0)) {
      for (const std::uint32_t child : children_[v]) {
        if (!apart_[child]) back_.push_back(child);
      }
    } else {
      for (const std::uint32_t child : list) {
        if (apart_[child]) continue;
        if (is_close(child)) {
          close_.push_back(child);
        } else if (mixed_[child] || many) {
          back_.push_back(child);
        } else if (close_type == StreamEdgeType::full || close_count > 0 ||
                   !has_followed(v, child, close_type)) {
          front_.push_back(child);
        }
      }
    }
    if (single && is_close(back_[0])) {
      sole_close_[back_[0]] = !funnel_[back_[0]];
      passed_over_[back_[0]] = true;
    }
    bool settled = withheld;  // v's stream, or its chance, has gone to somebody
    const auto serve = [&](const std::vector<std::uint32_t>& group, bool last_is_left, bool opens_first) {
      for (std::size_t i = 0; i < group.size(); ++i) {
        const std::uint32_t child = group[i];
        const bool last = i + 1 == group.size() && last_is_left;
        if (current == kNoStream && !last && (i > 0 || opens_first)) current = make_stream();
        if (current == kNoStream) continue;
        // A funnel will return to the launch stream; what it would have got goes to nobody.
        const bool returns = funnel_[child] && (!last || (&group == &close_ && group.size() == 1));
        if (!returns && is_placed(child)) continue;
        if (!returns) give(v, child, current);
        current = kNoStream;
        settled = true;
      }
    };
    serve(close_, true, true);
    if (close_.size() == 1) sole_close_[close_[0]] = true;
    for (const std::uint32_t child : close_) passed_over_[child] = true;
    if (close_.size() > 1) {
      current = kNoStream;
      settled = true;
    }
    serve(front_, back_.empty(), !close_.empty());
    if (!back_.empty()) {
      if (single && current == kNoStream) return;
      settled = settled || !single;
      if (current == kNoStream) {
        if (funnel_[back_.back()] && streams_ == 1) return;
        current = make_stream();
      }
      if (funnel_[back_.back()]) return;
      const auto unplaced =
          std::find_if(back_.rbegin(), back_.rend(), [&](std::uint32_t c) { return !is_placed(c); });
      if (unplaced != back_.rend()) {
        if (!single && funnel_[v] && front_.empty() && current == nodes_[v].stream && current != 0) {
          place(*unplaced, 0, StreamOrigin::rejoins_launch, v);
        } else {
          give(v, *unplaced, current);
        }
        settled = true;
      }
    }
    if (settled || branches > 2) return;
    // v's stream is still to be had. Of two plain children, both placed, the second goes to the back first.
    list.assign(children_[v].begin(), children_[v].end());
    if (branches == 2) {
      const auto second =
          std::find_if(list.rbegin(), list.rend(), [&](std::uint32_t c) { return !apart_[c]; });
      *second = list.back();
      list.pop_back();
    }
    offer_to_apart(v, list);
  }

  // Children behind launch-order edges, or else behind programmatic ones, are close: they are meant to follow
  // v directly and are served first, on their own count. Only at the first fork that offers them anything,
  // though.
  [[nodiscard]] StreamEdgeType type_of_close_children(std::uint32_t v) const {
    StreamEdgeType type = StreamEdgeType::full;
    if (typed_.empty()) return type;
    for (const std::uint32_t child : children_[v]) {
      if (!apart_[child] && !mixed_[child]) type = std::max(type, edge_type(v, child));
    }
    return type;
  }
  // An earlier node that had this child as its only close one has placed it: it counts for nothing here.
  [[nodiscard]] bool has_followed(std::uint32_t v, std::uint32_t child, StreamEdgeType type) const {
    return sole_close_[child] && is_placed(child) && edge_type(v, child) == type;
  }

  [[nodiscard]] StreamEdgeType edge_type(std::uint32_t from, std::uint32_t to) const {
    return typed_.type(from, to);
  }

  // The first child of another origin that has no stream takes v's.
  void offer_to_apart(std::uint32_t v, std::span<const std::uint32_t> list) {
    for (const std::uint32_t child : list) {
      if (!apart_[child] || is_placed(child)) continue;
      if (!(funnel_[child] && children_[v].size() == 1)) give(v, child, nodes_[v].stream);
      return;
    }
  }

  static constexpr std::int32_t kNoStream = -1;

  struct Run {
    std::uint32_t first = 0, count = 0;
  };

  const StreamGraph& graph_;
  const StreamModel& model_;
  const std::size_t n_;
  std::size_t own_count_ = 0, removed_count_ = 0;  // own: not in a body
  std::vector<Run> body_;                          // of child-graph nodes; empty where there is none
  std::vector<Treatment> treatment_;
  Lists children_, parents_;
  std::vector<std::uint32_t> scan_, order_;  // the nodes that are left: by creation, and as they are visited
  std::vector<bool> removed_, funnel_, apart_, mixed_;
  TypedEdges typed_;
  // Only where there are such edges. Close children that a fork has served; and those that were alone then.
  std::vector<bool> passed_over_, sole_close_;
  std::vector<std::uint32_t> list_, close_, front_, back_;
  std::uint32_t streams_ = 0;
  std::vector<StreamNode> nodes_;
};

// What became of each stream, and how many are in use.
void describe_streams(Predictor& predictor, const StreamGraph& graph, StreamPrediction& out) {
  out.streams.assign(predictor.created_streams(), StreamLife());
  for (const std::uint32_t v : predictor.order()) {
    StreamNode& node = out.nodes[v];
    StreamLife& life = out.streams[static_cast<std::size_t>(node.stream)];
    if (life.first == kNoNode) {
      life.first = v;
      life.opened_by = node.origin == StreamOrigin::opened_at_fork ? node.by : kNoNode;
    }
    life.tail = v;
    life.node_count += has_activity_record(graph.kinds[v]);
    // A funnel head may leave the stream that it was given for the launch stream.
    if (node.heir != kNoNode && out.nodes[node.heir].by != v) node.heir = kNoNode;
    if (node.heir != kNoNode) {
      node.fate = StreamFate::continues;
    } else if (predictor.children(v).empty()) {
      node.fate = StreamFate::ends_as_sink;
    } else {
      const auto returns = [&](std::uint32_t c) {
        return out.nodes[c].origin == StreamOrigin::rejoins_launch;
      };
      const std::span<const std::uint32_t> children = predictor.children(v);
      node.fate =
          std::any_of(children.begin(), children.end(), returns) ? StreamFate::returns : StreamFate::dies;
    }
  }
  for (std::size_t i = 0; i < out.streams.size(); ++i) {
    StreamLife& life = out.streams[i];
    out.count += life.node_count > 0;
    life.dead = i > 0 && life.tail != kNoNode && out.nodes[life.tail].fate == StreamFate::dies;
  }
}

void judge(const StreamGraph& graph, std::uint32_t driver_major, const StreamModel& model,
           StreamPrediction& out) {
  std::array<bool, kStreamNodeKindCount> present{};
  for (const StreamNodeKind kind : graph.kinds) present[static_cast<std::size_t>(kind)] = true;
  out.driver_tested = driver_major == model.driver_major;
  out.confidence = 1;
  for (int i = 0; i < kStreamNodeKindCount; ++i) {
    if (!present[static_cast<std::size_t>(i)]) continue;
    const auto kind = static_cast<StreamNodeKind>(i);
    double share = 0;
    for (const StreamKindAgreement& entry : model.agreement) {
      if (entry.kind == kind) share = entry.exact_share;
    }
    out.confidence = std::min(out.confidence, share);
    if (share < kGoodAgreement) out.weak_kinds.push_back(kind);
  }
  const auto is_typed = [](const StreamEdge& edge) { return edge.type != StreamEdgeType::full; };
  if (std::any_of(graph.edges.begin(), graph.edges.end(), is_typed))
    out.confidence = std::min(out.confidence, model.typed_edges_exact_share);
  if (!out.driver_tested) out.confidence /= 2;
}

}  // namespace

const StreamModel kModel580{"580", 580, 7, kAgreement580, 0.995};

std::string_view stream_node_kind_name(StreamNodeKind kind) {
  switch (kind) {
    case StreamNodeKind::kernel:
      return "kernel";
    case StreamNodeKind::memcpy_on_device:
      return "memcpy on the device";
    case StreamNodeKind::memcpy_with_host:
      return "memcpy from or to the host";
    case StreamNodeKind::memset:
      return "small memset";
    case StreamNodeKind::memset_large:
      return "large memset";
    case StreamNodeKind::host:
      return "host";
    case StreamNodeKind::event_record:
      return "event record";
    case StreamNodeKind::event_wait:
      return "event wait";
    case StreamNodeKind::batch_mem_op:
      return "batch memory operation";
    case StreamNodeKind::empty:
      return "empty";
    case StreamNodeKind::mem_alloc:
      return "memory allocation";
    case StreamNodeKind::mem_free:
      return "memory free";
    case StreamNodeKind::child_graph:
      return "child graph";
    case StreamNodeKind::conditional:
      return "conditional";
    case StreamNodeKind::other:
      return "other";
  }
  return "other";
}

std::string_view stream_origin_name(StreamOrigin origin) {
  switch (origin) {
    case StreamOrigin::none:
      return "none";
    case StreamOrigin::launch:
      return "launch";
    case StreamOrigin::rejoins_launch:
      return "rejoins launch stream";
    case StreamOrigin::handed_on:
      return "handed on";
    case StreamOrigin::opened_at_fork:
      return "opened at fork";
    case StreamOrigin::opened_late:
      return "opened late";
  }
  return "none";
}

std::string_view stream_fate_name(StreamFate fate) {
  switch (fate) {
    case StreamFate::none:
      return "none";
    case StreamFate::continues:
      return "continues";
    case StreamFate::ends_as_sink:
      return "ends as sink";
    case StreamFate::returns:
      return "returns to launch stream";
    case StreamFate::dies:
      return "dies";
  }
  return "none";
}

StreamPrediction predict_streams(const StreamGraph& graph, std::uint32_t driver_major,
                                 const StreamModel& model) {
  StreamPrediction out;
  Predictor predictor(graph, model);
  if (!predictor.run()) return out;
  out.valid = true;
  out.nodes = std::move(predictor.nodes());
  describe_streams(predictor, graph, out);
  judge(graph, driver_major, model, out);
  return out;
}

std::uint32_t predict_stream_count(const StreamGraph& graph, const StreamModel& model) {
  Predictor predictor(graph, model);
  if (!predictor.run()) return 0;
  std::vector<bool> used(predictor.created_streams(), false);
  std::uint32_t count = 0;
  for (const std::uint32_t v : predictor.order()) {
    const auto stream = static_cast<std::size_t>(predictor.nodes()[v].stream);
    if (!has_activity_record(graph.kinds[v]) || used[stream]) continue;
    used[stream] = true;
    ++count;
  }
  return count;
}

std::vector<std::uint32_t> stream_visit_order(const StreamGraph& graph) {
  Predictor predictor(graph, kModel580);
  if (!predictor.run()) return {};
  return std::move(predictor.order());
}

std::vector<bool> stream_funnels(const StreamGraph& graph) {
  Predictor predictor(graph, kModel580);
  if (!predictor.run()) return {};
  return predictor.funnels();
}

}  // namespace cglint::analysis
