// Labels of graph-dump nodes. Two dialects:
//   record: {KERNEL\n| {ID | 0 (topoId: 3) | name\<\<\<1,128,0\>\>\>}\n| {{node handle | func handle} | {0x1 | 0x2}}\n...}
//   plain:  0\nname\n            (flags 0)
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace cglint::import::dot {

// A record label, taken apart. Rows are the fields of the outermost braces; a row's cells are its direct fields, where a
// braced field is a group of leaves. Views point into the label.
class RecordLabel {
 public:
  // False if the braces do not balance or nest deeper than `max_depth`.
  bool parse(std::string_view label, std::uint32_t max_depth = 32);

  // The first leaf: the node's type word.
  [[nodiscard]] std::string_view type() const { return leaves_.empty() ? std::string_view() : leaves_.front().text; }
  // The value of `key`: for {{k1 | k2} | {v1 | v2}} the value in the same place, else the leaf that follows the key, as in
  // {k | v} and {a | {{x | 0} | {y | 0}}}. `nth` counts equal keys. Empty if there is none.
  [[nodiscard]] std::string_view value(std::string_view key, std::size_t nth = 0) const;
  // The leaf that follows the one that value() gave: in {ID | 0 (topoId: 3) | name} the third.
  [[nodiscard]] std::string_view after_value(std::string_view key) const;

  struct Leaf {
    std::string_view text;     // trimmed, escapes untouched
    std::uint32_t row = 0;
    std::uint32_t cell = 0;    // number of the cell in its row
    std::uint32_t place = 0;   // number of the leaf in its cell
    std::uint32_t depth = 0;   // braces around it; 3 and more: inside a braced cell
    [[nodiscard]] bool is_grouped() const { return depth >= 3; }
  };
  [[nodiscard]] const std::vector<Leaf>& leaves() const { return leaves_; }

 private:
  [[nodiscard]] std::size_t value_index(std::string_view key, std::size_t nth) const;
  std::vector<Leaf> leaves_;
};

// "\<", "\>", "\{", "\}", "\|", "\"", "\\", "\ " lose the backslash; other escapes stay.
void unescape(std::string_view text, std::string& out);

struct LaunchConfig {
  ir::Dim3 grid, block;
  std::uint32_t shared_bytes = 0;
};
// Splits "name\<\<\<G,B,S\>\>\>"; `name` gets the escaped name. nullopt if there is no launch configuration.
std::optional<LaunchConfig> split_launch_config(std::string_view cell, std::string_view& name);

// Decimal, or hexadecimal after "0x"; nullopt on anything else or overflow. Text after the number is allowed when it is
// separated by a blank ("0 (topoId: 3)").
std::optional<std::uint64_t> parse_number(std::string_view text);

}  // namespace cglint::import::dot
