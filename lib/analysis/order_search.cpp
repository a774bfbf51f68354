#include "analysis/order_search.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <queue>
#include <set>
#include <span>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace cglint::analysis {
namespace {

using Order = std::vector<std::uint32_t>;  // Order[i]: the node created as the i-th

// How an order is judged: fewer streams first; then one that loses no programmatic edge; then fewer lost than
// gained.
struct Value {
  std::uint32_t streams = 0;
  bool loses_edges = false;
  std::int32_t net_lost_edges = 0;
  friend auto operator<=>(const Value&, const Value&) = default;
};

// A place where a tail is left without an heir because another tail was created before it.
struct Loss {
  std::uint32_t loser = kNoNode;   // the tail without heir
  std::uint32_t winner = kNoNode;  // the earliest created tail that shares the join with it
  std::uint32_t join = kNoNode;
  bool hopeless = false;  // the loser depends on the winner: no order creates it first
};

// The neighbours of each node, ascending and each once: slices of one array.
class Neighbours {
 public:
  // From pairs of a node and a neighbour of it, both below `node_count`.
  void build(std::size_t node_count, std::span<const std::pair<std::uint32_t, std::uint32_t>> of_node) {
    first_.assign(node_count + 1, 0);
    for (const auto& [node, other] : of_node) ++first_[node + 1];
    std::partial_sum(first_.begin(), first_.end(), first_.begin());
    items_.resize(of_node.size());
    std::vector<std::uint32_t> end(first_.begin(), first_.end() - 1);
    for (const auto& [node, other] : of_node) items_[end[node]++] = other;
    std::uint32_t kept = 0;
    for (std::size_t node = 0; node < node_count; ++node) {
      const auto begin = items_.begin() + first_[node];
      const auto last = items_.begin() + end[node];
      if (!std::is_sorted(begin, last)) std::sort(begin, last);
      first_[node] = kept;
      kept = static_cast<std::uint32_t>(std::unique_copy(begin, last, items_.begin() + kept) - items_.begin());
    }
    first_[node_count] = kept;
  }
  [[nodiscard]] std::span<const std::uint32_t> operator[](std::uint32_t node) const {
    return std::span(items_).subspan(first_[node], first_[node + 1] - first_[node]);
  }

 private:
  std::vector<std::uint32_t> first_{0}, items_;
};

using Key = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t>;

class Search {
 public:
  explicit Search(const OrderSearchInput& input) : input_(input), n_(own_nodes(input.graph)) {}

  OrderSearchResult run() {
    OrderSearchResult result;
    Order base;
    if (!build_lists() || !creation_or_topological_order(base)) return result;
    Order given(n_);
    std::iota(given.begin(), given.end(), 0U);
    const StreamPrediction before = predict(given);
    if (!before.valid) return result;
    result.streams_before = result.streams_after = before.count;
    result.order = given;
    adjacent_before_ = adjacent_programmatic(given, before);
    if (before.count <= input_.needed_streams) {
      result.verdict = OrderSearchResult::Verdict::not_needed;
      result.evaluations = evaluations_;
      return result;
    }
    improve(base);
    const bool was_cut_short = spent();
    drop_what_is_not_needed(base);
    result.verdict = OrderSearchResult::Verdict::no_order_helps;
    Order best = apply(base, accepted_);
    StreamPrediction after = predict(best);
    result.cut_short = was_cut_short && after.count > input_.needed_streams;
    if (after.count < before.count) {
      result.verdict = OrderSearchResult::Verdict::improved;
      result.streams_after = after.count;
      describe_moves(given, best, result);
      // Told by the order as found: there a branch follows the one that it has to wait for anyway.
      if (after.count > input_.needed_streams) find_fresh_heads(best, after, result);
      choose_edits(given, best, after, result);
      compare_programmatic(best, after, result);
      result.order = std::move(best);
    } else {
      find_fresh_heads(given, before, result);
    }
    result.evaluations = evaluations_;
    result.work = work_;
    return result;
  }

