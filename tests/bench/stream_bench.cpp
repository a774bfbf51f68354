// Growth of the stream prediction and of the order search: layers of two branches, the side branch recorded
// first.
#include <benchmark/benchmark.h>

#include "analysis/order_search.h"
#include "analysis/stream_model.h"
#include "unit/analysis/stream_capture.h"

namespace {

using cglint::test_support::CaptureSketch;

CaptureSketch layers(std::int64_t nodes) {
  CaptureSketch sketch;
  sketch.launch(0);
  while (static_cast<std::int64_t>(sketch.kinds.size()) < nodes) {
    sketch.wait(1, 0);
    sketch.launch(1);
    sketch.launch(0, 2);
    sketch.wait(0, 1);
    sketch.launch(0);
  }
  return sketch;
}

void predict(benchmark::State& state) {
  const CaptureSketch sketch = layers(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(cglint::analysis::predict_streams(sketch.graph(), 580).count);
}
BENCHMARK(predict)->Arg(1000)->Arg(10000)->Arg(100000)->Unit(benchmark::kMillisecond);

// A chain of child graphs of two branches, 100 nodes each.
void predict_child_graphs(benchmark::State& state) {
  using cglint::analysis::StreamNodeKind;
  const CaptureSketch body = layers(99);
  std::vector<StreamNodeKind> kinds;
  std::vector<cglint::analysis::StreamEdge> edges;
  std::vector<std::uint32_t> owner;
  const auto boxes = static_cast<std::uint32_t>(state.range(0) / 100);
  for (std::uint32_t box = 0; box < boxes; ++box) {
    kinds.push_back(StreamNodeKind::child_graph);
    owner.push_back(cglint::analysis::kNoNode);
    if (box > 0) edges.push_back({box - 1, box});
  }
  for (std::uint32_t box = 0; box < boxes; ++box) {
    const auto base = static_cast<std::uint32_t>(kinds.size());
    kinds.insert(kinds.end(), body.kinds.begin(), body.kinds.end());
    owner.resize(kinds.size(), box);
    for (const auto& edge : body.edges) edges.push_back({base + edge.from, base + edge.to, edge.type});
  }
  for (auto _ : state)
    benchmark::DoNotOptimize(cglint::analysis::predict_streams({kinds, edges, owner}, 580).count);
}
BENCHMARK(predict_child_graphs)->Arg(100000)->Unit(benchmark::kMillisecond);

// Every edge within a stream is programmatic, as in a graph captured with programmatic launches throughout.
void predict_programmatic(benchmark::State& state) {
  CaptureSketch sketch = layers(state.range(0));
  for (auto& edge : sketch.edges) {
    if (sketch.capture_stream[edge.from] == sketch.capture_stream[edge.to])
      edge.type = cglint::analysis::StreamEdgeType::programmatic;
  }
  for (auto _ : state) benchmark::DoNotOptimize(cglint::analysis::predict_streams(sketch.graph(), 580).count);
}
BENCHMARK(predict_programmatic)->Arg(100000)->Unit(benchmark::kMillisecond);

void search(benchmark::State& state) {
  const CaptureSketch sketch = layers(state.range(0));
  cglint::analysis::OrderSearchInput input;
  input.graph = sketch.graph();
  input.capture_stream = sketch.capture_stream;
  input.needed_streams = 2;
  for (auto _ : state) benchmark::DoNotOptimize(cglint::analysis::search_order(input).streams_after);
}
BENCHMARK(search)->Arg(1000)->Arg(3000)->Arg(10000)->Arg(100000)->Unit(benchmark::kMillisecond);

}  // namespace
