// The compiled form of a known-kernel table; private to kernel identity.
#pragma once

#include <vector>

#include "analysis/kernel_identity.h"
#include "analysis/pattern.h"

namespace cglint::analysis {

struct KernelTable::Compiled {
  struct Entry {
    Pattern pattern;
    KnownKernel kernel;
  };
  std::vector<Entry> entries;
};

}  // namespace cglint::analysis
