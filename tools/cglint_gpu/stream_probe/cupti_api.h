// CUPTI, loaded at run time: the program starts, and says what is missing, on a machine without it.
#pragma once

#include <cupti.h>

#include <string>

namespace cglint::gpu {

// The CUPTI functions used. All null until load_cupti() succeeds.
struct CuptiApi {
  decltype(&::cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&::cuptiActivityEnable) enable = nullptr;
  decltype(&::cuptiActivityFlushAll) flush_all = nullptr;
  decltype(&::cuptiActivityGetNextRecord) next_record = nullptr;
  decltype(&::cuptiActivityGetNumDroppedRecords) dropped_records = nullptr;
  decltype(&::cuptiGetStreamIdEx) stream_id = nullptr;
  decltype(&::cuptiGetVersion) version = nullptr;
  decltype(&::cuptiGetResultString) result_string = nullptr;
};

// Tries $CGLINT_CUPTI, then the loader's search path, then the toolkit's usual folders. Returns an empty
// string, or why not. The library stays loaded for the life of the process.
std::string load_cupti(CuptiApi& api);

}  // namespace cglint::gpu
