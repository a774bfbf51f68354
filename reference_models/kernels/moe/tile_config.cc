#include "kernels/moe/tile_config.h"

#include <algorithm>
#include <cmath>

#include "kernels/moe/tile_variants.h"

namespace cglint::kernels::moe {
namespace {

#define CGLINT_VARIANT(m, n, k, warps, warps_m) TileVariant{m, n, k, warps},
constexpr TileVariant kBf16Variants[] = {CGLINT_MOE_BF16_VARIANTS(CGLINT_VARIANT)};
constexpr TileVariant kFp8Variants[] = {CGLINT_MOE_FP8_VARIANTS(CGLINT_VARIANT)};
#undef CGLINT_VARIANT

constexpr int kMinStages = 2;
constexpr int kMaxStages = 7;

struct TableEntry {
  WeightType type;
  int experts, n, k, tokens;
  TileConfig config;
};
constexpr TableEntry kTable[] = {
#include "kernels/moe/tile_table.inc"
};

double distance(int a, int b) {
  return std::abs(std::log2(static_cast<double>(a)) - std::log2(static_cast<double>(b)));
}

}  // namespace

std::span<const TileVariant> tile_variants(WeightType type) {
  if (type == WeightType::kBf16) return kBf16Variants;
  return kFp8Variants;
}

int smem_bytes(WeightType type, const TileConfig& config) {
  const bool fp8 = type == WeightType::kFp8Block128;
  const int row_bytes = config.block_k * (fp8 ? 1 : 2);
  int stage = (config.block_m + config.block_n) * row_bytes;
  // Per 128 of K: one scale a token and one for the weights, in 16-byte units.
  if (fp8) stage += config.block_k / 128 * (config.block_m + 4) * 4;
  const int epilogue = config.block_m * (config.block_n + 4) * 4;
  return std::max(stage * config.num_stages, epilogue);
}

bool is_supported(WeightType type, const TileConfig& config, int smem_limit_bytes) {
  const TileVariant wanted{config.block_m, config.block_n, config.block_k, config.num_warps};
  const auto variants = tile_variants(type);
  return std::find(variants.begin(), variants.end(), wanted) != variants.end() &&
         config.num_stages >= kMinStages && config.num_stages <= kMaxStages && config.group_m >= 1 &&
         config.split_k >= 1 && config.split_k <= 65535 && smem_bytes(type, config) <= smem_limit_bytes;
}

TileConfig nearest_supported(WeightType type, const TileConfig& config, int smem_limit_bytes) {
  TileConfig wanted = config;
  for (int* value : {&wanted.block_m, &wanted.block_n, &wanted.block_k, &wanted.num_warps, &wanted.group_m,
                     &wanted.split_k}) {
    *value = std::max(*value, 1);
  }
  const TileVariant* best = nullptr;
  double best_distance = 0;
  for (const TileVariant& variant : tile_variants(type)) {
    TileConfig minimal = wanted;
    minimal.block_m = variant.block_m;
    minimal.block_n = variant.block_n;
    minimal.block_k = variant.block_k;
    minimal.num_warps = variant.num_warps;
    minimal.num_stages = kMinStages;
    if (smem_bytes(type, minimal) > smem_limit_bytes) continue;
    const double far = 2 * distance(variant.block_m, wanted.block_m) +
                       distance(variant.block_n, wanted.block_n) + distance(variant.block_k, wanted.block_k) +
                       distance(variant.num_warps, wanted.num_warps);
    if (best == nullptr || far < best_distance) {
      best = &variant;
      best_distance = far;
    }
  }
  if (best == nullptr) return config;
  TileConfig result = wanted;
  result.block_m = best->block_m;
  result.block_n = best->block_n;
  result.block_k = best->block_k;
  result.num_warps = best->num_warps;
  result.is_direct = wanted.is_direct && wanted.block_m == best->block_m;
  result.num_stages = std::clamp(wanted.num_stages, kMinStages, kMaxStages);
  while (result.num_stages > kMinStages && smem_bytes(type, result) > smem_limit_bytes) --result.num_stages;
  return result;
}

TileConfig engine_default_config(WeightType type, int tokens, int experts) {
  TileConfig config;
  if (type == WeightType::kFp8Block128) {
    config.block_m = tokens <= 64 ? 16 : 64;
    config.block_n = 128;
    config.block_k = 128;
    config.group_m = tokens <= 64 ? 1 : 32;
    config.num_warps = 4;
    config.num_stages = 3;
    return config;
  }
  const bool few = tokens <= experts;
  config.block_m = few ? 16 : 64;
  config.block_n = few ? 32 : 64;
  config.block_k = few ? 64 : 32;
  config.group_m = few ? 1 : 8;
  // Triton's own defaults where the configuration names none.
  config.num_warps = 4;
  config.num_stages = 3;
  return config;
}

int split_for(const TileConfig& config, int k) {
  const int steps = (k + config.block_k - 1) / config.block_k;
  return std::max(1, std::min(config.split_k, steps / 2));
}

// Most tokens for which the direct kernel was measured to be faster, by the shapes of the presets; 0: never.
static int most_direct_tokens(int n, int k) {
  switch (k) {
    case 256:
      return n > k ? 32 : 0;
    case 512:
      return n <= k ? 0 : n <= 2304 ? 32 : 8;
    case 2048:
      return n > k ? 1 : 0;
    case 2304:
      return n == 1024 ? 32 : 0;
    case 7168:
      return n <= 1024 ? 8 : 1;
    default:
      return 0;
  }
}

static TileConfig prefer_direct(TileConfig config, WeightType type, int n, int k, int tokens) {
  config.is_direct = type == WeightType::kFp8Block128 && config.block_m == 8 && n % 128 == 0 &&
                     tokens <= most_direct_tokens(n, k);
  if (config.is_direct) config.split_k = 1;
  return config;
}

TileConfig tuned_config(WeightType type, int experts, int n, int k, int tokens, int top_k) {
  const TableEntry* best = nullptr;
  for (const TableEntry& entry : kTable) {
    if (entry.type != type || entry.experts != experts || entry.n != n || entry.k != k) continue;
    if (entry.tokens > 2 * tokens || tokens > 2 * entry.tokens) continue;
    if (best == nullptr || std::abs(entry.tokens - tokens) < std::abs(best->tokens - tokens)) best = &entry;
  }
  if (best != nullptr) return prefer_direct(best->config, type, n, k, tokens);

  const bool fp8 = type == WeightType::kFp8Block128;
  const double pairs_per_expert = static_cast<double>(tokens) * top_k / experts;
  TileConfig config;
  config.num_stages = 4;
  config.block_n = 64;
  config.block_k = fp8 ? 128 : 64;
  if (pairs_per_expert <= 4) {
    // Weights alone matter: narrow tiles of long rows, and enough of them that every multiprocessor has
    // several.
    config.block_m = 8;
    config.block_k = fp8 ? 256 : 128;
    const int blocks = std::min(tokens * top_k, experts) * ((n + config.block_n - 1) / config.block_n);
    const int wanted_blocks = 132 * 4;
    config.split_k = std::max(1, wanted_blocks / std::max(1, blocks));
    config.split_k = split_for(config, k);
  } else if (pairs_per_expert <= 12) {
    config.block_m = 16;
  } else if (pairs_per_expert <= 28) {
    config.block_m = 32;
    config.block_n = 128;
    config.num_stages = 3;
  } else {
    config.block_m = pairs_per_expert <= 96 ? 64 : 128;
    config.block_n = 128;
    config.num_warps = 8;
    config.num_stages = 3;
    config.group_m = 8;
  }
  return prefer_direct(config, type, n, k, tokens);
}

}  // namespace cglint::kernels::moe
