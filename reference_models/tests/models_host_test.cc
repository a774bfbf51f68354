// The models' descriptions, tables and sizes; nothing here needs a GPU.
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>

#include "fused_moe/configs.h"
#include "kimi_linear/shape.h"
#include "stack/layer_trace.h"
#include "stack/model.h"
#include "stack/routed_experts.h"
#include "tables/moe_config.h"

namespace cglint::models {
namespace {

TEST(Registry, VariantsAndPresetsAreNamedOnce) {
  ASSERT_FALSE(all_models().empty());
  for (const ModelInfo* model : all_models()) {
    SCOPED_TRACE(model->name);
    EXPECT_EQ(find_model(model->name), model);
    std::set<std::string_view> variants, presets;
    for (const VariantInfo& variant : model->variants) EXPECT_TRUE(variants.insert(variant.name).second) << variant.name;
    for (const VariantInfo& variant : model->variants) {
      if (!variant.same_bits_as.empty()) {
        EXPECT_TRUE(variants.contains(variant.same_bits_as)) << variant.name;
      }
    }
    for (const PresetInfo& preset : model->presets) {
      EXPECT_TRUE(presets.insert(preset.name).second) << preset.name;
      EXPECT_GT(preset.layers, 0);
    }
  }
}

TEST(Registry, PublishedSizesFitWithOneSequence) {
  for (const char* name : {"nvfp4_preamble", "kimi_linear", "fused_moe"}) {
    SCOPED_TRACE(name);
    const ModelInfo* model = find_model(name);
    ASSERT_NE(model, nullptr);
    for (const PresetInfo& preset : model->presets) {
      StackOptions options;
      options.preset = preset.name;
      const std::size_t all = model->memory_bytes(options);
      EXPECT_GT(all, std::size_t{1} << 30);
      EXPECT_LT(all, std::size_t{24} << 30);
      options.layers = 2;
      EXPECT_LT(model->memory_bytes(options), all);
      options.batch = 0;
      EXPECT_EQ(model->memory_bytes(options), 0U);
      options.batch = 1 << 20;
      EXPECT_EQ(model->memory_bytes(options), 0U);
    }
  }
}

// What tools/gpu_checks/checks.d/59_capture_refusals.py asks for fits no GPU.
TEST(Registry, AWholeServersCacheIsMoreThanAnyMemory) {
  StackOptions options;
  options.batch = 4096;
  options.context = 131071;
  options.layers = 27;
  options.preset = "48b-a3b-tp2";
  options.variant = "sequential";
  EXPECT_GT(find_model("kimi_linear")->memory_bytes(options), std::size_t{4000} << 30);
  options.batch = 64;
  options.layers = 61;
  options.preset = "k2-tp8";
  options.variant = "mla_main_moe_main";
  EXPECT_GT(find_model("k2_full")->memory_bytes(options), std::size_t{500} << 30);
}

TEST(LayerCheck, TheWorstPartCounts) {
  WorstPart worst;
  worst.see({0.01, 0.01}, "layer 0");
  worst.see(part_error({1, 1.5F, 1, 1}, {1, 1, 1, 1}), "layer 1");
  worst.see({0.02, 0.3}, "layer 2");
  EXPECT_EQ(worst.largest_in, "layer 1");
  EXPECT_DOUBLE_EQ(worst.error.largest, 0.5);
  EXPECT_EQ(worst.rms_in, "layer 2");
  CheckResult result;
  result.tolerance = 1;
  result.rms_tolerance = 0.2;
  worst.judge(result, "each layer");
  EXPECT_FALSE(result.ok);
  result.rms_tolerance = 0.3;
  worst.judge(result, "each layer");
  EXPECT_TRUE(result.ok);
  result.tolerance = 0.4;
  worst.judge(result, "each layer");
  EXPECT_FALSE(result.ok);
}

TEST(LayerCheck, BothErrorsAreInUnitsOfTheRootMeanSquare) {
  const PartError error = part_error({2, 3, 2, 2}, {2, 2, 2, 2});
  EXPECT_DOUBLE_EQ(error.largest, 0.5);
  EXPECT_DOUBLE_EQ(error.rms, 0.25);
}

// A token none of whose experts is on this shard adds nothing, and must.
TEST(LayerCheck, NothingIsRightWhereNothingIsWanted) {
  EXPECT_EQ(part_error({0, 0}, {0, 0}).largest, 0);
  for (const PartError& error :
       {part_error({0, 1e-6F}, {0, 0}), part_error({}, {}), part_error({0, 0}, {0}), part_error({std::nanf(""), 1}, {1, 1})}) {
    EXPECT_TRUE(std::isinf(error.largest));
    EXPECT_TRUE(std::isinf(error.rms));
  }
}

TEST(KimiLinear, HasTwentyDeltaRuleLayers) {
  int latent = 0;
  for (int layer = 0; layer < kimi::kLayers; ++layer) latent += kimi::is_mla(layer) ? 1 : 0;
  EXPECT_EQ(latent, 7);
  EXPECT_FALSE(kimi::is_mla(0));
  EXPECT_TRUE(kimi::is_mla(3));
  EXPECT_TRUE(kimi::is_mla(26));
  // What the projection kernels and their vector loads ask for.
  EXPECT_EQ(kimi::kFused % 16, 0);
  EXPECT_EQ(kimi::kHidden % 128, 0);
  EXPECT_EQ(kimi::kBetaAt % 8, 0);
  EXPECT_EQ(kimi::kGateAt % 8, 0);
}

RoutedShape k2_shard(int local_experts, int intermediate) {
  RoutedShape shape;
  shape.type = kernels::moe::WeightType::kFp8Block128;
  shape.hidden = 7168;
  shape.intermediate = intermediate;
  shape.experts = 384;
  shape.local_experts = local_experts;
  shape.top_k = 8;
  return shape;
}

// What was measured is what is launched: every entry of the tables in use is a compiled variant.
TEST(FusedMoe, TablesNameCompiledTiles) {
  for (const auto& [experts, n] : {std::pair(384, 512), std::pair(96, 2048)}) {
    const std::string name = tables::moe_config_file_name({experts, n, "NVIDIA_H200", "fp8_w8a8", {128, 128}});
    SCOPED_TRACE(name);
    const auto configs = tables::parse_moe_config(built_in_moe_config(name));
    ASSERT_TRUE(configs) << configs.error().to_string();
    EXPECT_GE(configs->size(), 12U);
    for (const auto& [tokens, entry] : *configs) {
      SCOPED_TRACE(tokens);
      const kernels::moe::TileConfig config{entry.block_m, entry.block_n,   entry.block_k,   entry.group_m,
                                            entry.split_k, entry.num_warps, entry.num_stages};
      EXPECT_TRUE(kernels::moe::is_supported(kernels::moe::WeightType::kFp8Block128, config, 227 * 1024));
      const RoutedTiles tiles = shared_tiles(k2_shard(experts, n), config);
      EXPECT_EQ(tiles.w13.block_n, entry.block_n);
      EXPECT_EQ(tiles.w13.block_m, tiles.w2.block_m);
      EXPECT_LE(tiles.w2.split_k, tiles.w13.split_k);
    }
  }
  EXPECT_TRUE(built_in_moe_config("E=1,N=1,device_name=NVIDIA_H200.json").empty());
}

TEST(RoutedExperts, TilesShareBlockListsAtAnyNumberOfTokens) {
  for (const auto& [experts, n] : {std::pair(384, 512), std::pair(96, 2048)}) {
    for (int tokens = 1; tokens <= 4096; tokens *= 2) {
      SCOPED_TRACE(tokens);
      const RoutedShape shape = k2_shard(experts, n);
      const RoutedTiles tiles = tuned_tiles(shape, tokens);
      EXPECT_EQ(tiles.w13.block_m, tiles.w2.block_m);
      EXPECT_TRUE(kernels::moe::is_supported(shape.type, tiles.w13, 227 * 1024));
      EXPECT_TRUE(kernels::moe::is_supported(shape.type, tiles.w2, 227 * 1024));
    }
  }
}

// Every choice of every token, at least: the rows that W13 and W2 leave.
TEST(RoutedExperts, TransientMemoryHoldsTheRows) {
  const RoutedShape shape = k2_shard(384, 512);
  for (const int tokens : {1, 64, 2048}) {
    const std::size_t pairs = static_cast<std::size_t>(tokens) * 8;
    EXPECT_GE(routed_transient_bytes(shape, tuned_tiles(shape, tokens), tokens),
              pairs * (1024 + 512 / 2 + 7168) * 2);
  }
}

}  // namespace
}  // namespace cglint::models
