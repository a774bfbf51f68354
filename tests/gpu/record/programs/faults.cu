// A second set of small programs with one planted defect each, and their twins without it: other calls, other styles
// (driver API, stream-ordered pools, mapped memory, child graphs, events made once, threads).
//
// usage: faults CASE bad|good        faults --list: one "CASE CODE" a line
//
// Calls whose failure is planted are not checked. Exit code 3: something else went wrong.
#include <cuda.h>
#include <cuda_runtime.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "planted.h"

#define RT(call)                                                                                 \
  do {                                                                                           \
    const cudaError_t rt_status = (call);                                                        \
    if (rt_status != cudaSuccess) {                                                              \
      std::fprintf(stderr, "line %d: %s: %s\n", __LINE__, #call, cudaGetErrorString(rt_status)); \
      std::exit(3);                                                                              \
    }                                                                                            \
  } while (false)
#define DRV(call)                                                                                \
  do {                                                                                           \
    const CUresult drv_status = (call);                                                          \
    if (drv_status != CUDA_SUCCESS) {                                                            \
      std::fprintf(stderr, "line %d: %s: %d\n", __LINE__, #call, static_cast<int>(drv_status));  \
      std::exit(3);                                                                              \
    }                                                                                            \
  } while (false)

constexpr int N = 1 << 16;
constexpr std::size_t BYTES = N * sizeof(float);

__global__ void axpy(float a, const float* x, float* y, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] += a * x[i];
}
__global__ void gelu(const float* x, float* y, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = x[i] / (1.0F + expf(-1.702F * x[i]));
}
__global__ void norm(const float* x, float* y, float eps, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = x[i] * rsqrtf(x[i] * x[i] + eps);
}
__global__ void append_kv(const float* k, float* cache, const int* position, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) cache[(*position * 16 + i) % n] = k[i];
}
__global__ void busy(const float* in, float* out, int rounds) {
  float v = in[threadIdx.x];
  for (int i = 0; i < rounds; ++i) v = v * 0.9999F + 0.0001F;
  out[threadIdx.x] = v;
}
struct Linear {
  const float* x;
  const float* weight;
  const float* bias;  // may be null
  float* y;
  int n;
};
__global__ void linear(Linear p) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < p.n; i += gridDim.x * blockDim.x) p.y[i] = p.x[i] * p.weight[i] + (p.bias != nullptr ? p.bias[i] : 0.0F);
}

float* device_buffer(std::size_t bytes = BYTES) {
  float* p;
  RT(cudaMalloc(&p, bytes));
  RT(cudaMemset(p, 0, bytes));
  return p;
}

struct Stream {
  cudaStream_t s;
  Stream() { RT(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking)); }
  operator cudaStream_t() const { return s; }
};

struct Event {
  cudaEvent_t e;
  Event() { RT(cudaEventCreateWithFlags(&e, cudaEventDisableTiming)); }
  void from(cudaStream_t s) const { RT(cudaEventRecord(e, s)); }
  void to(cudaStream_t s) const { RT(cudaStreamWaitEvent(s, e, 0)); }
};

void begin(cudaStream_t s, cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal) { RT(cudaStreamBeginCapture(s, mode)); }
cudaGraph_t end(cudaStream_t s) {
  cudaGraph_t graph = nullptr;
  RT(cudaStreamEndCapture(s, &graph));
  return graph;
}
// Where the capture may be broken; the defect is whether it is.
void end_anyhow(cudaStream_t s, bool bad) {
  cudaGraph_t graph = nullptr;
  const cudaError_t status = cudaStreamEndCapture(s, &graph);
  cudaGetLastError();
  if ((status != cudaSuccess) != bad) {
    std::fprintf(stderr, "end of capture: %s\n", cudaGetErrorString(status));
    std::exit(3);
  }
  if (bad) return;
  cudaGraphExec_t exec;
  RT(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 3; ++i) RT(cudaGraphLaunch(exec, s));
  RT(cudaStreamSynchronize(s));
}
cudaGraphExec_t instantiate(cudaGraph_t graph) {
  cudaGraphExec_t exec;
  RT(cudaGraphInstantiate(&exec, graph, 0));
  return exec;
}
void replay(cudaGraphExec_t exec, int times = 3) {
  const Stream s;
  for (int i = 0; i < times; ++i) RT(cudaGraphLaunch(exec, s));
  RT(cudaStreamSynchronize(s));
}

