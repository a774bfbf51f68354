// Small programs with one planted defect each, and their twins without it.
//
// usage: defects CASE bad|good        defects --list: one "CASE CODE" a line
//
// A failed call of a planted failure is expected; the program then ends its capture and exits with 0, as an engine
// that falls back to eager mode does. Exit code 3: something else went wrong.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "../check.h"
#include "planted.h"

namespace {

constexpr int kCount = 1 << 16;

__global__ void scale(float* out, const float* in, float factor, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = in[i] * factor;
}

// A gate that may be absent: null is legal, and it then does nothing.
__global__ void gated(float* out, const float* in, const float* gate, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = in[i] * gate[i];
}

// Long enough to overlap.
__global__ void spin(float* out, const float* in, int rounds, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  float value = in[i];
  for (int r = 0; r < rounds; ++r) value = value * 0.999F + 0.001F;
  out[i] = value;
}

struct Buffer {
  float* data = nullptr;
  Buffer() {
    CHECK(cudaMalloc(&data, kCount * sizeof(float)));
    CHECK(cudaMemset(data, 0, kCount * sizeof(float)));
  }
};

cudaStream_t make_stream(unsigned flags = cudaStreamNonBlocking) {
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, flags));
  return stream;
}
cudaEvent_t make_event() {
  cudaEvent_t event;
  CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return event;
}

void launch_scale(const Buffer& out, const Buffer& in, cudaStream_t stream) {
  scale<<<kCount / 256, 256, 0, stream>>>(out.data, in.data, 0.5F, kCount);
}
void launch_spin(const Buffer& out, const Buffer& in, cudaStream_t stream, int rounds = 4000) {
  spin<<<8, 256, 0, stream>>>(out.data, in.data, rounds, kCount);
}

void wait_for(cudaStream_t waiting, cudaStream_t other) {
  const cudaEvent_t event = make_event();
  CHECK(cudaEventRecord(event, other));
  CHECK(cudaStreamWaitEvent(waiting, event, 0));
}

// Ends a capture and replays what came of it; a failed one is fine if it was to fail.
cudaGraphExec_t finish(cudaStream_t stream, bool expect_failure, int replays = 3) {
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
  if (expect_failure) {
    if (ended == cudaSuccess) std::fprintf(stderr, "the capture was to fail and did not\n"), std::exit(3);
    cudaGetLastError();
    return nullptr;
  }
  CHECK(ended);
  cudaGraphExec_t exec;
  CHECK(cudaGraphInstantiate(&exec, graph, 0));
  const cudaStream_t launch = make_stream();
  for (int i = 0; i < replays; ++i) CHECK(cudaGraphLaunch(exec, launch));
  CHECK(cudaStreamSynchronize(launch));
  CHECK(cudaGraphDestroy(graph));
  return exec;
}

// --- captures that fail ---

void legacy_stream_launch(bool bad) {
  Buffer a, b;
  const cudaStream_t stream = make_stream(cudaStreamDefault);  // a blocking one
  launch_scale(b, a, stream);
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  launch_scale(b, a, stream);
  launch_scale(b, a, bad ? nullptr : stream);
  cudaGetLastError();
  finish(stream, bad);
}

void synchronize_stream(bool bad) {
  Buffer a, b;
  const cudaStream_t stream = make_stream();
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  launch_scale(b, a, stream);
  if (bad) cudaStreamSynchronize(stream);
  finish(stream, bad);
  CHECK(cudaStreamSynchronize(stream));
}

void malloc_in_global_mode(bool bad) {
  Buffer a, b;
  const cudaStream_t stream = make_stream();
  CHECK(cudaStreamBeginCapture(stream, bad ? cudaStreamCaptureModeGlobal : cudaStreamCaptureModeRelaxed));
  launch_scale(b, a, stream);
  void* more = nullptr;
  cudaMalloc(&more, 32 << 20);
  cudaGetLastError();
  finish(stream, bad);
}

