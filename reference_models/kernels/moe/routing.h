// Expert routing: scores to experts and weights, experts to block lists, tokens to expert order.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/common/launch.h"

namespace cglint::kernels::moe {

enum class ScoreFunction : uint8_t { kSoftmax, kSigmoid };

// `unused`: as in activation.h.
struct TopkArgs {
  // Router logits [splits, tokens, experts], fp32; the logit is the sum over splits (the router GEMM's
  // partial sums, see MoeGemmArgs::out).
  const float* logits = nullptr;
  int splits = 1;
  int unused = 0;
  // Added to the scores for the choice alone, not to the weights: [experts], or null.
  const float* bias = nullptr;
  const __nv_bfloat16* bias_bf16 = nullptr;  // the same in bf16, where `bias` is null
  int tokens = 0;
  int experts = 0;  // <= 1024
  int top_k = 0;    // <= 32, <= experts
  // Experts are chosen from the `top_groups` best of `num_groups` (<= 32) equal groups. A group is worth the
  // sum of its two best biased scores, or without a bias its best score (DeepSeek V3 and V2). 1, 1: no
  // groups.
  int num_groups = 1;
  int top_groups = 1;
  ScoreFunction score = ScoreFunction::kSigmoid;
  bool renormalize = true;  // weights of a token sum to `scaling`
  uint16_t unused_too = 0;
  float scaling = 1.0f;  // routed_scaling_factor
  int unused_three = 0;
  float* weights = nullptr;  // out, [tokens, top_k]
  int32_t* ids = nullptr;    // out, [tokens, top_k], best first; equal scores in order of expert
};

// One launch.
[[nodiscard]] cudaError_t launch_moe_topk(const LaunchContext& ctx, const TopkArgs& args);

struct AlignArgs {
  const int32_t* ids = nullptr;  // [num_pairs], experts of the tokens' choices (TopkArgs::ids)
  int num_pairs = 0;             // tokens * top_k
  int experts = 0;               // of the whole model, <= 1024
  // Expert-parallel: [experts], the local number of each expert or -1 where it lives elsewhere. Null: all
  // are local under their own number.
  const int32_t* expert_map = nullptr;
  int local_experts = 0;  // = experts without a map
  int block_m = 0;

  int32_t* sorted_ids = nullptr;  // out, [max_blocks * block_m]: pairs by expert, each expert's list padded
                                  // with num_pairs to whole blocks; entries past *num_padded are undefined
  int32_t* expert_ids = nullptr;  // out, [max_blocks]: local expert of each block in use
  int32_t* num_padded = nullptr;  // out, [1]: rows in use, padding included
  int32_t* positions =
      nullptr;  // out, [num_pairs]: the pair's place in sorted_ids, -1 if not local; may be null
  int32_t* workspace = nullptr;  // align_workspace_elements(); null is allowed where that is 0
};

// Most blocks that num_pairs choices can fill: every expert used, one pair more than whole blocks in each.
constexpr int max_blocks(int num_pairs, int local_experts, int block_m) {
  const int used = num_pairs < local_experts ? num_pairs : local_experts;
  return used + (num_pairs - used) / block_m;
}

// int32 elements of AlignArgs::workspace. 0 up to 1024 pairs.
size_t align_workspace_elements(int num_pairs, int local_experts);

// One launch of one block up to 1024 pairs, else three launches. Pairs of an expert keep their order, so the
// lists are the same in every run.
[[nodiscard]] cudaError_t launch_moe_align(const LaunchContext& ctx, const AlignArgs& args);

// Rows of `x` in sorted order, for expert GEMMs that take contiguous rows: out[i] = x[sorted_ids[i] / top_k]
// for i < *num_padded, zeros for padding. x is [tokens, hidden], out [max_rows, hidden], bf16, 16-byte
// aligned; hidden a multiple of 8. One launch.
struct PermuteArgs {
  const __nv_bfloat16* x = nullptr;
  const int32_t* sorted_ids = nullptr;
  const int32_t* num_padded = nullptr;
  int num_pairs = 0;
  int top_k = 1;
  int max_rows = 0;  // max_blocks * block_m
  int hidden = 0;
  __nv_bfloat16* out = nullptr;
};
[[nodiscard]] cudaError_t launch_moe_permute(const LaunchContext& ctx, const PermuteArgs& args);

}  // namespace cglint::kernels::moe
