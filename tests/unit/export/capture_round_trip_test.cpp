#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "export/capture_writer.h"
#include "import/capture/capture_reader.h"
#include "support/deep_equal.h"
#include "support/random_recording.h"

namespace cglint {
namespace {

std::string write(const ir::Recording& recording, const exporter::CaptureWriterOptions& options) {
  std::string bytes;
  auto stats = exporter::write_capture(recording, exporter::make_string_sink(bytes), options);
  EXPECT_TRUE(stats.has_value());
  return bytes;
}

ir::Recording read(const std::string& bytes, const import::ReadOptions& options = {}) {
  const auto source = import::Source::from_memory(bytes, "test", options.limits);
  auto recording = import::read_capture(*source, options);
  if (!recording) {
    ADD_FAILURE() << recording.error().to_string();
    return {};
  }
  return std::move(*recording);
}

exporter::CaptureWriterOptions exact(exporter::Compression compression = exporter::Compression::none) {
  exporter::CaptureWriterOptions options;
  options.compression = compression;
  options.merge_equal = false;
  return options;
}

TEST(CaptureRoundTrip, RandomRecordingsComeBackEqual) {
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    const ir::Recording original = test::random_recording(seed);
    const auto compression = static_cast<exporter::Compression>(seed % 3);
    const std::string bytes = write(original, exact(compression));
    const ir::Recording once = read(bytes);
    ASSERT_EQ(test::difference(original, once), "") << "seed " << seed;
    // What has been read is written as the same bytes again, but for graphs whose bodies' order was the
    // generator's.
    const std::string again = write(once, exact(compression));
    const ir::Recording twice = read(again);
    ASSERT_EQ(test::difference(once, twice), "") << "seed " << seed;
    ASSERT_EQ(write(twice, exact(compression)), again) << "seed " << seed;
  }
}

TEST(CaptureRoundTrip, MergingKeepsEverythingOfDifferentGraphs) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const ir::Recording original = test::random_recording(seed);
    const ir::Recording once = read(write(original, {}));
    ASSERT_EQ(test::difference(original, once), "") << "seed " << seed;
  }
}

TEST(CaptureRoundTrip, HandsGraphsOverOneByOne) {
  const ir::Recording original = test::random_recording(7);
  const std::string bytes = write(original, exact());
  std::string streamed;
  {
    exporter::CaptureWriter writer(exporter::make_string_sink(streamed), exact());
    import::ReadOptions options;
    bool begun = false;
    std::size_t most_alive = 0;
    options.on_graph = [&](ir::Recording& recording, ir::GraphId id) {
      if (!begun) {
        EXPECT_TRUE(writer.begin(recording).has_value());
      }
      begun = true;
      EXPECT_NE(recording.graphs[id], nullptr);
      EXPECT_TRUE(writer.write_graph(recording, id).has_value());
      std::size_t alive = 0;
      for (const auto& graph : recording.graphs) alive += graph != nullptr ? 1 : 0;
      most_alive = std::max(most_alive, alive);
      recording.graphs[id].reset();
    };
    const ir::Recording rest = read(bytes, options);
    ASSERT_TRUE(begun);
    for (const auto& graph : rest.graphs) EXPECT_EQ(graph, nullptr);
    EXPECT_LT(most_alive, rest.graphs.size());
    EXPECT_TRUE(writer.finish(rest).has_value());
  }
  ir::Recording copied = read(streamed);
  copied.has_timeline = original.has_timeline;  // the header was written before the trace was seen
  EXPECT_EQ(test::difference(original, copied), "");
}

// A recording in which every captured graph has a twin that was captured later, under another key.
ir::Recording with_twins(std::uint64_t seed, std::size_t& twins) {
  ir::Recording recording = test::random_recording(seed);
  twins = 0;
  for (const ir::GraphId id : recording.graphs.ids()) {
    const ir::Graph& graph = *recording.graphs[id];
    if (graph.info.role == ir::GraphRole::body || graph.info.role == ir::GraphRole::eager) continue;
    auto twin = std::make_unique<ir::Graph>(graph);
    for (std::uint64_t& sequence : twin->sequence) sequence += 1'000'000;
    for (std::uint64_t& node_id : twin->source_id) node_id ^= 0x5555;
    for (ir::SyncOp& op : twin->sync_ops) op.event += 64;
    twin->info.key = recording.intern("twin of " + std::to_string(id.index()));
    twin->info.batch_size = 99;
    recording.graphs.push_back(std::move(twin));
    ++twins;
  }
  return recording;
}

