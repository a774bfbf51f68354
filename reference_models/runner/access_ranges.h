// Byte ranges of measured accesses, on the host.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runner/access_kernels.h"

namespace cglint::models {

// Half-open.
struct ByteRange {
  std::uint64_t begin = 0, end = 0;
  bool operator==(const ByteRange&) const = default;
};

// The ranges of changed bytes of the memory at `base`, ascending; those with at most `gap` bytes between them become one.
std::vector<ByteRange> changed_ranges(std::vector<ChangedGranule> granules, std::uint64_t base, std::uint64_t gap);
// Sorted and merged where they touch, overlap or have at most `gap` bytes between them.
std::vector<ByteRange> merged(std::vector<ByteRange> ranges, std::uint64_t gap);
// The largest ranges that lie in or outside each of `sets` as a whole, of all bytes that are in one: cut at every border.
std::vector<ByteRange> cut_at_borders(std::span<const std::vector<ByteRange>> sets);

}  // namespace cglint::models
