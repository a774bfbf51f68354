#include "analysis/size_expression.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

namespace cglint::analysis {
namespace {
constexpr int kMaxDepth = 32;
constexpr std::size_t kMaxBytes = 512;
// Values that wait for an operator: at most three for each level of parentheses, a sum, a product and the first of min().
constexpr std::size_t kMaxStack = 3 * (kMaxDepth + 2);
constexpr std::uint32_t kSlotBits = 12, kOffsetBits = 16;
}  // namespace

std::optional<std::int64_t> SizeExpression::apply(Step::Op op, std::int64_t left, std::int64_t right) {
  std::int64_t result = 0;
  switch (op) {
    case Step::Op::add:
      return __builtin_add_overflow(left, right, &result) ? std::nullopt : std::optional(result);
    case Step::Op::subtract:
      return __builtin_sub_overflow(left, right, &result) ? std::nullopt : std::optional(result);
    case Step::Op::minimum:
      return std::min(left, right);
    case Step::Op::multiply:
      return __builtin_mul_overflow(left, right, &result) ? std::nullopt : std::optional(result);
    default:
      if (right <= 0 || left < 0) return std::nullopt;
      return left / right + (left % right != 0 ? 1 : 0);
  }
}

std::uint32_t SizeExpression::Field::index() const {
  const std::uint32_t width = size_bytes == 8 ? 3 : size_bytes == 4 ? 2 : size_bytes == 2 ? 1 : 0;
  return slot | offset_bytes << kSlotBits | width << (kSlotBits + kOffsetBits);
}

SizeExpression::Field SizeExpression::Field::from_index(std::uint32_t index) {
  return {index & ((1U << kSlotBits) - 1), index >> kSlotBits & ((1U << kOffsetBits) - 1), 1U << (index >> (kSlotBits + kOffsetBits))};
}

class SizeExpressionParser {
 public:
  explicit SizeExpressionParser(std::string_view text) : text_(text) {}
  base::Result<SizeExpression> run() {
    if (text_.size() > kMaxBytes)
      return base::make_error(base::ErrorCode::limit, "size expression is too long");
    sum(0);
    skip_space();
    if (!failed_ && at_ < text_.size()) failed_ = true;
    if (bad_divisor_)
      return base::make_error(base::ErrorCode::malformed,
                              "size expression '" + std::string(text_) + "' divides by " + std::to_string(*bad_divisor_) + ": it never gives a size");
    if (failed_)
      return base::make_error(
          base::ErrorCode::malformed,
          "size expression '" + std::string(text_) + "' does not parse at byte " + std::to_string(at_), at_);
    return std::move(expression_);
  }

