// Launch planning, argument checks and reference arithmetic: everything that must hold without a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "kernels/attention/dense_gemm.h"
#include "kernels/attention/kda.h"
#include "kernels/attention/kv_cache.h"
#include "kernels/attention/mla_decode.h"
#include "kernels/attention/norm.h"
#include "kernels/attention/reference.h"
#include "kernels/attention/rope.h"
#include "kernels/attention/skinny_gemm.h"
#include "kernels/attention/skinny_gemm_cluster.h"
#include "kernels/attention/skinny_gemm_wave.h"
#include "kernels/common/buffer.h"
#include "kernels/common/case.h"

namespace cglint::kernels {
namespace {

constexpr int kMultiprocessors = 132;

TEST(MaxScaledError, RejectsWhatCannotBeCompared) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isinf(max_scaled_error({}, {})));
  EXPECT_TRUE(std::isinf(max_scaled_error({1}, {1, 2})));
  EXPECT_TRUE(std::isinf(max_scaled_error({nan}, {1})));
  EXPECT_TRUE(std::isinf(max_scaled_error({1}, {nan})));
  EXPECT_TRUE(std::isinf(max_scaled_error({0, 0}, {0, 0})));
}

TEST(MaxScaledError, IsTheLargestDifferenceOverTheRootMeanSquare) {
  EXPECT_DOUBLE_EQ(max_scaled_error({3, 4}, {3, 4}), 0.0);
  EXPECT_DOUBLE_EQ(max_scaled_error({2, -2, 2.5f, 2}, {2, -2, 2, 2}), 0.25);
}

TEST(RotationCopies, DefeatL2OrSaySo) {
  for (const double bytes : {1e3, 9e5, 1e6, 4.7e6, 30e6, 239e6, 600e6}) {
    const int copies = rotation_copies(bytes);
    EXPECT_GE(copies, 2);
    EXPECT_LE(copies, kRunsPerGraph);
    EXPECT_EQ(defeats_l2(bytes), copies * bytes >= kRotationBytes);
  }
  EXPECT_TRUE(defeats_l2(1e6));
  EXPECT_FALSE(defeats_l2(1e5));
}

TEST(Cases, AreNamedOnceAndPrepareThemselves) {
  std::vector<KernelCase> cases;
  register_attention_cases(cases);
  ASSERT_GT(cases.size(), 100u);
  std::vector<std::string> titles;
  for (const KernelCase& item : cases) {
    titles.push_back(item.name + " " + item.shape);
    EXPECT_TRUE(item.run && item.check && item.prepare) << titles.back();
    EXPECT_GT(item.bytes, 0) << titles.back();
    EXPECT_GT(item.tolerance, 0) << titles.back();
  }
  std::sort(titles.begin(), titles.end());
  EXPECT_EQ(std::adjacent_find(titles.begin(), titles.end()), titles.end());
}

// Every split must be allowed, and the busiest multiprocessor must not get more than a quarter above its
// share where there are tiles enough to share out.
TEST(MlaDecodeSplits, KeepTheChipBusy) {
  for (const int heads : {8, 16, 64, 128}) {
    for (const int batch : {1, 2, 3, 4, 5, 8, 16, 33, 48, 64}) {
      for (const int context : {1, 31, 1000, 4096, 32768, 131072}) {
        const int splits = mla_decode_splits(batch, heads, context, kMultiprocessors);
        const int tiles = (context + kMlaTileTokens - 1) / kMlaTileTokens;
        ASSERT_GE(splits, 1);
        ASSERT_LE(splits, std::min(tiles, kMlaMaxSplits));
        const int rows = batch * ((heads + 15) / 16);
        if (context < 32768) continue;
        const int waves = (rows * splits + kMultiprocessors - 1) / kMultiprocessors;
        const double busiest = static_cast<double>(waves) * ((tiles + splits - 1) / splits);
        const double share = static_cast<double>(rows) * tiles / kMultiprocessors;
        EXPECT_LE(busiest, share * 1.25 + 3) << heads << " heads, batch " << batch << ", context " << context;
      }
    }
  }
}

