#include "export/sink.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ostream>

namespace cglint::exporter {
namespace {

using base::ErrorCode;
using base::make_error;

class FileSink final : public Sink {
 public:
  FileSink(int fd, bool owned, std::string name) : fd_(fd), owned_(owned), name_(std::move(name)) {}
  ~FileSink() override {
    if (owned_ && fd_ >= 0) ::close(fd_);
  }
  base::Result<void> write(std::string_view bytes) override {
    while (!bytes.empty()) {
      const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
      if (n < 0) {
        if (errno == EINTR) continue;
        return make_error(ErrorCode::io, fmt::format("cannot write: {}", std::strerror(errno)))
            .with_file(name_);
      }
      bytes.remove_prefix(static_cast<std::size_t>(n));
    }
    return {};
  }
  base::Result<void> close() override {
    if (!owned_ || fd_ < 0) return {};
    const int status = ::close(fd_);
    fd_ = -1;
    if (status != 0 && errno != EINTR)
      return make_error(ErrorCode::io, fmt::format("cannot close: {}", std::strerror(errno)))
          .with_file(name_);
    return {};
  }

 private:
  int fd_;
  bool owned_;
  std::string name_;
};

class StringSink final : public Sink {
 public:
  explicit StringSink(std::string& out) : out_(out) {}
  base::Result<void> write(std::string_view bytes) override {
    out_ += bytes;
    return {};
  }

 private:
  std::string& out_;
};

class StreamSink final : public Sink {
 public:
  explicit StreamSink(std::ostream& out) : out_(out) {}
  base::Result<void> write(std::string_view bytes) override {
    out_.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    out_.flush();
    if (!out_) return make_error(ErrorCode::io, "the output stream refused bytes");
    return {};
  }

 private:
  std::ostream& out_;
};

}  // namespace

base::Result<std::unique_ptr<Sink>> open_file_sink(const std::string& path) {
  if (path == "-") return std::unique_ptr<Sink>(std::make_unique<FileSink>(STDOUT_FILENO, false, "<stdout>"));
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY, 0644);
  if (fd < 0)
    return make_error(errno == ENOENT ? ErrorCode::not_found : ErrorCode::io,
                      fmt::format("cannot create: {}", std::strerror(errno)))
        .with_file(path);
  return std::unique_ptr<Sink>(std::make_unique<FileSink>(fd, true, path));
}

std::unique_ptr<Sink> make_string_sink(std::string& out) {
  return std::make_unique<StringSink>(out);
}
std::unique_ptr<Sink> make_stream_sink(std::ostream& out) {
  return std::make_unique<StreamSink>(out);
}

}  // namespace cglint::exporter
