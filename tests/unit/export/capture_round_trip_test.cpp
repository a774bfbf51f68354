#include <gtest/gtest.h>

#include <algorithm>
#include <string>

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

}  // namespace
}  // namespace cglint
