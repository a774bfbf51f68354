#include "capture/record_file.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

namespace cglint::capture {

namespace {

// While it lives, a write past the limit of a file's size (ulimit -f) fails in this thread, and does not end the program.
class NoFileSizeSignal {
 public:
  NoFileSizeSignal() {
    sigset_t pending;
    sigemptyset(&only_);
    sigaddset(&only_, SIGXFSZ);
    was_pending_ = sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 1;
    pthread_sigmask(SIG_BLOCK, &only_, &before_);
  }
  ~NoFileSizeSignal() {
    const timespec at_once{};
    if (!was_pending_)
      while (sigtimedwait(&only_, nullptr, &at_once) == SIGXFSZ) {
      }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoFileSizeSignal(const NoFileSizeSignal&) = delete;
  NoFileSizeSignal& operator=(const NoFileSizeSignal&) = delete;

 private:
  sigset_t only_, before_;
  bool was_pending_ = false;
};

}  // namespace

std::string record_path(std::string_view wanted, bool is_folder, std::string_view program, std::int64_t rank,
                        long pid) {
  std::string folder, stem(program), suffix = ".cgl.jsonl";
  if (is_folder || (!wanted.empty() && wanted.back() == '/')) {
    folder = wanted;
    if (folder.empty() || folder.back() != '/') folder += '/';
  } else if (!wanted.empty()) {
    const std::size_t slash = wanted.rfind('/');
    const std::size_t name = slash == std::string_view::npos ? 0 : slash + 1;
    folder = wanted.substr(0, name);
    // A leading dot belongs to the name.
    const std::size_t dot = wanted.find('.', name + 1);
    stem = wanted.substr(name, dot == std::string_view::npos ? dot : dot - name);
    if (dot != std::string_view::npos) suffix = wanted.substr(dot);
  }
  if (stem.empty()) stem = "cglint";
  return folder + stem + (rank >= 0 ? ".rank" + std::to_string(rank) : "") + "." + std::to_string(pid) +
         suffix;
}

RecordFile::~RecordFile() {
  if (is_open()) close(descriptor_);
}

bool RecordFile::is_open() const {
  return descriptor_ >= 0 && owner_ == getpid();
}

std::string RecordFile::open(const std::string& path) {
  for (std::size_t slash = path.find('/', 1); slash != std::string::npos; slash = path.find('/', slash + 1))
    mkdir(path.substr(0, slash).c_str(), 0777);  // what fails here fails below
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
  if (descriptor < 0) return "cannot create " + path + ": " + std::strerror(errno);
  descriptor_ = descriptor;
  owner_ = getpid();
  lines_ = bytes_ = 0;
  path_ = path;
  return "";
}

bool RecordFile::write(std::string_view lines) {
  if (!is_open()) return false;
  lines_ += static_cast<std::uint64_t>(std::count(lines.begin(), lines.end(), '\n'));
  const NoFileSizeSignal no_signal;
  while (!lines.empty()) {
    const ssize_t written = ::write(descriptor_, lines.data(), lines.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      close(descriptor_);
      descriptor_ = -1;
      return false;
    }
    bytes_ += static_cast<std::uint64_t>(written);
    lines.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

bool RecordFile::write_end() {
  const bool good = write("{\"type\":\"end\",\"records\":" + std::to_string(lines_) + "}\n");
  if (is_open()) {
    close(descriptor_);
    descriptor_ = -1;
  }
  return good;
}

}  // namespace cglint::capture
