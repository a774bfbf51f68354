// Predicted replay streams of a graph, from creation order and edges alone: adapts analysis/stream_model.h to the IR.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

PredictedStreams predict_streams(const ir::Recording& recording, const ir::Graph& graph);

}  // namespace cglint::analysis
