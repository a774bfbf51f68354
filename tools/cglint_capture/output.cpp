#include "output.h"

#include <fmt/format.h>

#include <cstdio>

#include "base/text.h"
#include "common/standard_output.h"
#include "options.h"

namespace cglint::capture_tool {

// std::fputs, not fmt::print: a closed or full standard error must not throw.
int complain(const std::string& text) {
  std::fputs(fmt::format("cglint capture: error: {}\n", base::printable(text, 4000)).c_str(), stderr);
  return kExitUsage;
}

bool print_output(const std::string& text) {
  const std::string problem = write_standard_output(text);
  if (!problem.empty()) complain(problem);
  return problem.empty();
}

}  // namespace cglint::capture_tool
