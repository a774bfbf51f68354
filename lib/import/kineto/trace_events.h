// The events of a Kineto trace that cglint uses, as they come out of the file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ir/graph.h"

namespace cglint::import::kineto {

// A correlation id was given, but as something that is none. Beyond the 32 bits of real ids.
constexpr std::uint64_t kUnusableCorrelation = ~std::uint64_t{0};

// A kernel, copy or fill on the GPU, or an event or host node of a graph. Views live until the sink returns.
// A field that is given as something that it cannot be has its default, and the flag beside it says so.
struct GpuEvent {
  ir::NodeKind kind = ir::NodeKind::kernel;
  std::string_view name;
  std::int64_t start_ns = 0, dur_ns = 0;  // dur_ns may be negative: the trace is wrong then
  std::int64_t pid = -1;               // of the row: usually the device
  std::int64_t tid = -1;               // of the row: usually the stream; -1 when it is text
  std::int32_t device = -1;            // -1: not given, or given as something that is no device
  std::int32_t row_device = -1;        // what the row would say; -1: nothing
  std::uint64_t stream = 0;            // original_stream where there is one
  std::uint64_t row_stream = 0;        // what the row would say, if has_row_stream
  std::uint64_t correlation = 0;       // 0: not given
  std::uint64_t graph_id = 0;          // 0: not from a graph, or not given
  std::uint64_t graph_node_id = 0;
  ir::Dim3 grid{0, 0, 0}, block{0, 0, 0};
  std::uint32_t registers = 0;
  std::uint64_t shared_bytes = 0;
  std::uint64_t bytes = 0;
  std::int32_t priority = 0;
  bool gives_stream = false;           // an argument names a stream, usable or not
  bool gives_device = false;
  bool gives_correlation = false;
  bool has_stream = false;             // `stream` is what an argument says
  bool has_row_stream = false;
  bool has_name = false;
  bool has_dur = false;
  bool bad_escape = false;             // the name holds an escape that stands for no character
  bool bad_config = false;             // grid, block, registers, shared memory or priority
  bool bad_bytes = false;
  bool bad_node = false;               // graph id or graph node id
  bool annotated = false;              // carries a name that torch's trace annotation put there, and no original stream
  std::uint64_t offset = 0;            // byte offset of the event in the file
};

// A call of the runtime or driver API. Only graph launches carry times.
struct ApiEvent {
  bool is_graph_launch = false;
  bool is_hip = false;
  bool gives_correlation = false;
  bool has_dur = false;
  bool has_pid = false;
  std::int64_t start_ns = 0, dur_ns = 0;  // dur_ns may be negative: the trace is wrong then
  std::int64_t pid = -1;
  std::uint64_t correlation = 0;
  std::uint64_t offset = 0;            // byte offset of the event in the file
};

// One end of a dependency arrow (flow events with ids of 1 << 40 and above). Smaller ids tie a launch call to its operations, which
// correlation ids do as well: those arrows are not read.
constexpr std::uint64_t kFirstDependencyFlow = std::uint64_t{1} << 40;
struct FlowEvent {
  bool is_start = false;
  std::uint64_t id = 0;
  std::int64_t pid = -1, tid = -1;
  std::int64_t ts_ns = 0;
};

// An event that could not be used.
struct LostEvent {
  enum class What : std::uint8_t {
    gpu,        // an operation, or nothing shows that it is none
    launch,     // a call that may be a graph launch
    arrow,      // an arrow that may be a dependency
    host,       // anything else: nothing that is read from a trace is missing
  };
  enum class Why : std::uint8_t {
    damaged,
    repeats_property,                  // readable, but it gives a property twice: which one counts is anybody's guess
    long_name,                         // beyond Limits::max_string_bytes
    empty,                             // an object without any property: some writers end their lists with one
    unknown_category,                  // has what operations have, but this version does not know its kind
  };
  What what = What::gpu;
  Why why = Why::damaged;
  std::uint64_t offset = 0;
  std::uint64_t correlation = 0;       // if the lost text still shows it
  std::uint64_t flow_id = 0;           // of an arrow; 0: the lost text does not show it
};

class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void on_gpu(const GpuEvent& event) = 0;
  virtual void on_api(const ApiEvent& event) = 0;
  virtual void on_flow(const FlowEvent& event) = 0;
  virtual void on_profiler(std::string_view name) = 0;   // name of a "Trace" row: "PyTorch Profiler (0)"
  virtual void on_lost(const LostEvent& event) = 0;
  // A top-level property other than traceEvents, as JSON text.
  virtual void on_property(std::string_view key, std::string_view json) = 0;
};

}  // namespace cglint::import::kineto
