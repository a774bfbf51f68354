// Numbers that a known-kernel table computes from one launch: sizes, tile numbers, token counts.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "analysis/kernel_identity.h"
#include "analysis/size_expression.h"
#include "ir/graph.h"

namespace cglint::analysis {

// The value of `expression` (size_expression.h; a table's expressions were checked when it was read) for this launch;
// nullopt if the recording does not tell one of its variables.
std::optional<std::uint64_t> launch_value(std::string_view expression, const ir::Graph& graph,
                                          const ir::KernelNode& kernel, const KernelIdentity& identity);
// The same for one that was parsed before: for millions of launches.
std::optional<std::uint64_t> launch_value(const SizeExpression& expression, const ir::Graph& graph,
                                          const ir::KernelNode& kernel, const KernelIdentity& identity);

}  // namespace cglint::analysis
