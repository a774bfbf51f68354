// A child process whose standard output is read line by line. In a process group of its own, so that whatever it starts
// ends with it; it is killed when its owner is destroyed, or dies. One thread; interrupt() may be called by a signal
// handler.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace cglint::capture_tool {

struct Exit {
  bool started = true;
  int code = 0;      // exit code, or 128 + signal
  int signal = 0;    // that ended it; 0: none
};

class Child {
 public:
  using Environment = std::vector<std::pair<std::string, std::string>>;  // an empty value unsets

  // `arguments[0]` is the program. Lines of its standard error are passed on to ours; with `quiet` they are kept only.
  Child(std::vector<std::string> arguments, const Environment& environment, bool quiet = false);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  [[nodiscard]] bool is_started() const { return pid_ > 0; }
  enum class Read : std::uint8_t { line, end, timeout, interrupted };
  // The next line of standard output, without its line feed.
  Read read_line(std::string& line, std::chrono::steady_clock::time_point deadline);
  void send(const std::string& text);
  // Closes its input and waits for its end; kills it at the deadline.
  Exit finish(std::chrono::steady_clock::time_point deadline);
  void kill_group();
  // What it wrote on standard error so far, at most the last 64 KiB.
  [[nodiscard]] const std::string& errors() const { return errors_; }

  // Called by the handler of SIGINT and SIGTERM.
  static void interrupt();
  [[nodiscard]] static bool is_interrupted();

 private:
  void drain_errors();
  pid_t pid_ = -1;
  int in_ = -1, out_ = -1, err_ = -1;
  bool quiet_;
  std::string buffer_, errors_, error_line_;
};

}  // namespace cglint::capture_tool
