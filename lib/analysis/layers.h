// Which layer of the model a node belongs to: from NVTX ranges where there are any, else from the repeating pattern of
// kernels, with a confidence.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/graph.h"
#include "ir/recording.h"

namespace cglint::analysis {

struct Layers {
  enum class Source : std::uint8_t { none, nvtx, period } source = Source::none;
  std::uint32_t count = 0;
  double confidence = 0;                               // 0..1; 1 for NVTX; for a period, the share of nodes that repeat exactly
  std::uint32_t period_nodes = 0;                      // nodes per layer; 0 where layers differ
  base::IdVector<ir::NodeId, std::int32_t> layer;      // -1: before, between or after the layers
};

// Uses NVTX range names that end in a number ("layer.12", "layers.12.mlp", "model.layers.12"), else the period.
Layers detect_layers(const ir::Recording& recording, const ir::Graph& graph);

}  // namespace cglint::analysis
