// cglint-moe-tune: times the compiled tile variants on published shapes and writes the winners in the form of
// vLLM's fused MoE configuration files.
//
// A file holds one configuration per token count, used for both GEMMs of the layer as vLLM does, so the sum
// of the two times decides. SPLIT_K means split_for(): the GEMM whose k is short takes fewer splits. Every
// candidate is timed in a graph of runs over changing experts, so L2 does not hold the weights.
#include <cuda_runtime.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "kernels/moe/workload.h"
#include "tables/moe_config.h"

namespace cglint::kernels::moe {
namespace {

struct Options {
  std::vector<std::string> presets;
  std::vector<WeightType> types;
  std::vector<int> tokens = {1, 2, 4, 8};
  std::string out_dir;
  std::string log_path;
  int replays = 3;
};

const char* type_name(WeightType type) {
  return type == WeightType::kBf16 ? "bf16" : "fp8";
}

class GraphTimer {
 public:
  cudaError_t create() {
    cudaError_t status = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
    if (status == cudaSuccess) status = cudaEventCreate(&begin_);
    if (status == cudaSuccess) status = cudaEventCreate(&end_);
    return status;
  }
  ~GraphTimer() {
    if (begin_ != nullptr) (void)cudaEventDestroy(begin_);
    if (end_ != nullptr) (void)cudaEventDestroy(end_);
    if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
  }

