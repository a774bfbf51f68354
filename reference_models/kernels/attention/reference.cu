#include <cmath>

#include "kernels/attention/reference.h"

namespace cglint::kernels::reference {
namespace {

__global__ void gemm_kernel(const bf16* x, int64_t x_token_stride, int64_t x_batch_stride, const bf16* weight,
                            int64_t w_n_stride, int64_t w_k_stride, int64_t w_batch_stride,
                            const bf16* residual, float* out, int tokens, int n, int k) {
  const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (column >= n) return;
  const int64_t token = blockIdx.y;
  const int64_t batch = blockIdx.z;
  const bf16* x_row = x + batch * x_batch_stride + token * x_token_stride;
  const bf16* w_row = weight + batch * w_batch_stride + column * w_n_stride;
  float sum = 0;
  for (int i = 0; i < k; ++i) sum += float(x_row[i]) * float(w_row[i * w_k_stride]);
  const int64_t position = (batch * tokens + token) * n + column;
  if (residual != nullptr) sum += float(residual[position]);
  out[position] = sum;
}

__device__ const bf16* cache_row(const bf16* cache, const int32_t* pages, int page_size, int token) {
  return cache + (int64_t{pages[token / page_size]} * page_size + token % page_size) * 576;
}

__global__ void scores_kernel(const bf16* q, const bf16* cache, const int32_t* block_table,
                              const int32_t* seq_lens, float* scores, int heads, int page_size, int max_pages,
                              int max_context, float scale) {
  const int token = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int64_t head = blockIdx.y;
  const int64_t sequence = blockIdx.z;
  if (token >= seq_lens[sequence]) return;
  const bf16* row = cache_row(cache, block_table + sequence * max_pages, page_size, token);
  const bf16* query = q + (sequence * heads + head) * 576;
  float sum = 0;
  for (int i = 0; i < 576; ++i) sum += float(query[i]) * float(row[i]);
  scores[(sequence * heads + head) * max_context + token] = sum * scale;
}

__global__ void values_kernel(const bf16* cache, const int32_t* block_table, const int32_t* seq_lens,
                              const float* scores, float* out, int heads, int page_size, int max_pages,
                              int max_context) {
  const int column = static_cast<int>(threadIdx.x);
  const int64_t head = blockIdx.x;
  const int64_t sequence = blockIdx.y;
  const int length = seq_lens[sequence];
  const float* row_scores = scores + (sequence * heads + head) * max_context;
  float largest = -INFINITY;
  for (int token = 0; token < length; ++token) largest = fmaxf(largest, row_scores[token]);
  float total = 0;
  float sum = 0;
  for (int token = 0; token < length; ++token) {
    const float probability = expf(row_scores[token] - largest);
    total += probability;
    sum +=
        probability * float(cache_row(cache, block_table + sequence * max_pages, page_size, token)[column]);
  }
  out[(sequence * heads + head) * 512 + column] = length > 0 ? sum / total : 0.0f;
}

float sigmoid(float x) {
  return 1.0f / (1.0f + std::exp(-x));
}

}  // namespace

std::vector<float> gemm(const bf16* x, int64_t x_token_stride, int64_t x_batch_stride, const bf16* weight,
                        int64_t w_n_stride, int64_t w_k_stride, int64_t w_batch_stride, const bf16* residual,
                        int tokens, int n, int k, int batch) {
  DeviceBuffer<float> out;
  if (out.allocate(static_cast<size_t>(batch) * static_cast<size_t>(tokens) * static_cast<size_t>(n)) !=
      cudaSuccess) {
    return {};
  }
  const dim3 grid(static_cast<unsigned>((n + 63) / 64), static_cast<unsigned>(tokens),
                  static_cast<unsigned>(batch));
  gemm_kernel<<<grid, 64>>>(x, x_token_stride, x_batch_stride, weight, w_n_stride, w_k_stride, w_batch_stride,
                            residual, out.get(), tokens, n, k);
  if (cudaDeviceSynchronize() != cudaSuccess) return {};
  return download_float(out);
}

std::vector<float> mla_decode(const bf16* q, const bf16* cache, const int32_t* block_table,
                              const int32_t* seq_lens, int batch, int heads, int page_size, int max_pages,
                              int max_context, float scale) {
  DeviceBuffer<float> scores;
  DeviceBuffer<float> out;
  const size_t rows = static_cast<size_t>(batch) * static_cast<size_t>(heads);
  if (scores.allocate(rows * static_cast<size_t>(max_context)) != cudaSuccess ||
      out.allocate(rows * 512) != cudaSuccess) {
    return {};
  }
  const dim3 grid(static_cast<unsigned>((max_context + 127) / 128), static_cast<unsigned>(heads),
                  static_cast<unsigned>(batch));
  scores_kernel<<<grid, 128>>>(q, cache, block_table, seq_lens, scores.get(), heads, page_size, max_pages,
                               max_context, scale);
  values_kernel<<<dim3(static_cast<unsigned>(heads), static_cast<unsigned>(batch)), 512>>>(
      cache, block_table, seq_lens, scores.get(), out.get(), heads, page_size, max_pages, max_context);
  if (cudaDeviceSynchronize() != cudaSuccess) return {};
  return download_float(out);
}

std::vector<float> rms_norm(const std::vector<float>& rows, const std::vector<float>& weight, int hidden,
                            float epsilon) {
  std::vector<float> out(rows.size());
  const size_t width = static_cast<size_t>(hidden);
  for (size_t first = 0; first < rows.size(); first += width) {
    double sum = 0;
    for (size_t i = 0; i < width; ++i) sum += double{rows[first + i]} * double{rows[first + i]};
    const double scale = 1.0 / std::sqrt(sum / hidden + double{epsilon});
    for (size_t i = 0; i < width; ++i) {
      const double gamma = weight.empty() ? 1.0 : double{weight[i]};
      out[first + i] = static_cast<float>(double{rows[first + i]} * scale * gamma);
    }
  }
  return out;
}

void rope_interleaved(float* row, int64_t position, double base) {
  for (int i = 0; i < 32; ++i) {
    const double angle = static_cast<double>(position) * std::pow(base, -2.0 * i / 64);
    const double x = double{row[2 * i]};
    const double y = double{row[2 * i + 1]};
    row[2 * i] = static_cast<float>(x * std::cos(angle) - y * std::sin(angle));
    row[2 * i + 1] = static_cast<float>(x * std::sin(angle) + y * std::cos(angle));
  }
}

KdaState kda_delta_rule(const std::vector<float>& qkv, const std::vector<float>& gate,
                        const std::vector<float>& beta, const std::vector<float>& a_log,
                        const std::vector<float>& dt_bias, const std::vector<float>& state, int batch,
                        int heads) {
  constexpr size_t kDim = 128;
  const size_t head_count = static_cast<size_t>(heads);
  KdaState result;
  result.out.resize(static_cast<size_t>(batch) * head_count * kDim);
  result.state = state;
  for (size_t b = 0; b < static_cast<size_t>(batch); ++b) {
    for (size_t h = 0; h < head_count; ++h) {
      const float* q_raw = qkv.data() + ((b * 3 + 0) * head_count + h) * kDim;
      const float* k_raw = qkv.data() + ((b * 3 + 1) * head_count + h) * kDim;
      const float* v = qkv.data() + ((b * 3 + 2) * head_count + h) * kDim;
      float* s = result.state.data() + (b * head_count + h) * kDim * kDim;
      float q_norm = 1e-6f;
      float k_norm = 1e-6f;
      for (size_t i = 0; i < kDim; ++i) {
        q_norm += q_raw[i] * q_raw[i];
        k_norm += k_raw[i] * k_raw[i];
      }
      float q[kDim];
      float k[kDim];
      for (size_t i = 0; i < kDim; ++i) {
        q[i] = q_raw[i] / std::sqrt(q_norm) / std::sqrt(128.0f);
        k[i] = k_raw[i] / std::sqrt(k_norm);
      }
      for (size_t i = 0; i < kDim; ++i) {
        const float raw = gate[(b * head_count + h) * kDim + i] + dt_bias[h * kDim + i];
        const float decay = std::exp(-std::exp(a_log[h]) * std::log1p(std::exp(raw)));
        for (size_t j = 0; j < kDim; ++j) s[i * kDim + j] *= decay;
      }
      const float strength = sigmoid(beta[b * head_count + h]);
      for (size_t j = 0; j < kDim; ++j) {
        float predicted = 0;
        for (size_t i = 0; i < kDim; ++i) predicted += k[i] * s[i * kDim + j];
        for (size_t i = 0; i < kDim; ++i) s[i * kDim + j] += strength * k[i] * (v[j] - predicted);
        float read = 0;
        for (size_t i = 0; i < kDim; ++i) read += q[i] * s[i * kDim + j];
        result.out[(b * head_count + h) * kDim + j] = read;
      }
    }
  }
  return result;
}

}  // namespace cglint::kernels::reference
