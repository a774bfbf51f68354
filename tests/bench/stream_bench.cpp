// Growth of the stream prediction and of the order search: layers of two branches, the side branch recorded first.
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
