#include "capture/graph_walker.h"

#include <dlfcn.h>

#include <cstring>
#include <unordered_map>

#include "cuda/packed_arguments.h"

namespace cglint::capture {
namespace {

template <typename T>
Handle handle_of(T* pointer) {
  return reinterpret_cast<Handle>(pointer);
}

std::string_view kind_of(CUgraphNodeType type) {
  switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return "kernel";
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return "memcpy";
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return "memset";
    case CU_GRAPH_NODE_TYPE_HOST:
      return "host";
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return "child_graph";
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return "empty";
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return "event_wait";
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return "event_record";
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
      return "ext_semaphore_signal";
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT:
      return "ext_semaphore_wait";
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
      return "mem_alloc";
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return "mem_free";
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
      return "batch_mem_op";
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      return "conditional";
    default:
      return "unknown";
  }
}

const char* memory_kind(CUmemorytype type) {
  switch (type) {
    case CU_MEMORYTYPE_DEVICE:
      return "device";
    case CU_MEMORYTYPE_ARRAY:
      return "array";
    default:
      return nullptr;  // host memory may be pinned, unified addresses are anything: the timeline may tell
  }
}

class Walker {
 public:
  explicit Walker(const WalkContext& context) : context_(context), driver_(*context.driver) {}

  // Returns the graph's number.
  std::uint32_t walk(CUgraph graph, std::int64_t parent, std::int64_t parent_node, int depth);
  std::vector<GraphRecord> take() { return std::move(done_); }

 private:
  void walk_node(GraphRecord& record, CUgraphNode handle, std::uint32_t index, int depth);
  void walk_kernel(GraphRecord& record, NodeRecord& node, CUgraphNode handle);
  void walk_memcpy(NodeRecord& node, CUgraphNode handle);
  void walk_edges(GraphRecord& record, CUgraph graph,
                  const std::unordered_map<Handle, std::uint32_t>& index_of);

