// What of CUPTI stays behind in a process after it has left: the time of one and the same kind of graph before CUPTI
// comes, while it is there, and after cuptiFinalize, with more and more of the graph made anew after that. No recorder is
// involved but in mode `recorder`, where it does the leaving.
//
// usage: record_detach_cost MODE NODES LAUNCHES [CUPTI]      CUPTI: path of the library
// modes: none           CUPTI is not loaded
//        loaded         loaded before the driver starts, never called
//        before         subscribed and finalised before the driver starts
//        before_context the same, after cuInit and before the context is made
//        subscribed     subscribed without any callback before the driver starts, finalised after the first replays
//        resource       the same, with the graph callbacks of the resource domain
//        driver         the same, with all driver callbacks
//        activity       the same, with kernel activity, which is off again before it leaves
//        unsubscribed   as `subscribed`, but only unsubscribed: no finalise
//        late           subscribed after the context and the first graph were made
//        recorder       waits for `cglint record --detach-after LAUNCHES+10` to leave
// Prints one JSON object: microseconds of a replay, median and least, at each stage.
#include <cuda_runtime.h>
#include <cupti.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"

namespace {

// One function per stage: with lazy loading each is loaded when it is first used.
template <int kWhich>
__global__ void chained(float* out, const float* in, float factor) {
  out[threadIdx.x] = in[threadIdx.x] * factor + static_cast<float>(kWhich);
}

struct Cupti {
  CUptiResult (*subscribe)(CUpti_SubscriberHandle*, CUpti_CallbackFunc, void*) = nullptr;
  CUptiResult (*unsubscribe)(CUpti_SubscriberHandle) = nullptr;
  CUptiResult (*finalize)() = nullptr;
  CUptiResult (*enable_domain)(std::uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain) = nullptr;
  CUptiResult (*enable_callback)(std::uint32_t, CUpti_SubscriberHandle, CUpti_CallbackDomain, CUpti_CallbackId) = nullptr;
  CUptiResult (*activity_enable)(CUpti_ActivityKind) = nullptr;
  CUptiResult (*activity_disable)(CUpti_ActivityKind) = nullptr;
  CUptiResult (*activity_register)(CUpti_BuffersCallbackRequestFunc, CUpti_BuffersCallbackCompleteFunc) = nullptr;
  CUptiResult (*activity_flush)(std::uint32_t) = nullptr;
  CUpti_SubscriberHandle subscriber{};
  bool is_subscribed = false;

  template <typename Function>
  static void find(void* library, Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr) std::fprintf(stderr, "no %s\n", name), std::exit(3);
  }
  void load(const char* path) {
    void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) std::fprintf(stderr, "%s\n", dlerror()), std::exit(3);
    find(library, subscribe, "cuptiSubscribe");
    find(library, unsubscribe, "cuptiUnsubscribe");
    find(library, finalize, "cuptiFinalize");
    find(library, enable_domain, "cuptiEnableDomain");
    find(library, enable_callback, "cuptiEnableCallback");
    find(library, activity_enable, "cuptiActivityEnable");
    find(library, activity_disable, "cuptiActivityDisable");
    find(library, activity_register, "cuptiActivityRegisterCallbacks");
    find(library, activity_flush, "cuptiActivityFlushAll");
  }
};
Cupti cupti;

void good(CUptiResult result, const char* what) {
  if (result == CUPTI_SUCCESS) return;
  std::fprintf(stderr, "%s: CUPTI error %d\n", what, static_cast<int>(result));
  std::exit(3);
}

void CUPTIAPI on_callback(void*, CUpti_CallbackDomain, CUpti_CallbackId, const void*) {}
void CUPTIAPI on_requested(std::uint8_t** buffer, std::size_t* size, std::size_t* records) {
  *size = std::size_t{4} << 20;
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, *size));
  *records = 0;
}
void CUPTIAPI on_completed(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t) {
  std::free(buffer);
}

