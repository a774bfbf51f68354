#include "analysis/stream_model.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <utility>

namespace cglint::analysis {
namespace {

// Measured graphs with the kind, in tests/data/streams; the test there holds each share.
constexpr StreamKindAgreement kAgreement580[] = {
    {StreamNodeKind::kernel, 1.0, 139922},          {StreamNodeKind::memcpy_on_device, 1.0, 13017},
    {StreamNodeKind::memcpy_with_host, 1.0, 10859}, {StreamNodeKind::memset, 1.0, 27053},
    {StreamNodeKind::memset_large, 1.0, 600},       {StreamNodeKind::host, 1.0, 4574},
    {StreamNodeKind::event_record, 1.0, 5888},      {StreamNodeKind::event_wait, 1.0, 6040},
    {StreamNodeKind::batch_mem_op, 1.0, 2666},      {StreamNodeKind::empty, 1.0, 27376},
    {StreamNodeKind::mem_alloc, 1.0, 2392},         {StreamNodeKind::mem_free, 1.0, 2392},
};

// A kind below this share of exactly predicted graphs is named as weak.
constexpr double kGoodAgreement = 0.995;
// Random graphs in which nodes have several programmatic or launch-order edges.
constexpr double kBranchingTypedEdgesAgreement = 0.75;

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
    if (!sorted_edges(graph_, from, to)) return false;
    children_.build(n_, from, to);
    parents_.build(n_, to, from);
    treatment_.resize(n_);
    std::transform(graph_.kinds.begin(), graph_.kinds.end(), treatment_.begin(), treatment);
    for (const StreamEdge& edge : graph_.edges) {
      if (edge.type != StreamEdgeType::full) typed_[std::uint64_t{edge.from} << 32 | edge.to] = edge.type;
    }
    removed_.assign(n_, false);
    bypass_empty_nodes();
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
  // Empty nodes with fewer than two parents or fewer than two children carry no order that edges could not
  // carry: the driver connects their parents to their children and drops them, in creation order. New
  // children are appended, then the last entry takes the empty node's place: so the order of a list changes,
  // and that order matters later.
  void bypass_empty_nodes() {
    removed_count_ = 0;
    if (std::find(treatment_.begin(), treatment_.end(), Treatment::bypass) == treatment_.end()) return;
    // (owner << 32 | entry) -> index of the entry in the owner's list, for the lists next to a node that may
    // go.
    std::unordered_map<std::uint64_t, std::uint32_t> child_at, parent_at;
    const auto key = [](std::uint32_t owner, std::uint32_t entry) {
      return std::uint64_t{owner} << 32 | entry;
    };
    const auto may_go = [&](std::uint32_t v) { return treatment_[v] == Treatment::bypass; };
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
    for (std::uint32_t v = 0; v < n_; ++v) {
      if (!may_go(v)) continue;
      if (parents_[v].size() >= 2 && children_[v].size() >= 2) {
        treatment_[v] = Treatment::apart;
        continue;
      }
      removed_[v] = true;
      ++removed_count_;
      // The lists of v do not change in these loops, but the pool behind them may move: entries are read by
      // index.
      for (std::uint32_t p = 0; p < parents_[v].size(); ++p) {
        const std::uint32_t parent = parents_[v][p];
        for (std::uint32_t c = 0; c < children_[v].size(); ++c)
          append(children_, child_at, parent, children_[v][c]);
        swap_remove(children_, child_at, parent, v);
      }
      for (std::uint32_t c = 0; c < children_[v].size(); ++c) {
        const std::uint32_t child = children_[v][c];
        for (std::uint32_t p = 0; p < parents_[v].size(); ++p)
          append(parents_, parent_at, child, parents_[v][p]);
        swap_remove(parents_, parent_at, child, v);
      }
      children_.clear(v);
      parents_.clear(v);
    }
  }

