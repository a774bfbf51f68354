#include "analysis/signature.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

namespace cglint::analysis {
namespace {

constexpr std::string_view kSpace = " \t";

std::string_view trim(std::string_view text) {
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

bool is_identifier(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '$';
}

bool ends_with_operator(std::string_view text, std::size_t end) {
  constexpr std::string_view kOperator = "operator";
  return end >= kOperator.size() && text.substr(end - kOperator.size(), kOperator.size()) == kOperator &&
         (end == kOperator.size() || !is_identifier(text[end - kOperator.size() - 1]));
}

// Walks over brackets. `depth()` counts open ones; a '>' closes only a '<' on top, and a ')' closes any '<'
// above its
// '(' (it was a comparison). Operator names ("operator<", "operator()", "->") are no brackets.
class BracketWalker {
 public:
  explicit BracketWalker(std::string_view text) : text_(text) {}
  [[nodiscard]] std::size_t depth() const { return stack_.size(); }
  // Consumes the character at `at`; returns how many characters belong together.
  std::size_t step(std::size_t at) {
    const char c = text_[at];
    if ((c == '<' || c == '>' || c == '(' || c == '[') && ends_with_operator(text_, at)) {
      if (c == '(') return text_.substr(at, 2) == "()" ? 2 : open('(');
      if (c == '[') return text_.substr(at, 2) == "[]" ? 2 : open('[');
      std::size_t length = 1;
      while (length < 3 && at + length < text_.size() &&
             (text_[at + length] == c || text_[at + length] == '='))
        ++length;
      // "operator<<int>": the last '<' opens template arguments unless the operator is "<<" followed by '<'
      // or '('.
      if (c == '<' && length == 2 && text_[at + 1] == '<' && at + 2 < text_.size() && text_[at + 2] != '<' &&
          text_[at + 2] != '(' && text_[at + 2] != '=')
        return 1;
      return length;
    }
    if (c == '-' && at + 1 < text_.size() && text_[at + 1] == '>') return 2;
    if (c == '<' || c == '(' || c == '[' || c == '{') return open(c);
    if (c == '>') {
      if (!stack_.empty() && stack_.back() == '<') stack_.pop_back();
    } else if (c == ')' || c == ']' || c == '}') {
      const char want = c == ')' ? '(' : c == ']' ? '[' : '{';
      const auto found = std::find(stack_.rbegin(), stack_.rend(), want);
      if (found != stack_.rend()) stack_.erase(std::prev(found.base()), stack_.end());
    }
    return 1;
  }

 private:
  std::size_t open(char c) {
    stack_.push_back(c);
    return 1;
  }
  std::string_view text_;
  std::string stack_;
};

std::vector<std::string_view> split_list(std::string_view text) {
  std::vector<std::string_view> parts;
  BracketWalker walker(text);
  std::size_t first = 0;
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] == ',' && walker.depth() == 0) {
      parts.push_back(trim(text.substr(first, at - first)));
      first = at + 1;
    }
    at += walker.step(at);
  }
  const std::string_view last = trim(text.substr(std::min(first, text.size())));
  if (!last.empty() || !parts.empty()) parts.push_back(last);
  return parts;
}

// Where "::const"-like qualifiers of a function scope stand: "foo() const::{lambda}".
bool is_scope_qualifier(std::string_view rest) {
  for (const std::string_view qualifier : {"const", "volatile"})
    if (rest.starts_with(qualifier)) {
      const std::string_view after = rest.substr(qualifier.size());
      return after.starts_with("::") || after.starts_with("&") || after.starts_with(" ");
    }
  return false;
}

// The position after the return type. A space at depth 0 ends it, except inside names.
std::size_t name_begin(std::string_view text) {
  std::size_t begin = 0;
  BracketWalker walker(text);
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] == ' ' && walker.depth() == 0) {
      const std::string_view rest = text.substr(at + 1);
      if (!is_scope_qualifier(rest) && !ends_with_operator(text, at)) begin = at + 1;
    }
    at += walker.step(at);
  }
  return begin;
}

// Removes what compilers and tools append: "[clone .x]", "(.kd)", ".kd", trailing const.
std::string_view strip_suffixes(std::string_view text) {
  while (true) {
    text = trim(text);
    bool changed = false;
    if (text.ends_with("]")) {
      const std::size_t clone = text.rfind(" [clone");
      if (clone != std::string_view::npos) {
        text = text.substr(0, clone);
        changed = true;
      }
    }
    for (const std::string_view suffix : {"(.kd)", "[.kd]", ".kd", " const", " volatile"})
      if (text.ends_with(suffix) && text.size() > suffix.size()) {
        text.remove_suffix(suffix.size());
        changed = true;
      }
    if (!changed) return text;
  }
}

NameComponent parse_component(std::string_view text) {
  NameComponent component;
  BracketWalker walker(text);
  std::size_t base_end = text.size();
  std::size_t group_begin = 0;
  char group = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t before = walker.depth();
    const std::size_t length = walker.step(at);
    const std::size_t after = walker.depth();
    if (before == 0 && after == 1 && (text[at] == '<' || text[at] == '(') && at > 0) {
      base_end = std::min(base_end, at);
      group = text[at];
      group_begin = at + 1;
    } else if (before == 1 && after == 0 && group != 0) {
      if (group == '<' && component.template_arguments.empty())
        component.template_arguments = split_list(text.substr(group_begin, at - group_begin));
      else if (group == '(')
        component.has_parameters = true;
      group = 0;
    }
    at += length;
  }
  if (group == '<')  // cut off inside
    component.template_arguments = split_list(text.substr(std::min(group_begin, text.size())));
  component.base = trim(text.substr(0, base_end));
  // A return type of an inner function template, or qualifiers.
  for (const std::string_view suffix : {" const", " volatile"})
    if (component.base.ends_with(suffix)) component.base.remove_suffix(suffix.size());
  return component;
}

}  // namespace

