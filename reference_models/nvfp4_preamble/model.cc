// What stands before the quantised products of a decode step of Kimi K2 in NVFP4: buffers for block scales that are
// filled with zeros before the quantiser writes them, and a router bias that is cast to bf16 in every layer of every
// step. vllm-project/vllm#45452 drops both where they are not needed.
//
// Layers are mixtures of experts. The shared expert is in NVFP4, the routed experts in bf16: without tensor cores for
// NVFP4 (sm_90) the format is converted in software, which the few weights of one expert can bear.
#include <cuda_runtime.h>

#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "kernels/moe/activation.h"
#include "kernels/moe/nvfp4.h"
#include "nvfp4_preamble/reference.h"
#include "stack/fault.h"
#include "stack/host.h"
#include "stack/model.h"
#include "stack/routed_stack.h"
#include "stack/status.h"

namespace cglint::models {
const ModelInfo& nvfp4_preamble_model();

namespace {

using kernels::bf16;
using kernels::LaunchContext;
using kernels::moe::scale_bytes;
using kernels::moe::ScaleLayout;

constexpr int kMaxTokens = 1024;
constexpr int kPaddedRows = 128;  // of a tile of scales
constexpr float kScaleRange = 448.0F * 6.0F;
// Of a layer against the reference: a value of NVFP4 that is rounded the other way, because the bf16 value before it was, is off by
// up to a third. Few are, but more where the global scale is a power of two, as it is taken from the data in padding_read: then values lie exactly
// in the middle. Weights of the routed experts 5 % too small give an rms error of 0.038.
constexpr PartError kTolerance = {0.2, 0.02};
constexpr PartError kToleranceOfPowers = {0.3, 0.08};

constexpr std::array kPresets = {
    PresetInfo{"k2-tp4", "hidden 7168, 384 experts of intermediate 512, top-8, shared expert 512", RoutedStack::kLayers},
    PresetInfo{"k2-tp8", "hidden 7168, 384 experts of intermediate 256, top-8, shared expert 256", RoutedStack::kLayers},
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

// Transient memory of the shared expert.
std::size_t shared_transient_bytes(const RoutedShape& s, int tokens) {
  const int rows = padded(tokens);
  return elements(rows, s.hidden) * (3 * sizeof(bf16) + 1) + elements(rows, s.intermediate) * (4 * sizeof(bf16));
}

std::size_t memory_bytes(const StackOptions& options) {
  if (!knows_names(options, kPresets, kVariants) || options.batch < 1 || options.batch > kMaxTokens ||
      !options.moe_config_dir.empty())
    return 0;
  const RoutedShape s = shape_of(options);
  const int layers = routed_layers(options);
  return RoutedStack::persistent_bytes(s, layers, options.batch) + static_cast<std::size_t>(layers) * shared_sizes(s).all() +
         RoutedStack::transient_bytes(s, tuned_tiles(s, options.batch), options.batch) +
         shared_transient_bytes(s, options.batch) + (std::size_t{128} << 20);
}

// The global scales that calibration would have given, on the device: one set for all layers.
struct GlobalScales {
  float x, activation, w13, w2, alpha13, alpha2;
};

class Nvfp4Preamble final : public RoutedStack {
 public:
  explicit Nvfp4Preamble(const StackOptions& options)
      : RoutedStack(options, shape_of(options), options.variant == "padding_read" ? kToleranceOfPowers : kTolerance),
        fills_(options.variant != "elided"),
        casts_(options.variant.empty() || options.variant == kVariants[0].name),
        reads_padding_(options.variant == "padding_read") {}

 protected:
  cudaError_t choose_tiles(int device, RoutedTiles& tiles) override;
  std::size_t more_transient_bytes() const override { return shared_transient_bytes(shape(), options().batch); }
  cudaError_t prepare_more() override;
  cudaError_t enqueue_beside(const LaunchContext& ctx, int layer, const bf16* x, RoutedWeights& weights, Beside& beside) override;
  bool reference_beside(int layer, const std::vector<float>& x, std::vector<float>& out) const override {
    out = reference_nvfp4_expert(expert_of(layer), x, options().batch);
    return !out.empty();
  }
  std::vector<float> reference_bias(std::vector<float> bias) const override { return rounded_to_bf16(std::move(bias)); }

 private:
  cudaError_t shared_expert(const LaunchContext& ctx, int layer, const bf16* x, bf16* out);
  [[nodiscard]] Nvfp4Expert expert_of(int layer) const;
  [[nodiscard]] bf16* hoisted_bias_of(int layer) const {
    return hoisted_biases_.as<bf16>() + elements(layer, shape().experts);
  }
  [[nodiscard]] const float* scale_on_device(float GlobalScales::* which) const {
    return &(device_scales_.as<GlobalScales>()->*which);
  }

  bool fills_, casts_, reads_padding_;
  GlobalScales scales_{};
  Tensor shared_, hoisted_biases_, device_scales_;
};

Nvfp4Expert Nvfp4Preamble::expert_of(int layer) const {
  const SharedSizes sizes = shared_sizes(shape());
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
  expert.hidden = shape().hidden;
  expert.intermediate = shape().intermediate;
  return expert;
}

cudaError_t Nvfp4Preamble::choose_tiles(int /*device*/, RoutedTiles& tiles) {
  if (memory_bytes(options()) == 0) {
    set_failure("nvfp4_preamble: batch must be 1 to " + std::to_string(kMaxTokens) + ", and it takes no tile tables");
    return cudaErrorInvalidValue;
  }
  tiles = tuned_tiles(shape(), options().batch);
  return cudaSuccess;
}

cudaError_t Nvfp4Preamble::prepare_more() {
  const auto unit = [](int k) { return std::sqrt(3.0F / static_cast<float>(k)); };
  const auto layers_count = static_cast<std::size_t>(layers());
  CGLINT_RETURN_IF_ERROR(arena().persistent(layers_count * shared_sizes(shape()).all(), shared_));
  CGLINT_RETURN_IF_ERROR(arena().persistent(elements(layers(), shape().experts) * sizeof(bf16), hoisted_biases_));
  CGLINT_RETURN_IF_ERROR(arena().persistent(sizeof(GlobalScales), device_scales_));
  CGLINT_RETURN_IF_ERROR(kernels::moe::launch_cast_bf16({}, bias_of(0), hoisted_biases_.as<bf16>(),
                                                        elements(layers(), shape().experts)));

  // Weights: all of the range. Activations: normalised rows reach about 6, products of two about 16.
  scales_.x = kScaleRange / 6;
  scales_.activation = kScaleRange / 16;
  scales_.w13 = kScaleRange / unit(shape().hidden);
  scales_.w2 = kScaleRange / unit(shape().intermediate);
  scales_.alpha13 = 1 / (scales_.x * scales_.w13);
  scales_.alpha2 = 1 / (scales_.activation * scales_.w2);
  CGLINT_RETURN_IF_ERROR(cudaMemcpy(device_scales_.address(), &scales_, sizeof scales_, cudaMemcpyHostToDevice));
  Tensor wide;
  CGLINT_RETURN_IF_ERROR(arena().persistent(elements(2 * shape().intermediate, shape().hidden) * sizeof(bf16), wide));
  for (int layer = 0; layer < layers(); ++layer) {
    const Nvfp4Expert expert = expert_of(layer);
    const auto quantise = [&](int n, int k, const std::uint8_t* q, const std::uint8_t* scales, const float* global_scale,
                              std::uint64_t salt) {
      const cudaError_t status = kernels::fill_random(wide.as<bf16>(), elements(n, k),
                                                      seed() + 200 + 2 * static_cast<std::uint64_t>(layer) + salt, unit(k));
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
    CGLINT_RETURN_IF_ERROR(quantise(2 * shape().intermediate, shape().hidden, expert.w13, expert.w13_scales,
                                    scale_on_device(&GlobalScales::w13), 0));
    CGLINT_RETURN_IF_ERROR(quantise(shape().hidden, shape().intermediate, expert.w2, expert.w2_scales,
                                    scale_on_device(&GlobalScales::w2), 1));
  }
  return cudaDeviceSynchronize();  // before `wide` goes
}

// Quantise, gate_up, SiLU-mul, quantise, down.
cudaError_t Nvfp4Preamble::shared_expert(const LaunchContext& ctx, int layer, const bf16* x, bf16* out) {
  using namespace kernels::moe;
  const Range range("shared_expert");
  const Nvfp4Expert expert = expert_of(layer);
  const int tokens = options().batch;
  const int rows = reads_padding_ ? padded(tokens) : tokens;
  const int width = shape().intermediate;
  const auto take = [&](Tensor& tensor, std::size_t bytes) { return arena().transient(bytes, tensor); };

  Tensor q, scales, gate_up;
  const ScaleLayout layout = reads_padding_ ? ScaleLayout::kTiled : ScaleLayout::kRowMajor;
  CGLINT_RETURN_IF_ERROR(take(q, elements(rows, shape().hidden) / 2));
  CGLINT_RETURN_IF_ERROR(take(scales, scale_bytes(layout, tokens, shape().hidden)));
  if (fills_) CGLINT_RETURN_IF_ERROR(launch_zero_fill(ctx, scales.address(), scales.size_bytes()));
  QuantizeNvfp4Args quantise;
  quantise.x = x;
  quantise.rows = tokens;
  quantise.columns = shape().hidden;
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
  gemm.k = shape().hidden;
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
  gemm.n = shape().hidden;
  gemm.k = width;
  gemm.reads_padding = false;
  gemm.out = out;
  return launch_nvfp4_gemm(ctx, gemm);
}

cudaError_t Nvfp4Preamble::enqueue_beside(const LaunchContext& ctx, int layer, const bf16* x, RoutedWeights& weights,
                                          Beside& beside) {
  CGLINT_RETURN_IF_ERROR(arena().transient(elements(options().batch, shape().hidden) * sizeof(bf16), beside.shared));
  CGLINT_RETURN_IF_ERROR(shared_expert(ctx, layer, x, beside.shared.as<bf16>()));
  weights.bias = nullptr;
  weights.bias_bf16 = hoisted_bias_of(layer);
  if (!casts_) return cudaSuccess;
  const auto experts = static_cast<std::size_t>(shape().experts);
  CGLINT_RETURN_IF_ERROR(arena().transient(experts * sizeof(bf16), beside.bias));
  weights.bias_bf16 = beside.bias.as<bf16>();
  return kernels::moe::launch_cast_bf16(ctx, bias_of(layer), beside.bias.as<bf16>(), experts);
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
    fault::kOfRoutedExperts,
};

}  // namespace

const ModelInfo& nvfp4_preamble_model() { return kInfo; }

}  // namespace cglint::models
