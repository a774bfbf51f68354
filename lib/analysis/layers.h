// Which layer of the model a node belongs to: from NVTX ranges where there are any, else from the repeating
// pattern of kernels, with a confidence.
#pragma once

#include <cstdint>
#include <vector>

#include "analysis/kernel_identity.h"
#include "ir/graph.h"
#include "ir/recording.h"

namespace cglint::analysis {

struct Layers {
  enum class Source : std::uint8_t { none, nvtx, period } source = Source::none;
  std::uint32_t count = 0;
  double confidence = 0;           // 0..1; 1 for NVTX; for a period, the share of nodes that repeat exactly
  std::uint32_t period_nodes = 0;  // nodes per layer; 0 where layers differ
  // -1: before, between or after the layers. NVTX: the number in the range name, so a pipeline stage may
  // start at 30; period: counted from 0.
  base::IdVector<ir::NodeId, std::int32_t> layer;
};

// NVTX: range names with a number as a component of its own ("layer.12", "model.layers.12.mlp", "layer_12",
// "Layer[12]"). Of several such ranges the outermost counts whose numbers take two values or more and leave
// few gaps; a name that speaks of layers or blocks goes before others.
//
// Period: the node order is cut at kernels that occur once per layer; pieces must hold nearly the same
// kernels (function and launch configuration, else normalised name), in any order, so that branches that a
// trace interleaves differently from layer to layer do no harm. Groups of unlike layers are cut further where
// the pieces are alike; first or last layers of another kind are added where enough kernels of a layer occur
// there too. Where there are dependency edges,
// pieces that do not lead into one another are equal branches, not layers. Without a clear answer: none.
Layers detect_layers(const ir::Recording& recording, const ir::Graph& graph,
                     const KernelIdentities& identities);

// The numbers in an NVTX range name that stand as components of their own, with the text before each (earlier
// numbers as '#'): "model.layers.12.experts.3" -> {"model.layers.", 12}, {"model.layers.#.experts.", 3}.
struct NumberedName {
  std::string prefix;
  std::int64_t number = 0;
};
std::vector<NumberedName> numbers_in_name(std::string_view name);

}  // namespace cglint::analysis
