// Changes of text that keep its form, for the fuzz targets whose input is text (DOT, JSON, JSON Lines, rows):
// single bytes changed at random mostly break the syntax, and what lies behind the parser is not reached.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace cglint::fuzz {

// `text` after one to four changes: a number becomes another one, a word or a quoted string one that stands
// elsewhere, two of them change places; a line, or what stands in a pair of brackets, is removed, repeated,
// moved or replaced. What comes in stems from `text` and from `other`, which may be empty. The same arguments
// give the same result; it has at most `max_size` bytes.
std::string mutate_text(std::string_view text, std::string_view other, std::size_t max_size,
                        std::uint32_t seed);

}  // namespace cglint::fuzz
