// A graph as it is walked in the process that made it, and its lines in the capture file. Plain data: the
// walker fills it, the writer knows no CUDA.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "capture/allocation_timeline.h"
#include "capture/capture_book.h"
#include "capture/range_stack.h"

namespace cglint::capture {

struct FunctionRecord {
  std::string name;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> params;  // offset and size in bytes
  bool has_params = false;
  std::uint32_t registers_per_thread = 0, static_shared_bytes = 0;
};

struct WordRecord {
  std::uint16_t slot = 0, offset_bytes = 0;
  std::uint8_t size_bytes = 8;
  std::uint64_t value = 0;
  std::uint32_t allocation = kNone;
};

// Cuts one parameter's bytes into words of 8, 4, 2 and 1 bytes: a scalar is one word, a struct by value
// several.
void append_words(std::uint16_t slot, std::span<const unsigned char> bytes, std::vector<WordRecord>& words);

struct NodeRecord {
  Handle handle = 0;
  std::string_view kind = "unknown";  // a name of the schema
  std::uint64_t id = 0;               // CUPTI graph node id; 0: unknown
  NodeOrigin origin;
  bool has_origin = false;
  std::int32_t device = -1;
  Handle context = 0;
  // kernel
  std::uint32_t function = kNone;
  std::array<std::uint32_t, 3> grid{}, block{}, cluster{};
  std::uint32_t dynamic_shared_bytes = 0;
  std::optional<int> priority;
  std::optional<bool> cooperative, programmatic;
  std::vector<WordRecord> words;
  bool words_known = false;
  // copies and memsets
  std::uint64_t src = 0, dst = 0, src_pitch_bytes = 0, dst_pitch_bytes = 0, width = 0, height = 1, depth = 1;
  const char* src_kind = nullptr;  // names of the schema
  const char* dst_kind = nullptr;
  std::uint32_t src_allocation = kNone, dst_allocation = kNone;
  std::uint32_t value = 0, element_bytes = 1;
  bool details_known = false;
  std::uint32_t launches = 1;  // role eager: how many the node stands for
  // the rest
  Handle host_function = 0, user_data = 0, event = 0;
  std::string host_symbol;
  std::uint64_t address = 0, bytes = 0;
  std::uint32_t allocation = kNone, count = 0;
  const char* conditional_type = nullptr;
  std::vector<Handle> body_handles;
  std::vector<std::int64_t> bodies;  // graph numbers or -1
};

struct EdgeRecord {
  std::uint32_t from = 0, to = 0;
  std::uint8_t from_port = 0, to_port = 0, type = 0;
  std::uint32_t sync = kNone;
};

struct GraphRecord {
  std::uint32_t number = 0;
  std::string name;  // empty: "graph_" and the number
  Handle handle = 0;
  std::uint64_t source_id = 0;
  const char* role = "built";
  std::int64_t parent = -1, parent_node = -1;
  bool instantiated = false;
  std::optional<std::uint64_t> instantiate_flags;
  std::int64_t instantiate_ns = 0;
  std::uint64_t memory_bytes = 0;  // device memory that instantiating took
  GraphEntry entry;  // capture facts; its nodes are in `nodes`
  std::vector<FunctionRecord> functions;
  std::vector<NodeRecord> nodes;  // in creation order, which is the driver's
  std::vector<EdgeRecord> edges;
  bool edges_known = true, edge_data_known = true;
  bool allocations_known = false;
  bool blocks_expected = false;    // lines with the state of a caching allocator come
  bool nvtx_known = false;         // the process told its NVTX ranges
  bool eager_known = false;        // launches outside capture are in graphs of their own
  bool replays_expected = false;  // a later replays line may come
  std::string failure;            // why the walk stopped; empty: complete
};

// Names the live allocation of every address and of every pointer-sized word.
void resolve_addresses(const AllocationTimeline& timeline, GraphRecord& graph);

struct StreamFacts {
  Handle handle = 0;
  std::optional<int> priority;
};

// What the graphs of a process share.
struct SharedTables {
  const StackTable& stacks;
  const RangeTable& ranges;
  std::span<const StreamFacts> streams;
};

// What became known of an executable graph after its graph's line.
struct ExecFacts {
  std::uint32_t updates = 0, refused_updates = 0;
  std::int64_t upload_ns = 0;
  std::uint64_t last_launch_sequence = 0, destroyed_sequence = 0;  // 0: not launched, still there
};

// Each appends one line with its line feed.
void write_graph(const GraphRecord& graph, const SharedTables& shared, std::string& out);
// After the graph_end only what may come there: launches, destruction, refused updates.
void write_exec(std::uint32_t number, const ExecFacts& facts, bool is_after_end, std::string& out);
void write_graph_end(std::uint32_t number, std::string& out);
void write_allocations(std::span<const AllocationRow> rows, std::string& out);
void write_loss(std::string_view severity, std::string_view what, std::uint64_t count, std::string& out);

}  // namespace cglint::capture
