// Strong ids and containers indexed by them. An Id<Tag> is a uint32 that cannot be mixed with another tag's,
// has no arithmetic and is invalid by default.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <vector>

#include "base/check.h"

namespace cglint::base {

template <typename Tag>
class Id {
 public:
  static constexpr std::uint32_t kInvalid = ~std::uint32_t{0};

  constexpr Id() = default;
  explicit constexpr Id(std::uint32_t index) : index_(index) {}
  static constexpr Id from_size(std::size_t size) {
    CGLINT_CHECK(size < kInvalid);
    return Id(static_cast<std::uint32_t>(size));
  }

  [[nodiscard]] constexpr std::uint32_t index() const { return index_; }
  [[nodiscard]] constexpr bool is_valid() const { return index_ != kInvalid; }
  friend constexpr auto operator<=>(Id, Id) = default;

 private:
  std::uint32_t index_ = kInvalid;
};

// The half-open range [first, last) of ids.
template <typename IdType>
class IdRange {
 public:
  class iterator {  // NOLINT(readability-identifier-naming): the name that standard algorithms and containers use
   public:
    using value_type = IdType;
    using difference_type = std::ptrdiff_t;
    explicit constexpr iterator(std::uint32_t index = 0) : index_(index) {}
    constexpr IdType operator*() const { return IdType(index_); }
    constexpr iterator& operator++() {
      ++index_;
      return *this;
    }
    constexpr iterator operator++(int) { return iterator(index_++); }
    friend constexpr bool operator==(iterator, iterator) = default;

   private:
    std::uint32_t index_;
  };
  constexpr IdRange() = default;
  constexpr IdRange(std::uint32_t first, std::uint32_t last) : first_(first), last_(last) {}
  [[nodiscard]] constexpr iterator begin() const { return iterator(first_); }
  [[nodiscard]] constexpr iterator end() const { return iterator(last_); }
  [[nodiscard]] constexpr std::size_t size() const { return last_ - first_; }
  [[nodiscard]] constexpr bool empty() const { return first_ == last_; }

 private:
  std::uint32_t first_ = 0;
  std::uint32_t last_ = 0;
};

// A vector that takes only its own id as an index.
template <typename IdType, typename T>
class IdVector {
 public:
  using reference = typename std::vector<T>::reference;
  using const_reference = typename std::vector<T>::const_reference;

  IdVector() = default;
  explicit IdVector(std::size_t size, const T& value = T()) : items_(size, value) {}

  reference operator[](IdType id) {
    CGLINT_DCHECK(id.index() < items_.size());
    return items_[id.index()];
  }
  const_reference operator[](IdType id) const {
    CGLINT_DCHECK(id.index() < items_.size());
    return items_[id.index()];
  }
  IdType push_back(T value) {
    const IdType id = IdType::from_size(items_.size());
    items_.push_back(std::move(value));
    return id;
  }
  [[nodiscard]] std::size_t size() const { return items_.size(); }
  [[nodiscard]] bool empty() const { return items_.empty(); }
  [[nodiscard]] bool contains(IdType id) const { return id.index() < items_.size(); }
  [[nodiscard]] IdRange<IdType> ids() const { return {0, static_cast<std::uint32_t>(items_.size())}; }
  void resize(std::size_t size) { items_.resize(size); }
  void resize(std::size_t size, const T& value) { items_.resize(size, value); }
  void assign(std::size_t size, const T& value) { items_.assign(size, value); }
  void reserve(std::size_t size) { items_.reserve(size); }
  void clear() { items_.clear(); }
  void shrink_to_fit() { items_.shrink_to_fit(); }
  [[nodiscard]] std::vector<T>& raw() { return items_; }
  [[nodiscard]] const std::vector<T>& raw() const { return items_; }
  auto begin() { return items_.begin(); }
  auto end() { return items_.end(); }
  auto begin() const { return items_.begin(); }
  auto end() const { return items_.end(); }

 private:
  std::vector<T> items_;
};

}  // namespace cglint::base

template <typename Tag>
struct std::hash<cglint::base::Id<Tag>> {
  std::size_t operator()(cglint::base::Id<Tag> id) const noexcept {
    return std::hash<std::uint32_t>{}(id.index());
  }
};
