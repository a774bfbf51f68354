// Builds graphs as stream capture does: each kernel depends on its stream's last node and on the events that
// the stream waits for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "analysis/stream_model.h"

namespace cglint::test_support {

struct CaptureSketch {
  std::vector<analysis::StreamNodeKind> kinds;
  std::vector<analysis::StreamEdge> edges;
  std::vector<std::int32_t> capture_stream;

  [[nodiscard]] analysis::StreamGraph graph() const { return {kinds, edges}; }

  // Launches `count` kernels on `stream`; returns the last one.
  std::uint32_t launch(std::size_t stream, std::uint32_t count = 1,
                       analysis::StreamEdgeType type = analysis::StreamEdgeType::full) {
    grow(stream);
    std::uint32_t node = analysis::kNoNode;
    for (std::uint32_t i = 0; i < count; ++i) {
      node = static_cast<std::uint32_t>(kinds.size());
      kinds.push_back(analysis::StreamNodeKind::kernel);
      capture_stream.push_back(static_cast<std::int32_t>(stream));
      std::vector<std::uint32_t>& last = frontier_[stream];
      std::sort(last.begin(), last.end());
      last.erase(std::unique(last.begin(), last.end()), last.end());
      for (const std::uint32_t parent : last)
        edges.push_back({parent, node, last.size() == 1 ? type : analysis::StreamEdgeType::full});
      last.assign(1, node);
    }
    return node;
  }
  // `stream` waits for what `other` has launched so far.
  void wait(std::size_t stream, std::size_t other) {
    grow(std::max(stream, other));
    frontier_[stream].insert(frontier_[stream].end(), frontier_[other].begin(), frontier_[other].end());
  }
  // `stream` waits for one node.
  void wait_node(std::size_t stream, std::uint32_t node) {
    grow(stream);
    frontier_[stream].push_back(node);
  }

 private:
  void grow(std::size_t stream) {
    if (frontier_.size() <= stream) frontier_.resize(stream + 1);
  }
  std::vector<std::vector<std::uint32_t>> frontier_;
};

}  // namespace cglint::test_support