void come(const std::string& mode) {
  good(cupti.subscribe(&cupti.subscriber, on_callback, nullptr), "cuptiSubscribe");
  cupti.is_subscribed = true;
  if (mode == "resource")
    for (const CUpti_CallbackId id : {CUPTI_CBID_RESOURCE_GRAPH_CREATED, CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED,
                                      CUPTI_CBID_RESOURCE_GRAPHEXEC_CREATED})
      good(cupti.enable_callback(1, cupti.subscriber, CUPTI_CB_DOMAIN_RESOURCE, id), "cuptiEnableCallback");
  if (mode == "driver") good(cupti.enable_domain(1, cupti.subscriber, CUPTI_CB_DOMAIN_DRIVER_API), "cuptiEnableDomain");
  if (mode == "activity") {
    good(cupti.activity_register(on_requested, on_completed), "cuptiActivityRegisterCallbacks");
    good(cupti.activity_enable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL), "cuptiActivityEnable");
  }
}

void leave(const std::string& mode) {
  if (!cupti.is_subscribed) return;
  cupti.is_subscribed = false;
  if (mode == "activity") {
    good(cupti.activity_flush(1), "cuptiActivityFlushAll");
    good(cupti.activity_disable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL), "cuptiActivityDisable");
  }
  good(cupti.unsubscribe(cupti.subscriber), "cuptiUnsubscribe");
  if (mode != "unsubscribed") good(cupti.finalize(), "cuptiFinalize");
}

using Kernel = void (*)(float*, const float*, float);

cudaGraphExec_t capture(Kernel kernel, float* data, cudaStream_t stream, int nodes) {
  cudaGraph_t graph;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < nodes; ++i) kernel<<<1, 128, 0, stream>>>(data + 256 * (i % 512), data, 1.0F);
  CHECK(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t exec;
  CHECK(cudaGraphInstantiate(&exec, graph, 0));
  CHECK(cudaGraphDestroy(graph));
  return exec;
}

std::string replays(cudaGraphExec_t exec, cudaStream_t stream, int launches) {
  std::vector<float> times;
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  for (int i = 0; i < launches + 10; ++i) {
    float ms = 0;
    CHECK(cudaEventRecord(begin, stream));
    CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaEventRecord(end, stream));
    CHECK(cudaEventSynchronize(end));
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 10) times.push_back(1e3F * ms);
  }
  CHECK(cudaEventDestroy(begin));
  CHECK(cudaEventDestroy(end));
  std::sort(times.begin(), times.end());
  char text[64];
  std::snprintf(text, sizeof text, "[%.2f, %.2f]", times[times.size() / 2], times.front());
  return text;
}

cudaStream_t make_stream() {
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}
float* make_data() {
  float* data = nullptr;
  CHECK(cudaMalloc(&data, 1 << 20));
  CHECK(cudaMemset(data, 0, 1 << 20));
  return data;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return std::fprintf(stderr, "usage: record_detach_cost MODE NODES LAUNCHES [CUPTI]\n"), 2;
  const std::string mode = argv[1];
  const int nodes = std::atoi(argv[2]), launches = std::atoi(argv[3]);
  if (mode != "none" && mode != "recorder") cupti.load(argc > 4 ? argv[4] : "libcupti.so.13");
  const bool comes_early = mode == "subscribed" || mode == "resource" || mode == "driver" || mode == "activity" || mode == "unsubscribed";
  if (comes_early || mode == "before") come(mode);
  if (mode == "before") leave(mode);
  int devices = 0;
  CHECK(cudaGetDeviceCount(&devices));  // cuInit, no context yet
  if (mode == "before_context") come(mode), leave(mode);
  float* data = make_data();
  cudaStream_t stream = make_stream();
  cudaGraphExec_t old = capture(chained<0>, data, stream, nodes);
  std::string out = "\"first\": " + replays(old, stream, launches);
  if (mode == "late") come(mode);
  out += ", \"there\": " + replays(old, stream, launches);
  out += ", \"there_fresh\": " + replays(capture(chained<0>, data, stream, nodes), stream, launches);
  leave(mode);
  out += ", \"old_graph\": " + replays(old, stream, launches);
  out += ", \"new_graph\": " + replays(capture(chained<0>, data, stream, nodes), stream, launches);
  out += ", \"new_function\": " + replays(capture(chained<1>, data, stream, nodes), stream, launches);
  const cudaStream_t other = make_stream();
  out += ", \"new_stream\": " + replays(capture(chained<2>, make_data(), other, nodes), other, launches);
  CHECK(cudaDeviceReset());
  data = make_data();
  stream = make_stream();
  out += ", \"new_context\": " + replays(capture(chained<3>, data, stream, nodes), stream, launches);
  std::printf("{\"mode\": \"%s\", %s}\n", mode.c_str(), out.c_str());
  return 0;
}
