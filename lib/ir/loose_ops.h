// GPU operations of a trace that belong to no graph launch. A trace of eager code may hold tens of millions, so that they are kept in
// 18 bytes each and read by value.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/packed_span.h"
#include "base/value_table.h"
#include "ir/ids.h"
#include "ir/node_kind.h"
#include "ir/replay_ops.h"

namespace cglint::ir {

// One of them. Times are nanoseconds on the tracer's clock.
struct LooseOp {
  StringId name;
  std::int64_t start_ns = 0, end_ns = 0;
  std::uint64_t stream = 0;
  std::uint64_t correlation = 0;
  std::int32_t device = 0;
  NodeKind kind = NodeKind::kernel;
  friend bool operator==(const LooseOp&, const LooseOp&) = default;
};

// All of a recording's. Every value comes back as it was given.
class LooseOpStore {
 public:
  using value_type = LooseOp;
  using Iterator = ByValueIterator<LooseOpStore>;

  void push_back(const LooseOp& op) {
    const std::uint32_t what = what_.intern({op.name, op.device, op.stream, static_cast<std::uint32_t>(op.correlation >> 32), op.kind});
    ops_.push_back({times_.pack(op.start_ns, op.end_ns), halves(what), halves(static_cast<std::uint32_t>(op.correlation))});
  }
  // By value.
  [[nodiscard]] LooseOp operator[](std::size_t i) const {
    const Packed& packed = ops_[i];
    const base::SpanPacker::Span time = times_.unpack(packed.time);
    const What& what = what_[whole(packed.what)];
    return {what.name, time.begin, time.end, what.stream, (std::uint64_t{what.correlation_high} << 32) | whole(packed.correlation), what.device, what.kind};
  }
  [[nodiscard]] Iterator begin() const { return {*this, 0}; }
  [[nodiscard]] Iterator end() const { return {*this, size()}; }
  [[nodiscard]] std::size_t size() const { return ops_.size(); }
  [[nodiscard]] bool empty() const { return ops_.empty(); }
  void reserve(std::size_t count) { ops_.reserve(count); }
  // What starts at the same time stays in its order. Takes 4 bytes an operation, and nothing where they are sorted already.
  void sort_by_start() {
    const auto start = [this](std::size_t i) { return times_.unpack(ops_[i].time).begin; };
    std::size_t sorted = 1;
    while (sorted < size() && start(sorted - 1) <= start(sorted)) ++sorted;
    if (sorted >= size()) return;
    CGLINT_CHECK(size() <= 0xffffffffU);
    std::vector<std::uint32_t> order(size());  // old places in the new order
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::uint32_t>(i);
    std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
      const std::int64_t x = start(a), y = start(b);
      return x != y ? x < y : a < b;
    });
    for (std::uint32_t i = 0; i < order.size(); ++i) {
      const Packed moved = ops_[i];
      std::uint32_t at = i;
      for (std::uint32_t from = order[at]; from != i; from = order[at]) {
        ops_[at] = ops_[from];
        order[at] = at;
        at = from;
      }
      ops_[at] = moved;
      order[at] = at;
    }
  }

 private:
  // All but the times and the correlation: few combinations.
  struct What {
    StringId name;
    std::int32_t device = 0;
    std::uint64_t stream = 0;
    std::uint32_t correlation_high = 0;  // correlation ids have 32 bits; a capture file may say more
    NodeKind kind = NodeKind::kernel;
    friend bool operator==(const What&, const What&) = default;
  };
  struct HashOfWhat {
    std::uint64_t operator()(const What& what) const {
      const std::uint64_t hash = base::mix_hash(what.name.index(), (std::uint64_t{static_cast<std::uint32_t>(what.device)} << 32) | what.correlation_high);
      return base::mix_hash(base::mix_hash(hash, static_cast<std::uint64_t>(what.kind)), what.stream);
    }
  };
  using Halves = std::array<std::uint16_t, 2>;
  static Halves halves(std::uint32_t value) { return {static_cast<std::uint16_t>(value), static_cast<std::uint16_t>(value >> 16)}; }
  static std::uint32_t whole(Halves value) { return value[0] | (std::uint32_t{value[1]} << 16); }
  struct Packed {
    base::PackedSpan time;
    Halves what, correlation;
  };
  static_assert(sizeof(Packed) == 18);

  std::vector<Packed> ops_;
  base::SpanPacker times_;
  base::ValueTable<What, HashOfWhat> what_;
};

}  // namespace cglint::ir