 private:
  using Step = SizeExpression::Step;
  using Variable = SizeExpression::Variable;
  void skip_space() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  bool take(char c) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  // Works out what is constant along the way: a divisor that no launch can make positive is a mistake.
  void emit(Step step) {
    if (failed_) return;
    expression_.steps_.push_back(step);
    if (step.op == Step::Op::constant || step.op == Step::Op::variable) {
      constants_.push_back(step.op == Step::Op::constant ? std::optional(step.value) : std::nullopt);
      return;
    }
    CGLINT_CHECK(constants_.size() >= 2);
    const std::optional<std::int64_t> right = constants_.back();
    constants_.pop_back();
    std::optional<std::int64_t>& left = constants_.back();
    if (step.op == Step::Op::divide && right && *right <= 0) {
      bad_divisor_ = right;
      failed_ = true;
    }
    left = left && right ? SizeExpression::apply(step.op, *left, *right) : std::nullopt;
  }
  void sum(int depth) {
    product(depth);
    while (!failed_) {
      if (take('+')) {
        product(depth);
        emit({Step::Op::add, {}, 0});
      } else if (take('-')) {
        product(depth);
        emit({Step::Op::subtract, {}, 0});
      } else {
        return;
      }
    }
  }
  void product(int depth) {
    factor(depth);
    while (!failed_) {
      if (take('*')) {
        factor(depth);
        emit({Step::Op::multiply, {}, 0});
      } else if (take('/')) {
        factor(depth);
        emit({Step::Op::divide, {}, 0});
      } else {
        return;
      }
    }
  }
  std::int64_t number() {
    std::int64_t value = 0;
    const std::size_t first = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
      if (at_ - first >= 15) {
        failed_ = true;
        return 0;
      }
      value = value * 10 + (text_[at_++] - '0');
    }
    if (at_ == first) failed_ = true;
    return value;
  }
  void factor(int depth) {
    skip_space();
    if (failed_ || at_ >= text_.size() || depth > kMaxDepth) {
      failed_ = true;
      return;
    }
    const char c = text_[at_];
    if (c == '(') {
      ++at_;
      sum(depth + 1);
      if (!take(')')) failed_ = true;
    } else if (text_.substr(at_, 4) == "min(") {
      at_ += 4;
      sum(depth + 1);
      if (!take(',')) failed_ = true;
      if (!failed_) sum(depth + 1);
      if (!take(')')) failed_ = true;
      emit({Step::Op::minimum, {}, 0});
    } else if (c == 'p' || c == 'e' || c == 't') {
      ++at_;
      const std::int64_t index = number();
      if (index > 65535) failed_ = true;
      if (c == 't') {
        emit({Step::Op::variable, Variable::template_argument, index});
        return;
      }
      if (c == 'p' && at_ < text_.size() && text_[at_] == '@') {
        ++at_;
        SizeExpression::Field field;
        const std::int64_t offset = number();
        std::int64_t width = 4;
        if (at_ < text_.size() && text_[at_] == ':') {
          ++at_;
          width = number();
        }
        if (index >= 1 << kSlotBits || offset >= 1 << kOffsetBits || (width != 1 && width != 2 && width != 4 && width != 8)) {
          failed_ = true;
          return;
        }
        field.slot = static_cast<std::uint32_t>(index);
        field.offset_bytes = static_cast<std::uint32_t>(offset);
        field.size_bytes = static_cast<std::uint32_t>(width);
        emit({Step::Op::variable, Variable::field, field.index()});
        return;
      }
      emit({Step::Op::variable, c == 'p' ? Variable::parameter : Variable::element, index});
    } else if (c == 'g' || c == 'b') {
      const char axis = at_ + 1 < text_.size() ? text_[at_ + 1] : ' ';
      if (axis < 'x' || axis > 'z') {
        failed_ = true;
        return;
      }
      at_ += 2;
      emit({Step::Op::variable,
            static_cast<Variable>(static_cast<int>(c == 'g' ? Variable::grid_x : Variable::block_x) +
                                  (axis - 'x')),
            0});
    } else {
      const std::int64_t value = number();
      emit({Step::Op::constant, {}, value});
    }
  }

  std::string_view text_;
  std::size_t at_ = 0;
  bool failed_ = false;
  std::optional<std::int64_t> bad_divisor_;
  std::vector<std::optional<std::int64_t>> constants_;  // values of the operands so far, where no variable is in them
  SizeExpression expression_;
};

base::Result<SizeExpression> SizeExpression::parse(std::string_view text) {
  return SizeExpressionParser(text).run();
}

std::optional<std::uint64_t> SizeExpression::evaluate(const Lookup& lookup) const {
  std::array<std::int64_t, kMaxStack> stack;
  std::size_t depth = 0;
  for (const Step& step : steps_) {
    CGLINT_CHECK(depth < kMaxStack);
    if (step.op == Step::Op::constant) {
      stack[depth++] = step.value;
      continue;
    }
    if (step.op == Step::Op::variable) {
      const std::optional<std::int64_t> value = lookup(step.variable, static_cast<std::uint32_t>(step.value));
      if (!value) return std::nullopt;
      stack[depth++] = *value;
      continue;
    }
    CGLINT_CHECK(depth >= 2);
    const std::int64_t right = stack[--depth];
    const std::optional<std::int64_t> result = apply(step.op, stack[depth - 1], right);
    if (!result) return std::nullopt;
    stack[depth - 1] = *result;
  }
  if (depth != 1 || stack[0] < 0) return std::nullopt;
  return static_cast<std::uint64_t>(stack[0]);
}

}  // namespace cglint::analysis
