#include "analysis/predicted_streams.h"

namespace cglint::analysis {

PredictedStreams predict_streams(const ir::Recording&, const ir::Graph& graph) {
  PredictedStreams result;
  result.stream.assign(graph.node_count(), -1);
  result.note = "this build has no stream model";
  return result;
}

}  // namespace cglint::analysis
