#include "layers/shape.h"

#include <array>

namespace cglint::models {
namespace {

constexpr std::array kShapes = {
    // Moonshot AI's Kimi K2, K2.5 and K2.6: 64 heads, intermediate 18432 (dense) and 2048 (experts).
    DecoderShape{"k2-tp8", 61, 1, 7168, 8, 1536, 2304, 384, 256, 256, 8, 1, 1, 2.827F, 50000},
    // DeepSeek V3 and R1: 128 heads, the same widths. YaRN's change of the rotary frequencies is left out.
    DecoderShape{"v3-tp8", 61, 3, 7168, 16, 1536, 2304, 256, 256, 256, 8, 8, 4, 2.5F, 10000},
};

constexpr std::array kPresets = {
    PresetInfo{"k2-tp8",
               "Kimi K2/K2.5/K2.6, one of 8 shards: 61 layers (first dense), hidden 7168, 8 of 64 heads, 384 "
               "experts of width 256, top 8, 1 shared",
               61},
    PresetInfo{
        "v3-tp8",
        "DeepSeek V3/R1, one of 8 shards: 61 layers (first 3 dense), hidden 7168, 16 of 128 heads, 256 "
        "experts of width 256 in 8 groups, top 8 of 4 groups, 1 shared",
        61},
};
static_assert(kShapes.size() == kPresets.size());

}  // namespace

std::span<const DecoderShape> decoder_shapes() {
  return kShapes;
}

std::span<const PresetInfo> decoder_presets() {
  return kPresets;
}

const DecoderShape* find_decoder_shape(std::string_view preset) {
  if (preset.empty()) return kShapes.data();
  for (const DecoderShape& shape : kShapes)
    if (shape.name == preset) return &shape;
  return nullptr;
}

}  // namespace cglint::models
