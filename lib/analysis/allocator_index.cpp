#include "analysis/allocator_index.h"

#include <algorithm>
#include <limits>

#include "base/saturate.h"

namespace cglint::analysis {

AllocatorIndex::AllocatorIndex(const ir::Recording& recording, const AllocatorIndex& older) {
  const std::vector<ir::AllocatorBlock>& blocks = recording.allocator_blocks;
  if (older.seen_ <= blocks.size()) *this = older;
  const auto middle = static_cast<std::ptrdiff_t>(extents_.size());
  for (std::size_t i = seen_; i < blocks.size(); ++i) {
    if (blocks[i].size_bytes == 0) continue;
    extents_.emplace_back(blocks[i].base, base::saturating_add(blocks[i].base, blocks[i].size_bytes));
  }
  std::sort(extents_.begin() + middle, extents_.end());
  std::inplace_merge(extents_.begin(), extents_.begin() + middle, extents_.end());
  extents_.erase(std::unique(extents_.begin(), extents_.end()), extents_.end());
  seen_ = blocks.size();
}

std::uint64_t AllocatorIndex::find_end_around(std::uint64_t address) const {
  auto it = std::upper_bound(extents_.begin(), extents_.end(), std::pair(address, std::numeric_limits<std::uint64_t>::max()));
  for (int looked = 0; it != extents_.begin() && looked < 8; ++looked) {
    --it;
    if (address < it->second) {
      std::uint64_t end = it->second;  // equal bases: the shortest that still contains the address
      for (auto same = it; same->first == it->first; --same) {
        if (address < same->second) end = std::min(end, same->second);
        if (same == extents_.begin()) break;
      }
      return end;
    }
  }
  return 0;
}

bool AllocatorIndex::begins_at(std::uint64_t address) const {
  const auto it = std::lower_bound(extents_.begin(), extents_.end(), std::pair(address, std::uint64_t{0}));
  return it != extents_.end() && it->first == address;
}

}  // namespace cglint::analysis
