#include <cstring>

#include "fake_driver.h"

namespace fake {

__attribute__((visibility("default"))) Driver& driver() {
  static Driver state;
  return state;
}

namespace {

template <typename T>
CUresult list(const std::vector<T>& from, T* out, std::size_t* count) {
  if (out != nullptr)
    for (std::size_t i = 0; i < from.size() && i < *count; ++i) out[i] = from[i];
  *count = from.size();
  return CUDA_SUCCESS;
}

CUresult driver_get_version(int* version) {
  *version = 13000;
  return CUDA_SUCCESS;
}
CUresult stream_get_capture_info(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                 const CUgraphNode** dependencies, const CUgraphEdgeData** edges, std::size_t* count) {
  const Capture& capture = driver().streams[stream];
  *status = capture.status;
  *id = 1;
  *graph = capture.graph;
  *dependencies = capture.dependencies.data();
  *edges = nullptr;
  *count = capture.dependencies.size();
  return CUDA_SUCCESS;
}
CUresult graph_get_nodes(CUgraph graph, CUgraphNode* nodes, std::size_t* count) {
  if (!driver().graphs.contains(graph)) return CUDA_ERROR_INVALID_HANDLE;
  return list(driver().graphs.at(graph).nodes, nodes, count);
}
CUresult graph_get_edges(CUgraph graph, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data, std::size_t* count) {
  const auto& edges = driver().graphs.at(graph).edges;
  for (std::size_t i = 0; from != nullptr && i < edges.size(); ++i)
    from[i] = edges[i].first, to[i] = edges[i].second, data[i] = {};
  *count = edges.size();
  return CUDA_SUCCESS;
}
CUresult graph_node_get_type(CUgraphNode node, CUgraphNodeType* type) {
  *type = reinterpret_cast<const Node*>(node)->type;
  return CUDA_SUCCESS;
}
CUresult graph_kernel_node_get_params(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v2* params) {
  *params = reinterpret_cast<const Node*>(node)->kernel;
  return params->func == nullptr ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}
CUresult func_get_name(const char** name, CUfunction function) {
  const auto known = driver().functions.find(function);
  if (known == driver().functions.end()) return CUDA_ERROR_INVALID_HANDLE;
  *name = known->second.c_str();
  return CUDA_SUCCESS;
}
CUresult func_get_param_info(CUfunction, std::size_t index, std::size_t* offset, std::size_t* size) {
  if (index > 1) return CUDA_ERROR_INVALID_VALUE;
  *offset = 8 * index;
  *size = index == 0 ? 8 : 4;
  return CUDA_SUCCESS;
}
CUresult device_get_count(int* count) {
  *count = 0;
  return CUDA_SUCCESS;
}
CUresult stream_get_priority(CUstream, int* priority) {
  *priority = 0;
  return CUDA_SUCCESS;
}
CUresult ctx_get_device(CUdevice* device) {
  *device = 0;
  return CUDA_SUCCESS;
}
CUresult mem_get_info(std::size_t* available, std::size_t* total) {
  static std::size_t left = std::size_t{1} << 30;
  left -= 4096;
  *available = left;
  *total = std::size_t{1} << 30;
  return CUDA_SUCCESS;
}
CUresult graph_mem_alloc_node_get_params(CUgraphNode, CUDA_MEM_ALLOC_NODE_PARAMS_v1* params) {
  params->dptr = kNodeMemory;
  params->bytesize = 4096;
  return CUDA_SUCCESS;
}
// What the scenarios do not need.
CUresult unsupported() {
  return CUDA_ERROR_NOT_SUPPORTED;
}

template <typename Function>
void* address(Function* function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace
}  // namespace fake

extern "C" __attribute__((visibility("default"))) CUresult cuGetProcAddress_v2(const char* symbol, void** function, int,
                                                                               cuuint64_t,
                                                                               CUdriverProcAddressQueryResult* result) {
  const std::pair<const char*, void*> known[] = {
      {"cuDriverGetVersion", fake::address(fake::driver_get_version)},
      {"cuStreamGetCaptureInfo", fake::address(fake::stream_get_capture_info)},
      {"cuGraphGetNodes", fake::address(fake::graph_get_nodes)},
      {"cuGraphGetEdges", fake::address(fake::graph_get_edges)},
      {"cuGraphNodeGetType", fake::address(fake::graph_node_get_type)},
      {"cuGraphKernelNodeGetParams", fake::address(fake::graph_kernel_node_get_params)},
      {"cuFuncGetName", fake::address(fake::func_get_name)},
      {"cuFuncGetParamInfo", fake::address(fake::func_get_param_info)},
      {"cuDeviceGetCount", fake::address(fake::device_get_count)},
      {"cuStreamGetPriority", fake::address(fake::stream_get_priority)},
      {"cuCtxGetDevice", fake::address(fake::ctx_get_device)},
      {"cuMemGetInfo", fake::address(fake::mem_get_info)},
      {"cuGraphMemAllocNodeGetParams", fake::address(fake::graph_mem_alloc_node_get_params)},
  };
  *function = fake::address(fake::unsupported);
  for (const auto& [name, implementation] : known)
    if (std::strcmp(symbol, name) == 0) *function = implementation;
  *result = CU_GET_PROC_ADDRESS_SUCCESS;
  return CUDA_SUCCESS;
}
