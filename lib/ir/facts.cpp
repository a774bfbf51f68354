#include "ir/facts.h"

#include <array>

namespace cglint::ir {
namespace {

struct FactText {
  Fact fact;
  std::string_view name;
  std::string_view missing;
};

constexpr std::array<FactText, kFactCount> kFacts = {{
    {Fact::nodes, "nodes", "the input has no node rows (graph launches are recorded as a whole)"},
    {Fact::creation_order, "creation_order", "the input does not give the nodes' creation order"},
    {Fact::edges, "edges", "the input has no dependency edges"},
    {Fact::edge_data, "edge_data", "the input does not tell programmatic edges from full ones"},
    {Fact::kernel_names, "kernel_names", "the input has no kernel names"},
    {Fact::launch_config, "launch_config", "the input has no launch configurations"},
    {Fact::kernel_attributes, "kernel_attributes", "the input has no kernel attributes"},
    {Fact::copy_params, "copy_params", "the input has no copy and fill addresses"},
    {Fact::kernel_params, "kernel_params", "the input has no kernel parameters"},
    {Fact::allocations, "allocations", "the input has no allocation timeline"},
    {Fact::allocator_state, "allocator_state", "allocator state unknown"},
    {Fact::capture_streams, "capture_streams", "the input does not give the capture-time streams"},
    {Fact::sync_ops, "sync_ops", "the input has no capture-time synchronisation calls"},
    {Fact::nvtx, "nvtx", "the input has no NVTX ranges"},
    {Fact::source_frames, "source_frames", "the input has no source frames"},
    {Fact::node_identity, "node_identity", "replay operations are not tied to nodes by id"},
    {Fact::replay_streams, "replay_streams", "the input has no replay timeline with streams"},
    {Fact::replay_times, "replay_times", "the input has no replay times"},
    {Fact::untraced_times, "untraced_times", "the input has no untraced replay times"},
    {Fact::eager_launches, "eager_launches", "the input has no launches outside capture"},
    {Fact::kernel_images, "kernel_images", "the input has no facts about kernel machine code"},
    {Fact::measured_access, "measured_access", "the input has no measured read and write sets"},
    {Fact::instantiate_info, "instantiate_info", "the input has no instantiation facts"},
    {Fact::graph_key, "graph_key", "the input does not say what the graph is keyed by"},
    {Fact::capture_status, "capture_status", "the input does not say how the capture ended"},
    {Fact::peer_ranks, "peer_ranks", "no captures of other ranks were given"},
    {Fact::moe_config_table, "moe_config_table", "no table of tuned launch configurations was given (--moe-config)"},
}};

constexpr bool table_is_in_order() {
  for (int i = 0; i < kFactCount; ++i)
    if (kFacts[static_cast<std::size_t>(i)].fact != static_cast<Fact>(i)) return false;
  return true;
}
static_assert(table_is_in_order());

}  // namespace

std::string_view fact_name(Fact fact) { return kFacts[static_cast<std::size_t>(fact)].name; }

std::optional<Fact> fact_from_name(std::string_view name) {
  for (const FactText& text : kFacts)
    if (text.name == name) return text.fact;
  return std::nullopt;
}

std::string_view fact_missing_phrase(Fact fact) { return kFacts[static_cast<std::size_t>(fact)].missing; }

}  // namespace cglint::ir
