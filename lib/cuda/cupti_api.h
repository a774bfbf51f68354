// CUPTI, found at run time. A process must not get a second copy: the one that is mapped is used.
#pragma once

#include <cupti.h>

#include <cstdint>
#include <string>

namespace cglint::cuda {

struct CuptiApi {
  decltype(&cuptiSubscribe) subscribe = nullptr;
  decltype(&cuptiUnsubscribe) unsubscribe = nullptr;
  decltype(&cuptiEnableCallback) enable_callback = nullptr;
  decltype(&cuptiGetVersion) get_version = nullptr;
  decltype(&cuptiGetResultString) get_result_string = nullptr;
  decltype(&cuptiGetGraphNodeId) get_graph_node_id = nullptr;
  decltype(&cuptiGetGraphId) get_graph_id = nullptr;
  decltype(&cuptiGetDeviceId) get_device_id = nullptr;
  decltype(&cuptiActivityEnable) activity_enable = nullptr;
  decltype(&cuptiActivityDisable) activity_disable = nullptr;
  decltype(&cuptiActivityRegisterCallbacks) activity_register_callbacks = nullptr;
  decltype(&cuptiActivityGetNextRecord) activity_get_next_record = nullptr;
  decltype(&cuptiActivityGetNumDroppedRecords) activity_get_num_dropped_records = nullptr;
  decltype(&cuptiActivityFlushAll) activity_flush_all = nullptr;
  // May be missing: CUPTI stays in the process to its end.
  decltype(&cuptiFinalize) finalize = nullptr;
  // May be missing (before CUDA 12.6 or so): says who holds CUPTI. Whoever used it cannot trace through the functions above from 13.2 on.
  decltype(&cuptiSubscribe_v2) subscribe_v2 = nullptr;
  std::uint32_t version = 0;  // CUPTI_API_VERSION at run time
  std::string path;           // of the library
};

// Looks for the mapped library, then $CGLINT_CUPTI, the loader's own and the usual folders, for the driver's
// major version. Returns what is missing, or "".
std::string load_cupti(CuptiApi& api, int driver_version);

}  // namespace cglint::cuda
