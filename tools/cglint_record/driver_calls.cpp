#include "driver_calls.h"

#include <cuda.h>

#include <array>

namespace cglint::record {
namespace {

// Calls with a parameter hStream; those in the second list have a variant for the per-thread default stream.
#define CGLINT_NODE_CALLS(X)                                                                          \
  X(cuLaunchKernel)                                                                                   \
  X(cuLaunchCooperativeKernel) X(cuLaunchHostFunc) X(cuMemcpyAsync) X(cuMemcpyPeerAsync)              \
      X(cuMemcpyHtoDAsync_v2) X(cuMemcpyDtoHAsync_v2) X(cuMemcpyDtoDAsync_v2) X(cuMemcpyHtoAAsync_v2) \
          X(cuMemcpyAtoHAsync_v2) X(cuMemcpy2DAsync_v2) X(cuMemcpy3DAsync_v2) X(cuMemcpy3DPeerAsync)  \
              X(cuMemsetD8Async) X(cuMemsetD16Async) X(cuMemsetD32Async) X(cuMemsetD2D8Async)         \
                  X(cuMemsetD2D16Async) X(cuMemsetD2D32Async)
// Their parameter is called stream.
#define CGLINT_STREAM_OPS(X) \
  X(cuStreamBatchMemOp_v2)   \
  X(cuStreamWaitValue32_v2) X(cuStreamWaitValue64_v2) X(cuStreamWriteValue32_v2) X(cuStreamWriteValue64_v2)

// Not allowed while a stream captures, in some modes or always: they break captures.
#define CGLINT_WATCHED_CALLS(X) \
  X(cuCtxSynchronize) X(cuStreamSynchronize) X(cuStreamSynchronize_ptsz) X(cuStreamQuery) \
  X(cuStreamQuery_ptsz) X(cuEventSynchronize) X(cuEventQuery) X(cuEventElapsedTime) X(cuStreamAddCallback) \
  X(cuStreamAddCallback_ptsz) X(cuStreamAttachMemAsync) X(cuStreamAttachMemAsync_ptsz) \
  X(cuStreamDestroy_v2) X(cuMemCreate) X(cuArrayCreate_v2) X(cuArray3DCreate_v2) X(cuMemPrefetchAsync) \
  X(cuMemPrefetchAsync_ptsz) X(cuMemPoolTrimTo) X(cuModuleLoad) X(cuModuleLoadData) X(cuModuleLoadDataEx) \
  X(cuModuleLoadFatBinary) X(cuModuleUnload) X(cuLibraryLoadData) X(cuLibraryLoadFromFile) \
  X(cuLibraryUnload) X(cuKernelGetFunction) X(cuFuncLoad) X(cuCtxSetLimit) X(cuMemPrefetchAsync_v2) \
  X(cuMemPrefetchAsync_v2_ptsz) X(cuMemPoolDestroy) X(cuMemRelease) X(cuMemSetAccess) X(cuMemAdvise_v2) \
  X(cuModuleGetFunction) X(cuModuleGetGlobal_v2) X(cuCtxDestroy_v2) X(cuDevicePrimaryCtxReset_v2)
// Copies and fills that use the legacy stream, or wait for their end.
#define CGLINT_BLOCKING_COPIES(X) \
  X(cuMemcpy) X(cuMemcpy_ptds) X(cuMemcpyPeer) X(cuMemcpyPeer_ptds) X(cuMemcpyHtoD_v2) \
  X(cuMemcpyHtoD_v2_ptds) X(cuMemcpyDtoH_v2) X(cuMemcpyDtoH_v2_ptds) X(cuMemcpyDtoD_v2) \
  X(cuMemcpyDtoD_v2_ptds) X(cuMemcpy2D_v2) X(cuMemcpy2D_v2_ptds) X(cuMemcpy2DUnaligned_v2) \
  X(cuMemcpy2DUnaligned_v2_ptds) X(cuMemcpy3D_v2) X(cuMemcpy3D_v2_ptds) X(cuMemsetD8_v2) \
  X(cuMemsetD8_v2_ptds) X(cuMemsetD16_v2) X(cuMemsetD16_v2_ptds) X(cuMemsetD32_v2) X(cuMemsetD32_v2_ptds) \
  X(cuMemsetD2D8_v2) X(cuMemsetD2D8_v2_ptds) X(cuMemsetD2D32_v2) X(cuMemsetD2D32_v2_ptds) \
  X(cuMemcpyAtoA_v2) X(cuMemcpyAtoD_v2) X(cuMemcpyAtoH_v2) X(cuMemcpyDtoA_v2) X(cuMemcpyHtoA_v2) \
  X(cuMemcpy3DPeer) X(cuMemsetD2D16_v2)
#define CGLINT_EXEC_UPDATES(X)                                                                             \
  X(cuGraphExecUpdate_v2)                                                                                  \
  X(cuGraphExecUpdate) X(cuGraphExecKernelNodeSetParams_v2) X(cuGraphExecKernelNodeSetParams)              \
      X(cuGraphExecMemcpyNodeSetParams) X(cuGraphExecMemsetNodeSetParams) X(cuGraphExecHostNodeSetParams)  \
          X(cuGraphExecChildGraphNodeSetParams) X(cuGraphExecEventRecordNodeSetEvent)                      \
              X(cuGraphExecEventWaitNodeSetEvent) X(cuGraphExecBatchMemOpNodeSetParams)                    \
                  X(cuGraphExecNodeSetParams) X(cuGraphNodeSetEnabled)

// Add one node to a graph that is built node by node; cuGraphAddNode is apart. Those for memory are left out: nothing is
// taken in calls that allocate or free.
#define CGLINT_ADD_CALLS(X)                                                                                   \
  X(cuGraphAddKernelNode)                                                                                     \
  X(cuGraphAddKernelNode_v2) X(cuGraphAddMemcpyNode) X(cuGraphAddMemsetNode) X(cuGraphAddHostNode)            \
      X(cuGraphAddChildGraphNode) X(cuGraphAddEmptyNode) X(cuGraphAddEventRecordNode)                         \
          X(cuGraphAddEventWaitNode) X(cuGraphAddBatchMemOpNode) X(cuGraphAddExternalSemaphoresSignalNode)    \
              X(cuGraphAddExternalSemaphoresWaitNode)

constexpr CUpti_CallbackId kCalls[] = {
#define CGLINT_ONE(name) CUPTI_DRIVER_TRACE_CBID_##name,
    CGLINT_WATCHED_CALLS(CGLINT_ONE) CGLINT_BLOCKING_COPIES(CGLINT_ONE) CGLINT_EXEC_UPDATES(CGLINT_ONE) CGLINT_ADD_CALLS(CGLINT_ONE)
#undef CGLINT_ONE
#if CUDA_VERSION >= 13000
        CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize_v2,
#endif
    CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch,
    CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch_ptsz,
    CUPTI_DRIVER_TRACE_CBID_cuGraphUpload,
    CUPTI_DRIVER_TRACE_CBID_cuGraphUpload_ptsz,
#define CGLINT_BOTH(name) CUPTI_DRIVER_TRACE_CBID_##name, CUPTI_DRIVER_TRACE_CBID_##name##_ptsz,
    CGLINT_NODE_CALLS(CGLINT_BOTH) CGLINT_STREAM_OPS(CGLINT_BOTH) CGLINT_BOTH(cuLaunchKernelEx)
        CGLINT_BOTH(cuMemAllocAsync) CGLINT_BOTH(cuMemAllocFromPoolAsync) CGLINT_BOTH(cuMemFreeAsync)
            CGLINT_BOTH(cuEventRecord) CGLINT_BOTH(cuEventRecordWithFlags) CGLINT_BOTH(cuStreamWaitEvent)
                CGLINT_BOTH(cuStreamUpdateCaptureDependencies)
                    CGLINT_BOTH(cuStreamUpdateCaptureDependencies_v2) CGLINT_BOTH(cuStreamBeginCapture_v2)
                        CGLINT_BOTH(cuStreamBeginCaptureToGraph) CGLINT_BOTH(cuStreamEndCapture)
                            CGLINT_BOTH(cuGraphInstantiateWithParams)
#if CUDA_VERSION >= 13000
                                CGLINT_BOTH(cuMemcpyBatchAsync_v2) CGLINT_BOTH(cuMemcpy3DBatchAsync_v2)
#endif
#undef CGLINT_BOTH
                                    CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiate_v2,
    CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiateWithFlags,
    CUPTI_DRIVER_TRACE_CBID_cuGraphAddNode,
    CUPTI_DRIVER_TRACE_CBID_cuGraphAddNode_v2,
    CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2,
    CUPTI_DRIVER_TRACE_CBID_cuMemAllocPitch_v2,
    CUPTI_DRIVER_TRACE_CBID_cuMemAllocManaged,
    CUPTI_DRIVER_TRACE_CBID_cuMemFree_v2,
    CUPTI_DRIVER_TRACE_CBID_cuMemMap,
    CUPTI_DRIVER_TRACE_CBID_cuMemUnmap,
    CUPTI_DRIVER_TRACE_CBID_cuMemHostAlloc,
    CUPTI_DRIVER_TRACE_CBID_cuMemAllocHost_v2,
    CUPTI_DRIVER_TRACE_CBID_cuMemFreeHost,
    CUPTI_DRIVER_TRACE_CBID_cuMemHostRegister_v2,
    CUPTI_DRIVER_TRACE_CBID_cuMemHostUnregister,
    CUPTI_DRIVER_TRACE_CBID_cuIpcOpenMemHandle_v2,
    CUPTI_DRIVER_TRACE_CBID_cuIpcCloseMemHandle,
};

// The variants for the per-thread default stream take its name for stream 0. Their parameter structs are the
// same.
CUstream stream_of(CUstream stream, bool per_thread) {
  return stream == nullptr && per_thread ? CU_STREAM_PER_THREAD : stream;
}

CallFacts on_stream(CallKind kind, CUstream stream, bool per_thread, CUevent event = nullptr) {
  return {kind, true, stream_of(stream, per_thread), event, nullptr};
}

template <typename Params>
const Params& as(const void* params) {
  return *static_cast<const Params*>(params);
}
template <typename Pointer>
std::uint64_t target(const Pointer* pointer) {
  return pointer == nullptr ? 0 : (std::uint64_t)*pointer;  // a device address or a host pointer
}

}  // namespace

CallFacts read_call(CUpti_CallbackId id, const void* params) {
  switch (id) {
#define CGLINT_CASE(name, kind, field, event)                                        \
  case CUPTI_DRIVER_TRACE_CBID_##name:                                               \
    return on_stream(CallKind::kind, as<name##_params>(params).field, false, event); \
  case CUPTI_DRIVER_TRACE_CBID_##name##_ptsz:                                        \
    return on_stream(CallKind::kind, as<name##_params>(params).field, true, event);
#define CGLINT_CASE_NODE(name) CGLINT_CASE(name, node, hStream, nullptr)
#define CGLINT_CASE_OP(name) CGLINT_CASE(name, node, stream, nullptr)
    CGLINT_NODE_CALLS(CGLINT_CASE_NODE)
    CGLINT_STREAM_OPS(CGLINT_CASE_OP)
    CGLINT_CASE(cuLaunchKernelEx, node, config->hStream, nullptr)
    CGLINT_CASE(cuMemAllocAsync, alloc, hStream, nullptr)
    CGLINT_CASE(cuMemAllocFromPoolAsync, alloc, hStream, nullptr)
    CGLINT_CASE(cuMemFreeAsync, free, hStream, nullptr)
    CGLINT_CASE(cuEventRecord, event_record, hStream, as<cuEventRecord_params>(params).hEvent)
    CGLINT_CASE(cuStreamUpdateCaptureDependencies, update_dependencies, hStream, nullptr)
    CGLINT_CASE(cuStreamUpdateCaptureDependencies_v2, update_dependencies, hStream, nullptr)
    CGLINT_CASE(cuStreamBeginCapture_v2, begin_capture, hStream, nullptr)
    CGLINT_CASE(cuStreamBeginCaptureToGraph, begin_capture, hStream, nullptr)
    CGLINT_CASE(cuStreamEndCapture, end_capture, hStream, nullptr)
#if CUDA_VERSION >= 13000
    CGLINT_CASE_NODE(cuMemcpyBatchAsync_v2)
    CGLINT_CASE_NODE(cuMemcpy3DBatchAsync_v2)
#endif
    // An external event becomes a node of its own.
    case CUPTI_DRIVER_TRACE_CBID_cuEventRecordWithFlags:
    case CUPTI_DRIVER_TRACE_CBID_cuEventRecordWithFlags_ptsz: {
      const auto& call = as<cuEventRecordWithFlags_params>(params);
      return on_stream((call.flags & CU_EVENT_RECORD_EXTERNAL) != 0 ? CallKind::node : CallKind::event_record,
                       call.hStream, id == CUPTI_DRIVER_TRACE_CBID_cuEventRecordWithFlags_ptsz, call.hEvent);
    }
    case CUPTI_DRIVER_TRACE_CBID_cuStreamWaitEvent:
    case CUPTI_DRIVER_TRACE_CBID_cuStreamWaitEvent_ptsz: {
      const auto& call = as<cuStreamWaitEvent_params>(params);
      return on_stream((call.Flags & CU_EVENT_WAIT_EXTERNAL) != 0 ? CallKind::node : CallKind::event_wait,
                       call.hStream, id == CUPTI_DRIVER_TRACE_CBID_cuStreamWaitEvent_ptsz, call.hEvent);
    }
    case CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiate_v2:
    case CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiateWithFlags:
    case CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiateWithParams:
    case CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiateWithParams_ptsz:
      return {CallKind::instantiate};
    case CUPTI_DRIVER_TRACE_CBID_cuGraphAddNode:
    case CUPTI_DRIVER_TRACE_CBID_cuGraphAddNode_v2:
#define CGLINT_CASE_ADD(name) case CUPTI_DRIVER_TRACE_CBID_##name:
    CGLINT_ADD_CALLS(CGLINT_CASE_ADD)
      return {CallKind::add_node};
    case CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2:
    case CUPTI_DRIVER_TRACE_CBID_cuMemAllocPitch_v2:
    case CUPTI_DRIVER_TRACE_CBID_cuMemAllocManaged:
    case CUPTI_DRIVER_TRACE_CBID_cuMemMap:
    case CUPTI_DRIVER_TRACE_CBID_cuMemHostAlloc:
    case CUPTI_DRIVER_TRACE_CBID_cuMemAllocHost_v2:
    case CUPTI_DRIVER_TRACE_CBID_cuMemHostRegister_v2:
    case CUPTI_DRIVER_TRACE_CBID_cuIpcOpenMemHandle_v2:
      return {CallKind::alloc};
    case CUPTI_DRIVER_TRACE_CBID_cuMemFree_v2:
    case CUPTI_DRIVER_TRACE_CBID_cuMemUnmap:
    case CUPTI_DRIVER_TRACE_CBID_cuMemFreeHost:
    case CUPTI_DRIVER_TRACE_CBID_cuMemHostUnregister:
    case CUPTI_DRIVER_TRACE_CBID_cuIpcCloseMemHandle:
      return {CallKind::free};
    case CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch:
    case CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch_ptsz: {
      const auto& call = as<cuGraphLaunch_params>(params);
      CallFacts facts = on_stream(CallKind::graph_launch, call.hStream, id == CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch_ptsz);
      facts.exec = call.hGraph;
      return facts;
    }
    case CUPTI_DRIVER_TRACE_CBID_cuGraphUpload:
    case CUPTI_DRIVER_TRACE_CBID_cuGraphUpload_ptsz: {
      CallFacts facts{CallKind::upload};
      facts.exec = as<cuGraphUpload_params>(params).hGraph;
      return facts;
    }
#define CGLINT_CASE_UPDATE(name) case CUPTI_DRIVER_TRACE_CBID_##name:
    CGLINT_EXEC_UPDATES(CGLINT_CASE_UPDATE) {
      // The executable graph is the first parameter of each.
      CallFacts facts{CallKind::exec_update};
      facts.exec = as<cuGraphNodeSetEnabled_params>(params).hGraphExec;
      return facts;
    }
#define CGLINT_CASE_BLOCKING(name) case CUPTI_DRIVER_TRACE_CBID_##name:
    CGLINT_BLOCKING_COPIES(CGLINT_CASE_BLOCKING)
      return {CallKind::blocking_copy, true, nullptr};
    case CUPTI_DRIVER_TRACE_CBID_cuStreamSynchronize:
    case CUPTI_DRIVER_TRACE_CBID_cuStreamQuery:
      return {CallKind::watched, true, as<cuStreamSynchronize_params>(params).hStream};
    case CUPTI_DRIVER_TRACE_CBID_cuStreamSynchronize_ptsz:
    case CUPTI_DRIVER_TRACE_CBID_cuStreamQuery_ptsz:
      return {CallKind::watched, true, stream_of(as<cuStreamSynchronize_params>(params).hStream, true)};
    default:
      return {};
  }
}

const CUgraphNodeParams* added_node(CUpti_CallbackId id, const void* params) {
  if (id == CUPTI_DRIVER_TRACE_CBID_cuGraphAddNode) return as<cuGraphAddNode_params>(params).nodeParams;
  if (id == CUPTI_DRIVER_TRACE_CBID_cuGraphAddNode_v2) return as<cuGraphAddNode_v2_params>(params).nodeParams;
  return nullptr;
}

const char* node_kind(CUpti_CallbackId id) {
  switch (id) {
#define CGLINT_CASE_BOTH(name)              \
  case CUPTI_DRIVER_TRACE_CBID_##name:      \
  case CUPTI_DRIVER_TRACE_CBID_##name##_ptsz:
    CGLINT_CASE_BOTH(cuLaunchKernel)
    CGLINT_CASE_BOTH(cuLaunchKernelEx)
    CGLINT_CASE_BOTH(cuLaunchCooperativeKernel)
      return "kernel";
    CGLINT_CASE_BOTH(cuLaunchHostFunc)
      return "host";
    CGLINT_CASE_BOTH(cuMemsetD8Async)
    CGLINT_CASE_BOTH(cuMemsetD16Async)
    CGLINT_CASE_BOTH(cuMemsetD32Async)
    CGLINT_CASE_BOTH(cuMemsetD2D8Async)
    CGLINT_CASE_BOTH(cuMemsetD2D16Async)
    CGLINT_CASE_BOTH(cuMemsetD2D32Async)
      return "memset";
    CGLINT_STREAM_OPS(CGLINT_CASE_BOTH)
      return "batch_mem_op";
    CGLINT_CASE_BOTH(cuMemAllocAsync)
    CGLINT_CASE_BOTH(cuMemAllocFromPoolAsync)
      return "mem_alloc";
    CGLINT_CASE_BOTH(cuMemFreeAsync)
      return "mem_free";
    CGLINT_CASE_BOTH(cuEventRecordWithFlags)
      return "event_record";
    CGLINT_CASE_BOTH(cuStreamWaitEvent)
      return "event_wait";
    CGLINT_CASE_BOTH(cuGraphLaunch)
      return "child_graph";
    default:
      return "memcpy";
  }
}

LaunchFacts read_launch(CUpti_CallbackId id, const void* params) {
  LaunchFacts facts;
  switch (id) {
    CGLINT_CASE_BOTH(cuLaunchKernel) {
      const auto& call = as<cuLaunchKernel_params>(params);
      facts.function = call.f;
      facts.grid = {call.gridDimX, call.gridDimY, call.gridDimZ};
      facts.block = {call.blockDimX, call.blockDimY, call.blockDimZ};
      facts.dynamic_shared_bytes = call.sharedMemBytes;
      facts.params = call.kernelParams;
      facts.extra = call.extra;
      break;
    }
    CGLINT_CASE_BOTH(cuLaunchCooperativeKernel) {
      const auto& call = as<cuLaunchCooperativeKernel_params>(params);
      facts.function = call.f;
      facts.grid = {call.gridDimX, call.gridDimY, call.gridDimZ};
      facts.block = {call.blockDimX, call.blockDimY, call.blockDimZ};
      facts.dynamic_shared_bytes = call.sharedMemBytes;
      facts.params = call.kernelParams;
      break;
    }
    CGLINT_CASE_BOTH(cuLaunchKernelEx) {
      const auto& call = as<cuLaunchKernelEx_params>(params);
      if (call.config == nullptr) break;
      facts.function = call.f;
      facts.grid = {call.config->gridDimX, call.config->gridDimY, call.config->gridDimZ};
      facts.block = {call.config->blockDimX, call.config->blockDimY, call.config->blockDimZ};
      facts.dynamic_shared_bytes = call.config->sharedMemBytes;
      facts.params = call.kernelParams;
      facts.extra = call.extra;
      break;
    }
    default:
      break;
  }
  return facts;
}

const char* capture_error(CUresult result) {
  switch (result) {
#define CGLINT_NAME(name) \
  case name:              \
    return #name;
    CGLINT_NAME(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
    CGLINT_NAME(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
    CGLINT_NAME(CUDA_ERROR_STREAM_CAPTURE_MERGE)
    CGLINT_NAME(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED)
    CGLINT_NAME(CUDA_ERROR_STREAM_CAPTURE_UNJOINED)
    CGLINT_NAME(CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
    CGLINT_NAME(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
    CGLINT_NAME(CUDA_ERROR_CAPTURED_EVENT)
    CGLINT_NAME(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
    default:
      return nullptr;
  }
}

const char* capture_mode(CUpti_CallbackId id, const void* params) {
  const bool to_graph = id == CUPTI_DRIVER_TRACE_CBID_cuStreamBeginCaptureToGraph ||
                        id == CUPTI_DRIVER_TRACE_CBID_cuStreamBeginCaptureToGraph_ptsz;
  switch (to_graph ? as<cuStreamBeginCaptureToGraph_params>(params).mode
                   : as<cuStreamBeginCapture_v2_params>(params).mode) {
    case CU_STREAM_CAPTURE_MODE_GLOBAL:
      return "global";
    case CU_STREAM_CAPTURE_MODE_THREAD_LOCAL:
      return "thread_local";
    case CU_STREAM_CAPTURE_MODE_RELAXED:
      return "relaxed";
    default:
      return "unknown";
  }
}

std::optional<std::uint64_t> instantiate_flags(CUpti_CallbackId id, const void* params) {
  if (id == CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiateWithFlags)
    return as<cuGraphInstantiateWithFlags_params>(params).flags;
  if (id == CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiateWithParams ||
      id == CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiateWithParams_ptsz) {
    const CUDA_GRAPH_INSTANTIATE_PARAMS* const given =
        as<cuGraphInstantiateWithParams_params>(params).instantiateParams;
    if (given != nullptr) return given->flags;
  }
  return std::nullopt;
}

MemoryRange allocated_range(CUpti_CallbackId id, const void* params) {
  switch (id) {
    case CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2: {
      const auto& call = as<cuMemAlloc_v2_params>(params);
      return {target(call.dptr), call.bytesize, "device"};
    }
    case CUPTI_DRIVER_TRACE_CBID_cuMemAllocPitch_v2: {
      const auto& call = as<cuMemAllocPitch_v2_params>(params);
      return {target(call.dptr), call.pPitch == nullptr ? 0 : *call.pPitch * call.Height, "device"};
    }
    case CUPTI_DRIVER_TRACE_CBID_cuMemAllocManaged: {
      const auto& call = as<cuMemAllocManaged_params>(params);
      return {target(call.dptr), call.bytesize, "managed"};
    }
    case CUPTI_DRIVER_TRACE_CBID_cuMemAllocAsync:
    case CUPTI_DRIVER_TRACE_CBID_cuMemAllocAsync_ptsz: {
      const auto& call = as<cuMemAllocAsync_params>(params);
      return {target(call.dptr), call.bytesize, "async"};
    }
    case CUPTI_DRIVER_TRACE_CBID_cuMemAllocFromPoolAsync:
    case CUPTI_DRIVER_TRACE_CBID_cuMemAllocFromPoolAsync_ptsz: {
      const auto& call = as<cuMemAllocFromPoolAsync_params>(params);
      return {target(call.dptr), call.bytesize, "pool"};
    }
    case CUPTI_DRIVER_TRACE_CBID_cuMemMap: {
      const auto& call = as<cuMemMap_params>(params);
      return {call.ptr, call.size, "vmm"};
    }
    case CUPTI_DRIVER_TRACE_CBID_cuMemHostAlloc: {
      const auto& call = as<cuMemHostAlloc_params>(params);
      return {target(call.pp), call.bytesize, "host_registered"};
    }
    case CUPTI_DRIVER_TRACE_CBID_cuMemAllocHost_v2: {
      const auto& call = as<cuMemAllocHost_v2_params>(params);
      return {target(call.pp), call.bytesize, "host_registered"};
    }
    case CUPTI_DRIVER_TRACE_CBID_cuMemHostRegister_v2: {
      const auto& call = as<cuMemHostRegister_v2_params>(params);
      return {reinterpret_cast<std::uint64_t>(call.p), call.bytesize, "host_registered"};
    }
    case CUPTI_DRIVER_TRACE_CBID_cuIpcOpenMemHandle_v2:
      return {target(as<cuIpcOpenMemHandle_v2_params>(params).pdptr), 0, "unknown"};
    default:
      return {};
  }
}

MemoryRange freed_range(CUpti_CallbackId id, const void* params) {
  switch (id) {
    case CUPTI_DRIVER_TRACE_CBID_cuMemFree_v2:
      return {as<cuMemFree_v2_params>(params).dptr, 1};
    case CUPTI_DRIVER_TRACE_CBID_cuMemFreeAsync:
    case CUPTI_DRIVER_TRACE_CBID_cuMemFreeAsync_ptsz:
      return {as<cuMemFreeAsync_params>(params).dptr, 1};
    case CUPTI_DRIVER_TRACE_CBID_cuMemUnmap: {
      const auto& call = as<cuMemUnmap_params>(params);
      return {call.ptr, call.size};
    }
    case CUPTI_DRIVER_TRACE_CBID_cuMemFreeHost:
      return {reinterpret_cast<std::uint64_t>(as<cuMemFreeHost_params>(params).p), 1};
    case CUPTI_DRIVER_TRACE_CBID_cuMemHostUnregister:
      return {reinterpret_cast<std::uint64_t>(as<cuMemHostUnregister_params>(params).p), 1};
    case CUPTI_DRIVER_TRACE_CBID_cuIpcCloseMemHandle:
      return {as<cuIpcCloseMemHandle_params>(params).dptr, 1};
    default:
      return {};
  }
}

bool is_ipc_open(CUpti_CallbackId id) {
  return id == CUPTI_DRIVER_TRACE_CBID_cuIpcOpenMemHandle_v2;
}

void for_each_call(void (*visit)(CUpti_CallbackId id, void* argument), void* argument) {
  for (const CUpti_CallbackId id : kCalls) visit(id, argument);
}

}  // namespace cglint::record
