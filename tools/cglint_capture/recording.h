// The capture file of a run: what the recorder wrote, joined with what was measured in a process without it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "ir/graph.h"

namespace cglint::capture_tool {

// What the process without the recorder measured of a graph; zero or negative: unknown.
struct UntracedFacts {
  ir::UntracedTiming timing;
  double instantiate_us = 0, upload_us = 0;
  std::int64_t memory_bytes = -1;
  int batch = 0;
};

struct RecordedGraph {
  std::string name;  // as in the linter's report
  std::size_t nodes = 0;
  bool instantiated = false;
  std::uint32_t streams_measured = 0;  // most of a launch; 0: not traced
};

struct Recorded {
  std::vector<RecordedGraph> graphs;   // captured ones, in the order of the file
  std::uint32_t total_streams = 0;     // distinct in the whole recording
};

// Reads `from` (a recorder's file, torn or not, or a DOT dump), adds `facts[i]` to the i-th captured graph and writes
// `to`, compressed by its name. `note`, if not empty, becomes a lost-records note of the file: why a part is missing.
base::Result<Recorded> write_recording(const std::string& from, const std::string& to, const std::vector<UntracedFacts>& facts,
                                       const std::string& note);

}  // namespace cglint::capture_tool
