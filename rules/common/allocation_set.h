// Which allocations a graph uses, in little memory: rules keep that for every graph of a recording.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ir/ids.h"

namespace cglint::rules {

class AllocationSet {
 public:
  AllocationSet() = default;
  // Each once, in any order.
  explicit AllocationSet(std::span<const ir::AllocationId> ids) : size_(ids.size()) {
    if (ids.empty()) return;
    const std::uint32_t last = std::max_element(ids.begin(), ids.end())->index();
    is_list_ = last / 32 >= ids.size();
    if (is_list_) {
      words_.reserve(ids.size());
      for (const ir::AllocationId id : ids) words_.push_back(id.index());
      std::sort(words_.begin(), words_.end());
      return;
    }
    words_.assign(std::size_t{last} / 32 + 1, 0);
    for (const ir::AllocationId id : ids) words_[id.index() / 32] |= std::uint32_t{1} << (id.index() % 32);
  }

  [[nodiscard]] std::size_t size() const { return size_; }
  // Calls visit(id) for each, ascending.
  template <typename Visit>
  void for_each(const Visit& visit) const {
    if (is_list_) {
      for (const std::uint32_t index : words_) visit(ir::AllocationId(index));
      return;
    }
    for (std::size_t i = 0; i < words_.size(); ++i)
      for (std::uint32_t left = words_[i]; left != 0; left &= left - 1)
        visit(ir::AllocationId(static_cast<std::uint32_t>(32 * i) + static_cast<std::uint32_t>(std::countr_zero(left))));
  }

 private:
  std::vector<std::uint32_t> words_;  // the ids, or a bit for each
  std::size_t size_ = 0;
  bool is_list_ = false;
};

}  // namespace cglint::rules
