#include <map>

#include "stream_probe/graph_builder.h"

namespace cglint::gpu {
namespace {

__global__ void work(float* sink, int tag) {
  if (sink != nullptr && tag == -1) sink[0] = 1.0f;
}

// Consumer and producer of programmatic edges.
__global__ void work_programmatic(float* sink, int tag) {
  cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
  if (sink != nullptr && tag == -1) sink[0] = 1.0f;
}

// Sets the condition of one conditional node and ends the loop that the kernel runs in, where there are such.
__global__ void work_condition(float* sink, int tag, cudaGraphConditionalHandle handle, int value,
                               cudaGraphConditionalHandle loop, int ends_loop) {
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    if (value >= 0) cudaGraphSetConditional(handle, static_cast<unsigned int>(value));
    if (ends_loop != 0) cudaGraphSetConditional(loop, 0);
  }
  if (sink != nullptr && tag == -1) sink[0] = 1.0f;
}

__device__ unsigned long long global_timer() {
  unsigned long long now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__global__ void spin(unsigned long long* stamps, int marker, unsigned long long spin_ns) {
  const unsigned long long start = global_timer();
  unsigned long long now = start;
  while (now - start < spin_ns) now = global_timer();
  stamps[2 * marker] = start;
  stamps[2 * marker + 1] = now;
}

void CUDART_CB host_function(void*) {}

size_t row_bytes(const GraphSpec& spec, int marker) {
  return spec.extra_bytes + 4 * static_cast<size_t>(marker + 1);
}

// The same for all nodes of a graph.
size_t pitch_of(const GraphSpec& spec) {
  return (row_bytes(spec, kMaxNodes) + 511) / 512 * 512;
}

struct Condition {
  cudaGraphConditionalHandle handle = 0;
  int value = 0;
};

class Builder {
 public:
  Builder(const Resources& resources, const BuildOptions& options)
      : resources_(resources), options_(options) {}

  // `loop`: the while loop that the graph is the body of, ended by its kernels.
  std::string fill(const GraphSpec& spec, cudaGraph_t graph, const Condition* loop, BuiltGraph& built);
  void number(const GraphSpec& spec, const std::string& prefix);

  int next_marker_ = 0;

 private:
  std::string add_kernel(const GraphSpec& spec, int index, int marker, cudaGraph_t graph,
                         const Condition* condition, const Condition* loop,
                         const std::vector<cudaGraphNode_t>& dependencies,
                         const std::vector<cudaGraphEdgeData>& data, cudaGraphNode_t& node);

  std::string add_memset(cudaGraph_t graph, int marker, const std::vector<cudaGraphNode_t>& dependencies,
                         cudaGraphNode_t& node);
  std::string add_memcpy(NodeKind kind, cudaGraph_t graph, int marker,
                         const std::vector<cudaGraphNode_t>& dependencies, cudaGraphNode_t& node);

  const Resources& resources_;
  const BuildOptions& options_;
  const GraphSpec* root_ = nullptr;  // copies and memsets in bodies follow the root's settings
  std::map<const GraphSpec*, int> first_marker_;
};

std::string failed(const char* call, cudaError_t status) {
  return status == cudaSuccess ? "" : std::string(call) + ": " + cudaGetErrorName(status);
}

// The order of body_paths().
void Builder::number(const GraphSpec& spec, const std::string& prefix) {
  if (prefix.empty()) {
    root_ = &spec;
    first_marker_[&spec] = 0;
    next_marker_ = spec.size();
    for (const BodyRef& body : body_paths(spec)) {
      first_marker_[body.spec] = next_marker_;
      next_marker_ += body.spec->size();
    }
  }
}

cudaGraphEdgeData edge_data(EdgeType type) {
  cudaGraphEdgeData data{};
  if (type == EdgeType::kDefault) return data;
  data.type = cudaGraphDependencyTypeProgrammatic;
  data.from_port = type == EdgeType::kProgrammatic ? cudaGraphKernelNodePortProgrammatic
                                                   : cudaGraphKernelNodePortLaunchCompletion;
  return data;
}

cudaError_t add_node(cudaGraphNode_t* node, cudaGraph_t graph,
                     const std::vector<cudaGraphNode_t>& dependencies,
                     const std::vector<cudaGraphEdgeData>& data, cudaGraphNodeParams* params) {
#if CUDART_VERSION >= 13000
  return cudaGraphAddNode(node, graph, dependencies.data(), data.data(), dependencies.size(), params);
#else
  return cudaGraphAddNode_v2(node, graph, dependencies.data(), data.data(), dependencies.size(), params);
#endif
}

std::string Builder::add_kernel(const GraphSpec& spec, int index, int marker, cudaGraph_t graph,
                                const Condition* condition, const Condition* loop,
                                const std::vector<cudaGraphNode_t>& dependencies,
                                const std::vector<cudaGraphEdgeData>& data, cudaGraphNode_t& node) {
  bool programmatic_in = false;
  bool programmatic = false;
  for (const Edge& edge : spec.edges) {
    if (edge.type == EdgeType::kDefault) continue;
    programmatic_in = programmatic_in || edge.to == index;
    programmatic = programmatic || edge.to == index || edge.from == index;
  }
  float* sink = nullptr;
  int tag = marker;
  unsigned long long* stamps = options_.stamps;
  unsigned long long spin_ns = options_.spin_ns;
  Condition set = condition != nullptr ? *condition : Condition{0, -1};
  void* plain[] = {&sink, &tag};
  cudaGraphConditionalHandle loop_handle = loop != nullptr ? loop->handle : 0;
  int ends_loop = loop != nullptr ? 1 : 0;
  void* setting[] = {&sink, &tag, &set.handle, &set.value, &loop_handle, &ends_loop};
  const bool sets = condition != nullptr || loop != nullptr;
  void* spinning[] = {&stamps, &tag, &spin_ns};
  cudaGraphNodeParams params{};
  params.type = cudaGraphNodeTypeKernel;
  if (options_.kernel == KernelBody::kSpin) {
    params.kernel.func = reinterpret_cast<void*>(spin);
    params.kernel.gridDim = dim3(1);
    params.kernel.blockDim = dim3(1);
    params.kernel.kernelParams = spinning;
  } else {
    params.kernel.gridDim = dim3(static_cast<unsigned>(marker + 1));
    params.kernel.blockDim = dim3(32);
    params.kernel.func = sets           ? reinterpret_cast<void*>(work_condition)
                         : programmatic ? reinterpret_cast<void*>(work_programmatic)
                                        : reinterpret_cast<void*>(work);
    params.kernel.kernelParams = sets ? setting : plain;
  }
  if (const auto found = spec.traits.find(index);
      found != spec.traits.end() && found->second == KernelTrait::kSharedMemory) {
    params.kernel.sharedMemBytes = 64 << 10;
    const cudaError_t status = cudaFuncSetAttribute(
        params.kernel.func, cudaFuncAttributeMaxDynamicSharedMemorySize, params.kernel.sharedMemBytes);
    if (status != cudaSuccess) return failed("cudaFuncSetAttribute", status);
  }
  std::string wrong = failed("cudaGraphAddNode(kernel)", add_node(&node, graph, dependencies, data, &params));
  if (!wrong.empty()) return wrong;
  if (programmatic_in && spec.pdl_attribute) {
    cudaLaunchAttributeValue value{};
    value.programmaticStreamSerializationAllowed = 1;
    // Documented for launches only; a driver may refuse it on a node, and the edge alone is enough.
    if (cudaGraphKernelNodeSetAttribute(node, cudaLaunchAttributeProgrammaticStreamSerialization, &value) !=
        cudaSuccess)
      cudaGetLastError();
  }
  const auto trait = spec.traits.find(index);
  if (trait != spec.traits.end() && trait->second != KernelTrait::kSharedMemory) {
    cudaLaunchAttributeValue value{};
    cudaLaunchAttributeID id = cudaLaunchAttributeCooperative;
    if (trait->second == KernelTrait::kCooperative) {
      value.cooperative = 1;
    } else {
      id = cudaLaunchAttributeClusterDimension;
      value.clusterDim.x = value.clusterDim.y = value.clusterDim.z = 1;
    }
    wrong = failed("cudaGraphKernelNodeSetAttribute", cudaGraphKernelNodeSetAttribute(node, id, &value));
    if (!wrong.empty()) return wrong;
  }
  const auto priority = spec.priorities.find(index);
  if (priority != spec.priorities.end()) {
    cudaLaunchAttributeValue value{};
    value.priority = priority->second;
    wrong = failed("cudaGraphKernelNodeSetAttribute(priority)",
                   cudaGraphKernelNodeSetAttribute(node, cudaLaunchAttributePriority, &value));
  }
  return wrong;
}

std::string Builder::add_memset(cudaGraph_t graph, int marker,
                                const std::vector<cudaGraphNode_t>& dependencies, cudaGraphNode_t& node) {
  const bool large = root_->extra_bytes != 0 || root_->rows != 1;
  cudaMemsetParams params{};
  params.dst = large ? resources_.device_base() : resources_.device_slot(marker);
  params.dst = static_cast<char*>(params.dst) + root_->offset_bytes;
  params.elementSize = static_cast<unsigned int>(root_->element_bytes);
  params.value = static_cast<unsigned int>(root_->memset_value);
  params.width = row_bytes(*root_, marker) / params.elementSize;
  params.height = static_cast<size_t>(root_->rows);
  params.pitch = root_->rows == 1 ? 0 : pitch_of(*root_);
  return failed("cudaGraphAddMemsetNode",
                cudaGraphAddMemsetNode(&node, graph, dependencies.data(), dependencies.size(), &params));
}

std::string Builder::add_memcpy(NodeKind kind, cudaGraph_t graph, int marker,
                                const std::vector<cudaGraphNode_t>& dependencies, cudaGraphNode_t& node) {
  const bool large = root_->extra_bytes != 0 || root_->rows != 1;
  char* const device = large ? resources_.device_base() : resources_.device_slot(marker);
  char* const other = large ? resources_.other_base() : resources_.other_slot(marker);
  char* const host = root_->pageable ? resources_.pageable_base()
                     : large         ? resources_.host_base()
                                     : resources_.host_slot(marker);
  char* const to = kind == NodeKind::kMemcpyDtoD ? other : kind == NodeKind::kMemcpyHtoD ? device : host;
  const char* const from = kind == NodeKind::kMemcpyHtoD ? host : device;
  const cudaMemcpyKind copy_kind = root_->default_copy_kind        ? cudaMemcpyDefault
                                   : kind == NodeKind::kMemcpyDtoD ? cudaMemcpyDeviceToDevice
                                   : kind == NodeKind::kMemcpyHtoD ? cudaMemcpyHostToDevice
                                                                   : cudaMemcpyDeviceToHost;
  const size_t bytes = row_bytes(*root_, marker);
  if (root_->rows == 1) {
    return failed("cudaGraphAddMemcpyNode1D",
                  cudaGraphAddMemcpyNode1D(&node, graph, dependencies.data(), dependencies.size(), to, from,
                                           bytes, copy_kind));
  }
  cudaMemcpy3DParms params{};
  const size_t rows = static_cast<size_t>(root_->rows);
  params.srcPtr = make_cudaPitchedPtr(const_cast<char*>(from), pitch_of(*root_), bytes, rows);
  params.dstPtr = make_cudaPitchedPtr(to, pitch_of(*root_), bytes, rows);
  params.extent = make_cudaExtent(bytes, rows, 1);
  params.kind = copy_kind;
  return failed("cudaGraphAddMemcpyNode",
                cudaGraphAddMemcpyNode(&node, graph, dependencies.data(), dependencies.size(), &params));
}

std::string Builder::fill(const GraphSpec& spec, cudaGraph_t graph, const Condition* loop,
                          BuiltGraph& built) {
  const int n = spec.size();
  const int first = first_marker_[&spec];
  std::vector<cudaGraphNode_t>& nodes = built.nodes;
  nodes.assign(static_cast<size_t>(n), nullptr);
  std::map<int, void*> allocations;
  std::map<int, Condition> conditions;  // conditional node -> what its parents set
  std::map<int, Condition> setters;     // kernel node -> what it sets
  for (int v = 0; v < n; ++v) {
    const NodeKind kind = spec.kinds[static_cast<size_t>(v)];
    if (kind != NodeKind::kIf && kind != NodeKind::kWhile && kind != NodeKind::kSwitch) continue;
    Condition condition;
    condition.value = kind == NodeKind::kSwitch ? 0 : 1;
    const std::string wrong = failed(
        "cudaGraphConditionalHandleCreate",
        cudaGraphConditionalHandleCreate(&condition.handle, graph, static_cast<unsigned>(condition.value),
                                         cudaGraphCondAssignDefault));
    if (!wrong.empty()) return wrong;
    conditions[v] = condition;
    for (const Edge& edge : spec.edges) {
      if (edge.to == v && spec.kinds[static_cast<size_t>(edge.from)] == NodeKind::kKernel) {
        setters.emplace(edge.from, condition);
        break;  // two setters of one handle could race
      }
    }
  }
  for (int v = 0; v < n; ++v) {
    const NodeKind kind = spec.kinds[static_cast<size_t>(v)];
    const int marker = first + v;
    std::vector<cudaGraphNode_t> dependencies;
    std::vector<cudaGraphEdgeData> data;
    if (!spec.edges_after) {
      for (const Edge& edge : spec.edges) {
        if (edge.to != v) continue;
        dependencies.push_back(nodes[static_cast<size_t>(edge.from)]);
        data.push_back(edge_data(edge.type));
      }
    }
    cudaGraphNode_t& node = nodes[static_cast<size_t>(v)];
    const cudaGraphNode_t* parents = dependencies.data();
    const size_t parent_count = dependencies.size();
    std::string wrong;
    switch (kind) {
      case NodeKind::kKernel: {
        const auto setter = setters.find(v);
        wrong = add_kernel(spec, v, marker, graph, setter != setters.end() ? &setter->second : nullptr, loop,
                           dependencies, data, node);
        break;
      }
      case NodeKind::kMemset:
        wrong = add_memset(graph, marker, dependencies, node);
        break;
      case NodeKind::kMemcpyDtoD:
      case NodeKind::kMemcpyHtoD:
      case NodeKind::kMemcpyDtoH:
        wrong = add_memcpy(kind, graph, marker, dependencies, node);
        break;
      case NodeKind::kEmpty:
        wrong = failed("cudaGraphAddEmptyNode", cudaGraphAddEmptyNode(&node, graph, parents, parent_count));
        break;
      case NodeKind::kHost: {
        cudaHostNodeParams params{};
        params.fn = host_function;
        wrong = failed("cudaGraphAddHostNode",
                       cudaGraphAddHostNode(&node, graph, parents, parent_count, &params));
        break;
      }
      case NodeKind::kEventRecord:
        wrong = failed("cudaGraphAddEventRecordNode",
                       cudaGraphAddEventRecordNode(&node, graph, parents, parent_count,
                                                   resources_.record_event(marker)));
        break;
      case NodeKind::kEventWait:
        wrong =
            failed("cudaGraphAddEventWaitNode",
                   cudaGraphAddEventWaitNode(&node, graph, parents, parent_count, resources_.wait_event()));
        break;
      case NodeKind::kMemAlloc: {
        cudaMemAllocNodeParams params{};
        params.poolProps.allocType = cudaMemAllocationTypePinned;
        params.poolProps.location.type = cudaMemLocationTypeDevice;
        params.poolProps.location.id = resources_.device();
        params.bytesize = 4096;
        wrong = failed("cudaGraphAddMemAllocNode",
                       cudaGraphAddMemAllocNode(&node, graph, parents, parent_count, &params));
        allocations[v] = params.dptr;
        break;
      }
      case NodeKind::kMemFree:
        wrong = failed("cudaGraphAddMemFreeNode", cudaGraphAddMemFreeNode(&node, graph, parents, parent_count,
                                                                          allocations[spec.frees.at(v)]));
        allocations.erase(spec.frees.at(v));
        break;
      case NodeKind::kBatchMemOp: {
        const CUresult status = resources_.add_batch_mem_op(&node, graph, parents, parent_count, marker);
        if (status != CUDA_SUCCESS)
          wrong = "cuGraphAddBatchMemOpNode: error " + std::to_string(static_cast<int>(status));
        break;
      }
      case NodeKind::kChild: {
        cudaGraph_t child = nullptr;
        wrong = failed("cudaGraphCreate", cudaGraphCreate(&child, 0));
        BuiltGraph inner;
        if (wrong.empty()) wrong = fill(spec.bodies.at(v)[0], child, nullptr, inner);
        if (wrong.empty())
          wrong = failed("cudaGraphAddChildGraphNode",
                         cudaGraphAddChildGraphNode(&node, graph, parents, parent_count, child));
        if (child != nullptr) cudaGraphDestroy(child);
        break;
      }
      case NodeKind::kIf:
      case NodeKind::kWhile:
      case NodeKind::kSwitch: {
        const std::vector<GraphSpec>& bodies = spec.bodies.at(v);
        cudaGraphNodeParams params{};
        params.type = cudaGraphNodeTypeConditional;
        params.conditional.handle = conditions[v].handle;
        params.conditional.type = kind == NodeKind::kIf      ? cudaGraphCondTypeIf
                                  : kind == NodeKind::kWhile ? cudaGraphCondTypeWhile
                                                             : cudaGraphCondTypeSwitch;
        params.conditional.size = static_cast<unsigned>(bodies.size());
        wrong = failed("cudaGraphAddNode(conditional)", add_node(&node, graph, dependencies, data, &params));
        Condition stop{conditions[v].handle, 0};
        for (size_t i = 0; i < bodies.size() && wrong.empty(); ++i) {
          BuiltGraph inner;
          wrong = fill(bodies[i], params.conditional.phGraph_out[i],
                       kind == NodeKind::kWhile ? &stop : nullptr, inner);
        }
        break;
      }
    }
    if (!wrong.empty()) return wrong;
  }
  if (spec.edges_after) {
    for (const Edge& edge : spec.edges) {
      const cudaGraphEdgeData data = edge_data(edge.type);
      cudaGraphNode_t* from = &nodes[static_cast<size_t>(edge.from)];
      cudaGraphNode_t* to = &nodes[static_cast<size_t>(edge.to)];
#if CUDART_VERSION >= 13000
      const cudaError_t status = cudaGraphAddDependencies(graph, from, to, &data, 1);
#else
      const cudaError_t status = cudaGraphAddDependencies_v2(graph, from, to, &data, 1);
#endif
      if (status != cudaSuccess) return failed("cudaGraphAddDependencies", status);
    }
  }
  for (const auto& [node, pointer] : allocations) built.unfreed.push_back(pointer);
  return "";
}

}  // namespace

CUresult Resources::add_batch_mem_op(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                     size_t count, int marker) const {
  if (add_batch_mem_op_ == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  CUstreamBatchMemOpParams write{};
  write.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  write.writeValue.address = reinterpret_cast<CUdeviceptr>(device_slot(marker));
  write.writeValue.value = 1;
  CUDA_BATCH_MEM_OP_NODE_PARAMS params{};
  params.ctx = context_;
  params.count = 1;
  params.paramArray = &write;
  return add_batch_mem_op_(node, graph, dependencies, count, &params);
}

std::string Resources::create() {
  const size_t bytes = kSlotBytes * static_cast<size_t>(kMaxNodes);
  cudaError_t status = cudaGetDevice(&device_ordinal_);
  if (status != cudaSuccess) return failed("cudaGetDevice", status);
  status = cudaMalloc(&device_, bytes);
  if (status != cudaSuccess) return failed("cudaMalloc", status);
  status = cudaMalloc(&other_, bytes);
  if (status != cudaSuccess) return failed("cudaMalloc", status);
  status = cudaMallocHost(reinterpret_cast<void**>(&host_), bytes);
  if (status != cudaSuccess) return failed("cudaMallocHost", status);
  pageable_ = std::make_unique<char[]>(kMaxCopyBytes);
  record_events_.assign(64, nullptr);
  for (cudaEvent_t& event : record_events_) {
    status = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    if (status != cudaSuccess) return failed("cudaEventCreateWithFlags", status);
  }
  status = cudaEventCreateWithFlags(&wait_event_, cudaEventDisableTiming);
  if (status == cudaSuccess) status = cudaEventRecord(wait_event_, nullptr);
  if (status == cudaSuccess) status = cudaDeviceSynchronize();
  if (status != cudaSuccess) return failed("cudaEventRecord", status);
  const auto entry = [](const char* name, unsigned int version, void** function) {
    cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
    return cudaGetDriverEntryPointByVersion(name, function, version, cudaEnableDefault, &found) ==
               cudaSuccess &&
           found == cudaDriverEntryPointSuccess;
#else
    static_cast<void>(version);
    return cudaGetDriverEntryPoint(name, function, cudaEnableDefault, &found) == cudaSuccess &&
           found == cudaDriverEntryPointSuccess;
#endif
  };
  void* current = nullptr;
  if (!entry("cuCtxGetCurrent", 4000, &current)) return "cuCtxGetCurrent: not found in the driver";
  const CUresult got = reinterpret_cast<decltype(&::cuCtxGetCurrent)>(current)(&context_);
  if (got != CUDA_SUCCESS) return "cuCtxGetCurrent: error " + std::to_string(static_cast<int>(got));
  void* batch = nullptr;
  if (entry("cuGraphAddBatchMemOpNode", 12000, &batch)) {
    add_batch_mem_op_ = reinterpret_cast<decltype(&::cuGraphAddBatchMemOpNode)>(batch);
  }
  return "";
}

std::string build_graph(const GraphSpec& spec, const Resources& resources, const BuildOptions& options,
                        BuiltGraph& built) {
  const cudaError_t status = cudaGraphCreate(&built.graph, 0);
  if (status != cudaSuccess) return failed("cudaGraphCreate", status);
  Builder builder(resources, options);
  builder.number(spec, "");
  return builder.fill(spec, built.graph, nullptr, built);
}

size_t bytes_of(const GraphSpec& spec, int marker) {
  return row_bytes(spec, marker) * static_cast<size_t>(spec.rows);
}

int marker_of(const GraphSpec& spec, size_t bytes) {
  const size_t row = bytes / static_cast<size_t>(spec.rows);
  if (row * static_cast<size_t>(spec.rows) != bytes || row < spec.extra_bytes + 4 ||
      (row - spec.extra_bytes) % 4 != 0)
    return -1;
  return static_cast<int>((row - spec.extra_bytes) / 4) - 1;
}

cudaError_t launch_fence(int tag, cudaStream_t stream) {
  work<<<dim3(static_cast<unsigned>(tag + 1), 2), 32, 0, stream>>>(nullptr, 0);
  return cudaGetLastError();
}

}  // namespace cglint::gpu
