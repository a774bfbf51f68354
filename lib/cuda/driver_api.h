// The CUDA driver, found at run time: nothing links libcuda. Each entry point is asked for with the version
// of the signature that this code was written against, so that a newer driver answers with the same one.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#include <string>

namespace cglint::cuda {

struct DriverApi {
  // Needed.
  PFN_cuDriverGetVersion_v2020 driver_get_version = nullptr;
  PFN_cuStreamGetCaptureInfo_v12030 stream_get_capture_info = nullptr;
  PFN_cuGraphGetNodes_v10000 graph_get_nodes = nullptr;
  PFN_cuGraphGetEdges_v12030 graph_get_edges = nullptr;
  PFN_cuGraphNodeGetType_v10000 graph_node_get_type = nullptr;
  PFN_cuGraphKernelNodeGetParams_v12000 graph_kernel_node_get_params = nullptr;
  PFN_cuGraphKernelNodeGetAttribute_v11000 graph_kernel_node_get_attribute = nullptr;
  PFN_cuGraphMemcpyNodeGetParams_v10000 graph_memcpy_node_get_params = nullptr;
  PFN_cuGraphMemsetNodeGetParams_v10000 graph_memset_node_get_params = nullptr;
  PFN_cuGraphHostNodeGetParams_v10000 graph_host_node_get_params = nullptr;
  PFN_cuGraphChildGraphNodeGetGraph_v10000 graph_child_graph_node_get_graph = nullptr;
  PFN_cuGraphEventRecordNodeGetEvent_v11010 graph_event_record_node_get_event = nullptr;
  PFN_cuGraphEventWaitNodeGetEvent_v11010 graph_event_wait_node_get_event = nullptr;
  PFN_cuGraphMemAllocNodeGetParams_v11040 graph_mem_alloc_node_get_params = nullptr;
  PFN_cuGraphMemFreeNodeGetParams_v11040 graph_mem_free_node_get_params = nullptr;
  PFN_cuGraphBatchMemOpNodeGetParams_v11070 graph_batch_mem_op_node_get_params = nullptr;
  PFN_cuFuncGetAttribute_v2020 func_get_attribute = nullptr;
  PFN_cuFuncGetName_v12030 func_get_name = nullptr;
  PFN_cuKernelGetName_v12030 kernel_get_name = nullptr;
  PFN_cuKernelGetFunction_v12000 kernel_get_function = nullptr;
  PFN_cuMemGetAddressRange_v3020 mem_get_address_range = nullptr;
  PFN_cuStreamGetPriority_v5050 stream_get_priority = nullptr;
  PFN_cuDeviceGetCount_v2000 device_get_count = nullptr;
  PFN_cuDeviceGetName_v2000 device_get_name = nullptr;
  PFN_cuDeviceGetAttribute_v2000 device_get_attribute = nullptr;
  PFN_cuDeviceTotalMem_v3020 device_total_mem = nullptr;
  PFN_cuCtxGetDevice_v2000 ctx_get_device = nullptr;
  // May be missing: then parameters are not recorded.
  PFN_cuFuncGetParamInfo_v12040 func_get_param_info = nullptr;
  PFN_cuMemGetInfo_v3020 mem_get_info = nullptr;
};

// Opens libcuda.so.1, or takes the one that is loaded. Returns what is missing, or "".
std::string load_driver(DriverApi& api);

}  // namespace cglint::cuda
