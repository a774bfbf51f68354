#include "output.h"

#include <fmt/format.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "base/text.h"
#include "options.h"

namespace cglint::capture_tool {

// std::fputs, not fmt::print: a closed or full standard error must not throw.
int complain(const std::string& text) {
  std::fputs(fmt::format("cglint capture: error: {}\n", base::printable(text, 4000)).c_str(), stderr);
  return kExitUsage;
}

bool print_output(const std::string& text) {
  const bool is_good = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!is_good && errno == EPIPE) {  // who read it has closed it: no fault of this program's, which ends as others do
    std::signal(SIGPIPE, SIG_DFL);
    std::raise(SIGPIPE);
    std::_Exit(128 + SIGPIPE);  // where the signal is blocked
  }
  if (!is_good) complain(fmt::format("standard output: {}", std::strerror(errno)));
  return is_good;
}

}  // namespace cglint::capture_tool
