// Deliberate faults of a step (StackOptions::fault), by which it is tested that a check can fail.
#pragma once

#include <array>
#include <string_view>

#include "stack/routed_experts.h"

namespace cglint::models {

namespace fault {
inline constexpr std::string_view kRoutedScale = "routed_scale";  // weights of the routed experts 5 % too small
inline constexpr std::string_view kNoBias = "no_bias";            // experts chosen without the router's bias
inline constexpr std::string_view kWrongW2 = "wrong_w2";          // one layer takes another set's second matrix
inline constexpr std::string_view kRopePosition = "rope";         // rotary position off by one
inline constexpr std::string_view kNoLastToken = "last_token";    // attention leaves out the newest row
inline constexpr std::string_view kWrongGate = "wrong_gate";      // the output gate of linear attention is the decay's

inline constexpr std::array kOfRoutedExperts = {kRoutedScale, kNoBias, kWrongW2};
inline constexpr float kSmallScale = 0.95F;
}  // namespace fault

// Whether this is the layer that kWrongW2 spoils: the middle one.
constexpr bool is_spoilt_layer(int layer, int layers) {
  return layer == layers / 2;
}

// Spoils the routed experts of one layer; `other` has the weights of another set.
inline void spoil(std::string_view name, int layer, int layers, const RoutedWeights& other, RoutedShape& shape,
                  RoutedWeights& weights) {
  if (name == fault::kRoutedScale) shape.scaling *= fault::kSmallScale;
  if (name == fault::kNoBias) {
    weights.bias = nullptr;
    weights.bias_bf16 = nullptr;
  }
  if (name == fault::kWrongW2 && is_spoilt_layer(layer, layers)) {
    weights.w2 = other.w2;
    weights.w2_scale = other.w2_scale;
  }
}

}  // namespace cglint::models
