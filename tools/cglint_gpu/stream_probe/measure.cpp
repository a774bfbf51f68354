#include "stream_probe/measure.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <mutex>

namespace cglint::gpu {
namespace {

// The record layouts: fields up to those read here have not moved since CUDA 12.0 (kernel records 9, 10 and
// 11).
#if CUPTI_API_VERSION >= 130001
using KernelRecord = CUpti_ActivityKernel10;
using MemcpyRecord = CUpti_ActivityMemcpy6;
#else
using KernelRecord = CUpti_ActivityKernel9;
using MemcpyRecord = CUpti_ActivityMemcpy5;
#endif
using MemsetRecord = CUpti_ActivityMemset4;

struct Record {
  uint32_t correlation = 0;
  uint32_t stream = 0;
  uint64_t value = 0;  // blocks of a kernel, bytes of a copy or memset
  enum class Kind { kKernel, kFence, kBytes } kind = Kind::kKernel;
};

// CUPTI calls back without a user pointer, maybe from its own thread.
struct Sink {
  std::mutex mutex;
  CuptiApi* cupti = nullptr;
  std::vector<uint8_t*> free_buffers;
  std::vector<Record> records;
  std::map<int, long> counts;
};
Sink sink;
constexpr size_t kBufferBytes = 1u << 20;
constexpr int kNoGraph = 99999;  // tag of a fence: larger than any batch

void CUPTIAPI buffer_requested(uint8_t** buffer, size_t* size, size_t* max_records) {
  const std::lock_guard lock(sink.mutex);
  *size = kBufferBytes;
  *max_records = 0;
  if (sink.free_buffers.empty()) {
    *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  } else {
    *buffer = sink.free_buffers.back();
    sink.free_buffers.pop_back();
  }
}

void CUPTIAPI buffer_completed(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid_bytes) {
  const std::lock_guard lock(sink.mutex);
  CUpti_Activity* record = nullptr;
  while (sink.cupti->next_record(buffer, valid_bytes, &record) == CUPTI_SUCCESS) {
    ++sink.counts[static_cast<int>(record->kind)];
    switch (record->kind) {
      case CUPTI_ACTIVITY_KIND_KERNEL:
      case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
        const auto* kernel = reinterpret_cast<const KernelRecord*>(record);
        sink.records.push_back({kernel->correlationId, kernel->streamId, static_cast<uint64_t>(kernel->gridX),
                                kernel->gridY == 2 ? Record::Kind::kFence : Record::Kind::kKernel});
        break;
      }
      case CUPTI_ACTIVITY_KIND_MEMSET: {
        const auto* memset = reinterpret_cast<const MemsetRecord*>(record);
        sink.records.push_back(
            {memset->correlationId, memset->streamId, memset->bytes, Record::Kind::kBytes});
        break;
      }
      case CUPTI_ACTIVITY_KIND_MEMCPY: {
        const auto* memcpy = reinterpret_cast<const MemcpyRecord*>(record);
        sink.records.push_back(
            {memcpy->correlationId, memcpy->streamId, memcpy->bytes, Record::Kind::kBytes});
        break;
      }
      default:
        break;
    }
  }
  sink.free_buffers.push_back(buffer);
}

std::string failed(const char* call, cudaError_t status) {
  return status == cudaSuccess ? "" : std::string(call) + ": " + cudaGetErrorName(status);
}

// Waits for the stream, but not for ever: a graph that does not end must not hold the machine.
cudaError_t wait_for(cudaStream_t stream) {
  const auto start = std::chrono::steady_clock::now();
  cudaError_t status = cudaStreamQuery(stream);
  while (status == cudaErrorNotReady) {
    if (std::chrono::steady_clock::now() - start > std::chrono::seconds(5)) return cudaErrorLaunchTimeout;
    status = cudaStreamQuery(stream);
  }
  return status;
}

struct Launched {
  const GraphSpec* spec = nullptr;
  size_t result = 0;  // index in `results`
  uint32_t launch_stream = 0;
  BuiltGraph built;
  cudaGraphExec_t exec = nullptr;
};

void release(Launched& launched) {
  if (launched.exec != nullptr) cudaGraphExecDestroy(launched.exec);
  if (launched.built.graph != nullptr) cudaGraphDestroy(launched.built.graph);
  launched.exec = nullptr;
  launched.built.graph = nullptr;
}

// Streams by marker -> the numbering of Measured.
void renumber(const Launched& launched, const std::map<int, uint32_t>& by_marker, Measured& out) {
  uint32_t smallest = UINT32_MAX;
  for (const auto& [marker, stream] : by_marker) {
    if (stream != launched.launch_stream) smallest = std::min(smallest, stream);
  }
  const auto number = [&](int marker) {
    const auto found = by_marker.find(marker);
    if (found == by_marker.end()) return -1;
    if (found->second == launched.launch_stream) return 0;
    return static_cast<int>(found->second - smallest) + 1;
  };
  int marker = 0;
  for (int v = 0; v < launched.spec->size(); ++v) out.streams.push_back(number(marker++));
  for (const BodyRef& body : body_paths(*launched.spec)) {
    std::vector<int>& streams = out.body_streams.emplace_back();
    for (int v = 0; v < body.spec->size(); ++v) streams.push_back(number(marker++));
  }
}

}  // namespace

