// Reads Nsight Systems reports exported to SQLite (nsys export --type sqlite), schema 2.9 to 3.28.
#pragma once

#include <memory>

#include "import/common/importer.h"

namespace cglint::import {

std::unique_ptr<Importer> make_nsys_importer();

}  // namespace cglint::import
