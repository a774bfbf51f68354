// The blocks of a framework's caching allocator as lines of the capture file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace cglint::capture {

// A block is six words: base address, size in bytes, state (0 active, 1 given back but still in use by a
// stream, 2 free), the handle of its stream, an index into the names of pools, and when it was last handed out: an active
// one has been held since. As told by the framework the last is a time (microseconds since 1970), as written a sequence
// number; 0: not known.
inline constexpr std::size_t kBlockWords = 6;
inline constexpr std::size_t kBlockSince = 5;

// What is wrong with the words, or "".
std::string check_blocks(std::span<const std::uint64_t> words, std::size_t pool_count);

// Appends the lines of one moment; `words` are good. Pool "": the general one, from which anybody is served.
void write_blocks(std::span<const std::uint64_t> words, std::span<const std::string_view> pools, std::uint64_t sequence, std::string& out);

// Appends a loss: graphs that promised the state of the allocator do not have it.
void write_no_blocks(std::string_view why, std::string& out);

}  // namespace cglint::capture