 private:
  // --- the graph ---

  // Only the graph's own nodes can be recorded in another order; bodies of child graphs move with their node.
  static std::size_t own_nodes(const StreamGraph& graph) {
    const auto end =
        std::find_if(graph.owner.begin(), graph.owner.end(), [](std::uint32_t o) { return o != kNoNode; });
    return graph.owner.empty() ? graph.node_count() : static_cast<std::size_t>(end - graph.owner.begin());
  }

  // The graph's own node that a node is, or is in the body of.
  [[nodiscard]] std::uint32_t box_of(std::uint32_t node) const {
    while (node != kNoNode && node >= n_) node = input_.graph.owner[node];
    return node;
  }

  bool build_lists() {
    body_sink_.assign(input_.graph.node_count(), true);
    std::vector<std::pair<std::uint32_t, std::uint32_t>> pairs;
    pairs.reserve(input_.graph.edges.size());
    for (const StreamEdge& edge : input_.graph.edges) {
      if (edge.from >= input_.graph.node_count() || edge.to >= input_.graph.node_count()) return false;
      body_sink_[edge.from] = false;
      if (edge.from < n_ && edge.to < n_) pairs.emplace_back(edge.from, edge.to);
    }
    children_.build(n_, pairs);
    for (auto& [from, to] : pairs) std::swap(from, to);
    parents_.build(n_, pairs);
    return true;
  }

  // Creation order, or the nearest order to it in which parents come first. False if there is none.
  bool creation_or_topological_order(Order& order) const {
    order.reserve(n_);
    bool parents_come_first = true;
    for (std::uint32_t v = 0; v < n_ && parents_come_first; ++v) parents_come_first = parents_[v].empty() || parents_[v].back() < v;
    if (parents_come_first) {
      order.resize(n_);
      std::iota(order.begin(), order.end(), 0U);
      return true;
    }
    std::vector<std::size_t> open(n_);
    std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> ready;
    for (std::uint32_t v = 0; v < n_; ++v) {
      open[v] = parents_[v].size();
      if (open[v] == 0) ready.push(v);
    }
    while (!ready.empty()) {
      const std::uint32_t v = ready.top();
      ready.pop();
      order.push_back(v);
      for (const std::uint32_t child : children_[v]) {
        if (--open[child] == 0) ready.push(child);
      }
    }
    return order.size() == n_;
  }

  // --- judging an order ---

  static std::vector<std::uint32_t> positions(const Order& order) {
    std::vector<std::uint32_t> position(order.size());
    for (std::uint32_t i = 0; i < order.size(); ++i) position[order[i]] = i;
    return position;
  }

  // The prediction for the graph re-recorded in `order`, in terms of the given creation indices.
  StreamPrediction predict(const Order& order) {
    ++evaluations_;
    if (is_creation_order(order)) {
      if (!as_given_) {
        as_given_ = input_.as_given != nullptr ? *input_.as_given : predict_streams(input_.graph);
        if (!input_.graph.owner.empty() && as_given_->valid) describe_boxes(*as_given_);
      }
      return *as_given_;
    }
    const std::vector<std::uint32_t> position = positions(order);
    const auto moved = [&](std::uint32_t node) { return node < n_ ? position[node] : node; };
    const auto given = [&](std::uint32_t node) { return node < n_ ? order[node] : node; };
    kinds_.assign(input_.graph.kinds.begin(), input_.graph.kinds.end());
    edges_.assign(input_.graph.edges.begin(), input_.graph.edges.end());
    owner_.assign(input_.graph.owner.begin(), input_.graph.owner.end());
    for (std::uint32_t i = 0; i < n_; ++i) kinds_[i] = input_.graph.kinds[order[i]];
    for (StreamEdge& edge : edges_) {
      edge.from = moved(edge.from);
      edge.to = moved(edge.to);
    }
    for (std::uint32_t& owner : owner_) owner = moved(owner);
    StreamPrediction out = predict_streams({kinds_, edges_, owner_});
    std::vector<StreamNode> nodes(out.nodes.size());
    for (std::uint32_t i = 0; i < nodes.size(); ++i) {
      StreamNode& node = nodes[given(i)] = out.nodes[i];
      node.by = given(node.by);
      node.heir = given(node.heir);
    }
    out.nodes = std::move(nodes);
    if (!owner_.empty() && out.valid) describe_boxes(out);
    for (StreamLife& life : out.streams) {
      life.first = given(life.first);
      life.tail = given(life.tail);
      life.opened_by = given(life.opened_by);
    }
    return out;
  }

