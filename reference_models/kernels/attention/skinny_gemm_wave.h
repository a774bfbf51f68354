// The path of skinny_gemm() on sm_90 for up to 8 tokens and weights that all multiprocessors can hold at
// once: every block asks for all its weights before it does anything else. Not for callers; skinny_gemm()
// chooses.
#pragma once

#include "kernels/attention/skinny_gemm.h"

namespace cglint::kernels {

// Whether one of the compiled shapes fits. Says nothing about the device, which must run code of sm_90
// (runs_sm90_code).
[[nodiscard]] bool skinny_gemm_fits_wave(const SkinnyGemm& gemm);
// Plain and programmatic launches differ in how weights are loaded, not in the order of the sums: the results
// are the same bits.
[[nodiscard]] cudaError_t skinny_gemm_wave(const LaunchContext& ctx, const SkinnyGemm& gemm);

}  // namespace cglint::kernels
