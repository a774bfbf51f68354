#include "capture/range_stack.h"

#include <algorithm>
#include <utility>

namespace cglint::capture {

int RangeStack::push(std::uint64_t domain, std::string_view text) {
  ++version_;
  const auto level = static_cast<int>(std::count_if(
      ranges_.begin(), ranges_.begin() + static_cast<std::ptrdiff_t>(open_),
      [&](const Range& range) { return range.domain == domain; }));
  if (open_ == ranges_.size()) ranges_.emplace_back();
  Range& range = ranges_[open_++];
  range.domain = domain;
  range.text.assign(open_ > kMaxRangeDepth ? std::string_view() : text.substr(0, kMaxRangeTextBytes));
  return level;
}

int RangeStack::pop(std::uint64_t domain) {
  for (std::size_t i = open_; i-- > 0;) {
    if (ranges_[i].domain != domain) continue;
    ++version_;
    const auto first = ranges_.begin() + static_cast<std::ptrdiff_t>(i);
    std::rotate(first, first + 1, ranges_.begin() + static_cast<std::ptrdiff_t>(open_));
    --open_;
    return static_cast<int>(std::count_if(ranges_.begin(),
                                          ranges_.begin() + static_cast<std::ptrdiff_t>(open_),
                                          [&](const Range& range) { return range.domain == domain; }));
  }
  return -1;
}

std::vector<std::string_view> RangeStack::texts() const {
  std::vector<std::string_view> texts;
  for (std::size_t i = 0; i < std::min(open_, kMaxRangeDepth); ++i) texts.emplace_back(ranges_[i].text);
  return texts;
}

std::uint32_t RangeTable::intern(std::span<const std::string_view> texts) {
  if (texts.empty()) return kNone;
  std::vector<std::string> key(texts.begin(), texts.end());
  if (const auto known = by_texts_.find(key); known != by_texts_.end()) return known->second;
  if (stacks_.size() >= kMaxRangeStacks) {
    ++refused_;
    return kNone;
  }
  const auto id = static_cast<std::uint32_t>(stacks_.size());
  by_texts_.emplace(key, id);
  stacks_.push_back(std::move(key));
  return id;
}

}  // namespace cglint::capture