  static bool is_creation_order(const Order& order) {
    for (std::uint32_t i = 0; i < order.size(); ++i)
      if (order[i] != i) return false;
    return true;
  }

  // What becomes of a child graph's node: how its body got a stream from outside, and what its last nodes
  // hand on.
  void describe_boxes(StreamPrediction& prediction) const {
    for (std::uint32_t v = static_cast<std::uint32_t>(n_); v < prediction.nodes.size(); ++v) {
      const StreamNode& node = prediction.nodes[v];
      const std::uint32_t box = box_of(v);
      StreamNode& outer = prediction.nodes[box];
      const bool from_outside = node.by != kNoNode && box_of(node.by) != box;
      if (outer.origin == StreamOrigin::none && (from_outside || node.origin == StreamOrigin::opened_late)) {
        outer.origin = node.origin;
        outer.by = box_of(node.by);
      }
      if (node.heir != kNoNode && box_of(node.heir) != box) {
        outer.fate = StreamFate::continues;
        outer.heir = box_of(node.heir);
      } else if (body_sink_[v] && outer.fate != StreamFate::continues && outer.fate != StreamFate::dies) {
        outer.fate = node.fate;
      }
    }
    for (std::uint32_t v = 0; v < n_; ++v) {
      StreamNode& node = prediction.nodes[v];
      if (node.by != kNoNode) node.by = box_of(node.by);
      if (node.heir != kNoNode) node.heir = box_of(node.heir);
    }
  }

  // Per programmatic edge: does its consumer directly follow its producer on one stream?
  std::vector<bool> adjacent_programmatic(const Order& order, const StreamPrediction& prediction) const {
    std::vector<bool> adjacent(input_.graph.edges.size(), false);
    std::vector<std::uint32_t> last(prediction.streams.size(), kNoNode), before(n_, kNoNode);
    for (const std::uint32_t v : order) {
      const std::int32_t stream = prediction.nodes[v].stream;
      if (stream < 0) continue;
      before[v] = std::exchange(last[static_cast<std::size_t>(stream)], v);
    }
    for (std::size_t i = 0; i < adjacent.size(); ++i) {
      const StreamEdge& edge = input_.graph.edges[i];
      if (edge.from >= n_ || edge.to >= n_) continue;
      adjacent[i] = edge.type == StreamEdgeType::programmatic && before[edge.to] == edge.from;
    }
    return adjacent;
  }

  Value value(const Order& order, const StreamPrediction& prediction) const {
    Value result{prediction.count, false, 0};
    const std::vector<bool> adjacent = adjacent_programmatic(order, prediction);
    for (std::size_t i = 0; i < adjacent.size(); ++i) {
      if (adjacent_before_[i] == adjacent[i]) continue;
      result.loses_edges = result.loses_edges || adjacent_before_[i];
      result.net_lost_edges += adjacent_before_[i] ? 1 : -1;
    }
    return result;
  }

  // --- losses and their cure ---

