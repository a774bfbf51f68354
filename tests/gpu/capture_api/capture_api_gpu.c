/* The C interface on graphs of a real driver. usage: capture_api_gpu FOLDER (empty)
 *
 * Captures a decoder whose layers have a side branch, recorded before or after the main one, and builds a graph node by node; writes
 * each with cglint_capture() before it is instantiated and after it was launched. Exit codes: 0, 1 something is not as it must be, 3 CUDA failed. */
#include <cglint/capture.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CUDA(call)                                                       \
  do {                                                                   \
    const cudaError_t error = (call);                                    \
    if (error != cudaSuccess) {                                          \
      fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error));     \
      exit(3);                                                           \
    }                                                                    \
  } while (0)

/* One kernel under several names: writes a number. */
#define KERNEL(name)                                                                                       \
  ".visible .entry " name "(.param .u64 out, .param .u32 value) {\n"                                       \
  ".reg .u64 %a<3>; .reg .u32 %v<2>;\n"                                                                    \
  "ld.param.u64 %a1, [out]; ld.param.u32 %v1, [value]; cvta.to.global.u64 %a2, %a1; st.global.u32 [%a2], %v1; ret; }\n"
static const char kProgram[] = ".version 7.0\n.target sm_80\n.address_size 64\n" KERNEL("norm") KERNEL("shared_up") KERNEL("shared_down")
    KERNEL("routed_up") KERNEL("routed_down") KERNEL("combine");

static cudaLibrary_t library;
static char* memory;

static void launch(const char* name, cudaStream_t stream, int slot) {
  cudaKernel_t kernel;
  char* out = memory + 4096 * slot;
  unsigned value = 7;
  void* arguments[2];
  arguments[0] = &out;
  arguments[1] = &value;
  CUDA(cudaLibraryGetKernel(&kernel, library, name));
  CUDA(cudaLaunchKernel((const void*)kernel, (dim3){1, 1, 1}, (dim3){32, 1, 1}, arguments, 0, stream));
}

static cudaGraph_t capture(int side_first, int layers) {
  cudaStream_t main_stream, side;
  cudaEvent_t fork, join;
  cudaGraph_t graph;
  int layer, branch;
  CUDA(cudaStreamCreateWithFlags(&main_stream, cudaStreamNonBlocking));
  CUDA(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
  CUDA(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
  CUDA(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
  CUDA(cudaStreamBeginCapture(main_stream, cudaStreamCaptureModeThreadLocal));
  launch("norm", main_stream, 0);
  for (layer = 0; layer < layers; ++layer) {
    CUDA(cudaEventRecord(fork, main_stream));
    CUDA(cudaStreamWaitEvent(side, fork, 0));
    for (branch = 0; branch < 2; ++branch) {
      const int is_side = (branch == 0) == (side_first != 0);
      launch(is_side ? "shared_up" : "routed_up", is_side ? side : main_stream, is_side ? 1 : 2);
      launch(is_side ? "shared_down" : "routed_down", is_side ? side : main_stream, is_side ? 3 : 4);
    }
    CUDA(cudaEventRecord(join, side));
    CUDA(cudaStreamWaitEvent(main_stream, join, 0));
    launch("combine", main_stream, 5);
  }
  CUDA(cudaStreamEndCapture(main_stream, &graph));
  return graph;
}

static cudaGraph_t build(void) {
  cudaGraph_t graph;
  cudaGraphNode_t before = NULL, node;
  struct cudaMemsetParams memset_params;
  int i;
  memset(&memset_params, 0, sizeof memset_params);
  memset_params.dst = memory;
  memset_params.elementSize = 1;
  memset_params.width = 4096;
  memset_params.height = 1;
  CUDA(cudaGraphCreate(&graph, 0));
  for (i = 0; i < 5; ++i) {
    CUDA(cudaGraphAddMemsetNode(&node, graph, &before, i == 0 ? 0 : 1, &memset_params));
    before = node;
  }
  return graph;
}

static void write_graph(cudaGraph_t graph, const char* folder, const char* name) {
  char problem[256], path[4096];
  cudaGraphExec_t exec;
  cudaStream_t stream;
  int when;
  CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (when = 0; when < 2; ++when) {
    snprintf(path, sizeof path, "%s/%s.%s.cgl.jsonl", folder, name, when == 0 ? "new" : "launched");
    if (cglint_capture(graph, path, name, problem, sizeof problem) != CGLINT_OK) {
      fprintf(stderr, "%s: %s\n", path, problem);
      exit(1);
    }
    if (when == 1) break;
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    CUDA(cudaGraphLaunch(exec, stream));
    CUDA(cudaStreamSynchronize(stream));
  }
  if (cglint_capture(graph, path, name, problem, sizeof problem) != CGLINT_CANNOT_WRITE) {
    fprintf(stderr, "%s was written over\n", path);
    exit(1);
  }
}

int main(int argc, char** argv) {
  char problem[256];
  if (argc != 2) return fprintf(stderr, "usage: capture_api_gpu FOLDER\n"), 2;
  CUDA(cudaMalloc((void**)&memory, 1 << 20));
  CUDA(cudaLibraryLoadData(&library, kProgram, NULL, NULL, 0, NULL, NULL, 0));
  write_graph(capture(1, 6), argv[1], "side_first");
  write_graph(capture(0, 6), argv[1], "main_first");
  write_graph(build(), argv[1], "built");
  if (cglint_capture(NULL, argv[1], NULL, problem, sizeof problem) != CGLINT_BAD_ARGUMENT)
    return fprintf(stderr, "no graph was taken\n"), 1;
  puts(cglint_capture_version());
  return 0;
}
