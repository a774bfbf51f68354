// What stands before the quantised products of a decode step of Kimi K2 in NVFP4: buffers for block scales that are
// filled with zeros before the quantiser writes them, and a router bias that is cast to bf16 in every layer of every
// step. vllm-project/vllm#45452 drops both where they are not needed.
//
// Layers are mixtures of experts. The shared expert is in NVFP4, the routed experts in bf16: without tensor cores for
// NVFP4 (sm_90) the format is converted in software, which the few weights of one expert can bear.
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "kernels/attention/norm.h"
#include "kernels/attention/reference.h"
#include "kernels/moe/activation.h"
#include "kernels/moe/nvfp4.h"
#include "nvfp4_preamble/reference.h"
#include "stack/embed.h"
#include "stack/host.h"
#include "stack/model.h"
#include "stack/routed_experts.h"
#include "stack/status.h"

namespace cglint::models {
const ModelInfo& nvfp4_preamble_model();

namespace {

using kernels::bf16;
using kernels::LaunchContext;
using kernels::moe::scale_bytes;
using kernels::moe::ScaleLayout;

// Layers take turns with this many sets of routed experts; routers and shared experts are each layer's own. A layer
// reads 88 MB (k2-tp8) or 176 MB of experts for its first token, so L2 holds nothing of a set at its next turn.
constexpr int kExpertSets = 2;
constexpr int kVocabulary = 4096;
constexpr int kMaxTokens = 1024;
constexpr int kPaddedRows = 128;  // of a tile of scales
constexpr float kEpsilon = 1e-6F;
constexpr int kLayers = 60;  // Kimi K2 has 61, the first of them dense
constexpr float kScaleRange = 448.0F * 6.0F;

constexpr std::array kPresets = {
    PresetInfo{"k2-tp4", "hidden 7168, 384 experts of intermediate 512, top-8, shared expert 512", kLayers},
    PresetInfo{"k2-tp8", "hidden 7168, 384 experts of intermediate 256, top-8, shared expert 256", kLayers},
};
constexpr std::array kVariants = {
    VariantInfo{"fill_and_cast", "scale buffers zero-filled before each quantisation, router bias cast in each layer"},
    VariantInfo{"elided", "no fill (the quantiser writes all of a row-major scale buffer), bias cast once at load", false,
                "fill_and_cast"},
    VariantInfo{"padding_read",
                "tiled scales whose padding the product reads: the fill is needed; bias cast once at load"},
};

RoutedShape shape_of(const StackOptions& options) {
  RoutedShape shape;
  shape.type = kernels::moe::WeightType::kBf16;
  shape.hidden = 7168;
  shape.experts = shape.local_experts = 384;
  shape.top_k = 8;
  shape.scaling = 2.827F;
  shape.intermediate = options.preset == "k2-tp8" ? 256 : 512;
  return shape;
}
int layers_of(const StackOptions& options) { return options.layers > 0 ? options.layers : kLayers; }
int padded(int tokens) { return (tokens + kPaddedRows - 1) / kPaddedRows * kPaddedRows; }

std::size_t elements(int a, int b) { return static_cast<std::size_t>(a) * static_cast<std::size_t>(b); }

// Sizes of one layer's shared expert, bytes.
struct SharedSizes {
  std::size_t w13, w13_scales, w2, w2_scales;
  [[nodiscard]] std::size_t all() const { return w13 + w13_scales + w2 + w2_scales; }
};
SharedSizes shared_sizes(const RoutedShape& s) {
  return {elements(2 * s.intermediate, s.hidden) / 2, scale_bytes(ScaleLayout::kTiled, 2 * s.intermediate, s.hidden),
          elements(s.hidden, s.intermediate) / 2, scale_bytes(ScaleLayout::kTiled, s.hidden, s.intermediate)};
}

std::size_t transient_bytes(const RoutedShape& s, int tokens) {
  const int rows = padded(tokens);
  return routed_transient_bytes(s, tuned_tiles(s, tokens), tokens) +
         elements(rows, s.hidden) * (5 * sizeof(bf16) + 1) + elements(rows, s.intermediate) * (4 * sizeof(bf16)) +
         (std::size_t{1} << 20);
}

std::size_t memory_bytes(const StackOptions& options) {
  if (!knows_names(options, kPresets, kVariants) || options.batch < 1 || options.batch > kMaxTokens) return 0;
  const RoutedShape s = shape_of(options);
  const auto layers = static_cast<std::size_t>(layers_of(options));
  return kExpertSets * (w13_elements(s) + w2_elements(s)) * sizeof(bf16) +
         layers * (elements(s.experts, s.hidden) * sizeof(bf16) + shared_sizes(s).all() + 64 * 1024 +
                   elements(options.batch, s.hidden) * sizeof(bf16) + 64 * static_cast<std::size_t>(options.batch)) +
         elements(kVocabulary, s.hidden) * sizeof(bf16) + transient_bytes(s, options.batch) + (std::size_t{128} << 20);
}

// The global scales that calibration would have given, on the device: one set for all layers.
struct GlobalScales {
  float x, activation, w13, w2, alpha13, alpha2;
};

class Nvfp4Preamble : public Model {
 public:
  explicit Nvfp4Preamble(const StackOptions& options)
      : options_(options), shape_(shape_of(options)), layers_(layers_of(options)) {
    if (options_.variant.empty()) options_.variant = kVariants[0].name;
    fills_ = options_.variant != "elided";
    casts_ = options_.variant == "fill_and_cast";
    reads_padding_ = options_.variant == "padding_read";
  }

