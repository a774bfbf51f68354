// Blocks of a recording's allocators by address. The list of blocks may be as long as all snapshots of a process together, and every
// graph of a recording asks it, so it is sorted once for all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "ir/recording.h"

namespace cglint::analysis {

class AllocatorIndex {
 public:
  AllocatorIndex() = default;
  // The blocks of `recording` as it is now. `older`: an index of the same recording at an earlier moment, whose order is used.
  AllocatorIndex(const ir::Recording& recording, const AllocatorIndex& older);

  // End of the innermost block that contains `address`; 0 if there is none. Blocks that a later snapshot
  // split lie inside the earlier one: the nearest base before the address belongs to the innermost.
  [[nodiscard]] std::uint64_t end_around(std::uint64_t address) const { return extents_.empty() ? 0 : find_end_around(address); }
  // Whether some block begins there. Blocks without bytes do not count.
  [[nodiscard]] bool begins_at(std::uint64_t address) const;
  // How many of the recording's blocks it knows.
  [[nodiscard]] std::size_t seen() const { return seen_; }

 private:
  [[nodiscard]] std::uint64_t find_end_around(std::uint64_t address) const;

  std::vector<std::pair<std::uint64_t, std::uint64_t>> extents_;  // [base, end), ascending, each once
  std::size_t seen_ = 0;
};

}  // namespace cglint::analysis
