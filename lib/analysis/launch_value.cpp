#include "analysis/launch_value.h"

#include <algorithm>
#include <functional>

#include "base/check.h"

namespace cglint::analysis {
namespace {

std::int64_t sign_extend(std::uint64_t value, unsigned bytes) {
  const unsigned shift = 64 - 8 * std::min(bytes, 8U);
  return static_cast<std::int64_t>(value << shift) >> shift;
}

std::optional<std::int64_t> field_of(const ir::Graph& graph, const ir::KernelNode& kernel, const SizeExpression::Field& field) {
  for (const ir::ParamWord& word : graph.params_of(kernel)) {
    if (word.slot != field.slot || word.offset_bytes > field.offset_bytes) continue;
    const std::uint32_t into = field.offset_bytes - word.offset_bytes;
    if (into + field.size_bytes > word.size_bytes) continue;
    return sign_extend(word.value >> (8 * into), field.size_bytes);
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::uint64_t> launch_value(std::string_view text, const ir::Graph& graph, const ir::KernelNode& kernel,
                                          const KernelIdentity& identity) {
  const base::Result<SizeExpression> expression = SizeExpression::parse(text);
  CGLINT_CHECK(expression.has_value());
  return launch_value(*expression, graph, kernel, identity);
}

std::optional<std::uint64_t> launch_value(const SizeExpression& expression, const ir::Graph& graph, const ir::KernelNode& kernel,
                                          const KernelIdentity& identity) {
  using Variable = SizeExpression::Variable;
  const auto lookup = [&](Variable variable, std::uint32_t index) -> std::optional<std::int64_t> {
    switch (variable) {
      case Variable::parameter:
        for (const ir::ParamWord& word : graph.params_of(kernel))
          if (word.slot == index && word.offset_bytes == 0) return sign_extend(word.value, word.size_bytes);
        return std::nullopt;
      case Variable::field:
        return field_of(graph, kernel, SizeExpression::Field::from_index(index));
      case Variable::template_argument:
        return index < identity.template_numbers.size() ? identity.template_numbers[index] : std::nullopt;
      case Variable::element:
        if (index >= identity.params.size() || identity.params[index].element_bytes == 0) return std::nullopt;
        return identity.params[index].element_bytes;
      case Variable::grid_x:
        return kernel.grid.x;
      case Variable::grid_y:
        return kernel.grid.y;
      case Variable::grid_z:
        return kernel.grid.z;
      case Variable::block_x:
        return kernel.block.x;
      case Variable::block_y:
        return kernel.block.y;
      case Variable::block_z:
        return kernel.block.z;
    }
    return std::nullopt;
  };
  return expression.evaluate(std::cref(lookup));  // a reference: takes no memory
}

}  // namespace cglint::analysis