  std::vector<Loss> find_losses(const Order& order, const std::vector<std::uint32_t>& position, const StreamPrediction& prediction) {
    std::vector<Loss> losses;
    std::vector<std::uint32_t> earliest(n_, kNoNode);  // parent of a join, where it was asked for
    for (const std::uint32_t v : order) {
      if (prediction.nodes[v].fate != StreamFate::dies) continue;
      // The join that v could have had: a child that another parent was given, created before v. Prefer the
      // earliest one.
      Loss loss;
      for (const std::uint32_t child : children_[v]) {
        const StreamNode& node = prediction.nodes[child];
        if (node.origin != StreamOrigin::handed_on && node.origin != StreamOrigin::opened_at_fork) continue;
        if (node.by == kNoNode || node.by == v || position[node.by] > position[v]) continue;
        if (loss.join != kNoNode && position[child] > position[loss.join]) continue;
        loss = {v, node.by, child};
      }
      if (loss.join == kNoNode) continue;
      std::uint32_t& winner = earliest[loss.join];
      if (winner == kNoNode) {
        winner = *std::min_element(parents_[loss.join].begin(), parents_[loss.join].end(),
                                   [&](std::uint32_t a, std::uint32_t b) { return position[a] < position[b]; });
      }
      // Else all other parents were created after v, nodes without a stream that pass on one of an earlier node.
      if (winner != v) loss.winner = winner;
      losses.push_back(loss);
    }
    find_hopeless(order, position, losses);
    return losses;
  }

  // Which losers depend on their winner, for 64 losses in one walk over the edges between them. That depends on the graph alone, and is
  // asked once.
  void find_hopeless(const Order& order, const std::vector<std::uint32_t>& position, std::vector<Loss>& losses) {
    const auto pair_of = [](const Loss& loss) { return std::uint64_t{loss.winner} << 32 | loss.loser; };
    std::vector<const Loss*> open;  // by position of the loser
    for (const Loss& loss : losses) {
      if (!depends_.contains(pair_of(loss))) open.push_back(&loss);
    }
    std::vector<std::uint64_t> reached(open.empty() ? 0 : n_, 0);  // per position: losers that depend on the node there
    for (std::size_t first = 0; first < open.size() && !worked_enough(); first += 64) {
      const std::span<const Loss*> batch = std::span(open).subspan(first, std::min<std::size_t>(64, open.size() - first));
      const std::uint32_t end = position[batch.back()->loser];
      std::uint32_t begin = end;
      for (std::size_t k = 0; k < batch.size(); ++k) {
        reached[position[batch[k]->loser]] |= std::uint64_t{1} << k;
        begin = std::min(begin, position[batch[k]->winner]);
      }
      for (std::uint32_t i = end; i > begin; --i) {
        if (reached[i] == 0) continue;
        const std::span<const std::uint32_t> parents = parents_[order[i]];
        work_ += parents.size();
        for (const std::uint32_t parent : parents) {
          if (position[parent] >= begin) reached[position[parent]] |= reached[i];
        }
      }
      for (std::size_t k = 0; k < batch.size(); ++k)
        depends_[pair_of(*batch[k])] = (reached[position[batch[k]->winner]] >> k & 1) != 0;
      std::fill(reached.begin() + begin, reached.begin() + end + 1, 0);
      work_ += end - begin + 1;
    }
    for (Loss& loss : losses) {
      const auto known = depends_.find(pair_of(loss));
      loss.hopeless = known != depends_.end() && known->second;
    }
  }

  // block_begin of every position.
  std::vector<std::uint32_t> block_begins(const Order& order) const {
    std::vector<std::uint32_t> begins(order.size(), 0);
    std::uint32_t of_stream = 0, of_chain = 0;
    for (std::uint32_t i = 0; i < order.size(); ++i) {
      const std::uint32_t v = order[i];
      const bool has_streams = !input_.capture_stream.empty();
      if (i > 0) {
        const std::uint32_t previous = order[i - 1];
        const bool follows = std::binary_search(children_[previous].begin(), children_[previous].end(), v);
        if (!follows || !has_streams || input_.capture_stream[previous] != input_.capture_stream[v]) of_stream = i;
        if (!follows || children_[previous].size() > 1) of_chain = i;
      }
      begins[i] = has_streams && input_.capture_stream[v] >= 0 ? of_stream : of_chain;
    }
    return begins;
  }