TEST(MlaDecode, WorkspaceHoldsAllParts) {
  MlaDecode call;
  call.batch = 3;
  call.heads = 8;
  call.splits = 1;
  EXPECT_EQ(mla_decode_workspace_bytes(call), 0u);
  call.splits = 5;
  EXPECT_EQ(mla_decode_workspace_bytes(call), 3u * 8 * 5 * (kLatentDim + 2) * sizeof(float));
}

TEST(MlaDecode, RejectsWhatItCannotDo) {
  MlaDecode call;
  call.batch = 1;
  call.heads = 8;
  call.max_pages = 4;
  call.page_size = 48;  // no power of two of 32
  EXPECT_EQ(mla_decode({}, call, nullptr), cudaErrorInvalidValue);
  call.page_size = 64;
  call.splits = 2;  // needs a workspace
  EXPECT_EQ(mla_decode({}, call, nullptr), cudaErrorInvalidValue);
  call.splits = kMlaMaxSplits + 1;
  EXPECT_EQ(mla_decode({}, call, &call), cudaErrorInvalidValue);
}

TEST(SkinnyGemm, SplitsOnlyWhereEachBlockKeepsWork) {
  for (const int n : {16, 384, 512, 2112, 4608, 7168}) {
    for (const int k : {128, 256, 1024, 1536, 7168}) {
      for (const int tokens : {1, 8, 16, 64}) {
        SkinnyGemm gemm;
        gemm.tokens = tokens;
        gemm.n = n;
        gemm.k = k;
        gemm.split_k = skinny_split_k(tokens, n, k, 1, kMultiprocessors);
        EXPECT_GE(gemm.split_k, 1);
        EXPECT_LE(gemm.split_k, std::max(1, k / 128));
        EXPECT_EQ(skinny_gemm_workspace_bytes(gemm) > 0, gemm.split_k > 1);
      }
    }
  }
  EXPECT_EQ(skinny_split_k(1, 2112, 7168, 1, kMultiprocessors), 1);
  EXPECT_GT(skinny_split_k(1, 384, 7168, 1, kMultiprocessors), 1);
}

TEST(SkinnyGemm, OneWaveTakesWhatAllMultiprocessorsHoldAtOnce) {
  const auto fits = [](int tokens, int n, int k) {
    SkinnyGemm gemm;
    gemm.tokens = tokens;
    gemm.n = n;
    gemm.k = k;
    gemm.split_k = skinny_split_k(tokens, n, k, 1, kMultiprocessors);
    return skinny_gemm_fits_wave(gemm);
  };
  struct Projection {
    int n, k;
  };
  // q_b and o of K2, q_b of V3, o of Kimi Linear, the shared expert's down.
  for (const Projection p : {Projection{1536, 1536}, {7168, 1024}, {3072, 1536}, {2304, 2048}, {7168, 256}}) {
    for (const int tokens : {1, 4, 8}) EXPECT_TRUE(fits(tokens, p.n, p.k)) << p.n << " " << p.k;
    EXPECT_FALSE(fits(9, p.n, p.k)) << p.n << " " << p.k;
  }
  // More weights than one wave of blocks has, rows that no block divides, other k, k shared by blocks.
  for (const Projection p : {Projection{7168, 2048},
                             {7168, 1536},
                             {14336, 1024},
                             {7168 + 16, 1024},
                             {2112, 7168},
                             {384, 7168},
                             {16, 1536}})
    EXPECT_FALSE(fits(8, p.n, p.k)) << p.n << " " << p.k;
  SkinnyGemm heads;
  heads.tokens = 8;
  heads.n = 1536;
  heads.k = 1536;
  EXPECT_TRUE(skinny_gemm_fits_wave(heads));
  heads.batch = 2;
  EXPECT_FALSE(skinny_gemm_fits_wave(heads));
  EXPECT_EQ(skinny_gemm_wave({}, heads), cudaErrorInvalidValue);
}

