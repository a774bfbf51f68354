// The driver calls that the recorder looks at, by CUPTI callback id.
#pragma once

#include <cupti.h>

#include <cstdint>
#include <optional>

namespace cglint::record {

enum class CallKind : std::uint8_t {
  none,
  node,  // may add nodes to a capturing stream
  event_record,
  event_wait,
  update_dependencies,
  begin_capture,
  end_capture,
  alloc,
  free,
  instantiate,
  add_node,
};

// What a call says, read from its parameters.
struct CallFacts {
  CallKind kind = CallKind::none;
  bool has_stream = false;
  CUstream stream = nullptr;
  CUevent event = nullptr;
};
CallFacts read_call(CUpti_CallbackId id, const void* params);

// Of a begin_capture call: a name of the schema's capture_mode.
const char* capture_mode(CUpti_CallbackId id, const void* params);
// Of an instantiate call.
std::optional<std::uint64_t> instantiate_flags(CUpti_CallbackId id, const void* params);

// Memory that a finished call made, or that a starting one gives back; size 0: nothing. For host memory the
// address is the device's too (unified addressing).
struct MemoryRange {
  std::uint64_t base = 0, size_bytes = 0;
  const char* kind = "unknown";
};
MemoryRange allocated_range(CUpti_CallbackId id, const void* params);
MemoryRange freed_range(CUpti_CallbackId id, const void* params);  // size 1 where the call does not say
bool is_ipc_open(CUpti_CallbackId id);

// Calls visit(callback id) for each call of the list.
void for_each_call(void (*visit)(CUpti_CallbackId id, void* argument), void* argument);

}  // namespace cglint::record
