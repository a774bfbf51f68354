// Plain fp32 versions of the attention kernels, to check them against: one thread an output or one loop on
// the host, no tiling, no tensor cores, no code shared with the kernels. Device pointers in, host values out;
// each call synchronises. An empty vector means that a CUDA call failed.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/common/buffer.h"

namespace cglint::kernels::reference {

// out(b, t, n) = sum_k x[b * x_batch_stride + t * x_token_stride + k] * weight[b](n, k) (+ residual(b, t,
// n)); weight[b](n, k) lies at b * w_batch_stride + n * w_n_stride + k * w_k_stride. Result [batch, tokens,
// n].
std::vector<float> gemm(const bf16* x, int64_t x_token_stride, int64_t x_batch_stride, const bf16* weight,
                        int64_t w_n_stride, int64_t w_k_stride, int64_t w_batch_stride, const bf16* residual,
                        int tokens, int n, int k, int batch);

// Result [batch, heads, 512]; arguments as in MlaDecode.
std::vector<float> mla_decode(const bf16* q, const bf16* cache, const int32_t* block_table,
                              const int32_t* seq_lens, int batch, int heads, int page_size, int max_pages,
                              int max_context, float scale);

// Host loops. Rows of `hidden` values each.
std::vector<float> rms_norm(const std::vector<float>& rows, const std::vector<float>& weight, int hidden,
                            float epsilon);
// One row of 64, in place.
void rope_interleaved(float* row, int64_t position, double base);

struct KdaState {
  std::vector<float> out;    // [batch, heads, 128]
  std::vector<float> state;  // [batch, heads, 128, 128]
};
// Operands as in kda_delta_rule, gate and beta contiguous, state of sequence b at index b.
KdaState kda_delta_rule(const std::vector<float>& qkv, const std::vector<float>& gate,
                        const std::vector<float>& beta, const std::vector<float>& a_log,
                        const std::vector<float>& dt_bias, const std::vector<float>& state, int batch,
                        int heads);

}  // namespace cglint::kernels::reference
