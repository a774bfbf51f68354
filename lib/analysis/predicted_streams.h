// Predicted replay streams of a graph, from creation order and edges alone: adapts analysis/stream_model.h to the IR.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "analysis/stream_graph.h"
#include "analysis/stream_model.h"
#include "ir/graph.h"
#include "ir/recording.h"

namespace cglint::analysis {

struct PredictedStreams {
  bool available = false;                              // false: no edges, no creation order, or no model for a node kind
  std::string note;                                    // why not available, or why weak ("driver 575 untested", ...)
  double confidence = 0;                               // 0..1, the model's measured agreement for the kinds present
  std::uint32_t count = 0;                             // streams that carry activity nodes, also those of child graphs
  base::IdVector<ir::NodeId, std::int32_t> stream;     // 0 = launch stream, -1 = none (a child graph: its nodes have theirs)
};

// One run of the model over a graph of the IR.
struct StreamRun {
  StreamGraphColumns columns;
  StreamPrediction prediction;
};

// Nothing where the graph lacks the facts that the model needs.
std::optional<StreamRun> run_stream_model(const ir::Recording& recording, const ir::Graph& graph);
// What a run says of the graph.
PredictedStreams predicted_streams(const ir::Recording& recording, const ir::Graph& graph, const std::optional<StreamRun>& run);
// Both in one.
PredictedStreams predict_streams(const ir::Recording& recording, const ir::Graph& graph);

}  // namespace cglint::analysis
