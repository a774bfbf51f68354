// Which graphs are the same work: equal in nodes, edges, launch configurations, parameters, capture streams,
// threads, stacks, NVTX ranges and facts. Moments (sequence numbers), ids of the recorder (nodes, events) and
// what the graph is keyed by do not count; graphs of different processes, bodies and eager launches are never
// merged.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "ir/recording.h"

namespace cglint::exporter {

struct ContentHash {
  std::uint64_t low = 0, high = 0;
  friend bool operator==(const ContentHash&, const ContentHash&) = default;
};

// XXH3-128 over texts and values, never over ids of the recording: equal for equal graphs of different files.
// Bodies of child-graph and conditional nodes count by their content.
class ContentHasher {
 public:
  // All calls take the same recording, which may have been moved in between.
  ContentHash hash(const ir::Recording& recording, const ir::Graph& graph);

 private:
  struct Buffer;
  ContentHash hash_one(const ir::Graph& graph, int depth);
  std::uint64_t text_hash(ir::StringId text);
  std::uint64_t stack_hash(ir::StackId stack);
  std::uint64_t nvtx_hash(ir::NvtxId nvtx);
  std::uint64_t function_hash(ir::FunctionId function);

  const ir::Recording* recording_ = nullptr;                      // during hash()
  std::vector<std::uint64_t> texts_, stacks_, nvtx_, functions_;  // by id; 0: not computed yet
  std::unordered_map<ir::GraphId, ContentHash> bodies_;           // a body may be used many times
};

// Whether the two graphs of one recording are the same work, compared value by value.
bool is_same_work(const ir::Recording& recording, const ir::Graph& a, const ir::Graph& b);

}  // namespace cglint::exporter