  // The first position of the block that ends with the node at `end`: a run of creation order on one capture
  // stream; where streams are unknown, a chain in which each node follows the one before it and only it, from
  // a fork on.
  std::uint32_t block_begin(const Order& order, std::uint32_t end) const {
    std::uint32_t begin = end;
    const bool known = !input_.capture_stream.empty() && input_.capture_stream[order[end]] >= 0;
    while (begin > 0) {
      const std::uint32_t v = order[begin], previous = order[begin - 1];
      if (!std::binary_search(children_[previous].begin(), children_[previous].end(), v)) break;
      if (known ? input_.capture_stream[previous] != input_.capture_stream[v]
                : children_[previous].size() > 1)
        break;
      --begin;
    }
    return begin;
  }

  // Creates the loser first: everything between the winner (or the start of its block) and the loser that the
  // loser does not depend on moves behind the loser. Keeps dependencies: what moves is not an ancestor of
  // what it moves across.
  // `position` is the inverse of `order` and is kept so.
  void mend(Order& order, std::vector<std::uint32_t>& position, const Loss& loss, bool whole_block) {
    const std::uint32_t end = position[loss.loser], winner = position[loss.winner];
    if (loss.hopeless || winner >= end) return;  // nothing to gain, or mended by an earlier move
    const std::uint32_t begin = whole_block ? block_begin(order, winner) : winner;
    needed_.assign(end - begin + 1, 0);  // ancestors of the loser within the range, and itself
    needed_[end - begin] = 1;
    first_.clear();
    second_.clear();  // both backwards
    work_ += end - begin + 1;
    for (std::uint32_t i = end;; --i) {
      const std::uint32_t v = order[i];
      if (needed_[i - begin] != 0) {
        const std::span<const std::uint32_t> parents = parents_[v];
        work_ += parents.size();
        for (const std::uint32_t parent : parents) {
          if (position[parent] >= begin) needed_[position[parent] - begin] = 1;
        }
        first_.push_back(v);
      } else {
        second_.push_back(v);
      }
      if (i == begin) break;
    }
    std::copy(second_.rbegin(), second_.rend(), std::copy(first_.rbegin(), first_.rend(), order.begin() + begin));
    for (std::uint32_t i = begin; i <= end; ++i) position[order[i]] = i;
  }

  // Losses that look alike: same labels, same distances.
  Key key(const std::vector<std::uint32_t>& block_begins, const std::vector<std::uint32_t>& position, const Loss& loss) const {
    const auto label = [&](std::uint32_t node) {
      return input_.label.empty() ? static_cast<std::uint32_t>(input_.graph.kinds[node]) : input_.label[node];
    };
    const std::uint32_t winner = position[loss.winner];
    return {label(loss.loser), label(loss.winner), label(loss.join), position[loss.loser] - winner,
            winner - block_begins[winner]};
  }

  // --- the search ---

  struct Step {
    std::vector<Loss> losses;
    bool whole_block = true;
  };

  Order apply(const Order& base, const std::vector<Step>& steps) {
    Order order = base;
    std::vector<std::uint32_t> position = positions(order);
    for (const Step& step : steps) {
      for (const Loss& loss : step.losses) mend(order, position, loss, step.whole_block);
    }
    return order;
  }

  // The same for one step. False, and nothing in `order` to rely on, if the work that is allowed ended on the way.
  bool try_step(const Order& base, const Step& step, Order& order) {
    order = base;
    std::vector<std::uint32_t> position = positions(order);
    for (const Loss& loss : step.losses) {
      if (worked_enough()) return false;
      mend(order, position, loss, step.whole_block);
    }
    return true;
  }

  [[nodiscard]] bool worked_enough() const { return work_ >= input_.max_work; }
  [[nodiscard]] bool spent() const { return evaluations_ >= input_.max_evaluations || worked_enough(); }

