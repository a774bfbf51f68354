// Captures a fork and join over two streams again and again; with an argument "forever" until it is killed. Prints how
// many graphs it instantiated after each of them, so that a killed run can be compared with its capture file.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "check.h"

__global__ void scale(float* data, int count, float factor) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] *= factor;
}

int main(int argc, char** argv) {
  const bool forever = argc > 1 && std::strcmp(argv[1], "forever") == 0;
  const int graphs = forever ? 1 << 30 : 2;
  constexpr int kCount = 1 << 16;
  float *a = nullptr, *b = nullptr, *host = nullptr;
  CHECK(cudaMalloc(&a, kCount * sizeof(float)));
  CHECK(cudaMalloc(&b, kCount * sizeof(float)));
  CHECK(cudaMallocHost(&host, kCount * sizeof(float)));
  cudaStream_t main_stream, side;
  CHECK(cudaStreamCreateWithFlags(&main_stream, cudaStreamNonBlocking));
  CHECK(cudaStreamCreateWithPriority(&side, cudaStreamNonBlocking, -1));
  cudaEvent_t fork, join;
  CHECK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
  CHECK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
  for (int n = 0; n < graphs; ++n) {
    CHECK(cudaStreamBeginCapture(main_stream, cudaStreamCaptureModeThreadLocal));
    CHECK(cudaMemsetAsync(a, 0, kCount * sizeof(float), main_stream));
    scale<<<kCount / 256, 256, 0, main_stream>>>(a, kCount, 2.0F);
    CHECK(cudaEventRecord(fork, main_stream));
    CHECK(cudaStreamWaitEvent(side, fork, 0));
    scale<<<kCount / 256, 256, 0, side>>>(b, kCount, 3.0F);
    CHECK(cudaEventRecord(join, side));
    scale<<<kCount / 256, 256, 0, main_stream>>>(a, kCount, 4.0F);
    CHECK(cudaStreamWaitEvent(main_stream, join, 0));
    CHECK(cudaMemcpyAsync(host, a, kCount * sizeof(float), cudaMemcpyDeviceToHost, main_stream));
    cudaGraph_t graph;
    CHECK(cudaStreamEndCapture(main_stream, &graph));
    cudaGraphExec_t exec;
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    std::printf("%d\n", n + 1);
    std::fflush(stdout);
    for (int i = 0; i < 4; ++i) CHECK(cudaGraphLaunch(exec, main_stream));
    CHECK(cudaStreamSynchronize(main_stream));
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
  }
  return 0;
}
