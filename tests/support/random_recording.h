// Recordings with everything in them, for property tests: every node kind with every field, edges with data
// and origin, sync operations, replays, measured accesses, bodies, equal graphs, eager launches, allocations,
// losses. The same seed gives the same recording.
#pragma once

#include <cstdint>

#include "ir/recording.h"

namespace cglint::test {

struct RandomRecordingOptions {
  int graphs = 6;  // without bodies
  int max_nodes = 40;
  bool hostile_names = true;  // control characters, quotes, NUL and all of Unicode in names
  bool sparse = true;         // some graphs lack some columns
  int allocations = 20;       // and half as many allocator blocks
};

ir::Recording random_recording(std::uint64_t seed, const RandomRecordingOptions& options = {});

}  // namespace cglint::test
