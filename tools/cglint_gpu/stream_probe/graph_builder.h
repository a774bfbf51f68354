// Builds a CUDA graph from a GraphSpec through the explicit graph API.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "stream_probe/graph_spec.h"

namespace cglint::gpu {

// Device and host memory that the nodes touch; each node has its own slot. One per process and device, never
// freed before exit.
class Resources {
 public:
  // Returns an empty string, or the call that failed.
  std::string create();

  static constexpr size_t kSlotBytes = 16384;
  char* device_slot(int marker) const { return device_ + static_cast<size_t>(marker) * kSlotBytes; }
  char* other_slot(int marker) const { return other_ + static_cast<size_t>(marker) * kSlotBytes; }
  char* host_slot(int marker) const { return host_ + static_cast<size_t>(marker) * kSlotBytes; }
  // Start of all slots, for copies larger than a slot (nodes may then share memory: only where they run
  // matters).
  char* device_base() const { return device_; }
  char* other_base() const { return other_; }
  char* host_base() const { return host_; }
  char* pageable_base() const { return pageable_.get(); }
  cudaEvent_t record_event(int marker) const {
    return record_events_[static_cast<size_t>(marker) % record_events_.size()];
  }
  cudaEvent_t wait_event() const { return wait_event_; }
  CUcontext context() const { return context_; }
  int device() const { return device_ordinal_; }
  CUresult add_batch_mem_op(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                            int marker) const;

 private:
  char* device_ = nullptr;
  char* other_ = nullptr;
  char* host_ = nullptr;
  std::unique_ptr<char[]> pageable_;
  std::vector<cudaEvent_t> record_events_;
  cudaEvent_t wait_event_ = nullptr;  // recorded once, so that a wait for it ends at once
  CUcontext context_ = nullptr;
  int device_ordinal_ = 0;
  decltype(&::cuGraphAddBatchMemOpNode) add_batch_mem_op_ = nullptr;
};

// What the kernel nodes do.
enum class KernelBody {
  kNothing,  // one warp per block that ends at once
  kSpin,     // one thread that spins and writes %globaltimer at its start and end
};

struct BuildOptions {
  KernelBody kernel = KernelBody::kNothing;
  uint64_t spin_ns = 0;
  unsigned long long* stamps = nullptr;  // device; 2 * marker: start, 2 * marker + 1: end (kSpin only)
};

struct BuiltGraph {
  cudaGraph_t graph = nullptr;
  std::vector<cudaGraphNode_t> nodes;
  std::vector<void*> unfreed;  // allocations without a free node, to be freed after the launch
};

// Every node is given a marker: the top graph's nodes first (marker = index), then each body in the order of
// body_paths(). A kernel's grid is marker + 1 blocks (kNothing), a memset or memcpy moves bytes_of(marker)
// bytes, so that an activity record tells its node. The caller destroys built.graph, also after an error.
// Returns an empty string, or the CUDA call that refused.
std::string build_graph(const GraphSpec& spec, const Resources& resources, const BuildOptions& options,
                        BuiltGraph& built);

// The bytes that node `marker` of the graph moves, and back: -1 where no marker moves that many.
size_t bytes_of(const GraphSpec& spec, int marker);
int marker_of(const GraphSpec& spec, size_t bytes);

// Launches an empty-bodied kernel of grid (tag + 1, 2): told apart from graph nodes by its second dimension.
cudaError_t launch_fence(int tag, cudaStream_t stream);

}  // namespace cglint::gpu
