// Checks for our own bugs. Bad input is a returned base::Error, never a failed check.
#pragma once

#include <source_location>

namespace cglint::base {

// Prints one line (file:line, expression) to stderr and aborts. main() installs a handler that maps this to
// exit code 3 and names the rule that was running.
[[noreturn]] void check_failed(const char* expression, std::source_location where);

// Called by check_failed before it aborts; `context` is whatever set_check_context last stored in this
// thread (for example the code of the running rule), or "".
void set_check_context(const char* context);

}  // namespace cglint::base

#define CGLINT_CHECK(expression)                                                                \
  do {                                                                                          \
    if (!(expression)) [[unlikely]]                                                             \
      ::cglint::base::check_failed(#expression, std::source_location::current());               \
  } while (false)

#ifdef NDEBUG
#define CGLINT_DCHECK(expression) ((void)0)
#else
#define CGLINT_DCHECK(expression) CGLINT_CHECK(expression)
#endif
