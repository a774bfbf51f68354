#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "analysis/kernel_identity.h"

namespace cglint::analysis {

std::string demangle(std::string_view name) {
  if (!name.starts_with("_Z") || name.size() > 1024) return std::string(name);
  const std::string terminated(name);
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(terminated.c_str(), nullptr, nullptr, &status), &std::free);
  return status == 0 && text ? std::string(text.get()) : terminated;
}

}  // namespace cglint::analysis
