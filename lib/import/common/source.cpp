#include "import/common/source.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "import/common/importer.h"

namespace cglint::import {
namespace {

using base::Error;
using base::ErrorCode;
using base::make_error;

constexpr std::size_t kPeekBytes = std::size_t{64} << 10;
constexpr std::size_t kInputBytes = std::size_t{256} << 10;
constexpr std::uint64_t kRatioFloorBytes = std::uint64_t{64} << 20;  // ratios of short files prove nothing
constexpr int kZstdWindowLogMax = 27;  // 128 MiB: the decoder's own default; larger windows are an allocation attack

// --- bytes of the file itself ---------------------------------------------------------------------------------------

class RawInput {
 public:
  virtual ~RawInput() = default;
  // 0 at the end.
  virtual base::Result<std::size_t> read(char* buffer, std::size_t size) = 0;
};

class FileInput final : public RawInput {
 public:
  explicit FileInput(int fd, bool owned) : fd_(fd), owned_(owned) {}
  FileInput(const FileInput&) = delete;
  FileInput& operator=(const FileInput&) = delete;
  ~FileInput() override {
    if (owned_) ::close(fd_);
  }
  base::Result<std::size_t> read(char* buffer, std::size_t size) override {
    while (true) {
      const ssize_t n = ::read(fd_, buffer, size);
      if (n >= 0) return static_cast<std::size_t>(n);
      if (errno == EINTR) continue;
      return make_error(errno == EISDIR ? ErrorCode::usage : ErrorCode::io,
                        fmt::format("cannot read: {}", std::strerror(errno)));
    }
  }

 private:
  int fd_;
  bool owned_;
};

class MemoryInput final : public RawInput {
 public:
  explicit MemoryInput(std::string_view bytes) : bytes_(bytes) {}
  base::Result<std::size_t> read(char* buffer, std::size_t size) override {
    const std::size_t n = std::min(size, bytes_.size());
    if (n != 0) std::memcpy(buffer, bytes_.data(), n);
    bytes_.remove_prefix(n);
    return n;
  }

 private:
  std::string_view bytes_;
};

// --- decompression --------------------------------------------------------------------------------------------------

enum class Compression : std::uint8_t { none, gzip, zstd };

// The compressed input, a buffer at a time.
class CompressedInput {
 public:
  explicit CompressedInput(std::unique_ptr<RawInput> raw) : raw_(std::move(raw)), buffer_(kInputBytes) {}

  // Makes at least `wanted` bytes available where the file has them.
  base::Result<void> fill(std::size_t wanted) {
    if (available().size() >= wanted || ended_) return {};
    if (wanted > buffer_.size()) wanted = buffer_.size();
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
    while (end_ < wanted && !ended_) {
      auto n = raw_->read(buffer_.data() + end_, buffer_.size() - end_);
      if (!n) return std::move(n).error();
      if (*n == 0) ended_ = true;
      end_ += *n;
    }
    return {};
  }
  [[nodiscard]] std::string_view available() const { return {buffer_.data() + begin_, end_ - begin_}; }
  void consume(std::size_t size) {
    begin_ += size;
    consumed_ += size;
  }
  // Where nothing is available: the next bytes, straight to `buffer` and consumed. 0 at the end.
  base::Result<std::size_t> read_past(char* buffer, std::size_t size) {
    if (ended_) return std::size_t{0};
    auto n = raw_->read(buffer, size);
    if (n) {
      ended_ = *n == 0;
      consumed_ += *n;
    }
    return n;
  }
  [[nodiscard]] std::uint64_t consumed() const { return consumed_; }

 private:
  std::unique_ptr<RawInput> raw_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;
  std::uint64_t consumed_ = 0;
  bool ended_ = false;
};

class Decoder {
 public:
  virtual ~Decoder() = default;
  // Appends up to `size` bytes; 0 with finished() at the end. `torn()` after an error tells a cut from corruption.
  virtual base::Result<std::size_t> decode(char* buffer, std::size_t size) = 0;
  [[nodiscard]] virtual bool torn() const { return false; }
};

class PlainDecoder final : public Decoder {
 public:
  explicit PlainDecoder(CompressedInput& input) : input_(input) {}
  base::Result<std::size_t> decode(char* buffer, std::size_t size) override {
    if (input_.available().empty() && size >= kInputBytes) return input_.read_past(buffer, size);
    CGLINT_TRY(input_.fill(1));
    const std::string_view bytes = input_.available();
    const std::size_t n = std::min(size, bytes.size());
    std::memcpy(buffer, bytes.data(), n);
    input_.consume(n);
    return n;
  }

