// What the recorder costs, and threads beside a capture. Prints one JSON object.
//
// usage: record_load cost NODES GRAPHS LAUNCHES    capture, eager launches, replays, memory
//        record_load threads GRAPHS                one thread captures, one launches, one frees and allocates
//        record_load devices                       one graph on every GPU, in NVTX ranges
//        record_load updates                       an executable graph is uploaded and updated; memory is freed; the
//                                                  recorder is asked to write; the process is left without its exit
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <nvtx3/nvToolsExt.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#define CHECK(call)                                                              \
  do {                                                                           \
    const cudaError_t error = (call);                                            \
    if (error != cudaSuccess) {                                                  \
      std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error));        \
      std::exit(3);                                                              \
    }                                                                            \
  } while (false)

namespace {

__global__ void captured_kernel(float* out, const float* in, float factor) {
  out[threadIdx.x] = in[threadIdx.x] * factor;
}
__global__ void eager_kernel(float* out, const float* in, float factor) {
  out[threadIdx.x] = in[threadIdx.x] + factor;
}

double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Resident memory of this process in KiB.
long resident_kib() {
  std::FILE* const file = std::fopen("/proc/self/statm", "r");
  long pages = 0, resident = 0;
  if (file != nullptr && std::fscanf(file, "%ld %ld", &pages, &resident) != 2) resident = 0;
  if (file != nullptr) std::fclose(file);
  return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

struct Work {
  float* data = nullptr;
  cudaStream_t stream = nullptr;
  Work() {
    CHECK(cudaMalloc(&data, 1 << 20));
    CHECK(cudaMemset(data, 0, 1 << 20));
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  }
};

cudaGraphExec_t capture(const Work& work, int nodes, double* capture_us) {
  cudaGraph_t graph;
  CHECK(cudaStreamBeginCapture(work.stream, cudaStreamCaptureModeThreadLocal));
  const double begin = now_us();
  for (int i = 0; i < nodes; ++i)
    captured_kernel<<<1, 128, 0, work.stream>>>(work.data + 256 * (i % 512), work.data, 1.0F);
  const double end = now_us();
  CHECK(cudaStreamEndCapture(work.stream, &graph));
  if (capture_us != nullptr) *capture_us = end - begin;
  cudaGraphExec_t exec;
  CHECK(cudaGraphInstantiate(&exec, graph, 0));
  CHECK(cudaGraphDestroy(graph));
  return exec;
}

double replay_us(cudaGraphExec_t exec, cudaStream_t stream, int launches) {
  std::vector<double> times;
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  for (int i = 0; i < launches; ++i) {
    float ms = 0;
    CHECK(cudaEventRecord(begin, stream));
    CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaEventRecord(end, stream));
    CHECK(cudaEventSynchronize(end));
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    times.push_back(1e3 * ms);
  }
  return median(times);
}

int cost(int nodes, int graphs, int launches) {
  Work work;
  const auto eager = [&](int count) {
    const double begin = now_us();
    for (int i = 0; i < count; ++i) {
      eager_kernel<<<1, 128, 0, work.stream>>>(work.data + 256 * (i % 512), work.data, 1.0F);
      if (i % 512 == 511) CHECK(cudaStreamSynchronize(work.stream));
    }
    CHECK(cudaStreamSynchronize(work.stream));
    return (now_us() - begin) / count;
  };
  eager(512);
  const double eager_first = eager(2048), eager_later = eager(16384);
  std::vector<double> captures, instantiations;
  cudaGraphExec_t exec = capture(work, nodes, nullptr);
  const long before = resident_kib();
  std::vector<cudaGraphExec_t> kept;
  for (int i = 0; i < graphs; ++i) {
    double us = 0;
    const double begin = now_us();
    kept.push_back(capture(work, nodes, &us));
    captures.push_back(us / nodes);
    instantiations.push_back((now_us() - begin - us) / nodes);
  }
  const long kept_kib = resident_kib() - before;
  for (cudaGraphExec_t each : kept) CHECK(cudaGraphExecDestroy(each));
  replay_us(exec, work.stream, 20);
  const double first = replay_us(exec, work.stream, launches);
  const double second = replay_us(exec, work.stream, launches);
  const double fresh = replay_us(capture(work, nodes, nullptr), work.stream, launches);
  double host = 0;
  {
    const double begin = now_us();
    for (int i = 0; i < 50; ++i) CHECK(cudaGraphLaunch(exec, work.stream));
    host = (now_us() - begin) / 50;
    CHECK(cudaStreamSynchronize(work.stream));
  }
  std::printf(
      "{\"nodes\": %d, \"capture_us_per_node\": %.3f, \"instantiate_us_per_node\": %.3f, \"eager_us\": [%.3f, %.3f], "
      "\"replay_us\": [%.2f, %.2f], \"fresh_replay_us\": %.2f, \"launch_call_us\": %.2f, \"bytes_per_kept_node\": %.0f}\n",
      nodes, median(captures), median(instantiations), eager_first, eager_later, first, second, fresh, host,
      1024.0 * static_cast<double>(kept_kib) / (static_cast<double>(nodes) * graphs));
  return 0;
}

int threads(int graphs) {
  Work captured, launched;
  std::atomic<bool> done{false};
  std::atomic<long> eager_launches{0};
  std::thread launcher([&] {
    while (!done) {
      eager_kernel<<<1, 128, 0, launched.stream>>>(launched.data + 256, launched.data, 1.0F);
      ++eager_launches;
      if (eager_launches % 8 == 0) CHECK(cudaStreamSynchronize(launched.stream));
    }
    CHECK(cudaStreamSynchronize(launched.stream));
  });
  std::thread allocator([&] {
    while (!done) {
      void* memory = nullptr;
      CHECK(cudaMalloc(&memory, 4 << 20));
      CHECK(cudaFree(memory));
      std::this_thread::sleep_for(std::chrono::milliseconds(2));  // it waits for the device: leave some to the others
    }
  });
  for (int i = 0; i < graphs; ++i) CHECK(cudaGraphExecDestroy(capture(captured, 40, nullptr)));
  done = true;
  launcher.join();
  allocator.join();
  std::printf("{\"graphs\": %d, \"nodes\": %d, \"eager_launches\": %ld}\n", graphs, 40 * graphs, eager_launches.load());
  return 0;
}

int devices() {
  int count = 0;
  CHECK(cudaGetDeviceCount(&count));
  for (int device = 0; device < count; ++device) {
    CHECK(cudaSetDevice(device));
    Work work;
    nvtxRangePushA("devices");
    nvtxRangePushA(("device " + std::to_string(device)).c_str());
    const cudaGraphExec_t exec = capture(work, 10, nullptr);
    nvtxRangePop();
    nvtxRangePop();
    replay_us(exec, work.stream, 3);
  }
  std::printf("{\"devices\": %d}\n", count);
  return 0;
}

int updates() {
  Work work;
  float* input = nullptr;
  CHECK(cudaMalloc(&input, 1 << 20));
  cudaGraph_t graph;
  const auto record = [&](float factor) {
    CHECK(cudaStreamBeginCapture(work.stream, cudaStreamCaptureModeThreadLocal));
    captured_kernel<<<1, 128, 0, work.stream>>>(work.data, input, factor);
    CHECK(cudaStreamEndCapture(work.stream, &graph));
  };
  record(1.0F);
  cudaGraphExec_t exec;
  CHECK(cudaGraphInstantiate(&exec, graph, 0));
  CHECK(cudaGraphUpload(exec, work.stream));
  for (int i = 0; i < 3; ++i) {
    record(2.0F + static_cast<float>(i));
    cudaGraphExecUpdateResultInfo info{};
    CHECK(cudaGraphExecUpdate(exec, graph, &info));
    CHECK(cudaGraphLaunch(exec, work.stream));
  }
  CHECK(cudaStreamSynchronize(work.stream));
  CHECK(cudaGraphExecDestroy(exec));
  CHECK(cudaFree(input));
  const char* const path = std::getenv("CUDA_INJECTION64_PATH");
  void* const library = path == nullptr ? nullptr : dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  const auto flush = library == nullptr ? nullptr : reinterpret_cast<int (*)()>(dlsym(library, "cglint_record_flush"));
  std::printf("{\"flush\": %d}\n", flush == nullptr ? -1 : flush());
  std::fflush(stdout);
  _exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 5 && std::strcmp(argv[1], "cost") == 0)
    return cost(std::atoi(argv[2]), std::atoi(argv[3]), std::atoi(argv[4]));
  if (argc == 3 && std::strcmp(argv[1], "threads") == 0) return threads(std::atoi(argv[2]));
  if (argc == 2 && std::strcmp(argv[1], "devices") == 0) return devices();
  if (argc == 2 && std::strcmp(argv[1], "updates") == 0) return updates();
  std::fprintf(stderr, "usage: record_load cost NODES GRAPHS LAUNCHES | threads GRAPHS | devices | updates\n");
  return 2;
}
