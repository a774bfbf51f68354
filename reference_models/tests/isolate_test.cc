// Kernels launched alone, with a fake of the parts of CUDA that this takes: kernels are functions that say whether their arguments fault.
#include "runner/isolate.h"

#include <cuda.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace cglint::models {
namespace {

using Bytes = std::vector<std::uint8_t>;
using Arguments = std::vector<Bytes>;

struct Function {
  std::string name;
  std::vector<std::size_t> sizes;  // of its arguments
  std::function<bool(const Arguments&)> faults = [](const Arguments&) { return false; };
  bool is_refused = false;
};
struct Node {
  Function* function = nullptr;  // null: no kernel
  Arguments arguments;
  bool is_packed = false;
  // As the driver shows them.
  Bytes buffer;
  std::size_t buffer_bytes = 0;
  std::vector<void*> pointers;
  std::array<void*, 5> extra{};
};
struct Graph {
  std::vector<std::unique_ptr<Node>> nodes;
};

constexpr std::uint64_t kScratch = 0x7f0000000000, kUnmapped = 0x7e0000000000;

struct Gpu {
  bool is_lost = false, is_full = false;
  std::vector<Arguments> launched;
};
Gpu gpu;

template <typename Handle>
Graph& graph_of(Handle handle) {
  return *reinterpret_cast<Graph*>(handle);
}
Function& function_of(CUfunction handle) { return *reinterpret_cast<Function*>(handle); }

CUresult kernel_params(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS* parameters) {
  Node& node = *reinterpret_cast<Node*>(handle);
  *parameters = {};
  parameters->func = reinterpret_cast<CUfunction>(node.function);
  node.pointers.clear();
  node.buffer.clear();
  for (Bytes& argument : node.arguments) {
    node.pointers.push_back(argument.data());
    node.buffer.insert(node.buffer.end(), argument.begin(), argument.end());
  }
  node.buffer_bytes = node.buffer.size();
  node.extra = {CU_LAUNCH_PARAM_BUFFER_SIZE, &node.buffer_bytes, CU_LAUNCH_PARAM_BUFFER_POINTER, node.buffer.data(), CU_LAUNCH_PARAM_END};
  if (node.is_packed) {
    parameters->extra = node.extra.data();
  } else {
    parameters->kernelParams = node.pointers.data();
  }
  return CUDA_SUCCESS;
}
CUresult add_kernel(CUgraphNode* added, CUgraph graph, const CUgraphNode*, std::size_t, const CUDA_KERNEL_NODE_PARAMS* parameters) {
  auto node = std::make_unique<Node>();
  node->function = &function_of(parameters->func);
  for (std::size_t i = 0; i < node->function->sizes.size(); ++i) {
    const auto* const value = static_cast<const std::uint8_t*>(parameters->kernelParams[i]);
    node->arguments.emplace_back(value, value + node->function->sizes[i]);
  }
  *added = reinterpret_cast<CUgraphNode>(node.get());
  graph_of(graph).nodes.push_back(std::move(node));
  return CUDA_SUCCESS;
}
CUresult copy_attributes(CUgraphNode, CUgraphNode) { return CUDA_SUCCESS; }
CUresult param_info(CUfunction handle, std::size_t index, std::size_t* at, std::size_t* bytes) {
  const Function& function = function_of(handle);
  if (index >= function.sizes.size()) return CUDA_ERROR_INVALID_VALUE;
  *at = 0;
  for (std::size_t i = 0; i < index; ++i) *at += function.sizes[i];
  *bytes = function.sizes[index];
  return CUDA_SUCCESS;
}
CUresult function_name(const char** name, CUfunction handle) {
  *name = function_of(handle).name.c_str();
  return CUDA_SUCCESS;
}
CUresult no_function(CUfunction*, CUkernel) { return CUDA_ERROR_INVALID_VALUE; }
CUresult no_range(CUdeviceptr*, std::size_t*, CUdeviceptr) { return CUDA_ERROR_INVALID_VALUE; }
CUresult reserve(CUdeviceptr* address, std::size_t, std::size_t, CUdeviceptr, unsigned long long) {
  *address = kUnmapped;
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace cglint::models

using namespace cglint::models;

extern "C" {

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long, cudaDriverEntryPointQueryResult* found) {
  const std::pair<const char*, void*> known[] = {
      {"cuGraphKernelNodeGetParams", reinterpret_cast<void*>(kernel_params)}, {"cuGraphAddKernelNode", reinterpret_cast<void*>(add_kernel)},
      {"cuGraphKernelNodeCopyAttributes", reinterpret_cast<void*>(copy_attributes)}, {"cuFuncGetParamInfo", reinterpret_cast<void*>(param_info)},
      {"cuFuncGetName", reinterpret_cast<void*>(function_name)}, {"cuKernelGetFunction", reinterpret_cast<void*>(no_function)},
      {"cuMemGetAddressRange", reinterpret_cast<void*>(no_range)}, {"cuMemAddressReserve", reinterpret_cast<void*>(reserve)}};
  for (const auto& [name, address] : known)
    if (std::strcmp(symbol, name) == 0) {
      *function = address;
      *found = cudaDriverEntryPointSuccess;
      return cudaSuccess;
    }
  *found = cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
  const Graph& here = graph_of(graph);
  *count = here.nodes.size();
  for (std::size_t i = 0; nodes != nullptr && i < here.nodes.size(); ++i) nodes[i] = reinterpret_cast<cudaGraphNode_t>(here.nodes[i].get());
  return cudaSuccess;
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  *type = reinterpret_cast<Node*>(node)->function != nullptr ? cudaGraphNodeTypeKernel : cudaGraphNodeTypeMemset;
  return cudaSuccess;
}
cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned) {
  *graph = reinterpret_cast<cudaGraph_t>(new Graph);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete &graph_of(graph);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = reinterpret_cast<cudaGraphExec_t>(graph);
  return graph_of(graph).nodes.at(0)->function->is_refused ? cudaErrorNotSupported : cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t) {
  const Graph& graph = graph_of(exec);
  EXPECT_EQ(graph.nodes.size(), 1U);
  gpu.launched.push_back(graph.nodes.at(0)->arguments);
  gpu.is_lost = gpu.is_lost || graph.nodes.at(0)->function->faults(graph.nodes.at(0)->arguments);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return gpu.is_lost ? cudaErrorIllegalAddress : cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return gpu.is_lost ? cudaErrorIllegalAddress : cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaMalloc(void** pointer, std::size_t) {
  *pointer = reinterpret_cast<void*>(kScratch);
  return gpu.is_full ? cudaErrorMemoryAllocation : cudaSuccess;
}
cudaError_t cudaFree(void*) { return cudaSuccess; }
cudaError_t cudaMemset(void*, int, std::size_t) { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "an error"; }
const char* cudaGetErrorName(cudaError_t error) { return error == cudaErrorIllegalAddress ? "cudaErrorIllegalAddress" : "another"; }

}  // extern "C"

namespace cglint::models {
namespace {

Bytes bytes_of(const std::vector<std::uint64_t>& words) {
  Bytes bytes(words.size() * 8);
  std::memcpy(bytes.data(), words.data(), bytes.size());
  return bytes;
}
std::uint64_t word_of(const Arguments& arguments, std::size_t slot, std::size_t word = 0) {
  std::uint64_t value = 0;
  std::memcpy(&value, arguments.at(slot).data() + 8 * word, 8);
  return value;
}
bool is_memory(std::uint64_t address) { return address >= kScratch; }

class Isolate : public testing::Test {
 protected:
  void SetUp() override { gpu = {}; }