 private:
  CompressedInput& input_;
};

// RFC 1952: any number of members, one after the other; zero bytes behind the last one are padding.
class GzipDecoder final : public Decoder {
 public:
  explicit GzipDecoder(CompressedInput& input) : input_(input) {
    std::memset(&stream_, 0, sizeof(stream_));
    ready_ = inflateInit2(&stream_, 15 + 16) == Z_OK;
  }
  GzipDecoder(const GzipDecoder&) = delete;
  GzipDecoder& operator=(const GzipDecoder&) = delete;
  ~GzipDecoder() override {
    if (ready_) inflateEnd(&stream_);
  }
  [[nodiscard]] bool torn() const override { return torn_; }

  base::Result<std::size_t> decode(char* buffer, std::size_t size) override {
    if (!ready_) return make_error(ErrorCode::internal, "zlib could not be set up");
    const auto limit = static_cast<uInt>(std::min(size, std::size_t{1} << 30));
    stream_.next_out = reinterpret_cast<Bytef*>(buffer);
    stream_.avail_out = limit;
    while (stream_.avail_out != 0) {
      CGLINT_TRY(input_.fill(in_member_ ? 1 : 2));
      std::string_view bytes = input_.available();
      const auto produced = [&] { return std::size_t{limit - stream_.avail_out}; };
      if (!in_member_) {
        while (!bytes.empty() && bytes.front() == '\0') {
          bytes.remove_prefix(1);
          input_.consume(1);
          if (bytes.empty()) {
            CGLINT_TRY(input_.fill(1));
            bytes = input_.available();
          }
        }
        if (bytes.empty()) return produced();
        if (static_cast<unsigned char>(bytes[0]) != 0x1f ||
            (bytes.size() > 1 && static_cast<unsigned char>(bytes[1]) != 0x8b)) {
          if (produced() != 0) return produced();
          return make_error(ErrorCode::malformed,
                            fmt::format("bytes after the gzip data at compressed byte {} are not a gzip member",
                                        input_.consumed()));
        }
        if (inflateReset(&stream_) != Z_OK) return make_error(ErrorCode::internal, "zlib could not be reset");
        in_member_ = true;
      }
      if (bytes.empty()) {
        if (produced() != 0) return produced();
        torn_ = true;
        return make_error(ErrorCode::malformed, "the gzip data ends in the middle of a member: the file is cut short");
      }
      stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
      stream_.avail_in = static_cast<uInt>(bytes.size());
      const int status = inflate(&stream_, Z_NO_FLUSH);
      input_.consume(bytes.size() - stream_.avail_in);
      if (status == Z_STREAM_END) {
        in_member_ = false;
      } else if (status != Z_OK && status != Z_BUF_ERROR) {
        if (produced() != 0 && !failed_) {
          failed_ = true;  // hand out what there is; the next call reports
          return produced();
        }
        return make_error(ErrorCode::malformed,
                          fmt::format("the gzip data is corrupt near compressed byte {}: {}", input_.consumed(),
                                      stream_.msg != nullptr ? stream_.msg : "unknown"));
      }
    }
    return std::size_t{limit};
  }

 private:
  CompressedInput& input_;
  z_stream stream_;
  bool ready_ = false;
  bool in_member_ = false;
  bool torn_ = false;
  bool failed_ = false;
};

// RFC 8878: any number of frames, skippable ones included.
class ZstdDecoder final : public Decoder {
 public:
  explicit ZstdDecoder(CompressedInput& input) : input_(input), stream_(ZSTD_createDStream()) {
    if (stream_ != nullptr) ZSTD_DCtx_setParameter(stream_, ZSTD_d_windowLogMax, kZstdWindowLogMax);
  }
  ZstdDecoder(const ZstdDecoder&) = delete;
  ZstdDecoder& operator=(const ZstdDecoder&) = delete;
  ~ZstdDecoder() override { ZSTD_freeDStream(stream_); }
  [[nodiscard]] bool torn() const override { return torn_; }

  base::Result<std::size_t> decode(char* buffer, std::size_t size) override {
    if (stream_ == nullptr) return make_error(ErrorCode::internal, "zstd could not be set up");
    if (failure_ != 0) return corrupt(failure_);
    ZSTD_outBuffer out{buffer, size, 0};
    while (out.pos < out.size) {
      CGLINT_TRY(input_.fill(1));
      const std::string_view bytes = input_.available();
      if (bytes.empty() && !flushing_) {
        if (out.pos != 0 || !in_frame_) return out.pos;
        torn_ = true;
        return make_error(ErrorCode::malformed, "the zstd data ends in the middle of a frame: the file is cut short");
      }
      ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
      const std::size_t before = out.pos;
      const std::size_t hint = ZSTD_decompressStream(stream_, &out, &in);
      input_.consume(in.pos);
      if (ZSTD_isError(hint)) {
        failure_ = hint;
        if (out.pos != 0) return out.pos;
        return corrupt(hint);
      }
      in_frame_ = hint != 0;
      flushing_ = hint != 0 && out.pos == out.size;  // the decoder may hold more output without more input
      if (bytes.empty() && out.pos == before) flushing_ = false;
    }
    return out.pos;
  }