TEST(SkinnyGemm, ClustersTakeFewLongRowsHoweverTheyAreSplit) {
  const auto fits = [](int tokens, int n, int k, int split_k) {
    SkinnyGemm gemm;
    gemm.tokens = tokens;
    gemm.n = n;
    gemm.k = k;
    gemm.split_k = split_k;
    EXPECT_FALSE(skinny_gemm_fits_wave(gemm)) << n << " " << k;
    return skinny_gemm_fits_cluster(gemm);
  };
  struct Projection {
    int n, k;
  };
  // The shared expert's gate_up of K2 and V3, their routers, the shared expert's gate_up and router of Kimi Linear.
  for (const Projection p : {Projection{512, 7168}, {384, 7168}, {256, 7168}, {1024, 2304}, {256, 2304}}) {
    for (const int tokens : {1, 4, 8}) {
      for (const int split_k : {1, skinny_split_k(tokens, p.n, p.k, 1, kMultiprocessors)})
        EXPECT_TRUE(fits(tokens, p.n, p.k, split_k)) << p.n << " " << p.k;
    }
    EXPECT_FALSE(fits(9, p.n, p.k, 1)) << p.n << " " << p.k;
  }
  // Many rows, very few, rows that no cluster divides, another k.
  for (const Projection p : {Projection{2112, 7168},
                             {1024, 7168},
                             {128, 7168},
                             {384 + 16, 7168},
                             {6144, 2304},
                             {512, 2304},
                             {512, 7168 + 128}})
    EXPECT_FALSE(fits(8, p.n, p.k, 1)) << p.n << " " << p.k;
  SkinnyGemm heads;
  heads.tokens = 8;
  heads.n = 512;
  heads.k = 7168;
  heads.batch = 2;
  EXPECT_FALSE(skinny_gemm_fits_cluster(heads));
  EXPECT_EQ(skinny_gemm_cluster({}, heads), cudaErrorInvalidValue);
}

