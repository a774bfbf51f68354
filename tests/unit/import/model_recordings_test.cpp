// The recordings of the reference models: decode layers as engines capture them, most edges programmatic, replayed on
// an H200. The predicted streams are those of the replays, node by node.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "analysis/order_search.h"
#include "analysis/predicted_streams.h"
#include "unit/import/import_helpers.h"

namespace cglint {
namespace {

// Whether the operations of a replay are grouped into streams as their nodes are predicted.
bool same_partition(const ir::Graph& graph, const ir::Replay& replay, const analysis::PredictedStreams& predicted) {
  std::map<std::uint64_t, std::int32_t> to_predicted;
  std::map<std::int32_t, std::uint64_t> to_measured;
  for (const ir::ReplayOp& op : graph.ops(replay)) {
    if (!op.node.is_valid()) return false;
    const std::int32_t stream = predicted.stream[op.node];
    if (stream < 0 || to_predicted.emplace(op.stream, stream).first->second != stream) return false;
    if (to_measured.emplace(stream, op.stream).first->second != op.stream) return false;
  }
  return true;
}

TEST(ModelRecordings, EveryReplayHasThePredictedStreams) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(CGLINT_REFERENCE_MODELS)) {
    if (entry.path().string().ends_with(".cgl.jsonl.gz")) paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  std::size_t replays = 0, programmatic = 0, most_streams = 0;
  for (const std::string& path : paths) {
    const auto read = testing::read_with("capture", testing::read_text(path));
    ASSERT_TRUE(read) << path;
    const ir::Recording& recording = *read;
    for (const auto& graph : recording.graphs) {
      if (graph == nullptr || graph->replays.empty() || !graph->facts.contains(ir::Fact::creation_order)) continue;
      const analysis::PredictedStreams predicted = analysis::predict_streams(recording, *graph);
      ASSERT_TRUE(predicted.available) << path << ": " << predicted.note;
      EXPECT_GE(predicted.confidence, 0.99) << path;
      most_streams = std::max<std::size_t>(most_streams, predicted.count);
      for (const ir::EdgeId edge : graph->edges()) programmatic += graph->data(edge).is_programmatic();
      for (const ir::Replay& replay : graph->replays) {
        if (!replay.complete) continue;
        EXPECT_TRUE(same_partition(*graph, replay, predicted)) << path;
        ++replays;
      }
    }
  }
  EXPECT_GE(replays, 25U);
  EXPECT_GE(programmatic, 3000U);
  EXPECT_GE(most_streams, 16U) << "the explosions are among them";
}

// Both branches of k2_full enqueued first take two streams a layer; another order of the same nodes takes three in all.
TEST(ModelRecordings, TheFixSearchBringsTheWorstOfK2ToThreeStreams) {
  for (const auto& [variant, streams] : {std::pair("mla_side_moe_side", 16U), {"mla_side_moe_main", 10U}, {"mla_main_moe_side", 9U}}) {
    const std::string path = std::string(CGLINT_REFERENCE_MODELS) + "/k2_full/recordings/" + variant + ".k2-tp8.b1.l8.cgl.jsonl.gz";
    SCOPED_TRACE(path);
    const auto recording = testing::read_with("capture", testing::read_text(path));
    ASSERT_TRUE(recording);
    std::size_t searched = 0;
    for (const auto& graph : recording->graphs) {
      if (graph == nullptr || graph->replays.empty()) continue;
      const auto run = analysis::run_stream_model(*recording, *graph);
      ASSERT_TRUE(run);
      std::vector<std::uint32_t> label;
      std::vector<std::int32_t> capture_stream;
      for (const ir::NodeId node : graph->nodes()) {
        label.push_back(graph->name[node].index());
        capture_stream.push_back(static_cast<std::int32_t>(graph->capture_stream[node].index()));
      }
      analysis::OrderSearchInput input;
      input.graph = run->columns.view();
      input.label = label;
      input.capture_stream = capture_stream;
      input.needed_streams = 2;  // the graph's width
      const analysis::OrderSearchResult result = analysis::search_order(input);
      EXPECT_EQ(result.streams_before, streams);
      EXPECT_EQ(result.streams_after, 3U);
      EXPECT_FALSE(result.edits.empty());
      ++searched;
    }
    EXPECT_EQ(searched, 1U);
  }
}

}  // namespace
}  // namespace cglint