 private:
  [[nodiscard]] base::Error corrupt(std::size_t code) const {
    return make_error(ErrorCode::malformed, fmt::format("the zstd data is corrupt near compressed byte {}: {}", input_.consumed(), ZSTD_getErrorName(code)));
  }

  CompressedInput& input_;
  ZSTD_DStream* stream_;
  bool in_frame_ = false;
  bool flushing_ = false;
  bool torn_ = false;
  std::size_t failure_ = 0;  // a failure behind output that was handed out first
};

// --- the source -----------------------------------------------------------------------------------------------------

class StreamSource final : public Source {
 public:
  StreamSource(std::unique_ptr<RawInput> raw, std::string name, const Limits& limits, std::uint64_t total_bytes,
               std::string plain_path)
      : Source(std::move(name)),
        input_(std::move(raw)),
        limits_(limits),
        total_bytes_(total_bytes),
        plain_path_(std::move(plain_path)) {}

  base::Result<std::string_view> peek() override {
    CGLINT_TRY(ensure_decoder());
    while (prefix_.size() < kPeekBytes && !prefix_done_) {
      const std::size_t old = prefix_.size();
      prefix_.resize(kPeekBytes);
      auto n = decode(prefix_.data() + old, kPeekBytes - old);
      prefix_.resize(old + (n ? *n : 0));
      if (!n) {
        // What came before the tear is still worth recognising; read() reports the error when it gets there.
        deferred_error_ = std::move(n).error();
        has_deferred_error_ = true;
        prefix_done_ = true;
      } else if (*n == 0) {
        prefix_done_ = true;
      }
    }
    if (prefix_.empty() && has_deferred_error_) return deferred_error_;
    return std::string_view(prefix_);
  }

  base::Result<std::size_t> read(char* buffer, std::size_t size) override {
    CGLINT_TRY(ensure_decoder());
    if (prefix_used_ < prefix_.size()) {
      const std::size_t n = std::min(size, prefix_.size() - prefix_used_);
      std::memcpy(buffer, prefix_.data() + prefix_used_, n);
      prefix_used_ += n;
      offset_ += n;
      return n;
    }
    if (has_deferred_error_) return deferred_error_;
    auto n = decode(buffer, size);
    if (n) {
      offset_ += *n;
    } else {
      deferred_error_ = n.error();
      has_deferred_error_ = true;
    }
    return n;
  }

  [[nodiscard]] bool torn() const override { return decoder_ != nullptr && decoder_->torn(); }
  [[nodiscard]] std::uint64_t offset_bytes() const override { return offset_; }
  [[nodiscard]] std::uint64_t consumed_bytes() const override { return input_.consumed(); }
  [[nodiscard]] std::uint64_t total_bytes() const override { return total_bytes_; }
  [[nodiscard]] std::string plain_path() const override {
    return decoder_ != nullptr && compression_ == Compression::none ? plain_path_ : std::string();
  }

 private:
  base::Result<void> ensure_decoder() {
    if (decoder_ != nullptr) return {};
    CGLINT_TRY(input_.fill(4));
    const std::string_view magic = input_.available();
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(magic[i]); };
    compression_ = Compression::none;
    if (magic.size() >= 2 && byte(0) == 0x1f && byte(1) == 0x8b) {
      compression_ = Compression::gzip;
    } else if (magic.size() >= 4 && ((byte(0) == 0x28 && byte(1) == 0xb5) || (byte(0) & 0xf0) == 0x50) &&
               ((byte(1) == 0xb5 && byte(2) == 0x2f && byte(3) == 0xfd) ||
                (byte(1) == 0x2a && byte(2) == 0x4d && byte(3) == 0x18))) {
      compression_ = Compression::zstd;
    }
    switch (compression_) {
      case Compression::none: decoder_ = std::make_unique<PlainDecoder>(input_); break;
      case Compression::gzip: decoder_ = std::make_unique<GzipDecoder>(input_); break;
      case Compression::zstd: decoder_ = std::make_unique<ZstdDecoder>(input_); break;
    }
    return {};
  }