  // Least time of one run over `replays` replays of a graph of `runs`, microseconds.
  cudaError_t time(GemmWorkload& work, int runs, int replays, double& run_us) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    cudaError_t status = cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal);
    if (status != cudaSuccess) return status;
    for (int i = 0; i < runs && status == cudaSuccess; ++i) status = work.run({stream_, false});
    const cudaError_t ended = cudaStreamEndCapture(stream_, &graph);
    if (status == cudaSuccess) status = ended;
    if (status == cudaSuccess) status = cudaGraphInstantiate(&exec, graph, 0);
    run_us = std::numeric_limits<double>::infinity();
    for (int i = -1; i < replays && status == cudaSuccess; ++i) {
      status = cudaEventRecord(begin_, stream_);
      if (status == cudaSuccess) status = cudaGraphLaunch(exec, stream_);
      if (status == cudaSuccess) status = cudaEventRecord(end_, stream_);
      if (status == cudaSuccess) status = cudaEventSynchronize(end_);
      float elapsed_ms = 0;
      if (status == cudaSuccess) status = cudaEventElapsedTime(&elapsed_ms, begin_, end_);
      if (i >= 0) run_us = std::min(run_us, static_cast<double>(elapsed_ms) * 1e3 / runs);
    }
    if (exec != nullptr) (void)cudaGraphExecDestroy(exec);
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    return status;
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

std::string text(const TileConfig& c) {
  char buffer[96];
  std::snprintf(buffer, sizeof buffer, "{%d, %d, %d, %d, %d, %d, %d}", c.block_m, c.block_n, c.block_k,
                c.group_m, c.split_k, c.num_warps, c.num_stages);
  return buffer;
}

std::vector<TileConfig> candidates(const MoePreset& preset, WeightType type, int tokens, int smem_limit) {
  const double pairs_per_expert = static_cast<double>(tokens) * preset.top_k / preset.experts;
  const bool few = tokens <= 16;
  std::vector<TileConfig> list;
  for (const TileVariant& variant : tile_variants(type)) {
    // Blocks much larger than an expert's rows compute padding; much smaller ones read its weights
    // repeatedly.
    if (variant.block_m > 8 && variant.block_m > 6 * pairs_per_expert) continue;
    if (variant.block_m * 16 < pairs_per_expert) continue;
    for (const int stages : {2, 3, 4, 6}) {
      if (stages > 4 && !few) continue;
      for (const int group : {1, 16}) {
        if (group > 1 && tokens < 256) continue;
        for (const int split : {1, 2, 4, 7, 8, 14}) {
          if (split > 1 && !few) continue;
          const TileConfig config{variant.block_m, variant.block_n,   variant.block_k, group,
                                  split,           variant.num_warps, stages};
          if (is_supported(type, config, smem_limit)) list.push_back(config);
        }
      }
    }
  }
  return list;
}

struct Measured {
  TileConfig config;
  double us = std::numeric_limits<double>::infinity();
};

// vLLM's file name for a shard: E local experts of `intermediate` columns.
std::string file_name(const MoePreset& preset, WeightType type, const char* device) {
  tables::MoeConfigKey key{preset.local_experts, preset.intermediate, tables::moe_config_device(device), "", {}};
  if (type == WeightType::kFp8Block128) {
    key.dtype = "fp8_w8a8";
    key.block_shape = {128, 128};
  }
  return tables::moe_config_file_name(key);
}

tables::MoeTileConfig file_entry(const TileConfig& c) {
  return {c.block_m, c.block_n, c.block_k, c.group_m, c.split_k, c.num_warps, c.num_stages};
}

bool write_file(const std::string& path, const tables::MoeConfigsByTokens& entries) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return false;
  const std::string text = tables::format_moe_config(entries);
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  return (std::fclose(file) == 0) && written;
}

// Tunes one shard; returns a CUDA status.
cudaError_t tune(const Options& options, const MoePreset& preset, WeightType type,
                 const cudaDeviceProp& device, std::FILE* log, GraphTimer& timer) {
  auto w13 = std::make_shared<ExpertWeights>();
  auto w2 = std::make_shared<ExpertWeights>();
  cudaError_t status = w13->allocate(type, preset, ExpertGemm::kW13);
  if (status == cudaSuccess) status = w2->allocate(type, preset, ExpertGemm::kW2);
  if (status == cudaSuccess) status = w13->fill(1);
  if (status == cudaSuccess) status = w2->fill(2);
  const int smem_limit = static_cast<int>(device.sharedMemPerBlockOptin);
  tables::MoeConfigsByTokens entries;
  for (const int tokens : options.tokens) {
    if (status != cudaSuccess) return status;
    GemmWorkload works[2] = {{preset, type, ExpertGemm::kW13, tokens},
                             {preset, type, ExpertGemm::kW2, tokens}};
    status = works[0].prepare(w13);
    if (status == cudaSuccess) status = works[1].prepare(w2);
    const int runs = tokens >= 256 ? 2 : tokens > 16 ? 4 : 16;
    Measured best[2];
    Measured both;
    const auto measure = [&](int gemm, TileConfig config) {
      config.split_k = split_for(config, gemm_k(preset, gemm == 0 ? ExpertGemm::kW13 : ExpertGemm::kW2));
      double us = std::numeric_limits<double>::infinity();
      status = works[gemm].select(config);
      if (status == cudaSuccess) status = timer.time(works[gemm], runs, options.replays, us);
      if (status == cudaSuccess && us < best[gemm].us) best[gemm] = {config, us};
      if (log != nullptr && status == cudaSuccess) {
        std::fprintf(log, "%s %s %d %s %s %.3f\n", preset.name, type_name(type), tokens,
                     gemm == 0 ? "w13" : "w2", text(config).c_str(), us);
      }
      return us;
    };
    double w2_us = 0;
    TileConfig w2_config;
    for (const TileConfig& config : candidates(preset, type, tokens, smem_limit)) {
      if (status != cudaSuccess) return status;
      const double w13_us = measure(0, config);
      // Successive candidates often differ only in a split that W2 does not have.
      TileConfig for_w2 = config;
      for_w2.split_k = split_for(config, preset.intermediate);
      if (!(for_w2 == w2_config)) w2_us = measure(1, config);
      w2_config = for_w2;
      if (w13_us + w2_us < both.us) both = {config, w13_us + w2_us};
    }
    const TileConfig untuned =
        nearest_supported(type, engine_default_config(type, tokens, preset.local_experts), smem_limit);
    const double default_us = measure(0, untuned) + measure(1, untuned);
    if (status != cudaSuccess) return status;
    entries[tokens] = file_entry(both.config);
    std::printf(
        "%-16s %-4s tokens %5d: w13 %8.2f us %5.0f GB/s %-32s w2 %8.2f us %5.0f GB/s %-32s one for both "
        "%8.2f us %-32s default %8.2f us\n",
        preset.name, type_name(type), tokens, best[0].us, works[0].bytes() / best[0].us * 1e-3,
        text(best[0].config).c_str(), best[1].us, works[1].bytes() / best[1].us * 1e-3,
        text(best[1].config).c_str(), both.us, text(both.config).c_str(), default_us);
    std::fflush(stdout);
    if (log != nullptr) std::fflush(log);
  }
  if (!options.out_dir.empty()) {
    const std::string path = options.out_dir + "/" + file_name(preset, type, device.name);
    if (!write_file(path, entries)) {
      std::fprintf(stderr, "cglint-moe-tune: cannot write %s\n", path.c_str());
      return cudaErrorUnknown;
    }
  }
  return status;
}

int run(const Options& options) {
  cudaDeviceProp device{};
  GraphTimer timer;
  if (cudaGetDeviceProperties(&device, 0) != cudaSuccess || timer.create() != cudaSuccess) {
    std::fprintf(stderr, "cglint-moe-tune: no usable GPU\n");
    return 3;
  }
  std::FILE* log = nullptr;
  if (!options.log_path.empty()) {
    log = std::fopen(options.log_path.c_str(), "a");
    if (log == nullptr) {
      std::fprintf(stderr, "cglint-moe-tune: cannot write %s\n", options.log_path.c_str());
      return 2;
    }
  }
  int code = 0;
  for (const std::string& name : options.presets) {
    for (const WeightType type : options.types) {
      const cudaError_t status = tune(options, *find_preset(name.c_str()), type, device, log, timer);
      if (status != cudaSuccess) {
        std::fprintf(stderr, "cglint-moe-tune: %s %s: %s\n", name.c_str(), type_name(type),
                     cudaGetErrorString(status));
        code = 1;
      }
    }
  }
  if (log != nullptr) std::fclose(log);
  return code;
}

}  // namespace
}  // namespace cglint::kernels::moe