std::string find_machine(MachineFacts& facts) {
  int count = 0;
  cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) return std::string("no usable GPU: ") + cudaGetErrorString(status);
  if (count == 0) return "no GPU";
  cudaDeviceProp properties{};
  status = cudaGetDeviceProperties(&properties, 0);
  if (status != cudaSuccess) return failed("cudaGetDeviceProperties", status);
  facts.gpu = properties.name;
  cudaDriverGetVersion(&facts.driver_version);
  cudaRuntimeGetVersion(&facts.runtime_version);
  std::ifstream module("/sys/module/nvidia/version");
  module >> facts.driver;
  if (facts.driver.empty()) {
    // "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build ..."
    std::ifstream proc("/proc/driver/nvidia/version");
    std::string word;
    while (facts.driver.empty() && proc >> word) {
      if (std::count(word.begin(), word.end(), '.') >= 1 &&
          word.find_first_not_of("0123456789.") == std::string::npos)
        facts.driver = word;
    }
  }
  return "";
}

std::string StreamMeasurer::create(const MeasureOptions& options) {
  options_ = options;
  std::string wrong = find_machine(facts_);
  if (!wrong.empty()) return wrong;
  wrong = load_cupti(cupti_);
  if (!wrong.empty()) return wrong;
  cupti_.version(&facts_.cupti_version);
  wrong = failed("cudaFree(0)", cudaFree(nullptr));
  if (wrong.empty()) wrong = resources_.create();
  if (wrong.empty() && options_.stream != MeasureOptions::Stream::kLegacyDefault) {
    const unsigned int flags =
        options_.stream == MeasureOptions::Stream::kBlocking ? cudaStreamDefault : cudaStreamNonBlocking;
    wrong = failed("cudaStreamCreateWithFlags", cudaStreamCreateWithFlags(&stream_, flags));
  }
  if (!wrong.empty()) return wrong;
  sink.cupti = &cupti_;
  CUptiResult result = cupti_.register_callbacks(buffer_requested, buffer_completed);
  for (const CUpti_ActivityKind kind :
       {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMSET, CUPTI_ACTIVITY_KIND_MEMCPY}) {
    if (result == CUPTI_SUCCESS) result = cupti_.enable(kind);
  }
  if (result == CUPTI_SUCCESS) return "";
  const char* text = nullptr;
  cupti_.result_string(result, &text);
  return std::string("CUPTI refuses activity tracing: ") + (text != nullptr ? text : "unknown error");
}

std::string StreamMeasurer::enable_extra_kinds() {
  std::string refused;
  for (const CUpti_ActivityKind kind :
       {CUPTI_ACTIVITY_KIND_CUDA_EVENT, CUPTI_ACTIVITY_KIND_SYNCHRONIZATION, CUPTI_ACTIVITY_KIND_MEMORY2}) {
    if (cupti_.enable(kind) != CUPTI_SUCCESS) refused += std::to_string(static_cast<int>(kind)) + ' ';
  }
  return refused;
}

const std::map<int, long>& StreamMeasurer::record_counts() const {
  return sink.counts;
}

size_t StreamMeasurer::take_dropped() {
  size_t dropped = 0;
  CUcontext context = resources_.context();
  cupti_.dropped_records(context, 0, &dropped);
  return dropped;
}

