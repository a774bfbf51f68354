// The operations of replays. A trace may hold tens of millions, so that they are kept in 14 bytes each and read by value.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "base/packed_span.h"
#include "base/value_table.h"
#include "ir/ids.h"
#include "ir/node_kind.h"

namespace cglint::ir {

// One operation of a replay. Times are nanoseconds on the tracer's clock.
struct ReplayOp {
  NodeId node;                      // invalid if it could not be matched
  std::int64_t start_ns = 0, end_ns = 0;
  std::uint64_t stream = 0;         // as the tracer numbers it (original_stream where lanes were rewritten)
  std::int32_t device = 0;
  NodeKind kind = NodeKind::kernel;
  [[nodiscard]] std::int64_t dur_ns() const { return end_ns - start_ns; }
};

// A list of values that is read by position: what the iterators of ReplayOps and of its like share.
template <typename List>
class ByValueIterator {
 public:
  using value_type = typename List::value_type;
  using difference_type = std::ptrdiff_t;
  using iterator_category = std::input_iterator_tag;  // * gives a value
  using iterator_concept = std::random_access_iterator_tag;

  ByValueIterator() = default;
  ByValueIterator(const List& list, std::size_t at) : list_(&list), at_(at) {}
  value_type operator*() const { return (*list_)[at_]; }
  value_type operator[](difference_type n) const { return *(*this + n); }
  ByValueIterator& operator++() { return ++at_, *this; }
  ByValueIterator operator++(int) { return {*list_, at_++}; }
  ByValueIterator& operator--() { return --at_, *this; }
  ByValueIterator operator--(int) { return {*list_, at_--}; }
  ByValueIterator& operator+=(difference_type n) { return at_ += static_cast<std::size_t>(n), *this; }
  ByValueIterator& operator-=(difference_type n) { return at_ -= static_cast<std::size_t>(n), *this; }
  friend ByValueIterator operator+(ByValueIterator it, difference_type n) { return it += n; }
  friend ByValueIterator operator+(difference_type n, ByValueIterator it) { return it += n; }
  friend ByValueIterator operator-(ByValueIterator it, difference_type n) { return it -= n; }
  friend difference_type operator-(const ByValueIterator& a, const ByValueIterator& b) {
    return static_cast<difference_type>(a.at_) - static_cast<difference_type>(b.at_);
  }
  friend bool operator==(const ByValueIterator& a, const ByValueIterator& b) { return a.at_ == b.at_; }
  friend auto operator<=>(const ByValueIterator& a, const ByValueIterator& b) { return a.at_ <=> b.at_; }

 private:
  const List* list_ = nullptr;
  std::size_t at_ = 0;
};

// All operations of a graph's replays.
class ReplayOpStore {
 public:
  using value_type = ReplayOp;
  using Iterator = ByValueIterator<ReplayOpStore>;

  void push_back(const ReplayOp& op) {
    ops_.emplace_back(times_.pack(op.start_ns, op.end_ns), what_.intern({op.node, op.device, op.stream, op.kind}));
  }
  // By value.
  [[nodiscard]] ReplayOp operator[](std::size_t i) const {
    const base::SpanPacker::Span time = times_.unpack(ops_[i].time);
    const What& what = what_[ops_[i].what()];
    return {what.node, time.begin, time.end, what.stream, what.device, what.kind};
  }
  [[nodiscard]] Iterator begin() const { return {*this, 0}; }
  [[nodiscard]] Iterator end() const { return {*this, size()}; }
  [[nodiscard]] std::size_t size() const { return ops_.size(); }
  [[nodiscard]] bool empty() const { return ops_.empty(); }
  void reserve(std::size_t count) { ops_.reserve(count); }
  void clear() { *this = ReplayOpStore(); }

 private:
  // All but the times: few combinations, launch after launch.
  struct What {
    NodeId node;
    std::int32_t device = 0;
    std::uint64_t stream = 0;
    NodeKind kind = NodeKind::kernel;
    friend bool operator==(const What&, const What&) = default;
  };
  struct HashOfWhat {
    std::uint64_t operator()(const What& what) const {
      const std::uint64_t hash = base::mix_hash(what.node.index(), (std::uint64_t{static_cast<std::uint32_t>(what.device)} << 8) | static_cast<std::uint64_t>(what.kind));
      return base::mix_hash(hash, what.stream);
    }
  };
  struct Packed {
    Packed(base::PackedSpan span, std::uint32_t id) : time(span), what_low(static_cast<std::uint16_t>(id)), what_high(static_cast<std::uint16_t>(id >> 16)) {}
    [[nodiscard]] std::uint32_t what() const { return what_low | (std::uint32_t{what_high} << 16); }
    base::PackedSpan time;
    std::uint16_t what_low, what_high;
  };
  static_assert(sizeof(Packed) == 14);

  std::vector<Packed> ops_;
  base::SpanPacker times_;
  base::ValueTable<What, HashOfWhat> what_;
};

// The operations of one replay, by start: a view of the store.
class ReplayOps {
 public:
  using value_type = ReplayOp;
  using Iterator = ReplayOpStore::Iterator;

  ReplayOps(const ReplayOpStore& store, std::size_t first, std::size_t count) : store_(&store), first_(first), count_(count) {}
  [[nodiscard]] ReplayOp operator[](std::size_t i) const { return (*store_)[first_ + i]; }
  [[nodiscard]] ReplayOp front() const { return (*this)[0]; }
  [[nodiscard]] ReplayOp back() const { return (*this)[count_ - 1]; }
  [[nodiscard]] Iterator begin() const { return {*store_, first_}; }
  [[nodiscard]] Iterator end() const { return {*store_, first_ + count_}; }
  [[nodiscard]] std::size_t size() const { return count_; }
  [[nodiscard]] bool empty() const { return count_ == 0; }

 private:
  const ReplayOpStore* store_;
  std::size_t first_, count_;
};

}  // namespace cglint::ir