// --- captures that do not end well ---

void polls_its_stream(bool bad) {
  float *a = device_buffer(), *b = device_buffer();
  const Stream s;
  begin(s, cudaStreamCaptureModeRelaxed);
  gelu<<<64, 256, 0, s>>>(a, b, N);
  if (bad)
    while (cudaStreamQuery(s) == cudaErrorNotReady) std::this_thread::yield();
  gelu<<<64, 256, 0, s>>>(b, a, N);
  end_anyhow(s, bad);
}

void waits_for_the_step_before(bool bad) {
  float *a = device_buffer(), *b = device_buffer();
  const Stream s, loader;
  const Event loaded;
  axpy<<<64, 256, 0, loader>>>(1, a, b, N);
  loaded.from(loader);
  if (!bad) loaded.to(s);
  begin(s);
  if (bad) cudaStreamWaitEvent(s, loaded.e, 0);
  gelu<<<64, 256, 0, s>>>(b, a, N);
  end_anyhow(s, bad);
}

void frees_a_temporary(bool bad) {
  float *a = device_buffer(), *b = device_buffer(), *temporary = device_buffer();
  const Stream s;
  begin(s);
  gelu<<<64, 256, 0, s>>>(a, b, N);
  if (bad) cudaFree(temporary);
  gelu<<<64, 256, 0, s>>>(b, a, N);
  end_anyhow(s, bad);
}

void pins_a_buffer(bool bad) {
  float *a = device_buffer(), *host = nullptr;
  const Stream s;
  if (!bad) RT(cudaHostAlloc(&host, BYTES, cudaHostAllocDefault));
  begin(s, cudaStreamCaptureModeThreadLocal);
  axpy<<<64, 256, 0, s>>>(2, a, a, N);
  if (bad) cudaHostAlloc(&host, BYTES, cudaHostAllocDefault);
  if (host != nullptr) cudaMemcpyAsync(host, a, BYTES, cudaMemcpyDeviceToHost, s);
  end_anyhow(s, bad);
}

// A monitor that looks whether the GPU is idle, every now and then.
void monitor_thread(bool bad) {
  float *a = device_buffer(), *b = device_buffer();
  const Stream s, other;
  begin(s, cudaStreamCaptureModeThreadLocal);
  gelu<<<64, 256, 0, s>>>(a, b, N);
  std::thread([&] { bad ? cudaDeviceSynchronize() : cudaStreamSynchronize(other); }).join();
  gelu<<<64, 256, 0, s>>>(b, a, N);
  end_anyhow(s, bad);
}

void one_of_two_joined(bool bad) {
  float* x[4] = {device_buffer(), device_buffer(), device_buffer(), device_buffer()};
  const Stream s, left, right;
  const Event fork, l, r;
  begin(s);
  gelu<<<64, 256, 0, s>>>(x[0], x[1], N);
  fork.from(s);
  fork.to(left);
  fork.to(right);
  gelu<<<64, 256, 0, left>>>(x[1], x[2], N);
  l.from(left);
  gelu<<<64, 256, 0, right>>>(x[1], x[3], N);
  r.from(right);
  l.to(s);
  if (!bad) r.to(s);
  axpy<<<64, 256, 0, s>>>(1, x[2], x[0], N);
  end_anyhow(s, bad);
}

