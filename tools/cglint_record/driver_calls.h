// The driver calls that the recorder looks at, by CUPTI callback id.
#pragma once

#include <cupti.h>

#include <array>
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
  add_node,  // adds one node to a graph that is built node by node
  graph_launch,  // may add a child graph to a capturing stream
  exec_update,   // changes an executable graph
  upload,
  blocking_copy,  // copies or fills at once, whatever captures
  watched,       // looked at only if it breaks a capture
};

// What a call says, read from its parameters.
struct CallFacts {
  CallKind kind = CallKind::none;
  bool has_stream = false;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  CUgraphExec exec = nullptr;  // graph_launch, exec_update, upload
};
CallFacts read_call(CUpti_CallbackId id, const void* params);

// What cuGraphAddNode is asked for; null for other calls.
const CUgraphNodeParams* added_node(CUpti_CallbackId id, const void* params);

// The kind of node that a call makes, a name of the schema.
const char* node_kind(CUpti_CallbackId id);

// What a kernel launch call says; `function` null: it is none.
struct LaunchFacts {
  CUfunction function = nullptr;
  std::array<std::uint32_t, 3> grid{}, block{};
  std::uint32_t dynamic_shared_bytes = 0;
  void** params = nullptr;  // one pointer a parameter, or null
  void** extra = nullptr;   // or the packed form
};
LaunchFacts read_launch(CUpti_CallbackId id, const void* params);

// Results by which the driver says that a call is not allowed while a stream captures, or that a capture is
// broken. Named as in cuda.h; null for other results.
const char* capture_error(CUresult result);

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