TEST(Launches, RejectBadShapesBeforeTheyReachTheDriver) {
  SkinnyGemm gemm;
  gemm.tokens = 1;
  gemm.n = 24;  // not a multiple of 16
  gemm.k = 128;
  EXPECT_EQ(skinny_gemm({}, gemm, nullptr), cudaErrorInvalidValue);
  gemm.n = 32;
  gemm.k = 96;  // not a multiple of 128
  EXPECT_EQ(skinny_gemm({}, gemm, nullptr), cudaErrorInvalidValue);
  gemm.k = 256;
  gemm.split_k = 2;  // needs a workspace
  EXPECT_EQ(skinny_gemm({}, gemm, nullptr), cudaErrorInvalidValue);
  float result = 0;
  gemm.split_k = 1;
  gemm.out_fp32 = &result;  // no kernel of this shape has such results
  EXPECT_FALSE(skinny_gemm_gives_fp32(gemm));
  EXPECT_EQ(skinny_gemm({}, gemm, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(rms_norm({}, nullptr, 12, nullptr, nullptr, 16, 1, 12, 1e-6f), cudaErrorInvalidValue);
  EXPECT_EQ(add_rms_norm({}, nullptr, 16, nullptr, nullptr, nullptr, 16, 1, 16, 1e-6f),
            cudaErrorInvalidValue);
  EXPECT_EQ(concat_and_cache_mla({}, nullptr, 512, nullptr, 60, nullptr, nullptr, 1), cudaErrorInvalidValue);
  EXPECT_EQ(advance_decode({}, nullptr, 0, 64, nullptr, nullptr, nullptr, 1), cudaErrorInvalidValue);
  EXPECT_EQ(residual_add({}, nullptr, nullptr, nullptr, 12), cudaErrorInvalidValue);
  EXPECT_EQ(mla_absorb_query({}, nullptr, 1536, 192, nullptr, nullptr, 4608, 576, kSkinnyMaxTokens + 1, 8),
            cudaErrorInvalidValue);
  EXPECT_EQ(kda_short_conv({}, nullptr, 12, nullptr, nullptr, nullptr, nullptr, 1, 12),
            cudaErrorInvalidValue);
  EXPECT_EQ(
      kda_delta_rule({}, nullptr, nullptr, 0, nullptr, 0, nullptr, nullptr, nullptr, nullptr, nullptr, 0, 1),
      cudaErrorInvalidValue);
}

TEST(CublasLt, SaysWhyItDoesNotLoad) {
  ASSERT_EQ(setenv("CGLINT_CUBLASLT", "/nonexistent/libcublasLt.so", 1), 0);
  std::string error;
  EXPECT_EQ(CublasLt::load(error), nullptr);
  EXPECT_NE(error.find("cuBLASLt"), std::string::npos);
  DenseGemm plan;
  EXPECT_EQ(DenseGemm::create(nullptr, {}, 1, plan), cudaErrorInvalidValue);
  EXPECT_EQ(plan.candidates(), 0);
  EXPECT_EQ(plan.run(nullptr, nullptr, nullptr, nullptr, nullptr, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(plan.select_fastest(nullptr, nullptr, {}, nullptr, nullptr, nullptr, 1), cudaErrorInvalidValue);
}

TEST(Rope, TableTurnsPairsByPosition) {
  const std::vector<float> table = make_rope_table(3, 10000);
  ASSERT_EQ(table.size(), 3u * kRopeDim);
  EXPECT_FLOAT_EQ(table[0], 1);
  EXPECT_FLOAT_EQ(table[kRopeDim / 2], 0);
  EXPECT_FLOAT_EQ(table[2 * kRopeDim], static_cast<float>(std::cos(2.0)));
  EXPECT_FLOAT_EQ(table[2 * kRopeDim + kRopeDim / 2], static_cast<float>(std::sin(2.0)));
  std::vector<float> row(kRopeDim);
  row[0] = 1;
  reference::rope_interleaved(row.data(), 2, 10000);
  EXPECT_FLOAT_EQ(row[0], static_cast<float>(std::cos(2.0)));
  EXPECT_FLOAT_EQ(row[1], static_cast<float>(std::sin(2.0)));
}

// With no decay, full strength and an empty state, the state becomes k v^T and a second look along k gives v.
TEST(KdaReference, StoresAndFindsAValue) {
  constexpr size_t kDim = kKdaHeadDim;
  std::vector<float> qkv(3 * kDim);
  qkv[5] = 2;         // q along channel 5
  qkv[kDim + 5] = 3;  // k likewise
  for (size_t i = 0; i < kDim; ++i) qkv[2 * kDim + i] = static_cast<float>(i);
  const std::vector<float> no_decay(kDim, -100.0f);
  const reference::KdaState result = reference::kda_delta_rule(
      qkv, no_decay, {100.0f}, {0.0f}, std::vector<float>(kDim), std::vector<float>(kDim * kDim), 1, 1);
  for (size_t i = 0; i < kDim; ++i) {
    EXPECT_NEAR(result.state[5 * kDim + i], static_cast<float>(i), 1e-3f);
    EXPECT_NEAR(result.out[i], static_cast<float>(i) / std::sqrt(128.0f), 1e-3f);
    EXPECT_NEAR(result.state[6 * kDim + i], 0.0f, 1e-6f);
  }
  // Writing the same pair again changes nothing: the delta is zero.
  const reference::KdaState again = reference::kda_delta_rule(qkv, no_decay, {100.0f}, {0.0f},
                                                              std::vector<float>(kDim), result.state, 1, 1);
  for (size_t i = 0; i < kDim; ++i) EXPECT_NEAR(again.state[5 * kDim + i], result.state[5 * kDim + i], 1e-3f);
}

TEST(RmsNormReference, ScalesToUnitMeanSquare) {
  const std::vector<float> out = reference::rms_norm({3, 4, 0, 0}, {}, 2, 0.0f);
  ASSERT_EQ(out.size(), 4u);
  EXPECT_NEAR(out[0] * out[0] + out[1] * out[1], 2.0f, 1e-5f);
  EXPECT_NEAR(out[0] / out[1], 0.75f, 1e-6f);
}

}  // namespace
}  // namespace cglint::kernels
