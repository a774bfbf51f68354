// Reads cglint's own capture files (docs/schema/capture.schema.json): JSON Lines, a line at a time, so that a
// file may be larger than memory.
//
// What is not as the schema says is never silent:
//  - the first line is not a header, or a header has a newer major version: an Error;
//  - a record that cannot be parsed, contradicts itself or refers to what the file does not contain is
//  skipped and
//    counted as an error-severity Loss with the byte offset of its line; the facts that it would have carried
//    are spoiled for the graphs that it could have belonged to;
//  - a torn end (cut text, cut gzip member or zstd frame) and a missing `end` record are data-loss Losses;
//  graphs without
//    graph_end then have their replays marked incomplete, and lose facts that announced records which never
//    came;
//  - unknown properties, values and record types are counted in one Loss each.
#pragma once

#include <memory>

#include "import/common/importer.h"

namespace cglint::import {

std::unique_ptr<Importer> make_capture_importer();

}  // namespace cglint::import
