// What TOML text must satisfy before it is given to toml++: some malformed text makes that library (3.3.0) assume what does not hold.
#pragma once

#include <string_view>

#include "base/result.h"

namespace cglint::base {

// An error ("line N: ...") for text that is not UTF-8, for characters beyond ASCII outside strings and comments, which no key and no
// value may hold (toml++ handles some of them with undefined behaviour), for a table header that begins with something that is no key,
// and for a '}' where an array is open (assertions of toml++). Everything else is left to the parser.
Result<void> check_toml_text(std::string_view text);

}  // namespace cglint::base