  cudaError_t prepare(Arena& arena) override;
  std::string failure() const override { return failure_; }
  cudaError_t record(StepContext& context) override;
  cudaError_t output(std::vector<std::uint8_t>& bytes) override;
  CheckResult check() override;
  cudaError_t reset() override { return cudaSuccess; }  // a step changes nothing but its output

 private:
  cudaError_t fill_weights();
  cudaError_t shared_expert(const LaunchContext& ctx, int layer, const bf16* x, bf16* out);
  [[nodiscard]] RoutedWeights weights_of(int layer) const;
  [[nodiscard]] Nvfp4Expert expert_of(int layer) const;
  [[nodiscard]] const bf16* gamma_of(int layer) const {  // that of the final norm comes after the last layer's
    return gammas_.as<bf16>() + elements(layer, shape_.hidden);
  }
  [[nodiscard]] const float* bias_of(int layer) const { return biases_.as<float>() + elements(layer, shape_.experts); }
  [[nodiscard]] bf16* hoisted_bias_of(int layer) const {
    return hoisted_biases_.as<bf16>() + elements(layer, shape_.experts);
  }
  // What enters the experts of a layer, normalised; kept for the check.
  [[nodiscard]] bf16* input_of(int layer) const {
    return inputs_.as<bf16>() + static_cast<std::size_t>(layer) * static_cast<std::size_t>(options_.batch) *
                                    static_cast<std::size_t>(shape_.hidden);
  }
  [[nodiscard]] std::size_t pairs() const { return elements(options_.batch, shape_.top_k); }
  [[nodiscard]] const float* scale_on_device(float GlobalScales::* which) const {
    return &(device_scales_.as<GlobalScales>()->*which);
  }

