// A byte source with transparent gzip / zstd decompression (concatenated members and frames included).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace cglint::import {

struct Limits;

// Why `path` cannot be opened, for the errno that the attempt gave: a missing file, a link that leads nowhere, a part of the path
// that is no directory... The error names the file.
base::Error path_error(const std::string& path, int error_number);

class Source {
 public:
  virtual ~Source() = default;
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  // Opens `path` ("-" = standard input) and detects compression by magic bytes.
  static base::Result<std::unique_ptr<Source>> open(const std::string& path, const Limits& limits);
  // Over bytes in memory that must outlive the source (tests, fuzzers). Decompresses as well.
  static std::unique_ptr<Source> from_memory(std::string_view bytes, std::string name, const Limits& limits);

  [[nodiscard]] const std::string& name() const { return name_; }
  // The first bytes (decompressed), at most 64 KiB; does not consume them.
  virtual base::Result<std::string_view> peek() = 0;
  // Reads up to `size` decompressed bytes; 0 at the end. A truncated compressed stream gives the bytes up to the tear
  // first, then ErrorCode::malformed with torn() true.
  virtual base::Result<std::size_t> read(char* buffer, std::size_t size) = 0;
  // Everything that is left, as one string padded with `padding` zero bytes behind its end (simdjson needs that).
  base::Result<std::string> read_all(std::size_t padding = 0);

  [[nodiscard]] virtual bool torn() const = 0;                       // ended inside a compressed member
  [[nodiscard]] virtual std::uint64_t offset_bytes() const = 0;      // decompressed bytes handed out
  [[nodiscard]] virtual std::uint64_t consumed_bytes() const = 0;    // bytes of the file itself
  [[nodiscard]] virtual std::uint64_t total_bytes() const = 0;       // 0 when unknown (pipes)
  // The path of an uncompressed regular file, for readers that map or seek themselves (SQLite); else "".
  [[nodiscard]] virtual std::string plain_path() const { return {}; }

 protected:
  explicit Source(std::string name) : name_(std::move(name)) {}

 private:
  std::string name_;
};

}  // namespace cglint::import
