// The reader behind the capture importer; see capture_importer.h for what it promises.
#pragma once

#include <string_view>

#include "base/result.h"
#include "import/common/importer.h"

namespace cglint::import {

// Whether the first line (or as much of it as there is) is a capture header.
bool looks_like_capture(std::string_view prefix);

base::Result<ir::Recording> read_capture(Source& source, const ReadOptions& options);

}  // namespace cglint::import
