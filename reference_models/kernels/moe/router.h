// The router's product: from hidden states to the logits that launch_moe_topk() reads.
#pragma once

#include <cuda_bf16.h>

#include "kernels/common/launch.h"

namespace cglint::kernels::moe {

// In how many parts launch_moe_router() gives the logits on the current device: 1 where a kernel of one
// launch adds them up itself (up to 8 tokens and the presets' shapes, on sm_90), else the divisions of
// `hidden` that keep the device busy. Depends on nothing else, so memory can be laid out before.
[[nodiscard]] int router_splits(int tokens, int experts, int hidden);

struct RouterArgs {
  const __nv_bfloat16* x = nullptr;  // [tokens, hidden], 16-byte aligned
  const __nv_bfloat16* w = nullptr;  // [experts, hidden], 16-byte aligned
  // Out, [router_splits(), tokens, experts], 16-byte aligned; the logit is the sum over the first.
  float* logits = nullptr;
  int tokens = 0;
  int experts = 0;  // multiple of 8
  int hidden = 0;   // multiple of 8
};

// One launch. Programmatic launches load weights before the previous kernel has finished. A token's logits up
// to 8 tokens are the same bits in plain and programmatic launches and beside any other tokens.
// cudaErrorInvalidValue for shapes outside the limits above.
[[nodiscard]] cudaError_t launch_moe_router(const LaunchContext& ctx, const RouterArgs& args);

}  // namespace cglint::kernels::moe
