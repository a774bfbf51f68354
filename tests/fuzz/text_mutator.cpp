#include "text_mutator.h"

#include <array>
#include <charconv>
#include <random>
#include <vector>

namespace cglint::fuzz {
namespace {

struct Span {
  std::size_t begin = 0;
  std::size_t end = 0;
};

// Where the parts of a text lie that can be exchanged for each other.
struct Parts {
  std::vector<Span> numbers;
  std::vector<Span> strings;   // with their quotes
  std::vector<Span> words;     // outside of quotes
  std::vector<Span> lines;     // with their line feeds
  std::vector<Span> brackets;  // with what they enclose; of both kinds
};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_word(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '.';
}

Parts parts_of(std::string_view text) {
  Parts parts;
  std::vector<std::size_t> open;
  std::size_t line = 0;
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    const std::size_t begin = i++;
    if (c == '"') {
      while (i < text.size() && text[i] != '"' && text[i] != '\n')
        i += text[i] == '\\' && i + 1 < text.size() ? 2 : 1;
      if (i < text.size() && text[i] == '"') parts.strings.push_back({begin, ++i});
    } else if (is_word(c) || (c == '-' && i < text.size() && is_digit(text[i]))) {
      while (i < text.size() && is_word(text[i])) ++i;
      (is_digit(c) || c == '-' ? parts.numbers : parts.words).push_back({begin, i});
    } else if (c == '{' || c == '[') {
      open.push_back(begin);
    } else if ((c == '}' || c == ']') && !open.empty()) {
      parts.brackets.push_back({open.back(), i});
      open.pop_back();
    } else if (c == '\n') {
      parts.lines.push_back({line, i});
      line = i;
    }
  }
  if (line < text.size()) parts.lines.push_back({line, text.size()});
  return parts;
}

class Mutation {
 public:
  Mutation(std::string_view other, std::uint32_t seed) : other_(other), random_(seed) {}

  std::string apply(std::string text) {
    const Parts parts = parts_of(text);
    switch (below(8)) {
      case 0:
      case 1:
        return change_number(text, parts);
      case 2:
        return exchange(text, parts, &Parts::strings);
      case 3:
        return exchange(text, parts, &Parts::numbers);
      case 4:
        return exchange(text, parts, &Parts::words);
      case 5:
        return rearrange(text, parts, &Parts::lines, "");
      default:
        return rearrange(text, parts, &Parts::brackets, ",");
    }
  }

  std::size_t below(std::size_t n) { return n == 0 ? 0 : static_cast<std::size_t>(random_() % n); }

 private:
  std::string_view other_;
  std::mt19937 random_;

  Span pick(const std::vector<Span>& spans) { return spans[below(spans.size())]; }
  static std::string_view in(std::string_view text, Span span) {
    return text.substr(span.begin, span.end - span.begin);
  }
  static std::string replaced(std::string_view text, Span span, std::string_view by) {
    std::string out(text.substr(0, span.begin));
    return out.append(by).append(text.substr(span.end));
  }

  // A part of this text or of the other one.
  std::string_view material(std::string_view text, const Parts& parts, std::vector<Span> Parts::*kind) {
    if (!other_.empty() && below(2) == 0) {
      const Parts others = parts_of(other_);
      if (!(others.*kind).empty()) return in(other_, pick(others.*kind));
    }
    return in(text, pick(parts.*kind));
  }

  std::string change_number(std::string_view text, const Parts& parts) {
    if (parts.numbers.empty()) return std::string(text);
    constexpr std::array<std::string_view, 18> kLimits = {"0",
                                                          "1",
                                                          "-1",
                                                          "255",
                                                          "65535",
                                                          "65536",
                                                          "2147483647",
                                                          "2147483648",
                                                          "4294967295",
                                                          "4294967296",
                                                          "9007199254740993",
                                                          "9223372036854775807",
                                                          "9223372036854775808",
                                                          "18446744073709551615",
                                                          "0.5",
                                                          "1e308",
                                                          "-0.0",
                                                          "0x7f0000000000"};
    const Span span = pick(parts.numbers);
    const std::string_view old = in(text, span);
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(old.data(), old.data() + old.size(), value);
    if (error != std::errc() || end != old.data() + old.size() || below(3) == 0)
      return replaced(text, span, kLimits[below(kLimits.size())]);
    const auto bits = static_cast<std::uint64_t>(value);
    constexpr std::array<std::uint64_t, 4> kSteps = {1, 2, 16, 4096};
    const std::uint64_t step = kSteps[below(kSteps.size())];
    const std::array<std::uint64_t, 4> next = {bits + step, bits - step, bits * 2, bits / 2};
    return replaced(text, span, std::to_string(static_cast<std::int64_t>(next[below(next.size())])));
  }

  // A part becomes another of its kind, or two change places.
  std::string exchange(std::string_view text, const Parts& parts, std::vector<Span> Parts::*kind) {
    const std::vector<Span>& spans = parts.*kind;
    if (spans.empty()) return std::string(text);
    Span a = pick(spans);
    Span b = pick(spans);
    if (below(3) != 0 || a.begin == b.begin) return replaced(text, a, material(text, parts, kind));
    if (b.begin < a.begin) std::swap(a, b);
    std::string out(text.substr(0, a.begin));
    out.append(in(text, b))
        .append(text.substr(a.end, b.begin - a.end))
        .append(in(text, a))
        .append(text.substr(b.end));
    return out;
  }

  // A part is removed, repeated, put elsewhere or replaced. `separator` stands between two that follow each
  // other.
  std::string rearrange(std::string_view text, const Parts& parts, std::vector<Span> Parts::*kind,
                        std::string_view separator) {
    const std::vector<Span>& spans = parts.*kind;
    if (spans.empty()) return std::string(text);
    const Span span = pick(spans);
    const auto after = [&](Span at, std::string_view what) {
      std::string out(text.substr(0, at.end));
      return out.append(separator).append(what).append(text.substr(at.end));
    };
    switch (below(5)) {
      case 0: {  // with one separator
        Span gone = span;
        if (!separator.empty() && text.substr(gone.end).starts_with(separator))
          gone.end += separator.size();
        else if (!separator.empty() && text.substr(0, gone.begin).ends_with(separator))
          gone.begin -= separator.size();
        return replaced(text, gone, "");
      }
      case 1:
        return after(span, in(text, span));
      case 2:
        return after(span, material(text, parts, kind));
      case 3:
        return replaced(text, span, material(text, parts, kind));
      default: {
        const Span target = pick(spans);
        if (target.end <= span.begin)
          return replaced(after(target, in(text, span)),
                          {span.begin + separator.size() + (span.end - span.begin),
                           span.end + separator.size() + (span.end - span.begin)},
                          "");
        if (target.begin >= span.end) return replaced(after(target, in(text, span)), span, "");
        return exchange(text, parts, kind);
      }
    }
  }
};

}  // namespace

std::string mutate_text(std::string_view text, std::string_view other, std::size_t max_size,
                        std::uint32_t seed) {
  Mutation mutation(other, seed);
  std::string out(text);
  for (std::size_t left = 1 + mutation.below(4); left > 0; --left) {
    std::string next = mutation.apply(out);
    if (next.size() <= max_size) out = std::move(next);
  }
  if (out.size() > max_size) out.resize(max_size);
  return out;
}

}  // namespace cglint::fuzz
