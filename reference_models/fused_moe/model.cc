// The mixture-of-experts layers of Kimi K2 in fp8 (w8a8, scales for blocks of 128 x 128), one shard of them, launched
// with the tiles that vLLM takes where it has no tuned file for a shape, or with those of such a file.
#include <cuda_runtime.h>

#include <array>
#include <string>
#include <utility>

#include "fused_moe/configs.h"
#include "kernels/moe/moe_gemm.h"
#include "stack/fault.h"
#include "stack/model.h"
#include "stack/routed_stack.h"
#include "stack/status.h"
#include "tables/moe_config.h"

namespace cglint::models {
const ModelInfo& fused_moe_model();

namespace {

constexpr int kMaxTokens = 8192;
// Of a layer against the reference: the tensor cores add products of fp8 values with few bits, and an activation that lies near the
// middle of two steps of fp8 may be rounded the other way. Weights of the experts 5 % too small give an rms error of 0.05.
constexpr PartError kTolerance = {0.2, 0.035};

constexpr std::array kPresets = {
    PresetInfo{"k2-tp4", "hidden 7168, 384 experts of intermediate 512 (2048 over 4 GPUs), top-8", RoutedStack::kLayers},
    PresetInfo{"k2-ep4", "hidden 7168, 96 of 384 experts of intermediate 2048, top-8 (2 of them local on average)",
               RoutedStack::kLayers},
};
constexpr std::array kVariants = {
    VariantInfo{"default", "tiles as vLLM takes them without a tuned file"},
    VariantInfo{"tuned", "tiles of a tuned file, by the number of tokens (--moe-config, else the ones measured on an H200)"},
};

RoutedShape shape_of(const StackOptions& options) {
  RoutedShape shape;
  shape.type = kernels::moe::WeightType::kFp8Block128;
  shape.hidden = 7168;
  shape.experts = 384;
  shape.top_k = 8;
  shape.scaling = 2.827F;
  const bool by_experts = options.preset == "k2-ep4";
  shape.local_experts = by_experts ? 96 : 384;
  shape.intermediate = by_experts ? 2048 : 512;
  return shape;
}

std::size_t memory_bytes(const StackOptions& options) {
  if (!knows_names(options, kPresets, kVariants) || options.batch < 1 || options.batch > kMaxTokens) return 0;
  const RoutedShape s = shape_of(options);
  // Whatever tiles a table names: partial sums are the largest with few tokens and many splits.
  kernels::moe::TileConfig most_splits = kernels::moe::engine_default_config(s.type, options.batch, s.local_experts);
  if (options.batch <= 16) most_splits.split_k = 14;
  return RoutedStack::persistent_bytes(s, routed_layers(options), options.batch) +
         RoutedStack::transient_bytes(s, shared_tiles(s, most_splits), options.batch) + (std::size_t{64} << 20);
}

class FusedMoe final : public RoutedStack {
 public:
  explicit FusedMoe(const StackOptions& options) : RoutedStack(options, shape_of(options), kTolerance) {}

 protected:
  cudaError_t choose_tiles(int device, RoutedTiles& tiles) override;
};

cudaError_t FusedMoe::choose_tiles(int device, RoutedTiles& tiles) {
  if (memory_bytes(options()) == 0) {
    set_failure("fused_moe: batch must be 1 to " + std::to_string(kMaxTokens));
    return cudaErrorInvalidValue;
  }
  if (options().variant.empty() || options().variant == kVariants[0].name) {
    tiles = shared_tiles(shape(), kernels::moe::engine_default_config(shape().type, options().batch, shape().local_experts));
    return cudaSuccess;
  }
  cudaDeviceProp properties{};
  CGLINT_RETURN_IF_ERROR(cudaGetDeviceProperties(&properties, device));
  const tables::MoeConfigKey key{shape().local_experts,
                                 shape().intermediate,
                                 tables::moe_config_device(properties.name),
                                 "fp8_w8a8",
                                 {kernels::moe::kScaleBlock, kernels::moe::kScaleBlock}};
  const std::string name = tables::moe_config_file_name(key);
  tables::MoeConfigsByTokens configs;
  if (options().moe_config_dir.empty()) {
    const std::string_view text = built_in_moe_config(name);
    if (text.empty()) {
      set_failure("no built-in table " + name + ": write one with cglint-moe-tune and name its folder with --moe-config");
      return cudaErrorFileNotFound;
    }
    base::Result<tables::MoeConfigsByTokens> parsed = tables::parse_moe_config(text);
    if (!parsed) {
      set_failure(name + ": " + parsed.error().to_string());
      return cudaErrorInvalidValue;
    }
    configs = std::move(*parsed);
  } else {
    base::Result<tables::MoeConfigDirectory> directory = tables::MoeConfigDirectory::read(options().moe_config_dir);
    if (!directory) {
      set_failure(directory.error().to_string());
      return cudaErrorInvalidValue;
    }
    const tables::MoeConfigDirectory::File* file = directory->find(key);
    if (file == nullptr) {
      set_failure(options().moe_config_dir + ": no table " + name);
      return cudaErrorFileNotFound;
    }
    configs = file->configs;
  }
  const tables::MoeTileConfig& entry = tables::nearest_moe_config(configs, options().batch)->second;
  tiles = shared_tiles(shape(), {entry.block_m, entry.block_n, entry.block_k, entry.group_m, entry.split_k,
                                 entry.num_warps, entry.num_stages});
  return cudaSuccess;
}

const ModelInfo kInfo = {
    "fused_moe",
    "fp8 mixture-of-experts layers of Kimi K2 with default and with tuned tiles",
    kPresets,
    kVariants,
    0,
    memory_bytes,
    [](const StackOptions& options) -> std::unique_ptr<Model> {
      if (!knows_names(options, kPresets, kVariants)) return nullptr;
      return std::make_unique<FusedMoe>(options);
    },
    fault::kOfRoutedExperts,
};

}  // namespace

const ModelInfo& fused_moe_model() { return kInfo; }

}  // namespace cglint::models