  void find_visit_order() {
    std::vector<std::uint32_t> open_parents(n_);
    for (std::uint32_t v = 0; v < n_; ++v) open_parents[v] = static_cast<std::uint32_t>(parents_[v].size());
    std::vector<bool> done(n_, false);
    order_.clear();
    order_.reserve(n_);
    for (std::uint32_t start = 0; start < n_; ++start) {
      if (removed_[start] || done[start] || open_parents[start] != 0) continue;
      std::size_t next = order_.size();
      order_.push_back(start);  // the end of `order_` is the queue
      for (; next < order_.size(); ++next) {
        const std::uint32_t v = order_[next];
        done[v] = true;
        for (const std::uint32_t child : children_[v]) {
          if (--open_parents[child] == 0 && child < start) order_.push_back(child);
        }
      }
    }
  }

  // A funnel is a node that every other node is ordered before or after, and that no edge bypasses. In the
  // order of visit, which is topological, that holds for v exactly if no edge passes over v, no node before v
  // is a sink and no node after v is a source: then each earlier node has an edge that stays before v or ends
  // in v, and so reaches v; and likewise for later nodes.
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
    bool sink_before = false;
    for (std::uint32_t i = 0; i < order_.size(); ++i) {
      const std::uint32_t v = order_[i];
      passing += step[i];
      sources_to_come -= parents_[v].empty();
      funnel_[v] = passing == 0 && !sink_before && sources_to_come == 0;
      sink_before = sink_before || children_[v].empty();
    }
  }

  // Every root, every node that is not plain, and every child of such a node starts an origin of its own;
  // other nodes belong to the youngest origin among their parents', and are `mixed` if those differ.
  void find_origins() {
    apart_.assign(n_, false);
    mixed_.assign(n_, false);
    std::vector<std::uint32_t> origin(n_, 0);
    for (std::uint32_t i = 0; i < order_.size(); ++i) {
      const std::uint32_t v = order_[i];
      bool apart = treatment_[v] != Treatment::plain;
      std::uint32_t youngest = 0, oldest = kNoNode;
      for (const std::uint32_t parent : parents_[v]) {
        apart = apart || treatment_[parent] != Treatment::plain;
        youngest = std::max(youngest, origin[parent]);
        oldest = std::min(oldest, origin[parent]);
      }
      apart_[v] = apart;
      mixed_[v] = !apart && !parents_[v].empty() && youngest != oldest;
      origin[v] = apart || parents_[v].empty() ? i : youngest;
    }
  }

