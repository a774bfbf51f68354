// The machine-readable report. Its schema is docs/schema/report.schema.json; field names are stable within a major
// version of "format_version".
#pragma once

#include <string>

#include "engine/runner.h"

namespace cglint::report {

// Pretty-printed JSON with a final newline. Invalid UTF-8 in names is replaced by U+FFFD.
std::string render_json(const engine::Report& report, const engine::Config& config, std::string_view tool_version);

}  // namespace cglint::report
