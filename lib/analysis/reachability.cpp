#include "analysis/reachability.h"

#include <algorithm>
#include <array>
#include <span>

namespace cglint::analysis {

// What an edge proves
// -------------------
// Two moments of a node v matter: s(v), when it starts, and w(v), when its work begins: after the wait on its
// grid dependency (griddepcontrol.wait) if it makes one, else the same as s(v). For a moment x let C(x) be
// the set of nodes known to be complete, with their writes visible, at x. "v is memory-ordered after a"
// means: a is in C(w(v)).
//
//   * v works only after it started:                               C(w(v)) contains C(s(v)).
//   * Full edge u -> v: v starts when u is complete. A complete u has done its work, so whatever was complete
//   at w(u)
//     still is:                                                    C(s(v)) contains {u} and C(w(u)).
//   * Programmatic edge u -> v: v may start as soon as every block of u has triggered or ended, so u has
//   started:
//                                                                  C(s(v)) contains C(s(u)), but not u.
//     If v waits, the wait returns when the grids it depends on are complete and flushed:
//                                                                  C(w(v)) contains {u} and C(w(u)).
//     If u never triggers, v starts when every block of u has ended, hence after u's own wait:
//                                                                  C(s(v)) contains C(w(u)), but still not u,
//                                                                  because
//     the end of the blocks is not the flush of their writes.
//   * Launch-order edge u -> v: v starts when every block of u has begun:
//                                                                  C(s(v)) contains C(s(u)), but not u.
//
// So in a -(prog)-> b -(prog)-> c, where b never waits, C(w(b)) holds neither a nor anything else: b may
// finish before a does, and neither c's wait nor a full edge b -> c proves anything about a. A full edge a ->
// b however is proof for all that start after b, over whatever kind of edge. Where b waits and c waits, a is
// proven.
//
// Only a kernel can wait, and only while it is enabled: a disabled node is an empty one. What a kernel reads
// before its wait is another question (it needs the machine code) and not part of this relation.
//
// Each "contains" above is an arc between moments; an arc that also adds u "carries" u. C is then
// reachability over arcs whose first arc carries. It is transitive: with b in C(w(c)), some arc out of w(b)
// that carries b leads to w(c), and that arc passes C(w(b)) on as well. starts_after is the same machinery
// with one moment per node and carrying arcs.
class ReachabilityBuilder {
 public:
  using Storage = Reachability::Storage;

  ReachabilityBuilder(const ir::Graph& graph, const TopologicalOrder& order, std::optional<Storage> storage)
      : graph_(graph), order_(order), wanted_(storage) {}

  Reachability starts_after() {
    const std::size_t n = graph_.node_count();
    r_.start_ = order_.position.raw();
    r_.target_ = r_.start_;
    node_of_.resize(n);
    r_.arc_first_.reserve(n + 1);
    r_.arcs_.reserve(graph_.edge_count());
    for (const ir::NodeId node : order_.order) {
      r_.arc_first_.push_back(static_cast<std::uint32_t>(r_.arcs_.size()));
      for (const ir::NodeId from : graph_.predecessors(node)) add_arc(r_.start_[from.index()], true);
      node_of_[r_.start_[node.index()]] = node;
    }
    return build();
  }

  Reachability memory_ordered_after(const ir::Recording& recording, UnknownImage unknown) {
    const std::size_t n = graph_.node_count();
    r_.start_.resize(n);
    r_.target_.resize(n);
    for (const ir::NodeId node : order_.order) {
      const std::uint32_t start = new_moment(ir::NodeId());
      r_.start_[node.index()] = r_.target_[node.index()] = start;
      bool has_programmatic = false;
      for (const ir::EdgeId edge : graph_.in_edges(node)) {
        const ir::NodeId from = graph_.edge_from[edge];
        const ir::EdgeData data = graph_.data(edge);
        if (data.is_full()) {
          add_arc(r_.target_[from.index()], true);
        } else {
          const bool starts_after_end = data.is_programmatic() && never_triggers(recording, from);
          add_arc(starts_after_end ? r_.target_[from.index()] : r_.start_[from.index()], false);
          has_programmatic = has_programmatic || data.is_programmatic();
        }
      }
      if (has_programmatic && waits(recording, node, unknown)) {
        r_.target_[node.index()] = new_moment(ir::NodeId());
        add_arc(start, false);
        for (const ir::EdgeId edge : graph_.in_edges(node))
          if (graph_.data(edge).is_programmatic()) add_arc(r_.target_[graph_.edge_from[edge].index()], true);
      }
      node_of_[r_.target_[node.index()]] = node;
    }
    return build();
  }

