#include "runner/kernel_node.h"

#include <cstring>

#include "runner/arguments.h"

namespace cglint::models {
namespace {

template <typename Function>
void load(const char* name, unsigned version, Function& function) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found{};
  if (cudaGetDriverEntryPointByVersion(name, &address, version, cudaEnableDefault, &found) != cudaSuccess ||
      found != cudaDriverEntryPointSuccess)
    throw Problem{std::string("this driver has no ") + name};
  function = reinterpret_cast<Function>(address);
}

}  // namespace

void need(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw Problem{std::string(what) + ": " + cudaGetErrorString(status)};
}
void need(CUresult status, const char* what) {
  if (status != CUDA_SUCCESS) throw Problem{std::string(what) + ": driver error " + std::to_string(static_cast<int>(status))};
}

Driver::Driver() {
  load("cuGraphKernelNodeGetParams", 12000, kernel_params);
  load("cuGraphAddKernelNode", 12000, add_kernel);
  load("cuGraphKernelNodeCopyAttributes", 12000, copy_attributes);
  load("cuFuncGetParamInfo", 12040, param_info);
  load("cuFuncGetName", 12030, function_name);
  load("cuKernelGetFunction", 12000, function_of);
  load("cuMemGetAddressRange", 3020, address_range);
  load("cuMemAddressReserve", 10020, reserve);
}

std::vector<cudaGraphNode_t> nodes_of(cudaGraph_t graph) {
  std::size_t count = 0;
  need(cudaGraphGetNodes(graph, nullptr, &count), "cudaGraphGetNodes");
  std::vector<cudaGraphNode_t> handles(count);
  need(cudaGraphGetNodes(graph, handles.data(), &count), "cudaGraphGetNodes");
  return handles;
}

KernelNode read_kernel_node(const Driver& driver, cudaGraphNode_t handle, std::size_t number) {
  KernelNode node;
  node.handle = handle;
  CUDA_KERNEL_NODE_PARAMS& parameters = node.parameters;
  need(driver.kernel_params(handle, &parameters), "cuGraphKernelNodeGetParams");
  node.function = parameters.func;
  if (node.function == nullptr) need(driver.function_of(&node.function, parameters.kern), "cuKernelGetFunction");
  std::size_t at = 0, bytes = 0;
  for (std::size_t slot = 0; driver.param_info(node.function, slot, &at, &bytes) == CUDA_SUCCESS; ++slot) {
    const std::uint8_t* const value = argument_of(parameters.kernelParams, parameters.extra, slot, at, bytes);
    if (value == nullptr) throw Problem{"the arguments of node " + std::to_string(number) + " cannot be read"};
    node.arguments.emplace_back(value, value + bytes);
  }
  return node;
}

std::vector<Word> words_of(const KernelNode& node) {
  std::vector<Word> words;
  for (std::size_t slot = 0; slot < node.arguments.size(); ++slot)
    for (std::size_t offset = 0; offset + sizeof(std::uint64_t) <= node.arguments[slot].size(); offset += sizeof(std::uint64_t)) {
      Word word{slot, offset, 0};
      std::memcpy(&word.value, node.arguments[slot].data() + offset, sizeof word.value);
      words.push_back(word);
    }
  return words;
}

void add_copy(const Driver& driver, const KernelNode& node, cudaGraph_t graph) {
  CUDA_KERNEL_NODE_PARAMS parameters = node.parameters;
  std::vector<void*> arguments;
  for (const std::vector<std::uint8_t>& argument : node.arguments) arguments.push_back(const_cast<std::uint8_t*>(argument.data()));
  parameters.kernelParams = arguments.data();
  parameters.extra = nullptr;
  CUgraphNode added = nullptr;
  need(driver.add_kernel(&added, graph, nullptr, 0, &parameters), "cuGraphAddKernelNode");
  need(driver.copy_attributes(added, node.handle), "cuGraphKernelNodeCopyAttributes");
}

}  // namespace cglint::models
