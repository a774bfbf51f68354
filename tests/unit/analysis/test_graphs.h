// Graphs for the tests and benchmarks of lib/analysis: small random ones for comparison with brute force, and
// large ones in the shape of a decode step.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "ir/graph_builder.h"
#include "ir/recording.h"

namespace cglint::testing {

using Rng = std::mt19937;

inline std::uint32_t below(Rng& rng, std::uint32_t n) {
  return static_cast<std::uint32_t>(rng() % n);
}
inline bool chance(Rng& rng, std::uint32_t percent) {
  return below(rng, 100) < percent;
}
inline ir::NodeId node(std::uint32_t i) {
  return ir::NodeId(i);
}

inline std::unique_ptr<ir::Graph> finish(ir::GraphBuilder& builder) {
  auto graph = builder.finish();
  CGLINT_CHECK(graph.has_value());
  return std::move(graph).value();
}

// `n` kernels and these edges, all full.
inline std::unique_ptr<ir::Graph> kernels(std::uint32_t n,
                                          const std::vector<std::pair<std::uint32_t, std::uint32_t>>& edges) {
  ir::GraphBuilder builder;
  for (std::uint32_t i = 0; i < n; ++i) builder.add_kernel(ir::kEmptyString, {});
  for (const auto& [from, to] : edges) builder.add_edge(node(from), node(to));
  return finish(builder);
}

struct RandomOptions {
  std::uint32_t max_nodes = 10;
  bool other_kinds = true;  // nodes that are no activity
  bool shuffled = true;     // creation order is not topological
  bool edge_types = false;  // programmatic and launch-order edges
};

// Functions 0..8 of the recording: every combination of `waits` and `triggers`.
inline void add_functions(ir::Recording& recording) {
  for (const ir::Tri wait : {ir::Tri::unknown, ir::Tri::no, ir::Tri::yes})
    for (const ir::Tri trigger : {ir::Tri::unknown, ir::Tri::no, ir::Tri::yes}) {
      ir::Function function;
      function.has_grid_dependency_wait = wait;
      function.has_launch_dependents = trigger;
      recording.functions.push_back(function);
    }
}

inline std::unique_ptr<ir::Graph> random_graph(Rng& rng, const RandomOptions& options) {
  static constexpr ir::NodeKind kKinds[] = {ir::NodeKind::memcpy, ir::NodeKind::memset, ir::NodeKind::empty,
                                            ir::NodeKind::host, ir::NodeKind::event_record};
  const std::uint32_t n = 1 + below(rng, options.max_nodes);
  ir::GraphBuilder builder;
  for (std::uint32_t i = 0; i < n; ++i) {
    if (options.other_kinds && chance(rng, 30)) {
      builder.add_node(kKinds[below(rng, 5)], ir::kEmptyString);
      continue;
    }
    ir::KernelNode kernel;
    if (!chance(rng, 10)) kernel.function = ir::FunctionId(below(rng, 9));
    builder.add_kernel(ir::kEmptyString, kernel);
    if (chance(rng, 5)) builder.set_enabled(node(i), false);
  }
  std::vector<std::uint32_t> place(n);
  for (std::uint32_t i = 0; i < n; ++i) place[i] = i;
  if (options.shuffled && chance(rng, 50)) std::shuffle(place.begin(), place.end(), rng);
  const std::uint32_t density = 5 + below(rng, 60);
  const std::uint32_t reach = 1 + below(rng, n);  // how far edges go
  for (std::uint32_t i = 0; i < n; ++i)
    for (std::uint32_t j = i + 1; j < n && j <= i + reach; ++j) {
      if (!chance(rng, density)) continue;
      ir::EdgeData data;
      if (options.edge_types && chance(rng, 60)) {
        const bool launch_order = chance(rng, 30);
        data.from_port = launch_order ? ir::kPortLaunchOrder : ir::kPortProgrammatic;
        data.type = ir::EdgeType::programmatic;
      }
      builder.add_edge(node(place[i]), node(place[j]), data);
    }
  return finish(builder);
}

// A decode step: `layers` times a chain of `chain` kernels, then a fork into `branches` branches of `branch`
// kernels that meet in one kernel.
inline std::unique_ptr<ir::Graph> decode_graph(std::uint32_t layers, std::uint32_t chain,
                                               std::uint32_t branches, std::uint32_t branch) {
  ir::GraphBuilder builder;
  const auto add = [&] { return builder.add_kernel(ir::kEmptyString, {}); };
  ir::NodeId last;
  for (std::uint32_t layer = 0; layer < layers; ++layer) {
    for (std::uint32_t i = 0; i < chain; ++i) {
      const ir::NodeId next = add();
      if (last.is_valid()) builder.add_edge(last, next);
      last = next;
    }
    std::vector<ir::NodeId> ends;
    for (std::uint32_t b = 0; b < branches; ++b) {
      ir::NodeId end = last;
      for (std::uint32_t i = 0; i < branch; ++i) {
        const ir::NodeId next = add();
        builder.add_edge(end, next);
        end = next;
      }
      ends.push_back(end);
    }
    last = add();
    for (const ir::NodeId end : ends) builder.add_edge(end, last);
  }
  return finish(builder);
}

// `n` kernels, each after `in_degree` random ones before it.
inline std::unique_ptr<ir::Graph> wide_graph(std::uint32_t n, std::uint32_t in_degree, std::uint32_t seed) {
  Rng rng(seed);
  ir::GraphBuilder builder;
  for (std::uint32_t i = 0; i < n; ++i) {
    builder.add_kernel(ir::kEmptyString, {});
    for (std::uint32_t k = 0; k < in_degree && i > 0; ++k) builder.add_edge(node(below(rng, i)), node(i));
  }
  return finish(builder);
}

}  // namespace cglint::testing
