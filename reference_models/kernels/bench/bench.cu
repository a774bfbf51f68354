// cglint-kernel-bench: checks every kernel case against its plain fp32 reference, then times it.
//
// A case is timed by capturing kRunsPerGraph calls of run() into one graph on one stream and replaying it
// between two events, so CPU launch cost stays out and each run still pays the gap between dependent graph
// nodes. Short programmatic launches come in two speeds, some 0.17 us apart, by what the process launched
// before, not by the kernel; so the graph is timed again after the calls have been launched from the CPU
// (`again`). The baseline is a graph of as many empty kernels. Each run takes the next copy of the case's
// weights; the copies together exceed L2 by four times where the case says l2_defeated. Activations, a few
// KB, stay in L2 as they do between the kernels of a decode layer.
//
// Exit codes: 0 all correct, 1 a case is wrong or failed to run, 2 bad usage, 3 no usable GPU.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <limits>
#include <string>
#include <vector>

#include "kernels/bench/floors.h"
#include "kernels/bench/timing.h"
#include "kernels/common/buffer.h"
#include "kernels/common/case.h"
#include "kernels/common/device.cuh"
#include "kernels/common/launch.h"

namespace cglint::kernels {
namespace {

__global__ void empty_kernel() {}
__global__ void empty_pdl_kernel() {
  pdl_wait();
  pdl_trigger();
}

struct Outcome {
  cudaError_t status = cudaSuccess;
  double error = std::numeric_limits<double>::infinity();
  Timing timing;
  Timing again;  // the same calls in a graph anew, after those from the CPU
  double stream_us = 0;
  FloorTime floor;
  FloorTime two_stage;  // of cases bound by bandwidth that take several launches
};

struct Options {
  std::vector<std::string> filters;  // a case whose title has one of them runs; without one, all do
  std::string json_path;
  std::string commit = "unknown";
  int replays = 9;
  bool check_only = false;
  bool time_only = false;
  bool list = false;
  bool floors = true;
};

// The same calls launched one by one from the CPU, which for short kernels is what takes the time.
template <typename Run>
cudaError_t time_in_stream(cudaStream_t stream, const Run& run, double& median_us) {
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  std::vector<double> run_us;
  cudaError_t status = cudaEventCreate(&begin);
  if (status == cudaSuccess) status = cudaEventCreate(&end);
  for (int round = 0; round < 4 && status == cudaSuccess; ++round) {  // the first warms up
    status = cudaEventRecord(begin, stream);
    for (int i = 0; i < kRunsPerGraph && status == cudaSuccess; ++i) status = run(stream);
    if (status == cudaSuccess) status = cudaEventRecord(end, stream);
    if (status == cudaSuccess) status = cudaEventSynchronize(end);
    float elapsed_ms = 0;
    if (status == cudaSuccess) status = cudaEventElapsedTime(&elapsed_ms, begin, end);
    if (round > 0) run_us.push_back(static_cast<double>(elapsed_ms) * 1e3 / kRunsPerGraph);
  }
  if (begin != nullptr) (void)cudaEventDestroy(begin);
  if (end != nullptr) (void)cudaEventDestroy(end);
  if (status != cudaSuccess) return status;
  std::sort(run_us.begin(), run_us.end());
  median_us = run_us[run_us.size() / 2];
  return cudaSuccess;
}

// Bytes read plus bytes written per second by device-to-device copies of 2 GB.
cudaError_t measure_copy_bandwidth(cudaStream_t stream, double& bytes_per_s) {
  constexpr size_t kBytes = size_t{2} << 30;
  DeviceBuffer<uint8_t> source;
  DeviceBuffer<uint8_t> target;
  cudaError_t status = source.allocate(kBytes);
  if (status == cudaSuccess) status = target.allocate(kBytes);
  if (status == cudaSuccess)
    status = fill_random(reinterpret_cast<float*>(source.get()), kBytes / 4, 1, 1.0f);
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  if (status == cudaSuccess) status = cudaEventCreate(&begin);
  if (status == cudaSuccess) status = cudaEventCreate(&end);
  std::vector<double> rates;
  for (int i = 0; i < 12 && status == cudaSuccess; ++i) {
    status = cudaEventRecord(begin, stream);
    if (status == cudaSuccess) {
      status = cudaMemcpyAsync(target.get(), source.get(), kBytes, cudaMemcpyDeviceToDevice, stream);
    }
    if (status == cudaSuccess) status = cudaEventRecord(end, stream);
    if (status == cudaSuccess) status = cudaEventSynchronize(end);
    float elapsed_ms = 0;
    if (status == cudaSuccess) status = cudaEventElapsedTime(&elapsed_ms, begin, end);
    if (i >= 2 && status == cudaSuccess)
      rates.push_back(2.0 * kBytes / (static_cast<double>(elapsed_ms) * 1e-3));
  }
  if (begin != nullptr) (void)cudaEventDestroy(begin);
  if (end != nullptr) (void)cudaEventDestroy(end);
  if (status != cudaSuccess) return status;
  std::sort(rates.begin(), rates.end());
  bytes_per_s = rates[rates.size() / 2];
  return cudaSuccess;
}

Outcome evaluate(const KernelCase& kernel_case, cudaStream_t stream, const Options& options, Floors& floors) {
  Outcome outcome;
  outcome.status = kernel_case.prepare ? kernel_case.prepare() : cudaSuccess;
  if (outcome.status == cudaSuccess) outcome.status = cudaDeviceSynchronize();
  if (outcome.status != cudaSuccess) return outcome;
  if (!options.time_only) {
    outcome.error = kernel_case.check();
    outcome.status = cudaDeviceSynchronize();
    if (outcome.status != cudaSuccess) return outcome;
  }
  if (options.check_only) return outcome;
  outcome.status = time_in_graph(stream, options.replays, kernel_case.run, outcome.timing);
  if (outcome.status == cudaSuccess)
    outcome.status = time_in_stream(stream, kernel_case.run, outcome.stream_us);
  if (outcome.status == cudaSuccess)
    outcome.status = time_in_graph(stream, options.replays, kernel_case.run, outcome.again);
  if (outcome.status != cudaSuccess || !options.floors) return outcome;
  if (!kernel_case.bandwidth_bound && kernel_case.floor.kind != Floor::Kind::kRead) {
    outcome.status = floors.small(kernel_case.floor, kernel_case.bytes, kernel_case.pdl, outcome.floor);
    return outcome;
  }
  outcome.status = floors.read(kernel_case.bytes, kernel_case.pdl, outcome.floor);
  if (outcome.status == cudaSuccess && kernel_case.launches > 1)
    outcome.status = floors.read_and_combine(kernel_case.bytes, kernel_case.pdl, outcome.two_stage);
  return outcome;
}

std::string json_quote(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

// Version of the kernel driver, e.g. 580.65.06.
std::string driver_version() {
  char text[64] = "unknown";
  std::FILE* file = std::fopen("/sys/module/nvidia/version", "r");
  if (file == nullptr) return text;
  if (std::fscanf(file, "%63s", text) != 1) std::strcpy(text, "unknown");
  std::fclose(file);
  return text;
}

bool is_wanted(const Options& options, const std::string& title) {
  return options.filters.empty() || std::any_of(options.filters.begin(), options.filters.end(), [&](const std::string& text) {
           return title.find(text) != std::string::npos;
         });
}

int run_bench(const Options& options) {
  std::vector<KernelCase> cases;
#ifdef CGLINT_HAS_ATTENTION_CASES
  register_attention_cases(cases);
#endif
#ifdef CGLINT_HAS_MOE_CASES
  register_moe_cases(cases);
#endif
  if (std::none_of(cases.begin(), cases.end(), [&](const KernelCase& kernel_case) {
        return is_wanted(options, kernel_case.name + " " + kernel_case.shape);
      })) {
    std::fprintf(stderr, "cglint-kernel-bench: no case has the text of a --filter\n");
    return 2;
  }
  if (options.list) {
    for (const KernelCase& kernel_case : cases) {
      const std::string title = kernel_case.name + " " + kernel_case.shape;
      if (is_wanted(options, title)) std::printf("%s\n", title.c_str());
    }
    return 0;
  }
  int device = 0;
  cudaDeviceProp properties{};
  if (cudaGetDevice(&device) != cudaSuccess || cudaGetDeviceProperties(&properties, device) != cudaSuccess) {
    std::fprintf(stderr, "cglint-kernel-bench: no usable GPU\n");
    return 3;
  }
  cudaStream_t stream = nullptr;
  double copy_bytes_per_s = 0;
  Timing empty;
  Timing empty_pdl;
  double empty_stream_us = 0;
  const auto run_empty = [](cudaStream_t s) {
    return launch({s, false}, empty_kernel, dim3(1), dim3(32), 0);
  };
  cudaError_t status = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (status == cudaSuccess) status = measure_copy_bandwidth(stream, copy_bytes_per_s);
  if (status == cudaSuccess) status = time_in_graph(stream, options.replays, run_empty, empty);
  if (status == cudaSuccess) status = time_in_stream(stream, run_empty, empty_stream_us);
  const bool pdl = device_supports_pdl(device);
  if (status == cudaSuccess && pdl) {
    status = time_in_graph(
        stream, options.replays,
        [](cudaStream_t s) {
          return launch({s, true}, empty_pdl_kernel, dim3(1), dim3(32), 0);
        },
        empty_pdl);
  }
  Floors floors(stream, options.replays, properties.multiProcessorCount);
  if (status == cudaSuccess && !options.check_only && options.floors) status = floors.prepare();
  if (status != cudaSuccess) {
    std::fprintf(stderr, "cglint-kernel-bench: baseline failed: %s\n", cudaGetErrorString(status));
    return 3;
  }
  int driver = 0;
  int runtime = 0;
  (void)cudaDriverGetVersion(&driver);
  (void)cudaRuntimeGetVersion(&runtime);
  std::printf("%s, L2 %.0f MB, driver API %d, runtime %d\n", properties.name, properties.l2CacheSize / 1e6,
              driver, runtime);
  std::printf(
      "copy %.0f GB/s (read + write); empty kernel %.2f us in a graph, %.2f us with a programmatic edge, "
      "%.2f us launched from the CPU\n\n",
      copy_bytes_per_s / 1e9, empty.median_us, empty_pdl.median_us, empty_stream_us);
  std::printf("%-24s %-40s %9s %7s %9s %9s %8s %7s %7s %8s %7s  %s\n", "kernel", "shape", "us", "spread",
              "again", "launched", "MB", "% copy", "x empty", "floor us", "% floor", "error");

  std::FILE* json = nullptr;
  if (!options.json_path.empty()) {
    json = std::fopen(options.json_path.c_str(), "w");
    if (json == nullptr) {
      std::fprintf(stderr, "cglint-kernel-bench: cannot write %s\n", options.json_path.c_str());
      return 2;
    }
    char date[32] = "";
    const std::time_t now = std::time(nullptr);
    std::strftime(date, sizeof date, "%Y-%m-%d", std::gmtime(&now));
    std::fprintf(
        json,
        "{\n  \"date\": \"%s\",\n  \"commit\": %s,\n  \"gpu\": %s,\n  \"driver\": %s,\n  \"l2_bytes\": %d,\n"
        "  \"driver_api\": %d,\n  \"runtime\": %d,\n  \"copy_bytes_per_s\": %.4e,\n"
        "  \"empty_launch_us\": %.3f,\n  \"empty_pdl_launch_us\": %.3f,\n"
        "  \"empty_stream_launch_us\": %.3f,\n  \"runs_per_graph\": %d,\n"
        "  \"replays\": %d,\n  \"cases\": [",
        date, json_quote(options.commit).c_str(), json_quote(properties.name).c_str(),
        json_quote(driver_version()).c_str(), properties.l2CacheSize, driver, runtime, copy_bytes_per_s,
        empty.median_us, empty_pdl.median_us, empty_stream_us, kRunsPerGraph, options.replays);
  }

  int failures = 0;
  bool first = true;
  for (KernelCase& slot : cases) {
    // Moved out, so that the case's memory is freed before the next one is prepared.
    const KernelCase kernel_case = std::move(slot);
    const std::string title = kernel_case.name + " " + kernel_case.shape;
    if (!is_wanted(options, title)) continue;
    if (kernel_case.pdl && !pdl) {
      std::printf("%-24s %-40s not run: needs compute capability 9.0\n", kernel_case.name.c_str(),
                  kernel_case.shape.c_str());
      continue;
    }
    const Outcome outcome = evaluate(kernel_case, stream, options, floors);
    const bool correct = options.time_only || outcome.error <= kernel_case.tolerance;
    const bool good = outcome.status == cudaSuccess && correct;
    failures += good ? 0 : 1;
    const double baseline_us = kernel_case.pdl ? empty_pdl.median_us : empty.median_us;
    const Timing& timing = outcome.timing;
    const double share =
        timing.median_us > 0 ? kernel_case.bytes / (timing.median_us * 1e-6) / copy_bytes_per_s : 0.0;
    const double times_empty = timing.median_us / (baseline_us * kernel_case.launches);
    const double of_floor = timing.median_us > 0 ? outcome.floor.us / timing.median_us : 0.0;
    std::printf("%-24s %-40s %9.2f %7.2f %9.2f %9.2f %8.2f %6.1f%% %7.2f %8.2f %6.0f%%  %.1e%s%s\n",
                kernel_case.name.c_str(), kernel_case.shape.c_str(), timing.median_us,
                timing.max_us - timing.min_us, outcome.again.median_us, outcome.stream_us,
                kernel_case.bytes / 1e6, share * 100, times_empty, outcome.floor.us, of_floor * 100,
                outcome.error, correct ? "" : " WRONG", outcome.status == cudaSuccess ? "" : " FAILED");
    if (outcome.status != cudaSuccess) std::printf("    %s\n", cudaGetErrorString(outcome.status));
    std::fflush(stdout);
    if (json != nullptr) {
      const auto number = [](double value) { return std::isfinite(value) ? value : -1.0; };
      std::fprintf(
          json,
          "%s\n    {\"kernel\": %s, \"shape\": %s, \"correct\": %s, \"status\": %s, \"error\": %.3e, "
          "\"tolerance\": %.3e, \"median_us\": %.3f, \"min_us\": %.3f, \"max_us\": %.3f, "
          "\"again_us\": %.3f, \"stream_us\": %.3f, \"bytes\": %.0f, \"share_of_copy\": %.4f, "
          "\"launches\": %d, \"pdl\": %s, "
          "\"times_empty\": %.3f, \"bandwidth_bound\": %s, \"l2_defeated\": %s, \"floor_us\": %.3f, "
          "\"floor_launch\": %s, \"share_of_floor\": %.4f, \"two_stage_floor_us\": %.3f}",
          first ? "" : ",", json_quote(kernel_case.name).c_str(), json_quote(kernel_case.shape).c_str(),
          good ? "true" : "false", json_quote(cudaGetErrorName(outcome.status)).c_str(),
          number(outcome.error), kernel_case.tolerance, timing.median_us, timing.min_us, timing.max_us,
          outcome.again.median_us, outcome.stream_us, kernel_case.bytes, share, kernel_case.launches,
          kernel_case.pdl ? "true" : "false", times_empty, kernel_case.bandwidth_bound ? "true" : "false",
          kernel_case.l2_defeated ? "true" : "false", outcome.floor.us,
          json_quote(outcome.floor.launch).c_str(), of_floor, outcome.two_stage.us);
      std::fflush(json);
      first = false;
    }
    // A sticky error (a fault in a kernel) leaves the context unusable: the rest cannot be judged.
    if (outcome.status != cudaSuccess && cudaDeviceSynchronize() != cudaSuccess) {
      std::printf("device lost after %s: remaining cases not run\n", title.c_str());
      break;
    }
    (void)cudaGetLastError();
  }
  if (json != nullptr) {
    std::fprintf(json, "\n  ]\n}\n");
    std::fclose(json);
  }
  (void)cudaStreamDestroy(stream);
  std::printf("\n%d wrong or failed\n", failures);
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace cglint::kernels

int main(int argc, char** argv) {
  cglint::kernels::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool has_value = i + 1 < argc;
    if (argument == "--filter" && has_value) {
      options.filters.emplace_back(argv[++i]);
    } else if (argument == "--json" && has_value) {
      options.json_path = argv[++i];
    } else if (argument == "--commit" && has_value) {
      options.commit = argv[++i];
    } else if (argument == "--replays" && has_value) {
      options.replays = std::max(1, std::atoi(argv[++i]));
    } else if (argument == "--check-only") {
      options.check_only = true;
    } else if (argument == "--time-only") {
      options.time_only = true;
    } else if (argument == "--no-floors") {
      options.floors = false;
    } else if (argument == "--list") {
      options.list = true;
    } else {
      std::fprintf(stderr,
                   "usage: cglint-kernel-bench [--filter TEXT]... [--json FILE] [--commit ID] [--replays N] "
                   "[--check-only | --time-only] [--no-floors] [--list]\n");
      return 2;
    }
  }
  return cglint::kernels::run_bench(options);
}
