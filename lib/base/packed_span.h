// Stretches of time (or of anything else that is counted in 64 bits) in 10 bytes each, exact for every value: near a base and not
// long, as nearly all are, in the 10 bytes; others in a list beside them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace cglint::base {

// Means something only to the packer that made it.
class PackedSpan {
 private:
  friend class SpanPacker;
  // 48 bits: the begin less the packer's base, two's complement. 32 bits: the length; kElsewhere: the 48 bits are an index.
  std::uint16_t words_[5] = {};
};
static_assert(sizeof(PackedSpan) == 10 && alignof(PackedSpan) == 2);

class SpanPacker {
 public:
  struct Span {
    std::int64_t begin = 0, end = 0;
    friend bool operator==(const Span&, const Span&) = default;
  };

  PackedSpan pack(std::int64_t begin, std::int64_t end) {
    if (!has_base_) base_ = begin;
    has_base_ = true;
    std::int64_t offset = 0, length = 0;
    const bool fits = !__builtin_sub_overflow(begin, base_, &offset) && !__builtin_sub_overflow(end, begin, &length) && offset >= -kReach &&
                      offset < kReach && length >= 0 && length < std::int64_t{kElsewhere};
    if (!fits) {
      offset = static_cast<std::int64_t>(elsewhere_.size());
      length = kElsewhere;
      elsewhere_.push_back({begin, end});
    }
    const auto low = static_cast<std::uint64_t>(offset);
    const auto high = static_cast<std::uint32_t>(length);
    PackedSpan packed;
    std::memcpy(packed.words_, &low, 6);
    std::memcpy(packed.words_ + 3, &high, 4);
    return packed;
  }
  [[nodiscard]] Span unpack(const PackedSpan& packed) const {
    std::uint64_t low = 0;
    std::uint32_t high = 0;
    std::memcpy(&low, packed.words_, 8);
    std::memcpy(&high, packed.words_ + 3, 4);
    const std::int64_t offset = static_cast<std::int64_t>(low << 16) >> 16;
    if (high == kElsewhere) return elsewhere_[static_cast<std::size_t>(offset)];
    return {base_ + offset, base_ + offset + std::int64_t{high}};
  }

 private:
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);
  static constexpr std::int64_t kReach = std::int64_t{1} << 47;
  static constexpr std::uint32_t kElsewhere = ~std::uint32_t{0};
  std::int64_t base_ = 0;
  bool has_base_ = false;
  std::vector<Span> elsewhere_;
};

}  // namespace cglint::base
