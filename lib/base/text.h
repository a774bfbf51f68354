// Text helpers for messages.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace cglint::base {

// `text` made safe for a terminal and for one line: control characters, DEL and invalid UTF-8 become \xNN, and more
// than `max_bytes` are cut in the middle with "...". Kernel names come from files and may hold anything.
std::string printable(std::string_view text, std::size_t max_bytes = 200);

// The candidate closest to `word` (at most a third of its letters differ), or "".
std::string_view closest(std::string_view word, std::span<const std::string_view> candidates);

// "1 node", "2 nodes", "3 branches": the plural is given where it is not word + "s".
std::string count_of(std::size_t count, std::string_view word, std::string_view plural = {});

// True if `bytes` is valid UTF-8.
bool is_valid_utf8(std::string_view bytes);

}  // namespace cglint::base