int main(int argc, char** argv) {
  using namespace cglint::kernels::moe;
  std::string usage =
      "usage: cglint-moe-tune [--preset NAME]... [--dtype bf16|fp8]... [--tokens N,N,...] [--out DIR] [--log FILE] [--replays N]\n"
      "Times the compiled tiles of the fused MoE kernels on this GPU. --out: the folder that tables go to, named and formed as vLLM's.\n"
      "Exit codes: 0 good, 1 something could not be measured or written, 2 wrong usage, 3 no usable GPU.\npresets:";
  for (const MoePreset& preset : moe_presets()) usage += std::string(" ") + preset.name;
  usage += '\n';
  if (argc == 2 && std::strcmp(argv[1], "--help") == 0) {
    std::fputs(usage.c_str(), stdout);
    return 0;
  }
  Options options;
  bool good = true;
  for (int i = 1; i < argc && good; i += 2) {
    const std::string argument = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : nullptr;
    if (value == nullptr) {
      good = false;
    } else if (argument == "--preset") {
      good = find_preset(value) != nullptr;
      options.presets.emplace_back(value);
    } else if (argument == "--dtype") {
      good = std::strcmp(value, "bf16") == 0 || std::strcmp(value, "fp8") == 0;
      options.types.push_back(std::strcmp(value, "fp8") == 0 ? WeightType::kFp8Block128 : WeightType::kBf16);
    } else if (argument == "--tokens") {
      options.tokens.clear();
      for (const char* at = value; at != nullptr && *at != '\0';) {
        options.tokens.push_back(std::atoi(at));
        good = good && options.tokens.back() > 0;
        at = std::strchr(at, ',');
        if (at != nullptr) ++at;
      }
    } else if (argument == "--out") {
      options.out_dir = value;
    } else if (argument == "--log") {
      options.log_path = value;
    } else if (argument == "--replays") {
      options.replays = std::max(1, std::atoi(value));
    } else {
      good = false;
    }
  }
  if (!good) {
    std::fputs(usage.c_str(), stderr);
    return 2;
  }
  // Asked before minutes of measuring.
  if (!options.out_dir.empty() && access(options.out_dir.c_str(), W_OK | X_OK) != 0) {
    std::fprintf(stderr, "cglint-moe-tune: cannot write to %s: %s\n", options.out_dir.c_str(), std::strerror(errno));
    return 2;
  }
  if (options.presets.empty()) {
    for (const MoePreset& preset : moe_presets()) options.presets.emplace_back(preset.name);
  }
  if (options.types.empty()) options.types = {WeightType::kBf16, WeightType::kFp8Block128};
  return run(options);
}
