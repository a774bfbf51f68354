// A regular expression of the known-kernel tables. Users write patterns and kernel names come from files that nobody
// checked, so matching must take time linear in the text, with bounded memory, and never throw: RE2 promises that, std::regex
// does not. RE2's syntax (https://github.com/google/re2/wiki/Syntax); no back references, no look-around.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace re2 {
class RE2;
}

namespace cglint::analysis {

class Pattern {
 public:
  // ErrorCode::malformed for a pattern that RE2 refuses, ErrorCode::limit for one that is too large.
  static base::Result<Pattern> compile(std::string_view source);

  // True if the pattern occurs anywhere in `text` (bytes, not code points); `^` and `$` anchor it.
  [[nodiscard]] bool matches(std::string_view text) const;
  [[nodiscard]] const std::string& source() const;

 private:
  std::shared_ptr<const re2::RE2> expression_;
};

}  // namespace cglint::analysis