void unjoined_stream(bool bad) {
  Buffer a, b, c;
  const cudaStream_t stream = make_stream(), side = make_stream();
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  launch_spin(b, a, stream);
  wait_for(side, stream);
  launch_spin(c, b, side);
  launch_spin(a, b, stream);
  if (!bad) wait_for(stream, side);
  finish(stream, bad);
}

void event_of_another_capture(bool bad) {
  Buffer a, b, c;
  const cudaStream_t stream = make_stream(), other = make_stream();
  const cudaEvent_t event = make_event();
  CHECK(cudaStreamBeginCapture(other, cudaStreamCaptureModeRelaxed));
  launch_scale(b, a, other);
  CHECK(cudaEventRecord(event, other));
  if (!bad) finish(other, false);
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  launch_scale(c, a, stream);
  if (bad) cudaStreamWaitEvent(stream, event, 0);
  cudaGetLastError();
  finish(stream, bad);
  if (bad) finish(other, true);
}

void call_of_another_thread(bool bad) {
  Buffer a, b;
  const cudaStream_t stream = make_stream();
  CHECK(cudaStreamBeginCapture(stream, bad ? cudaStreamCaptureModeGlobal : cudaStreamCaptureModeThreadLocal));
  launch_scale(b, a, stream);
  std::thread([] {
    void* more = nullptr;
    cudaMalloc(&more, 32 << 20);
    cudaGetLastError();
  }).join();
  finish(stream, bad);
}

void pageable_copy(bool bad) {
  Buffer a, b;
  std::vector<float> pageable(kCount);
  float* pinned = nullptr;
  CHECK(cudaMallocHost(&pinned, kCount * sizeof(float)));
  const cudaStream_t stream = make_stream(cudaStreamDefault);
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  if (bad) {
    cudaMemcpy(a.data, pageable.data(), kCount * sizeof(float), cudaMemcpyHostToDevice);
    cudaGetLastError();
  } else {
    CHECK(cudaMemcpyAsync(a.data, pinned, kCount * sizeof(float), cudaMemcpyHostToDevice, stream));
  }
  launch_scale(b, a, stream);
  cudaGetLastError();
  finish(stream, bad);
}

void query_captured_event(bool bad) {
  Buffer a, b;
  const cudaStream_t stream = make_stream();
  const cudaEvent_t event = make_event();
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  launch_scale(b, a, stream);
  CHECK(cudaEventRecord(event, stream));
  if (bad) cudaEventSynchronize(event);
  cudaGetLastError();
  launch_scale(a, b, stream);
  cudaGetLastError();
  finish(stream, bad);
}

// A library that asks for its workspace when it is first used.
float* library_workspace() {
  static float* workspace = nullptr;
  if (workspace == nullptr) {
    if (cudaMalloc(&workspace, 32 << 20) != cudaSuccess) {
      cudaGetLastError();
      return nullptr;
    }
    CHECK(cudaMemset(workspace, 0, 32 << 20));
  }
  return workspace;
}

void lazy_initialisation(bool bad) {
  Buffer a, b;
  if (!bad) library_workspace();
  const cudaStream_t stream = make_stream();
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  launch_scale(b, a, stream);
  float* const workspace = library_workspace();
  if (workspace != nullptr) scale<<<kCount / 256, 256, 0, stream>>>(workspace, b.data, 2.0F, kCount);
  finish(stream, bad);
}

void end_on_another_thread(bool bad) {
  Buffer a, b;
  const cudaStream_t stream = make_stream();
  CHECK(cudaStreamBeginCapture(stream, bad ? cudaStreamCaptureModeThreadLocal : cudaStreamCaptureModeRelaxed));
  launch_scale(b, a, stream);
  std::thread([&] { finish(stream, bad); }).join();
  if (bad) {
    cudaGraph_t graph = nullptr;
    cudaStreamEndCapture(stream, &graph);
    cudaGetLastError();
  }
}

