#include "base/interner.h"

#include <algorithm>
#include <cstring>

namespace cglint::base {

StringInterner::StringInterner() {
  views_.emplace_back("");
  lookup_.emplace(std::string_view(""), 0U);
}

StringId StringInterner::intern(std::string_view text) {
  if (const auto it = lookup_.find(text); it != lookup_.end()) return StringId(it->second);
  if (block_size_ - block_used_ < text.size()) {
    block_size_ = std::max(kBlockBytes, text.size());
    blocks_.push_back(std::make_unique<char[]>(block_size_));
    block_used_ = 0;
  }
  char* const stored = blocks_.back().get() + block_used_;
  std::memcpy(stored, text.data(), text.size());
  block_used_ += text.size();
  const StringId id = StringId::from_size(views_.size());
  views_.emplace_back(stored, text.size());
  lookup_.emplace(views_.back(), id.index());
  return id;
}

StringId StringInterner::find(std::string_view text) const {
  const auto it = lookup_.find(text);
  return it == lookup_.end() ? StringId() : StringId(it->second);
}

std::string_view StringInterner::view(StringId id) const {
  return id.index() < views_.size() ? views_[id.index()] : std::string_view();
}

}  // namespace cglint::base
