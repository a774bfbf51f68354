// Distinct values, numbered in the order of their first appearance. Values that come again in the same order are found without hashing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"

namespace cglint::base {

// Mixes `value` into `hash`; every bit of the result depends on every bit of both.
constexpr std::uint64_t mix_hash(std::uint64_t hash, std::uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15ULL + (hash << 6) + (hash >> 2);
  hash *= 0xff51afd7ed558ccdULL;
  return hash ^ (hash >> 33);
}

// Hash()(value): 64 well mixed bits.
template <typename T, typename Hash>
class ValueTable {
 public:
  std::uint32_t intern(const T& value) {
    if (last_ < values_.size() && values_[last_] == value) return last_;
    if (last_ + 1 < values_.size() && values_[last_ + 1] == value) return ++last_;
    if (values_.size() * 2 >= slots_.size()) grow();
    std::size_t at = place(value);
    while (slots_[at] != 0) {
      if (values_[slots_[at] - 1] == value) return last_ = slots_[at] - 1;
      at = (at + 1) & (slots_.size() - 1);
    }
    CGLINT_CHECK(values_.size() < 0xffffffffU);
    last_ = static_cast<std::uint32_t>(values_.size());
    values_.push_back(value);
    slots_[at] = last_ + 1;
    return last_;
  }
  [[nodiscard]] const T& operator[](std::uint32_t id) const { return values_[id]; }
  [[nodiscard]] std::size_t size() const { return values_.size(); }

 private:
  [[nodiscard]] std::size_t place(const T& value) const { return Hash()(value) & (slots_.size() - 1); }
  void grow() {
    slots_.assign(slots_.empty() ? 16 : slots_.size() * 2, 0);
    for (std::uint32_t id = 0; id < values_.size(); ++id) {
      std::size_t at = place(values_[id]);
      while (slots_[at] != 0) at = (at + 1) & (slots_.size() - 1);
      slots_[at] = id + 1;
    }
  }

  std::vector<T> values_;
  std::vector<std::uint32_t> slots_;  // open addressing, a power of 2, at most half full; 0: free, else the id + 1
  std::uint32_t last_ = 0;
};

}  // namespace cglint::base