TEST(CaptureMerge, EqualGraphsAreStoredOnceAndNothingElseIs) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(seed);
    std::size_t twins = 0;
    const ir::Recording original = with_twins(seed, twins);
    std::string bytes;
    const auto stats = exporter::write_capture(original, exporter::make_string_sink(bytes), {});
    ASSERT_TRUE(stats.has_value());
    const ir::Recording merged = read(bytes);
    ASSERT_EQ(merged.graphs.size(), original.graphs.size() - twins);
    EXPECT_EQ(stats->graphs, merged.graphs.size());
    std::size_t replays = 0, original_replays = 0, instances = 0, original_instances = 0, seen = 0;
    for (const auto& graph : original.graphs) {
      replays += graph->replays.size();
      original_instances += graph->info.instances;
    }
    for (const auto& graph : merged.graphs) {
      original_replays += graph->replays.size();
      instances += graph->info.instances;
      for (const ir::GraphInfo& info : graph->instance_infos)
        seen += merged.text(info.key).starts_with("twin of ") && info.batch_size == 99 ? 1 : 0;
    }
    EXPECT_EQ(replays, original_replays);
    EXPECT_EQ(instances, original_instances);
    EXPECT_EQ(seen, twins);
    // One more round changes nothing.
    EXPECT_EQ(test::difference(merged, read(write(merged, {}))), "");
  }
}

TEST(CaptureMerge, ADifferenceInAnyPropertyKeepsGraphsApart) {
  const auto changes = std::vector<std::pair<const char*, std::function<bool(ir::Recording&, ir::Graph&)>>>{
      {"grid", [](ir::Recording&, ir::Graph& g) { return !g.kernels.empty() && ++g.kernels[0].grid.x != 0; }},
      {"priority", [](ir::Recording&, ir::Graph& g) { return !g.kernels.empty() && ++g.kernels[0].priority != 0; }},
      {"parameter", [](ir::Recording&, ir::Graph& g) { return !g.params.empty() && ++g.params[0].value != 0; }},
      {"copy", [](ir::Recording&, ir::Graph& g) { return !g.memcpys.empty() && ++g.memcpys[0].width_bytes != 0; }},
      {"fill", [](ir::Recording&, ir::Graph& g) { return !g.memsets.empty() && ++g.memsets[0].value != 0; }},
      {"edge", [](ir::Recording&, ir::Graph& g) { return !g.edge_data.empty() && ++g.edge_data.raw()[0].to_port < 255; }},
      {"stream", [](ir::Recording&, ir::Graph& g) {
         if (g.capture_stream.empty() || !g.capture_stream.raw()[0].is_valid()) return false;
         g.capture_stream.raw()[0] = ir::StreamId();
         return true;
       }},
      {"name", [](ir::Recording& r, ir::Graph& g) { g.name.raw()[0] = r.intern("another"); return true; }},
      {"enabled", [](ir::Recording&, ir::Graph& g) {
         if (g.enabled.empty()) return false;
         g.enabled.raw()[0] ^= 1;
         return true;
       }},
      {"facts", [](ir::Recording&, ir::Graph& g) {
         const bool had = g.facts.contains(ir::Fact::nvtx);
         had ? g.facts.erase(ir::Fact::nvtx) : g.facts.insert(ir::Fact::nvtx);
         return true;
       }},
  };
  for (const auto& [what, change] : changes) {
    SCOPED_TRACE(what);
    int changed = 0;
    for (std::uint64_t seed = 1; seed <= 20 && changed < 3; ++seed) {
      std::size_t twins = 0;
      ir::Recording original = with_twins(seed, twins);
      if (twins == 0 || !change(original, *original.graphs.raw().back())) continue;
      ++changed;
      EXPECT_EQ(read(write(original, {})).graphs.size(), original.graphs.size() - twins + 1) << seed;
    }
    EXPECT_GT(changed, 0);
  }
}

TEST(CaptureMerge, WorksWhenGraphsAreDroppedOneByOne) {
  std::size_t twins = 0;
  const std::string bytes = write(with_twins(5, twins), exact());
  std::string streamed;
  exporter::CaptureWriter writer(exporter::make_string_sink(streamed), {});
  import::ReadOptions options;
  bool begun = false;
  options.on_graph = [&](ir::Recording& recording, ir::GraphId id) {
    if (!begun) {
      ASSERT_TRUE(writer.begin(recording).has_value());
    }
    begun = true;
    ASSERT_TRUE(writer.write_graph(recording, id).has_value());
    recording.graphs[id].reset();
  };
  const ir::Recording rest = read(bytes, options);
  ASSERT_TRUE(writer.finish(rest).has_value());
  EXPECT_EQ(writer.stats().graphs, rest.graphs.size() - twins);
  const ir::Recording merged = read(streamed);
  EXPECT_EQ(merged.graphs.size(), rest.graphs.size() - twins);
}

}  // namespace
}  // namespace cglint
