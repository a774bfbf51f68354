// A kernel node of a captured graph, to be launched alone: a graph of one node with its arguments and attributes.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <string>
#include <vector>

#include "runner/owners.h"

namespace cglint::models {

// Why something could not be done; thrown.
struct Problem {
  std::string what;
};
void need(cudaError_t status, const char* what);
void need(CUresult status, const char* what);

// Functions of the driver that the runtime has no equal for.
struct Driver {
  decltype(&cuGraphKernelNodeGetParams) kernel_params = nullptr;
  decltype(&cuGraphAddKernelNode) add_kernel = nullptr;
  decltype(&cuGraphKernelNodeCopyAttributes) copy_attributes = nullptr;
  decltype(&cuFuncGetParamInfo) param_info = nullptr;
  decltype(&cuFuncGetName) function_name = nullptr;
  decltype(&cuKernelGetFunction) function_of = nullptr;
  decltype(&cuMemGetAddressRange) address_range = nullptr;
  decltype(&cuMemAddressReserve) reserve = nullptr;

  Driver();  // throws a Problem
};

struct KernelNode {
  cudaGraphNode_t handle = nullptr;
  CUDA_KERNEL_NODE_PARAMS parameters{};
  CUfunction function = nullptr;
  std::vector<std::vector<std::uint8_t>> arguments;  // the bytes of each
};

// Eight bytes of an argument, at a multiple of eight in it.
struct Word {
  std::size_t slot = 0, offset = 0;
  std::uint64_t value = 0;
};

std::vector<cudaGraphNode_t> nodes_of(cudaGraph_t graph);
// `number` of the node is for the message of a Problem.
KernelNode read_kernel_node(const Driver& driver, cudaGraphNode_t handle, std::size_t number);
std::vector<Word> words_of(const KernelNode& node);
// Adds it to `graph`, without dependencies.
void add_copy(const Driver& driver, const KernelNode& node, cudaGraph_t graph);

}  // namespace cglint::models
