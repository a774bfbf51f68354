// The IR's graph as the stream model sees it: kinds, and edges by creation index.
#pragma once

#include <cstdint>
#include <vector>

#include "analysis/stream_model.h"
#include "ir/graph.h"
#include "ir/recording.h"

namespace cglint::analysis {

// Owns what a StreamGraph views.
struct StreamGraphColumns {
  std::vector<StreamNodeKind> kinds;
  std::vector<StreamEdge> edges;
  // Copies whose memory kinds the input does not give; taken as copies on the device, which is what
  // frameworks record.
  std::uint32_t assumed_copies = 0;
  std::uint32_t assumed_memsets = 0;  // of unknown size, taken as small
  [[nodiscard]] StreamGraph view() const { return {kinds, edges}; }
};

StreamNodeKind stream_node_kind(const ir::Graph& graph, ir::NodeId node);
StreamGraphColumns stream_graph(const ir::Graph& graph);

// Major version of the driver that recorded the graph ("580.159.04" -> 580); 0 if unknown.
std::uint32_t driver_major(const ir::Recording& recording, const ir::Graph& graph);

}  // namespace cglint::analysis
