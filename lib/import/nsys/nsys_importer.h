// Reads Nsight Systems reports exported to SQLite (nsys export --type sqlite), schema 2.9 to 3.28.
#pragma once

#include <memory>
#include <string>

#include "import/common/importer.h"

namespace cglint::import {

std::unique_ptr<Importer> make_nsys_importer();

// An error if files beside a SQLite database hold what it lacks: all of its tables, perhaps.
base::Result<void> check_database_is_whole(const std::string& path);

}  // namespace cglint::import
