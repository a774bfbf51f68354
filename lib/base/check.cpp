#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace cglint::base {
namespace {
thread_local const char* check_context = "";
}  // namespace

void set_check_context(const char* context) { check_context = context != nullptr ? context : ""; }

void check_failed(const char* expression, std::source_location where) {
  std::fprintf(stderr, "cglint: internal error: %s:%u: check failed: %s%s%s\n", where.file_name(),
               static_cast<unsigned>(where.line()), expression, *check_context != '\0' ? " while running " : "",
               check_context);
  std::abort();
}

}  // namespace cglint::base
