// Host-side helpers of the models' checks.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <vector>

#include "kernels/common/buffer.h"

namespace cglint::models {

// `count` values as floats; empty if the copy failed.
std::vector<float> download_floats(const float* data, std::size_t count);
std::vector<float> download_floats(const kernels::bf16* data, std::size_t count);

inline void add_to(std::vector<float>& sum, const std::vector<float>& terms) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += terms[i];
}

// Values as the step stores them between its kernels.
std::vector<float> rounded_to_bf16(std::vector<float> values);

// out(t, n) = sum_k x(t, k) * weight(n, k) in fp32, by a plain kernel; weight on the device, [n, k]. Synchronous.
// Empty if a CUDA call failed.
std::vector<float> reference_product(const std::vector<float>& x, int tokens, const kernels::bf16* weight, int n, int k);
// rows of gate and up values to rows of silu(gate) * up, `columns` each.
std::vector<float> reference_silu_mul(const std::vector<float>& gate_up, int columns);

}  // namespace cglint::models
