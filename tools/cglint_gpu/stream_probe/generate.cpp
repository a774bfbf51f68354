#include "stream_probe/generate.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace cglint::gpu {
namespace {

struct Topology {
  int n = 0;
  std::vector<std::pair<int, int>> edges;
};

void add_edge(Topology& topology, int from, int to) {
  if (from == to || from < 0) return;
  const std::pair<int, int> edge{from, to};
  if (std::find(topology.edges.begin(), topology.edges.end(), edge) == topology.edges.end())
    topology.edges.push_back(edge);
}

// Each node takes 0 to 3 parents, near ones more often.
Topology random_parents(Random& random, int n) {
  Topology out;
  out.n = n;
  const int reach = random.chance(50) ? 4 : n;
  const int orphan_percent = random.chance(50) ? 3 : 15;
  for (int v = 1; v < n; ++v) {
    if (random.chance(orphan_percent)) continue;
    const int parents = random.chance(55) ? 1 : random.chance(60) ? 2 : 3;
    for (int i = 0; i < parents; ++i) add_edge(out, v - 1 - random.below(std::min(v, reach)), v);
  }
  return out;
}

// Every pair with the same probability, about 0.7 to 2.5 edges per node.
Topology sparse(Random& random, int n) {
  Topology out;
  out.n = n;
  const int wanted = n * random.between(70, 250) / 100;
  for (int i = 0; i < wanted; ++i) {
    const int a = random.below(n);
    const int b = random.below(n);
    add_edge(out, std::min(a, b), std::max(a, b));
  }
  return out;
}

// A chain of blocks; a block is one node or a fork into 2 to `widest` short branches that join again.
Topology forks_and_joins(Random& random, int n, int widest) {
  Topology out;
  int tail = -1;
  while (out.n < n) {
    const int head = out.n++;
    add_edge(out, tail, head);
    tail = head;
    if (random.chance(35)) continue;
    const int branches = random.between(2, widest);
    std::vector<int> tails(static_cast<size_t>(branches), head);
    std::vector<int> left;
    for (int b = 0; b < branches; ++b) left.push_back(random.between(random.chance(15) ? 0 : 1, 3));
    // The branches are created in turns, one after the other, or in random interleaving.
    const bool in_turn = random.chance(50);
    int current = 0;
    while (std::accumulate(left.begin(), left.end(), 0) > 0) {
      size_t b = static_cast<size_t>(in_turn ? current : random.below(branches));
      if (left[b] == 0) {
        if (in_turn) current = (current + 1) % branches;
        continue;
      }
      --left[b];
      const int node = out.n++;
      add_edge(out, tails[b], node);
      tails[b] = node;
    }
    const int join = out.n++;
    for (const int end : tails) {
      if (!random.chance(4)) add_edge(out, end, join);
    }
    tail = join;
  }
  return out;
}

// Layers as decode graphs have them: fork node, main chain, side chains, join; the creation order of the
// chains varies, and each side chain may follow the same chain of the layer before.
Topology layers(Random& random, int n, int most_sides) {
  Topology out;
  const int sides = random.between(1, most_sides);
  const int main_length = random.between(1, 5);
  const int side_length = random.between(1, 4);
  const bool carry = random.chance(70);
  const int order = random.below(4);  // main first, sides first, mixed, a new one per layer
  std::vector<int> last_side(static_cast<size_t>(sides), -1);
  int tail = -1;
  while (out.n < n) {
    const int fork = out.n++;
    add_edge(out, tail, fork);
    const int layer_order = order == 3 ? random.below(3) : order;
    std::vector<int> queue;  // chain index per node to create, 0 = main
    std::vector<int> todo(static_cast<size_t>(sides) + 1, side_length);
    todo[0] = main_length;
    if (layer_order == 0) {
      for (int c = 0; c <= sides; ++c)
        queue.insert(queue.end(), static_cast<size_t>(todo[static_cast<size_t>(c)]), c);
    } else if (layer_order == 1) {
      for (int c = sides; c >= 0; --c)
        queue.insert(queue.end(), static_cast<size_t>(todo[static_cast<size_t>(c)]), c);
    } else {
      while (std::accumulate(todo.begin(), todo.end(), 0) > 0) {
        const int c = random.below(sides + 1);
        if (todo[static_cast<size_t>(c)] == 0) continue;
        --todo[static_cast<size_t>(c)];
        queue.push_back(c);
      }
    }
    std::vector<int> tails(static_cast<size_t>(sides) + 1, fork);
    for (const int c : queue) {
      const int node = out.n++;
      const size_t chain = static_cast<size_t>(c);
      if (c > 0 && tails[chain] == fork && carry) add_edge(out, last_side[chain - 1], node);
      add_edge(out, tails[chain], node);
      tails[chain] = node;
    }
    for (size_t c = 1; c < tails.size(); ++c) last_side[c - 1] = tails[c];
    const int join = out.n++;
    for (const int end : tails) {
      if (!random.chance(3)) add_edge(out, end, join);
    }
    tail = join;
  }
  return out;
}

// A few hubs with 5 to 12 children each, then joins over random subsets.
Topology hubs(Random& random, int n) {
  Topology out;
  out.n = 1;
  std::vector<int> open{0};
  while (out.n < n) {
    const int hub = open[static_cast<size_t>(random.below(static_cast<int>(open.size())))];
    const int children = random.between(5, 12);
    std::vector<int> made;
    for (int c = 0; c < children; ++c) {
      const int node = out.n++;
      add_edge(out, hub, node);
      if (random.chance(15) && !made.empty())
        add_edge(out, made[static_cast<size_t>(random.below(static_cast<int>(made.size())))], node);
      made.push_back(node);
    }
    const int joins = random.between(1, 3);
    for (int j = 0; j < joins; ++j) {
      const int join = out.n++;
      const int percent = random.chance(40) ? 100 : random.between(30, 80);
      for (const int node : made) {
        if (random.chance(percent)) add_edge(out, node, join);
      }
      open.push_back(join);
    }
  }
  return out;
}

// A chain with a few shortcuts and side nodes: many nodes are funnels.
Topology chain_with_shortcuts(Random& random, int n) {
  Topology out;
  out.n = n;
  for (int v = 1; v < n; ++v) {
    if (!random.chance(8)) add_edge(out, v - 1, v);
    if (random.chance(20)) add_edge(out, v - 1 - random.below(std::min(v, 5)), v);
  }
  return out;
}

Topology several_roots(Random& random, int n) {
  Topology out;
  out.n = n;
  const int roots = random.between(2, std::min(9, n - 1));
  for (int v = roots; v < n; ++v) {
    const int parents = random.between(1, 3);
    for (int i = 0; i < parents; ++i) {
      const int reach = random.chance(60) ? std::min(v, 6) : v;
      add_edge(out, v - 1 - random.below(reach), v);
    }
  }
  return out;
}

Topology random_topology(Random& random, int most_nodes) {
  const int size = random.below(100);
  int n = size < 35   ? random.between(3, 8)
          : size < 70 ? random.between(9, 20)
          : size < 95 ? random.between(21, 40)
                      : random.between(41, 120);
  n = std::min(n, most_nodes);
  switch (random.below(9)) {
    case 0:
    case 1:
      return random_parents(random, n);
    case 2:
      return sparse(random, n);
    case 3:
      return forks_and_joins(random, n, 6);
    case 4:
      return layers(random, n, 3);
    case 5:
      return hubs(random, n);
    case 6:
      return chain_with_shortcuts(random, n);
    case 7:
      return several_roots(random, n);
    default:
      return random.chance(50) ? forks_and_joins(random, n, 11) : layers(random, n, 9);
  }
}

// Moves some nodes to another place in the creation order; the order need not stay topological.
void shuffle_creation(Random& random, Topology& topology) {
  std::vector<int> place(static_cast<size_t>(topology.n));
  std::iota(place.begin(), place.end(), 0);
  const int swaps = random.chance(50) ? random.between(1, 3) : topology.n;
  for (int i = 0; i < swaps; ++i) {
    const int a = random.below(topology.n);
    const int b = random.chance(50) ? std::min(topology.n - 1, a + 1) : random.below(topology.n);
    std::swap(place[static_cast<size_t>(a)], place[static_cast<size_t>(b)]);
  }
  for (auto& [from, to] : topology.edges) {
    from = place[static_cast<size_t>(from)];
    to = place[static_cast<size_t>(to)];
  }
  std::sort(topology.edges.begin(), topology.edges.end());
}

// The node kinds that a study kind mixes in; empty for the kinds about edges and priorities.
std::vector<NodeKind> letters(std::string_view kind) {
  using enum NodeKind;
  if (kind == "memcpy-dtod") return {kMemcpyDtoD};
  if (kind == "memcpy-htod") return {kMemcpyHtoD};
  if (kind == "memcpy-dtoh") return {kMemcpyDtoH};
  if (kind == "memcpy-all") return {kMemcpyDtoD, kMemcpyHtoD, kMemcpyDtoH};
  if (kind == "memset") return {kMemset};
  if (kind == "empty") return {kEmpty};
  if (kind == "host") return {kHost};
  if (kind == "event-record") return {kEventRecord};
  if (kind == "event-wait") return {kEventWait};
  if (kind == "child") return {kChild};
  if (kind == "cond-if") return {kIf};
  if (kind == "cond-while") return {kWhile};
  if (kind == "cond-switch") return {kSwitch};
  if (kind == "batch-mem-op") return {kBatchMemOp};
  if (kind == "memcpy+empty") return {kMemcpyDtoD, kEmpty};
  if (kind == "memcpy+memset") return {kMemcpyDtoD, kMemset};
  if (kind == "memset+empty") return {kMemset, kEmpty};
  if (kind == "event+empty") return {kEventRecord, kEventWait, kEmpty};
  if (kind == "all" || kind == "all-typed")
    return {kMemcpyDtoD, kMemcpyHtoD, kMemset, kEmpty, kHost, kEventRecord, kEventWait};
  if (kind == "all-child") return {kChild, kMemcpyDtoD, kMemset, kEmpty, kHost, kEventRecord};
  if (kind == "all-conditional") return {kIf, kMemcpyDtoD, kMemset, kEmpty, kHost, kWhile};
  return {};
}

bool joins_kernels(const GraphSpec& spec, const Edge& edge) {
  return spec.kinds[static_cast<size_t>(edge.from)] == NodeKind::kKernel &&
         spec.kinds[static_cast<size_t>(edge.to)] == NodeKind::kKernel;
}

// Turns edges between kernels into edges of `type`.
void retype(Random& random, GraphSpec& spec, EdgeType type) {
  const int percent = random.chance(30) ? 100 : random.between(10, 70);
  bool any = false;
  for (Edge& edge : spec.edges) {
    if (!random.chance(percent) || !joins_kernels(spec, edge)) continue;
    edge.type = type;
    any = true;
  }
  if (any || spec.edges.empty()) return;
  Edge& edge = spec.edges[static_cast<size_t>(random.below(static_cast<int>(spec.edges.size())))];
  if (joins_kernels(spec, edge)) edge.type = type;
}

// `inner_kinds`: what bodies hold besides kernels and nodes with bodies of their own.
void fill_bodies(Random& random, GraphSpec& spec, int depth, const std::vector<NodeKind>& inner_kinds) {
  for (int v = 0; v < spec.size(); ++v) {
    const NodeKind kind = spec.kinds[static_cast<size_t>(v)];
    if (!has_bodies(kind)) continue;
    const int count = kind == NodeKind::kSwitch ? random.between(1, 3)
                      : kind == NodeKind::kIf   ? random.between(1, 2)
                                                : 1;
    for (int i = 0; i < count; ++i) {
      const Topology topology =
          random.chance(30) ? random_parents(random, 1) : random_parents(random, random.between(2, 7));
      GraphSpec body;
      body.kinds.assign(static_cast<size_t>(topology.n), NodeKind::kKernel);
      for (const auto& [from, to] : topology.edges) body.edges.push_back({from, to, EdgeType::kDefault});
      for (NodeKind& inner : body.kinds) {
        if (random.chance(12))
          inner = inner_kinds[static_cast<size_t>(random.below(100)) * inner_kinds.size() / 100];
        else if (depth < 1 && random.chance(6))
          inner = kind == NodeKind::kChild ? NodeKind::kChild : kind;
      }
      body.kinds.back() = NodeKind::kKernel;  // ends a while loop
      fill_bodies(random, body, depth + 1, inner_kinds);
      spec.bodies[v].push_back(std::move(body));
    }
  }
}

const std::vector<NodeKind> kBodyKinds{NodeKind::kMemset, NodeKind::kMemcpyDtoD};

// Places allocations and frees: an allocation, and a free among the nodes it reaches.
void place_allocations(Random& random, GraphSpec& spec) {
  const size_t n = spec.kinds.size();
  std::vector<std::vector<bool>> reaches(n, std::vector<bool>(n, false));
  for (size_t v = n; v-- > 0;) {
    for (const Edge& edge : spec.edges) {
      if (static_cast<size_t>(edge.from) != v) continue;
      const size_t to = static_cast<size_t>(edge.to);
      reaches[v][to] = true;
      for (size_t w = 0; w < n; ++w) {
        if (reaches[to][w]) reaches[v][w] = true;
      }
    }
  }
  const int percent = random.between(10, 60);
  bool any = false;
  for (size_t v = 0; v < n; ++v) {
    if (spec.kinds[v] != NodeKind::kKernel || !random.chance(percent)) continue;
    std::vector<size_t> later;
    for (size_t w = v + 1; w < n; ++w) {
      if (reaches[v][w] && spec.kinds[w] == NodeKind::kKernel) later.push_back(w);
    }
    if (later.empty()) continue;
    const size_t w = later[static_cast<size_t>(random.below(static_cast<int>(later.size())))];
    spec.kinds[v] = NodeKind::kMemAlloc;
    spec.kinds[w] = NodeKind::kMemFree;
    spec.frees[static_cast<int>(w)] = static_cast<int>(v);
    any = true;
  }
  if (any) return;
  // No pair fitted: put one around the whole graph.
  const int last = spec.size();
  for (Edge& edge : spec.edges) ++edge.from, ++edge.to;
  spec.kinds.insert(spec.kinds.begin(), NodeKind::kMemAlloc);
  spec.kinds.push_back(NodeKind::kMemFree);
  spec.edges.push_back({0, 1, EdgeType::kDefault});
  for (int v = 1; v <= last; ++v) spec.edges.push_back({v, last + 1, EdgeType::kDefault});
  spec.edges.push_back({0, last + 1, EdgeType::kDefault});
  spec.frees[last + 1] = 0;
}

void set_priorities(Random& random, GraphSpec& spec) {
  const int percent = random.between(10, 90);
  for (int v = 0; v < spec.size(); ++v) {
    if (random.chance(percent)) spec.priorities[v] = -random.below(6);
  }
  if (spec.priorities.empty()) spec.priorities[random.below(spec.size())] = -random.between(1, 5);
}

uint64_t mix(std::string_view text, uint64_t seed, uint64_t index) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  Random first(hash ^ (seed * 0x9e3779b97f4a7c15u));
  return first.next() ^ (index * 0xd1342543de82ef95u);
}

}  // namespace

