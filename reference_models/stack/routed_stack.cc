#include "stack/routed_stack.h"

#include <algorithm>
#include <cmath>

#include "kernels/attention/norm.h"
#include "kernels/attention/reference.h"
#include "kernels/common/buffer.h"
#include "stack/embed.h"
#include "stack/fault.h"
#include "stack/host.h"
#include "stack/status.h"

namespace cglint::models {
namespace {

using kernels::bf16;
using kernels::LaunchContext;

constexpr int kVocabulary = 4096;  // rows of the embedding table, of which a step reads one per token
constexpr float kEpsilon = 1e-6F;
// A chosen expert's score may be this much below that of one left out: the sums of the router's product differ in order alone.
constexpr double kScoreTolerance = 0.01;

template <typename... Counts>
std::size_t elements(Counts... counts) {
  return (std::size_t{1} * ... * static_cast<std::size_t>(counts));
}

std::size_t element_bytes(const RoutedShape& shape) {
  return shape.type == kernels::moe::WeightType::kFp8Block128 ? 1 : sizeof(bf16);
}

bool has_scales(const RoutedShape& shape) {
  return shape.type == kernels::moe::WeightType::kFp8Block128;
}

}  // namespace

std::size_t RoutedStack::persistent_bytes(const RoutedShape& s, int layers, int tokens) {
  std::size_t set = (w13_elements(s) + w2_elements(s)) * element_bytes(s);
  if (has_scales(s)) set += (w13_scales(s) + w2_scales(s)) * sizeof(float);
  constexpr std::size_t kSmall = 64 * 1024;  // norms and biases of a layer
  return kExpertSets * set + elements(layers) * (elements(s.experts, s.hidden) * sizeof(bf16) + kSmall + elements(tokens, 64)) +
         elements(kVocabulary + tokens, s.hidden) * sizeof(bf16);
}

std::size_t RoutedStack::transient_bytes(const RoutedShape& s, const RoutedTiles& tiles, int tokens) {
  return routed_transient_bytes(s, tiles, tokens) + elements(5, tokens, s.hidden) * sizeof(bf16) + (std::size_t{1} << 20);
}

RoutedStack::RoutedStack(const StackOptions& options, const RoutedShape& shape, const PartError& tolerance)
    : options_(options), shape_(shape), layers_(routed_layers(options)), tolerance_(tolerance) {}

const float* RoutedStack::bias_of(int layer) const {
  return biases_.as<float>() + elements(layer, shape_.experts);
}

const bf16* RoutedStack::gamma_of(int layer) const {
  return gammas_.as<bf16>() + elements(layer, shape_.hidden);
}

std::size_t RoutedStack::pairs() const {
  return elements(options_.batch, shape_.top_k);
}

RoutedWeights RoutedStack::weights_of(int layer) const {
  const auto set = static_cast<std::size_t>(layer % kExpertSets);
  RoutedWeights weights;
  weights.router = routers_.as<bf16>() + elements(layer, shape_.experts, shape_.hidden);
  weights.bias = bias_of(layer);
  weights.w13 = w13_[set].address();
  weights.w13_scale = w13_scale_[set].as<float>();
  weights.w2 = w2_[set].address();
  weights.w2_scale = w2_scale_[set].as<float>();
  weights.expert_map = expert_map_.as<std::int32_t>();
  return weights;
}

cudaError_t RoutedStack::prepare(Arena& arena) {
  arena_ = &arena;
  failure_.clear();
  int device = 0;
  CGLINT_RETURN_IF_ERROR(cudaGetDevice(&device));
  pdl_ = options_.pdl && kernels::device_supports_pdl(device);
  CGLINT_RETURN_IF_ERROR(choose_tiles(device, tiles_));

  for (std::size_t set = 0; set < kExpertSets; ++set) {
    CGLINT_RETURN_IF_ERROR(arena.persistent(w13_elements(shape_) * element_bytes(shape_), w13_[set]));
    if (has_scales(shape_)) CGLINT_RETURN_IF_ERROR(arena.persistent(w13_scales(shape_) * sizeof(float), w13_scale_[set]));
    CGLINT_RETURN_IF_ERROR(arena.persistent(w2_elements(shape_) * element_bytes(shape_), w2_[set]));
    if (has_scales(shape_)) CGLINT_RETURN_IF_ERROR(arena.persistent(w2_scales(shape_) * sizeof(float), w2_scale_[set]));
  }
  CGLINT_RETURN_IF_ERROR(arena.persistent(elements(layers_, shape_.experts, shape_.hidden) * sizeof(bf16), routers_));
  CGLINT_RETURN_IF_ERROR(arena.persistent(elements(layers_, shape_.experts) * sizeof(float), biases_));
  CGLINT_RETURN_IF_ERROR(arena.persistent(elements(layers_ + 1, shape_.hidden) * sizeof(bf16), gammas_));
  CGLINT_RETURN_IF_ERROR(arena.persistent(elements(kVocabulary, shape_.hidden) * sizeof(bf16), embedding_));
  CGLINT_RETURN_IF_ERROR(arena.persistent(elements(options_.batch) * sizeof(std::int32_t), token_ids_));
  CGLINT_RETURN_IF_ERROR(arena.persistent(elements(layers_, pairs()) * sizeof(std::int32_t), chosen_));
  CGLINT_RETURN_IF_ERROR(arena.persistent(elements(options_.batch, shape_.hidden) * sizeof(bf16), output_));
  CGLINT_RETURN_IF_ERROR(arena.reserve_transient(transient_bytes(shape_, tiles_, options_.batch) + more_transient_bytes()));
  CGLINT_RETURN_IF_ERROR(fill());
  CGLINT_RETURN_IF_ERROR(prepare_more());
  return cudaDeviceSynchronize();
}

// Scaled so that a row of unit variance gives one of about unit variance, and router scores spread over the sigmoid's
// slope: logits of about unit variance. Wider ones saturate it, then the biases choose, the same few experts for all tokens, which
// a trained model's biases are there to prevent. With these an expert of the largest bias gets about four times as many tokens as one
// of the least.
cudaError_t RoutedStack::fill() {
  using kernels::fill_random;
  for (std::size_t set = 0; set < kExpertSets; ++set) {
    const auto fill = [&](Tensor& weights, Tensor& scales, std::size_t count, std::size_t scale_count, int k, std::uint64_t salt) {
      const float range = std::sqrt(3.0F / static_cast<float>(k));
      if (!has_scales(shape_)) return fill_random(weights.as<bf16>(), count, seed() + salt, range);
      const cudaError_t status = fill_random(weights.as<kernels::fp8_e4m3>(), count, seed() + salt, 4.0F);
      return status != cudaSuccess ? status : fill_random(scales.as<float>(), scale_count, seed() + salt + 1, range / 16, range / 4);
    };
    CGLINT_RETURN_IF_ERROR(fill(w13_[set], w13_scale_[set], w13_elements(shape_), w13_scales(shape_), shape_.hidden, 4 * set));
    CGLINT_RETURN_IF_ERROR(fill(w2_[set], w2_scale_[set], w2_elements(shape_), w2_scales(shape_), shape_.intermediate, 4 * set + 2));
  }
  const std::size_t experts = elements(shape_.experts);
  const float router_range = std::sqrt(3.0F / static_cast<float>(shape_.hidden));
  CGLINT_RETURN_IF_ERROR(fill_random(routers_.as<bf16>(), elements(layers_, shape_.experts, shape_.hidden), seed() + 100, router_range));
  CGLINT_RETURN_IF_ERROR(fill_random(biases_.as<float>(), elements(layers_) * experts, seed() + 101, 0.03F));
  CGLINT_RETURN_IF_ERROR(fill_random(gammas_.as<bf16>(), elements(layers_ + 1, shape_.hidden), seed() + 102, 0.1F, 1.0F));
  CGLINT_RETURN_IF_ERROR(fill_random(embedding_.as<bf16>(), elements(kVocabulary, shape_.hidden), seed() + 103, 1.7F));
  CGLINT_RETURN_IF_ERROR(use_input(0));
  if (shape_.local_experts == shape_.experts) return cudaSuccess;
  std::vector<std::int32_t> map(experts, -1);
  for (int e = 0; e < shape_.local_experts; ++e) map[static_cast<std::size_t>(e)] = e;
  CGLINT_RETURN_IF_ERROR(arena_->persistent(map.size() * sizeof(std::int32_t), expert_map_));
  return cudaMemcpy(expert_map_.address(), map.data(), map.size() * sizeof(std::int32_t), cudaMemcpyHostToDevice);
}

cudaError_t RoutedStack::use_input(int number) {
  CGLINT_RETURN_IF_ERROR(kernels::fill_random_int(token_ids_.as<std::int32_t>(), elements(options_.batch),
                                                  seed() + 104 + static_cast<std::uint64_t>(number), 0, kVocabulary));
  return cudaDeviceSynchronize();
}

cudaError_t RoutedStack::record(StepContext& context) {
  const LaunchContext ctx{context.main, pdl_};
  const int tokens = options_.batch;
  const int hidden = shape_.hidden;
  const std::size_t row_bytes = elements(tokens, hidden) * sizeof(bf16);
  Tensor residual, y;
  CGLINT_RETURN_IF_ERROR(arena_->transient(row_bytes, residual));
  CGLINT_RETURN_IF_ERROR(
      embed_tokens(ctx, token_ids_.as<std::int32_t>(), embedding_.as<bf16>(), residual.as<bf16>(), tokens, hidden));
  const auto add_norm = [&](int layer, bf16* out) {
    return kernels::add_rms_norm(ctx, y.as<bf16>(), hidden, residual.as<bf16>(), gamma_of(layer), out, hidden, tokens, hidden,
                                 kEpsilon);
  };
  for (int layer = 0; layer < layers_; ++layer) {
    const Range range("layer", layer);
    Tensor x;
    CGLINT_RETURN_IF_ERROR(arena_->transient(row_bytes, x));
    CGLINT_RETURN_IF_ERROR(layer == 0 ? kernels::rms_norm(ctx, residual.as<bf16>(), hidden, gamma_of(layer), x.as<bf16>(), hidden,
                                                          tokens, hidden, kEpsilon)
                                      : add_norm(layer, x.as<bf16>()));
    y.release();
    const Range moe("moe");
    RoutedWeights weights = weights_of(layer);
    Beside beside;
    CGLINT_RETURN_IF_ERROR(enqueue_beside(ctx, layer, x.as<bf16>(), weights, beside));
    RoutedShape shape = shape_;
    spoil(options_.fault, layer, layers_, weights_of(layer + 1), shape, weights);
    CGLINT_RETURN_IF_ERROR(arena_->transient(row_bytes, y));
    RoutedCall call;
    call.x = x.as<bf16>();
    call.tokens = tokens;
    call.ids = chosen_.as<std::int32_t>() + elements(layer) * pairs();
    call.shared = beside.shared.as<bf16>();
    call.out = y.as<bf16>();
    CGLINT_RETURN_IF_ERROR(enqueue_routed_experts(ctx, *arena_, shape, tiles_, weights, call));
    if (trace_ != nullptr) CGLINT_RETURN_IF_ERROR(trace_->keep(context.main, y.as<bf16>()));
  }
  return add_norm(layers_, output_.as<bf16>());
}

cudaError_t RoutedStack::output(std::vector<std::uint8_t>& bytes) {
  CGLINT_RETURN_IF_ERROR(cudaDeviceSynchronize());
  bytes.resize(output_.size_bytes());
  return cudaMemcpy(bytes.data(), output_.address(), bytes.size(), cudaMemcpyDeviceToHost);
}

// Each layer from the residual that the step had in front of it, in fp32, rounded where the step stores a tensor: to bf16 and, in
// front of the experts' products, to fp8. There is no check of the stack as a whole: top-k is not continuous, so a reference that
// runs on with values of its own chooses other experts after some layers.
CheckResult RoutedStack::check(StepContext& context) {
  CheckResult result;
  result.tolerance = tolerance_.largest;
  result.rms_tolerance = tolerance_.rms;
  const auto failed = [&](std::string why) {
    result.ok = false;
    result.detail = std::move(why);
    return result;
  };
  constexpr const char* kCallFailed = "a CUDA call failed";
  const std::size_t hidden = elements(shape_.hidden);
  const std::size_t count = elements(options_.batch) * hidden;
  LayerTrace trace;
  if (trace.reserve(layers_, count) != cudaSuccess) return failed(kCallFailed);
  if (std::string why = trace_step(*this, context, trace_, trace); !why.empty()) return failed(std::move(why));
  std::vector<std::int32_t> token_ids(elements(options_.batch));
  std::vector<std::int32_t> chosen(elements(layers_) * pairs());
  if (cudaMemcpy(token_ids.data(), token_ids_.address(), token_ids_.size_bytes(), cudaMemcpyDeviceToHost) != cudaSuccess ||
      cudaMemcpy(chosen.data(), chosen_.address(), chosen_.size_bytes(), cudaMemcpyDeviceToHost) != cudaSuccess)
    return failed(kCallFailed);
  std::vector<float> residual;
  for (const std::int32_t id : token_ids) {
    const std::vector<float> row = download_floats(embedding_.as<bf16>() + elements(id) * hidden, hidden);
    residual.insert(residual.end(), row.begin(), row.end());
  }
  if (residual.size() != count) return failed(kCallFailed);
  WorstPart worst;
  for (int layer = 0; layer <= layers_; ++layer) {
    const std::vector<float> gamma = download_floats(gamma_of(layer), hidden);
    if (gamma.empty()) return failed(kCallFailed);
    const std::vector<float> x = rounded_to_bf16(kernels::reference::rms_norm(residual, gamma, shape_.hidden, kEpsilon));
    if (layer == layers_) {
      worst.see(part_error(download_floats(output_.as<bf16>(), count), x), "the final norm");
      break;
    }
    std::vector<float> sum;
    const std::vector<float> bias = reference_bias(download_floats(bias_of(layer), elements(shape_.experts)));
    if (bias.empty() || !reference_beside(layer, x, sum)) return failed(kCallFailed);
    const auto first = chosen.begin() + static_cast<std::ptrdiff_t>(elements(layer) * pairs());
    const RoutedReference routed =
        reference_routed_experts(shape_, weights_of(layer), bias, x, options_.batch,
                                 std::vector<std::int32_t>(first, first + static_cast<std::ptrdiff_t>(pairs())));
    if (routed.out.empty()) return failed(kCallFailed);
    if (!(routed.shortfall <= kScoreTolerance)) {
      result.error = routed.shortfall;
      return failed("layer " + std::to_string(layer) + " chose an expert whose reference score is lower by " +
                    std::to_string(routed.shortfall) + " than that of the best " + std::to_string(shape_.top_k));
    }
    if (sum.empty()) sum.assign(count, 0.0F);
    add_to(sum, routed.out);
    const std::vector<float> own = trace.download(layer);
    worst.see(part_error(own, sum), "layer " + std::to_string(layer));
    if (own.empty()) return failed(kCallFailed);
    add_to(residual, own);
    residual = rounded_to_bf16(std::move(residual));
  }
  worst.judge(result, "each of " + std::to_string(layers_) + " layers");
  return result;
}

}  // namespace cglint::models