  const WalkContext& context_;
  const cuda::DriverApi& driver_;
  std::vector<GraphRecord> done_;
  std::unordered_map<CUfunction, FunctionRecord> functions_;
  std::unordered_map<CUcontext, std::int32_t> devices_;
};

void Walker::walk_kernel(GraphRecord& record, NodeRecord& node, CUgraphNode handle) {
  CUDA_KERNEL_NODE_PARAMS_v2 params{};
  if (driver_.graph_kernel_node_get_params(handle, &params) != CUDA_SUCCESS) return;
  node.details_known = true;
  node.grid = {params.gridDimX, params.gridDimY, params.gridDimZ};
  node.block = {params.blockDimX, params.blockDimY, params.blockDimZ};
  node.dynamic_shared_bytes = params.sharedMemBytes;
  node.context = handle_of(params.ctx);
  if (params.ctx != nullptr && context_.cupti != nullptr) {
    const auto [place, is_new] = devices_.try_emplace(params.ctx, -1);
    std::uint32_t device = 0;
    if (is_new && context_.cupti->get_device_id(params.ctx, &device) == CUPTI_SUCCESS)
      place->second = static_cast<std::int32_t>(device);
    node.device = place->second;
  }
  CUfunction function = params.func;
  if (function == nullptr && params.kern != nullptr) driver_.kernel_get_function(&function, params.kern);
  if (function != nullptr) {
    auto place = functions_.find(function);
    if (place == functions_.end()) place = functions_.emplace(function, read_function(driver_, function)).first;
    const FunctionRecord& read = place->second;
    node.function = static_cast<std::uint32_t>(record.functions.size());
    for (std::uint32_t i = 0; i < record.functions.size(); ++i) {
      const FunctionRecord& known = record.functions[i];
      if (known.name == read.name && known.params == read.params &&
          known.static_shared_bytes == read.static_shared_bytes &&
          known.registers_per_thread == read.registers_per_thread) {
        node.function = i;
        break;
      }
    }
    if (node.function == record.functions.size()) record.functions.push_back(read);
    if (read.has_params) {
      const std::span<const unsigned char> packed = cuda::packed_arguments(params.extra);
      node.words_known = true;
      for (std::size_t i = 0; i < read.params.size(); ++i) {
        const auto [offset, size] = read.params[i];
        const unsigned char* bytes = nullptr;
        if (params.kernelParams != nullptr) {
          bytes = static_cast<const unsigned char*>(params.kernelParams[i]);
        } else if (std::size_t{offset} + size <= packed.size()) {
          bytes = packed.data() + offset;
        }
        if (bytes == nullptr || i > 0xffff) {
          node.words_known = false;
          continue;
        }
        append_words(static_cast<std::uint16_t>(i), {bytes, size}, node.words);
      }
    }
  }
  const auto attribute = [&](CUlaunchAttributeID id, CUlaunchAttributeValue& value) {
    value = {};
    return driver_.graph_kernel_node_get_attribute(handle, id, &value) == CUDA_SUCCESS;
  };
  CUlaunchAttributeValue value;
  if (attribute(CU_LAUNCH_ATTRIBUTE_COOPERATIVE, value)) node.cooperative = value.cooperative != 0;
  if (attribute(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, value))
    node.programmatic = value.programmaticStreamSerializationAllowed != 0;
  if (attribute(CU_LAUNCH_ATTRIBUTE_PRIORITY, value)) node.priority = value.priority;
  if (attribute(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, value))
    node.cluster = {value.clusterDim.x, value.clusterDim.y, value.clusterDim.z};
}

void Walker::walk_memcpy(NodeRecord& node, CUgraphNode handle) {
  CUDA_MEMCPY3D copy{};
  if (driver_.graph_memcpy_node_get_params(handle, &copy) != CUDA_SUCCESS) return;
  node.details_known = true;
  const auto place = [](CUmemorytype type, const void* host, CUdeviceptr device, std::size_t x, std::size_t y,
                        std::size_t z, std::size_t pitch, std::size_t height) -> std::uint64_t {
    if (type == CU_MEMORYTYPE_ARRAY) return 0;
    const std::uint64_t base = type == CU_MEMORYTYPE_HOST ? handle_of(host) : device;
    return base == 0 ? 0 : base + x + (y + z * height) * pitch;
  };
  node.src = place(copy.srcMemoryType, copy.srcHost, copy.srcDevice, copy.srcXInBytes, copy.srcY, copy.srcZ,
                   copy.srcPitch, copy.srcHeight);
  node.dst = place(copy.dstMemoryType, copy.dstHost, copy.dstDevice, copy.dstXInBytes, copy.dstY, copy.dstZ,
                   copy.dstPitch, copy.dstHeight);
  node.src_pitch_bytes = copy.srcPitch;
  node.dst_pitch_bytes = copy.dstPitch;
  node.width = copy.WidthInBytes;
  node.height = copy.Height;
  node.depth = copy.Depth;
  node.src_kind = memory_kind(copy.srcMemoryType);
  node.dst_kind = memory_kind(copy.dstMemoryType);
}

void Walker::walk_node(GraphRecord& record, CUgraphNode handle, std::uint32_t index, int depth) {
  NodeRecord& node = record.nodes[index];
  node.handle = handle_of(handle);
  CUgraphNodeType type{};
  if (driver_.graph_node_get_type(handle, &type) == CUDA_SUCCESS) node.kind = kind_of(type);
  if (context_.cupti != nullptr) {
    std::uint64_t id = 0;
    if (context_.cupti->get_graph_node_id(handle, &id) == CUPTI_SUCCESS) node.id = id;
  }
  if (const auto origin = record.entry.nodes.find(node.handle); origin != record.entry.nodes.end()) {
    node.origin = origin->second;
    node.has_origin = true;
  }
  switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      walk_kernel(record, node, handle);
      break;
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      walk_memcpy(node, handle);
      break;
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      CUDA_MEMSET_NODE_PARAMS_v1 set{};
      if (driver_.graph_memset_node_get_params(handle, &set) != CUDA_SUCCESS) break;
      node.details_known = true;
      node.dst = set.dst;
      node.dst_pitch_bytes = set.pitch;
      node.width = set.width;
      node.height = set.height;
      node.value = set.value;
      node.element_bytes = set.elementSize;
      break;
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
      CUDA_HOST_NODE_PARAMS_v1 host{};
      if (driver_.graph_host_node_get_params(handle, &host) != CUDA_SUCCESS) break;
      node.details_known = true;
      node.host_function = reinterpret_cast<Handle>(host.fn);
      node.user_data = handle_of(host.userData);
      Dl_info info{};
      if (dladdr(reinterpret_cast<void*>(host.fn), &info) != 0 && info.dli_sname != nullptr)
        node.host_symbol = info.dli_sname;
      break;
    }
    case CU_GRAPH_NODE_TYPE_GRAPH: {
      CUgraph body = nullptr;
      if (driver_.graph_child_graph_node_get_graph(handle, &body) == CUDA_SUCCESS && body != nullptr)
        node.body_handles.push_back(handle_of(body));
      break;
    }
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: {
      CUevent event = nullptr;
      const auto get = type == CU_GRAPH_NODE_TYPE_EVENT_RECORD ? driver_.graph_event_record_node_get_event
                                                               : driver_.graph_event_wait_node_get_event;
      if (get(handle, &event) == CUDA_SUCCESS) node.event = handle_of(event);
      break;
    }
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: {
      CUDA_MEM_ALLOC_NODE_PARAMS_v1 alloc{};
      if (driver_.graph_mem_alloc_node_get_params(handle, &alloc) != CUDA_SUCCESS) break;
      node.address = alloc.dptr;
      node.bytes = alloc.bytesize;
      break;
    }
    case CU_GRAPH_NODE_TYPE_MEM_FREE: {
      CUdeviceptr address = 0;
      if (driver_.graph_mem_free_node_get_params(handle, &address) == CUDA_SUCCESS) node.address = address;
      break;
    }
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
      CUDA_BATCH_MEM_OP_NODE_PARAMS ops{};
      if (driver_.graph_batch_mem_op_node_get_params(handle, &ops) != CUDA_SUCCESS) break;
      node.count = ops.count;
      if (ops.count != 0 && ops.paramArray != nullptr) node.address = ops.paramArray[0].waitValue.address;
      break;
    }
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
      // The driver tells its bodies only when the node is made.
      if (const auto made = record.entry.conditionals.find(node.handle);
          made != record.entry.conditionals.end()) {
        node.conditional_type = made->second.type;
        node.body_handles = made->second.bodies;
      }
      break;
    default:
      break;
  }
  constexpr int kMaxDepth = 16;
  for (const Handle body : std::vector<Handle>(node.body_handles)) {
    const std::int64_t number =
        body == 0 || depth >= kMaxDepth
            ? -1
            : std::int64_t{walk(reinterpret_cast<CUgraph>(body), record.number, index, depth + 1)};
    node.bodies.push_back(number);
  }
}