  // Three plain funnels in a row, each the only child of the one before.
  [[nodiscard]] bool starts_straight_run(std::uint32_t v) const {
    for (int i = 0; i < 3; ++i) {
      if (!funnel_[v] || treatment_[v] != Treatment::plain) return false;
      if (i == 2) break;
      if (children_[v].size() != 1) return false;
      v = children_[v][0];
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
    if (!children_[v].empty()) hand_over(v);
  }

  // Passes v's stream to at most one child, and opens streams for some of the others. Children that are left
  // without one may get one from another parent; else they open a stream when they are visited.
  void hand_over(std::uint32_t v) {
    std::vector<std::uint32_t>& list = list_;
    list.assign(children_[v].begin(), children_[v].end());
    const std::uint32_t favourite = prefer_typed_child(v, list);
    kept_ = list;
    std::size_t plain_count = 0, mixed_count = 0;
    for (const std::uint32_t child : list) {
      plain_count += !apart_[child];
      mixed_count += mixed_[child];
    }
    if (plain_count == 0) {
      if (list.size() == 1 || !funnel_[list[0]]) offer_to_apart(v, list);
      return;
    }
    // Children of several origins together count as one branch. With many branches all are treated as the
    // mixed ones are.
    std::size_t branches = plain_count - mixed_count + (mixed_count > 0);
    const bool many = branches >= model_.many_children;
    const auto goes_to_back = [&](std::uint32_t child) { return mixed_[child] || (many && !apart_[child]); };
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
    front_.clear();
    back_.clear();
    const bool single = plain_count == 1 && mixed_count == 0;
    if (many || single) {
      for (const std::uint32_t child : kept_) {
        if (!apart_[child]) back_.push_back(child);
      }
    } else {
      for (const std::uint32_t child : list) {
        if (!apart_[child]) (mixed_[child] ? back_ : front_).push_back(child);
      }
    }
    bool settled = withheld;  // v's stream, or its chance, has gone to somebody
    if (many && favourite != kNoNode && current != kNoStream && !is_placed(favourite) &&
        !funnel_[favourite]) {
      give(v, favourite, current);
      current = kNoStream;
    }
    for (std::size_t i = 0; i < front_.size(); ++i) {
      const std::uint32_t child = front_[i];
      const bool last = i + 1 == plain_count;
      if (current == kNoStream && i > 0 && !last) current = make_stream();
      if (current == kNoStream) continue;
      if (funnel_[child] &&
          !last) {  // it will return to the launch stream; what it would have got goes to nobody
        current = kNoStream;
        settled = true;
      } else if (!is_placed(child)) {
        give(v, child, current);
        current = kNoStream;
        settled = true;
      }
    }
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

  // A child that v reaches by a programmatic or launch-order edge comes first: it is meant to follow v
  // directly. With several of them, launch-order edges go before programmatic ones, and those to children
  // whose first typed parent v is before others; the children of v's own that are not chosen are left for
  // later.
  std::uint32_t prefer_typed_child(std::uint32_t v, std::vector<std::uint32_t>& list) const {
    if (typed_.empty() || list.size() < 2) return kNoNode;
    std::uint32_t favourite = kNoNode, fallback = kNoNode;
    StreamEdgeType best = StreamEdgeType::full;
    const auto candidate = [&](std::uint32_t child) {
      return edge_type(v, child) != StreamEdgeType::full && !mixed_[child] && !apart_[child];
    };
    const auto is_first_typed_parent = [&](std::uint32_t child) {
      for (const std::uint32_t parent : parents_[child]) {
        if (edge_type(parent, child) != StreamEdgeType::full) return parent == v;
      }
      return false;
    };
    for (const std::uint32_t child : list) {
      if (!candidate(child)) continue;
      if (fallback == kNoNode) fallback = child;
      const StreamEdgeType type = edge_type(v, child);
      if (!is_first_typed_parent(child) || type <= best) continue;
      favourite = child;
      best = type;
    }
    if (favourite == kNoNode) favourite = fallback;
    if (favourite == kNoNode) return kNoNode;
    std::erase_if(list, [&](std::uint32_t child) {
      return child == favourite || (candidate(child) && is_first_typed_parent(child));
    });
    list.insert(list.begin(), favourite);
    return favourite;
  }

  [[nodiscard]] StreamEdgeType edge_type(std::uint32_t from, std::uint32_t to) const {
    const auto found = typed_.find(std::uint64_t{from} << 32 | to);
    return found == typed_.end() ? StreamEdgeType::full : found->second;
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

  const StreamGraph& graph_;
  const StreamModel& model_;
  const std::size_t n_;
  std::size_t removed_count_ = 0;
  std::vector<Treatment> treatment_;
  Lists children_, parents_;
  std::vector<std::uint32_t> order_;
  std::vector<bool> removed_, funnel_, apart_, mixed_;
  std::unordered_map<std::uint64_t, StreamEdgeType> typed_;  // (from << 32 | to), edges that are not full
  std::vector<std::uint32_t> list_, kept_, front_, back_;
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
  // Programmatic and launch-order edges are covered exactly where each node has one of them in and one out at
  // most, as a chain of kernels has; else three graphs in four.
  std::vector<std::uint8_t> typed_in(graph.node_count(), 0), typed_out(graph.node_count(), 0);
  for (const StreamEdge& edge : graph.edges) {
    if (edge.type == StreamEdgeType::full) continue;
    if (typed_in[edge.to]++ > 0 || typed_out[edge.from]++ > 0) {
      out.confidence = std::min(out.confidence, kBranchingTypedEdgesAgreement);
      out.branching_typed_edges = true;
      break;
    }
  }
  if (!out.driver_tested) out.confidence /= 2;
}

}  // namespace

const StreamModel kModel580{"580", 580, 7, kAgreement580};

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