 private:
  std::uint32_t new_moment(ir::NodeId node) {
    r_.arc_first_.push_back(static_cast<std::uint32_t>(r_.arcs_.size()));
    node_of_.push_back(node);
    return static_cast<std::uint32_t>(node_of_.size() - 1);
  }
  void add_arc(std::uint32_t from, bool carries) { r_.arcs_.push_back(from << 1 | (carries ? 1U : 0U)); }

  const ir::Function* function_of(const ir::Recording& recording, ir::NodeId node) const {
    const ir::KernelNode* kernel = graph_.kernel(node);
    if (kernel == nullptr || !recording.functions.contains(kernel->function)) return nullptr;
    return &recording.functions[kernel->function];
  }
  bool waits(const ir::Recording& recording, ir::NodeId node, UnknownImage unknown) {
    // A node of a kind that this version does not know may be a kernel: only one has programmatic edges.
    const bool may_be_kernel = graph_.kind[node] == ir::NodeKind::kernel || graph_.kind[node] == ir::NodeKind::unknown;
    if (!may_be_kernel) return false;
    if (!graph_.enabled.empty() && graph_.enabled[node] == 0) return false;
    const ir::Function* function = function_of(recording, node);
    const ir::Tri known = function == nullptr ? ir::Tri::unknown : function->has_grid_dependency_wait;
    if (known != ir::Tri::unknown) return known == ir::Tri::yes;
    r_.assumed_ = r_.assumed_ || unknown == UnknownImage::waits;
    return unknown == UnknownImage::waits;
  }
  bool never_triggers(const ir::Recording& recording, ir::NodeId node) const {
    const ir::Function* function = function_of(recording, node);
    return function != nullptr && function->has_launch_dependents == ir::Tri::no;
  }

  Reachability build() {
    r_.arc_first_.push_back(static_cast<std::uint32_t>(r_.arcs_.size()));
    CGLINT_CHECK(node_of_.size() < (std::uint32_t{1} << 31));
    const std::size_t bit_words = triangle_words();
    const std::size_t bit_bytes = bit_words * sizeof(std::uint64_t);
    is_implied_.assign(graph_.edge_count(), 0);
    if (wanted_) {
      r_.storage_ = *wanted_;
      if (r_.storage_ == Storage::chains) build_chains(~std::size_t{0});
    } else {
      const std::size_t limit = std::min(std::max<std::size_t>(bit_bytes, 4096), Reachability::kMaxBytes);
      r_.storage_ = build_chains(limit / sizeof(std::uint32_t)) ? Storage::chains
                    : bit_bytes <= Reachability::kMaxBytes      ? Storage::bits
                                                                : Storage::search;
    }
    if (r_.storage_ == Storage::bits) build_bits(bit_words);
    if (r_.storage_ == Storage::search) {
      build_labels();
      return std::move(r_);
    }
    for (const ir::EdgeId edge : graph_.edges())
      if (is_implied_[edge.index()] != 0) r_.implied_.push_back(edge);
    release(r_.arc_first_);
    release(r_.arcs_);
    return std::move(r_);
  }

  template <typename T>
  static void release(std::vector<T>& v) {
    std::vector<T>().swap(v);
  }

  std::span<const std::uint32_t> arcs_into(std::uint32_t moment) const {
    return std::span(r_.arcs_).subspan(r_.arc_first_[moment],
                                       r_.arc_first_[moment + 1] - r_.arc_first_[moment]);
  }