void Walker::walk_edges(GraphRecord& record, CUgraph graph,
                        const std::unordered_map<Handle, std::uint32_t>& index_of) {
  record.edges_known = false;
  std::size_t count = 0;
  if (driver_.graph_get_edges(graph, nullptr, nullptr, nullptr, &count) != CUDA_SUCCESS) return;
  std::vector<CUgraphNode> from(count), to(count);
  std::vector<CUgraphEdgeData> data(count);
  if (count != 0 &&
      driver_.graph_get_edges(graph, from.data(), to.data(), data.data(), &count) != CUDA_SUCCESS)
    return;
  for (std::size_t i = 0; i < count; ++i) {
    const auto source = index_of.find(handle_of(from[i])), target = index_of.find(handle_of(to[i]));
    if (source == index_of.end() || target == index_of.end()) return;
    EdgeRecord edge{source->second, target->second, data[i].from_port, data[i].to_port, data[i].type, kNone};
    const auto sync = record.entry.edge_sync.find({handle_of(from[i]), handle_of(to[i])});
    if (sync != record.entry.edge_sync.end()) edge.sync = sync->second;
    record.edges.push_back(edge);
  }
  record.edges_known = true;
}

std::uint32_t Walker::walk(CUgraph graph, std::int64_t parent, std::int64_t parent_node, int depth) {
  GraphRecord record;
  record.number = context_.next_number();
  record.handle = handle_of(graph);
  record.entry = context_.entry_of(record.handle);
  record.parent = parent;
  record.parent_node = parent_node;
  record.role = parent >= 0 ? "body" : record.entry.captured ? "captured" : "built";
  std::uint32_t id = 0;
  if (context_.cupti != nullptr && context_.cupti->get_graph_id(graph, &id) == CUPTI_SUCCESS)
    record.source_id = id;
  std::size_t count = 0;
  CUresult result = driver_.graph_get_nodes(graph, nullptr, &count);
  std::vector<CUgraphNode> handles(count);
  if (result == CUDA_SUCCESS && count != 0) result = driver_.graph_get_nodes(graph, handles.data(), &count);
  const std::uint32_t number = record.number;
  if (result != CUDA_SUCCESS) {
    record.failure = "cuGraphGetNodes failed with error " + std::to_string(result);
  } else {
    record.nodes.resize(count);
    std::unordered_map<Handle, std::uint32_t> index_of;
    for (std::uint32_t i = 0; i < count; ++i) {
      index_of.emplace(handle_of(handles[i]), i);
      walk_node(record, handles[i], i, depth);
    }
    walk_edges(record, graph, index_of);
  }
  done_.push_back(std::move(record));
  return number;
}

}  // namespace

