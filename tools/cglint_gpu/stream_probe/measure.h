// Replays graphs under CUPTI activity tracing and tells the stream of each node.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "stream_probe/cupti_api.h"
#include "stream_probe/graph_builder.h"
#include "stream_probe/graph_spec.h"

namespace cglint::gpu {

struct MachineFacts {
  std::string gpu;
  int driver_version = 0;  // CUDA version of the driver, as cudaDriverGetVersion() has it (13000)
  int runtime_version = 0;
  uint32_t cupti_version = 0;
  std::string driver;  // "580.159.04" when the kernel module tells, else empty
};

struct MeasureOptions {
  int launches = 1;  // the last one is looked at
  enum class Stream { kNonBlocking, kBlocking, kLegacyDefault } stream = Stream::kNonBlocking;
};

class StreamMeasurer {
 public:
  // One per process. Returns an empty string, or why nothing can be measured here.
  std::string create(const MeasureOptions& options = {});

  // Measures the graphs of one batch: build, instantiate, launch once and synchronise one after the other,
  // one flush at the end. `keep`: destroy the batch's executable graphs only after the flush. A graph that
  // CUDA refuses gets Measured::error. Returns an empty string, or what makes the process unable to go on (a
  // sticky CUDA error, a graph that does not end); `results` then ends before the graph at fault and its
  // entries hold no streams.
  std::string measure(const std::vector<GraphSpec>& batch, bool keep, std::vector<Measured>& results);

  // Counts activity records by kind while on: also event, synchronisation and memory records, which carry no
  // node.
  std::string enable_extra_kinds();
  const std::map<int, long>& record_counts() const;

  const MachineFacts& facts() const { return facts_; }
  const Resources& resources() const { return resources_; }
  // Records that CUPTI could not deliver since the last call.
  size_t take_dropped();

 private:
  cudaStream_t launch_stream(const GraphSpec& spec, std::string& wrong);
  uint32_t stream_id(cudaStream_t stream) const;

  MeasureOptions options_;
  CuptiApi cupti_;
  Resources resources_;
  MachineFacts facts_;
  cudaStream_t stream_ = nullptr;
  std::map<int, cudaStream_t> priority_streams_;
};

// Fills gpu, driver_version, runtime_version and driver. Returns an empty string, or why there is no GPU to
// use.
std::string find_machine(MachineFacts& facts);

}  // namespace cglint::gpu
