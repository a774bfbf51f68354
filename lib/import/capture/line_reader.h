// Cuts a Source into lines. One line is in memory at a time (plus what was read ahead), with readable bytes
// behind it, which simdjson needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "import/common/source.h"

namespace cglint::import {

class LineReader {
 public:
  static constexpr std::size_t kPaddingBytes = 64;
  // simdjson indexes at most 4 GiB; a record is far below.
  static constexpr std::size_t kMaxLineBytes = std::size_t{2} << 30;

  struct Line {
    std::string_view text;           // without its newline; valid until the next call
    std::uint64_t offset_bytes = 0;  // of its first byte
    bool terminated = true;          // false: the last line, without a newline
  };

  explicit LineReader(Source& source) : source_(source) {}

  // Nothing at the end. After the end, stopped_by() tells whether the source ended in order.
  // ErrorCode::limit for an overlong line or what the source refuses to expand.
  base::Result<std::optional<Line>> next();
  // The error that ended the input early (torn or corrupt compressed data, a failed read), if one did.
  [[nodiscard]] const std::optional<base::Error>& stopped_by() const { return stopped_by_; }

 private:
  Source& source_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;  // unread bytes in buffer_
  std::size_t searched_ = 0;         // bytes from begin_ on that hold no newline
  std::uint64_t offset_ = 0;         // of begin_ in the source
  bool ended_ = false;
  std::optional<base::Error> stopped_by_;
};

}  // namespace cglint::import
