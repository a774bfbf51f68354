#include "kernels/attention/kv_cache.h"
#include "kernels/common/device.cuh"

namespace cglint::kernels {
namespace {

constexpr int kRowVectors = kCacheRow / 8;

__global__ void __launch_bounds__(96)
    concat_and_cache_mla_kernel(const bf16* kv_c, int64_t kv_c_stride, const bf16* k_pe, int64_t k_pe_stride,
                                const int64_t* slot_mapping, bf16* cache) {
  pdl_wait();
  pdl_trigger();
  const int64_t token = blockIdx.x;
  const int vector = static_cast<int>(threadIdx.x);
  if (vector >= kRowVectors) return;
  const int element = vector * 8;
  const Bf16x8 packed = element < kLatentDim ? load8(kv_c + token * kv_c_stride + element)
                                             : load8(k_pe + token * k_pe_stride + (element - kLatentDim));
  const int64_t slot = slot_mapping[token];
  if (slot >= 0) store8(cache + slot * kCacheRow + element, packed);
}

__global__ void advance_decode_kernel(const int32_t* block_table, int max_pages, int page_size,
                                      int32_t* seq_lens, int64_t* positions, int64_t* slot_mapping,
                                      int batch) {
  pdl_wait();
  pdl_trigger();
  const int sequence = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (sequence >= batch) return;
  const int length = seq_lens[sequence];
  const int page = length / page_size;
  positions[sequence] = length;
  if (page < max_pages) {
    const int64_t first =
        static_cast<int64_t>(block_table[static_cast<int64_t>(sequence) * max_pages + page]);
    slot_mapping[sequence] = first * page_size + length % page_size;
    seq_lens[sequence] = length + 1;
  } else {
    slot_mapping[sequence] = -1;
  }
}

__global__ void __launch_bounds__(128)
    residual_add_kernel(const bf16* a, const bf16* b, bf16* out, int64_t vectors) {
  pdl_wait();
  pdl_trigger();
  const int64_t vector = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (vector >= vectors) return;
  float x[8];
  float y[8];
  unpack(load8(a + vector * 8), x);
  unpack(load8(b + vector * 8), y);
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] += y[i];
  store8(out + vector * 8, pack(x));
}

}  // namespace

cudaError_t concat_and_cache_mla(const LaunchContext& ctx, const bf16* kv_c, int64_t kv_c_stride,
                                 const bf16* k_pe, int64_t k_pe_stride, const int64_t* slot_mapping,
                                 bf16* cache, int tokens) {
  if (tokens <= 0 || kv_c_stride % 8 != 0 || k_pe_stride % 8 != 0) return cudaErrorInvalidValue;
  return launch(ctx, concat_and_cache_mla_kernel, dim3(static_cast<unsigned>(tokens)), dim3(96), 0, kv_c,
                kv_c_stride, k_pe, k_pe_stride, slot_mapping, cache);
}

cudaError_t advance_decode(const LaunchContext& ctx, const int32_t* block_table, int max_pages, int page_size,
                           int32_t* seq_lens, int64_t* positions, int64_t* slot_mapping, int batch) {
  if (batch <= 0 || max_pages <= 0 || page_size <= 0) return cudaErrorInvalidValue;
  return launch(ctx, advance_decode_kernel, dim3(static_cast<unsigned>((batch + 63) / 64)), dim3(64), 0,
                block_table, max_pages, page_size, seq_lens, positions, slot_mapping, batch);
}

cudaError_t residual_add(const LaunchContext& ctx, const bf16* a, const bf16* b, bf16* out, int64_t count) {
  if (count <= 0 || count % 8 != 0) return cudaErrorInvalidValue;
  return launch(ctx, residual_add_kernel, dim3(static_cast<unsigned>((count / 8 + 127) / 128)), dim3(128), 0,
                a, b, out, count / 8);
}

}  // namespace cglint::kernels
