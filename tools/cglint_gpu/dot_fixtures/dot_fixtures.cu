// Writes the DOT text of small graphs that cover every node type and edge type, with every debug flag, and
// says on stdout what the driver refused. usage: dot_fixtures OUTDIR [GROUP]. Exit codes: 0 done (a refusal
// is a fact, not a failure), 2 cannot run here.
#include <cuda.h>
#include <cuda_runtime.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#if __has_include(<vulkan/vulkan.h>)
#define VK_NO_PROTOTYPES
#include <dlfcn.h>
#include <vulkan/vulkan.h>
#define CGLINT_HAVE_VULKAN 1
#endif

namespace fixture {

__global__ void first_kernel(float* data, int value) {
  if (data != nullptr && value == -1) data[0] = 1.0f;
}
__global__ void second_kernel(float* data, int value) {
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
  if (data != nullptr && value == -2) data[0] = 2.0f;
}
template <typename T, int N>
__global__ void templated_kernel(T* data, T value) {
  if (data != nullptr && value == T(-3)) data[N] = value;
}
__global__ void set_condition(cudaGraphConditionalHandle handle, unsigned int value) {
  cudaGraphSetConditional(handle, value);
}

__device__ float symbol[64];

// A name that looks like a child graph's label.
__global__ void graph_7(float* data, int value) {
  if (data != nullptr && value == -4) data[0] = 4.0f;
}

}  // namespace fixture

