// Graphs to measure, reproducible from (family, seed, index) on every machine: no standard-library
// distribution is used.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "stream_probe/graph_spec.h"

namespace cglint::gpu {

// splitmix64: small, and the same everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next();
  // Uniform in [0, bound), bound >= 1; the bias (bound / 2^64) does not matter here.
  int below(int bound) { return static_cast<int>(next() % static_cast<uint64_t>(bound)); }
  // Uniform in [low, high].
  int between(int low, int high) { return low + below(high - low + 1); }
  bool chance(int percent) { return below(100) < percent; }

 private:
  uint64_t state_;
};

// What is mixed with kernels in the study: "memcpy-dtod", "host", "programmatic", "priority-used", ...
const std::vector<std::string>& study_kinds();

// A random graph of 3 to 40 nodes (one in twenty up to 120) in which `kind` is mixed with kernels. The
// topology is one of: random parents, sparse random, nested forks and joins, layers of a main chain and side
// chains (as decode graphs have), forks of seven and more, chains with shortcuts, several roots. About one in
// four has a creation order that is not topological. `most_nodes` caps the size.
GraphSpec random_graph(std::string_view kind, uint64_t seed, uint64_t index, int most_nodes = 120);

// Every graph of 3 and 4 nodes (edges from lower to higher index) with one or two of the nodes, or of the
// edges, of that kind.
std::vector<GraphSpec> small_graphs(std::string_view kind);

// Patterns with a name, as inference engines make them: chains, forks of 1 to 12 branches, decode layers with
// the side chain recorded first or last, programmatic chains; each fork also with one branch of every node
// kind.
std::vector<GraphSpec> designed_graphs();

}  // namespace cglint::gpu
