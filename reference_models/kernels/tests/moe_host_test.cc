// Tile tables, argument checks and references of the MoE kernels: everything that must hold without a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/common/case.h"
#include "kernels/moe/activation.h"
#include "kernels/moe/moe_gemm.h"
#include "kernels/moe/moe_gemm_params.h"
#include "kernels/moe/nvfp4.h"
#include "kernels/moe/reference.h"
#include "kernels/moe/router.h"
#include "kernels/moe/routing.h"
#include "kernels/moe/workload.h"

namespace cglint::kernels::moe {
namespace {

constexpr int kSm80Smem = 163 * 1024;
constexpr int kSm86Smem = 99 * 1024;
constexpr int kSm90Smem = 227 * 1024;
constexpr WeightType kTypes[] = {WeightType::kBf16, WeightType::kFp8Block128};

// The linter reads these launches by offset (lib/analysis/data/kernels.toml): change both or neither.
TEST(KernelTable, OffsetsOfArgumentStructs) {
#define EXPECT_OFFSET(type, member, offset) EXPECT_EQ(offsetof(type, member), static_cast<size_t>(offset))
  EXPECT_OFFSET(TopkArgs, splits, 8);
  EXPECT_OFFSET(TopkArgs, bias, 16);
  EXPECT_OFFSET(TopkArgs, bias_bf16, 24);
  EXPECT_OFFSET(TopkArgs, tokens, 32);
  EXPECT_OFFSET(TopkArgs, experts, 36);
  EXPECT_OFFSET(TopkArgs, top_k, 40);
  EXPECT_OFFSET(TopkArgs, weights, 64);
  EXPECT_OFFSET(TopkArgs, ids, 72);
  EXPECT_OFFSET(TopkArgs, unused, 12);  // no padding
  EXPECT_OFFSET(TopkArgs, unused_too, 54);
  EXPECT_OFFSET(TopkArgs, unused_three, 60);
  EXPECT_OFFSET(AlignArgs, ids, 0);
  EXPECT_OFFSET(AlignArgs, num_pairs, 8);
  EXPECT_OFFSET(AlignArgs, experts, 12);
  EXPECT_OFFSET(AlignArgs, expert_map, 16);
  EXPECT_OFFSET(AlignArgs, local_experts, 24);
  EXPECT_OFFSET(AlignArgs, sorted_ids, 32);
  EXPECT_OFFSET(AlignArgs, expert_ids, 40);
  EXPECT_OFFSET(AlignArgs, num_padded, 48);
  EXPECT_OFFSET(AlignArgs, positions, 56);
  EXPECT_OFFSET(AlignArgs, workspace, 64);
  EXPECT_OFFSET(PermuteArgs, sorted_ids, 8);
  EXPECT_OFFSET(PermuteArgs, num_padded, 16);
  EXPECT_OFFSET(PermuteArgs, num_pairs, 24);
  EXPECT_OFFSET(PermuteArgs, top_k, 28);
  EXPECT_OFFSET(PermuteArgs, hidden, 36);
  EXPECT_OFFSET(PermuteArgs, out, 40);
  EXPECT_OFFSET(MoeGemmParams, args, 0);
  EXPECT_OFFSET(MoeGemmParams, group_m, 104);
  EXPECT_OFFSET(MoeGemmParams, stages, 108);
  EXPECT_OFFSET(MoeGemmDirectParams, args, 0);
  EXPECT_OFFSET(MoeGemmArgs, x_scale, 8);
  EXPECT_OFFSET(MoeGemmArgs, w, 16);
  EXPECT_OFFSET(MoeGemmArgs, w_scale, 24);
  EXPECT_OFFSET(MoeGemmArgs, out, 32);
  EXPECT_OFFSET(MoeGemmArgs, out_fp32, 40);
  EXPECT_OFFSET(MoeGemmArgs, sorted_ids, 48);
  EXPECT_OFFSET(MoeGemmArgs, expert_ids, 56);
  EXPECT_OFFSET(MoeGemmArgs, num_padded, 64);
  EXPECT_OFFSET(MoeGemmArgs, num_pairs, 76);
  EXPECT_OFFSET(MoeGemmArgs, row_divisor, 80);
  EXPECT_OFFSET(MoeGemmArgs, n, 84);
  EXPECT_OFFSET(MoeGemmArgs, k, 88);
  EXPECT_OFFSET(SiluMulArgs, gate_up.partials, 8);
  EXPECT_OFFSET(SiluMulArgs, gate_up.splits, 16);
  EXPECT_OFFSET(SiluMulArgs, gate_up.unused, 20);
  EXPECT_OFFSET(SiluMulArgs, pairs, 24);
  EXPECT_OFFSET(SiluMulArgs, intermediate, 28);
  EXPECT_OFFSET(SiluMulArgs, positions, 32);
  EXPECT_OFFSET(SiluMulArgs, out, 40);
  EXPECT_OFFSET(SiluMulArgs, out_fp8, 48);
  EXPECT_OFFSET(SiluMulArgs, out_scale, 56);
  EXPECT_OFFSET(QuantizeFp8Args, rows, 8);
  EXPECT_OFFSET(QuantizeFp8Args, columns, 12);
  EXPECT_OFFSET(QuantizeFp8Args, q, 16);
  EXPECT_OFFSET(QuantizeFp8Args, scale, 24);
  EXPECT_OFFSET(FinalizeArgs, y.partials, 8);
  EXPECT_OFFSET(FinalizeArgs, y.splits, 16);
  EXPECT_OFFSET(FinalizeArgs, weights, 24);
  EXPECT_OFFSET(FinalizeArgs, positions, 32);
  EXPECT_OFFSET(FinalizeArgs, shared, 48);
  EXPECT_OFFSET(FinalizeArgs, residual, 56);
  EXPECT_OFFSET(FinalizeArgs, tokens, 64);
  EXPECT_OFFSET(FinalizeArgs, top_k, 68);
  EXPECT_OFFSET(FinalizeArgs, hidden, 72);
  EXPECT_OFFSET(FinalizeArgs, out, 80);
  EXPECT_OFFSET(FinalizeArgs, unused, 41);
  EXPECT_OFFSET(FinalizeArgs, unused_too, 76);
  EXPECT_OFFSET(QuantizeNvfp4Args, rows, 8);
  EXPECT_OFFSET(QuantizeNvfp4Args, columns, 12);
  EXPECT_OFFSET(QuantizeNvfp4Args, global_scale, 16);
  EXPECT_OFFSET(QuantizeNvfp4Args, layout, 24);
  EXPECT_OFFSET(QuantizeNvfp4Args, zero_padding, 25);
  EXPECT_OFFSET(QuantizeNvfp4Args, q, 32);
  EXPECT_OFFSET(QuantizeNvfp4Args, scales, 40);
  EXPECT_OFFSET(Nvfp4ScaleArgs, count, 8);
  EXPECT_OFFSET(Nvfp4ScaleArgs, other_scale, 16);
  EXPECT_OFFSET(Nvfp4ScaleArgs, global_scale, 24);
  EXPECT_OFFSET(Nvfp4ScaleArgs, alpha, 32);
  EXPECT_OFFSET(Nvfp4GemmArgs, x_scales, 8);
  EXPECT_OFFSET(Nvfp4GemmArgs, w, 24);
  EXPECT_OFFSET(Nvfp4GemmArgs, w_scales, 32);
  EXPECT_OFFSET(Nvfp4GemmArgs, alpha, 40);
  EXPECT_OFFSET(Nvfp4GemmArgs, bias, 48);
  EXPECT_OFFSET(Nvfp4GemmArgs, n, 60);
  EXPECT_OFFSET(Nvfp4GemmArgs, k, 64);
  EXPECT_OFFSET(Nvfp4GemmArgs, out, 72);
#undef EXPECT_OFFSET
}

TEST(MoeCases, AreNamedOnceAndPrepareThemselves) {
  std::vector<KernelCase> cases;
  register_moe_cases(cases);
  ASSERT_GT(cases.size(), 200u);
  std::vector<std::string> titles;
  for (const KernelCase& item : cases) {
    titles.push_back(item.name + " " + item.shape);
    EXPECT_TRUE(item.run && item.check && item.prepare) << titles.back();
    EXPECT_GT(item.bytes, 0) << titles.back();
    EXPECT_GE(item.launches, 1) << titles.back();
    EXPECT_EQ(item.pdl, titles.back().find(" pdl") != std::string::npos) << titles.back();
  }
  std::sort(titles.begin(), titles.end());
  EXPECT_EQ(std::adjacent_find(titles.begin(), titles.end()), titles.end());
}

TEST(TileVariants, AreOrderedAndFitSomeDevice) {
  for (const WeightType type : kTypes) {
    const auto variants = tile_variants(type);
    ASSERT_FALSE(variants.empty());
    const auto key = [](const TileVariant& v) {
      return std::array<int, 4>{v.block_m, v.block_n, v.block_k, v.num_warps};
    };
    for (size_t i = 0; i < variants.size(); ++i) {
      if (i > 0) {
        EXPECT_LT(key(variants[i - 1]), key(variants[i]));
      }
      TileConfig config;
      config.block_m = variants[i].block_m;
      config.block_n = variants[i].block_n;
      config.block_k = variants[i].block_k;
      config.num_warps = variants[i].num_warps;
      config.num_stages = 2;
      EXPECT_TRUE(is_supported(type, config, kSm80Smem));
      config.num_stages = 1;
      EXPECT_FALSE(is_supported(type, config, kSm90Smem));
      config.num_stages = 8;
      EXPECT_FALSE(is_supported(type, config, kSm90Smem));
    }
  }
}

TEST(NearestSupported, KeepsWhatIsCompiledAndFitsTheRest) {
  for (const WeightType type : kTypes) {
    for (const TileVariant& v : tile_variants(type)) {
      const TileConfig config{v.block_m, v.block_n, v.block_k, 8, 2, v.num_warps, 2};
      if (is_supported(type, config, kSm90Smem)) {
        EXPECT_EQ(nearest_supported(type, config, kSm90Smem), config);
      }
    }
    // Foreign configurations: anything a file may hold.
    for (const int m : {1, 16, 48, 256}) {
      for (const int k : {32, 64, 512}) {
        for (const int stages : {0, 1, 5, 20}) {
          for (const int limit : {kSm86Smem, kSm80Smem, kSm90Smem}) {
            const TileConfig config{m, 96, k, 0, 0, 16, stages};
            EXPECT_TRUE(is_supported(type, nearest_supported(type, config, limit), limit))
                << m << " " << k << " " << stages << " " << limit;
          }
        }
      }
    }
  }
  const TileConfig wanted{16, 128, 128, 1, 1, 4, 3};
  EXPECT_EQ(nearest_supported(WeightType::kFp8Block128, wanted, kSm90Smem).block_m, 16);
}

TEST(TunedConfig, IsAlwaysSupportedAndNeverLeavesASplitEmpty) {
  for (const MoePreset& preset : moe_presets()) {
    for (const WeightType type : kTypes) {
      for (const ExpertGemm gemm : {ExpertGemm::kW13, ExpertGemm::kW2}) {
        const int n = gemm_n(preset, gemm);
        const int k = gemm_k(preset, gemm);
        for (int tokens = 1; tokens <= 8192; tokens += tokens < 20 ? 1 : tokens / 3) {
          const TileConfig config = tuned_config(type, preset.local_experts, n, k, tokens, preset.top_k);
          EXPECT_TRUE(is_supported(type, config, kSm90Smem)) << preset.name << " " << tokens;
          EXPECT_EQ(split_for(config, k), config.split_k) << preset.name << " " << tokens;
          if (tokens > 64) {
            EXPECT_EQ(config.split_k, 1) << preset.name << " " << tokens;
          }
        }
      }
    }
  }
  // A shape in no table.
  EXPECT_TRUE(
      is_supported(WeightType::kBf16, tuned_config(WeightType::kBf16, 7, 520, 1048, 3, 2), kSm90Smem));
}

// The kernel without tiles: where it was measured faster, and only in what tuned_config() chooses.
TEST(TunedConfig, AsksForTheDirectKernelForFewTokensOfFp8) {
  const auto config_of = [](WeightType type, const char* name, ExpertGemm gemm, int tokens) {
    const MoePreset& preset = *find_preset(name);
    return tuned_config(type, preset.local_experts, gemm_n(preset, gemm), gemm_k(preset, gemm), tokens,
                        preset.top_k);
  };
  constexpr WeightType kFp8 = WeightType::kFp8Block128;
  struct Case {
    const char* preset;
    ExpertGemm gemm;
    int most_tokens;
  };
  for (const Case& c : {Case{"k2-tp8", ExpertGemm::kW2, 32},
                        {"v3-tp8", ExpertGemm::kW2, 32},
                        {"k2-tp4", ExpertGemm::kW2, 8},
                        {"k2-ep4", ExpertGemm::kW2, 1},
                        {"kimi-linear-tp2", ExpertGemm::kW2, 32},
                        {"k2-tp8", ExpertGemm::kW13, 8},
                        {"v3-tp8", ExpertGemm::kW13, 8},
                        {"k2-tp4", ExpertGemm::kW13, 8},
                        {"k2-ep4", ExpertGemm::kW13, 1},
                        {"kimi-linear-tp2", ExpertGemm::kW13, 32}}) {
    for (int tokens = 1; tokens <= c.most_tokens; ++tokens) {
      const TileConfig config = config_of(kFp8, c.preset, c.gemm, tokens);
      EXPECT_TRUE(config.is_direct) << c.preset << " " << tokens;
      EXPECT_EQ(config.split_k, 1) << c.preset << " " << tokens;
      EXPECT_EQ(config.block_m, 8) << c.preset << " " << tokens;
    }
    EXPECT_FALSE(config_of(kFp8, c.preset, c.gemm, c.most_tokens + 1).is_direct) << c.preset;
  }
  for (const MoePreset& preset : moe_presets()) {
    for (const ExpertGemm gemm : {ExpertGemm::kW13, ExpertGemm::kW2})
      EXPECT_FALSE(config_of(WeightType::kBf16, preset.name, gemm, 1).is_direct) << preset.name;
  }
  EXPECT_FALSE(nearest_supported(kFp8, engine_default_config(kFp8, 1, 384), kSm90Smem).is_direct);
  TileConfig config = tuned_config(kFp8, 384, 7168, 256, 1, 8);
  ASSERT_TRUE(config.is_direct);
  MoeGemmArgs args;  // without block lists there is no expert to find
  args.n = 7168;
  args.k = 256;
  EXPECT_FALSE(takes_moe_gemm_direct(tuned_config(kFp8, 384, 7168, 256, 1, 8), args));
}

TEST(SplitFor, LeavesTwoStepsToEverySplit) {
  TileConfig config;
  config.block_k = 128;
  config.split_k = 14;
  EXPECT_EQ(split_for(config, 7168), 14);
  EXPECT_EQ(split_for(config, 2048), 8);
  EXPECT_EQ(split_for(config, 256), 1);
  EXPECT_EQ(split_for(config, 64), 1);
}

TEST(EngineDefault, FollowsTokenCount) {
  EXPECT_EQ(engine_default_config(WeightType::kFp8Block128, 64, 384).block_m, 16);
  EXPECT_EQ(engine_default_config(WeightType::kFp8Block128, 65, 384).block_m, 64);
  EXPECT_EQ(engine_default_config(WeightType::kBf16, 384, 384).block_n, 32);
  EXPECT_EQ(engine_default_config(WeightType::kBf16, 385, 384).group_m, 8);
}

TEST(Router, DividesWhatNoKernelAddsUp) {
  EXPECT_EQ(router_splits(9, 384, 7168), 14);
  EXPECT_EQ(router_splits(64, 384, 7168), 8);
  EXPECT_EQ(router_splits(64, 256, 7168), 14);
  EXPECT_EQ(router_splits(4096, 384, 7168), 1);
  EXPECT_EQ(router_splits(8, 64, 256), 1);
  EXPECT_EQ(router_splits(8, 64, 2304), 9);
}

TEST(Router, RejectsBadArgumentsBeforeLaunching) {
  const __nv_bfloat16 value{};
  float logit = 0;
  const RouterArgs good{&value, &value, &logit, 1, 384, 7168};
  RouterArgs args = good;
  args.x = nullptr;
  EXPECT_EQ(launch_moe_router({}, args), cudaErrorInvalidValue);
  args = good;
  args.w = nullptr;
  EXPECT_EQ(launch_moe_router({}, args), cudaErrorInvalidValue);
  args = good;
  args.logits = nullptr;
  EXPECT_EQ(launch_moe_router({}, args), cudaErrorInvalidValue);
  args = good;
  args.tokens = 0;
  EXPECT_EQ(launch_moe_router({}, args), cudaErrorInvalidValue);
  args = good;
  args.experts = 383;
  EXPECT_EQ(launch_moe_router({}, args), cudaErrorInvalidValue);
  args = good;
  args.hidden = 7167;
  EXPECT_EQ(launch_moe_router({}, args), cudaErrorInvalidValue);
}

TEST(LaunchMoeGemm, RejectsBadArgumentsBeforeLaunching) {
  int32_t word = 0;
  float number = 0;
  MoeGemmArgs good;
  good.x = good.w = &number;
  good.out = &number;
  good.num_pairs = 8;
  good.n = 64;
  good.k = 128;
  const TileConfig tile{8, 64, 128, 1, 1, 4, 2};
  const auto launch = [&](const MoeGemmArgs& args, const TileConfig& config = {8, 64, 128, 1, 1, 4, 2},
                          WeightType type = WeightType::kBf16) {
    return launch_moe_gemm({}, type, config, args);
  };
  TileConfig unknown = tile;
  unknown.block_n = 48;
  EXPECT_EQ(launch(good, unknown), cudaErrorInvalidConfiguration);
  MoeGemmArgs args = good;
  args.x = nullptr;
  EXPECT_EQ(launch(args), cudaErrorInvalidValue);
  args = good;
  args.n = 63;
  EXPECT_EQ(launch(args), cudaErrorInvalidValue);
  args = good;
  args.sorted_ids = &word;  // one list without the others
  EXPECT_EQ(launch(args), cudaErrorInvalidValue);
  TileConfig split = tile;
  split.split_k = 2;  // partial sums need an fp32 output
  EXPECT_EQ(launch(good, split), cudaErrorInvalidValue);
  EXPECT_EQ(launch(good, tile, WeightType::kFp8Block128), cudaErrorInvalidValue);  // no scales
  args = good;
  args.num_pairs = 0;
  EXPECT_EQ(launch(args), cudaSuccess);  // nothing to do is not an error
}

TEST(LaunchSmallKernels, RejectBadArgumentsBeforeLaunching) {
  EXPECT_EQ(launch_moe_topk({}, {}), cudaErrorInvalidValue);
  EXPECT_EQ(launch_moe_align({}, {}), cudaErrorInvalidValue);
  EXPECT_EQ(launch_moe_permute({}, {}), cudaErrorInvalidValue);
  EXPECT_EQ(launch_silu_mul({}, {}), cudaErrorInvalidValue);
  EXPECT_EQ(launch_quantize_fp8({}, {}), cudaErrorInvalidValue);
  EXPECT_EQ(launch_finalize({}, {}), cudaErrorInvalidValue);
  EXPECT_EQ(launch_zero_fill({}, nullptr, 16), cudaErrorInvalidValue);
  EXPECT_EQ(launch_cast_bf16({}, nullptr, nullptr, 1), cudaErrorInvalidValue);
  EXPECT_EQ(launch_quantize_nvfp4({}, {}), cudaErrorInvalidValue);
  EXPECT_EQ(launch_nvfp4_gemm({}, {}), cudaErrorInvalidValue);
}

// The bound is reached by one pair more than whole blocks in every expert, and passed by no assignment.
TEST(MaxBlocks, IsAReachedUpperBound) {
  std::mt19937 random(3);
  for (const int experts : {1, 3, 8}) {
    for (const int block_m : {1, 4, 16}) {
      for (int pairs = 0; pairs < 80; ++pairs) {
        for (int trial = 0; trial < 20; ++trial) {
          std::vector<int> counts(static_cast<size_t>(experts));
          for (int i = 0; i < pairs; ++i) ++counts[random() % static_cast<unsigned>(experts)];
          int blocks = 0;
          for (const int c : counts) blocks += (c + block_m - 1) / block_m;
          EXPECT_LE(blocks, max_blocks(pairs, experts, block_m));
        }
        std::vector<int> counts(static_cast<size_t>(experts));
        int left = pairs;
        for (int& c : counts) {
          if (left > 0) {
            c = 1;
            --left;
          }
        }
        counts[0] += left;
        int blocks = 0;
        for (const int c : counts) blocks += (c + block_m - 1) / block_m;
        EXPECT_EQ(blocks, max_blocks(pairs, experts, block_m));
      }
    }
  }
}

TEST(ReferenceAlign, ListsEveryLocalPairOnceInItsExpertsBlocks) {
  const std::vector<int32_t> ids = {2, 0, 2, 5, 1, 2, 4, 0};
  const std::vector<int32_t> map = {0, -1, 1, -1, -1, 2};
  const BlockLists lists = reference_align(ids, map, 3, 2);
  EXPECT_EQ(lists.num_padded, 8);
  EXPECT_EQ(std::vector<int32_t>(lists.sorted_ids.begin(), lists.sorted_ids.begin() + 8),
            (std::vector<int32_t>{1, 7, 0, 2, 5, 8, 3, 8}));
  EXPECT_EQ(std::vector<int32_t>(lists.expert_ids.begin(), lists.expert_ids.begin() + 4),
            (std::vector<int32_t>{0, 1, 1, 2}));
  EXPECT_EQ(lists.positions, (std::vector<int32_t>{2, 0, 3, 6, -1, 4, -1, 1}));
}

TEST(ReferenceTopk, ChoosesWithinTheBestGroups) {
  TopkArgs args;
  args.tokens = 1;
  args.experts = 8;
  args.top_k = 2;
  args.num_groups = 4;
  args.top_groups = 1;
  args.scaling = 2.0f;
  // The best expert sits in a group whose sum of two is not the best.
  const std::vector<float> logits = {3, -9, 2, 2, 0, 0, -1, 1};
  const std::vector<float> no_bias_but_sums(8, 0.0f);
  const ReferenceChoice choice = reference_topk(args, logits, no_bias_but_sums);
  EXPECT_EQ(choice.ids, (std::vector<int32_t>{2, 3}));
  EXPECT_FLOAT_EQ(choice.weights[0], 1.0f);
  const ReferenceChoice by_best = reference_topk(args, logits, {});
  EXPECT_EQ(by_best.ids, (std::vector<int32_t>{0, 1}));
}

TEST(TopkError, AcceptsTiesAndNothingElse) {
  TopkArgs args;
  args.tokens = 1;
  args.experts = 3;
  args.top_k = 1;
  const ReferenceChoice want = reference_topk(args, {1, 1, 0}, {});
  EXPECT_EQ(topk_error(args, want, {0}, {1.0f}), 0.0);
  EXPECT_EQ(topk_error(args, want, {1}, {1.0f}), 0.0);
  EXPECT_TRUE(std::isinf(topk_error(args, want, {2}, {1.0f})));
  EXPECT_TRUE(std::isinf(topk_error(args, want, {3}, {1.0f})));
  EXPECT_TRUE(std::isinf(topk_error(args, want, {0}, {std::numeric_limits<float>::quiet_NaN()})));
  EXPECT_NEAR(topk_error(args, want, {0}, {0.5f}), 0.5, 1e-6);
}

TEST(ScaleOffset, TiledLayoutIsOneToOneAndInsideTheBuffer) {
  for (const int rows : {1, 128, 130}) {
    for (const int columns : {16, 208, 256}) {
      for (const ScaleLayout layout : {ScaleLayout::kRowMajor, ScaleLayout::kTiled}) {
        std::vector<int> hits(scale_bytes(layout, rows, columns));
        const bool tiled = layout == ScaleLayout::kTiled;
        const int all_rows = tiled ? (rows + 127) / 128 * 128 : rows;
        const int groups = columns / 16;
        const int all_groups = tiled ? (groups + 3) / 4 * 4 : groups;
        for (int row = 0; row < all_rows; ++row) {
          for (int group = 0; group < all_groups; ++group) {
            const int64_t at = scale_offset(layout, row, group, groups);
            ASSERT_LT(at, static_cast<int64_t>(hits.size()));
            ++hits[static_cast<size_t>(at)];
          }
        }
        EXPECT_TRUE(std::all_of(hits.begin(), hits.end(), [](int h) { return h == 1; }));
      }
    }
  }
}

TEST(ReferenceE2m1, RoundsToNearestTiesToEvenCode) {
  const std::vector<std::pair<float, float>> expected = {
      {0.0f, 0.0f}, {0.25f, 0.0f}, {0.26f, 0.5f}, {0.75f, 1.0f}, {1.25f, 1.0f}, {1.75f, 2.0f},
      {2.5f, 2.0f}, {2.6f, 3.0f},  {3.5f, 4.0f},  {5.0f, 4.0f},  {5.1f, 6.0f},  {100.0f, 6.0f}};
  for (const auto& [value, rounded] : expected) {
    EXPECT_EQ(reference_e2m1(value), rounded) << value;
    EXPECT_EQ(reference_e2m1(-value), -rounded) << value;
  }
}

TEST(MakeChoices, AreDistinctInATokenAndBalancedOverShards) {
  for (const MoePreset& preset : moe_presets()) {
    const int local_choices = preset.top_k * preset.local_experts / preset.experts;
    for (const auto& set : make_choices(preset, 5, 3, 9)) {
      ASSERT_EQ(set.size(), static_cast<size_t>(5 * preset.top_k));
      for (auto token = set.begin(); token != set.end(); token += preset.top_k) {
        std::vector<int32_t> mine(token, token + preset.top_k);
        EXPECT_EQ(
            std::count_if(mine.begin(), mine.end(), [&](int32_t e) { return e < preset.local_experts; }),
            local_choices);
        std::sort(mine.begin(), mine.end());
        EXPECT_EQ(std::adjacent_find(mine.begin(), mine.end()), mine.end());
        EXPECT_GE(mine.front(), 0);
        EXPECT_LT(mine.back(), preset.experts);
      }
    }
  }
}

}  // namespace
}  // namespace cglint::kernels::moe
