#include "stack/host.h"

#include <cmath>

#include "kernels/moe/reference.h"

namespace cglint::models {

std::vector<float> download_floats(const float* data, std::size_t count) {
  std::vector<float> host(count);
  if (cudaMemcpy(host.data(), data, count * sizeof(float), cudaMemcpyDeviceToHost) != cudaSuccess) host.clear();
  return host;
}

std::vector<float> download_floats(const kernels::bf16* data, std::size_t count) {
  std::vector<kernels::bf16> host(count);
  if (cudaMemcpy(host.data(), data, count * sizeof(kernels::bf16), cudaMemcpyDeviceToHost) != cudaSuccess) host.clear();
  return kernels::to_float(host);
}

std::vector<float> rounded_to_bf16(std::vector<float> values) {
  for (float& value : values) value = static_cast<float>(kernels::bf16(value));
  return values;
}

std::vector<float> reference_product(const std::vector<float>& x, int tokens, const kernels::bf16* weight, int n, int k) {
  kernels::DeviceBuffer<float> rows, out;
  if (x.size() != static_cast<std::size_t>(tokens) * static_cast<std::size_t>(k) ||
      rows.allocate(x.size()) != cudaSuccess || rows.upload(x) != cudaSuccess ||
      out.allocate(static_cast<std::size_t>(tokens) * static_cast<std::size_t>(n)) != cudaSuccess)
    return {};
  kernels::moe::ReferenceGemmArgs plain;
  plain.x_fp32 = rows.get();
  plain.w = weight;
  plain.pairs = tokens;
  plain.n = n;
  plain.k = k;
  plain.out = out.get();
  if (kernels::moe::reference_moe_gemm(kernels::moe::WeightType::kBf16, plain) != cudaSuccess) return {};
  return kernels::download_float(out);
}

std::vector<float> reference_silu_mul(const std::vector<float>& gate_up, int columns) {
  const auto width = static_cast<std::size_t>(columns);
  std::vector<float> out;
  out.reserve(gate_up.size() / 2);
  for (std::size_t row = 0; row + 2 * width <= gate_up.size(); row += 2 * width) {
    for (std::size_t i = 0; i < width; ++i) {
      const float gate = gate_up[row + i];
      out.push_back(gate / (1 + std::exp(-gate)) * gate_up[row + width + i]);
    }
  }
  return out;
}

}  // namespace cglint::models