namespace {

std::string out_dir;
decltype(&::cuGraphDebugDotPrint) dot_print = nullptr;
decltype(&::cuGraphAddBatchMemOpNode) add_batch = nullptr;
CUcontext context = nullptr;
float* device = nullptr;
float* other = nullptr;
float* host = nullptr;

// Says what failed; false then.
bool ok(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return true;
  std::printf("refused: %s: %s\n", what, cudaGetErrorName(status));
  cudaGetLastError();
  return false;
}
#define OK(call) ok((call), #call)

bool entry(const char* name, unsigned int version, void** function) {
  cudaDriverEntryPointQueryResult found{};
  return cudaGetDriverEntryPointByVersion(name, function, version, cudaEnableDefault, &found) ==
             cudaSuccess &&
         found == cudaDriverEntryPointSuccess;
}

void print(const char* name, cudaGraph_t graph, unsigned int flags) {
  char path[512];
  std::snprintf(path, sizeof(path), "%s/%s.flags_%05x.dot", out_dir.c_str(), name, flags);
  const CUresult status = dot_print(graph, path, flags);
  if (status != CUDA_SUCCESS)
    std::printf("refused: cuGraphDebugDotPrint(%s, 0x%x): error %d\n", name, flags, static_cast<int>(status));
}

void print_all(const char* name, cudaGraph_t graph, bool each_flag) {
  print(name, graph, 0);
  print(name, graph, CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE);
  print(name, graph, CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE | CU_GRAPH_DEBUG_DOT_FLAGS_RUNTIME_TYPES);
  print(name, graph, CU_GRAPH_DEBUG_DOT_FLAGS_HANDLES);
  print(name, graph, 0xffff);
  if (!each_flag) return;
  for (int bit = 1; bit < 16; ++bit) print(name, graph, 1u << bit);
}

struct Kernel {
  void* function = reinterpret_cast<void*>(fixture::first_kernel);
  dim3 grid{1};
  dim3 block{32};
  unsigned int shared = 0;
};

cudaGraphNode_t add_kernel(cudaGraph_t graph, const std::vector<cudaGraphNode_t>& after,
                           const Kernel& kernel = {}) {
  static float* data = nullptr;
  static int value = 0;
  void* arguments[] = {&data, &value};
  cudaKernelNodeParams params{};
  params.func = kernel.function;
  params.gridDim = kernel.grid;
  params.blockDim = kernel.block;
  params.sharedMemBytes = kernel.shared;
  params.kernelParams = arguments;
  cudaGraphNode_t node = nullptr;
  OK(cudaGraphAddKernelNode(&node, graph, after.data(), after.size(), &params));
  return node;
}

void set(cudaGraphNode_t node, cudaLaunchAttributeID id, const cudaLaunchAttributeValue& value,
         const char* what) {
  if (ok(cudaGraphKernelNodeSetAttribute(node, id, &value), what)) std::printf("accepted: %s\n", what);
}

void kernels() {
  cudaGraph_t graph = nullptr;
  OK(cudaGraphCreate(&graph, 0));
  cudaGraphNode_t a = add_kernel(graph, {});
  cudaGraphNode_t b = add_kernel(
      graph, {a},
      {reinterpret_cast<void*>(fixture::templated_kernel<float, 3>), dim3(16, 10, 4), dim3(8, 4, 2), 2048});
  cudaGraphNode_t c =
      add_kernel(graph, {a}, {reinterpret_cast<void*>(fixture::second_kernel), dim3(2, 3), dim3(32, 2), 0});
  cudaGraphNode_t cluster =
      add_kernel(graph, {b}, {reinterpret_cast<void*>(fixture::second_kernel), dim3(4, 2), dim3(64), 0});
  cudaLaunchAttributeValue value{};
  value.clusterDim.x = 2;
  value.clusterDim.y = 1;
  value.clusterDim.z = 1;
  set(cluster, cudaLaunchAttributeClusterDimension, value, "cluster dimension on a node");
  value = {};
  value.clusterSchedulingPolicyPreference = cudaClusterSchedulingPolicySpread;
  set(cluster, cudaLaunchAttributeClusterSchedulingPolicyPreference, value,
      "cluster scheduling policy on a node");
  value = {};
  value.priority = -3;
  set(c, cudaLaunchAttributePriority, value, "priority on a node");
  cudaGraphNode_t cooperative = add_kernel(graph, {c});
  value = {};
  value.cooperative = 1;
  set(cooperative, cudaLaunchAttributeCooperative, value, "cooperative on a node");
  cudaGraphNode_t window = add_kernel(graph, {cooperative, cluster},
                                      {reinterpret_cast<void*>(fixture::graph_7), dim3(1), dim3(32), 0});
  value = {};
  value.accessPolicyWindow.base_ptr = device;
  value.accessPolicyWindow.num_bytes = 4096;
  value.accessPolicyWindow.hitRatio = 0.5f;
  value.accessPolicyWindow.hitProp = cudaAccessPropertyPersisting;
  value.accessPolicyWindow.missProp = cudaAccessPropertyStreaming;
  set(window, cudaLaunchAttributeAccessPolicyWindow, value, "access policy window on a node");
  value = {};
  value.memSyncDomain = cudaLaunchMemSyncDomainRemote;
  set(window, cudaLaunchAttributeMemSyncDomain, value, "memory synchronisation domain on a node");
  value = {};
  value.programmaticStreamSerializationAllowed = 1;
  set(c, cudaLaunchAttributeProgrammaticStreamSerialization, value,
      "programmatic stream serialisation on a node");
  print_all("kernels", graph, true);
  cudaGraphDestroy(graph);
}

cudaGraphEdgeData edge(unsigned char type, unsigned char port) {
  cudaGraphEdgeData data{};
  data.type = type;
  data.from_port = port;
  return data;
}

void edges() {
  cudaGraph_t graph = nullptr;
  OK(cudaGraphCreate(&graph, 0));
  std::vector<cudaGraphNode_t> nodes;
  for (int i = 0; i < 6; ++i)
    nodes.push_back(add_kernel(
        graph, {},
        {reinterpret_cast<void*>(fixture::second_kernel), dim3(static_cast<unsigned>(i + 1)), dim3(32), 0}));
  const auto add = [&](size_t from, size_t to, cudaGraphEdgeData data, const char* what) {
    if (ok(cudaGraphAddDependencies(graph, &nodes[from], &nodes[to], &data, 1), what))
      std::printf("accepted: %s\n", what);
  };
  add(0, 1, edge(0, 0), "default edge");
  add(1, 2, edge(1, 1), "programmatic edge, port 1");
  add(2, 3, edge(1, 2), "programmatic edge, port 2 (launch order)");
  add(3, 4, edge(0, 0), "default edge beside a programmatic one");
  add(0, 4, edge(1, 1), "programmatic edge beside a default one");
  add(1, 5, edge(1, 2), "second launch-order edge");
  add(0, 5, edge(0, 1), "default type with port 1");
  add(0, 3, edge(0, 2), "default type with port 2");
  add(0, 2, edge(1, 0), "programmatic type with port 0");
  print_all("edges", graph, true);
  cudaGraphExec_t exec = nullptr;
  if (OK(cudaGraphInstantiate(&exec, graph, 0))) cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
}

void copies() {
  cudaGraph_t graph = nullptr;
  OK(cudaGraphCreate(&graph, 0));
  cudaGraphNode_t last = add_kernel(graph, {});
  const auto one = [&](void* to, const void* from, size_t bytes, cudaMemcpyKind kind, const char* what) {
    cudaGraphNode_t node = nullptr;
    if (ok(cudaGraphAddMemcpyNode1D(&node, graph, &last, 1, to, from, bytes, kind), what)) last = node;
  };
  static float pageable[1024];
  one(other, device, 4096, cudaMemcpyDeviceToDevice, "memcpy dtod");
  one(device, host, 4096, cudaMemcpyHostToDevice, "memcpy htod pinned");
  one(host, device, 4096, cudaMemcpyDeviceToHost, "memcpy dtoh pinned");
  one(host, host + 1024, 4096, cudaMemcpyHostToHost, "memcpy htoh");
  one(device, pageable, 4096, cudaMemcpyHostToDevice, "memcpy htod pageable");
  one(other, device, 4096, cudaMemcpyDefault, "memcpy default");
  cudaGraphNode_t node = nullptr;
  if (OK(cudaGraphAddMemcpyNodeToSymbol(&node, graph, &last, 1, fixture::symbol, device, 128, 16,
                                        cudaMemcpyDeviceToDevice)))
    last = node;
  if (OK(cudaGraphAddMemcpyNodeFromSymbol(&node, graph, &last, 1, device, fixture::symbol, 128, 16,
                                          cudaMemcpyDeviceToDevice)))
    last = node;
  cudaMemcpy3DParms flat{};
  flat.srcPtr = make_cudaPitchedPtr(device, 512, 64, 16);
  flat.dstPtr = make_cudaPitchedPtr(other, 1024, 64, 16);
  flat.srcPos = make_cudaPos(16, 2, 0);
  flat.extent = make_cudaExtent(256, 8, 1);
  flat.kind = cudaMemcpyDeviceToDevice;
  if (OK(cudaGraphAddMemcpyNode(&node, graph, &last, 1, &flat))) last = node;  // 2-D
  cudaMemcpy3DParms cube = flat;
  cube.dstPos = make_cudaPos(0, 1, 1);
  cube.extent = make_cudaExtent(256, 4, 3);
  if (OK(cudaGraphAddMemcpyNode(&node, graph, &last, 1, &cube))) last = node;  // 3-D
  cudaArray_t array = nullptr;
  cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
  if (OK(cudaMallocArray(&array, &format, 64, 16))) {
    cudaMemcpy3DParms to_array{};
    to_array.srcPtr = make_cudaPitchedPtr(device, 256, 64, 16);
    to_array.dstArray = array;
    to_array.extent = make_cudaExtent(64, 16, 1);
    to_array.kind = cudaMemcpyDeviceToDevice;
    if (OK(cudaGraphAddMemcpyNode(&node, graph, &last, 1, &to_array))) last = node;
    cudaMemcpy3DParms from_array{};
    from_array.srcArray = array;
    from_array.dstPtr = make_cudaPitchedPtr(host, 256, 64, 16);
    from_array.extent = make_cudaExtent(64, 16, 1);
    from_array.kind = cudaMemcpyDeviceToHost;
    if (OK(cudaGraphAddMemcpyNode(&node, graph, &last, 1, &from_array))) last = node;
  }
  const auto fill = [&](unsigned int element, size_t width, size_t height, size_t pitch, unsigned int value) {
    cudaMemsetParams params{};
    params.dst = device;
    params.elementSize = element;
    params.width = width;
    params.height = height;
    params.pitch = pitch;
    params.value = value;
    if (OK(cudaGraphAddMemsetNode(&node, graph, &last, 1, &params))) last = node;
  };
  fill(1, 640, 1, 0, 0xab);
  fill(2, 320, 1, 0, 0x1234);
  fill(4, 160, 1, 0, 0xdeadbeef);
  fill(4, 16, 8, 512, 0);
  print_all("copies", graph, true);
  cudaGraphDestroy(graph);
}

void CUDART_CB host_function(void*) {}

void sync_nodes() {
  cudaGraph_t graph = nullptr;
  OK(cudaGraphCreate(&graph, 0));
  cudaGraphNode_t last = add_kernel(graph, {});
  cudaGraphNode_t node = nullptr;
  cudaHostNodeParams call{};
  call.fn = host_function;
  call.userData = host;
  if (OK(cudaGraphAddHostNode(&node, graph, &last, 1, &call))) last = node;
  if (OK(cudaGraphAddEmptyNode(&node, graph, &last, 1))) last = node;
  cudaEvent_t event = nullptr;
  OK(cudaEventCreate(&event));
  if (OK(cudaGraphAddEventRecordNode(&node, graph, &last, 1, event))) last = node;
  if (OK(cudaGraphAddEventWaitNode(&node, graph, &last, 1, event))) last = node;
  if (add_batch != nullptr) {
    CUstreamBatchMemOpParams operations[4]{};
    operations[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    operations[0].writeValue.address = reinterpret_cast<CUdeviceptr>(device);
    operations[0].writeValue.value = 7;
    operations[1].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    operations[1].waitValue.address = reinterpret_cast<CUdeviceptr>(device);
    operations[1].waitValue.value = 7;
    operations[1].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
    operations[2].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    operations[2].writeValue.address = reinterpret_cast<CUdeviceptr>(device + 2);
    operations[2].writeValue.value64 = 8;
    operations[3].memoryBarrier.operation = CU_STREAM_MEM_OP_BARRIER;
    CUDA_BATCH_MEM_OP_NODE_PARAMS params{};
    params.ctx = context;
    params.paramArray = operations;
    for (const unsigned int count : {1u, 3u, 4u}) {
      params.count = count;
      const CUresult status = add_batch(&node, graph, &last, 1, &params);
      if (status == CUDA_SUCCESS) {
        last = node;
      } else {
        std::printf("refused: batch mem op of %u: error %d\n", count, static_cast<int>(status));
      }
    }
  }
  cudaMemAllocNodeParams allocation{};
  allocation.poolProps.allocType = cudaMemAllocationTypePinned;
  allocation.poolProps.location.type = cudaMemLocationTypeDevice;
  cudaMemAccessDesc access{};
  access.location.type = cudaMemLocationTypeDevice;
  access.flags = cudaMemAccessFlagsProtReadWrite;
  allocation.accessDescs = &access;
  allocation.accessDescCount = 1;
  allocation.bytesize = 65536;
  if (OK(cudaGraphAddMemAllocNode(&node, graph, &last, 1, &allocation))) {
    last = node;
    last = add_kernel(graph, {last});
    if (OK(cudaGraphAddMemFreeNode(&node, graph, &last, 1, allocation.dptr))) last = node;
  }
  print_all("sync", graph, true);
  cudaGraphDestroy(graph);
}

void children() {
  cudaGraph_t inner = nullptr;
  cudaGraph_t middle = nullptr;
  cudaGraph_t graph = nullptr;
  OK(cudaGraphCreate(&inner, 0));
  OK(cudaGraphCreate(&middle, 0));
  OK(cudaGraphCreate(&graph, 0));
  cudaGraphNode_t a = add_kernel(inner, {});
  add_kernel(inner, {a}, {reinterpret_cast<void*>(fixture::second_kernel), dim3(2), dim3(32), 0});
  cudaGraphNode_t m =
      add_kernel(middle, {}, {reinterpret_cast<void*>(fixture::graph_7), dim3(3), dim3(32), 0});
  cudaGraphNode_t nested = nullptr;
  OK(cudaGraphAddChildGraphNode(&nested, middle, &m, 1, inner));
  cudaGraphNode_t first = nullptr;
  cudaGraphNode_t second = nullptr;
  cudaGraphNode_t third = nullptr;
  cudaGraphNode_t root = add_kernel(graph, {});
  OK(cudaGraphAddChildGraphNode(&first, graph, &root, 1, inner));
  OK(cudaGraphAddChildGraphNode(&second, graph, &first, 1, inner));
  OK(cudaGraphAddChildGraphNode(&third, graph, &root, 1, middle));
  add_kernel(graph, {second, third});
  print_all("children", graph, true);
  for (cudaGraph_t each : {inner, middle, graph}) cudaGraphDestroy(each);
}

bool add_conditional(cudaGraph_t graph, const std::vector<cudaGraphNode_t>& after,
                     cudaGraphConditionalNodeType type, unsigned int size, cudaGraphNode_t& node,
                     std::vector<cudaGraph_t>& bodies, cudaGraphConditionalHandle& handle) {
  if (!OK(cudaGraphConditionalHandleCreate(&handle, graph, 1, cudaGraphCondAssignDefault))) return false;
  cudaGraphNodeParams params{};
  params.type = cudaGraphNodeTypeConditional;
  params.conditional.handle = handle;
  params.conditional.type = type;
  params.conditional.size = size;
  if (!OK(cudaGraphAddNode(&node, graph, after.data(), nullptr, after.size(), &params))) return false;
  for (unsigned int i = 0; i < size; ++i) bodies.push_back(params.conditional.phGraph_out[i]);
  return true;
}

void conditionals() {
  cudaGraph_t graph = nullptr;
  OK(cudaGraphCreate(&graph, 0));
  cudaGraphNode_t last = add_kernel(graph, {});
  const std::pair<cudaGraphConditionalNodeType, unsigned int> wanted[] = {{cudaGraphCondTypeIf, 1},
                                                                          {cudaGraphCondTypeIf, 2},
                                                                          {cudaGraphCondTypeWhile, 1},
                                                                          {cudaGraphCondTypeSwitch, 3}};
  for (const auto& [type, size] : wanted) {
    cudaGraphNode_t node = nullptr;
    std::vector<cudaGraph_t> bodies;
    cudaGraphConditionalHandle handle = 0;
    if (!add_conditional(graph, {last}, type, size, node, bodies, handle)) continue;
    last = node;
    for (cudaGraph_t body : bodies) {
      cudaGraphNode_t a = add_kernel(body, {});
      cudaGraphNode_t b =
          add_kernel(body, {a}, {reinterpret_cast<void*>(fixture::second_kernel), dim3(2), dim3(32), 0});
      if (type == cudaGraphCondTypeIf && size == 1) {
        cudaGraphNode_t inner = nullptr;
        std::vector<cudaGraph_t> inner_bodies;
        cudaGraphConditionalHandle inner_handle = 0;
        if (add_conditional(body, {b}, cudaGraphCondTypeIf, 1, inner, inner_bodies, inner_handle))
          add_kernel(inner_bodies[0], {});
      }
      if (type == cudaGraphCondTypeWhile) {
        cudaGraphNode_t stop = nullptr;
        unsigned int zero = 0;
        void* arguments[] = {&handle, &zero};
        cudaKernelNodeParams params{};
        params.func = reinterpret_cast<void*>(fixture::set_condition);
        params.gridDim = dim3(1);
        params.blockDim = dim3(1);
        params.kernelParams = arguments;
        OK(cudaGraphAddKernelNode(&stop, body, &b, 1, &params));
      }
    }
  }
  add_kernel(graph, {last});
  print_all("conditionals", graph, true);
  cudaGraphDestroy(graph);
}

// What a stream capture makes of events, copies, a host call, an asynchronous allocation and a programmatic
// launch.
void captured() {
  cudaStream_t first = nullptr;
  cudaStream_t second = nullptr;
  cudaEvent_t fork = nullptr;
  cudaEvent_t join = nullptr;
  cudaEvent_t outside = nullptr;
  OK(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
  OK(cudaStreamCreateWithPriority(&second, cudaStreamNonBlocking, -2));
  for (cudaEvent_t* event : {&fork, &join, &outside})
    OK(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
  OK(cudaEventRecord(outside, second));
  if (!OK(cudaStreamBeginCapture(first, cudaStreamCaptureModeRelaxed))) return;
  fixture::first_kernel<<<4, 128, 0, first>>>(device, 1);
  OK(cudaEventRecord(fork, first));
  OK(cudaStreamWaitEvent(second, fork, 0));
  fixture::first_kernel<<<5, 128, 0, second>>>(device, 2);
  OK(cudaMemsetAsync(device, 0, 2560, second));
  OK(cudaMemcpyAsync(host, device, 256, cudaMemcpyDeviceToHost, second));
  OK(cudaEventRecord(join, second));
  float* temporary = nullptr;
  OK(cudaMallocAsync(reinterpret_cast<void**>(&temporary), 1 << 16, first));
  OK(cudaMemcpyAsync(other, device, 4096, cudaMemcpyDeviceToDevice, first));
  if (temporary != nullptr) OK(cudaFreeAsync(temporary, first));
  OK(cudaLaunchHostFunc(first, host_function, nullptr));
  OK(cudaStreamWaitEvent(first, outside, cudaEventWaitExternal));
  OK(cudaEventRecordWithFlags(outside, first, cudaEventRecordExternal));
  fixture::first_kernel<<<6, 128, 0, first>>>(device, 3);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(7);
  config.blockDim = dim3(64);
  config.stream = first;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  OK(cudaLaunchKernelEx(&config, fixture::second_kernel, device, 4));
  OK(cudaStreamWaitEvent(first, join, 0));
  OK(cudaLaunchKernelEx(&config, fixture::second_kernel, device, 5));
  fixture::first_kernel<<<8, 128, 0, first>>>(device, 6);
  cudaGraph_t graph = nullptr;
  if (!OK(cudaStreamEndCapture(first, &graph))) return;
  print_all("captured", graph, false);
  // Which attributes the captured programmatic consumer carries.
  size_t count = 0;
  cudaGraphGetNodes(graph, nullptr, &count);
  std::vector<cudaGraphNode_t> nodes(count);
  cudaGraphGetNodes(graph, nodes.data(), &count);
  for (size_t i = 0; i < count; ++i) {
    cudaGraphNodeType type{};
    cudaGraphNodeGetType(nodes[i], &type);
    if (type != cudaGraphNodeTypeKernel) continue;
    cudaLaunchAttributeValue value{};
    const cudaError_t status =
        cudaGraphKernelNodeGetAttribute(nodes[i], cudaLaunchAttributeProgrammaticStreamSerialization, &value);
    cudaLaunchAttributeValue priority{};
    cudaGraphKernelNodeGetAttribute(nodes[i], cudaLaunchAttributePriority, &priority);
    std::printf("captured node %zu: programmatic attribute %s %d, priority %d\n", i, cudaGetErrorName(status),
                status == cudaSuccess ? value.programmaticStreamSerializationAllowed : -1, priority.priority);
    cudaGetLastError();
  }
  cudaGraphDestroy(graph);
}

void trivial() {
  cudaGraph_t graph = nullptr;
  OK(cudaGraphCreate(&graph, 0));
  print_all("no_nodes", graph, false);
  cudaGraphNode_t node = nullptr;
  OK(cudaGraphAddEmptyNode(&node, graph, nullptr, 0));
  print_all("one_empty", graph, false);
  cudaGraphDestroy(graph);
  // Destroyed nodes leave gaps in the ids; creation order is not topological.
  OK(cudaGraphCreate(&graph, 0));
  std::vector<cudaGraphNode_t> nodes;
  for (unsigned int i = 0; i < 6; ++i)
    nodes.push_back(
        add_kernel(graph, {}, {reinterpret_cast<void*>(fixture::first_kernel), dim3(i + 1), dim3(32), 0}));
  const std::pair<size_t, size_t> order[] = {{5, 0}, {0, 3}, {5, 4}, {4, 3}, {3, 1}, {2, 1}};
  for (const auto& [from, to] : order)
    OK(cudaGraphAddDependencies(graph, &nodes[from], &nodes[to], nullptr, 1));
  OK(cudaGraphDestroyNode(nodes[2]));
  add_kernel(graph, {nodes[1]}, {reinterpret_cast<void*>(fixture::first_kernel), dim3(7), dim3(32), 0});
  print_all("destroyed_node", graph, false);
  // The ids of a clone and of a second print.
  cudaGraph_t clone = nullptr;
  if (OK(cudaGraphClone(&clone, graph))) {
    print("clone_of_destroyed_node", clone, 1);
    cudaGraphDestroy(clone);
  }
  cudaGraphDestroy(graph);
}

#ifdef CGLINT_HAVE_VULKAN
// External semaphores exist only as another API's: Vulkan's here.
bool vulkan_semaphores(int& binary, int& timeline) {
  void* library = dlopen("libvulkan.so.1", RTLD_NOW);
  if (library == nullptr) {
    std::printf("external semaphores: no libvulkan.so.1\n");
    return false;
  }
  const auto get = reinterpret_cast<PFN_vkGetInstanceProcAddr>(dlsym(library, "vkGetInstanceProcAddr"));
  if (get == nullptr) return false;
  const auto create_instance = reinterpret_cast<PFN_vkCreateInstance>(get(nullptr, "vkCreateInstance"));
  VkApplicationInfo application{};
  application.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO;
  application.apiVersion = VK_API_VERSION_1_2;
  VkInstanceCreateInfo instance_info{};
  instance_info.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO;
  instance_info.pApplicationInfo = &application;
  VkInstance instance = nullptr;
  VkResult result = create_instance(&instance_info, nullptr, &instance);
  if (result != VK_SUCCESS) {
    std::printf("external semaphores: vkCreateInstance %d\n", result);
    return false;
  }
  const auto enumerate =
      reinterpret_cast<PFN_vkEnumeratePhysicalDevices>(get(instance, "vkEnumeratePhysicalDevices"));
  const auto properties_of =
      reinterpret_cast<PFN_vkGetPhysicalDeviceProperties>(get(instance, "vkGetPhysicalDeviceProperties"));
  const auto create_device = reinterpret_cast<PFN_vkCreateDevice>(get(instance, "vkCreateDevice"));
  const auto device_get = reinterpret_cast<PFN_vkGetDeviceProcAddr>(get(instance, "vkGetDeviceProcAddr"));
  uint32_t count = 0;
  enumerate(instance, &count, nullptr);
  std::vector<VkPhysicalDevice> physical(count);
  enumerate(instance, &count, physical.data());
  VkPhysicalDevice chosen = nullptr;
  for (VkPhysicalDevice each : physical) {
    VkPhysicalDeviceProperties properties{};
    properties_of(each, &properties);
    if (properties.vendorID == 0x10de) chosen = each;
  }
  if (chosen == nullptr) {
    std::printf("external semaphores: no NVIDIA device in Vulkan\n");
    return false;
  }
  const float priority = 1.0f;
  VkDeviceQueueCreateInfo queue{};
  queue.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO;
  queue.queueCount = 1;
  queue.pQueuePriorities = &priority;
  VkPhysicalDeviceTimelineSemaphoreFeatures features{};
  features.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES;
  features.timelineSemaphore = VK_TRUE;
  const char* extension = "VK_KHR_external_semaphore_fd";
  VkDeviceCreateInfo device_info{};
  device_info.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO;
  device_info.pNext = &features;
  device_info.queueCreateInfoCount = 1;
  device_info.pQueueCreateInfos = &queue;
  device_info.enabledExtensionCount = 1;
  device_info.ppEnabledExtensionNames = &extension;
  VkDevice logical = nullptr;
  result = create_device(chosen, &device_info, nullptr, &logical);
  if (result != VK_SUCCESS) {
    std::printf("external semaphores: vkCreateDevice %d\n", result);
    return false;
  }
  const auto create_semaphore =
      reinterpret_cast<PFN_vkCreateSemaphore>(device_get(logical, "vkCreateSemaphore"));
  const auto get_fd = reinterpret_cast<PFN_vkGetSemaphoreFdKHR>(device_get(logical, "vkGetSemaphoreFdKHR"));
  const auto make = [&](bool is_timeline, int& fd) {
    VkSemaphoreTypeCreateInfo type{};
    type.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO;
    type.semaphoreType = is_timeline ? VK_SEMAPHORE_TYPE_TIMELINE : VK_SEMAPHORE_TYPE_BINARY;
    VkExportSemaphoreCreateInfo exported{};
    exported.sType = VK_STRUCTURE_TYPE_EXPORT_SEMAPHORE_CREATE_INFO;
    exported.pNext = &type;
    exported.handleTypes = VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT;
    VkSemaphoreCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO;
    info.pNext = &exported;
    VkSemaphore semaphore = VK_NULL_HANDLE;
    if (create_semaphore(logical, &info, nullptr, &semaphore) != VK_SUCCESS) return false;
    VkSemaphoreGetFdInfoKHR fd_info{};
    fd_info.sType = VK_STRUCTURE_TYPE_SEMAPHORE_GET_FD_INFO_KHR;
    fd_info.semaphore = semaphore;
    fd_info.handleType = VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT;
    return get_fd(logical, &fd_info, &fd) == VK_SUCCESS;
  };
  return make(false, binary) && make(true, timeline);
}
#endif

void external_semaphores() {
#ifdef CGLINT_HAVE_VULKAN
  int binary = -1;
  int timeline = -1;
  if (!vulkan_semaphores(binary, timeline)) return;
  cudaExternalSemaphore_t semaphores[2]{};
  cudaExternalSemaphoreHandleDesc description{};
  description.type = cudaExternalSemaphoreHandleTypeOpaqueFd;
  description.handle.fd = binary;
  if (!OK(cudaImportExternalSemaphore(&semaphores[0], &description))) return;
  description.type = cudaExternalSemaphoreHandleTypeTimelineSemaphoreFd;
  description.handle.fd = timeline;
  if (!OK(cudaImportExternalSemaphore(&semaphores[1], &description))) return;
  cudaGraph_t graph = nullptr;
  OK(cudaGraphCreate(&graph, 0));
  cudaGraphNode_t last = add_kernel(graph, {});
  cudaGraphNode_t node = nullptr;
  cudaExternalSemaphoreSignalParams signal[2]{};
  signal[1].params.fence.value = 5;
  cudaExternalSemaphoreSignalNodeParams signals{};
  signals.extSemArray = semaphores;
  signals.paramsArray = signal;
  signals.numExtSems = 2;
  if (OK(cudaGraphAddExternalSemaphoresSignalNode(&node, graph, &last, 1, &signals))) last = node;
  cudaExternalSemaphoreWaitParams wait[2]{};
  wait[1].params.fence.value = 5;
  cudaExternalSemaphoreWaitNodeParams waits{};
  waits.extSemArray = semaphores;
  waits.paramsArray = wait;
  waits.numExtSems = 2;
  if (OK(cudaGraphAddExternalSemaphoresWaitNode(&node, graph, &last, 1, &waits))) last = node;
  add_kernel(graph, {last});
  print_all("external_semaphores", graph, true);
  cudaGraphDestroy(graph);
#else
  std::printf("external semaphores: built without Vulkan's headers\n");
#endif
}

}  // namespace

int main(int argc, char** argv) {
  const std::pair<const char*, void (*)()> groups[] = {
      {"kernels", kernels},   {"edges", edges},       {"copies", copies},
      {"sync", sync_nodes},   {"children", children}, {"conditionals", conditionals},
      {"captured", captured}, {"trivial", trivial},   {"external_semaphores", external_semaphores}};
  if (argc != 2 && argc != 3) {
    std::fprintf(stderr, "usage: dot_fixtures OUTDIR [GROUP]\n");
    for (const auto& [name, function] : groups) std::fprintf(stderr, "  group %s\n", name);
    return 2;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // what was said before a crash in the driver counts
  out_dir = argv[1];
  if (!OK(cudaFree(nullptr))) return 2;
  void* function = nullptr;
  if (!entry("cuGraphDebugDotPrint", 11030, &function)) return 2;
  dot_print = reinterpret_cast<decltype(dot_print)>(function);
  if (entry("cuGraphAddBatchMemOpNode", 12000, &function))
    add_batch = reinterpret_cast<decltype(add_batch)>(function);
  if (entry("cuCtxGetCurrent", 4000, &function))
    reinterpret_cast<decltype(&::cuCtxGetCurrent)>(function)(&context);
  if (!OK(cudaMalloc(&device, 1 << 20)) || !OK(cudaMalloc(&other, 1 << 20)) ||
      !OK(cudaMallocHost(&host, 1 << 20)))
    return 2;
  for (const auto& [name, run] : groups) {
    if (argc == 3 && std::strcmp(argv[2], name) != 0) continue;
    std::printf("group %s\n", name);
    run();
  }
  return 0;
}
