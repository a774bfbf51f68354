// The path of skinny_gemm() on sm_90 for up to 8 tokens and few weight rows that are long: blocks in clusters
// share k, so that all multiprocessors read, and the first of a cluster adds up. Not for callers;
// skinny_gemm() chooses.
#pragma once

#include "kernels/attention/skinny_gemm.h"

namespace cglint::kernels {

// Whether one of the compiled shapes fits, which has its own division of k: split_k is not looked at. Says
// nothing about the device, which must run code of sm_90 (runs_sm90_code).
[[nodiscard]] bool skinny_gemm_fits_cluster(const SkinnyGemm& gemm);
// A token's results are the same bits in plain and programmatic launches and with any other tokens beside it.
[[nodiscard]] cudaError_t skinny_gemm_cluster(const LaunchContext& ctx, const SkinnyGemm& gemm);

}  // namespace cglint::kernels