uint32_t StreamMeasurer::stream_id(cudaStream_t stream) const {
  uint32_t id = 0;
  cupti_.stream_id(resources_.context(), stream, 0, &id);
  return id;
}

cudaStream_t StreamMeasurer::launch_stream(const GraphSpec& spec, std::string& wrong) {
  if (!spec.launch_priority) return stream_;
  cudaStream_t& stream = priority_streams_[*spec.launch_priority];
  if (stream == nullptr) {
    wrong = failed("cudaStreamCreateWithPriority",
                   cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, *spec.launch_priority));
  }
  return stream;
}

std::string StreamMeasurer::measure(const std::vector<GraphSpec>& batch, bool keep,
                                    std::vector<Measured>& results) {
  std::vector<Launched> all;
  all.reserve(batch.size());
  std::string fatal;
  {
    const std::lock_guard lock(sink.mutex);
    sink.records.clear();
  }
  for (const GraphSpec& spec : batch) {
    Measured measured;
    Launched launched;
    launched.spec = &spec;
    launched.result = results.size();
    cudaStream_t stream = launch_stream(spec, measured.error);
    if (measured.error.empty())
      measured.error = build_graph(spec, resources_, BuildOptions{}, launched.built);
    if (measured.error.empty()) {
      const unsigned long long flags =
          static_cast<unsigned long long>(spec.flags) |
          (spec.use_node_priority ? static_cast<unsigned long long>(cudaGraphInstantiateFlagUseNodePriority)
                                  : 0ull);
      measured.error =
          failed("cudaGraphInstantiate", cudaGraphInstantiate(&launched.exec, launched.built.graph, flags));
    }
    cudaGetLastError();  // a refusal is no sticky error
    if (measured.error.empty()) {
      launched.launch_stream = stream_id(stream);
      // The records of earlier launches belong to no graph of the batch.
      if (options_.launches > 1) fatal = failed("fence", launch_fence(kNoGraph, stream));
      for (int i = 1; i < options_.launches && fatal.empty(); ++i) {
        fatal = failed("cudaGraphLaunch", cudaGraphLaunch(launched.exec, stream));
        if (fatal.empty()) fatal = failed("cudaStreamQuery", wait_for(stream));
      }
      // The fence's correlation id comes before that of the graph's records and after those of the graph
      // before.
      if (fatal.empty()) fatal = failed("fence", launch_fence(static_cast<int>(all.size()), stream));
      if (fatal.empty()) fatal = failed("cudaGraphLaunch", cudaGraphLaunch(launched.exec, stream));
      if (fatal.empty()) fatal = failed("cudaStreamQuery", wait_for(stream));
      if (!fatal.empty()) return fatal;  // the process is done for: nothing is released
      for (void* pointer : launched.built.unfreed) cudaFree(pointer);
      if (!keep) release(launched);
      all.push_back(std::move(launched));
    } else {
      release(launched);
    }
    results.push_back(std::move(measured));
  }
  fatal = failed("cudaDeviceSynchronize", cudaDeviceSynchronize());
  cupti_.flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  for (Launched& launched : all) release(launched);

  std::vector<Record> records;
  {
    const std::lock_guard lock(sink.mutex);
    records.swap(sink.records);
  }
  std::sort(records.begin(), records.end(),
            [](const Record& a, const Record& b) { return a.correlation < b.correlation; });
  std::vector<std::map<int, uint32_t>> by_marker(all.size());
  int current = -1;
  for (const Record& record : records) {
    if (record.kind == Record::Kind::kFence) {
      current = static_cast<int>(record.value) - 1;
      continue;
    }
    if (current < 0 || static_cast<size_t>(current) >= by_marker.size()) continue;
    const size_t index = static_cast<size_t>(current);
    const int marker = record.kind == Record::Kind::kKernel ? static_cast<int>(record.value) - 1
                                                            : marker_of(*all[index].spec, record.value);
    if (marker >= 0) by_marker[index].emplace(marker, record.stream);
  }
  for (size_t i = 0; i < all.size(); ++i) renumber(all[i], by_marker[i], results[all[i].result]);
  return fatal;
}

}  // namespace cglint::gpu