// Joined, but with an event that was recorded before the last work.
void event_recorded_too_early(bool bad) {
  float* x[3] = {device_buffer(), device_buffer(), device_buffer()};
  const Stream s, side;
  const Event fork, join;
  begin(s);
  gelu<<<64, 256, 0, s>>>(x[0], x[1], N);
  fork.from(s);
  fork.to(side);
  busy<<<1, 256, 0, side>>>(x[1], x[2], 20'000);
  busy<<<1, 256, 0, s>>>(x[1], x[0], 20'000);
  if (bad) join.from(side);
  norm<<<64, 256, 0, side>>>(x[2], x[2], 1e-5F, N);
  if (!bad) join.from(side);
  join.to(s);
  axpy<<<64, 256, 0, s>>>(1, x[2], x[0], N);
  end_anyhow(s, bad);
}

void blocking_fill(bool bad) {
  float *a = device_buffer(), *b = device_buffer();
  cudaStream_t s;
  RT(cudaStreamCreate(&s));
  begin(s);
  if (bad) cudaMemset(b, 0, BYTES);
  else RT(cudaMemsetAsync(b, 0, BYTES, s));
  axpy<<<64, 256, 0, s>>>(1, a, b, N);
  cudaGetLastError();
  end_anyhow(s, bad);
}

void ended_on_the_side_stream(bool bad) {
  float *a = device_buffer(), *b = device_buffer();
  const Stream s, side;
  const Event fork, join;
  begin(s);
  fork.from(s);
  fork.to(side);
  gelu<<<64, 256, 0, side>>>(a, b, N);
  join.from(side);
  join.to(s);
  if (!bad) return end_anyhow(s, false);
  cudaGraph_t graph = nullptr;
  if (cudaStreamEndCapture(side, &graph) == cudaSuccess) std::exit(3);
  cudaGetLastError();
  cudaStreamEndCapture(s, &graph);
  cudaGetLastError();
}

void begun_on_the_default_stream(bool bad) {
  float *a = device_buffer(), *b = device_buffer();
  const Stream own;
  const cudaStream_t s = bad ? nullptr : own.s;
  const cudaError_t begun = cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal);
  cudaGetLastError();
  if ((begun != cudaSuccess) != bad) std::exit(3);
  gelu<<<64, 256, 0, s>>>(a, b, N);
  if (!bad) end_anyhow(s, false);
}

void stream_callback(bool bad) {
  float *a = device_buffer(), *b = device_buffer();
  const Stream s;
  static std::atomic<int> calls{0};
  begin(s);
  gelu<<<64, 256, 0, s>>>(a, b, N);
  if (bad) cudaStreamAddCallback(s, [](cudaStream_t, cudaError_t, void*) { ++calls; }, nullptr, 0);
  else RT(cudaLaunchHostFunc(s, [](void*) { ++calls; }, nullptr));
  end_anyhow(s, bad);
}

void managed_memory(bool bad) {
  float *a = device_buffer(), *b = nullptr;
  const Stream s;
  if (!bad) RT(cudaMallocManaged(&b, BYTES));
  begin(s);
  axpy<<<64, 256, 0, s>>>(1, a, a, N);
  if (bad) cudaMallocManaged(&b, BYTES);
  if (b != nullptr) axpy<<<64, 256, 0, s>>>(1, a, b, N);
  cudaGetLastError();
  end_anyhow(s, bad);
}

void prefetches(bool bad) {
  float *a = device_buffer(), *b = nullptr;
  RT(cudaMallocManaged(&b, BYTES));
  const Stream s;
  const cudaMemLocation here{cudaMemLocationTypeDevice, 0};
  if (!bad) RT(cudaMemPrefetchAsync(b, BYTES, here, 0, s));
  RT(cudaStreamSynchronize(s));
  begin(s);
  if (bad) cudaMemPrefetchAsync(b, BYTES, here, 0, s);
  axpy<<<64, 256, 0, s>>>(1, a, b, N);
  cudaGetLastError();
  end_anyhow(s, bad);
}

// An early return: nobody ends the capture.
void left_open(bool bad) {
  float *a = device_buffer(), *b = device_buffer();
  const Stream s;
  begin(s, cudaStreamCaptureModeRelaxed);
  gelu<<<64, 256, 0, s>>>(a, b, N);
  if (bad) return;
  end_anyhow(s, false);
}

// --- addresses ---

void pool_memory_given_back(bool bad) {
  const Stream s;
  float *x, *y = device_buffer(), *later;
  RT(cudaMallocAsync(&x, BYTES, s));
  RT(cudaMemsetAsync(x, 0, BYTES, s));
  RT(cudaStreamSynchronize(s));
  begin(s);
  gelu<<<64, 256, 0, s>>>(x, y, N);
  const cudaGraphExec_t exec = instantiate(end(s));
  RT(cudaGraphLaunch(exec, s));
  if (bad) RT(cudaFreeAsync(x, s));
  RT(cudaMallocAsync(&later, BYTES, s));
  RT(cudaMemsetAsync(later, 1, BYTES, s));
  for (int i = 0; i < 3; ++i) RT(cudaGraphLaunch(exec, s));
  RT(cudaStreamSynchronize(s));
  RT(cudaGraphExecDestroy(exec));
  if (!bad) RT(cudaFreeAsync(x, s));
}

// An arena that doubles when a larger batch comes; the graph of the smaller one is kept.
struct Arena {
  char* base = nullptr;
  std::size_t size = 0, used = 0;
  float* take(std::size_t bytes) {
    float* p = reinterpret_cast<float*>(base + used);
    used += (bytes + 255) / 256 * 256;
    return p;
  }
  void reserve(std::size_t bytes) {
    used = 0;
    if (bytes <= size) return;
    if (base != nullptr) RT(cudaFree(base));
    RT(cudaMalloc(&base, bytes));
    RT(cudaMemset(base, 0, bytes));
    size = bytes;
  }
};

void arena_that_grows(bool bad) {
  Arena arena;
  const Stream s;
  const auto capture = [&](int batch) {
    arena.reserve(4 * batch * BYTES);
    float *x = arena.take(batch * BYTES), *y = arena.take(batch * BYTES);
    begin(s);
    gelu<<<64, 256, 0, s>>>(x, y, batch * N);
    norm<<<64, 256, 0, s>>>(y, x, 1e-5F, batch * N);
    return instantiate(end(s));
  };
  if (!bad) arena.reserve(4 * 8 * BYTES);
  const cudaGraphExec_t one = capture(1);
  replay(one);
  const cudaGraphExec_t eight = capture(8);
  for (int i = 0; i < 3; ++i) {
    cudaGraphLaunch(eight, s);
    cudaGraphLaunch(one, s);
  }
  cudaStreamSynchronize(s);  // may fault
  cudaGetLastError();
}

struct Mapped {
  CUdeviceptr base = 0;
  CUmemGenericAllocationHandle handle = 0;
  std::size_t size = 0;
};
void map_at(Mapped& m, CUdeviceptr base, std::size_t size) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  DRV(cuMemCreate(&m.handle, size, &prop, 0));
  DRV(cuMemMap(base, size, 0, m.handle, 0));
  CUmemAccessDesc access{};
  access.location = prop.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  DRV(cuMemSetAccess(base, size, &access, 1));
  m.base = base;
  m.size = size;
}