// --- streams and overlap ---

void side_branch_first(bool bad) {
  Buffer x, s, y;
  const cudaStream_t stream = make_stream(), side = make_stream();
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int layer = 0; layer < 12; ++layer) {
    launch_scale(x, y, stream);
    wait_for(side, stream);
    if (bad) launch_spin(s, x, side);
    launch_spin(y, x, stream);
    if (!bad) launch_spin(s, x, side);
    wait_for(stream, side);
    gated<<<kCount / 256, 256, 0, stream>>>(y.data, y.data, s.data, kCount);
  }
  finish(stream, false);
}

void waits_for_everything(bool bad) {
  Buffer x, s, y;
  const cudaStream_t stream = make_stream(), side = make_stream();
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int layer = 0; layer < 6; ++layer) {
    launch_scale(x, y, stream);
    if (!bad) wait_for(side, stream);
    launch_spin(y, x, stream);
    if (bad) wait_for(side, stream);  // after the main branch: nothing is left to overlap with
    launch_spin(s, x, side);
    wait_for(stream, side);
    gated<<<kCount / 256, 256, 0, stream>>>(y.data, y.data, s.data, kCount);
  }
  finish(stream, false);
}

void stream_per_layer(bool bad) {
  Buffer x, s, y;
  const cudaStream_t stream = make_stream();
  std::vector<cudaStream_t> sides;
  for (int layer = 0; layer < 12; ++layer) sides.push_back(layer == 0 || bad ? make_stream() : sides[0]);
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int layer = 0; layer < 12; ++layer) {
    launch_scale(x, y, stream);
    wait_for(sides[layer], stream);
    launch_spin(y, x, stream);
    launch_spin(s, x, sides[layer]);
    wait_for(stream, sides[layer]);
    gated<<<kCount / 256, 256, 0, stream>>>(y.data, y.data, s.data, kCount);
  }
  finish(stream, false);
}

// --- addresses ---

// The gate was given back before the capture asked for its address; the eager step before had it. Not replayed.
void disposed_gate(bool bad) {
  Buffer a, b, gate;
  const cudaStream_t stream = make_stream();
  const auto step = [&](const float* g) { gated<<<kCount / 256, 256, 0, stream>>>(b.data, a.data, g, kCount); };
  for (int i = 0; i < 3; ++i) step(gate.data);
  CHECK(cudaStreamSynchronize(stream));
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  launch_scale(a, b, stream);
  step(bad ? nullptr : gate.data);
  finish(stream, false, bad ? 0 : 3);
}

void freed_input(bool bad) {
  Buffer b;
  float* input = nullptr;
  CHECK(cudaMalloc(&input, kCount * sizeof(float)));
  const cudaStream_t stream = make_stream();
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  scale<<<kCount / 256, 256, 0, stream>>>(b.data, input, 2.0F, kCount);
  const cudaGraphExec_t exec = finish(stream, false, 1);
  if (!bad) CHECK(cudaGraphExecDestroy(exec));
  CHECK(cudaFree(input));
}

void reused_input(bool bad) {
  Buffer b;
  float* input = nullptr;
  CHECK(cudaMalloc(&input, 64 << 20));
  const cudaStream_t stream = make_stream();
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  scale<<<kCount / 256, 256, 0, stream>>>(b.data, input, 2.0F, kCount);
  const cudaGraphExec_t exec = finish(stream, false, 1);
  float* other = nullptr;
  if (bad) CHECK(cudaFree(input));
  CHECK(cudaMalloc(&other, 64 << 20));  // where the input was
  CHECK(cudaMemset(other, 0, 64 << 20));
  const cudaStream_t launch = make_stream();
  for (int i = 0; i < 3; ++i) CHECK(cudaGraphLaunch(exec, launch));
  CHECK(cudaStreamSynchronize(launch));
}

