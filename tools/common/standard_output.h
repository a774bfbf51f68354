// How programs write what goes to standard output.
#pragma once

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace cglint {

// For when what read standard output has closed it: the program ends by SIGPIPE, as others do. It is no fault of the input.
[[noreturn]] inline void end_with_reader() {
  std::signal(SIGPIPE, SIG_DFL);
  std::raise(SIGPIPE);
  std::_Exit(128 + SIGPIPE);  // where the signal is blocked
}

// Writes and flushes it. Returns what is wrong ("standard output: ..."), or "".
inline std::string write_standard_output(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return "";
  if (errno == EPIPE) end_with_reader();
  return std::string("standard output: ") + std::strerror(errno);
}

}  // namespace cglint
