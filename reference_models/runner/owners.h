// Owners of graphs. Handles are freed with the context where a fault has made that impossible.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

namespace cglint::models {

struct GraphDeleter {
  using pointer = cudaGraph_t;
  void operator()(cudaGraph_t graph) const { (void)cudaGraphDestroy(graph); }
};
struct ExecDeleter {
  using pointer = cudaGraphExec_t;
  void operator()(cudaGraphExec_t exec) const { (void)cudaGraphExecDestroy(exec); }
};
using GraphOwner = std::unique_ptr<cudaGraph_t, GraphDeleter>;
using ExecOwner = std::unique_ptr<cudaGraphExec_t, ExecDeleter>;

}  // namespace cglint::models