// A cache in mapped memory that moves when it grows; its twin grows where it is.
void mapped_cache_moves(bool bad) {
  RT(cudaFree(nullptr));
  constexpr std::size_t kPage = 2 << 20;
  CUdeviceptr first, second;
  DRV(cuMemAddressReserve(&first, 8 * kPage, 0, 0, 0));
  DRV(cuMemAddressReserve(&second, 8 * kPage, 0, 0, 0));
  Mapped cache, more;
  map_at(cache, first, kPage);
  float *k = device_buffer(), *out = device_buffer();
  const Stream s;
  begin(s);
  axpy<<<64, 256, 0, s>>>(1, k, reinterpret_cast<float*>(cache.base), N);
  const cudaGraphExec_t exec = instantiate(end(s));
  replay(exec);
  if (bad) {
    DRV(cuMemUnmap(first, kPage));
    DRV(cuMemRelease(cache.handle));
    map_at(more, second, 2 * kPage);
  } else {
    map_at(more, first + kPage, kPage);
  }
  begin(s);
  gelu<<<64, 256, 0, s>>>(reinterpret_cast<float*>(more.base), out, N);
  const cudaGraphExec_t other = instantiate(end(s));
  replay(other);
  cudaGraphLaunch(exec, s);
  cudaStreamSynchronize(s);  // may fault
  cudaGetLastError();
}

