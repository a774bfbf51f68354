// The capture file of a run: what the recorder wrote, joined with what was measured in a process without it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
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

// What the kernels of a graph read and write, as a process with other addresses measured it.
struct AccessFacts {
  struct Word {
    std::uint16_t slot = 0, offset_bytes = 0;
    std::uint64_t value = 0, base = 0;  // of the allocation that it points into
  };
  struct Range {
    std::uint64_t begin = 0, end = 0, base = 0;
    bool reads = false, writes = false;
  };
  struct Node {
    std::uint32_t number = 0;
    std::vector<Word> words;
    std::vector<Range> ranges;
  };
  std::vector<Node> nodes;
  // Argument words that are null, or null with an offset, and that the kernel dereferences.
  struct Null {
    std::uint32_t node = 0;
    std::uint16_t slot = 0, offset_bytes = 0;
    std::uint64_t value = 0;
  };
  std::vector<Null> nulls;
};
// Adds them to `graph`, whose arguments tell where each of that process's allocations lies in its own. Returns why it could not,
// or "".
std::string add_accesses(const AccessFacts& facts, ir::Graph& graph);

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
// `to`, compressed by its name. `command` becomes that of its process. `accesses` are of the only captured graph; none: not measured. `note`, if not empty, becomes a lost-records note of the file: why a part is missing.
base::Result<Recorded> write_recording(const std::string& from, const std::string& to, const std::string& command, const std::vector<UntracedFacts>& facts,
                                       const AccessFacts& accesses, const std::string& note);

// Which run a recording is of.
struct HeldRun {
  std::string model, variant, preset, beside;  // beside: "" for none
  int layers = 0, batch = 0;
  friend bool operator==(const HeldRun&, const HeldRun&) = default;
};
// Of the command "cglint-model-runner run MODEL --variant V --preset P --layers N --batch B ...". Nothing: it is another one, or leaves one of
// these out.
std::optional<HeldRun> run_of_command(std::string_view command);
// What the command of a recording's process says. The error is one of reading.
base::Result<std::optional<HeldRun>> held_run(const std::string& file);

}  // namespace cglint::capture_tool
