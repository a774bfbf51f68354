#include "tests/fake_cuda.h"

#include <cuda.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <cxxabi.h>
#include <map>
#include <string>
#include <vector>

namespace cglint::fake_cuda {
namespace {

struct State {
  Graph graph;
  std::map<cudaStream_t, std::vector<std::uint32_t>> streams;  // what the next node of the stream depends on
  std::map<cudaEvent_t, std::vector<std::uint32_t>> events;
  std::uintptr_t next_address = 0x7f0000000000;
};
State& state() {
  static State state;
  return state;
}
std::map<const void*, std::string>& functions() {
  static std::map<const void*, std::string> functions;
  return functions;
}

void enqueue(cudaStream_t stream, Node node) {
  std::vector<std::uint32_t>& tail = state().streams[stream];
  const auto index = static_cast<std::uint32_t>(state().graph.nodes.size());
  const bool after_kernels = std::all_of(tail.begin(), tail.end(), [](std::uint32_t from) {
    return state().graph.nodes[from].function != "memcpy";
  });
  const bool programmatic = node.pdl && after_kernels;
  for (const std::uint32_t from : tail) state().graph.edges.push_back({from, index, programmatic});
  tail = {index};
  node.stream = stream;
  state().graph.nodes.push_back(std::move(node));
}

// As far as anyone reads a tensor map: the address in its first word.
CUresult encode_tensor_map(CUtensorMap* map, CUtensorMapDataType, cuuint32_t, void* address, const cuuint64_t*, const cuuint64_t*,
                           const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                           CUtensorMapFloatOOBfill) {
  *map = {};
  std::memcpy(map, &address, sizeof address);
  return CUDA_SUCCESS;
}

}  // namespace

void reset() {
  state().graph = {};
  state().streams.clear();
  state().events.clear();
}

const Graph& graph() {
  return state().graph;
}

std::size_t unjoined(cudaStream_t stream) {
  std::vector<bool> has_successor(state().graph.nodes.size());
  for (const Edge& edge : state().graph.edges) has_successor[edge.from] = true;
  for (const std::uint32_t node : state().streams[stream]) has_successor[node] = true;
  return static_cast<std::size_t>(std::count(has_successor.begin(), has_successor.end(), false));
}

}  // namespace cglint::fake_cuda

using namespace cglint::fake_cuda;

// The parts of the runtime that the models and kernels call, and those that code compiled by nvcc calls.
// Which arguments of a function point to bf16 values, by its mangled name.
const std::vector<std::size_t>& bf16_pointers(const std::string& function) {
  static std::map<std::string, std::vector<std::size_t>> known;
  const auto [entry, is_new] = known.try_emplace(function);
  if (!is_new) return entry->second;
  char* const demangled = abi::__cxa_demangle(function.c_str(), nullptr, nullptr, nullptr);
  const std::string text = demangled != nullptr ? demangled : "";
  std::free(demangled);
  const std::size_t close = text.rfind(')');
  const std::size_t open = text.rfind('(', close);
  if (open == std::string::npos || close == std::string::npos) return entry->second;
  std::size_t index = 0;
  for (std::size_t begin = open + 1; begin < close; ++index) {
    const std::size_t end = std::min(text.find(',', begin), close);
    const std::string type = text.substr(begin, end - begin);
    if (type.find("__nv_bfloat16") != std::string::npos && type.ends_with('*')) entry->second.push_back(index);
    begin = end + 1;
  }
  return entry->second;
}