  StackOptions options_;
  RoutedShape shape_;
  int layers_;
  bool fills_, casts_, reads_padding_;
  RoutedTiles tiles_;
  GlobalScales scales_{};
  bool pdl_ = false;
  std::string failure_;
  Arena* arena_ = nullptr;
  std::array<Tensor, kExpertSets> w13_, w2_;
  Tensor shared_, routers_, biases_, hoisted_biases_, gammas_, embedding_, token_ids_, chosen_, inputs_, device_scales_, output_;
};

RoutedWeights Nvfp4Preamble::weights_of(int layer) const {
  const auto set = static_cast<std::size_t>(layer % kExpertSets);
  RoutedWeights weights;
  weights.router = routers_.as<bf16>() + elements(layer, shape_.experts) * static_cast<std::size_t>(shape_.hidden);
  weights.bias_bf16 = hoisted_bias_of(layer);
  weights.w13 = w13_[set].address();
  weights.w2 = w2_[set].address();
  return weights;
}

Nvfp4Expert Nvfp4Preamble::expert_of(int layer) const {
  const SharedSizes sizes = shared_sizes(shape_);
  const auto* first = shared_.as<std::uint8_t>() + static_cast<std::size_t>(layer) * sizes.all();
  Nvfp4Expert expert;
  expert.w13 = first;
  expert.w13_scales = expert.w13 + sizes.w13;
  expert.w2 = expert.w13_scales + sizes.w13_scales;
  expert.w2_scales = expert.w2 + sizes.w2;
  expert.w13_global_scale = scales_.w13;
  expert.w2_global_scale = scales_.w2;
  expert.x_global_scale = scales_.x;
  expert.activation_global_scale = reads_padding_ ? 0 : scales_.activation;
  expert.hidden = shape_.hidden;
  expert.intermediate = shape_.intermediate;
  return expert;
}

cudaError_t Nvfp4Preamble::prepare(Arena& arena) {
  arena_ = &arena;
  failure_.clear();
  if (memory_bytes(options_) == 0) {
    failure_ = "nvfp4_preamble: batch must be 1 to " + std::to_string(kMaxTokens);
    return cudaErrorInvalidValue;
  }
  if (!options_.moe_config_dir.empty()) {
    failure_ = "nvfp4_preamble: takes no tile tables";
    return cudaErrorInvalidValue;
  }
  int device = 0;
  CGLINT_RETURN_IF_ERROR(cudaGetDevice(&device));
  pdl_ = options_.pdl && kernels::device_supports_pdl(device);
  tiles_ = tuned_tiles(shape_, options_.batch);

  const auto layers = static_cast<std::size_t>(layers_);
  const auto tokens = static_cast<std::size_t>(options_.batch);
  const auto hidden = static_cast<std::size_t>(shape_.hidden);
  for (std::size_t set = 0; set < kExpertSets; ++set) {
    CGLINT_RETURN_IF_ERROR(arena.persistent(w13_elements(shape_) * sizeof(bf16), w13_[set]));
    CGLINT_RETURN_IF_ERROR(arena.persistent(w2_elements(shape_) * sizeof(bf16), w2_[set]));
  }
  CGLINT_RETURN_IF_ERROR(arena.persistent(layers * shared_sizes(shape_).all(), shared_));
  CGLINT_RETURN_IF_ERROR(arena.persistent(layers * elements(shape_.experts, shape_.hidden) * sizeof(bf16), routers_));
  CGLINT_RETURN_IF_ERROR(arena.persistent(elements(layers_, shape_.experts) * sizeof(float), biases_));
  CGLINT_RETURN_IF_ERROR(arena.persistent(elements(layers_, shape_.experts) * sizeof(bf16), hoisted_biases_));
  CGLINT_RETURN_IF_ERROR(arena.persistent((layers + 1) * hidden * sizeof(bf16), gammas_));
  CGLINT_RETURN_IF_ERROR(arena.persistent(elements(kVocabulary, shape_.hidden) * sizeof(bf16), embedding_));
  CGLINT_RETURN_IF_ERROR(arena.persistent(tokens * sizeof(std::int32_t), token_ids_));
  CGLINT_RETURN_IF_ERROR(arena.persistent(layers * pairs() * sizeof(std::int32_t), chosen_));
  CGLINT_RETURN_IF_ERROR(arena.persistent(layers * tokens * hidden * sizeof(bf16), inputs_));
  CGLINT_RETURN_IF_ERROR(arena.persistent(sizeof(GlobalScales), device_scales_));
  CGLINT_RETURN_IF_ERROR(arena.persistent(tokens * hidden * sizeof(bf16), output_));
  CGLINT_RETURN_IF_ERROR(arena.reserve_transient(transient_bytes(shape_, options_.batch)));
  CGLINT_RETURN_IF_ERROR(fill_weights());
  return cudaDeviceSynchronize();
}

// Scaled so that a row of unit variance gives one of about unit variance, and router scores spread over the sigmoid's
// slope.
cudaError_t Nvfp4Preamble::fill_weights() {
  const std::uint64_t seed = options_.seed * 10'000;
  const auto unit = [](int k) { return std::sqrt(3.0F / static_cast<float>(k)); };
  for (std::size_t set = 0; set < kExpertSets; ++set) {
    CGLINT_RETURN_IF_ERROR(
        kernels::fill_random(w13_[set].as<bf16>(), w13_elements(shape_), seed + 2 * set, unit(shape_.hidden)));
    CGLINT_RETURN_IF_ERROR(
        kernels::fill_random(w2_[set].as<bf16>(), w2_elements(shape_), seed + 2 * set + 1, unit(shape_.intermediate)));
  }
  const auto experts = static_cast<std::size_t>(shape_.experts);
  const auto hidden = static_cast<std::size_t>(shape_.hidden);
  const auto layers = static_cast<std::size_t>(layers_);
  CGLINT_RETURN_IF_ERROR(kernels::fill_random(routers_.as<bf16>(), layers * experts * hidden, seed + 100, 0.05F));
  CGLINT_RETURN_IF_ERROR(kernels::fill_random(biases_.as<float>(), layers * experts, seed + 101, 0.1F));
  CGLINT_RETURN_IF_ERROR(kernels::fill_random(gammas_.as<bf16>(), (layers + 1) * hidden, seed + 102, 0.1F, 1.0F));
  CGLINT_RETURN_IF_ERROR(kernels::fill_random(embedding_.as<bf16>(), kVocabulary * hidden, seed + 103, 1.7F));
  CGLINT_RETURN_IF_ERROR(kernels::fill_random_int(token_ids_.as<std::int32_t>(), static_cast<std::size_t>(options_.batch),
                                                  seed + 104, 0, kVocabulary));
  CGLINT_RETURN_IF_ERROR(kernels::moe::launch_cast_bf16({}, biases_.as<float>(), hoisted_biases_.as<bf16>(),
                                                        layers * experts));

  // Weights: all of the range. Activations: normalised rows reach about 6, products of two about 16.
  scales_.x = kScaleRange / 6;
  scales_.activation = kScaleRange / 16;
  scales_.w13 = kScaleRange / unit(shape_.hidden);
  scales_.w2 = kScaleRange / unit(shape_.intermediate);
  scales_.alpha13 = 1 / (scales_.x * scales_.w13);
  scales_.alpha2 = 1 / (scales_.activation * scales_.w2);
  CGLINT_RETURN_IF_ERROR(cudaMemcpy(device_scales_.address(), &scales_, sizeof scales_, cudaMemcpyHostToDevice));
  Tensor wide;
  CGLINT_RETURN_IF_ERROR(arena_->persistent(elements(2 * shape_.intermediate, shape_.hidden) * sizeof(bf16), wide));
  for (int layer = 0; layer < layers_; ++layer) {
    const Nvfp4Expert expert = expert_of(layer);
    const auto quantise = [&](int n, int k, const std::uint8_t* q, const std::uint8_t* scales, const float* global_scale,
                              std::uint64_t salt) {
      const cudaError_t status = kernels::fill_random(wide.as<bf16>(), elements(n, k),
                                                      seed + 200 + 2 * static_cast<std::uint64_t>(layer) + salt, unit(k));
      if (status != cudaSuccess) return status;
      kernels::moe::QuantizeNvfp4Args args;
      args.x = wide.as<bf16>();
      args.rows = n;
      args.columns = k;
      args.global_scale = global_scale;
      args.layout = ScaleLayout::kTiled;
      args.zero_padding = true;
      args.q = const_cast<std::uint8_t*>(q);
      args.scales = const_cast<std::uint8_t*>(scales);
      return kernels::moe::launch_quantize_nvfp4({}, args);
    };
    CGLINT_RETURN_IF_ERROR(quantise(2 * shape_.intermediate, shape_.hidden, expert.w13, expert.w13_scales,
                                    scale_on_device(&GlobalScales::w13), 0));
    CGLINT_RETURN_IF_ERROR(quantise(shape_.hidden, shape_.intermediate, expert.w2, expert.w2_scales,
                                    scale_on_device(&GlobalScales::w2), 1));
  }
  return cudaDeviceSynchronize();  // before `wide` goes
}

// Quantise, gate_up, SiLU-mul, quantise, down.
cudaError_t Nvfp4Preamble::shared_expert(const LaunchContext& ctx, int layer, const bf16* x, bf16* out) {
  using namespace kernels::moe;
  const Range range("shared_expert");
  const Nvfp4Expert expert = expert_of(layer);
  const int tokens = options_.batch;
  const int rows = reads_padding_ ? padded(tokens) : tokens;
  const int width = shape_.intermediate;
  const auto take = [&](Tensor& tensor, std::size_t bytes) { return arena_->transient(bytes, tensor); };

  Tensor q, scales, gate_up;
  const ScaleLayout layout = reads_padding_ ? ScaleLayout::kTiled : ScaleLayout::kRowMajor;
  CGLINT_RETURN_IF_ERROR(take(q, elements(rows, shape_.hidden) / 2));
  CGLINT_RETURN_IF_ERROR(take(scales, scale_bytes(layout, tokens, shape_.hidden)));
  if (fills_) CGLINT_RETURN_IF_ERROR(launch_zero_fill(ctx, scales.address(), scales.size_bytes()));
  QuantizeNvfp4Args quantise;
  quantise.x = x;
  quantise.rows = tokens;
  quantise.columns = shape_.hidden;
  quantise.global_scale = scale_on_device(&GlobalScales::x);
  quantise.layout = layout;
  quantise.q = q.as<std::uint8_t>();
  quantise.scales = scales.as<std::uint8_t>();
  CGLINT_RETURN_IF_ERROR(launch_quantize_nvfp4(ctx, quantise));
  CGLINT_RETURN_IF_ERROR(take(gate_up, elements(rows, 2 * width) * sizeof(bf16)));
  Nvfp4GemmArgs gemm;
  gemm.x = q.as<std::uint8_t>();
  gemm.x_scales = scales.as<std::uint8_t>();
  gemm.x_layout = layout;
  gemm.w = expert.w13;
  gemm.w_scales = expert.w13_scales;
  gemm.alpha = scale_on_device(&GlobalScales::alpha13);
  gemm.rows = tokens;
  gemm.n = 2 * width;
  gemm.k = shape_.hidden;
  gemm.reads_padding = reads_padding_;
  gemm.out = gate_up.as<bf16>();
  CGLINT_RETURN_IF_ERROR(launch_nvfp4_gemm(ctx, gemm));
  q.release();
  scales.release();

  Tensor activated;
  CGLINT_RETURN_IF_ERROR(take(activated, elements(rows, width) * sizeof(bf16)));
  SiluMulArgs silu;
  silu.gate_up.rows = gate_up.as<bf16>();
  silu.pairs = rows;
  silu.intermediate = width;
  silu.out = activated.as<bf16>();
  CGLINT_RETURN_IF_ERROR(launch_silu_mul(ctx, silu));
  gate_up.release();

  quantise.global_scale = scale_on_device(&GlobalScales::activation);
  gemm.alpha = scale_on_device(&GlobalScales::alpha2);
  Tensor dynamic_scale;
  if (reads_padding_) {
    // A scale for the whole tensor: it looks at the padding rows too.
    CGLINT_RETURN_IF_ERROR(take(dynamic_scale, 2 * sizeof(float)));
    Nvfp4ScaleArgs largest;
    largest.x = activated.as<bf16>();
    largest.count = static_cast<std::int64_t>(elements(rows, width));
    largest.other_scale = scale_on_device(&GlobalScales::w2);
    largest.global_scale = dynamic_scale.as<float>();
    largest.alpha = dynamic_scale.as<float>() + 1;
    CGLINT_RETURN_IF_ERROR(launch_nvfp4_global_scale(ctx, largest));
    quantise.global_scale = largest.global_scale;
    gemm.alpha = largest.alpha;
  }
  CGLINT_RETURN_IF_ERROR(take(q, elements(tokens, width) / 2));
  CGLINT_RETURN_IF_ERROR(take(scales, scale_bytes(ScaleLayout::kRowMajor, tokens, width)));
  // Row-major scales have no padding: here nobody needs the fill.
  if (fills_ && !reads_padding_) CGLINT_RETURN_IF_ERROR(launch_zero_fill(ctx, scales.address(), scales.size_bytes()));
  quantise.x = activated.as<bf16>();
  quantise.columns = width;
  quantise.layout = ScaleLayout::kRowMajor;
  quantise.q = q.as<std::uint8_t>();
  quantise.scales = scales.as<std::uint8_t>();
  CGLINT_RETURN_IF_ERROR(launch_quantize_nvfp4(ctx, quantise));
  gemm.x = q.as<std::uint8_t>();
  gemm.x_scales = scales.as<std::uint8_t>();
  gemm.x_layout = ScaleLayout::kRowMajor;
  gemm.w = expert.w2;
  gemm.w_scales = expert.w2_scales;
  gemm.n = shape_.hidden;
  gemm.k = width;
  gemm.reads_padding = false;
  gemm.out = out;
  return launch_nvfp4_gemm(ctx, gemm);
}

cudaError_t Nvfp4Preamble::record(StepContext& context) {
  const LaunchContext ctx{context.main, pdl_};
  const int tokens = options_.batch;
  const int hidden = shape_.hidden;
  const std::size_t row_bytes = elements(tokens, hidden) * sizeof(bf16);
  Tensor residual, y;
  CGLINT_RETURN_IF_ERROR(arena_->transient(row_bytes, residual));
  CGLINT_RETURN_IF_ERROR(
      embed_tokens(ctx, token_ids_.as<std::int32_t>(), embedding_.as<bf16>(), residual.as<bf16>(), tokens, hidden));
  for (int layer = 0; layer < layers_; ++layer) {
    const Range range("layer", layer);
    Tensor shared, bias;
    bf16* const x = input_of(layer);
    if (layer == 0) {
      CGLINT_RETURN_IF_ERROR(kernels::rms_norm(ctx, residual.as<bf16>(), hidden, gamma_of(layer), x, hidden,
                                               tokens, hidden, kEpsilon));
    } else {
      CGLINT_RETURN_IF_ERROR(kernels::add_rms_norm(ctx, y.as<bf16>(), hidden, residual.as<bf16>(), gamma_of(layer),
                                                   x, hidden, tokens, hidden, kEpsilon));
    }
    const Range moe("moe");
    CGLINT_RETURN_IF_ERROR(arena_->transient(row_bytes, shared));
    CGLINT_RETURN_IF_ERROR(shared_expert(ctx, layer, x, shared.as<bf16>()));
    RoutedWeights weights = weights_of(layer);
    if (casts_) {
      const auto experts = static_cast<std::size_t>(shape_.experts);
      CGLINT_RETURN_IF_ERROR(arena_->transient(experts * sizeof(bf16), bias));
      CGLINT_RETURN_IF_ERROR(kernels::moe::launch_cast_bf16(ctx, bias_of(layer), bias.as<bf16>(), experts));
      weights.bias_bf16 = bias.as<bf16>();
    }
    CGLINT_RETURN_IF_ERROR(arena_->transient(row_bytes, y));
    RoutedCall call;
    call.x = x;
    call.tokens = tokens;
    call.ids = chosen_.as<std::int32_t>() + static_cast<std::size_t>(layer) * pairs();
    call.shared = shared.as<bf16>();
    call.out = y.as<bf16>();
    CGLINT_RETURN_IF_ERROR(enqueue_routed_experts(ctx, *arena_, shape_, tiles_, weights, call));
  }
  return kernels::add_rms_norm(ctx, y.as<bf16>(), hidden, residual.as<bf16>(), gamma_of(layers_), output_.as<bf16>(),
                               hidden, tokens, hidden, kEpsilon);
}

cudaError_t Nvfp4Preamble::output(std::vector<std::uint8_t>& bytes) {
  CGLINT_RETURN_IF_ERROR(cudaDeviceSynchronize());
  bytes.resize(output_.size_bytes());
  return cudaMemcpy(bytes.data(), output_.address(), bytes.size(), cudaMemcpyDeviceToHost);
}

// In fp32 from the embedding on, rounded to bf16 where the step stores a tensor: the shared expert's operands are rounded
// to NVFP4 after that, and a small difference before it can become a large one.
CheckResult Nvfp4Preamble::check() {
  CheckResult result;
  // A value of NVFP4 that rounds the other way is off by up to a third, which few do. Over layers that adds up like noise.
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
    const std::vector<float> row = download_floats(embedding_.as<bf16>() + elements(id, shape_.hidden), hidden);
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
    const std::vector<float> shared = reference_nvfp4_expert(expert_of(layer), x, options_.batch);
    std::vector<float> bias = download_floats(bias_of(layer), static_cast<std::size_t>(shape_.experts));
    for (float& value : bias) value = static_cast<float>(bf16(value));
    const auto first = chosen.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(layer) * pairs());
    const RoutedReference routed =
        reference_routed_experts(shape_, weights_of(layer), bias, x, options_.batch,
                                 std::vector<std::int32_t>(first, first + static_cast<std::ptrdiff_t>(pairs())));
    if (routed.out.empty() || shared.empty() || bias.empty()) return result;
    if (!(routed.shortfall <= kScoreTolerance)) {
      result.error = routed.shortfall;
      result.detail = "layer " + std::to_string(layer) + " chose an expert whose reference score is lower by " +
                      std::to_string(routed.shortfall) + " than that of the best eight";
      return result;
    }
    std::vector<float> sum = routed.out;
    add_to(sum, shared);
    add_to(residual, rounded_to_bf16(std::move(sum)));
    residual = rounded_to_bf16(std::move(residual));
  }
  result.ok = result.error <= result.tolerance;
  result.detail = "inputs of all layers' experts and the output, " + std::to_string(layers_) + " layers";
  return result;
}

const ModelInfo kInfo = {
    "nvfp4_preamble",
    "mixture-of-experts layers of Kimi K2 with an NVFP4 shared expert: fills and casts that a step can do without",
    kPresets,
    kVariants,
    0,
    memory_bytes,
    [](const StackOptions& options) -> std::unique_ptr<Model> {
      if (!knows_names(options, kPresets, kVariants)) return nullptr;
      return std::make_unique<Nvfp4Preamble>(options);
    },
};

}  // namespace

const ModelInfo& nvfp4_preamble_model() { return kInfo; }

}  // namespace cglint::models