  void improve(const Order& base) {
    constexpr int kMaxRounds = 24;
    constexpr int kMaxFlatRounds = 2;
    constexpr std::size_t kMaxGroups = 12;
    Order current = base;
    StreamPrediction prediction = predict(current);
    Value best = value(current, prediction);
    int flat_rounds = 0;
    std::size_t kept = 0;  // steps that are known to pay
    for (int round = 0; round < kMaxRounds && best.streams > input_.needed_streams && !spent(); ++round) {
      const std::vector<std::uint32_t> position = positions(current);
      std::map<Key, std::vector<Loss>> groups;
      const std::vector<std::uint32_t> blocks = block_begins(current);
      for (const Loss& loss : find_losses(current, position, prediction)) groups[key(blocks, position, loss)].push_back(loss);
      std::vector<std::vector<Loss>> large_first;
      for (auto& [unused, losses] : groups) large_first.push_back(std::move(losses));
      std::stable_sort(large_first.begin(), large_first.end(),
                       [](const auto& a, const auto& b) { return a.size() > b.size(); });
      std::vector<Loss> all;
      for (const std::vector<Loss>& losses : large_first) all.insert(all.end(), losses.begin(), losses.end());
      if (all.empty()) break;
      std::sort(all.begin(), all.end(),
                [&](const Loss& a, const Loss& b) { return position[a.loser] < position[b.loser]; });

      std::vector<Step> candidates;
      if (large_first.size() > kMaxGroups) large_first.resize(kMaxGroups);
      for (const bool whole_block : {true, false}) {
        for (const std::vector<Loss>& losses : large_first) candidates.push_back({losses, whole_block});
        if (groups.size() > 1) candidates.push_back({all, whole_block});
      }
      std::optional<Value> best_here;
      std::size_t chosen = 0;
      Order chosen_order;
      StreamPrediction chosen_prediction;
      for (std::size_t i = 0; i < candidates.size() && !spent(); ++i) {
        Order order;
        if (!try_step(current, candidates[i], order)) break;
        if (order == current) continue;
        StreamPrediction there = predict(order);
        const Value worth = value(order, there);
        if (best_here.has_value() && !(worth < *best_here)) continue;
        best_here = worth;
        chosen = i;
        chosen_order = std::move(order);
        chosen_prediction = std::move(there);
      }
      if (!best_here.has_value() || best_here->streams > best.streams) break;
      flat_rounds = best_here->streams < best.streams ? 0 : flat_rounds + 1;
      if (flat_rounds > kMaxFlatRounds) break;
      accepted_.push_back(candidates[chosen]);
      current = std::move(chosen_order);
      prediction = std::move(chosen_prediction);
      if (flat_rounds == 0) kept = accepted_.size();
      best = *best_here;
    }
    accepted_.resize(kept);
  }

  // Fewest moves: a step, or the part of it that moves nothing any more, goes if the result is as good
  // without it.
  void drop_what_is_not_needed(const Order& base) {
    if (accepted_.size() < 2) return;
    Order order = apply(base, accepted_);
    Value best = value(order, predict(order));
    for (std::size_t i = accepted_.size(); i-- > 0 && !spent();) {
      std::vector<Step> fewer = accepted_;
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
      order = apply(base, fewer);
      const Value worth = value(order, predict(order));
      if (worth <= best) {
        accepted_ = std::move(fewer);
        best = worth;
      }
    }
  }

  // --- the answer ---