  void add(Function& function, const std::vector<std::vector<std::uint64_t>>& arguments, bool is_packed = false) {
    auto node = std::make_unique<Node>();
    node->function = &function;
    node->is_packed = is_packed;
    for (const auto& words : arguments) node->arguments.push_back(bytes_of(words));
    graph_.nodes.push_back(std::move(node));
  }
  void add_fill() { graph_.nodes.push_back(std::make_unique<Node>()); }

  // What it returns; `said_` is what it told.
  IsolateResult run(std::size_t first, std::optional<IsolateOptions::Patch> patch = std::nullopt) {
    gpu.launched.clear();
    gpu.is_lost = false;
    std::FILE* const file = std::tmpfile();
    const int kept = dup(STDOUT_FILENO);
    std::fflush(stdout);
    dup2(fileno(file), STDOUT_FILENO);
    const IsolateResult result = isolate(reinterpret_cast<cudaGraph_t>(&graph_), nullptr, {first, patch});
    dup2(kept, STDOUT_FILENO);
    close(kept);
    said_.clear();
    std::rewind(file);
    for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) said_ += static_cast<char>(c);
    std::fclose(file);
    return result;
  }

  Graph graph_;
  Function reads_{"reads", {8, 16}, [](const Arguments& a) { return !is_memory(word_of(a, 0)); }};
  Function optional_{"optional", {8, 8}};
  std::string said_;
};

TEST_F(Isolate, OneOfEachKindWithNullWordsUntilOneFaults) {
  add(optional_, {{kScratch}, {kScratch}});      // 0: no null word
  add(optional_, {{0}, {kScratch}});             // 1
  add_fill();                                    // 2
  add(optional_, {{0}, {kScratch + 64}});        // 3: of the kind of 1
  add(optional_, {{0}, {9}});                    // 4: another kind
  add(reads_, {{0}, {kScratch, 7}});             // 5: faults
  add(reads_, {{0}, {kScratch + 256, 9}});       // 6: of the kind of 5
  add(reads_, {{kScratch}, {65536, 65535}});     // 7
  IsolateResult result = run(0);
  EXPECT_TRUE(result.is_fault);
  EXPECT_EQ(result.problem, "node 5 alone: cudaErrorIllegalAddress: an error");
  EXPECT_EQ(said_,
            "{\"event\":\"isolating\",\"node\":1,\"function\":\"optional\",\"words\":[[0,0,0]]}\n{\"event\":\"isolated\",\"node\":1,\"ran\":true}\n"
            "{\"event\":\"isolating\",\"node\":4,\"function\":\"optional\",\"words\":[[0,0,0],[1,0,9]]}\n{\"event\":\"isolated\",\"node\":4,\"ran\":true}\n"
            "{\"event\":\"isolating\",\"node\":5,\"function\":\"reads\",\"words\":[[0,0,0],[1,8,7]]}\n");
  result = run(6);
  EXPECT_EQ(result.problem, "");
  EXPECT_FALSE(result.is_fault);
  EXPECT_EQ(said_,
            "{\"event\":\"isolating\",\"node\":7,\"function\":\"reads\",\"words\":[[1,8,65535]]}\n{\"event\":\"isolated\",\"node\":7,\"ran\":true}\n"
            "{\"event\":\"isolation\",\"nodes\":8,\"kernels\":7,\"kinds\":4,\"launches\":1}\n");
}

TEST_F(Isolate, OneWordIsReplacedAndTheRestIsAsCaptured) {
  for (const bool is_packed : {false, true}) {
    graph_.nodes.clear();
    add(reads_, {{64}, {kScratch, 7}}, is_packed);
    EXPECT_TRUE(run(0).is_fault);
    EXPECT_EQ(gpu.launched.at(0), (Arguments{bytes_of({64}), bytes_of({kScratch, 7})}));
    EXPECT_TRUE(run(0, IsolateOptions::Patch{1, 8, false}).is_fault);
    EXPECT_EQ(gpu.launched.at(0), (Arguments{bytes_of({64}), bytes_of({kScratch, kScratch + 7})}));
    const IsolateResult helped = run(0, IsolateOptions::Patch{0, 0, false});
    EXPECT_EQ(helped.problem, "");
    EXPECT_EQ(gpu.launched.at(0), (Arguments{bytes_of({kScratch + 64}), bytes_of({kScratch, 7})}));
    EXPECT_NE(said_.find("\"ran\":true"), std::string::npos);
    EXPECT_TRUE(run(0, IsolateOptions::Patch{0, 0, true}).is_fault);
    EXPECT_EQ(gpu.launched.at(0), (Arguments{bytes_of({kUnmapped + 64}), bytes_of({kScratch, 7})}));
  }
}

TEST_F(Isolate, WhatCannotBeReplacedIsAProblem) {
  add_fill();
  add(optional_, {{0}, {kScratch}});
  for (const auto& [node, patch] : {std::pair(0U, IsolateOptions::Patch{0, 0, false}), {5U, {0, 0, false}}, {1U, {1, 0, false}}, {1U, {0, 8, false}}, {1U, {2, 0, false}}}) {
    const IsolateResult result = run(node, patch);
    EXPECT_NE(result.problem, "");
    EXPECT_FALSE(result.is_fault || result.no_memory);
    EXPECT_TRUE(gpu.launched.empty());
  }
  gpu.is_full = true;
  EXPECT_TRUE(run(1, IsolateOptions::Patch{0, 0, false}).no_memory);
}

TEST_F(Isolate, ALaunchThatIsRefusedDoesNotEndIt) {
  Function refused{"refused", {8}};
  refused.is_refused = true;
  add(refused, {{0}});
  add(optional_, {{0}, {kScratch}});
  EXPECT_EQ(run(0).problem, "");
  EXPECT_NE(said_.find("{\"event\":\"isolated\",\"node\":0,\"ran\":false,\"refused\":\"cudaGraphInstantiate: an error\"}\n"), std::string::npos) << said_;
  EXPECT_NE(said_.find("{\"event\":\"isolated\",\"node\":1,\"ran\":true}\n"), std::string::npos) << said_;
  EXPECT_NE(said_.find("\"launches\":1}"), std::string::npos) << said_;
}

}  // namespace
}  // namespace cglint::models
