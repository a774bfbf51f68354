// Host-side helpers of the models' checks.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <vector>

#include "kernels/common/buffer.h"

namespace cglint::models {

// `count` values as floats; empty if the copy failed.
template <typename T>
std::vector<float> download_floats(const T* data, std::size_t count) {
  std::vector<T> host(count);
  if (cudaMemcpy(host.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost) != cudaSuccess) return {};
  return std::vector<float>(host.begin(), host.end());
}
template <>
inline std::vector<float> download_floats(const kernels::bf16* data, std::size_t count) {
  std::vector<kernels::bf16> host(count);
  if (cudaMemcpy(host.data(), data, count * sizeof(kernels::bf16), cudaMemcpyDeviceToHost) != cudaSuccess) return {};
  return kernels::to_float(host);
}

inline void add_to(std::vector<float>& sum, const std::vector<float>& terms) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += terms[i];
}

}  // namespace cglint::models