  // --- chains ---
  // On-line cover: a node joins a chain whose end is already known complete at its work. If there are
  // several, one whose end has no successors left to come, else it may be wanted by one of them; and of these
  // the latest, for an earlier one leads to more of the nodes to come. In a graph of fork/join layers the
  // side branch of a layer so continues the side branch of the layer before, and the cover is about as small
  // as the width. False: more than `max_cells` cells.
  bool build_chains(std::size_t max_cells) {
    const std::size_t moments = node_of_.size();
    r_.chain_.assign(graph_.node_count(), 0);
    r_.position_.assign(graph_.node_count(), 0);
    r_.row_first_.reserve(moments + 1);
    std::vector<std::uint32_t> length;                        // per chain: nodes
    std::vector<std::uint32_t> end_moment;                    // per chain: of the last node
    std::vector<std::uint32_t> to_come(graph_.node_count());  // per node: successors
    for (const ir::NodeId node : graph_.nodes())
      to_come[node.index()] = static_cast<std::uint32_t>(graph_.successors(node).size());
    std::vector<std::uint32_t> row;
    for (std::uint32_t moment = 0; moment < moments; ++moment) {
      const std::size_t chains = length.size();
      r_.row_first_.push_back(r_.cells_.size());
      if (r_.cells_.size() + chains > max_cells) {
        release(r_.row_first_);
        release(r_.cells_);
        release(r_.chain_);
        release(r_.position_);
        std::fill(is_implied_.begin(), is_implied_.end(), std::uint8_t{0});
        return false;
      }
      row.assign(chains, 0);
      for (const std::uint32_t arc : arcs_into(moment)) {
        const std::uint32_t from = arc >> 1;
        const std::uint32_t* cells = r_.cells_.data() + r_.row_first_[from];
        const std::size_t count = r_.row_first_[from + 1] - r_.row_first_[from];
        for (std::size_t c = 0; c < count; ++c) row[c] = std::max(row[c], cells[c]);
      }
      mark_implied(moment, [&](std::uint32_t node) { return row[r_.chain_[node]] >= r_.position_[node]; });
      for (const std::uint32_t arc : arcs_into(moment)) {
        if ((arc & 1) == 0) continue;
        const std::uint32_t node = node_of_[arc >> 1].index();
        row[r_.chain_[node]] = std::max(row[r_.chain_[node]], r_.position_[node]);
      }
      r_.cells_.insert(r_.cells_.end(), row.begin(), row.end());

      const ir::NodeId node = node_of_[moment];
      if (!node.is_valid()) continue;
      for (const ir::NodeId from : graph_.predecessors(node)) --to_come[from.index()];
      std::size_t best = chains;
      std::uint64_t best_score = 0;
      for (std::size_t c = 0; c < chains; ++c) {
        if (row[c] != length[c]) continue;
        const bool is_spent = to_come[node_of_[end_moment[c]].index()] == 0;
        const std::uint64_t score = (is_spent ? std::uint64_t{1} << 32 : 0) + end_moment[c] + 1;
        if (score <= best_score) continue;
        best = c;
        best_score = score;
      }
      if (best == chains) {
        length.push_back(0);
        end_moment.push_back(0);
      }
      r_.chain_[node.index()] = static_cast<std::uint32_t>(best);
      r_.position_[node.index()] = ++length[best];
      end_moment[best] = moment;
    }
    r_.row_first_.push_back(r_.cells_.size());
    r_.cells_.shrink_to_fit();
    r_.chain_count_ = length.size();
    return true;
  }

  // --- bits ---
  // Nodes are columns in topological order; the row of a moment ends at the last node before it.
  std::size_t triangle_words() const {
    std::size_t words = 0, nodes_before = 0;
    for (const ir::NodeId node : node_of_) {
      words += (nodes_before + 63) / 64;
      if (node.is_valid()) ++nodes_before;
    }
    return words;
  }
  void build_bits(std::size_t words) {
    const std::size_t moments = node_of_.size();
    r_.rank_.assign(graph_.node_count(), 0);
    r_.bits_.assign(words, 0);
    r_.row_first_.reserve(moments + 1);
    std::uint32_t nodes_before = 0;
    std::size_t first = 0;
    for (std::uint32_t moment = 0; moment < moments; ++moment) {
      r_.row_first_.push_back(first);
      std::uint64_t* row = r_.bits_.data() + first;
      first += (nodes_before + 63) / 64;
      for (const std::uint32_t arc : arcs_into(moment)) {
        const std::uint32_t from = arc >> 1;
        const std::uint64_t* source = r_.bits_.data() + r_.row_first_[from];
        const std::size_t count = r_.row_first_[from + 1] - r_.row_first_[from];
        for (std::size_t w = 0; w < count; ++w) row[w] |= source[w];
      }
      const auto has = [&](std::uint32_t node) {
        return (row[r_.rank_[node] / 64] >> (r_.rank_[node] % 64) & 1) != 0;
      };
      mark_implied(moment, has);
      for (const std::uint32_t arc : arcs_into(moment)) {
        if ((arc & 1) == 0) continue;
        const std::uint32_t rank = r_.rank_[node_of_[arc >> 1].index()];
        row[rank / 64] |= std::uint64_t{1} << (rank % 64);
      }
      if (node_of_[moment].is_valid()) r_.rank_[node_of_[moment].index()] = nodes_before++;
    }
    r_.row_first_.push_back(first);
  }

