// One rule on graphs with many edges beside longer paths, and on long and wide ones. "s_per_item" is the time by nodes + edges: it
// should hardly grow with the size.
#include <benchmark/benchmark.h>

#include "analysis/kernel_table.h"
#include "engine/rule.h"
#include "unit/analysis/test_graphs.h"

namespace {

using namespace cglint;
using namespace cglint::testing;

struct Sink final : engine::FindingSink {
  std::size_t findings = 0, not_checked_count = 0;
  void report(engine::Finding, std::string_view) override { ++findings; }
  void not_checked(ir::FactSet, std::string_view) override { ++not_checked_count; }
  void not_checked_although_asked_for(std::string_view) override { ++not_checked_count; }
};

using Edges = std::vector<std::pair<std::uint32_t, std::uint32_t>>;

Edges complete(std::uint32_t n) {
  Edges edges;
  for (std::uint32_t to = 0; to < n; ++to)
    for (std::uint32_t from = 0; from < to; ++from) edges.emplace_back(from, to);
  return edges;
}
// A chain whose first node also leads to all others.
Edges chain_from_one(std::uint32_t n) {
  Edges edges;
  for (std::uint32_t i = 0; i + 1 < n; ++i) {
    edges.emplace_back(i, i + 1);
    if (i > 0) edges.emplace_back(0, i + 1);
  }
  return edges;
}
// A chain with edges from the k-th node to the k-th from the end.
Edges nested(std::uint32_t n) {
  Edges edges;
  for (std::uint32_t i = 0; i + 1 < n; ++i) {
    edges.emplace_back(i, i + 1);
    if (2 * i + 2 < n) edges.emplace_back(i, n - 1 - i);
  }
  return edges;
}
// Each node with 20 random earlier ones.
Edges random20(std::uint32_t n) {
  Rng rng(1);
  Edges edges;
  for (std::uint32_t to = 1; to < n; ++to)
    for (int k = 0; k < 20; ++k) edges.emplace_back(below(rng, to), to);
  return edges;
}
Edges fan(std::uint32_t n) {
  Edges edges;
  for (std::uint32_t i = 1; i + 1 < n; ++i) {
    edges.emplace_back(0, i);
    edges.emplace_back(i, n - 1);
  }
  return edges;
}

void rule(benchmark::State& state, Edges (*edges)(std::uint32_t), const char* code) {
  ir::Recording recording;
  auto made = kernels(static_cast<std::uint32_t>(state.range(0)), edges(static_cast<std::uint32_t>(state.range(0))));
  made->facts = {ir::Fact::nodes, ir::Fact::edges, ir::Fact::creation_order};
  const ir::GraphId id = recording.graphs.push_back(std::move(made));
  const ir::Graph& graph = *recording.graphs[id];
  const analysis::KernelIdentities identities(recording, analysis::KernelTable::builtin());
  const engine::Rule& checked = *engine::find_rule(code);
  const engine::Config config;
  Sink sink;
  for (auto _ : state) {
    analysis::Analyses analyses(recording, id, identities);
    sink = {};
    checked.check({recording, id, graph, analyses, config, checked.info()}, sink);
  }
  const auto items = static_cast<double>(graph.node_count() + graph.edge_count());
  state.counters["findings"] = static_cast<double>(sink.findings);
  state.counters["not_checked"] = static_cast<double>(sink.not_checked_count);
  state.counters["s_per_item"] = benchmark::Counter(items, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

BENCHMARK_CAPTURE(rule, CG201_complete, complete, "CG201")->Arg(300)->Arg(600)->Arg(1200)->Arg(2400)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(rule, CG201_chain_from_one, chain_from_one, "CG201")->Arg(5000)->Arg(20000)->Arg(80000)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(rule, CG201_nested, nested, "CG201")->Arg(5000)->Arg(20000)->Arg(80000)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(rule, CG201_fan, fan, "CG201")->Arg(5000)->Arg(20000)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(rule, CG102_random20, random20, "CG102")->Arg(5000)->Arg(20000)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(rule, CG102_fan, fan, "CG102")->Arg(5000)->Arg(20000)->Unit(benchmark::kMillisecond);

}  // namespace
