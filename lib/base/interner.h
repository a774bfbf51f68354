// Interned strings: equal strings share one StringId; StringId 0 is "". Views stay valid as long as the interner
// lives (it never moves stored bytes). Not thread safe; guard it, or keep one per recording.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/id.h"

namespace cglint::base {

struct StringTag;
using StringId = Id<StringTag>;
inline constexpr StringId kEmptyString{0};

class StringInterner {
 public:
  StringInterner();
  StringInterner(StringInterner&&) noexcept = default;
  StringInterner& operator=(StringInterner&&) noexcept = default;
  StringInterner(const StringInterner&) = delete;
  StringInterner& operator=(const StringInterner&) = delete;

  StringId intern(std::string_view text);
  // The id of `text` if it was interned, else an invalid id.
  [[nodiscard]] StringId find(std::string_view text) const;
  // "" for an invalid id.
  [[nodiscard]] std::string_view view(StringId id) const;
  [[nodiscard]] std::size_t size() const { return views_.size(); }

 private:
  static constexpr std::size_t kBlockBytes = std::size_t{64} * 1024;
  std::vector<std::unique_ptr<char[]>> blocks_;
  std::size_t block_used_ = 0;
  std::size_t block_size_ = 0;
  std::vector<std::string_view> views_;
  std::unordered_map<std::string_view, std::uint32_t> lookup_;
};

}  // namespace cglint::base
