#include "export/part_file.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

namespace cglint::exporter {
namespace {

constexpr std::size_t kLongestFileName = 255;  // of Linux file systems

// Read by signal handlers: a buffer that stays, since the string of a PartFile may be freed by another thread.
std::array<char, 4096> unfinished;
std::atomic<bool> has_unfinished{false};

void remember(const std::string& name) {
  has_unfinished.store(false);
  if (name.size() >= unfinished.size()) return;
  std::memcpy(unfinished.data(), name.c_str(), name.size() + 1);
  has_unfinished.store(true);
}

}  // namespace

PartFile::PartFile(std::string path) : path_(std::move(path)), target_(path_), name_(path_) {
  std::error_code ignored;
  const std::filesystem::file_status status = std::filesystem::status(path_, ignored);
  // Names in /dev and /proc may be links to a file that is open already (/dev/stdout).
  if (path_ == "-" || path_.starts_with("/dev/") || path_.starts_with("/proc/") || (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status) && !std::filesystem::is_directory(status)))
    return;
  if (std::filesystem::exists(status)) target_ = std::filesystem::canonical(path_, ignored).string();
  if (target_.empty()) target_ = path_;
  const std::filesystem::path wanted(target_);
  const std::string suffix = fmt::format(".{}.tmp", getpid());
  name_ = wanted.parent_path() / (wanted.filename().string().substr(0, kLongestFileName - suffix.size()) + suffix);
  is_pending_ = true;
  remember(name_);
}

PartFile::~PartFile() {
  if (!is_pending_) return;
  std::remove(name_.c_str());
  has_unfinished.store(false);
}

base::Result<void> PartFile::finish() {
  if (!is_pending_) return {};
  struct stat before = {};
  if (stat(target_.c_str(), &before) == 0 && S_ISREG(before.st_mode)) chmod(name_.c_str(), before.st_mode & 07777);
  if (std::rename(name_.c_str(), target_.c_str()) != 0)
    return base::make_error(base::ErrorCode::io, fmt::format("cannot write: {}", std::strerror(errno))).with_file(path_);
  is_pending_ = false;
  has_unfinished.store(false);
  return {};
}

base::Result<void> check_writable(const std::string& path) {
  if (path == "-") return {};
  const auto cannot = [&](int reason) { return base::make_error(base::ErrorCode::io, fmt::format("cannot write: {}", std::strerror(reason))).with_file(path); };
  const PartFile part(path);  // never finished
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return cannot(EISDIR);
  // A pipe may have no reader yet, and waits for one.
  if (std::filesystem::is_fifo(path, ignored)) return access(path.c_str(), W_OK) == 0 ? base::Result<void>() : cannot(errno);
  std::FILE* const file = std::fopen(part.name().c_str(), "ab");
  if (file == nullptr) return cannot(errno);
  std::fclose(file);
  return {};
}

void remove_unfinished_file() noexcept {
  if (has_unfinished.load()) unlink(unfinished.data());
}

}  // namespace cglint::exporter
