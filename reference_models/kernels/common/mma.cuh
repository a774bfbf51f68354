// Tensor-core and asynchronous-copy primitives: those of sm_80, which run on every later chip too, and the
// bulk copies of sm_90 where the target has them (CGLINT_BULK_COPY).
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace cglint::kernels {

// d += a * b for one 16x8x16 tile, bf16 in, fp32 accumulate. Lane l holds, with g = l / 4 and t = l % 4:
//   a[0] (g, 2t..) a[1] (g + 8, 2t..) a[2] (g, 2t + 8..) a[3] (g + 8, 2t + 8..)   two values of k each
//   b0 (k = 2t.., n = g)  b1 (k = 2t + 8.., n = g)
//   d[0], d[1] (g, 2t and 2t + 1)  d[2], d[3] (g + 8, 2t and 2t + 1)
__device__ __forceinline__ void mma_16816(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Four 8x8 bf16 matrices; lanes 8i..8i+7 give the addresses of the rows of matrix i.
__device__ __forceinline__ void load_matrix_x4(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
// Two matrices, addresses from lanes 0..15, into r[0] and r[1].
__device__ __forceinline__ void load_matrix_x2(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(address)
               : "memory");
}
__device__ __forceinline__ void load_matrix_x4_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// 16-byte asynchronous copy to shared memory, past L1.
__device__ __forceinline__ void copy_async_16(uint32_t target, const void* source) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(target), "l"(source) : "memory");
}
__device__ __forceinline__ void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most kPending of this thread's committed groups are unfinished.
template <int kPending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ __forceinline__ uint4 load_shared(uint32_t address) {
  uint4 words;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "r"(address)
               : "memory");
  return words;
}

__device__ __forceinline__ void store_shared(uint32_t address, uint4 words) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words.x), "r"(words.y),
               "r"(words.z), "r"(words.w)
               : "memory");
}

// Barriers of some of the block's warps; 0 is that of __syncthreads(). `arrive` does not wait.
template <int kWarps>
__device__ __forceinline__ void warps_sync(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kWarps * 32) : "memory");
}
template <int kWarps>
__device__ __forceinline__ void warps_arrive(int id) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(kWarps * 32) : "memory");
}

// 2^x, flushing denormals; -infinity gives 0.
__device__ __forceinline__ float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Loads that stay where they are written, even if their result may turn out not to be needed.
__device__ __forceinline__ float4 load_now(const void* pointer) {
  float4 value;
  asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "l"(pointer)
               : "memory");
  return value;
}

template <typename T>
__device__ __forceinline__ uint4 load_words_now(const T* pointer) {
  uint4 words;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(pointer)
               : "memory");
  return words;
}
__device__ __forceinline__ float2 load_pair_now(const void* pointer) {
  float2 value;
  asm volatile("ld.global.v2.f32 {%0, %1}, [%2];" : "=f"(value.x), "=f"(value.y) : "l"(pointer) : "memory");
  return value;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define CGLINT_BULK_COPY 1
#endif
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
// A barrier in shared memory that counts arrivals and the bytes of bulk copies. One thread initialises it,
// then all threads synchronise before use.
__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals = 1) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// An arrival with the number of bytes that must land before the phase completes.
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Spins until the phase of the given parity (0 first, then alternating) has completed.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// Whether it has.
__device__ __forceinline__ bool barrier_is_complete(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}\n"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}
// The same as barrier_wait() for bytes that other blocks of the cluster send.
__device__ __forceinline__ void barrier_wait_cluster(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// Copies `bytes` (multiple of 16, both sides 16-byte aligned) and reports them to the barrier. The lanes that
// call it together are served one at a time.
__device__ __forceinline__ void copy_bulk(uint32_t target, const void* source, uint32_t bytes,
                                          uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(target),
      "l"(source), "r"(bytes), "r"(barrier)
      : "memory");
}
// Place of the 16 bytes `vector` of `row` in a tile of kRows rows that copies have put at `tile`, one box of 64
// columns behind the other (128-byte swizzle).
template <int kRows>
__device__ __forceinline__ uint32_t swizzled_cell(uint32_t tile, int row, int vector) {
  return tile +
         static_cast<uint32_t>((vector >> 3) * (kRows * 128) + row * 128 + (((vector & 7) ^ (row & 7)) << 4));
}
// Fetches a tensor map ahead of its first copy. It is a kernel's parameter (__grid_constant__).
__device__ __forceinline__ void prefetch_tensor_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// Copies one box of the tensor map (tensor_map.h), from `column` and `row` on, and reports its bytes to the
// barrier. Once: data that is read once and need not stay in L2.
__device__ __forceinline__ void copy_tensor(uint32_t target, const void* map, int column, int row,
                                            uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
      "[%2];" ::"r"(target),
      "l"(map), "r"(barrier), "r"(column), "r"(row)
      : "memory");
}
__device__ __forceinline__ void copy_tensor_once(uint32_t target, const void* map, int column, int row,
                                                 uint32_t barrier) {
  constexpr uint64_t kEvictFirst = 0x12f0000000000000;  // as createpolicy makes it
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1, {%3, %4}], [%2], %5;" ::"r"(target),
      "l"(map), "r"(barrier), "r"(column), "r"(row), "l"(kEvictFirst)
      : "memory");
}
#endif

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
  uint32_t word;
  memcpy(&word, &two, sizeof word);
  return word;
}

}  // namespace cglint::kernels
