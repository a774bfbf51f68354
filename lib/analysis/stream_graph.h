// The IR's graph as the stream model sees it: kinds, and edges by creation index.
#pragma once

#include <cstdint>
#include <vector>

#include "analysis/stream_model.h"
#include "ir/graph.h"
#include "ir/recording.h"

namespace cglint::analysis {

// Owns what a StreamGraph views. The graph's own nodes come first, so that its node i is the model's node i; the
// nodes of child graphs, of which there may be several levels, come behind them.
struct StreamGraphColumns {
  std::vector<StreamNodeKind> kinds;
  std::vector<StreamEdge> edges;
  std::vector<std::uint32_t> owner;  // empty where there is no body
  // Copies whose memory kinds the input does not give; taken as copies on the device, which is what
  // frameworks record.
  std::uint32_t assumed_copies = 0;
  std::uint32_t assumed_memsets = 0;  // of unknown size, taken as small
  [[nodiscard]] StreamGraph view() const { return {kinds, edges, owner}; }
};

StreamNodeKind stream_node_kind(const ir::Graph& graph, ir::NodeId node);
// A child graph whose body is not in the recording is of the kind `other`: nothing can be said about it. The same
// holds for bodies beyond kMaxInlinedNodes (one body that is used often may multiply).
inline constexpr std::size_t kMaxInlinedNodes = 1'000'000;
StreamGraphColumns stream_graph(const ir::Recording& recording, const ir::Graph& graph);

// Major version of the driver that recorded the graph ("580.159.04" -> 580); 0 if unknown.
std::uint32_t driver_major(const ir::Recording& recording, const ir::Graph& graph);

}  // namespace cglint::analysis
