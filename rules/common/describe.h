// What rules share when they name things in a finding.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/rule.h"

namespace cglint::rules {

// The node as an entity: short kernel name, id in the input, layer where layers are known.
engine::Entity entity_of(const engine::GraphContext& context, ir::NodeId node, std::string_view role);
// The place in the user's source behind a stack: the innermost frame that is not compiler output, Python before native. Where
// compiler output lies nearer to the call, its line follows as a second place. Empty if the stack is unknown.
std::vector<engine::SourceLocation> sources_of(const ir::Recording& recording, ir::StackId stack, std::string_view role);
std::vector<engine::SourceLocation> sources_of(const engine::GraphContext& context, ir::StackId stack, std::string_view role);
std::vector<engine::SourceLocation> sources_of(const engine::GraphContext& context, ir::NodeId node, std::string_view role);
// Where the capture began; where that is unknown, where its first node was made.
std::vector<engine::SourceLocation> capture_sources(const engine::GraphContext& context);
// Index of that frame in the stack; 0 for an unknown stack.
std::size_t user_frame(const ir::Recording& recording, ir::StackId stack);
// Normalised name of a kernel node, kind name of others: stable over runs, shapes and addresses.
std::string stable_name(const engine::GraphContext& context, ir::NodeId node);
// Stable names of `nodes`, consecutive repeats collapsed ("gemm;silu;gemm").
std::string stable_sequence(const engine::GraphContext& context, std::span<const ir::NodeId> nodes);
// "gemm, silu, gemm" with at most `max` names and then "...".
std::string label_list(const engine::GraphContext& context, std::span<const ir::NodeId> nodes, std::size_t max = 4);
std::int32_t layer_of(const engine::GraphContext& context, ir::NodeId node);
inline double to_us(std::int64_t ns) { return static_cast<double>(ns) / 1000.0; }

}  // namespace cglint::rules
