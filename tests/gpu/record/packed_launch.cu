// The same kernel with its arguments one by one and packed (`extra`), outside capture, in a capture, and in a graph that is built. Prints what
// the launches made of them, two numbers a launch: the packed ones must be like the others.
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "check.h"

#define DRIVER(call)                                                                  \
  do {                                                                                \
    const CUresult error = (call);                                                    \
    if (error != CUDA_SUCCESS) {                                                      \
      std::fprintf(stderr, "%s: driver error %d\n", #call, static_cast<int>(error)); \
      std::exit(3);                                                                   \
    }                                                                                 \
  } while (false)

struct Pair {
  std::uint64_t first;
  std::uint32_t second, third;  // no bytes that nobody sets: all of them are recorded
};

// Parameters of several sizes, with gaps between them.
__global__ void note(std::uint64_t* out, std::uint8_t small, Pair pair, float factor, std::uint64_t* unused) {
  out[0] += static_cast<std::uint64_t>(static_cast<float>(pair.first + pair.second + pair.third) * factor) + small + (unused == nullptr ? 0 : 1000);
}

int main() {
  std::uint64_t* out = nullptr;
  CHECK(cudaMalloc(&out, 6 * sizeof(std::uint64_t)));
  CHECK(cudaMemset(out, 0, 6 * sizeof(std::uint64_t)));
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaFunction_t function = nullptr;
  CHECK(cudaGetFuncBySymbol(&function, reinterpret_cast<const void*>(note)));

  std::uint8_t small = 3;
  Pair pair = {39, 2, 1};
  float factor = 2.0F;
  std::uint64_t* unused = nullptr;
  std::uint64_t* target = out;
  void* params[] = {&target, &small, &pair, &factor, &unused};
  struct {  // as the compiler lays the parameters out
    std::uint64_t* out;
    std::uint8_t small;
    Pair pair;
    float factor;
    std::uint64_t* unused;
  } packed = {out, small, pair, factor, unused};
  std::size_t size = sizeof packed;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
  const auto launch_both = [&](std::uint64_t* first) {
    target = first;
    DRIVER(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, params, nullptr));
    packed.out = first;
    DRIVER(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, nullptr, extra));
  };

  launch_both(out);
  cudaGraph_t captured;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  launch_both(out + 1);
  CHECK(cudaStreamEndCapture(stream, &captured));

  cudaGraph_t built;
  CHECK(cudaGraphCreate(&built, 0));
  CUDA_KERNEL_NODE_PARAMS node{};
  node.func = function;
  node.gridDimX = node.gridDimY = node.gridDimZ = node.blockDimX = node.blockDimY = node.blockDimZ = 1;
  target = packed.out = out + 2;
  CUgraphNode first = nullptr, second = nullptr;
  node.kernelParams = params;
  DRIVER(cuGraphAddKernelNode(&first, built, nullptr, 0, &node));
  node.kernelParams = nullptr;
  node.extra = extra;
  DRIVER(cuGraphAddKernelNode(&second, built, &first, 1, &node));
  CUDA_KERNEL_NODE_PARAMS told{};
  DRIVER(cuGraphKernelNodeGetParams(second, &told));
  std::fprintf(stderr, "the driver tells packed arguments %s\n", told.kernelParams != nullptr ? "one by one" : told.extra != nullptr ? "packed" : "not at all");
  // What a node was made with may be gone afterwards.
  packed = {}, size = 0, target = nullptr, pair = {}, small = 0;

  for (cudaGraph_t graph : {captured, built}) {
    cudaGraphExec_t exec;
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaStreamSynchronize(stream));
  }
  std::uint64_t sums[3];
  CHECK(cudaMemcpy(sums, out, sizeof sums, cudaMemcpyDeviceToHost));
  for (const std::uint64_t sum : sums) std::printf("%llu\n", static_cast<unsigned long long>(sum));
  for (const std::uint64_t sum : sums)
    if (sum != 2 * 87) return 1;
  return 0;
}
