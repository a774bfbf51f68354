// Which kernels of a captured graph fault because an argument is null: each is launched alone, without the graph being replayed.
//
// A fault ends the process's context, so this goes on from process to process: the parent starts the next one behind the node at which the
// last one ended. That a launch faults proves nothing of its null arguments yet; the parent launches it again, in processes of their own, with
// one of them replaced by memory (it must go through) and by an address without any (it must fault again).
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace cglint::models {

// Words of arguments below are null, or null with an offset: no memory lies there.
inline constexpr std::uint64_t kNullEnd = 65536;

struct IsolateOptions {
  std::size_t first = 0;  // number of the node to begin with, in the order of recording
  // Launch this node alone, with eight of its argument bytes replaced.
  struct Patch {
    std::size_t slot = 0, offset = 0;
    bool unmapped = false;  // by an address at which there is no memory, instead of that of zeroed memory
  };
  std::optional<Patch> patch;
};

struct IsolateResult {
  std::string problem;      // why it could not go on; "": it came to its end
  bool is_fault = false;    // a launch faulted: the context is lost
  bool no_memory = false;
};

// Launches one kernel node of each kind (its function, and which of its words are null), those with null words alone. Tells an event "isolating"
// before each launch, with the node's number, its function and [slot, offset, value] of its null words, and "isolated" after it, with "ran" or, if
// the launch was refused before it began, why; then "isolation".
IsolateResult isolate(cudaGraph_t graph, cudaStream_t stream, const IsolateOptions& options);

}  // namespace cglint::models