  // Which blocks moved, from the two orders alone, so that steps that undo or extend each other are told as
  // one.
  void describe_moves(const Order& given, const Order& best, OrderSearchResult& result) const {
    const std::vector<std::uint32_t> old_position = positions(given), new_position = positions(best);
    // Losers and winners of the steps taken, by winner: they name the moves.
    std::vector<const Loss*> losses;
    for (const Step& step : accepted_) {
      for (const Loss& loss : step.losses) losses.push_back(&loss);
    }
    const std::vector<std::uint32_t> blocks = block_begins(given);
    std::map<Key, OrderPattern> patterns;
    std::vector<bool> told(n_, false);
    std::stable_sort(losses.begin(), losses.end(), [&](const Loss* a, const Loss* b) {
      return old_position[a->loser] < old_position[b->loser];
    });
    for (const Loss* loss : losses) {
      if (new_position[loss->winner] < new_position[loss->loser] || told[loss->winner]) continue;
      OrderMove move;
      move.after = loss->loser;
      move.before = loss->join;
      move.winner = loss->winner;
      // The run around the winner of nodes that were created before the loser and now follow it.
      const auto has_moved = [&](std::uint32_t i) {
        return old_position[best[i]] < old_position[loss->loser] && !told[best[i]];
      };
      std::uint32_t begin = new_position[loss->winner], end = begin + 1;
      while (begin > new_position[loss->loser] + 1 && has_moved(begin - 1)) --begin;
      while (end < new_position[loss->join] && has_moved(end)) ++end;
      move.nodes.assign(best.begin() + begin, best.begin() + end);
      std::sort(move.nodes.begin(), move.nodes.end());
      for (const std::uint32_t v : move.nodes) told[v] = true;
      for (std::uint32_t v = move.nodes.front(); v <= loss->loser; ++v) {
        if (!std::binary_search(move.nodes.begin(), move.nodes.end(), v) &&
            new_position[v] < new_position[move.nodes.front()]) {
          move.crossed.push_back(v);
        }
      }
      patterns[key(blocks, old_position, *loss)].moves.push_back(std::move(move));
    }
    for (auto& [unused, pattern] : patterns) result.patterns.push_back(std::move(pattern));
    std::stable_sort(result.patterns.begin(), result.patterns.end(),
                     [](const auto& a, const auto& b) { return a.moves.size() > b.moves.size(); });
  }

  // The patterns' moves as edits, if they keep what the search promises: then the order becomes the one they
  // give. Else the difference of the two orders, node by node.
  void choose_edits(const Order& given, Order& best, StreamPrediction& after, OrderSearchResult& result) {
    std::vector<OrderEdit> edits;
    for (const OrderPattern& pattern : result.patterns) {
      for (const OrderMove& move : pattern.moves) edits.push_back({move.nodes, move.before});
    }
    Order order = edited(given, edits);
    if (keeps_dependencies(order)) {
      StreamPrediction prediction = predict(order);
      if (prediction.count == after.count && value(order, prediction) <= value(best, after)) {
        result.edits = std::move(edits);
        result.moves_are_edits = true;
        best = std::move(order);
        after = std::move(prediction);
        return;
      }
    }
    result.edits = difference(best);
  }

  // The edits that turn creation order into `best`. A node stays if none that was created after it comes
  // before it now; those that stay keep their order, and each run of the others goes right before the next
  // node that stays.
  static std::vector<OrderEdit> difference(const Order& best) {
    std::vector<OrderEdit> edits;
    OrderEdit run;
    std::uint32_t latest = 0;
    for (const std::uint32_t v : best) {
      if (v < latest) {
        run.nodes.push_back(v);
        continue;
      }
      latest = v;
      if (run.nodes.empty()) continue;
      run.before = v;
      edits.push_back(std::exchange(run, {}));
    }
    if (!run.nodes.empty()) edits.push_back(std::move(run));
    return edits;
  }

