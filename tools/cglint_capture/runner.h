// One run: a traced child, the linter, an untraced child, and what they say put together.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "manifest.h"
#include "options.h"
#include "results.h"

namespace cglint::capture_tool {

// The programs beside this one.
struct Programs {
  std::string cglint, record, runner;
};
// What is missing, or "".
std::string find_programs(Programs& programs);

// Lints recordings named [MODEL.]VARIANT.PRESET.bBATCH[.lLAYERS][.beside-VARIANT]... and compares them with the manifest; a line each on standard output.
// One that says it is of another run, or of none, is a difference. Needs neither the model nor a GPU.
int verify_recordings(const Programs& programs, const Options& options, const Manifest& manifest);

// {"models": [...]}, as the runner lists them; the error is one line.
base::Result<Json> list_models(const Programs& programs);

struct Planned {
  Json run;               // its identity; filled by execute()
  std::string recording;  // where its capture file goes
  int published_layers = 0;
  bool may_fault = false, capture_fails = false;
};

// Adds to `planned.run` what was found. Returns the exit code of this run; kExitInterrupted ends the series.
int execute(const Programs& programs, const Options& options, const Manifest* manifest, Planned& planned, Json& gpu);

}  // namespace cglint::capture_tool