void staging_buffer_replaced(bool bad) {
  float *staging, *x = device_buffer(), *y = device_buffer();
  RT(cudaMallocHost(&staging, BYTES));
  const Stream s;
  begin(s);
  RT(cudaMemcpyAsync(x, staging, BYTES, cudaMemcpyHostToDevice, s));
  gelu<<<64, 256, 0, s>>>(x, y, N);
  const cudaGraphExec_t exec = instantiate(end(s));
  replay(exec);
  float* larger;
  RT(cudaMallocHost(&larger, 4 * BYTES));
  if (bad) RT(cudaFreeHost(staging));
  cudaGraphLaunch(exec, s);
  cudaStreamSynchronize(s);
  cudaGetLastError();
}

void weights_loaded_anew(bool bad) {
  float *x = device_buffer(), *y = device_buffer(), *weight = device_buffer(), *bias = device_buffer();
  const Stream s;
  std::vector<float> file(N, 0.5F);
  begin(s);
  linear<<<64, 256, 0, s>>>({x, weight, bias, y, N});
  gelu<<<64, 256, 0, s>>>(y, x, N);
  const cudaGraphExec_t exec = instantiate(end(s));
  replay(exec);
  float* fresh = weight;
  if (bad) {
    RT(cudaFree(weight));
    RT(cudaMalloc(&fresh, BYTES));
  }
  RT(cudaMemcpy(fresh, file.data(), BYTES, cudaMemcpyHostToDevice));
  cudaGraphLaunch(exec, s);
  cudaStreamSynchronize(s);
  cudaGetLastError();
}

void child_graph_reads_freed_memory(bool bad) {
  float *x = device_buffer(), *y = device_buffer();
  const Stream s;
  begin(s);
  gelu<<<64, 256, 0, s>>>(x, y, N);
  const cudaGraph_t inner = end(s);
  cudaGraph_t outer;
  RT(cudaGraphCreate(&outer, 0));
  cudaGraphNode_t node;
  RT(cudaGraphAddChildGraphNode(&node, outer, nullptr, 0, inner));
  const cudaGraphExec_t exec = instantiate(outer);
  replay(exec);
  if (!bad) RT(cudaGraphExecDestroy(exec));
  RT(cudaFree(x));
  float* other = device_buffer(4 * BYTES);
  begin(s);
  gelu<<<64, 256, 0, s>>>(y, other, N);
  replay(instantiate(end(s)));
}

void bias_missing_in_the_graph(bool bad) {
  float *x = device_buffer(), *y = device_buffer(), *weight = device_buffer(), *bias = device_buffer();
  const Stream s;
  const auto step = [&](bool with_bias) {
    norm<<<64, 256, 0, s>>>(x, y, 1e-5F, N);
    linear<<<64, 256, 0, s>>>({y, weight, with_bias ? bias : nullptr, x, N});
  };
  step(true);
  step(true);
  RT(cudaStreamSynchronize(s));
  begin(s);
  step(!bad);
  replay(instantiate(end(s)));
}

// Two requests at once, each with a graph of its own; one scratch buffer for both, or one each.
void one_scratch_for_two(bool bad) {
  float *x = device_buffer(), *y = device_buffer(), *z = device_buffer(), *scratch[2] = {device_buffer(), device_buffer()};
  const Stream s[2];
  cudaGraphExec_t exec[2];
  for (int i = 0; i < 2; ++i) {
    float* const mine = scratch[bad ? 0 : i];
    begin(s[i]);
    busy<<<1, 256, 0, s[i]>>>(x, mine, 4'000'000);
    busy<<<1, 256, 0, s[i]>>>(mine, i == 0 ? y : z, 4'000'000);
    exec[i] = instantiate(end(s[i]));
    RT(cudaGraphUpload(exec[i], s[i]));
  }
  RT(cudaDeviceSynchronize());
  for (int round = 0; round < 3; ++round)
    for (int i = 0; i < 2; ++i) RT(cudaGraphLaunch(exec[i], s[i]));
  RT(cudaDeviceSynchronize());
}

