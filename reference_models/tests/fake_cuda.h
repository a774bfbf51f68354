// A CUDA runtime that runs nothing: it takes the place of the real one in a test program and writes down what
// would be captured, so that the order and the edges of a model's graph can be tested without a GPU. Memory
// is addresses alone; copies from the device give zeros.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <vector>

namespace cglint::fake_cuda {

struct Node {
  std::string function;  // mangled name of the kernel
  cudaStream_t stream = nullptr;
  bool pdl = false;             // launched with programmatic stream serialization
  const void* first = nullptr;  // first argument, of functions whose first argument is a pointer
  std::size_t rows = 0;         // arguments that point to bf16 values,
  std::size_t misaligned = 0;   // and of those, not to a multiple of 16 bytes
};
struct Edge {
  std::uint32_t from = 0, to = 0;
  bool programmatic = false;
};
// What was enqueued since the last reset(), by stream capture's rules: a node depends on what its stream's
// last node and the events it has waited for stand for. All edges of a kernel that asks for it are
// programmatic: CUDA 13.0 makes them so where several streams meet, too.
struct Graph {
  std::vector<Node> nodes;
  std::vector<Edge> edges;
};

void reset();
const Graph& graph();
// Kernel nodes that nothing depends on, of streams other than `stream`: work that was never joined.
std::size_t unjoined(cudaStream_t stream);

}  // namespace cglint::fake_cuda
