// Reads a CUDA graph through the driver into records. Makes driver and CUPTI calls: never call it with a lock
// held that a callback takes.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "capture/graph_record.h"
#include "cuda/cupti_api.h"
#include "cuda/driver_api.h"

namespace cglint::capture {

struct WalkContext {
  const cuda::DriverApi* driver = nullptr;
  const cuda::CuptiApi* cupti = nullptr;             // null: no node ids, devices of kernels unknown
  std::function<GraphEntry(Handle graph)> entry_of;  // what the book knows of a graph
  std::function<std::uint32_t()> next_number;        // graph numbers of the file
};

// The graph last, the bodies of its child-graph and conditional nodes before it, innermost first. Addresses
// are not resolved. A graph that could not be read says why in `failure`.
std::vector<GraphRecord> walk_graph(const WalkContext& context, CUgraph graph);

// Name, parameter layout, registers, shared memory of a kernel. Asking may load it.
FunctionRecord read_function(const cuda::DriverApi& driver, CUfunction function);

}  // namespace cglint::capture