// --- work that a replay leaves out ---

void helper_uses_the_default_stream(bool bad) {
  float *x = device_buffer(), *y = device_buffer(), *z = device_buffer();
  const Stream s;
  const auto helper = [&](cudaStream_t stream) { norm<<<64, 256, 0, stream>>>(y, z, 1e-5F, N); };
  begin(s, cudaStreamCaptureModeThreadLocal);
  gelu<<<64, 256, 0, s>>>(x, y, N);
  helper(bad ? nullptr : s.s);
  axpy<<<64, 256, 0, s>>>(1, z, x, N);
  replay(instantiate(end(s)));
  RT(cudaDeviceSynchronize());
}

// The cache is not written while a stream captures: a guard that was meant for the profiler.
void cache_not_written_in_the_graph(bool bad) {
  float *x = device_buffer(), *k = device_buffer(), *cache = device_buffer();
  int* position;
  RT(cudaMalloc(&position, sizeof(int)));
  RT(cudaMemset(position, 0, sizeof(int)));
  const Stream s;
  const auto step = [&] {
    cudaStreamCaptureStatus status;
    RT(cudaStreamIsCapturing(s, &status));
    norm<<<64, 256, 0, s>>>(x, k, 1e-5F, N);
    if (!bad || status == cudaStreamCaptureStatusNone) append_kv<<<64, 256, 0, s>>>(k, cache, position, N);
    gelu<<<64, 256, 0, s>>>(cache, x, N);
  };
  for (int i = 0; i < 4; ++i) step();
  RT(cudaStreamSynchronize(s));
  begin(s);
  step();
  replay(instantiate(end(s)));
}

// The lengths go up with a call that waits: it copies now, and never again.
void lengths_copied_at_once(bool bad) {
  float* a = device_buffer();
  float* lengths;
  RT(cudaMallocHost(&lengths, 16 * 1024));
  const Stream s;
  begin(s);
  axpy<<<64, 256, 0, s>>>(1, a, a, N);
  if (bad) {
    CUDA_MEMCPY2D copy{};
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = lengths;
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.dstDevice = reinterpret_cast<CUdeviceptr>(a);
    copy.WidthInBytes = 1024;
    copy.Height = 16;
    DRV(cuMemcpy2D(&copy));
  } else {
    RT(cudaMemcpyAsync(a, lengths, 16 * 1024, cudaMemcpyHostToDevice, s));
  }
  gelu<<<64, 256, 0, s>>>(a, a, N);
  replay(instantiate(end(s)));
}

// The sampler, last in the step, was not run when the step was captured.
void sampled_only_when_warm(bool bad) {
  float *x = device_buffer(), *y = device_buffer(), *z = device_buffer();
  const Stream s;
  const auto step = [&](bool sample) {
    norm<<<64, 256, 0, s>>>(x, y, 1e-5F, N);
    gelu<<<64, 256, 0, s>>>(y, z, N);
    linear<<<64, 256, 0, s>>>({z, y, nullptr, x, N});
    if (sample) axpy<<<64, 256, 0, s>>>(1, z, y, N);
  };
  step(true);
  RT(cudaStreamSynchronize(s));
  begin(s);
  step(!bad);
  replay(instantiate(end(s)));
}

// The accumulator is cleared on a stream of its own, which nobody forked.
void fill_on_another_stream(bool bad) {
  float *x = device_buffer(), *sum = device_buffer();
  const Stream s, other;
  begin(s, cudaStreamCaptureModeRelaxed);
  RT(cudaMemsetAsync(sum, 0, BYTES, bad ? other.s : s.s));
  axpy<<<64, 256, 0, s>>>(1, x, sum, N);
  gelu<<<64, 256, 0, s>>>(sum, x, N);
  replay(instantiate(end(s)));
  RT(cudaDeviceSynchronize());
}

