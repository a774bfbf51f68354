// A source that is read by a thread of its own, so that decompression and parsing run side by side.
#pragma once

#include <memory>

#include "import/common/source.h"

namespace cglint::import {

// Wraps `inner`, which must outlive the result and must not be used by others meanwhile. Gives the same bytes and the
// same errors in the same place. Holds at most four blocks of 1 MiB.
std::unique_ptr<Source> read_ahead(Source& inner);

}  // namespace cglint::import
