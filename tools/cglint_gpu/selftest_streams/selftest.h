// Does the stream model hold for the driver of this machine? Pure bookkeeping: no CUDA in here.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "stream_probe/graph_spec.h"

namespace cglint::gpu {

// A designed graph and the streams that the reference driver gave its nodes, bodies after the graph in the
// order of body_paths().
struct ReferenceGraph {
  GraphSpec spec;
  std::string line;          // as stream_probe reads it
  std::vector<int> streams;  // empty: not measured on the reference driver
};

// Parses "<line of stream_probe> => 0,1,-1,..." lines. Returns an empty string, or what is wrong.
std::string parse_reference(std::string_view text, std::vector<ReferenceGraph>& graphs);

// The model's streams for all nodes, in the same order; -1: no stream, or none that the model claims (bodies of
// conditional nodes). Empty: the model refuses the graph.
std::vector<int> predict(const GraphSpec& spec, unsigned driver_major);

// Whether two stream lists split into the same groups the nodes that have a stream in `measured`.
bool same_partition(const std::vector<int>& measured, const std::vector<int>& other);

struct KindResult {
  std::string kind;  // first part of the family: "memcpy-dtod", "designed", ...
  int graphs = 0;
  int measured = 0;        // graphs that the driver accepted
  int covered = 0;         // measured graphs that the model predicts
  int agree = 0;           // of these, predicted exactly
  int known_gaps = 0;      // not predicted exactly, but wrong on the reference driver too
  int new_mismatches = 0;  // predicted exactly on the reference driver, but not here
  int as_reference = 0;    // measured graphs with the streams that the reference driver gave
  int with_reference = 0;
};

struct Mismatch {
  std::string line;
  std::vector<int> measured;
  std::vector<int> predicted;
  std::vector<int> reference;
  bool known_gap = false;
};

struct SelftestResult {
  std::vector<KindResult> kinds;     // sorted by name
  std::vector<Mismatch> mismatches;  // new ones first, then by size
  std::vector<std::string> refused;  // "line: CUDA call"
  int graphs = 0;
  int measured = 0;
  // The model holds: enough was measured, and nothing that it predicts on the reference driver differs here.
  bool holds() const;
  int new_mismatches() const;
};

SelftestResult judge(const std::vector<ReferenceGraph>& graphs, const std::vector<Measured>& measured,
                     unsigned driver_major);

}  // namespace cglint::gpu