// --- streams ---

void stream_made_in_each_layer(bool bad) {
  float* b[3] = {device_buffer(), device_buffer(), device_buffer()};
  const Stream s, one;
  std::vector<std::unique_ptr<Stream>> made;
  begin(s);
  for (int layer = 0; layer < 10; ++layer) {
    if (bad) made.push_back(std::make_unique<Stream>());
    const cudaStream_t side = bad ? made.back()->s : one.s;
    const Event fork, join;
    norm<<<64, 256, 0, s>>>(b[0], b[1], 1e-5F, N);
    fork.from(s);
    fork.to(side);
    busy<<<1, 256, 0, s>>>(b[1], b[0], 3000);
    busy<<<1, 256, 0, side>>>(b[1], b[2], 3000);
    join.from(side);
    join.to(s);
    axpy<<<64, 256, 0, s>>>(1, b[2], b[0], N);
  }
  replay(instantiate(end(s)));
}

void two_side_branches_first(bool bad) {
  float* b[4] = {device_buffer(), device_buffer(), device_buffer(), device_buffer()};
  const Stream s, left, right;
  const Event fork, l, r;
  begin(s);
  for (int layer = 0; layer < 8; ++layer) {
    norm<<<64, 256, 0, s>>>(b[0], b[1], 1e-5F, N);
    fork.from(s);
    fork.to(left);
    fork.to(right);
    const auto sides = [&] {
      busy<<<1, 256, 0, left>>>(b[1], b[2], 2000);
      busy<<<1, 256, 0, right>>>(b[1], b[3], 2000);
    };
    if (bad) sides();
    busy<<<1, 256, 0, s>>>(b[1], b[0], 4000);
    if (!bad) sides();
    l.from(left);
    r.from(right);
    l.to(s);
    r.to(s);
    axpy<<<64, 256, 0, s>>>(1, b[2], b[0], N);
    axpy<<<64, 256, 0, s>>>(1, b[3], b[0], N);
  }
  replay(instantiate(end(s)));
}