extern "C" {

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  *pointer = reinterpret_cast<void*>(state().next_address);
  state().next_address += (bytes + 511) / 512 * 512;
  return cudaSuccess;
}
cudaError_t cudaFree(void*) {
  return cudaSuccess;
}
cudaError_t cudaMemset(void*, int, std::size_t) {
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void*, int, std::size_t, cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void*, std::size_t bytes, cudaMemcpyKind kind) {
  if (kind == cudaMemcpyDeviceToHost) std::memset(to, 0, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpy2D(void*, std::size_t, const void*, std::size_t, std::size_t, std::size_t,
                         cudaMemcpyKind) {
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void*, const void*, std::size_t, cudaMemcpyKind, cudaStream_t stream) {
  enqueue(stream, {"memcpy", nullptr, false, nullptr});
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
cudaError_t cudaPeekAtLastError() {
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t) {
  return "error";
}
const char* cudaGetErrorName(cudaError_t) {
  return "error";
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
// An H200.
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = 132;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = 227 * 1024;
      return cudaSuccess;
    default:
      return cudaErrorInvalidValue;
  }
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strncpy(properties->name, "NVIDIA H200", sizeof properties->name - 1);
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return cudaSuccess;
}
static cudaError_t entry_point(const char* symbol, void** function, cudaDriverEntryPointQueryResult* found) {
  const bool is_known = std::strcmp(symbol, "cuTensorMapEncodeTiled") == 0;
  *function = is_known ? reinterpret_cast<void*>(encode_tensor_map) : nullptr;
  if (found != nullptr) *found = is_known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
#if CUDART_VERSION >= 12050
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  return entry_point(symbol, function, found);
}
#else
cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long, cudaDriverEntryPointQueryResult* found) {
  return entry_point(symbol, function, found);
}
#endif

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  state().events[event] = state().streams[stream];
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  std::vector<std::uint32_t>& tail = state().streams[stream];
  for (const std::uint32_t node : state().events[event])
    if (std::find(tail.begin(), tail.end(), node) == tail.end()) tail.push_back(node);
  return cudaSuccess;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  Node node;
  const auto found = functions().find(function);
  if (found == functions().end()) return cudaErrorInvalidDeviceFunction;
  node.function = found->second;
  for (unsigned i = 0; i < config->numAttrs; ++i)
    node.pdl |= config->attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization &&
                config->attrs[i].val.programmaticStreamSerializationAllowed != 0;
  if (node.function.find("skinny_gemm_kernel") != std::string::npos)
    node.first = *static_cast<void**>(arguments[0]);
  for (const std::size_t i : bf16_pointers(node.function)) {
    ++node.rows;
    node.misaligned += reinterpret_cast<std::uintptr_t>(*static_cast<void**>(arguments[i])) % 16 == 0 ? 0 : 1;
  }
  enqueue(config->stream, std::move(node));
  return cudaSuccess;
}

// Timing, and graphs of one's own: not here.
cudaError_t cudaStreamCreateWithFlags(cudaStream_t*, unsigned) {
  return cudaErrorNotSupported;
}
cudaError_t cudaStreamDestroy(cudaStream_t) {
  return cudaErrorNotSupported;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) {
  return cudaErrorNotSupported;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t*) {
  return cudaErrorNotSupported;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t*, cudaGraph_t, unsigned long long) {
  return cudaErrorNotSupported;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) {
  return cudaErrorNotSupported;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) {
  return cudaErrorNotSupported;
}
cudaError_t cudaGraphDestroy(cudaGraph_t) {
  return cudaErrorNotSupported;
}
cudaError_t cudaEventCreate(cudaEvent_t*) {
  return cudaErrorNotSupported;
}
cudaError_t cudaEventDestroy(cudaEvent_t) {
  return cudaErrorNotSupported;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) {
  return cudaErrorNotSupported;
}
cudaError_t cudaEventElapsedTime(float*, cudaEvent_t, cudaEvent_t) {
  return cudaErrorNotSupported;
}

// Launches in <<<>>> notation fill memory or belong to references: nothing to write down.
unsigned __cudaPushCallConfiguration(dim3, dim3, std::size_t, cudaStream_t) {
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, std::size_t*, void*) {
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(void** kernel, const void* function) {
  *kernel = const_cast<void*>(function);
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(void*, dim3, dim3, void**, std::size_t, cudaStream_t) {
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, std::size_t, cudaStream_t) {
  return cudaSuccess;
}
void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) {
  return 1;
}
void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, void*, void*, void*,
                            void*, int*) {
  functions()[function] = name;
}

}  // extern "C"
