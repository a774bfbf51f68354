#include "kimi_linear/weights.h"

#include <algorithm>
#include <cmath>

#include "stack/status.h"

namespace cglint::models::kimi {
namespace {

using kernels::bf16;

std::size_t elements(int a, int b, int c = 1) {
  return static_cast<std::size_t>(a) * static_cast<std::size_t>(b) * static_cast<std::size_t>(c);
}

// One block of weights and how it is filled: uniform, `scale` to either side of `offset`.
struct Block {
  const void** pointer;
  std::size_t count;
  bool is_float;
  float scale;
  float offset;
};

float unit(int k) { return std::sqrt(3.0F / static_cast<float>(k)); }

// A layer's own weights, in the order of their memory. Router rows and biases give scores that spread over the
// sigmoid's slope; the value projection makes up for what averaging over a long context takes away.
std::vector<Block> blocks_of(Layer& w, int index) {
  std::vector<Block> blocks;
  const auto add = [&](const bf16*& pointer, std::size_t count, float scale, float offset = 0) {
    blocks.push_back({reinterpret_cast<const void**>(&pointer), count, false, scale, offset});
  };
  const auto add_float = [&](const float*& pointer, std::size_t count, float scale, float offset = 0) {
    blocks.push_back({reinterpret_cast<const void**>(&pointer), count, true, scale, offset});
  };
  add(w.input_norm, kHidden, 0.1F, 1);
  add(w.post_norm, kHidden, 0.1F, 1);
  add(w.o, elements(kHidden, kChannels), unit(kChannels));
  if (is_mla(index)) {
    add(w.q_kv, elements(kQueriesAndRow, kHidden), unit(kHidden));
    add(w.kv_norm, kLatent, 0.1F, 1);
    add(w.w_uk_t, elements(kHeads, kHeadDim, kLatent), unit(kHeadDim));
    add(w.w_uv, elements(kHeads, kHeadDim, kLatent), 4 * unit(kLatent));
  } else {
    add(w.fused, elements(kFused, kHidden), unit(kHidden));
    add(w.gates, elements(2, kChannels, kHeadDim), unit(kHeadDim));
    add(w.conv, elements(4, kConvChannels), 0.8F);
    add(w.head_norm, kHeadDim, 0.1F, 1);
    add_float(w.a_log, kHeads, 1);
    add_float(w.dt_bias, kChannels, 2);
  }
  const int intermediate = is_dense(index) ? kDenseIntermediate : kExpertIntermediate;
  add(w.gate_up, elements(2 * intermediate, kHidden), unit(kHidden));
  add(w.down, elements(kHidden, intermediate), unit(intermediate));
  if (!is_dense(index)) {
    add(w.routed.router, elements(kExperts, kHidden), 2.4F * unit(kHidden));
    add_float(w.routed.bias, kExperts, 0.1F);
  }
  return blocks;
}

std::size_t block_bytes(const Block& block) {
  const std::size_t bytes = block.count * (block.is_float ? sizeof(float) : sizeof(bf16));
  return (bytes + 255) / 256 * 256;
}
std::size_t layer_bytes(int index) {
  Layer layer;
  std::size_t bytes = 0;
  for (const Block& block : blocks_of(layer, index)) bytes += block_bytes(block);
  return bytes;
}

std::size_t conv_elements(int batch) { return elements(batch, 3, kConvChannels); }
std::size_t delta_elements(int batch) { return elements(batch, kHeads) * kHeadDim * kHeadDim; }
std::size_t cache_elements(int pages) { return elements(pages, kPageSize, kCacheRow); }

}  // namespace

RoutedShape routed_shape() {
  RoutedShape shape;
  shape.hidden = kHidden;
  shape.intermediate = kExpertIntermediate;
  shape.experts = shape.local_experts = kExperts;
  shape.top_k = kTopK;
  shape.scaling = kRoutedScaling;
  return shape;
}

std::size_t Weights::bytes(int layers, int batch, int pages) {
  const RoutedShape routed = routed_shape();
  const int sets = std::min(kExpertSets, layers - 1);
  std::size_t total = static_cast<std::size_t>(std::max(sets, 0)) * (w13_elements(routed) + w2_elements(routed)) * sizeof(bf16);
  for (int i = 0; i < layers; ++i) {
    total += layer_bytes(i) + 1024;
    total += is_mla(i) ? cache_elements(pages) * sizeof(bf16)
                       : conv_elements(batch) * sizeof(bf16) + delta_elements(batch) * sizeof(float);
  }
  return total;
}

std::size_t Weights::conv_state_elements() const { return conv_elements(batch_); }
std::size_t Weights::state_elements() const { return delta_elements(batch_); }

cudaError_t Weights::prepare(Arena& arena, int layers, int batch, int pages, std::uint64_t seed) {
  batch_ = batch;
  seed_ = seed * 100'000;
  layers_.assign(static_cast<std::size_t>(layers), {});
  const auto take = [&](std::size_t bytes, void*& memory) {
    Tensor tensor;
    const cudaError_t status = arena.persistent(bytes, tensor);
    memory = tensor.address();
    storage_.push_back(std::move(tensor));
    return status;
  };
  const RoutedShape routed = routed_shape();
  std::array<void*, kExpertSets> w13{}, w2{};
  const int sets = std::min(kExpertSets, layers - 1);
  for (int set = 0; set < sets; ++set) {
    const auto at = static_cast<std::size_t>(set);
    CGLINT_RETURN_IF_ERROR(take(w13_elements(routed) * sizeof(bf16), w13[at]));
    CGLINT_RETURN_IF_ERROR(take(w2_elements(routed) * sizeof(bf16), w2[at]));
  }
  std::vector<void*> own(layers_.size());
  for (int i = 0; i < layers; ++i) {
    const auto at = static_cast<std::size_t>(i);
    Layer& layer = layers_[at];
    CGLINT_RETURN_IF_ERROR(take(layer_bytes(i), own[at]));
    void* memory = nullptr;
    if (is_mla(i)) {
      CGLINT_RETURN_IF_ERROR(take(cache_elements(pages) * sizeof(bf16), memory));
      layer.cache = static_cast<bf16*>(memory);
    } else {
      CGLINT_RETURN_IF_ERROR(take(conv_state_elements() * sizeof(bf16), memory));
      layer.conv_state = static_cast<bf16*>(memory);
      CGLINT_RETURN_IF_ERROR(take(state_elements() * sizeof(float), memory));
      layer.state = static_cast<float*>(memory);
    }
  }
  for (int set = 0; set < sets; ++set) {
    const auto at = static_cast<std::size_t>(set);
    const std::uint64_t salt = seed_ + 90'000 + 2 * at;
    CGLINT_RETURN_IF_ERROR(kernels::fill_random(static_cast<bf16*>(w13[at]), w13_elements(routed), salt, unit(kHidden)));
    CGLINT_RETURN_IF_ERROR(
        kernels::fill_random(static_cast<bf16*>(w2[at]), w2_elements(routed), salt + 1, unit(kExpertIntermediate)));
  }
  for (int i = 0; i < layers; ++i) {
    const auto at = static_cast<std::size_t>(i);
    auto* next = static_cast<unsigned char*>(own[at]);
    std::uint64_t salt = seed_ + 100 * at;
    for (const Block& block : blocks_of(layers_[at], i)) {
      *block.pointer = next;
      CGLINT_RETURN_IF_ERROR(
          block.is_float
              ? kernels::fill_random(reinterpret_cast<float*>(next), block.count, salt, block.scale, block.offset)
              : kernels::fill_random(reinterpret_cast<bf16*>(next), block.count, salt, block.scale, block.offset));
      next += block_bytes(block);
      ++salt;
    }
    if (is_mla(i))
      CGLINT_RETURN_IF_ERROR(kernels::fill_random(layers_[at].cache, cache_elements(pages), seed_ + 50'000 + 10 * at, 1.7F));
    if (!is_dense(i)) {
      layers_[at].routed.w13 = w13[static_cast<std::size_t>((i - 1) % sets)];
      layers_[at].routed.w2 = w2[static_cast<std::size_t>((i - 1) % sets)];
    }
  }
  return fill_states();
}

cudaError_t Weights::fill_state_of(int index, bf16* conv_state, float* state) const {
  const std::uint64_t salt = seed_ + 50'000 + 10 * static_cast<std::uint64_t>(index);
  CGLINT_RETURN_IF_ERROR(kernels::fill_random(conv_state, conv_state_elements(), salt, 1));
  return kernels::fill_random(state, state_elements(), salt + 1, 0.3F);
}

cudaError_t Weights::fill_states() {
  for (int i = 0; i < static_cast<int>(layers_.size()); ++i) {
    const Layer& layer = layers_[static_cast<std::size_t>(i)];
    if (!is_mla(i)) CGLINT_RETURN_IF_ERROR(fill_state_of(i, layer.conv_state, layer.state));
  }
  return cudaSuccess;
}

}  // namespace cglint::models::kimi
