#include "nvfp4_preamble/reference.h"

#include <algorithm>
#include <cmath>

#include "kernels/common/buffer.h"
#include "kernels/moe/reference.h"
#include "nvfp4_preamble/dequantise.h"
#include "stack/host.h"

namespace cglint::models {
namespace {

using kernels::DeviceBuffer;
using kernels::moe::reference_e2m1;

constexpr int kGroup = 16;
constexpr float kLargest = 448.0F * 6.0F;  // e4m3 times e2m1

// What quantising x with `global_scale` leaves of it, still multiplied by global_scale.
std::vector<float> quantised(const std::vector<float>& x, float global_scale) {
  std::vector<float> out(x.size());
  for (std::size_t first = 0; first < x.size(); first += kGroup) {
    float largest = 0;
    for (std::size_t i = first; i < first + kGroup; ++i) largest = std::max(largest, std::fabs(x[i]));
    const auto scale = static_cast<float>(kernels::fp8_e4m3(global_scale * largest / 6.0F));
    for (std::size_t i = first; i < first + kGroup; ++i)
      out[i] = scale > 0 ? reference_e2m1(x[i] * global_scale / scale) * scale : 0.0F;
  }
  return out;
}

// quantised x times dequantised weights, without the global scales; [tokens, n].
std::vector<float> product(const std::vector<float>& x, int tokens, const std::uint8_t* w, const std::uint8_t* w_scales,
                           int n, int k) {
  DeviceBuffer<kernels::bf16> wide;
  if (wide.allocate(static_cast<std::size_t>(n) * static_cast<std::size_t>(k)) != cudaSuccess ||
      dequantise_nvfp4(w, w_scales, wide.get(), n, k) != cudaSuccess)
    return {};
  return reference_product(x, tokens, wide.get(), n, k);
}

}  // namespace

std::vector<float> reference_nvfp4_expert(const Nvfp4Expert& expert, const std::vector<float>& x, int tokens) {
  std::vector<float> gate_up = product(quantised(x, expert.x_global_scale), tokens, expert.w13, expert.w13_scales,
                                       2 * expert.intermediate, expert.hidden);
  if (gate_up.empty()) return {};
  for (float& value : gate_up) value /= expert.x_global_scale * expert.w13_global_scale;
  // What is quantised next is rounded first: a value that lies near the middle of two of NVFP4's is to go the same way.
  const std::vector<float> activated =
      rounded_to_bf16(reference_silu_mul(rounded_to_bf16(gate_up), expert.intermediate));
  float largest = 0;
  for (const float value : activated) largest = std::max(largest, std::fabs(value));
  const float scale = expert.activation_global_scale > 0 ? expert.activation_global_scale
                      : largest > 0                      ? std::exp2(std::floor(std::log2(kLargest / largest)))
                                                         : 1.0F;
  std::vector<float> out =
      product(quantised(activated, scale), tokens, expert.w2, expert.w2_scales, expert.hidden, expert.intermediate);
  for (float& value : out) value /= scale * expert.w2_global_scale;
  return rounded_to_bf16(out);
}

}  // namespace cglint::models
