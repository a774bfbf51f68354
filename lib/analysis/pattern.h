// A small regular-expression matcher for the known-kernel tables. Users write patterns and kernel names come
// from files that nobody checked, so matching takes time proportional to (pattern size x text length) at
// worst, never recurses and never throws; std::regex promises none of that.
//
// Supported, as in ECMAScript: literals, `.`, classes `[a-z_]` `[^...]`, `\d \D \w \W \s \S \b`, escaped
// punctuation, groups `(...)` `(?:...)`, `|`, `*`, `+`, `?`, `{n}`, `{n,}`, `{n,m}` (at most 64), `^` and
// `$`. No captures, no back references, no look-around: those are refused.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace cglint::analysis {

class Pattern {
 public:
  // ErrorCode::malformed with the byte offset in `source` for a pattern that does not parse, ErrorCode::limit
  // for one that is too large.
  static base::Result<Pattern> compile(std::string_view source);

  // True if the pattern occurs anywhere in `text`; `^` and `$` anchor it.
  [[nodiscard]] bool matches(std::string_view text) const;
  [[nodiscard]] const std::string& source() const { return source_; }

 private:
  friend class PatternCompiler;
  enum class Op : std::uint8_t { set, split, jump, line_begin, line_end, word_boundary, accept };
  struct Instruction {
    Op op = Op::accept;
    std::uint32_t
        a = 0,
        b = 0;  // set: index of the set, next; split: both targets; others: a is the next instruction
  };
  using CharSet = std::array<std::uint64_t, 4>;

  std::string source_;
  std::vector<std::string> required_;  // every match contains one of these; empty if nothing is known
  std::vector<Instruction> program_;
  std::vector<CharSet> sets_;
};

}  // namespace cglint::analysis