  // Called when the row of `moment` holds what its arcs pass on, but not yet what they carry.
  template <typename Has>
  void mark_implied(std::uint32_t moment, const Has& has) {
    const ir::NodeId node = node_at_start(moment);
    if (!node.is_valid()) return;
    for (const ir::EdgeId edge : graph_.in_edges(node))
      if (has(graph_.edge_from[edge].index())) is_implied_[edge.index()] = 1;
  }
  ir::NodeId node_at_start(std::uint32_t moment) const {
    const ir::NodeId node = node_of_[moment].is_valid() ? node_of_[moment] : node_of_[moment + 1];
    return r_.start_[node.index()] == moment ? node : ir::NodeId();
  }

  // --- search ---
  // If y leads to x then every label interval of y lies inside x's. Each label comes from a depth-first walk
  // from the last moments back to the first that visits arcs in another order.
  void build_labels() {
    const std::size_t moments = node_of_.size();
    r_.label_low_.assign(moments * kLabels, 0);
    r_.label_high_.assign(moments * kLabels, 0);
    std::vector<std::uint8_t> seen(moments);
    std::vector<std::uint32_t> next(moments), stack;
    for (std::size_t label = 0; label < kLabels; ++label) {
      std::fill(seen.begin(), seen.end(), std::uint8_t{0});
      std::uint32_t rank = 0;
      for (std::size_t k = 0; k < moments; ++k) {
        const auto root = static_cast<std::uint32_t>(label % 2 == 0 ? moments - 1 - k : k);
        if (seen[root] != 0) continue;
        seen[root] = 1;
        next[root] = 0;
        stack.push_back(root);
        while (!stack.empty()) {
          const std::uint32_t moment = stack.back();
          const std::span<const std::uint32_t> arcs = arcs_into(moment);
          if (next[moment] < arcs.size()) {
            const std::size_t i = next[moment]++;
            const std::uint32_t from = arcs[label == 0 ? i : arcs.size() - 1 - i] >> 1;
            if (seen[from] != 0) continue;
            seen[from] = 1;
            next[from] = 0;
            stack.push_back(from);
            continue;
          }
          stack.pop_back();
          std::uint32_t low = rank;
          for (const std::uint32_t arc : arcs)
            low = std::min(low, r_.label_low_[(arc >> 1) * kLabels + label]);
          r_.label_low_[moment * kLabels + label] = low;
          r_.label_high_[moment * kLabels + label] = rank++;
        }
      }
    }
  }

 public:
  static constexpr std::size_t kLabels = 3;