SplitName split_name(std::string_view demangled) {
  SplitName split;
  std::string_view text = strip_suffixes(demangled);
  // The last top-level (...) that ends the text, not "(anonymous namespace)" and not the "()" of
  // "operator()".
  if (text.ends_with(")")) {
    BracketWalker walker(text);
    std::size_t open_at = std::string_view::npos, close_at = std::string_view::npos;
    std::size_t candidate = 0;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t before = walker.depth();
      const std::size_t length = walker.step(at);
      if (before == 0 && walker.depth() == 1 && text[at] == '(') candidate = at;
      if (before == 1 && walker.depth() == 0 && text[at] == ')') {
        open_at = candidate;
        close_at = at;
      }
      at += length;
    }
    if (close_at == text.size() - 1 && open_at > 0 && text.substr(open_at) != "(anonymous namespace)") {
      split.has_parameters = true;
      split.parameters = split_list(text.substr(open_at + 1, close_at - open_at - 1));
      if (split.parameters.size() == 1 && split.parameters[0] == "void") split.parameters.clear();
      text = trim(text.substr(0, open_at));
    }
  }
  text = text.substr(std::min(name_begin(text), text.size()));
  BracketWalker walker(text);
  std::size_t first = 0;
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] == ':' && at + 1 < text.size() && text[at + 1] == ':' && walker.depth() == 0) {
      if (at > first) split.components.push_back(parse_component(text.substr(first, at - first)));
      at += 2;
      first = at;
      continue;
    }
    at += walker.step(at);
  }
  if (first < text.size()) split.components.push_back(parse_component(text.substr(first)));
  return split;
}

ParameterType parse_parameter_type(std::string_view type) {
  ParameterType result;
  type = trim(type);
  const auto drop_qualifiers = [](std::string_view text) {
    bool is_const = false;
    for (bool changed = true; changed;) {
      changed = false;
      text = trim(text);
      for (const std::string_view word : {"const", "volatile", "__restrict__", "__restrict", "restrict"})
        if (text.ends_with(word) &&
            (text.size() == word.size() || !is_identifier(text[text.size() - word.size() - 1]))) {
          is_const |= word == "const";
          text.remove_suffix(word.size());
          changed = true;
        }
    }
    return std::pair(trim(text), is_const);
  };
  const std::string_view bare = drop_qualifiers(type).first;
  if (bare.ends_with("*") && !bare.ends_with("(*")) {
    result.is_pointer = true;
    auto [pointee, east_const] = drop_qualifiers(bare.substr(0, bare.size() - 1));
    result.points_to_pointer = pointee.ends_with("*");
    bool west_const = false;
    if (pointee.starts_with("const ")) {
      pointee = trim(pointee.substr(6));
      west_const = true;
    }
    // "const T**": the const belongs to the innermost element, not to what the outer pointer points at.
    result.points_to_const = east_const || (west_const && !result.points_to_pointer);
    result.pointee = pointee;
    return result;
  }
  std::string_view value = bare;
  if (value.starts_with("const ")) value = trim(value.substr(6));
  result.is_scalar = element_bytes(value) != 0;
  return result;
}

unsigned element_bytes(std::string_view type) {
  static constexpr auto kSizes = std::to_array<std::pair<std::string_view, unsigned>>({
      {"bool", 1},
      {"char", 1},
      {"signed char", 1},
      {"unsigned char", 1},
      {"int8_t", 1},
      {"uint8_t", 1},
      {"std::byte", 1},
      {"short", 2},
      {"unsigned short", 2},
      {"int16_t", 2},
      {"uint16_t", 2},
      {"int", 4},
      {"unsigned int", 4},
      {"unsigned", 4},
      {"int32_t", 4},
      {"uint32_t", 4},
      {"long", 8},
      {"unsigned long", 8},
      {"long long", 8},
      {"unsigned long long", 8},
      {"int64_t", 8},
      {"uint64_t", 8},
      {"size_t", 8},
      {"float", 4},
      {"double", 8},
      {"half", 2},
      {"__half", 2},
      {"__half2", 4},
      {"half2", 4},
      {"__nv_bfloat16", 2},
      {"nv_bfloat16", 2},
      {"__nv_bfloat162", 4},
      {"__hip_bfloat16", 2},
      {"std::bfloat16_t", 2},
      {"std::float16_t", 2},
      {"_Float16", 2},
      {"__bf16", 2},
      {"c10::Half", 2},
      {"c10::BFloat16", 2},
      {"cutlass::bfloat16_t", 2},
      {"cutlass::half_t", 2},
      {"__nv_fp8_e4m3", 1},
      {"__nv_fp8_e5m2", 1},
      {"c10::Float8_e4m3fn", 1},
      {"c10::Float8_e5m2", 1},
      {"cutlass::float_e4m3_t", 1},
      {"cutlass::float_e5m2_t", 1},
      {"float2", 8},
      {"float4", 16},
      {"int2", 8},
      {"int4", 16},
      {"uint2", 8},
      {"uint4", 16},
      {"double2", 16},
      {"longlong2", 16},
      {"ulonglong2", 16},
      {"ushort4", 8},
      {"uchar4", 4},
      {"c10::complex<float>", 8},
      {"c10::complex<double>", 16},
      {"__int128", 16},
      {"unsigned __int128", 16},
  });
  for (const auto& [name, bytes] : kSizes)
    if (name == type) return bytes;
  return 0;
}

}  // namespace cglint::analysis
