// The report for people: ruff-style, one line per finding with its evidence, cost and fix below.
#pragma once

#include <string>

#include "engine/runner.h"

namespace cglint::report {

struct TextOptions {
  bool colour = false;
  bool quiet = false;        // findings only: no notes, no summary
  bool statistics = false;   // a table of counts per rule instead of the findings
};

std::string render_text(const engine::Report& report, const engine::Config& config, const TextOptions& options);

}  // namespace cglint::report