// The side stream is joined before the main branch is launched.
void joined_at_once(bool bad) {
  float* b[3] = {device_buffer(), device_buffer(), device_buffer()};
  const Stream s, side;
  const Event fork, join;
  begin(s);
  for (int layer = 0; layer < 6; ++layer) {
    norm<<<64, 256, 0, s>>>(b[0], b[1], 1e-5F, N);
    fork.from(s);
    fork.to(side);
    if (!bad) busy<<<1, 256, 0, s>>>(b[1], b[0], 20'000);
    busy<<<1, 256, 0, side>>>(b[1], b[2], 20'000);
    join.from(side);
    join.to(s);
    if (bad) busy<<<1, 256, 0, s>>>(b[1], b[0], 20'000);
    axpy<<<64, 256, 0, s>>>(1, b[2], b[0], N);
  }
  replay(instantiate(end(s)));
}

// The side branch reads what the main branch still writes.
void reads_without_waiting(bool bad) {
  float* b[3] = {device_buffer(), device_buffer(), device_buffer()};
  const Stream s, side;
  const Event fork, join;
  begin(s);
  norm<<<64, 256, 0, s>>>(b[0], b[1], 1e-5F, N);
  if (bad) fork.from(s);
  gelu<<<64, 256, 0, s>>>(b[1], b[2], N);
  if (!bad) fork.from(s);
  fork.to(side);
  gelu<<<64, 256, 0, side>>>(b[2], b[0], N);
  norm<<<64, 256, 0, s>>>(b[1], b[1], 1e-5F, N);
  join.from(side);
  join.to(s);
  axpy<<<64, 256, 0, s>>>(1, b[0], b[1], N);
  replay(instantiate(end(s)));
}

// --- captured again ---

// The length goes into the kernel as a number; each step captures again, and keeps the graph "for later".
void length_as_a_number(bool bad) {
  float *x = device_buffer(), *y = device_buffer();
  const Stream s;
  cudaGraphExec_t exec = nullptr;
  for (int step = 1; step <= 16; ++step) {
    if (bad || exec == nullptr) {
      begin(s);
      for (int layer = 0; layer < 4; ++layer) {
        norm<<<64, 256, 0, s>>>(x, y, 1e-5F, bad ? 1024 + step : N);
        gelu<<<64, 256, 0, s>>>(y, x, bad ? 1024 + step : N);
      }
      exec = instantiate(end(s));
    }
    RT(cudaGraphLaunch(exec, s));
    RT(cudaStreamSynchronize(s));
  }
}

// The executable is to be updated, but every second step has a kernel more.
void update_refused(bool bad) {
  float *x = device_buffer(), *y = device_buffer();
  const Stream s;
  cudaGraphExec_t exec = nullptr;
  for (int step = 0; step < 8; ++step) {
    begin(s);
    norm<<<64, 256, 0, s>>>(x, y, 1e-5F, N - step);
    gelu<<<64, 256, 0, s>>>(y, x, N - step);
    for (int extra = 0; bad && extra < step % 4; ++extra) axpy<<<64, 256, 0, s>>>(1, y, x, N - step);
    const cudaGraph_t graph = end(s);
    cudaGraphExecUpdateResultInfo result;
    if (exec != nullptr && cudaGraphExecUpdate(exec, graph, &result) != cudaSuccess) {
      cudaGetLastError();
      RT(cudaGraphExecDestroy(exec));
      exec = nullptr;
    }
    if (exec == nullptr) exec = instantiate(graph);
    RT(cudaGraphDestroy(graph));
    RT(cudaGraphLaunch(exec, s));
    RT(cudaStreamSynchronize(s));
  }
}

const Case kCases[] = {
    {"polls_its_stream", "CG404", polls_its_stream},
    {"waits_for_the_step_before", "CG404", waits_for_the_step_before},
    {"frees_a_temporary", "CG404", frees_a_temporary},
    {"pins_a_buffer", "CG404", pins_a_buffer},
    {"monitor_thread", "CG404", monitor_thread},
    {"one_of_two_joined", "CG404", one_of_two_joined},
    {"event_recorded_too_early", "CG404", event_recorded_too_early},
    {"blocking_fill", "CG404", blocking_fill},
    {"ended_on_the_side_stream", "CG404", ended_on_the_side_stream},
    {"begun_on_the_default_stream", "CG404", begun_on_the_default_stream},
    {"stream_callback", "CG404", stream_callback},
    {"managed_memory", "CG404", managed_memory},
    {"prefetches", "CG404", prefetches},
    {"left_open", "CG404", left_open},
    {"pool_memory_given_back", "CG302", pool_memory_given_back},
    {"arena_that_grows", "CG302", arena_that_grows},
    {"mapped_cache_moves", "CG302", mapped_cache_moves},
    {"staging_buffer_replaced", "CG302", staging_buffer_replaced},
    {"weights_loaded_anew", "CG302", weights_loaded_anew},
    {"child_graph_reads_freed_memory", "CG302", child_graph_reads_freed_memory},
    {"bias_missing_in_the_graph", "CG301", bias_missing_in_the_graph},
    {"one_scratch_for_two", "CG303", one_scratch_for_two},
    {"helper_uses_the_default_stream", "CG402", helper_uses_the_default_stream},
    {"cache_not_written_in_the_graph", "CG402", cache_not_written_in_the_graph},
    {"lengths_copied_at_once", "CG402", lengths_copied_at_once},
    {"sampled_only_when_warm", "CG402", sampled_only_when_warm},
    {"fill_on_another_stream", "CG402", fill_on_another_stream},
    {"stream_made_in_each_layer", "CG104", stream_made_in_each_layer},
    {"two_side_branches_first", "CG102", two_side_branches_first},
    {"joined_at_once", "CG201", joined_at_once},
    {"reads_without_waiting", "CG401", reads_without_waiting},
    {"length_as_a_number", "CG804", length_as_a_number},
    {"update_refused", "CG804", update_refused},
};

int main(int argc, char** argv) { return run_case("faults", kCases, argc, argv); }