FunctionRecord read_function(const cuda::DriverApi& driver, CUfunction function) {
  FunctionRecord record;
  const char* name = nullptr;
  if (driver.func_get_name(&name, function) != CUDA_SUCCESS) {
    // A launch may name a CUkernel, cast.
    CUfunction loaded = nullptr;
    if (driver.kernel_get_function(&loaded, reinterpret_cast<CUkernel>(function)) != CUDA_SUCCESS) return record;
    function = loaded;
    if (driver.func_get_name(&name, function) != CUDA_SUCCESS) return record;
  }
  if (name != nullptr) record.name = name;
  int value = 0;
  if (driver.func_get_attribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, function) == CUDA_SUCCESS && value > 0)
    record.registers_per_thread = static_cast<std::uint32_t>(value);
  if (driver.func_get_attribute(&value, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function) == CUDA_SUCCESS &&
      value > 0)
    record.static_shared_bytes = static_cast<std::uint32_t>(value);
  if (driver.func_get_param_info != nullptr) {
    constexpr std::size_t kMaxParams = 4096;
    std::size_t offset = 0, size = 0;
    CUresult result = CUDA_SUCCESS;
    for (std::size_t i = 0; i < kMaxParams; ++i) {
      result = driver.func_get_param_info(function, i, &offset, &size);
      if (result != CUDA_SUCCESS) break;
      record.params.emplace_back(static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(size));
    }
    // The index past the last parameter is an invalid value; anything else is a failure.
    record.has_params = result == CUDA_ERROR_INVALID_VALUE;
  }
  return record;
}

std::vector<GraphRecord> walk_graph(const WalkContext& context, CUgraph graph) {
  Walker walker(context);
  walker.walk(graph, -1, -1, 0);
  return walker.take();
}

}  // namespace cglint::capture
