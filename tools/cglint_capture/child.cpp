#include "child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace cglint::capture_tool {
namespace {

std::atomic<bool> interrupted{false};

void close_if_open(int& descriptor) {
  if (descriptor >= 0) close(descriptor);
  descriptor = -1;
}

struct Pipe {
  int read = -1, write = -1;
  bool make() {
    std::array<int, 2> ends;
    if (pipe2(ends.data(), O_CLOEXEC) != 0) return false;
    read = ends[0];
    write = ends[1];
    return true;
  }
};

int milliseconds_to(std::chrono::steady_clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  return left <= 0 ? 0 : left > 1000 ? 1000 : static_cast<int>(left);
}

}  // namespace

void Child::interrupt() { interrupted.store(true); }
bool Child::is_interrupted() { return interrupted.load(); }

Child::Child(std::vector<std::string> arguments, const Environment& environment, bool quiet) : quiet_(quiet) {
  Pipe in, out, err;
  if (!in.make() || !out.make() || !err.make()) return;
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);  // it died before that
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGPIPE, SIG_DFL);
    dup2(in.read, STDIN_FILENO);
    dup2(out.write, STDOUT_FILENO);
    dup2(err.write, STDERR_FILENO);
    for (const auto& [name, value] : environment) value.empty() ? unsetenv(name.c_str()) : setenv(name.c_str(), value.c_str(), 1);
    execv(argv[0], argv.data());
    _exit(127);
  }
  if (pid_ > 0) setpgid(pid_, pid_);
  close(in.read);
  close(out.write);
  close(err.write);
  in_ = in.write;
  out_ = out.read;
  err_ = err.read;
  fcntl(err_, F_SETFL, O_NONBLOCK);
}

Child::~Child() {
  if (pid_ > 0) {
    kill_group();
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  close_if_open(in_);
  close_if_open(out_);
  close_if_open(err_);
}

void Child::kill_group() {
  if (pid_ > 0) kill(-pid_, SIGKILL);
}

void Child::drain_errors() {
  std::array<char, 4096> chunk;
  ssize_t got = 0;
  while (err_ >= 0 && (got = read(err_, chunk.data(), chunk.size())) > 0) {
    errors_.append(chunk.data(), static_cast<std::size_t>(got));
    constexpr std::size_t kKept = std::size_t{64} << 10;
    if (errors_.size() > 2 * kKept) errors_.erase(0, errors_.size() - kKept);
    if (!quiet_) std::fwrite(chunk.data(), 1, static_cast<std::size_t>(got), stderr);
  }
  if (got == 0) close_if_open(err_);
}

Child::Read Child::read_line(std::string& line, std::chrono::steady_clock::time_point deadline) {
  while (true) {
    if (const std::size_t end = buffer_.find('\n'); end != std::string::npos) {
      line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return Read::line;
    }
    if (is_interrupted()) return Read::interrupted;
    if (out_ < 0) return Read::end;
    std::array<pollfd, 2> files = {pollfd{out_, POLLIN, 0}, pollfd{err_, POLLIN, 0}};
    const int ready = poll(files.data(), files.size(), milliseconds_to(deadline));
    if (ready < 0 && errno != EINTR) return Read::end;
    if (ready == 0 && std::chrono::steady_clock::now() >= deadline) return Read::timeout;
    if (ready <= 0) continue;
    if (files[1].revents != 0) drain_errors();
    if (files[0].revents == 0) continue;
    std::array<char, 65536> chunk;
    const ssize_t got = read(out_, chunk.data(), chunk.size());
    if (got > 0) {
      buffer_.append(chunk.data(), static_cast<std::size_t>(got));
    } else if (got == 0 || errno != EINTR) {
      close_if_open(out_);
      drain_errors();
      if (!buffer_.empty()) {  // a last line without its end
        line = std::move(buffer_);
        buffer_.clear();
        return Read::line;
      }
      return Read::end;
    }
  }
}

void Child::send(const std::string& text) {
  if (in_ < 0) return;
  [[maybe_unused]] const ssize_t written = write(in_, text.data(), text.size());
}

Exit Child::finish(std::chrono::steady_clock::time_point deadline) {
  Exit result;
  if (pid_ <= 0) return {false, 127, 0};
  close_if_open(in_);
  std::string ignored;
  while (read_line(ignored, deadline) == Read::line) {
  }
  int status = 0;
  while (true) {
    const pid_t done = waitpid(pid_, &status, WNOHANG);
    if (done == pid_ || (done < 0 && errno != EINTR)) break;
    if (is_interrupted() || std::chrono::steady_clock::now() >= deadline) kill_group();
    poll(nullptr, 0, 5);
  }
  drain_errors();
  kill_group();  // what it left behind
  pid_ = -1;
  result.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  result.code = result.signal != 0 ? 128 + result.signal : WEXITSTATUS(status);
  return result;
}

}  // namespace cglint::capture_tool
