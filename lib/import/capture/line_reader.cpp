#include "import/capture/line_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace cglint::import {
namespace {
constexpr std::size_t kFirstReadBytes = std::size_t{64} << 10;
constexpr std::size_t kReadBytes = std::size_t{1} << 20;
}  // namespace

base::Result<std::optional<LineReader::Line>> LineReader::next() {
  while (true) {
    const char* const from = buffer_.data() + begin_ + searched_;
    const std::size_t left = end_ - begin_ - searched_;
    const char* const newline = left == 0 ? nullptr : static_cast<const char*>(std::memchr(from, '\n', left));
    if (newline != nullptr) {
      const auto size = static_cast<std::size_t>(newline - (buffer_.data() + begin_));
      Line line{{buffer_.data() + begin_, size}, offset_, true};
      begin_ += size + 1;
      offset_ += size + 1;
      searched_ = 0;
      return std::optional(line);
    }
    searched_ = end_ - begin_;
    if (ended_) {
      if (searched_ == 0) return std::optional<Line>();
      Line line{{buffer_.data() + begin_, searched_}, offset_, false};
      begin_ = end_;
      offset_ += searched_;
      searched_ = 0;
      return std::optional(line);
    }
    if (searched_ > kMaxLineBytes)
      return base::make_error(base::ErrorCode::limit,
                              fmt::format("a line is longer than {} bytes", kMaxLineBytes), offset_);
    if (begin_ != 0) {
      std::memmove(buffer_.data(), buffer_.data() + begin_, searched_);
      begin_ = 0;
      end_ = searched_;
    }
    // Room for half a small read at least; small files stay in a small buffer, long lines get a large one.
    if (buffer_.size() < end_ + kFirstReadBytes / 2 + kPaddingBytes) {
      const std::size_t room = std::max(std::clamp(buffer_.size(), kFirstReadBytes, kReadBytes), searched_ / 2);
      buffer_.resize(end_ + room + kPaddingBytes);
    }
    auto n = source_.read(buffer_.data() + end_, buffer_.size() - kPaddingBytes - end_);
    if (!n) {
      if (n.error().code == base::ErrorCode::limit) return std::move(n).error();
      stopped_by_ = std::move(n).error();
      ended_ = true;
    } else if (*n == 0) {
      ended_ = true;
    } else {
      end_ += *n;
    }
  }
}

}  // namespace cglint::import
