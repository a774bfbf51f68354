#include "analysis/fork_join.h"

#include <algorithm>

namespace cglint::analysis {
namespace {

// The post-dominator tree, grown from the exit backwards. Nodes are topological positions; the exit, which
// follows every node without successors, is number n. A node's parent is the lowest common ancestor of its
// successors. Ancestors are found in O(log depth) with one jump pointer per node (Myers, "An applicative
// random-access stack", IPL 17(5), 1983).
class PostDominators {
 public:
  PostDominators(const ir::Graph& graph, const TopologicalOrder& order)
      : parent_(order.order.size() + 1), jump_(order.order.size() + 1), depth_(order.order.size() + 1) {
    const auto exit = static_cast<std::uint32_t>(order.order.size());
    parent_[exit] = jump_[exit] = exit;
    for (std::uint32_t position = exit; position-- > 0;) {
      const auto successors = graph.successors(order.order[position]);
      std::uint32_t meet = exit;
      for (std::size_t i = 0; i < successors.size(); ++i) {
        const std::uint32_t next = order.position[successors[i]];
        meet = i == 0 ? next : common(meet, next);
      }
      parent_[position] = meet;
      depth_[position] = depth_[meet] + 1;
      const std::uint32_t jump = jump_[meet];
      jump_[position] =
          depth_[meet] - depth_[jump] == depth_[jump] - depth_[jump_[jump]] ? jump_[jump] : meet;
    }
  }

  [[nodiscard]] std::uint32_t exit() const { return static_cast<std::uint32_t>(parent_.size() - 1); }
  [[nodiscard]] std::uint32_t parent(std::uint32_t position) const { return parent_[position]; }
  [[nodiscard]] std::uint32_t common(std::uint32_t a, std::uint32_t b) const {
    if (depth_[a] < depth_[b]) std::swap(a, b);
    while (depth_[a] > depth_[b]) a = depth_[jump_[a]] >= depth_[b] ? jump_[a] : parent_[a];
    while (a != b) {
      const bool can_jump = jump_[a] != jump_[b];
      a = can_jump ? jump_[a] : parent_[a];
      b = can_jump ? jump_[b] : parent_[b];
    }
    return a;
  }

 private:
  std::vector<std::uint32_t> parent_, jump_, depth_;
};

class RegionFinder {
 public:
  RegionFinder(const ir::Graph& graph, const TopologicalOrder& order)
      : graph_(graph), order_(order), tree_(graph, order), branch_(graph.node_count(), kNoBranch) {}

  std::vector<ForkJoinRegion> run() {
    std::size_t budget = std::max(graph_.node_count() * kMaxListedNodesPerNode, kMinListedNodes);
    std::vector<ForkJoinRegion> regions;
    // Inner regions first, so that the limit hits the outer ones.
    for (std::uint32_t position = tree_.exit(); position-- > 0;) {
      const ir::NodeId fork = order_.order[position];
      const auto successors = graph_.successors(fork);
      if (successors.size() >= 2)
        regions.push_back(list(fork, {successors.begin(), successors.end()}, tree_.parent(position), budget));
    }
    std::vector<ir::NodeId> roots;
    std::uint32_t meet = tree_.exit();
    for (const ir::NodeId node : graph_.nodes()) {
      if (!graph_.predecessors(node).empty()) continue;
      const std::uint32_t position = order_.position[node];
      meet = roots.empty() ? position : tree_.common(meet, position);
      roots.push_back(node);
    }
    std::sort(regions.begin(), regions.end(),
              [](const ForkJoinRegion& a, const ForkJoinRegion& b) { return a.fork < b.fork; });
    if (roots.size() >= 2)
      regions.insert(regions.begin(), list(ir::NodeId(), std::move(roots), meet, budget));
    return regions;
  }

 private:
  static constexpr std::uint32_t kNoBranch = ~std::uint32_t{0};

  ForkJoinRegion list(ir::NodeId fork, std::vector<ir::NodeId> heads, std::uint32_t join,
                      std::size_t& budget) {
    ForkJoinRegion region;
    region.fork = fork;
    if (join != tree_.exit()) region.join = order_.order[join];
    region.has_direct_edge = std::erase(heads, region.join) > 0;
    region.branches.resize(heads.size());

    // What the heads lead to before the join: nothing else can be reached, for the join post-dominates the
    // fork.
    std::vector<std::uint32_t> found;
    for (std::uint32_t b = 0; b < heads.size(); ++b) {
      region.branches[b].head = region.branches[b].tail = heads[b];
      branch_[heads[b].index()] = b;
      found.push_back(order_.position[heads[b]]);
    }
    for (std::size_t i = 0; i < found.size() && !region.truncated; ++i)
      for (const ir::NodeId next : graph_.successors(order_.order[found[i]])) {
        if (next == region.join || branch_[next.index()] != kNoBranch) continue;
        if (found.size() > budget) {
          region.truncated = true;
          break;
        }
        branch_[next.index()] = kPending;
        found.push_back(order_.position[next]);
      }
    budget -= std::min(budget, found.size());

    if (region.truncated) {
      for (Branch& branch : region.branches) branch.nodes.push_back(branch.head);
    } else {
      std::sort(found.begin(), found.end());
      for (const std::uint32_t position : found) assign(order_.order[position], region);
      for (Branch& branch : region.branches) std::sort(branch.nodes.begin(), branch.nodes.end());
    }
    for (const std::uint32_t position : found) branch_[order_.order[position].index()] = kNoBranch;
    return region;
  }

  // Gives the node to a branch. Called in topological order, so that the predecessors in the region have
  // theirs.
  void assign(ir::NodeId node, ForkJoinRegion& region) {
    std::uint32_t& mine = branch_[node.index()];
    if (mine == kPending) {
      std::uint32_t first = tree_.exit();
      for (const ir::NodeId from : graph_.predecessors(node))
        if (branch_[from.index()] != kNoBranch) first = std::min(first, order_.position[from]);
      mine = branch_[order_.order[first].index()];
    }
    for (const ir::NodeId from : graph_.predecessors(node))
      if (branch_[from.index()] != kNoBranch && branch_[from.index()] != mine) region.disjoint = false;
    Branch& branch = region.branches[mine];
    branch.nodes.push_back(node);
    const auto leads_to_join = [&](ir::NodeId from) {
      if (!region.join.is_valid()) return false;
      const auto next = graph_.successors(from);
      return std::binary_search(next.begin(), next.end(), region.join);
    };
    if (leads_to_join(node) || !leads_to_join(branch.tail)) branch.tail = node;
  }
  static constexpr std::uint32_t kPending = kNoBranch - 1;

  const ir::Graph& graph_;
  const TopologicalOrder& order_;
  PostDominators tree_;
  std::vector<std::uint32_t> branch_;  // per node: its branch in the region at hand
};

}  // namespace

std::vector<ForkJoinRegion> find_fork_join_regions(const ir::Graph& graph, const TopologicalOrder& order) {
  return RegionFinder(graph, order).run();
}

}  // namespace cglint::analysis
