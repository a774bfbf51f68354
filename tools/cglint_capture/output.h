// What `cglint capture` says: one line for an error, and standard output that is written whole or said not to be.
#pragma once

#include <string>

namespace cglint::capture_tool {

// "cglint capture: error: ..." on standard error, control characters escaped. Returns kExitUsage.
int complain(const std::string& text);

// False if `text` did not reach standard output, after a line that says why (none where nobody reads).
bool print_output(const std::string& text);

}  // namespace cglint::capture_tool
