// A graph of the played driver: a decoder whose layers have a side branch.
#include <cstdint>
#include <deque>
#include <initializer_list>

#include "../record/session/fake_driver.h"

// `layers` layers of a main branch and one on a side stream, each two kernels; side_first: the side branch is recorded first.
extern "C" __attribute__((visibility("default"))) CUgraph played_graph(int layers, int side_first) {
  static std::deque<fake::Node> nodes;
  static std::uint64_t address = 0x7f0000001000;
  static std::uint32_t count = 64;
  static void* arguments[] = {&address, &count};
  fake::Driver& driver = fake::driver();
  const auto graph = reinterpret_cast<CUgraph>(0x1000 + 16 * driver.graphs.size());
  fake::Graph& made = driver.graphs[graph];
  const auto kernel = [&](std::uintptr_t function, const char* name, std::initializer_list<CUgraphNode> after) {
    fake::Node node;
    node.kernel.func = reinterpret_cast<CUfunction>(function);
    node.kernel.gridDimX = node.kernel.blockDimX = 32;
    node.kernel.gridDimY = node.kernel.gridDimZ = node.kernel.blockDimY = node.kernel.blockDimZ = 1;
    node.kernel.kernelParams = arguments;
    driver.functions[node.kernel.func] = name;
    nodes.push_back(node);
    const auto handle = reinterpret_cast<CUgraphNode>(&nodes.back());
    made.nodes.push_back(handle);
    for (const CUgraphNode before : after)
      if (before != nullptr) made.edges.emplace_back(before, handle);
    return handle;
  };
  CUgraphNode join = kernel(1, "norm", {}), side = nullptr;
  for (int layer = 0; layer < layers; ++layer) {
    CUgraphNode main = nullptr;
    for (const bool is_side : {side_first != 0, side_first == 0}) {
      CUgraphNode& tail = is_side ? side : main;
      tail = is_side ? kernel(2, "shared_up", {side, join}) : kernel(3, "routed_up", {join});
      tail = is_side ? kernel(4, "shared_down", {tail}) : kernel(5, "routed_down", {tail});
    }
    join = kernel(6, "combine", {main, side});
  }
  return graph;
}
