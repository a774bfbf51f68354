// Whether two recordings say the same, whatever numbers they use for it: ids are followed to what they stand
// for, an optional column of defaults equals an absent one, and a content hash of 0 (not computed) equals
// any.
#pragma once

#include <string>

#include "ir/recording.h"

namespace cglint::test {

// "" if equal, else the first difference ("graph 3: node 17: stack").
std::string difference(const ir::Recording& a, const ir::Recording& b);

}  // namespace cglint::test