  // `order` after the edits, one after another. A linked list, since there may be one edit per layer.
  static Order edited(const Order& order, const std::vector<OrderEdit>& edits) {
    const auto end = static_cast<std::uint32_t>(order.size());  // stands before the first and after the last
    std::vector<std::uint32_t> next(order.size() + 1), previous(order.size() + 1);
    const auto link = [&](std::uint32_t a, std::uint32_t b) {
      next[a] = b;
      previous[b] = a;
    };
    std::uint32_t last = end;
    for (const std::uint32_t v : order) {
      link(last, v);
      last = v;
    }
    link(last, end);
    for (const OrderEdit& edit : edits) {
      const std::uint32_t place = edit.before == kNoNode ? end : edit.before;
      for (const std::uint32_t v : edit.nodes) {
        link(previous[v], next[v]);
        link(previous[place], v);
        link(v, place);
      }
    }
    Order result;
    for (std::uint32_t v = next[end]; v != end; v = next[v]) result.push_back(v);
    return result;
  }

  [[nodiscard]] bool keeps_dependencies(const Order& order) const {
    const std::vector<std::uint32_t> position = positions(order);
    for (std::uint32_t v = 0; v < n_; ++v) {
      for (const std::uint32_t child : children_[v]) {
        if (position[v] > position[child]) return false;
      }
    }
    return true;
  }

  void compare_programmatic(const Order& best, const StreamPrediction& after,
                            OrderSearchResult& result) const {
    const std::vector<bool> adjacent = adjacent_programmatic(best, after);
    for (std::uint32_t i = 0; i < adjacent.size(); ++i) {
      if (adjacent_before_[i] && !adjacent[i]) result.programmatic_lost.push_back(i);
      if (!adjacent_before_[i] && adjacent[i]) result.programmatic_gained.push_back(i);
    }
  }

  // A branch head that had to open a stream, although streams had ended before it that were free by then.
  void find_fresh_heads(const Order& order, const StreamPrediction& prediction, OrderSearchResult& result) {
    if (!input_.capture_stream.empty()) {
      std::set<std::int32_t> seen{-1};
      for (std::uint32_t v = 0; v < n_; ++v)
        is_first_on_stream_.push_back(seen.insert(input_.capture_stream[v]).second);
    }
    bool ended_before = false;
    for (const std::uint32_t v : order) {
      const StreamNode& node = prediction.nodes[v];
      const bool opens =
          node.origin == StreamOrigin::opened_at_fork || node.origin == StreamOrigin::opened_late;
      if (opens && ended_before && parents_[v].size() == 1) result.fresh_heads.push_back(branch_to_blame(v));
      ended_before = ended_before || node.fate == StreamFate::returns || node.fate == StreamFate::dies;
    }
  }

  // Of the branches of one fork, which one has to open a stream is a matter of order. To blame is one that
  // starts on a capture stream of its own, where those are known.
  [[nodiscard]] std::uint32_t branch_to_blame(std::uint32_t head) const {
    if (is_first_on_stream_.empty()) return head;
    const auto starts_a_stream = [&](std::uint32_t v) {
      return is_first_on_stream_[v] && parents_[v].size() == 1;
    };
    if (starts_a_stream(head)) return head;
    for (const std::uint32_t sibling : children_[parents_[head][0]]) {
      if (starts_a_stream(sibling)) return sibling;
    }
    return head;
  }

  const OrderSearchInput& input_;
  const std::size_t n_;
  Neighbours children_, parents_;
  std::vector<StreamNodeKind> kinds_;
  std::vector<StreamEdge> edges_;
  std::vector<std::uint32_t> owner_;
  std::vector<bool> body_sink_;           // no edge leaves the node within its graph
  std::vector<bool> is_first_on_stream_;  // capture stream; empty where those are unknown
  std::vector<bool> adjacent_before_;
  std::optional<StreamPrediction> as_given_;  // of creation order, which is asked for more than once
  std::unordered_map<std::uint64_t, bool> depends_;  // by winner and loser
  std::vector<std::uint8_t> needed_;                 // scratch of mend, as the next
  Order first_, second_;
  std::vector<Step> accepted_;
  std::uint32_t evaluations_ = 0;
  std::uint64_t work_ = 0;  // nodes and edges walked to find and mend losses
};

}  // namespace

OrderSearchResult search_order(const OrderSearchInput& input) {
  return Search(input).run();
}

}  // namespace cglint::analysis
