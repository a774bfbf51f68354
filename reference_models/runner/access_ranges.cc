#include "runner/access_ranges.h"

#include <algorithm>

namespace cglint::models {

std::vector<ByteRange> merged(std::vector<ByteRange> ranges, std::uint64_t gap) {
  std::sort(ranges.begin(), ranges.end(), [](const ByteRange& a, const ByteRange& b) { return a.begin < b.begin; });
  std::vector<ByteRange> out;
  for (const ByteRange& range : ranges) {
    if (range.begin >= range.end) continue;
    if (!out.empty() && range.begin <= out.back().end + gap) {
      out.back().end = std::max(out.back().end, range.end);
    } else {
      out.push_back(range);
    }
  }
  return out;
}

std::vector<ByteRange> changed_ranges(std::vector<ChangedGranule> granules, std::uint64_t base, std::uint64_t gap) {
  std::vector<ByteRange> ranges;
  for (const ChangedGranule& granule : granules) {
    for (std::uint64_t byte = 0; byte < ChangedGranule::kBytes; ++byte) {
      if ((granule.mask[byte / 8] >> (byte % 8) & 1) == 0) continue;
      const std::uint64_t address = base + granule.number * ChangedGranule::kBytes + byte;
      if (!ranges.empty() && ranges.back().end == address) {
        ++ranges.back().end;
      } else {
        ranges.push_back({address, address + 1});
      }
    }
  }
  return merged(std::move(ranges), gap);
}

std::vector<ByteRange> cut_at_borders(std::span<const std::vector<ByteRange>> sets) {
  std::vector<ByteRange> all;
  std::vector<std::uint64_t> borders;
  for (const std::vector<ByteRange>& set : sets) {
    for (const ByteRange& range : set) {
      all.push_back(range);
      borders.push_back(range.begin);
      borders.push_back(range.end);
    }
  }
  std::sort(borders.begin(), borders.end());
  borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
  std::vector<ByteRange> cells;
  for (const ByteRange& range : merged(std::move(all), 0)) {
    auto next = std::upper_bound(borders.begin(), borders.end(), range.begin);
    for (std::uint64_t begin = range.begin; begin < range.end; ++next) {
      cells.push_back({begin, *next});
      begin = *next;
    }
  }
  return cells;
}

}  // namespace cglint::models
