#include "cuda/driver_api.h"

#include <dlfcn.h>

namespace cglint::cuda {

std::string load_driver(DriverApi& api) {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return "libcuda.so.1 was not found";
  const auto get_proc_address =
      reinterpret_cast<PFN_cuGetProcAddress_v12000>(dlsym(library, "cuGetProcAddress_v2"));
  if (get_proc_address == nullptr) return "the driver is older than CUDA 12";
  std::string missing;
  const auto load = [&](auto& function, const char* name, int version, bool needed = true) {
    void* address = nullptr;
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    if (get_proc_address(name, &address, version, CU_GET_PROC_ADDRESS_DEFAULT, &status) != CUDA_SUCCESS ||
        status != CU_GET_PROC_ADDRESS_SUCCESS)
      address = nullptr;
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
    if (address == nullptr && needed && missing.empty())
      missing = std::string("the driver has no ") + name + " of CUDA " + std::to_string(version / 1000) +
                '.' + std::to_string(version % 1000 / 10);
  };
  load(api.driver_get_version, "cuDriverGetVersion", 2020);
  load(api.stream_get_capture_info, "cuStreamGetCaptureInfo", 12030);
  load(api.graph_get_nodes, "cuGraphGetNodes", 10000);
  load(api.graph_get_edges, "cuGraphGetEdges", 12030);
  load(api.graph_node_get_type, "cuGraphNodeGetType", 10000);
  load(api.graph_kernel_node_get_params, "cuGraphKernelNodeGetParams", 12000);
  load(api.graph_kernel_node_get_attribute, "cuGraphKernelNodeGetAttribute", 11000);
  load(api.graph_memcpy_node_get_params, "cuGraphMemcpyNodeGetParams", 10000);
  load(api.graph_memset_node_get_params, "cuGraphMemsetNodeGetParams", 10000);
  load(api.graph_host_node_get_params, "cuGraphHostNodeGetParams", 10000);
  load(api.graph_child_graph_node_get_graph, "cuGraphChildGraphNodeGetGraph", 10000);
  load(api.graph_event_record_node_get_event, "cuGraphEventRecordNodeGetEvent", 11010);
  load(api.graph_event_wait_node_get_event, "cuGraphEventWaitNodeGetEvent", 11010);
  load(api.graph_mem_alloc_node_get_params, "cuGraphMemAllocNodeGetParams", 11040);
  load(api.graph_mem_free_node_get_params, "cuGraphMemFreeNodeGetParams", 11040);
  load(api.graph_batch_mem_op_node_get_params, "cuGraphBatchMemOpNodeGetParams", 11070);
  load(api.func_get_attribute, "cuFuncGetAttribute", 2020);
  load(api.func_get_name, "cuFuncGetName", 12030);
  load(api.kernel_get_name, "cuKernelGetName", 12030);
  load(api.kernel_get_function, "cuKernelGetFunction", 12000);
  load(api.mem_get_address_range, "cuMemGetAddressRange", 3020);
  load(api.stream_get_priority, "cuStreamGetPriority", 5050);
  load(api.device_get_count, "cuDeviceGetCount", 2000);
  load(api.device_get_name, "cuDeviceGetName", 2000);
  load(api.device_get_attribute, "cuDeviceGetAttribute", 2000);
  load(api.device_total_mem, "cuDeviceTotalMem", 3020);
  load(api.ctx_get_device, "cuCtxGetDevice", 2000);
  load(api.mem_get_info, "cuMemGetInfo", 3020, false);
  load(api.func_get_param_info, "cuFuncGetParamInfo", 12040, false);
  return missing;
}

}  // namespace cglint::cuda
