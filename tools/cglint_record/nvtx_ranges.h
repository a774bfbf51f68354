// NVTX without CUPTI: the library is its own NVTX injection (NVTX_INJECTION64_PATH), so that ranges are known
// on every thread whichever CUPTI is loaded. Push/pop ranges only: a start/end range may end on another
// thread and belongs to no call.
#pragma once

#include "capture/range_stack.h"

namespace cglint::record {

// The calling thread's open ranges.
const capture::RangeStack& thread_ranges();
// Did the process' NVTX take this library? Never, where the program makes no NVTX call.
bool has_nvtx();

}  // namespace cglint::record
