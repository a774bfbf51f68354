#include "base/result.h"

namespace cglint::base {

std::string Error::to_string() const {
  std::string text;
  if (!file.empty()) text += file + ": ";
  text += message;
  if (offset_bytes != kNoOffset) text += " (at byte " + std::to_string(offset_bytes) + ")";
  return text;
}

}  // namespace cglint::base
