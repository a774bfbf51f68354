#include "stream_probe/overlap.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>

#include "stream_probe/graph_builder.h"

namespace cglint::gpu {
namespace {

std::string failed(const char* call, cudaError_t status) {
  return status == cudaSuccess ? "" : std::string(call) + ": " + cudaGetErrorName(status);
}

bool tracer_mapped() {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  while (std::getline(maps, line)) {
    if (line.find("cupti") != std::string::npos) return true;
  }
  return false;
}

}  // namespace

size_t measure_overlap(const std::vector<GraphSpec>& specs, const OverlapOptions& options,
                       const std::string& out_path, std::string& wrong) {
  const auto begin = std::chrono::steady_clock::now();
  Resources resources;
  wrong = failed("cudaFree(0)", cudaFree(nullptr));
  if (wrong.empty()) wrong = resources.create();
  unsigned long long* stamps = nullptr;
  if (wrong.empty()) wrong = failed("cudaMalloc", cudaMalloc(&stamps, sizeof(*stamps) * 2 * kMaxNodes));
  cudaStream_t stream = nullptr;
  if (wrong.empty())
    wrong = failed("cudaStreamCreateWithFlags", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  if (!wrong.empty()) return 0;
  FILE* out = std::fopen(out_path.c_str(), "w");
  if (out == nullptr) {
    wrong = "cannot write " + out_path;
    return 0;
  }
  BuildOptions build;
  build.kernel = KernelBody::kSpin;
  build.spin_ns = options.spin_ns;
  build.stamps = stamps;
  size_t done = 0;
  for (const GraphSpec& spec : specs) {
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() > options.budget_s)
      break;
    BuiltGraph built;
    cudaGraphExec_t exec = nullptr;
    wrong = build_graph(spec, resources, build, built);
    if (wrong.empty()) wrong = failed("cudaGraphInstantiate", cudaGraphInstantiate(&exec, built.graph, 0));
    const size_t n = spec.kinds.size();
    std::vector<unsigned long long> host(2 * n);
    std::string text = to_json(spec, Measured{});
    text.pop_back();
    text += ",\"stamps\":[";
    for (int replay = -1; replay < options.replays && wrong.empty(); ++replay) {
      wrong = failed("cudaMemsetAsync", cudaMemsetAsync(stamps, 0, sizeof(*stamps) * 2 * n, stream));
      if (wrong.empty()) wrong = failed("cudaGraphLaunch", cudaGraphLaunch(exec, stream));
      if (wrong.empty()) wrong = failed("cudaStreamSynchronize", cudaStreamSynchronize(stream));
      if (wrong.empty())
        wrong = failed("cudaMemcpy",
                       cudaMemcpy(host.data(), stamps, sizeof(*stamps) * 2 * n, cudaMemcpyDeviceToHost));
      if (replay < 0 || !wrong.empty()) continue;
      unsigned long long first = ~0ull;
      for (size_t v = 0; v < n; ++v) {
        if (host[2 * v] != 0) first = std::min(first, host[2 * v]);
      }
      if (replay > 0) text += ',';
      text += '[';
      for (size_t v = 0; v < n; ++v) {
        if (v > 0) text += ',';
        if (host[2 * v] == 0) {
          text += "[-1,-1]";
        } else {
          text +=
              '[' + std::to_string(host[2 * v] - first) + ',' + std::to_string(host[2 * v + 1] - first) + ']';
        }
      }
      text += ']';
    }
    if (exec != nullptr) cudaGraphExecDestroy(exec);
    if (built.graph != nullptr) cudaGraphDestroy(built.graph);
    if (!wrong.empty()) break;
    text += "],\"tracer\":";
    text += tracer_mapped() ? "true}" : "false}";
    std::fprintf(out, "%s\n", text.c_str());
    ++done;
  }
  std::fclose(out);
  return done;
}

}  // namespace cglint::gpu
