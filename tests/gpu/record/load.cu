// What the recorder costs, and threads beside a capture. Prints one JSON object.
//
// usage: record_load cost NODES GRAPHS LAUNCHES    capture, eager launches, replays, memory
//        record_load threads GRAPHS                one thread captures, one launches, one frees and allocates
//        record_load devices                       one graph on every GPU, in NVTX ranges
//        record_load updates                       an executable graph is uploaded and updated; memory is freed; the
//                                                  recorder is asked to write; the process is left without its exit
//        record_load large NODES                   one captured graph and one built node by node
//        record_load many GRAPHS NODES KEPT        graphs one after the other, the last KEPT of them alive; resident memory
//                                                  after each quarter
//        record_load built                         a graph built node by node: kernels, copies, a child graph, a conditional
//                                                  node, memory nodes; and the lines of some of these calls
//        record_load leave WAY                     a graph, then the process is left: return, exit, thread, _exit, abort, term, kill
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <nvtx3/nvToolsExt.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "check.h"

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

// Two streams that meet after every eighth kernel.
cudaGraph_t capture_wide(const Work& work, int nodes) {
  cudaStream_t side;
  CHECK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
  cudaEvent_t fork, join;
  CHECK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
  CHECK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
  cudaGraph_t graph;
  CHECK(cudaStreamBeginCapture(work.stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < nodes; ++i) {
    const bool on_side = i % 8 >= 6;
    if (i % 8 == 6) {
      CHECK(cudaEventRecord(fork, work.stream));
      CHECK(cudaStreamWaitEvent(side, fork, 0));
    }
    captured_kernel<<<1, 128, 0, on_side ? side : work.stream>>>(work.data + 256 * (i % 512), work.data, 1.0F);
    if (i % 8 == 7 || (on_side && i == nodes - 1)) {
      CHECK(cudaEventRecord(join, side));
      CHECK(cudaStreamWaitEvent(work.stream, join, 0));
    }
  }
  CHECK(cudaStreamEndCapture(work.stream, &graph));
  return graph;
}

cudaKernelNodeParams kernel_params(void** arguments) {
  cudaKernelNodeParams params{};
  params.func = reinterpret_cast<void*>(captured_kernel);
  params.gridDim = dim3(1);
  params.blockDim = dim3(128);
  params.kernelParams = arguments;
  return params;
}

int large(int nodes) {
  Work work;
  const double begin = now_us();
  cudaGraph_t graph = capture_wide(work, nodes);
  const double captured = now_us();
  cudaGraphExec_t exec;
  CHECK(cudaGraphInstantiate(&exec, graph, 0));
  CHECK(cudaGraphLaunch(exec, work.stream));
  CHECK(cudaStreamSynchronize(work.stream));
  CHECK(cudaGraphDestroy(graph));
  const double launched = now_us();
  CHECK(cudaGraphCreate(&graph, 0));
  float factor = 1.0F;
  const float* in = work.data;
  cudaGraphNode_t last = nullptr;
  for (int i = 0; i < nodes; ++i) {
    float* out = work.data + 256 * (i % 512);
    void* arguments[] = {&out, &in, &factor};
    const cudaKernelNodeParams params = kernel_params(arguments);
    cudaGraphNode_t node;
    CHECK(cudaGraphAddKernelNode(&node, graph, &last, last == nullptr ? 0 : 1, &params));
    last = node;
  }
  const double built = now_us();
  cudaGraphExec_t second;
  CHECK(cudaGraphInstantiate(&second, graph, 0));
  CHECK(cudaGraphLaunch(second, work.stream));
  CHECK(cudaStreamSynchronize(work.stream));
  std::printf("{\"nodes\": %d, \"capture_us_per_node\": %.3f, \"instantiate_us_per_node\": %.3f, \"build_us_per_node\": %.3f, "
              "\"resident_kib\": %ld}\n",
              nodes, (captured - begin) / nodes, (launched - captured) / nodes, (built - launched) / nodes, resident_kib());
  return 0;
}

int many(int graphs, int nodes, int kept) {
  Work work;
  std::vector<cudaGraphExec_t> alive;
  std::string resident = std::to_string(resident_kib());
  for (int i = 0; i < graphs; ++i) {
    alive.push_back(capture(work, nodes, nullptr));
    CHECK(cudaGraphLaunch(alive.back(), work.stream));
    if (static_cast<int>(alive.size()) > kept) {
      CHECK(cudaStreamSynchronize(work.stream));
      CHECK(cudaGraphExecDestroy(alive.front()));
      alive.erase(alive.begin());
    }
    if ((i + 1) % (graphs / 4) == 0) resident += ", " + std::to_string(resident_kib());
  }
  CHECK(cudaStreamSynchronize(work.stream));
  std::printf("{\"graphs\": %d, \"nodes\": %d, \"kept\": %d, \"resident_kib\": [%s]}\n", graphs, nodes, kept, resident.c_str());
  return 0;
}

void CUDART_CB on_host(void*) {}

int built() {
  Work work;
  float factor = 1.0F;
  float *out = work.data, *host = nullptr;
  const float* in = work.data + 256;
  CHECK(cudaMallocHost(&host, 4096));
  void* arguments[] = {&out, &in, &factor};
  const cudaKernelNodeParams kernel = kernel_params(arguments);
  cudaGraph_t graph, child;
  CHECK(cudaGraphCreate(&graph, 0));
  CHECK(cudaGraphCreate(&child, 0));
  cudaGraphNode_t first, copy, set, call, inner, nested, general, branch, memory, release;
  const int kernel_line = __LINE__ + 1;
  CHECK(cudaGraphAddKernelNode(&first, graph, nullptr, 0, &kernel));
  CHECK(cudaGraphAddMemcpyNode1D(&copy, graph, &first, 1, host, work.data, 4096, cudaMemcpyDeviceToHost));
  cudaMemsetParams memset{};
  memset.dst = work.data + 4096;
  memset.elementSize = 1;
  memset.width = 1024;
  memset.height = 1;
  const int memset_line = __LINE__ + 1;
  CHECK(cudaGraphAddMemsetNode(&set, graph, &first, 1, &memset));
  cudaHostNodeParams host_call{};
  host_call.fn = on_host;
  CHECK(cudaGraphAddHostNode(&call, graph, &copy, 1, &host_call));
  const int inner_line = __LINE__ + 1;
  CHECK(cudaGraphAddKernelNode(&inner, child, nullptr, 0, &kernel));
  CHECK(cudaGraphAddChildGraphNode(&nested, graph, &set, 1, child));
  cudaGraphNodeParams any{};
  any.type = cudaGraphNodeTypeKernel;
  any.kernel.func = kernel.func;
  any.kernel.gridDim = kernel.gridDim;
  any.kernel.blockDim = kernel.blockDim;
  any.kernel.kernelParams = arguments;
  const int general_line = __LINE__ + 2;
#if CUDART_VERSION >= 13000
  CHECK(cudaGraphAddNode(&general, graph, &nested, nullptr, 1, &any));
#else
  CHECK(cudaGraphAddNode(&general, graph, &nested, 1, &any));
#endif
  cudaGraphConditionalHandle handle;
  CHECK(cudaGraphConditionalHandleCreate(&handle, graph, 1, cudaGraphCondAssignDefault));
  cudaGraphNodeParams condition{};
  condition.type = cudaGraphNodeTypeConditional;
  condition.conditional.handle = handle;
  condition.conditional.type = cudaGraphCondTypeIf;
  condition.conditional.size = 1;
#if CUDART_VERSION >= 13000
  CHECK(cudaGraphAddNode(&branch, graph, &general, nullptr, 1, &condition));
#else
  CHECK(cudaGraphAddNode(&branch, graph, &general, 1, &condition));
#endif
  const int body_line = __LINE__ + 1;
  CHECK(cudaGraphAddKernelNode(&inner, condition.conditional.phGraph_out[0], nullptr, 0, &kernel));
  cudaGraphExec_t exec;
  CHECK(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 4; ++i) CHECK(cudaGraphLaunch(exec, work.stream));
  CHECK(cudaStreamSynchronize(work.stream));
  // Memory nodes and child graphs do not go together with a conditional node: a graph of their own.
  cudaGraph_t second;
  CHECK(cudaGraphCreate(&second, 0));
  cudaMemAllocNodeParams memory_params{};
  memory_params.poolProps.allocType = cudaMemAllocationTypePinned;
  memory_params.poolProps.location.type = cudaMemLocationTypeDevice;
  memory_params.bytesize = 1 << 20;
  CHECK(cudaGraphAddMemAllocNode(&memory, second, nullptr, 0, &memory_params));
  out = static_cast<float*>(memory_params.dptr);
  CHECK(cudaGraphAddKernelNode(&first, second, &memory, 1, &kernel));
  CHECK(cudaGraphAddMemFreeNode(&release, second, &first, 1, memory_params.dptr));
  cudaGraph_t copied;
  CHECK(cudaGraphClone(&copied, child));
  for (cudaGraph_t each : {second, copied}) {
    CHECK(cudaGraphInstantiate(&exec, each, 0));
    CHECK(cudaGraphLaunch(exec, work.stream));
    CHECK(cudaStreamSynchronize(work.stream));
  }
  std::printf("{\"kernel\": %d, \"memset\": %d, \"inner\": %d, \"general\": %d, \"body\": %d}\n", kernel_line, memset_line, inner_line,
              general_line, body_line);
  return 0;
}

int leave(const std::string& way) {
  static Work work;
  static cudaGraphExec_t exec;
  exec = capture(work, 10, nullptr);
  for (int i = 0; i < 5; ++i) CHECK(cudaGraphLaunch(exec, work.stream));
  CHECK(cudaStreamSynchronize(work.stream));
  if (way == "exit") std::exit(0);
  if (way == "_exit") _exit(0);
  if (way == "abort") std::abort();
  if (way == "term") std::raise(SIGTERM);
  if (way == "kill") std::raise(SIGKILL);
  if (way == "thread") {
    // Another thread is in driver calls while the process goes.
    std::thread([] {
      for (;;) {
        cudaGraphLaunch(exec, work.stream);
        cudaStreamSynchronize(work.stream);
      }
    }).detach();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 5 && std::strcmp(argv[1], "cost") == 0)
    return cost(std::atoi(argv[2]), std::atoi(argv[3]), std::atoi(argv[4]));
  if (argc == 3 && std::strcmp(argv[1], "threads") == 0) return threads(std::atoi(argv[2]));
  if (argc == 2 && std::strcmp(argv[1], "devices") == 0) return devices();
  if (argc == 2 && std::strcmp(argv[1], "updates") == 0) return updates();
  if (argc == 3 && std::strcmp(argv[1], "large") == 0) return large(std::atoi(argv[2]));
  if (argc == 5 && std::strcmp(argv[1], "many") == 0 && std::atoi(argv[2]) >= 4)
    return many(std::atoi(argv[2]), std::atoi(argv[3]), std::atoi(argv[4]));
  if (argc == 2 && std::strcmp(argv[1], "built") == 0) return built();
  if (argc == 3 && std::strcmp(argv[1], "leave") == 0) return leave(argv[2]);
  std::fprintf(stderr, "usage: record_load cost NODES GRAPHS LAUNCHES | threads GRAPHS | devices | updates | large NODES | "
                       "many GRAPHS NODES KEPT | built | leave WAY\n");
  return 2;
}
