// One CUDA graph as a short text line: what stream_probe builds, measures and prints. No CUDA in here.
// README.md beside this file documents the line format and the JSON output.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cglint::gpu {

// The letters of the line format.
enum class NodeKind : char {
  kKernel = 'K',
  kMemset = 'M',
  kMemcpyDtoD = 'C',
  kMemcpyHtoD = 'U',
  kMemcpyDtoH = 'D',
  kEmpty = 'E',
  kHost = 'H',
  kEventRecord = 'R',
  kEventWait = 'W',
  kMemAlloc = 'A',
  kMemFree = 'F',
  kBatchMemOp = 'B',
  kChild = 'G',
  kIf = 'I',
  kWhile = 'L',
  kSwitch = 'S',
};

// Numbers as in the JSON field `edge_types`.
enum class EdgeType : int { kDefault = 0, kProgrammatic = 1, kLaunchOrder = 2 };

struct Edge {
  int from = 0;
  int to = 0;
  EdgeType type = EdgeType::kDefault;
};

enum class KernelTrait { kCooperative, kCluster, kSharedMemory };

inline constexpr int kMaxNodes = 4000;  // all bodies included: one marker value each
inline constexpr int kMaxBodyDepth = 8;
inline constexpr size_t kMaxCopyBytes = size_t{32} << 20;  // of all rows together

struct GraphSpec {
  std::string family;
  std::vector<NodeKind> kinds;    // in creation order
  std::vector<Edge> edges;        // in the order in which they are added
  std::map<int, int> priorities;  // kernel node -> priority attribute
  std::map<int, int> frees;       // free node -> allocation node; filled by parse_line() and normalise()
  std::map<int, std::vector<GraphSpec>> bodies;  // child or conditional node -> its bodies
  std::optional<int> launch_priority;
  bool use_node_priority = false;
  bool edges_after = false;  // create all nodes, then add the edges
  bool pdl_attribute = true;
  std::map<int, KernelTrait> traits;  // kernel node -> what else is special about its launch
  int flags = 0;                      // instantiate flags, besides the one of use_node_priority
  size_t extra_bytes = 0;             // per row, on top of what marks the node: larger copies and memsets
  int rows = 1;                       // copies and memsets of that many rows (pitched)
  int element_bytes = 4;              // of memsets: 1, 2 or 4
  int memset_value = 0;
  size_t offset_bytes = 0;         // shifts the destination of memsets
  bool default_copy_kind = false;  // memcpy nodes are made with cudaMemcpyDefault
  bool pageable = false;           // U and D touch pageable host memory

  int size() const { return static_cast<int>(kinds.size()); }
};

bool has_bodies(NodeKind kind);
bool is_memcpy(NodeKind kind);
// Whether CUPTI of CUDA 13.0 writes an activity record for such a node itself.
bool has_record(NodeKind kind);
// "kernel", "memset", "memcpy", ... as in the JSON field `kinds`.
std::string_view kind_name(NodeKind kind);
// Nodes of the graph and of all its bodies.
int total_nodes(const GraphSpec& spec);

// Gives bodies, frees and edges_after their defaults and checks ranges, cycles and pairs.
// Returns an empty string, or what is wrong.
std::string normalise(GraphSpec& spec);

// Parses one line (not a comment, not blank) and normalises it. On failure returns false and says why in
// `error`.
bool parse_line(std::string_view line, GraphSpec& spec, std::string& error);
std::string print_line(const GraphSpec& spec);

// The streams measured for one graph: 0 launch stream, k >= 1 the others, -1 no record. Bodies in the order
// in which body_paths() lists them.
struct Measured {
  std::vector<int> streams;
  std::vector<std::vector<int>> body_streams;
  std::string error;  // CUDA call that refused the graph, else empty
};

struct BodyRef {
  std::string path;                 // "3", "3#1", "3.1": see README.md
  const GraphSpec* spec = nullptr;  // borrowed from the GraphSpec asked
};
// All bodies, a body before the bodies inside it.
std::vector<BodyRef> body_paths(const GraphSpec& spec);

std::string to_json(const GraphSpec& spec, const Measured& measured);

}  // namespace cglint::gpu
