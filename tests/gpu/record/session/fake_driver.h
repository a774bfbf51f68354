// A driver and a CUPTI that know no GPU: the few calls that the recorder makes, answered from plain tables, and a
// program's driver calls played as CUPTI would tell of them. The shared libraries have the names of the real ones.
#pragma once

#include <cuda.h>
#include <cupti.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace fake {

// What a node allocates.
inline constexpr CUdeviceptr kNodeMemory = 0x9000000;

struct Node {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_KERNEL;
  CUDA_KERNEL_NODE_PARAMS_v2 kernel{};  // without a function the driver does not tell them
};
struct Graph {
  std::vector<CUgraphNode> nodes;
  std::vector<std::pair<CUgraphNode, CUgraphNode>> edges;
};
struct Capture {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUgraph graph = nullptr;
  std::vector<CUgraphNode> dependencies;
};
struct Driver {
  std::map<CUstream, Capture> streams;
  std::map<CUgraph, Graph> graphs;
  std::map<CUfunction, std::string> functions;  // each takes a pointer and a 4-byte number
};
// Of the process.
Driver& driver();

// Tells the subscriber, if there is one. `finalized`: how often CUPTI was shut down.
void tell(CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data);
int finalized();
// Activity records, in one buffer. False if nobody wants them.
bool hand_over(const std::vector<std::vector<unsigned char>>& records);

}  // namespace fake
