// The NVTX ranges that are open on one thread, and the range stacks of captured nodes, each stored once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "capture/stack_table.h"

namespace cglint::capture {

inline constexpr std::size_t kMaxRangeDepth = 64;      // deeper ranges count, but are not named
inline constexpr std::size_t kMaxRangeTextBytes = 512;  // longer names are cut

// One thread's push/pop ranges of all domains, in the order in which they were pushed. Ranges of a domain are
// popped by that domain only. No locks: it is used by its thread alone.
class RangeStack {
 public:
  // Returns the 0-based level of the new range in its domain.
  int push(std::uint64_t domain, std::string_view text);
  // Returns the level of the range that ended, or -1 where the domain has none.
  int pop(std::uint64_t domain);
  // Outermost first.
  [[nodiscard]] std::vector<std::string_view> texts() const;
  // Changes with every push and pop: what was made of texts() may be kept while it is the same.
  [[nodiscard]] std::uint64_t version() const { return version_; }
  [[nodiscard]] bool empty() const { return open_ == 0; }

 private:
  struct Range {
    std::uint64_t domain = 0;
    std::string text;
  };
  std::vector<Range> ranges_;  // the first open_ are open; the others keep their memory
  std::size_t open_ = 0;
  std::uint64_t version_ = 0;
};

inline constexpr std::size_t kMaxRangeStacks = 65536;

// Not thread safe.
class RangeTable {
 public:
  // Outermost first; kNone for no ranges, and for a stack that is one too many.
  std::uint32_t intern(std::span<const std::string_view> texts);
  [[nodiscard]] std::span<const std::string> ranges(std::uint32_t id) const { return stacks_[id]; }
  [[nodiscard]] std::size_t size() const { return stacks_.size(); }
  [[nodiscard]] std::uint64_t refused() const { return refused_; }

 private:
  std::vector<std::vector<std::string>> stacks_;
  std::map<std::vector<std::string>, std::uint32_t> by_texts_;
  std::uint64_t refused_ = 0;
};

}  // namespace cglint::capture
