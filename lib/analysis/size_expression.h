// Sizes in bytes that a known-kernel table computes from a launch: "p4 * p5 * e0".
//
//   pN        value of scalar parameter N (sign-extended by its recorded width)
//   pN@B:W    integer of W bytes (1, 2, 4 or 8; default 4) at byte B of parameter N, a struct passed by value
//   tN        integer, boolean or enumerator given as template argument N of the kernel
//   eN        bytes of one element of parameter N, from its type
//   gx gy gz  grid; bx by bz  block
//   numbers, + - * / (division rounds up), parentheses, min(a, b)
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace cglint::analysis {

class SizeExpression {
 public:
  enum class Variable : std::uint8_t {
    parameter,
    element,
    grid_x,
    grid_y,
    grid_z,
    block_x,
    block_y,
    block_z,
    field,
    template_argument
  };
  // The index of a `field` in one number.
  struct Field {
    std::uint32_t slot = 0, offset_bytes = 0, size_bytes = 4;
    [[nodiscard]] std::uint32_t index() const;
    static Field from_index(std::uint32_t index);
  };
  // The value of a variable (`index` for parameter, element, field and template argument), or nullopt if the launch does not tell.
  using Lookup = std::function<std::optional<std::int64_t>(Variable variable, std::uint32_t index)>;

  // An error also where a divisor without variables is not positive.
  static base::Result<SizeExpression> parse(std::string_view text);
  // nullopt if a variable is unknown, on overflow, division by zero or a negative result.
  [[nodiscard]] std::optional<std::uint64_t> evaluate(const Lookup& lookup) const;

 private:
  friend class SizeExpressionParser;
  struct Step {  // postfix
    enum class Op : std::uint8_t { constant, variable, add, subtract, multiply, divide, minimum } op = Op::constant;
    Variable variable = Variable::parameter;
    std::int64_t value = 0;  // constant, or index of the variable
  };
  // nullopt on overflow, and for a quotient that is no size.
  static std::optional<std::int64_t> apply(Step::Op op, std::int64_t left, std::int64_t right);
  std::vector<Step> steps_;
};

}  // namespace cglint::analysis