 private:
  const ir::Graph& graph_;
  const TopologicalOrder& order_;
  std::optional<Storage> wanted_;
  Reachability r_;
  std::vector<ir::NodeId> node_of_;  // per moment: the node whose target it is, or invalid
  std::vector<std::uint8_t> is_implied_;
};

bool Reachability::reaches(ir::NodeId a, ir::NodeId b) const {
  CGLINT_DCHECK(a.index() < target_.size() && b.index() < target_.size());
  const std::uint32_t from = target_[a.index()], to = target_[b.index()];
  if (from >= to) return false;
  switch (storage_) {
    case Storage::chains: {
      const std::uint32_t chain = chain_[a.index()];
      const std::uint64_t first = row_first_[to];
      return chain < row_first_[to + 1] - first && cells_[first + chain] >= position_[a.index()];
    }
    case Storage::bits: {
      const std::uint32_t rank = rank_[a.index()];
      const std::uint64_t first = row_first_[to];
      return rank / 64 < row_first_[to + 1] - first && (bits_[first + rank / 64] >> (rank % 64) & 1) != 0;
    }
    case Storage::search:
      break;
  }
  constexpr std::size_t kLabels = ReachabilityBuilder::kLabels;
  const auto may_lead = [&](std::uint32_t moment) {
    for (std::size_t label = 0; label < kLabels; ++label) {
      const std::size_t x = std::size_t{moment} * kLabels + label, y = std::size_t{from} * kLabels + label;
      if (label_low_[y] < label_low_[x] || label_high_[y] > label_high_[x]) return false;
    }
    return true;
  };
  if (!may_lead(to)) return false;
  std::vector<bool> seen(to - from, false);  // moments from + 1 ... to
  std::vector<std::uint32_t> stack{to};
  while (!stack.empty()) {
    const std::uint32_t moment = stack.back();
    stack.pop_back();
    for (std::uint32_t i = arc_first_[moment]; i < arc_first_[moment + 1]; ++i) {
      const std::uint32_t previous = arcs_[i] >> 1;
      if (previous == from && (arcs_[i] & 1) != 0) return true;
      if (previous <= from || seen[previous - from - 1] || !may_lead(previous)) continue;
      seen[previous - from - 1] = true;
      stack.push_back(previous);
    }
  }
  return false;
}

std::size_t Reachability::memory_bytes() const {
  const auto bytes = [](const auto& v) { return v.capacity() * sizeof(v[0]); };
  return bytes(start_) + bytes(target_) + bytes(chain_) + bytes(position_) + bytes(row_first_) +
         bytes(cells_) + bytes(rank_) + bytes(bits_) + bytes(implied_) + bytes(arc_first_) + bytes(arcs_) +
         bytes(label_low_) + bytes(label_high_);
}

Reachability starts_after(const ir::Graph& graph, const TopologicalOrder& order,
                          std::optional<Reachability::Storage> storage) {
  return ReachabilityBuilder(graph, order, storage).starts_after();
}

Reachability memory_ordered_after(const ir::Recording& recording, const ir::Graph& graph,
                                  const TopologicalOrder& order, UnknownImage unknown,
                                  std::optional<Reachability::Storage> storage) {
  return ReachabilityBuilder(graph, order, storage).memory_ordered_after(recording, unknown);
}

std::vector<ir::EdgeId> transitively_implied_edges(const ir::Graph& graph, const TopologicalOrder& order,
                                                   const Reachability& reach) {
  CGLINT_CHECK(reach.target_.size() == graph.node_count());
  if (reach.storage_ != Reachability::Storage::search) return reach.implied_;

  // Too wide to keep the closure: recompute it for kColumns nodes at a time.
  constexpr std::size_t kWords = 16, kColumns = kWords * 64;
  const std::size_t moments = reach.arc_first_.size() - 1;
  std::vector<std::array<std::uint64_t, kWords>> rows(moments);
  std::vector<std::uint8_t> is_active(moments);
  std::vector<std::uint32_t> column(moments, kColumns);  // of the node whose target it is, in this block
  std::vector<ir::NodeId> starting(moments);             // the node that starts at this moment
  for (const ir::NodeId node : graph.nodes()) starting[reach.start_[node.index()]] = node;
  std::vector<std::uint8_t> is_implied(graph.edge_count(), 0);
  for (std::size_t begin = 0; begin < order.order.size(); begin += kColumns) {
    const std::size_t end = std::min(begin + kColumns, order.order.size());
    for (std::size_t i = begin; i < end; ++i)
      column[reach.target_[order.order[i].index()]] = static_cast<std::uint32_t>(i - begin);
    const std::uint32_t first_moment = reach.start_[order.order[begin].index()];
    for (std::size_t m = first_moment; m < moments; ++m) {
      const std::span arcs =
          std::span(reach.arcs_).subspan(reach.arc_first_[m], reach.arc_first_[m + 1] - reach.arc_first_[m]);
      bool active = false;
      for (const std::uint32_t arc : arcs) {
        const std::uint32_t from = arc >> 1;
        if (from < first_moment || is_active[from] == 0) continue;
        if (!active) {
          rows[m] = rows[from];
          active = true;
          continue;
        }
        for (std::size_t w = 0; w < kWords; ++w) rows[m][w] |= rows[from][w];
      }
      if (active && starting[m].is_valid())
        for (const ir::EdgeId edge : graph.in_edges(starting[m])) {
          const std::uint32_t c = column[reach.target_[graph.edge_from[edge].index()]];
          if (c < kColumns && (rows[m][c / 64] >> (c % 64) & 1) != 0) is_implied[edge.index()] = 1;
        }
      for (const std::uint32_t arc : arcs) {
        if ((arc & 1) == 0 || column[arc >> 1] == kColumns) continue;
        if (!active) rows[m] = {};
        active = true;
        const std::uint32_t c = column[arc >> 1];
        rows[m][c / 64] |= std::uint64_t{1} << (c % 64);
      }
      is_active[m] = active ? 1 : 0;
    }
    for (std::size_t i = begin; i < end; ++i)
      column[reach.target_[order.order[i].index()]] = static_cast<std::uint32_t>(kColumns);
  }
  std::vector<ir::EdgeId> implied;
  for (const ir::EdgeId edge : graph.edges())
    if (is_implied[edge.index()] != 0) implied.push_back(edge);
  return implied;
}

}  // namespace cglint::analysis