uint64_t Random::next() {
  state_ += 0x9e3779b97f4a7c15u;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

const std::vector<std::string>& study_kinds() {
  static const std::vector<std::string> kinds{"kernel",
                                              "memcpy-dtod",
                                              "memcpy-htod",
                                              "memcpy-dtoh",
                                              "memcpy-all",
                                              "host",
                                              "event-record",
                                              "event-wait",
                                              "child",
                                              "cond-if",
                                              "cond-while",
                                              "cond-switch",
                                              "alloc-free",
                                              "batch-mem-op",
                                              "programmatic",
                                              "launch-order",
                                              "programmatic-noattr",
                                              "edges-mixed",
                                              "priority",
                                              "priority-used",
                                              "priority-launch",
                                              "memset",
                                              "empty",
                                              "memset+empty",
                                              "memcpy+memset",
                                              "memcpy+empty",
                                              "event+empty",
                                              "all",
                                              "all-typed",
                                              "all-child",
                                              "all-conditional"};
  return kinds;
}

GraphSpec random_graph(std::string_view kind, uint64_t seed, uint64_t index, int most_nodes) {
  Random random(mix(kind, seed, index));
  Topology topology = random_topology(random, most_nodes);
  const bool allocations = kind == "alloc-free";
  if (random.chance(25) && !allocations) shuffle_creation(random, topology);
  if (random.chance(30)) {  // the order in which edges are added should not matter; show it
    for (size_t i = topology.edges.size(); i > 1; --i) {
      std::swap(topology.edges[i - 1],
                topology.edges[static_cast<size_t>(random.below(static_cast<int>(i)))]);
    }
  }
  GraphSpec spec;
  spec.family = std::string(kind);
  spec.kinds.assign(static_cast<size_t>(topology.n), NodeKind::kKernel);
  for (const auto& [from, to] : topology.edges) spec.edges.push_back({from, to, EdgeType::kDefault});
  const std::vector<NodeKind> mixed_in = letters(kind);
  if (!mixed_in.empty()) {
    static constexpr int kPercents[] = {8, 20, 45, 80};
    const int percent = kPercents[random.below(4)];
    const bool heavy = has_bodies(mixed_in[0]);  // bodies: keep such graphs small enough to measure thousands
    int placed = 0;
    for (NodeKind& node : spec.kinds) {
      if (!random.chance(percent) || (heavy && placed >= 6)) continue;
      node = mixed_in[static_cast<size_t>(random.below(static_cast<int>(mixed_in.size())))];
      ++placed;
    }
    if (placed == 0) spec.kinds[static_cast<size_t>(random.below(topology.n))] = mixed_in[0];
    if (kind == "all-child") {
      fill_bodies(random, spec, 0,
                  {NodeKind::kMemcpyDtoD, NodeKind::kMemset, NodeKind::kEmpty, NodeKind::kHost});
    } else {
      fill_bodies(random, spec, 0, kBodyKinds);
    }
  }
  if (allocations) place_allocations(random, spec);
  if (kind == "programmatic" || kind == "programmatic-noattr") retype(random, spec, EdgeType::kProgrammatic);
  if (kind == "launch-order") retype(random, spec, EdgeType::kLaunchOrder);
  if (kind == "edges-mixed" || kind == "all-typed") {
    retype(random, spec, EdgeType::kProgrammatic);
    retype(random, spec, EdgeType::kLaunchOrder);
  }
  if (kind == "programmatic-noattr") spec.pdl_attribute = false;
  if (kind == "priority" || kind == "priority-used") set_priorities(random, spec);
  if (kind == "priority-used") spec.use_node_priority = true;
  if (kind == "priority-launch") spec.launch_priority = -random.between(1, 5);
  normalise(spec);
  return spec;
}

std::vector<GraphSpec> small_graphs(std::string_view kind) {
  std::vector<GraphSpec> out;
  const std::vector<NodeKind> mixed_in = letters(kind);
  Random random(mix(kind, 0, 0));
  for (int n = 3; n <= 4; ++n) {
    std::vector<std::pair<int, int>> pairs;
    for (int b = 1; b < n; ++b) {
      for (int a = 0; a < b; ++a) pairs.push_back({a, b});
    }
    for (unsigned mask = 0; mask < (1u << pairs.size()); ++mask) {
      GraphSpec base;
      base.family = std::string(kind) + "/small";
      base.kinds.assign(static_cast<size_t>(n), NodeKind::kKernel);
      for (size_t i = 0; i < pairs.size(); ++i) {
        if ((mask >> i) & 1u) base.edges.push_back({pairs[i].first, pairs[i].second, EdgeType::kDefault});
      }
      if (!mixed_in.empty()) {
        for (int a = 0; a < n; ++a) {
          for (int b = a; b < n; ++b) {
            GraphSpec spec = base;
            spec.kinds[static_cast<size_t>(a)] = mixed_in[0];
            spec.kinds[static_cast<size_t>(b)] = mixed_in.back();
            if (has_bodies(mixed_in[0]) && random.chance(50)) fill_bodies(random, spec, 1, kBodyKinds);
            if (normalise(spec).empty()) out.push_back(std::move(spec));
          }
        }
      } else if (kind == "alloc-free") {
        for (int a = 0; a < n; ++a) {
          for (int b = a + 1; b < n; ++b) {
            GraphSpec spec = base;
            spec.kinds[static_cast<size_t>(a)] = NodeKind::kMemAlloc;
            spec.kinds[static_cast<size_t>(b)] = NodeKind::kMemFree;
            if (normalise(spec).empty()) out.push_back(std::move(spec));
          }
        }
      } else {
        const bool edge_kind =
            kind == "programmatic" || kind == "programmatic-noattr" || kind == "launch-order";
        const bool priority_kind = kind == "priority" || kind == "priority-used";
        if (edge_kind) {
          for (size_t i = 0; i <= base.edges.size() && !base.edges.empty(); ++i) {
            GraphSpec spec = base;
            const EdgeType type = kind == "launch-order" ? EdgeType::kLaunchOrder : EdgeType::kProgrammatic;
            spec.pdl_attribute = kind != "programmatic-noattr";
            for (size_t e = 0; e < spec.edges.size(); ++e) {
              if (i == base.edges.size() || e == i) spec.edges[e].type = type;
            }
            out.push_back(std::move(spec));
          }
        } else if (priority_kind) {
          for (int a = 0; a < n; ++a) {
            GraphSpec spec = base;
            spec.priorities[a] = -5;
            spec.use_node_priority = kind == "priority-used";
            out.push_back(std::move(spec));
          }
        } else if (kind == "priority-launch") {
          GraphSpec spec = base;
          spec.launch_priority = -5;
          out.push_back(std::move(spec));
        } else if (kind == "kernel") {
          out.push_back(base);
        }
      }
    }
  }
  return out;
}

namespace {

GraphSpec kernels(const std::string& family, int n) {
  GraphSpec spec;
  spec.family = "designed/" + family;
  spec.kinds.assign(static_cast<size_t>(n), NodeKind::kKernel);
  return spec;
}

void link(GraphSpec& spec, int from, int to, EdgeType type = EdgeType::kDefault) {
  if (from >= 0) spec.edges.push_back({from, to, type});
}

int add(GraphSpec& spec, NodeKind kind = NodeKind::kKernel) {
  spec.kinds.push_back(kind);
  return spec.size() - 1;
}

// One layer after the other: fork, main chain (M) and `sides` side chains (A), join. `order` gives the
// enqueueing order of one layer's nodes.
GraphSpec decode(const std::string& name, int layer_count, std::string_view order, int sides, bool carry,
                 EdgeType main_edge) {
  GraphSpec spec = kernels(name, 0);
  std::vector<int> side_tails(static_cast<size_t>(sides), -1);
  int tail = -1;
  for (int layer = 0; layer < layer_count; ++layer) {
    const int fork = add(spec);
    link(spec, tail, fork, tail >= 0 ? main_edge : EdgeType::kDefault);
    int main_tail = fork;
    std::vector<int> heads(static_cast<size_t>(sides), fork);
    for (const char step : order) {
      if (step == 'M') {
        const int node = add(spec);
        link(spec, main_tail, node, main_edge);
        main_tail = node;
        continue;
      }
      for (size_t s = 0; s < heads.size(); ++s) {
        const int node = add(spec);
        if (heads[s] == fork && carry) link(spec, side_tails[s], node);
        link(spec, heads[s], node);
        heads[s] = node;
      }
    }
    const int join = add(spec);
    link(spec, main_tail, join, main_edge);
    for (size_t s = 0; s < heads.size(); ++s) {
      link(spec, heads[s], join);
      side_tails[s] = heads[s];
    }
    tail = join;
  }
  return spec;
}

}  // namespace

std::vector<GraphSpec> designed_graphs() {
  std::vector<GraphSpec> out;
  for (const int n : {1, 2, 5}) {
    GraphSpec spec = kernels("chain/" + std::to_string(n), n);
    for (int v = 1; v < n; ++v) link(spec, v - 1, v);
    out.push_back(std::move(spec));
  }
  for (int branches = 1; branches <= 12; ++branches) {
    for (const bool joined : {true, false}) {
      GraphSpec spec = kernels((joined ? "forkjoin/" : "fork/") + std::to_string(branches), 1 + branches);
      for (int b = 1; b <= branches; ++b) link(spec, 0, b);
      if (joined) {
        const int join = add(spec);
        for (int b = 1; b <= branches; ++b) link(spec, b, join);
        add(spec);
        link(spec, join, join + 1);
      }
      out.push_back(std::move(spec));
    }
    GraphSpec roots = kernels("roots/" + std::to_string(branches), branches);
    const int join = add(roots);
    for (int b = 0; b < branches; ++b) link(roots, b, join);
    out.push_back(std::move(roots));
  }
  using enum NodeKind;
  for (const NodeKind kind : {kMemset, kMemcpyDtoD, kMemcpyHtoD, kMemcpyDtoH, kEmpty, kHost, kEventRecord,
                              kEventWait, kBatchMemOp, kChild, kIf, kWhile, kSwitch}) {
    for (const int branches : {2, 4, 8}) {
      for (const int odd : {1, branches}) {  // the first or the last branch starts with it
        std::string name(kind_name(kind));
        if (is_memcpy(kind)) name += static_cast<char>(kind);
        GraphSpec spec =
            kernels("odd-branch/" + name + '/' + std::to_string(branches) + (odd == 1 ? "/first" : "/last"),
                    1 + branches);
        spec.kinds[static_cast<size_t>(odd)] = kind;
        for (int b = 1; b <= branches; ++b) link(spec, 0, b);
        const int next = add(spec);
        link(spec, odd, next);
        const int join = add(spec);
        for (int b = 1; b <= branches; ++b) {
          if (b != odd) link(spec, b, join);
        }
        link(spec, next, join);
        normalise(spec);
        out.push_back(std::move(spec));
      }
    }
  }
  const std::pair<const char*, const char*> orders[] = {{"main_first", "MMMMAAA"},
                                                        {"alt_first", "AAAMMMM"},
                                                        {"AMA", "AMMMAA"},
                                                        {"MAM", "MAAAMM"},
                                                        {"interleaved", "MAMAMAM"}};
  for (const auto& [name, order] : orders) {
    for (const int layer_count : {1, 2, 6}) {
      for (const int sides : {1, 2, 7}) {
        for (const bool carry : {true, false}) {
          const std::string label = std::string(name) + "/L" + std::to_string(layer_count) + "/k" +
                                    std::to_string(sides) + (carry ? "/carry" : "/fresh");
          out.push_back(decode("decode/" + label, layer_count, order, sides, carry, EdgeType::kDefault));
          if (sides == 1)
            out.push_back(
                decode("decode-pdl/" + label, layer_count, order, sides, carry, EdgeType::kProgrammatic));
        }
      }
    }
  }
  return out;
}

}  // namespace cglint::gpu
