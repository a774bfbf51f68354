// How the bench times: calls captured into one graph, replayed between two events.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <vector>

#include "kernels/common/case.h"

namespace cglint::kernels {

struct Timing {
  double median_us = 0;
  double min_us = 0;
  double max_us = 0;
};

// Time of one of the kRunsPerGraph calls of `run` that a replay makes, over `replays` replays after two that warm up.
template <typename Run>
cudaError_t time_in_graph(cudaStream_t stream, int replays, const Run& run, Timing& timing) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  std::vector<double> run_us;
  cudaError_t status = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  if (status != cudaSuccess) return status;
  for (int i = 0; i < kRunsPerGraph && status == cudaSuccess; ++i) status = run(stream);
  const cudaError_t end_status = cudaStreamEndCapture(stream, &graph);
  if (status == cudaSuccess) status = end_status;
  if (status == cudaSuccess) status = cudaGraphInstantiate(&exec, graph, 0);
  if (status == cudaSuccess) status = cudaEventCreate(&begin);
  if (status == cudaSuccess) status = cudaEventCreate(&end);
  for (int i = -2; i < replays && status == cudaSuccess; ++i) {  // two warm-up replays
    if (status == cudaSuccess) status = cudaEventRecord(begin, stream);
    if (status == cudaSuccess) status = cudaGraphLaunch(exec, stream);
    if (status == cudaSuccess) status = cudaEventRecord(end, stream);
    if (status == cudaSuccess) status = cudaEventSynchronize(end);
    float elapsed_ms = 0;
    if (status == cudaSuccess) status = cudaEventElapsedTime(&elapsed_ms, begin, end);
    if (i >= 0) run_us.push_back(static_cast<double>(elapsed_ms) * 1e3 / kRunsPerGraph);
  }
  if (begin != nullptr) (void)cudaEventDestroy(begin);
  if (end != nullptr) (void)cudaEventDestroy(end);
  if (exec != nullptr) (void)cudaGraphExecDestroy(exec);
  if (graph != nullptr) (void)cudaGraphDestroy(graph);
  if (status != cudaSuccess) return status;
  std::sort(run_us.begin(), run_us.end());
  timing = {run_us[run_us.size() / 2], run_us.front(), run_us.back()};
  return cudaSuccess;
}

}  // namespace cglint::kernels
