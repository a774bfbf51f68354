// Analyses on decode graphs (layers of 12 kernels in a chain, then 4 branches of 3, then a join) and on wide
// random graphs of 1,000, 10,000 and 100,000 nodes.
#include <benchmark/benchmark.h>

#include <map>

#include "analysis/critical_path.h"
#include "analysis/fork_join.h"
#include "analysis/node_times.h"
#include "analysis/overlap.h"
#include "analysis/reachability.h"
#include "analysis/replay_streams.h"
#include "analysis/width.h"
#include "unit/analysis/test_graphs.h"
#include "unit/analysis/test_replays.h"

namespace cglint::analysis {
namespace {

using namespace cglint::testing;

struct Case {
  std::unique_ptr<ir::Graph> graph;
  TopologicalOrder order;
  explicit Case(std::unique_ptr<ir::Graph> g) : graph(std::move(g)), order(topological_order(*graph)) {}
};

const Case& decode(std::int64_t nodes) {
  static std::map<std::int64_t, Case> cases;
  const auto found = cases.find(nodes);
  if (found != cases.end()) return found->second;
  return cases.emplace(nodes, decode_graph(static_cast<std::uint32_t>(nodes / 25), 12, 4, 3)).first->second;
}
const Case& wide(std::int64_t nodes) {
  static std::map<std::int64_t, Case> cases;
  const auto found = cases.find(nodes);
  if (found != cases.end()) return found->second;
  return cases.emplace(nodes, wide_graph(static_cast<std::uint32_t>(nodes), 2, 1)).first->second;
}

void report(benchmark::State& state, const Reachability& reach) {
  state.counters["MiB"] = static_cast<double>(reach.memory_bytes()) / (1 << 20);
  state.counters["chains"] = static_cast<double>(reach.chain_count());
}

void topology(benchmark::State& state) {
  const Case& c = decode(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(topological_order(*c.graph));
}
void reachability_decode(benchmark::State& state) {
  const Case& c = decode(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(starts_after(*c.graph, c.order));
  report(state, starts_after(*c.graph, c.order));
}
void reachability_wide(benchmark::State& state) {
  const Case& c = wide(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(starts_after(*c.graph, c.order));
  report(state, starts_after(*c.graph, c.order));
}
template <const Case& (*kCase)(std::int64_t)>
void reachability_query(benchmark::State& state) {
  const Case& c = kCase(state.range(0));
  const Reachability reach = starts_after(*c.graph, c.order);
  Rng rng(1);
  const auto n = static_cast<std::uint32_t>(c.graph->node_count());
  for (auto _ : state) benchmark::DoNotOptimize(reach.reaches(node(below(rng, n)), node(below(rng, n))));
}
template <const Case& (*kCase)(std::int64_t)>
void implied_edges(benchmark::State& state) {
  const Case& c = kCase(state.range(0));
  const Reachability reach = starts_after(*c.graph, c.order);
  for (auto _ : state) benchmark::DoNotOptimize(transitively_implied_edges(*c.graph, c.order, reach));
}
template <const Case& (*kCase)(std::int64_t)>
void width(benchmark::State& state) {
  const Case& c = kCase(state.range(0));
  Width result;
  for (auto _ : state) result = width_of(*c.graph, c.order);
  state.counters["width"] = result.count;
  state.counters["exact"] = result.exact ? 1 : 0;
  state.counters["steps"] = static_cast<double>(result.steps);
}
template <const Case& (*kCase)(std::int64_t)>
void fork_join(benchmark::State& state) {
  const Case& c = kCase(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(find_fork_join_regions(*c.graph, c.order));
}
void critical_path(benchmark::State& state) {
  const Case& c = decode(state.range(0));
  const NodeTimes none;
  for (auto _ : state) benchmark::DoNotOptimize(analysis::critical_path(*c.graph, c.order, none));
}

// 100 replays, branches on streams of their own.
void replays(benchmark::State& state) {
  const auto graph = decode_graph(static_cast<std::uint32_t>(state.range(0) / 25), 12, 4, 3);
  graph->facts = {ir::Fact::replay_times, ir::Fact::replay_streams};
  Rng rng(1);
  for (int r = 0; r < 100; ++r) {
    ir::Replay replay;
    replay.ops = {static_cast<std::uint32_t>(graph->replay_ops.size()),
                  static_cast<std::uint32_t>(graph->node_count())};
    std::int64_t now = 0;
    for (const ir::NodeId v : graph->nodes()) {
      const std::uint32_t place = v.index() % 25;
      graph->replay_ops.push_back(
          op(v, now, now + 2000 + below(rng, 500), place < 12 ? 0 : 1 + (place - 12) / 3));
      now += 1000;
    }
    graph->replays.push_back(replay);
  }
  const TopologicalOrder order = topological_order(*graph);
  const auto regions = find_fork_join_regions(*graph, order);
  for (auto _ : state) {
    benchmark::DoNotOptimize(node_times(*graph));
    benchmark::DoNotOptimize(replay_streams(*graph));
    benchmark::DoNotOptimize(region_overlaps(*graph, regions));
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(graph->replay_ops.size()));
}

void sizes(benchmark::internal::Benchmark* b) {
  b->Arg(1'000)->Arg(10'000)->Arg(20'000)->Arg(100'000)->Unit(benchmark::kMillisecond);
}

BENCHMARK(topology)->Apply(sizes);
BENCHMARK(reachability_decode)->Apply(sizes);
BENCHMARK(reachability_wide)->Apply(sizes);
BENCHMARK(reachability_query<decode>)->Arg(1'000)->Arg(100'000);
BENCHMARK(reachability_query<wide>)->Arg(1'000)->Arg(20'000)->Arg(100'000);
BENCHMARK(implied_edges<decode>)->Apply(sizes);
BENCHMARK(implied_edges<wide>)->Apply(sizes);
BENCHMARK(width<decode>)->Apply(sizes);
BENCHMARK(width<wide>)->Apply(sizes);
BENCHMARK(fork_join<decode>)->Apply(sizes);
BENCHMARK(fork_join<wide>)->Apply(sizes);
BENCHMARK(critical_path)->Apply(sizes);
BENCHMARK(replays)->Apply(sizes);

}  // namespace
}  // namespace cglint::analysis
