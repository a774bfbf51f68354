// The mixture-of-experts layers of Kimi K2 in fp8 (w8a8, scales for blocks of 128 x 128), one shard of them, launched
// with the tiles that vLLM takes where it has no tuned file for a shape, or with those of such a file.
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "fused_moe/configs.h"
#include "kernels/attention/norm.h"
#include "kernels/attention/reference.h"
#include "kernels/moe/moe_gemm.h"
#include "stack/embed.h"
#include "stack/host.h"
#include "stack/model.h"
#include "stack/routed_experts.h"
#include "stack/status.h"
#include "tables/moe_config.h"

namespace cglint::models {
const ModelInfo& fused_moe_model();

namespace {

using kernels::bf16;
using kernels::fp8_e4m3;
using kernels::LaunchContext;

// Layers take turns with this many sets of expert weights; each has its own router. A layer reads 88 MB of weights
// for its first token already, so L2 holds nothing of a set when its turn comes again.
constexpr int kExpertSets = 2;
constexpr int kVocabulary = 4096;  // rows of the embedding table, of which a step reads one per token
constexpr int kMaxTokens = 8192;
constexpr float kEpsilon = 1e-6F;
constexpr int kLayers = 60;  // Kimi K2 has 61, the first of them dense

constexpr std::array kPresets = {
    PresetInfo{"k2-tp4", "hidden 7168, 384 experts of intermediate 512 (2048 over 4 GPUs), top-8", kLayers},
    PresetInfo{"k2-ep4", "hidden 7168, 96 of 384 experts of intermediate 2048, top-8 (2 of them local on average)",
               kLayers},
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
int layers_of(const StackOptions& options) { return options.layers > 0 ? options.layers : kLayers; }

std::size_t set_bytes(const RoutedShape& s) {
  return w13_elements(s) + w2_elements(s) + (w13_scales(s) + w2_scales(s)) * sizeof(float);
}
std::size_t router_elements(const RoutedShape& s) {
  return static_cast<std::size_t>(s.experts) * static_cast<std::size_t>(s.hidden);
}
// Transient memory for whatever tiles a table names: partial sums are the largest with few tokens and many splits.
std::size_t transient_bytes(const RoutedShape& s, const RoutedTiles& tiles, int tokens) {
  return routed_transient_bytes(s, tiles, tokens) +
         4 * static_cast<std::size_t>(tokens) * static_cast<std::size_t>(s.hidden) * sizeof(bf16) + (std::size_t{1} << 20);
}

std::size_t memory_bytes(const StackOptions& options) {
  if (!knows_names(options, kPresets, kVariants) || options.batch < 1 || options.batch > kMaxTokens) return 0;
  const RoutedShape s = shape_of(options);
  kernels::moe::TileConfig most_splits = kernels::moe::engine_default_config(s.type, options.batch, s.local_experts);
  if (options.batch <= 16) most_splits.split_k = 14;
  const auto layers = static_cast<std::size_t>(layers_of(options));
  return kExpertSets * set_bytes(s) + layers * (router_elements(s) * sizeof(bf16) + 64 * 1024 +
                                                   static_cast<std::size_t>(options.batch) *
                                                       (static_cast<std::size_t>(s.hidden) * sizeof(bf16) + 64)) +
         static_cast<std::size_t>(kVocabulary) * static_cast<std::size_t>(s.hidden) * sizeof(bf16) +
         transient_bytes(s, shared_tiles(s, most_splits), options.batch) + (std::size_t{64} << 20);
}

class FusedMoe : public Model {
 public:
  explicit FusedMoe(const StackOptions& options)
      : options_(options), shape_(shape_of(options)), layers_(layers_of(options)) {
    if (options_.variant.empty()) options_.variant = kVariants[0].name;
  }

  cudaError_t prepare(Arena& arena) override;
  std::string failure() const override { return failure_; }
  cudaError_t record(StepContext& context) override;
  cudaError_t output(std::vector<std::uint8_t>& bytes) override;
  CheckResult check() override;
  cudaError_t reset() override { return cudaSuccess; }  // a step changes nothing but its output

 private:
  cudaError_t choose_tiles(int device);
  [[nodiscard]] RoutedWeights weights_of(int layer) const;
  [[nodiscard]] const bf16* gamma_of(int layer) const {  // that of the final norm comes after the last layer's
    return gammas_.as<bf16>() + static_cast<std::size_t>(layer) * static_cast<std::size_t>(shape_.hidden);
  }
  [[nodiscard]] const float* bias_of(int layer) const {
    return biases_.as<float>() + static_cast<std::size_t>(layer) * static_cast<std::size_t>(shape_.experts);
  }
  // What enters the experts of a layer, normalised; kept for the check.
  [[nodiscard]] bf16* input_of(int layer) const {
    return inputs_.as<bf16>() + static_cast<std::size_t>(layer) * static_cast<std::size_t>(options_.batch) *
                                    static_cast<std::size_t>(shape_.hidden);
  }
  [[nodiscard]] std::size_t pairs() const {
    return static_cast<std::size_t>(options_.batch) * static_cast<std::size_t>(shape_.top_k);
  }

  StackOptions options_;
  RoutedShape shape_;
  int layers_;
  RoutedTiles tiles_;
  bool pdl_ = false;
  std::string failure_;
  Arena* arena_ = nullptr;
  std::array<Tensor, kExpertSets> w13_, w13_scale_, w2_, w2_scale_;
  Tensor routers_, biases_, gammas_, expert_map_, embedding_, token_ids_, chosen_, inputs_, output_;
};

cudaError_t FusedMoe::choose_tiles(int device) {
  if (options_.variant == "default") {
    tiles_ = shared_tiles(shape_, kernels::moe::engine_default_config(shape_.type, options_.batch, shape_.local_experts));
    return cudaSuccess;
  }
  cudaDeviceProp properties{};
  CGLINT_RETURN_IF_ERROR(cudaGetDeviceProperties(&properties, device));
  const tables::MoeConfigKey key{shape_.local_experts,
                                 shape_.intermediate,
                                 tables::moe_config_device(properties.name),
                                 "fp8_w8a8",
                                 {kernels::moe::kScaleBlock, kernels::moe::kScaleBlock}};
  const std::string name = tables::moe_config_file_name(key);
  tables::MoeConfigsByTokens configs;
  if (options_.moe_config_dir.empty()) {
    const std::string_view text = built_in_moe_config(name);
    if (text.empty()) {
      failure_ = "no built-in table " + name + ": write one with cglint-moe-tune and name its folder with --moe-config";
      return cudaErrorFileNotFound;
    }
    base::Result<tables::MoeConfigsByTokens> parsed = tables::parse_moe_config(text);
    if (!parsed) {
      failure_ = name + ": " + parsed.error().to_string();
      return cudaErrorInvalidValue;
    }
    configs = std::move(*parsed);
  } else {
    base::Result<tables::MoeConfigDirectory> directory = tables::MoeConfigDirectory::read(options_.moe_config_dir);
    if (!directory) {
      failure_ = directory.error().to_string();
      return cudaErrorInvalidValue;
    }
    const tables::MoeConfigDirectory::File* file = directory->find(key);
    if (file == nullptr) {
      failure_ = options_.moe_config_dir + ": no table " + name;
      return cudaErrorFileNotFound;
    }
    configs = file->configs;
  }
  const tables::MoeTileConfig& entry = tables::nearest_moe_config(configs, options_.batch)->second;
  tiles_ = shared_tiles(shape_, {entry.block_m, entry.block_n, entry.block_k, entry.group_m, entry.split_k,
                                 entry.num_warps, entry.num_stages});
  return cudaSuccess;
}

RoutedWeights FusedMoe::weights_of(int layer) const {
  const auto set = static_cast<std::size_t>(layer % kExpertSets);
  RoutedWeights weights;
  weights.router = routers_.as<bf16>() + static_cast<std::size_t>(layer) * router_elements(shape_);
  weights.bias = bias_of(layer);
  weights.w13 = w13_[set].address();
  weights.w13_scale = w13_scale_[set].as<float>();
  weights.w2 = w2_[set].address();
  weights.w2_scale = w2_scale_[set].as<float>();
  weights.expert_map = expert_map_.as<std::int32_t>();
  return weights;
}

cudaError_t FusedMoe::prepare(Arena& arena) {
  arena_ = &arena;
  failure_.clear();
  if (memory_bytes(options_) == 0) {
    failure_ = "fused_moe: batch must be 1 to " + std::to_string(kMaxTokens);
    return cudaErrorInvalidValue;
  }
  int device = 0;
  CGLINT_RETURN_IF_ERROR(cudaGetDevice(&device));
  pdl_ = options_.pdl && kernels::device_supports_pdl(device);
  CGLINT_RETURN_IF_ERROR(choose_tiles(device));

  const auto layers = static_cast<std::size_t>(layers_);
  const auto tokens = static_cast<std::size_t>(options_.batch);
  const auto hidden = static_cast<std::size_t>(shape_.hidden);
  const auto experts = static_cast<std::size_t>(shape_.experts);
  for (std::size_t set = 0; set < kExpertSets; ++set) {
    CGLINT_RETURN_IF_ERROR(arena.persistent(w13_elements(shape_), w13_[set]));
    CGLINT_RETURN_IF_ERROR(arena.persistent(w13_scales(shape_) * sizeof(float), w13_scale_[set]));
    CGLINT_RETURN_IF_ERROR(arena.persistent(w2_elements(shape_), w2_[set]));
    CGLINT_RETURN_IF_ERROR(arena.persistent(w2_scales(shape_) * sizeof(float), w2_scale_[set]));
  }
  CGLINT_RETURN_IF_ERROR(arena.persistent(layers * router_elements(shape_) * sizeof(bf16), routers_));
  CGLINT_RETURN_IF_ERROR(arena.persistent(layers * experts * sizeof(float), biases_));
  CGLINT_RETURN_IF_ERROR(arena.persistent((layers + 1) * hidden * sizeof(bf16), gammas_));
  CGLINT_RETURN_IF_ERROR(arena.persistent(kVocabulary * hidden * sizeof(bf16), embedding_));
  CGLINT_RETURN_IF_ERROR(arena.persistent(tokens * sizeof(std::int32_t), token_ids_));
  CGLINT_RETURN_IF_ERROR(arena.persistent(layers * pairs() * sizeof(std::int32_t), chosen_));
  CGLINT_RETURN_IF_ERROR(arena.persistent(layers * tokens * hidden * sizeof(bf16), inputs_));
  CGLINT_RETURN_IF_ERROR(arena.persistent(tokens * hidden * sizeof(bf16), output_));
  CGLINT_RETURN_IF_ERROR(arena.reserve_transient(transient_bytes(shape_, tiles_, options_.batch)));

  // Scaled so that a row of unit variance gives one of about unit variance, and router scores spread over the
  // sigmoid's slope.
  const std::uint64_t seed = options_.seed * 10'000;
  for (std::size_t set = 0; set < kExpertSets; ++set) {
    const auto fill = [&](Tensor& weights, Tensor& scales, std::size_t count, std::size_t scale_count, int k,
                          std::uint64_t salt) {
      const float unit = std::sqrt(3.0F / static_cast<float>(k)) / 4.0F;
      const cudaError_t status = kernels::fill_random(weights.as<fp8_e4m3>(), count, seed + salt, 4.0F);
      return status != cudaSuccess ? status
                                   : kernels::fill_random(scales.as<float>(), scale_count, seed + salt + 1, unit / 4, unit);
    };
    CGLINT_RETURN_IF_ERROR(
        fill(w13_[set], w13_scale_[set], w13_elements(shape_), w13_scales(shape_), shape_.hidden, 4 * set));
    CGLINT_RETURN_IF_ERROR(
        fill(w2_[set], w2_scale_[set], w2_elements(shape_), w2_scales(shape_), shape_.intermediate, 4 * set + 2));
  }
  CGLINT_RETURN_IF_ERROR(kernels::fill_random(routers_.as<bf16>(), layers * router_elements(shape_), seed + 100, 0.05F));
  CGLINT_RETURN_IF_ERROR(kernels::fill_random(biases_.as<float>(), layers * experts, seed + 101, 0.1F));
  CGLINT_RETURN_IF_ERROR(kernels::fill_random(gammas_.as<bf16>(), (layers + 1) * hidden, seed + 102, 0.1F, 1.0F));
  CGLINT_RETURN_IF_ERROR(kernels::fill_random(embedding_.as<bf16>(), kVocabulary * hidden, seed + 103, 1.7F));
  CGLINT_RETURN_IF_ERROR(kernels::fill_random_int(token_ids_.as<std::int32_t>(), tokens, seed + 104, 0, kVocabulary));
  if (shape_.local_experts != shape_.experts) {
    std::vector<std::int32_t> map(experts, -1);
    for (int e = 0; e < shape_.local_experts; ++e) map[static_cast<std::size_t>(e)] = e;
    CGLINT_RETURN_IF_ERROR(arena.persistent(map.size() * sizeof(std::int32_t), expert_map_));
    CGLINT_RETURN_IF_ERROR(
        cudaMemcpy(expert_map_.address(), map.data(), map.size() * sizeof(std::int32_t), cudaMemcpyHostToDevice));
  }
  return cudaDeviceSynchronize();
}

cudaError_t FusedMoe::record(StepContext& context) {
  const LaunchContext ctx{context.main, pdl_};
  const int tokens = options_.batch;
  const int hidden = shape_.hidden;
  const std::size_t row_bytes = static_cast<std::size_t>(tokens) * static_cast<std::size_t>(hidden) * sizeof(bf16);
  Tensor residual, y;
  CGLINT_RETURN_IF_ERROR(arena_->transient(row_bytes, residual));
  CGLINT_RETURN_IF_ERROR(
      embed_tokens(ctx, token_ids_.as<std::int32_t>(), embedding_.as<bf16>(), residual.as<bf16>(), tokens, hidden));
  for (int layer = 0; layer < layers_; ++layer) {
    const Range range("layer", layer);
    bf16* const x = input_of(layer);
    if (layer == 0) {
      CGLINT_RETURN_IF_ERROR(kernels::rms_norm(ctx, residual.as<bf16>(), hidden, gamma_of(layer), x, hidden,
                                               tokens, hidden, kEpsilon));
    } else {
      CGLINT_RETURN_IF_ERROR(kernels::add_rms_norm(ctx, y.as<bf16>(), hidden, residual.as<bf16>(), gamma_of(layer),
                                                   x, hidden, tokens, hidden, kEpsilon));
    }
    const Range moe("moe");
    CGLINT_RETURN_IF_ERROR(arena_->transient(row_bytes, y));
    RoutedCall call;
    call.x = x;
    call.tokens = tokens;
    call.ids = chosen_.as<std::int32_t>() + static_cast<std::size_t>(layer) * pairs();
    call.out = y.as<bf16>();
    CGLINT_RETURN_IF_ERROR(enqueue_routed_experts(ctx, *arena_, shape_, tiles_, weights_of(layer), call));
  }
  return kernels::add_rms_norm(ctx, y.as<bf16>(), hidden, residual.as<bf16>(), gamma_of(layers_), output_.as<bf16>(),
                               hidden, tokens, hidden, kEpsilon);
}

cudaError_t FusedMoe::output(std::vector<std::uint8_t>& bytes) {
  CGLINT_RETURN_IF_ERROR(cudaDeviceSynchronize());
  bytes.resize(output_.size_bytes());
  return cudaMemcpy(bytes.data(), output_.address(), bytes.size(), cudaMemcpyDeviceToHost);
}

// In fp32 from the embedding on, rounded where the step stores a tensor: to bf16 and, in front of the experts' GEMMs, to
// fp8.
CheckResult FusedMoe::check() {
  CheckResult result;
  // Where rounding to bf16 moves a value across a step of fp8, it changes by an eighth at most. Over layers that adds up
  // like noise.
  const double depth = std::sqrt(static_cast<double>(layers_));
  result.tolerance = 0.1 * depth;
  constexpr double kScoreTolerance = 0.01;  // of a choice that differs
  result.detail = "a CUDA call failed";
  const auto tokens = static_cast<std::size_t>(options_.batch);
  const auto hidden = static_cast<std::size_t>(shape_.hidden);
  std::vector<std::int32_t> token_ids(tokens);
  std::vector<std::int32_t> chosen(static_cast<std::size_t>(layers_) * pairs());
  if (cudaDeviceSynchronize() != cudaSuccess ||
      cudaMemcpy(token_ids.data(), token_ids_.address(), token_ids_.size_bytes(), cudaMemcpyDeviceToHost) != cudaSuccess ||
      cudaMemcpy(chosen.data(), chosen_.address(), chosen_.size_bytes(), cudaMemcpyDeviceToHost) != cudaSuccess)
    return result;
  std::vector<float> residual;
  for (const std::int32_t id : token_ids) {
    const std::vector<float> row = download_floats(embedding_.as<bf16>() + static_cast<std::size_t>(id) * hidden, hidden);
    residual.insert(residual.end(), row.begin(), row.end());
  }
  if (residual.size() != tokens * hidden) return result;
  for (int layer = 0; layer <= layers_; ++layer) {
    const std::vector<float> gamma = download_floats(gamma_of(layer), hidden);
    if (gamma.empty()) return result;
    std::vector<float> x =
        rounded_to_bf16(kernels::reference::rms_norm(residual, gamma, shape_.hidden, kEpsilon));
    // From here on with the step's own values, so that a small difference does not grow from layer to layer.
    std::vector<float> own = download_floats(layer == layers_ ? output_.as<bf16>() : input_of(layer), tokens * hidden);
    result.error = std::max(result.error, kernels::max_scaled_error(own, x));
    if (layer == layers_ || own.empty()) break;
    x = std::move(own);
    const std::vector<float> bias = download_floats(bias_of(layer), static_cast<std::size_t>(shape_.experts));
    const auto first = chosen.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(layer) * pairs());
    const RoutedReference routed =
        reference_routed_experts(shape_, weights_of(layer), bias, x, options_.batch,
                                 std::vector<std::int32_t>(first, first + static_cast<std::ptrdiff_t>(pairs())));
    if (routed.out.empty() || bias.empty()) return result;
    if (!(routed.shortfall <= kScoreTolerance)) {
      result.error = routed.shortfall;
      result.detail = "layer " + std::to_string(layer) + " chose an expert whose reference score is lower by " +
                      std::to_string(routed.shortfall) + " than that of the best eight";
      return result;
    }
    add_to(residual, rounded_to_bf16(routed.out));
    residual = rounded_to_bf16(std::move(residual));
  }
  result.ok = result.error <= result.tolerance;
  result.detail = "inputs of all layers' experts and the output, " + std::to_string(layers_) + " layers";
  return result;
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
};

}  // namespace

const ModelInfo& fused_moe_model() { return kInfo; }

}  // namespace cglint::models
