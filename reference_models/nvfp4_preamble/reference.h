// The shared expert in NVFP4 in plain fp32, rounded where the step stores a tensor: values are quantised as the format
// says and multiplied unrounded. Nothing shared with the step's kernels but the layouts.
#pragma once

#include <cstdint>
#include <vector>

namespace cglint::models {

// Device pointers; w13 [2 * intermediate, hidden / 2], w2 [hidden, intermediate / 2], scales tiled.
struct Nvfp4Expert {
  const std::uint8_t* w13 = nullptr;
  const std::uint8_t* w13_scales = nullptr;
  const std::uint8_t* w2 = nullptr;
  const std::uint8_t* w2_scales = nullptr;
  float w13_global_scale = 1;
  float w2_global_scale = 1;
  float x_global_scale = 1;
  // Of the activation between the two products; 0: taken from its largest value.
  float activation_global_scale = 1;
  int hidden = 0;
  int intermediate = 0;
};

// [tokens, hidden] from x [tokens, hidden]; empty if a CUDA call failed. Synchronous.
std::vector<float> reference_nvfp4_expert(const Nvfp4Expert& expert, const std::vector<float>& x, int tokens);

}  // namespace cglint::models
