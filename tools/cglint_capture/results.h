// The results of a series of runs: one JSON object a run, a JSON document of all, and the table that people read.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/result.h"

namespace cglint::capture_tool {

using Json = nlohmann::ordered_json;

// {"format": "cglint-models", "version": "1.0", "date", "gpu", "runs": [...]}
Json make_document(const std::string& model);
// Of an earlier series; its runs are found again by same_run().
base::Result<Json> read_document(const std::string& path);
base::Result<void> write_document(const Json& document, const std::string& path);

// The properties that say which run it is: model, variant, preset, layers, batch, context, seed, connections, pdl, serve.
bool same_run(const Json& a, const Json& b);

// Sets "same_bits" of every run whose variant must have the output bits of another one that ran with the same options.
// False if one differs.
bool compare_bits(Json& runs);

std::string render_table(const Json& document);

}  // namespace cglint::capture_tool
