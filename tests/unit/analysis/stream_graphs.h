// Reads tests/data/streams/*.graphs.gz: measured graphs with the stream of each node (format: README.md
// there).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "analysis/stream_model.h"

namespace cglint::test_support {

struct MeasuredGraph {
  std::string family;
  std::vector<analysis::StreamNodeKind> kinds;
  std::vector<analysis::StreamEdge> edges;
  std::vector<std::uint32_t> owner;   // child-graph node that a node is in the body of; empty where there is no body
  std::vector<std::int32_t> streams;  // measured; 0 = launch stream, -1 = no activity record
  std::size_t line = 0;
  [[nodiscard]] analysis::StreamGraph graph() const { return {kinds, edges, owner}; }
};

// Aborts the test (ADD_FAILURE and an empty result) on a file that cannot be read.
std::vector<MeasuredGraph> read_stream_graphs(const std::string& path);

// The measured and the predicted partition of the nodes that have a record are the same.
bool same_partition(const MeasuredGraph& graph, const analysis::StreamPrediction& prediction);
// Also the order in which the streams were made, with gaps, counted from the first stream seen that is not
// the launch stream.
bool same_numbers(const MeasuredGraph& graph, const analysis::StreamPrediction& prediction);

}  // namespace cglint::test_support
