// A Recording is what one input file tells: processes, shared tables (strings, functions, streams, stacks, NVTX,
// allocations) and the graphs. Graphs refer to the shared tables by id and can be dropped one by one, so that a file
// with thousands of graphs never has to be in memory as a whole.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/interner.h"
#include "ir/graph.h"
#include "ir/loose_ops.h"

namespace cglint::ir {

struct Gpu {
  std::int32_t device = 0;            // ordinal in the process
  StringId name;
  StringId uuid;
  std::uint32_t compute_major = 0, compute_minor = 0;
  std::uint32_t sm_count = 0;
  std::uint64_t memory_bytes = 0;
  bool is_amd = false;                // a ROCm trace: graphs are flattened to one stream
};

// One process of the recording.
struct Process {
  std::int64_t pid = -1;
  std::int32_t rank = -1, world_size = -1;
  StringId host;
  StringId command;
  std::uint32_t driver_version = 0;   // CUDA version the driver supports, as cuDriverGetVersion: 13000 = 13.0
  StringId driver_release;            // "580.159.04"
  std::uint32_t runtime_version = 0;  // as cudaRuntimeGetVersion
  std::uint32_t cupti_version = 0;    // CUPTI_API_VERSION at run time
  StringId framework;                 // "pytorch"
  StringId framework_version;
  std::vector<Gpu> gpus;
  std::vector<std::pair<StringId, StringId>> environment;  // relevant variables only, sorted by name
};

// A kernel function. Shared by all nodes that launch it.
struct Function {
  struct Param {
    std::uint32_t offset_bytes = 0, size_bytes = 0;
    ParamWord::Type type = ParamWord::Type::unknown;
    StringId type_name;               // from the demangled signature or a known-kernel table
  };
  StringId name;                      // as recorded: usually mangled
  std::vector<Param> params;          // empty when unknown
  // Facts from the machine code; the hash identifies the image.
  std::uint64_t image_hash = 0;
  Tri has_grid_dependency_wait = Tri::unknown;
  Tri has_launch_dependents = Tri::unknown;
};

struct Stream {
  std::uint64_t handle = 0;           // opaque id, stable within the process
  ProcessId process;
  std::int32_t priority = 0;
  StringId name;
};

struct Frame {
  enum class Kind : std::uint8_t { python, native } kind = Kind::python;
  StringId file;                      // path as recorded; module path for native frames without debug info
  StringId function;
  std::uint32_t line = 0;             // 0: unknown
  bool generated = false;             // file written by a compiler (Inductor output): not the user's source
};

// Allocation timeline. `sequence` is the graphs' counter.
struct Allocation {
  enum class Kind : std::uint8_t { unknown, device, async, pool, vmm, host_registered, managed, graph_node };
  std::uint64_t base = 0, size_bytes = 0;
  Kind kind = Kind::unknown;
  std::int32_t device = -1;
  ProcessId process;
  std::uint64_t alloc_sequence = 0;   // 0: before the recording began
  std::uint64_t free_sequence = 0;    // 0: not freed while recording
  StackId alloc_stack, free_stack;
  StringId pool;                      // name of the pool it belongs to
};

// A range inside an allocation whose owner gave it back while the memory stayed mapped (a framework's caching
// allocator, a storage that was resized to 0).
struct AllocatorBlock {
  enum class State : std::uint8_t { active, pending_free, free };
  std::uint64_t base = 0, size_bytes = 0;
  State state = State::active;
  StringId pool;
  std::uint64_t stream = 0;
  std::uint64_t sequence = 0;         // when this state was seen
  std::uint64_t alloc_sequence = 0;   // handed out after this moment (active: and not given back since); 0: not known
  ProcessId process;
};

// A graph equal to an earlier one that had been handed over (ReadOptions::on_graph) and dropped when this became known.
struct LateInstance {
  GraphId of;
  GraphInfo info;
};

// How a graph's executable was used. Kept beside the graphs, since it becomes known after they were dropped.
struct ExecutableUse {
  GraphId graph;
  std::uint32_t instance = 0;         // as Replay::instance
  std::uint64_t last_launch_sequence = 0;  // the graphs' counter; 0: no launch seen, or launches are not recorded
  std::uint64_t destroyed_sequence = 0;    // 0: not destroyed while recording, or not recorded
  std::uint32_t failed_updates = 0;   // of the executable, refused by the driver
};

// Something the reader had to leave out. Shown in every report; `facts` were spoiled by it.
struct Loss {
  enum class Severity : std::uint8_t { info, data_loss, error } severity = Severity::info;
  StringId what;                      // one sentence
  std::uint64_t count = 1;
  std::uint64_t offset_bytes = ~std::uint64_t{0};  // of the first case, when known
  FactSet facts;
};

class Recording {
 public:
  std::string file;                   // as the user named it
  std::string format;                 // importer name
  base::StringInterner strings;
  base::IdVector<ProcessId, Process> processes;
  base::IdVector<FunctionId, Function> functions;
  base::IdVector<StreamId, Stream> streams;
  base::IdVector<AllocationId, Allocation> allocations;
  std::vector<AllocatorBlock> allocator_blocks;
  LooseOpStore loose_ops;             // by start_ns
  std::vector<Loss> losses;
  base::IdVector<GraphId, std::unique_ptr<Graph>> graphs;  // null once dropped
  std::vector<LateInstance> late_instances;
  std::vector<ExecutableUse> executable_uses;  // at most one for each graph and instance
  bool has_timeline = false;          // the input is (or contains) a GPU trace
  std::string fingerprint_salt;       // reserved for reports; empty

  [[nodiscard]] std::string_view text(StringId id) const { return strings.view(id); }
  StringId intern(std::string_view text) { return strings.intern(text); }
  FunctionId intern_function(std::string_view name);          // by name; first use creates it
  StreamId intern_stream(ProcessId process, std::uint64_t handle);
  StackId intern_stack(std::span<const Frame> frames);        // innermost frame first
  NvtxId intern_nvtx(std::span<const StringId> ranges);       // outermost range first
  [[nodiscard]] std::span<const Frame> frames(StackId id) const;   // empty for an invalid id
  [[nodiscard]] std::span<const StringId> nvtx(NvtxId id) const;   // empty for an invalid id
  [[nodiscard]] std::size_t stack_count() const { return stack_ranges_.size(); }
  [[nodiscard]] std::size_t nvtx_count() const { return nvtx_ranges_.size(); }
  void add_loss(Loss::Severity severity, std::string_view what, std::uint64_t count = 1,
                std::uint64_t offset_bytes = ~std::uint64_t{0}, FactSet facts = {});

 private:
  std::unordered_map<std::uint32_t, FunctionId> function_by_name_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, StreamId> stream_by_handle_;
  std::vector<Frame> frames_;
  std::vector<Range> stack_ranges_;
  std::unordered_map<std::string, StackId> stack_by_key_;
  std::vector<StringId> nvtx_names_;
  std::vector<Range> nvtx_ranges_;
  std::unordered_map<std::string, NvtxId> nvtx_by_key_;
};

}  // namespace cglint::ir