// --- order and capture ---

void two_writers(bool bad) {
  Buffer x, y, z;
  const cudaStream_t stream = make_stream(), side = make_stream();
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  launch_scale(x, y, stream);
  wait_for(side, stream);
  CHECK(cudaMemcpyAsync(y.data, x.data, kCount * sizeof(float), cudaMemcpyDeviceToDevice, stream));
  launch_spin(x, x, stream);
  CHECK(cudaMemsetAsync(bad ? y.data : z.data, 0, kCount * sizeof(float), side));
  launch_spin(z, z, side);
  wait_for(stream, side);
  launch_scale(x, y, stream);
  finish(stream, false);
}

void unordered_reader(bool bad) {
  Buffer x, y, z;
  const cudaStream_t stream = make_stream(), side = make_stream();
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  launch_scale(x, z, stream);
  if (bad) wait_for(side, stream);
  CHECK(cudaMemcpyAsync(y.data, x.data, kCount * sizeof(float), cudaMemcpyDeviceToDevice, stream));
  if (!bad) wait_for(side, stream);
  launch_scale(z, y, side);  // reads what the copy writes
  launch_spin(x, x, stream);
  wait_for(stream, side);
  launch_scale(x, z, stream);
  finish(stream, false);
}

void work_on_another_stream(bool bad) {
  Buffer x, y, z;
  const cudaStream_t stream = make_stream(), other = make_stream();
  const auto step = [&](cudaStream_t second) {
    launch_scale(y, x, stream);
    launch_spin(z, y, second);
    launch_scale(x, z, stream);
  };
  for (int i = 0; i < 3; ++i) step(stream);
  CHECK(cudaDeviceSynchronize());
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  step(bad ? other : stream);  // not captured: it runs once, now
  finish(stream, false);
}

void capture_again_and_again(bool bad) {
  Buffer x, y;
  const cudaStream_t stream = make_stream();
  for (int step = 0; step < 24; ++step) {
    static cudaGraphExec_t exec = nullptr;
    if (bad || exec == nullptr) {
      CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
      for (int i = 0; i < 8; ++i) launch_scale(i % 2 == 0 ? y : x, i % 2 == 0 ? x : y, stream);
      exec = finish(stream, false, 1);
    } else {
      CHECK(cudaGraphLaunch(exec, stream));
      CHECK(cudaStreamSynchronize(stream));
    }
    if (bad) CHECK(cudaGraphExecDestroy(exec));
  }
}

constexpr Case kCases[] = {
    {"legacy_stream_launch", "CG404", legacy_stream_launch},
    {"synchronize_stream", "CG404", synchronize_stream},
    {"malloc_in_global_mode", "CG404", malloc_in_global_mode},
    {"unjoined_stream", "CG404", unjoined_stream},
    {"event_of_another_capture", "CG404", event_of_another_capture},
    {"call_of_another_thread", "CG404", call_of_another_thread},
    {"pageable_copy", "CG404", pageable_copy},
    {"query_captured_event", "CG404", query_captured_event},
    {"lazy_initialisation", "CG404", lazy_initialisation},
    {"end_on_another_thread", "CG404", end_on_another_thread},
    {"side_branch_first", "CG102", side_branch_first},
    {"waits_for_everything", "CG201", waits_for_everything},
    {"stream_per_layer", "CG104", stream_per_layer},
    {"disposed_gate", "CG301", disposed_gate},
    {"freed_input", "CG302", freed_input},
    {"reused_input", "CG302", reused_input},
    {"two_writers", "CG401", two_writers},
    {"unordered_reader", "CG401", unordered_reader},
    {"work_on_another_stream", "CG402", work_on_another_stream},
    {"capture_again_and_again", "CG804", capture_again_and_again},
};

}  // namespace

int main(int argc, char** argv) { return run_case("defects", kCases, argc, argv); }
