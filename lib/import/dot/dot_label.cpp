#include "import/dot/dot_label.h"

#include <charconv>

namespace cglint::import::dot {
namespace {

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n\f\v";
  const std::size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

}  // namespace

bool RecordLabel::parse(std::string_view label, std::uint32_t max_depth) {
  leaves_.clear();
  label = trim(label);
  if (label.size() < 2 || label.front() != '{' || label.back() != '}') return false;
  std::uint32_t depth = 0;  // 1 inside the outermost braces
  Leaf current;
  std::size_t start = 0;
  bool after_group = false;  // the field that a '}' just closed holds no text of its own
  const auto flush = [&](std::size_t end) {
    const std::string_view text = trim(label.substr(start, end - start));
    if (after_group && text.empty()) return;
    current.text = text;
    current.depth = depth;
    leaves_.push_back(current);
    ++current.place;
  };
  for (std::size_t i = 0; i < label.size(); ++i) {
    const char c = label[i];
    if (c == '\\') {
      ++i;
    } else if (c == '{') {
      if (++depth > max_depth) return false;
      if (depth <= 3) current.place = 0;
      start = i + 1;
      after_group = false;
    } else if (c == '}') {
      if (depth == 0) return false;
      flush(i);
      --depth;
      start = i + 1;
      after_group = true;
      if (depth == 0 && i + 1 != label.size()) return false;
    } else if (c == '|') {
      if (depth == 0) return false;
      flush(i);
      if (depth == 1) {
        ++current.row;
        current.cell = 0;
        current.place = 0;
      } else if (depth == 2) {
        ++current.cell;
        current.place = 0;
      }
      start = i + 1;
      after_group = false;
    }
  }
  return depth == 0;
}

std::size_t RecordLabel::value_index(std::string_view key, std::size_t nth) const {
  for (std::size_t i = 0; i < leaves_.size(); ++i) {
    const Leaf& leaf = leaves_[i];
    if (leaf.text != key) continue;
    if (nth != 0) {
      --nth;
      continue;
    }
    if (leaf.depth == 3) {
      // {{k1 | k2} | {v1 | v2}}: the next cell of the row has as many leaves.
      std::size_t keys_end = i;
      while (keys_end < leaves_.size() && leaves_[keys_end].row == leaf.row && leaves_[keys_end].cell == leaf.cell)
        ++keys_end;
      std::size_t values_end = keys_end;
      while (values_end < leaves_.size() && leaves_[values_end].row == leaf.row &&
             leaves_[values_end].cell == leaf.cell + 1 && leaves_[values_end].is_grouped())
        ++values_end;
      const std::size_t keys = leaves_[keys_end - 1].place + std::size_t{1};
      if (values_end - keys_end == keys) return keys_end + leaf.place;
    }
    return i + 1;
  }
  return leaves_.size();
}

std::string_view RecordLabel::value(std::string_view key, std::size_t nth) const {
  const std::size_t index = value_index(key, nth);
  return index < leaves_.size() ? leaves_[index].text : std::string_view();
}

std::string_view RecordLabel::after_value(std::string_view key) const {
  const std::size_t index = value_index(key, 0);
  return index + 1 < leaves_.size() && leaves_[index + 1].row == leaves_[index].row ? leaves_[index + 1].text
                                                                                   : std::string_view();
}

void unescape(std::string_view text, std::string& out) {
  out.clear();
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 1 < text.size() &&
        std::string_view("<>{}|\"\\ ").find(text[i + 1]) != std::string_view::npos)
      ++i;
    out += text[i];
  }
}

std::optional<std::uint64_t> parse_number(std::string_view text) {
  text = trim(text);
  int base = 10;
  if (text.size() > 2 && text[0] == '0' && (text[1] == 'x' || text[1] == 'X')) {
    text.remove_prefix(2);
    base = 16;
  }
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc()) return std::nullopt;
  if (end != text.data() + text.size() && *end != ' ' && *end != '\t' && *end != '\n') return std::nullopt;
  return value;
}

namespace {

// An integer, or \{x,y\} / \{x,y,z\}. Advances `text` behind it.
std::optional<ir::Dim3> parse_dim(std::string_view& text) {
  const auto number = [&](std::uint32_t& value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc()) return false;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    return true;
  };
  ir::Dim3 dim;
  if (!text.starts_with("\\{")) {
    if (!number(dim.x)) return std::nullopt;
    return dim;
  }
  text.remove_prefix(2);
  if (!number(dim.x)) return std::nullopt;
  for (std::uint32_t* const part : {&dim.y, &dim.z}) {
    if (!text.starts_with(',')) break;
    text.remove_prefix(1);
    if (!number(*part)) return std::nullopt;
  }
  if (!text.starts_with("\\}")) return std::nullopt;
  text.remove_prefix(2);
  return dim;
}

}  // namespace

std::optional<LaunchConfig> split_launch_config(std::string_view cell, std::string_view& name) {
  constexpr std::string_view kOpen = "\\<\\<\\<";
  constexpr std::string_view kClose = "\\>\\>\\>";
  name = cell;
  const std::size_t open = cell.rfind(kOpen);
  if (open == std::string_view::npos || !cell.ends_with(kClose)) return std::nullopt;
  std::string_view inner = cell.substr(open + kOpen.size(), cell.size() - open - kOpen.size() - kClose.size());
  LaunchConfig config;
  const auto grid = parse_dim(inner);
  if (!grid || !inner.starts_with(',')) return std::nullopt;
  inner.remove_prefix(1);
  const auto block = parse_dim(inner);
  if (!block || !inner.starts_with(',')) return std::nullopt;
  inner.remove_prefix(1);
  const auto [end, error] = std::from_chars(inner.data(), inner.data() + inner.size(), config.shared_bytes);
  if (error != std::errc() || end != inner.data() + inner.size()) return std::nullopt;
  config.grid = *grid;
  config.block = *block;
  name = cell.substr(0, open);
  return config;
}

}  // namespace cglint::import::dot
