// Joins a graph's structure (DOT, capture file) with its replay timeline (profiler trace): afterwards the structure's
// graphs hold the replays, and rules that need both can be checked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/recording.h"

namespace cglint::join {

// Stream counts of a graph and of the trace that do not fit together.
struct Doubt {
  std::uint32_t predicted = 0, measured = 0;
  std::string_view why_joined;  // a phrase
};

// One graph of the structure and the traced graph that was matched to it.
struct Match {
  std::string structure_graph, timeline_graph;
  bool by_id = false;              // nodes were matched by graph node id; else by kernel sequence
  std::size_t replays = 0;
  std::size_t operations = 0;      // kernels, memcpys and memsets of these replays
  std::size_t matched = 0;         // of them, those tied to a node
  std::size_t ambiguous = 0;       // matched, but another unordered node looked the same
  std::size_t out_of_order = 0;    // matched although a predecessor in the graph had not started
  std::uint64_t missing = 0;       // nodes without an operation, over launches that the trace gives as whole
  std::optional<Doubt> doubt;      // the two may be of different recordings of the same operations
  // matched / operations; half of that in doubt.
  [[nodiscard]] double quality() const {
    const double share = operations > 0 ? static_cast<double>(matched) / static_cast<double>(operations) : 0.0;
    return doubt ? share / 2 : share;
  }
};

// A traced graph that fits by its operations but not by its streams.
struct Contradiction {
  std::string structure_graph, timeline_graph;
  std::uint32_t predicted = 0, measured = 0;
};

struct Report {
  std::vector<Match> matches;
  std::vector<Contradiction> contradictions;     // not joined
  std::vector<std::string> unmatched_structure;  // graphs of the structure without a traced graph
  std::vector<std::string> unmatched_timeline;   // traced graphs that fit no graph of the structure
};

// Moves the replays of each traced graph of `timeline` that fits a graph of `structure` into that graph, and drops the
// traced graph. A traced graph fits if nearly all (98 %) of the operations of its complete launches are the graph's activity
// nodes by kind, normalised kernel name and launch configuration; of several graphs that fit equally the one without
// replays yet that comes first is taken. Within a launch, operations are walked by start time; each takes the ready node
// (all predecessors taken) that looks the same, preferring the stream its predecessor ran on. Graphs that already have
// replays, bodies and eager launches are left alone.
// The same operations in another order of recording make another graph: where the graph's predicted stream count is certain
// and the trace shows another one, the two are not joined, unless `force` or something speaks for the pair: each operation of a launch
// follows its predecessors, and
// - the trace has node ids, and their order gives the graph's kernels in the order of creation; or
// - the graph does not tell programmatic edges from full ones (DOT), on which streams depend, and either operations of one stream
//   overlap in the trace, as only programmatic launches do, or programmatic edges throughout would give the measured count.
// Such a match carries the doubt.
Report join_timeline(ir::Recording& structure, ir::Recording& timeline, bool force = false);

}  // namespace cglint::join