  base::Result<std::size_t> decode(char* buffer, std::size_t size) {
    auto n = decoder_->decode(buffer, size);
    if (!n) {
      Error error = std::move(n).error();
      if (error.offset_bytes == Error::kNoOffset && error.code == ErrorCode::malformed)
        error.offset_bytes = decoded_;
      return error;
    }
    decoded_ += *n;
    if (decoded_ > limits_.max_decompressed_bytes)
      return make_error(ErrorCode::limit,
                        fmt::format("larger than {} bytes after decompression (max_decompressed_bytes)",
                                    limits_.max_decompressed_bytes),
                        decoded_);
    if (compression_ != Compression::none && decoded_ > kRatioFloorBytes &&
        decoded_ / std::max<std::uint64_t>(input_.consumed(), 1) > limits_.max_compression_ratio)
      return make_error(ErrorCode::limit,
                        fmt::format("expands more than {}-fold (max_compression_ratio): {} bytes from {}",
                                    limits_.max_compression_ratio, decoded_, input_.consumed()),
                        decoded_);
    return n;
  }

  CompressedInput input_;
  Limits limits_;
  std::uint64_t total_bytes_;
  std::string plain_path_;
  Compression compression_ = Compression::none;
  std::unique_ptr<Decoder> decoder_;
  std::string prefix_;
  std::size_t prefix_used_ = 0;
  bool prefix_done_ = false;
  Error deferred_error_;
  bool has_deferred_error_ = false;
  std::uint64_t decoded_ = 0;
  std::uint64_t offset_ = 0;
};

}  // namespace

base::Error path_error(const std::string& path, int error_number) {
  struct stat status {};
  if (error_number == ENOENT) {
    std::string message = "no such file";
    if (::lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode)) {
      std::array<char, 4096> target;
      const ssize_t size = ::readlink(path.c_str(), target.data(), target.size());
      message = fmt::format("a link to {}, which does not exist", size > 0 ? std::string_view(target.data(), static_cast<std::size_t>(size)) : "a file");
    }
    return make_error(ErrorCode::not_found, message).with_file(path);
  }
  if (error_number == ENAMETOOLONG)
    return make_error(ErrorCode::usage, fmt::format("the name is too long for a file ({} bytes)", path.size()))
        .with_file(path);
  if (error_number == ELOOP)
    return make_error(ErrorCode::io, "a link that leads back to itself, or too many links").with_file(path);
  return make_error(ErrorCode::io, fmt::format("cannot open: {}", std::strerror(error_number))).with_file(path);
}

base::Result<std::unique_ptr<Source>> Source::open(const std::string& path, const Limits& limits) {
  if (path == "-")
    return std::unique_ptr<Source>(
        std::make_unique<StreamSource>(std::make_unique<FileInput>(STDIN_FILENO, false), "<stdin>", limits, 0, ""));
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY);
  if (fd < 0) return path_error(path, errno);
  auto input = std::make_unique<FileInput>(fd, true);
  struct stat status {};
  if (::fstat(fd, &status) != 0)
    return make_error(ErrorCode::io, fmt::format("cannot stat: {}", std::strerror(errno))).with_file(path);
  if (S_ISDIR(status.st_mode)) {
    if (::access(path.c_str(), R_OK | X_OK) != 0)
      return make_error(ErrorCode::io, fmt::format("cannot list: {}", std::strerror(errno))).with_file(path);
    return make_error(ErrorCode::usage, "is a directory").with_file(path);
  }
  const bool regular = S_ISREG(status.st_mode);
  return std::unique_ptr<Source>(
      std::make_unique<StreamSource>(std::move(input), path, limits,
                                     regular ? static_cast<std::uint64_t>(status.st_size) : 0, regular ? path : ""));
}

std::unique_ptr<Source> Source::from_memory(std::string_view bytes, std::string name, const Limits& limits) {
  return std::make_unique<StreamSource>(std::make_unique<MemoryInput>(bytes), std::move(name), limits, bytes.size(),
                                        "");
}

base::Result<std::string> Source::read_all(std::size_t padding) {
  std::string all;
  std::size_t used = 0;
  std::size_t step = std::size_t{64} << 10;
  while (true) {
    // Plain files: the rest in one step, plus one byte so that the end is seen.
    if (used == 0 && !plain_path().empty() && total_bytes() > step)
      step = static_cast<std::size_t>(std::min<std::uint64_t>(total_bytes(), std::uint64_t{1} << 36)) + 1;
    if (all.size() <= used + padding) all.resize(used + step + padding);
    auto n = read(all.data() + used, all.size() - used - padding);
    if (!n) return std::move(n).error();
    if (*n == 0) break;
    used += *n;
    step = std::max(step, used / 2);
  }
  all.resize(used + padding);
  std::fill(all.begin() + static_cast<std::ptrdiff_t>(used), all.end(), '\0');
  all.resize(used);  // the padding stays allocated behind the end
  return all;
}

}  // namespace cglint::import
