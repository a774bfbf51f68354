#include "kimi_linear/reference.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/attention/reference.h"
#include "stack/host.h"

namespace cglint::models::kimi {
namespace {

using Rows = std::vector<float>;

float sigmoid(float x) { return 1.0F / (1.0F + std::exp(-x)); }

// Columns [first, first + count) of rows of `width`.
Rows columns(const Rows& rows, std::size_t width, std::size_t first, std::size_t count) {
  Rows out;
  out.reserve(rows.size() / width * count);
  for (std::size_t row = 0; row < rows.size(); row += width)
    out.insert(out.end(), rows.begin() + static_cast<std::ptrdiff_t>(row + first),
               rows.begin() + static_cast<std::ptrdiff_t>(row + first + count));
  return out;
}

Rows kda(const Weights& weights, int index, const Rows& x, int batch) {
  const Layer& w = weights.layers()[static_cast<std::size_t>(index)];
  // The state before the step: the step has moved the layer's own on.
  kernels::DeviceBuffer<kernels::bf16> conv_before;
  kernels::DeviceBuffer<float> state_before;
  if (conv_before.allocate(weights.conv_state_elements()) != cudaSuccess ||
      state_before.allocate(weights.state_elements()) != cudaSuccess ||
      weights.fill_state_of(index, conv_before.get(), state_before.get()) != cudaSuccess ||
      cudaDeviceSynchronize() != cudaSuccess)
    return {};
  const Rows history = kernels::download_float(conv_before);
  const Rows state = kernels::download_float(state_before);
  const Rows taps = download_floats(w.conv, 4 * static_cast<std::size_t>(kConvChannels));
  const Rows a_log = download_floats(w.a_log, kHeads);
  const Rows dt_bias = download_floats(w.dt_bias, kChannels);
  const Rows head_norm = download_floats(w.head_norm, kHeadDim);
  const Rows fused = reference_product(x, batch, w.fused, kFused, kHidden);
  if (history.empty() || state.empty() || taps.empty() || a_log.empty() || dt_bias.empty() || head_norm.empty() ||
      fused.empty())
    return {};

  const auto channels = static_cast<std::size_t>(kConvChannels);
  Rows qkv(static_cast<std::size_t>(batch) * channels);
  for (std::size_t b = 0; b < static_cast<std::size_t>(batch); ++b) {
    for (std::size_t c = 0; c < channels; ++c) {
      float sum = taps[3 * channels + c] * fused[b * kFused + c];
      for (std::size_t t = 0; t < 3; ++t) sum += taps[t * channels + c] * history[(b * 3 + t) * channels + c];
      qkv[b * channels + c] = sum * sigmoid(sum);
    }
  }
  const Rows beta = columns(fused, kFused, kBetaAt, kHeads);
  const std::size_t gate_elements = static_cast<std::size_t>(kChannels) * kHeadDim;
  const Rows decay = reference_product(columns(fused, kFused, kGateAt, kHeadDim), batch, w.gates, kChannels, kHeadDim);
  const Rows gate = reference_product(columns(fused, kFused, kGateAt + kHeadDim, kHeadDim), batch,
                                      w.gates + gate_elements, kChannels, kHeadDim);
  if (decay.empty() || gate.empty()) return {};
  const kernels::reference::KdaState next =
      kernels::reference::kda_delta_rule(qkv, decay, beta, a_log, dt_bias, state, batch, kHeads);
  Rows normed = kernels::reference::rms_norm(next.out, head_norm, kHeadDim, kEpsilon);
  for (std::size_t i = 0; i < normed.size(); ++i) normed[i] *= sigmoid(gate[i]);
  return reference_product(normed, batch, w.o, kHidden, kChannels);
}

Rows mla(const ReferenceStep& step, int index, const Rows& x) {
  const Layer& w = step.weights->layers()[static_cast<std::size_t>(index)];
  const Rows both = reference_product(x, step.batch, w.q_kv, kQueriesAndRow, kHidden);
  const Rows kv_norm = download_floats(w.kv_norm, kLatent);
  const std::size_t up_elements = static_cast<std::size_t>(kHeads) * kHeadDim * kLatent;
  const Rows uk = download_floats(w.w_uk_t, up_elements);
  const Rows uv = download_floats(w.w_uv, up_elements);
  if (both.empty() || kv_norm.empty() || uk.empty() || uv.empty()) return {};
  const Rows q = columns(both, kQueriesAndRow, 0, kQueries);
  const Rows kv = columns(both, kQueriesAndRow, kQueries, kCacheRow);
  const Rows latent = kernels::reference::rms_norm(columns(kv, kCacheRow, 0, kLatent), kv_norm, kLatent, kEpsilon);
  const float scale = 1.0F / std::sqrt(static_cast<float>(kQueryHead));

  Rows out;
  const auto page_elements = static_cast<std::size_t>(kPageSize) * kCacheRow;
  for (std::size_t b = 0; b < static_cast<std::size_t>(step.batch); ++b) {
    // The sequence's rows in order; the step's own comes from the reference.
    Rows rows;
    for (int page = 0; page * kPageSize <= step.context; ++page) {
      const auto number = static_cast<std::size_t>(
          step.block_table[b * static_cast<std::size_t>(step.max_pages) + static_cast<std::size_t>(page)]);
      const Rows values = download_floats(static_cast<const kernels::bf16*>(w.cache) + number * page_elements, page_elements);
      if (values.empty()) return {};
      rows.insert(rows.end(), values.begin(), values.end());
    }
    const auto length = static_cast<std::size_t>(step.context) + 1;
    rows.resize(length * kCacheRow);
    float* own = rows.data() + (length - 1) * kCacheRow;
    std::copy_n(latent.begin() + static_cast<std::ptrdiff_t>(b * kLatent), kLatent, own);
    std::copy_n(kv.begin() + static_cast<std::ptrdiff_t>(b * kCacheRow + kLatent), kPositional, own + kLatent);
    for (std::size_t head = 0; head < kHeads; ++head) {
      const float* q_head = q.data() + (b * kHeads + head) * kQueryHead;
      const float* uk_head = uk.data() + head * kHeadDim * kLatent;
      const float* uv_head = uv.data() + head * kHeadDim * kLatent;
      Rows query(kCacheRow, 0.0F);
      for (std::size_t d = 0; d < kHeadDim; ++d)
        for (std::size_t l = 0; l < kLatent; ++l) query[l] += q_head[d] * uk_head[d * kLatent + l];
      std::copy_n(q_head + kHeadDim, kPositional, query.begin() + kLatent);
      Rows scores(length);
      for (std::size_t t = 0; t < length; ++t) {
        float sum = 0;
        for (std::size_t l = 0; l < kCacheRow; ++l) sum += query[l] * rows[t * kCacheRow + l];
        scores[t] = sum * scale;
      }
      const float largest = *std::max_element(scores.begin(), scores.end());
      float total = 0;
      for (float& score : scores) {
        score = std::exp(score - largest);
        total += score;
      }
      Rows mean(kLatent, 0.0F);
      for (std::size_t t = 0; t < length; ++t)
        for (std::size_t l = 0; l < kLatent; ++l) mean[l] += scores[t] / total * rows[t * kCacheRow + l];
      for (std::size_t d = 0; d < kHeadDim; ++d) {
        float sum = 0;
        for (std::size_t l = 0; l < kLatent; ++l) sum += uv_head[d * kLatent + l] * mean[l];
        out.push_back(sum);
      }
    }
  }
  return reference_product(out, step.batch, w.o, kHidden, kChannels);
}

Rows mlp(const Layer& w, int intermediate, const Rows& x, int batch) {
  const Rows both = reference_product(x, batch, w.gate_up, 2 * intermediate, kHidden);
  if (both.empty()) return {};
  return reference_product(reference_silu_mul(both, intermediate), batch, w.down, kHidden, intermediate);
}

}  // namespace

ReferenceResult reference_step(const ReferenceStep& step) {
  ReferenceResult result;
  result.failure = "a CUDA call failed";
  Rows residual = step.hidden;
  const int layers = static_cast<int>(step.weights->layers().size());
  const std::size_t pairs = static_cast<std::size_t>(step.batch) * kTopK;
  // With the step's values everything is rounded where the step stores it.
  const auto stored = [&](Rows rows) { return step.trace == nullptr ? rows : rounded_to_bf16(std::move(rows)); };
  // The step's values for one half take the place of the reference's.
  const auto add_half = [&](Rows half, int number, const std::string& name) {
    if (step.trace != nullptr) {
      Rows own = step.trace->download(number);
      if (own.empty()) return false;
      result.worst.see(part_error(own, half), name);
      half = std::move(own);
    }
    add_to(residual, half);
    residual = stored(std::move(residual));
    return true;
  };
  for (int i = 0; i < layers; ++i) {
    const std::string name = "layer " + std::to_string(i);
    const Layer& w = step.weights->layers()[static_cast<std::size_t>(i)];
    const Rows input_norm = download_floats(w.input_norm, kHidden);
    const Rows post_norm = download_floats(w.post_norm, kHidden);
    if (input_norm.empty() || post_norm.empty()) return result;
    Rows x = stored(kernels::reference::rms_norm(residual, input_norm, kHidden, kEpsilon));
    Rows attention = is_mla(i) ? mla(step, i, x) : kda(*step.weights, i, x, step.batch);
    if (attention.empty() || !add_half(std::move(attention), 2 * i, "attention of " + name)) return result;
    x = stored(kernels::reference::rms_norm(residual, post_norm, kHidden, kEpsilon));
    Rows half = mlp(w, is_dense(i) ? kDenseIntermediate : kExpertIntermediate, x, step.batch);
    if (half.empty()) return result;
    if (is_dense(i)) {
      if (!add_half(std::move(half), 2 * i + 1, "MLP of " + name)) return result;
      continue;
    }
    const auto first = step.choices.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(i) * pairs);
    const RoutedReference routed =
        reference_routed_experts(routed_shape(), w.routed, download_floats(w.routed.bias, kExperts), x, step.batch,
                                 std::vector<std::int32_t>(first, first + static_cast<std::ptrdiff_t>(pairs)));
    if (routed.out.empty()) return result;
    result.shortfall = std::max(result.shortfall, routed.shortfall);
    add_to(half, routed.out);
    if (!add_half(std::move(half), 2 * i + 1, "experts of " + name)) return result;
  }
  result.output = stored(kernels::reference::rms_norm(residual, step.final_norm, kHidden, kEpsilon));
  if (step.trace != nullptr) result.worst.see(part_error(step.step_output, result.output), "the final norm");
  result.failure.clear();
  return result;
}

}  // namespace cglint::models::kimi
