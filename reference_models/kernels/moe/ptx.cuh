// The machine instructions the MoE kernels are built from, one function each. Everything here exists from
// sm_80 on; the fp8 matrix instruction is replaced by an exact f16 one before sm_89.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/common/device.cuh"

// Declares `name` as the block's dynamic shared memory, bytes, aligned to 128.
#define CGLINT_DYNAMIC_SMEM(name) extern __shared__ __align__(128) unsigned char name[]

namespace cglint::kernels::moe {

__device__ __forceinline__ uint32_t smem_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Asynchronous 16-byte copy global -> shared, past L1. Where `valid` is false nothing is read and the 16
// bytes become zero; `source` must then still be a mapped address.
__device__ __forceinline__ void cp_async_16(void* target, const void* source, bool valid) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(smem_address(target)),
               "l"(source), "r"(valid ? 16 : 0)
               : "memory");
}

// The same for 4 bytes (through L1, the only way that size goes).
__device__ __forceinline__ void cp_async_4(void* target, const void* source, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(smem_address(target)), "l"(source),
               "r"(valid ? 4 : 0)
               : "memory");
}

// Closes this thread's current group of copies.
__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most `pending` (0..6) of this thread's groups are unfinished.
__device__ __forceinline__ void cp_async_wait(int pending) {
  switch (pending) {
    case 0:
      asm volatile("cp.async.wait_group 0;" ::: "memory");
      break;
    case 1:
      asm volatile("cp.async.wait_group 1;" ::: "memory");
      break;
    case 2:
      asm volatile("cp.async.wait_group 2;" ::: "memory");
      break;
    case 3:
      asm volatile("cp.async.wait_group 3;" ::: "memory");
      break;
    case 4:
      asm volatile("cp.async.wait_group 4;" ::: "memory");
      break;
    case 5:
      asm volatile("cp.async.wait_group 5;" ::: "memory");
      break;
    default:
      asm volatile("cp.async.wait_group 6;" ::: "memory");
      break;
  }
}

// Four (two) 8x8 matrices of 16-bit elements: lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(smem_address(row))
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x2(uint32_t (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(smem_address(row))
               : "memory");
}

// c[16x8] += a[16x16] * b[16x8], bf16 with fp32 accumulation. Lane l = 4 g + t holds rows g, g + 8 and
// columns 2 t, 2 t + 1 of c.
__device__ __forceinline__ void mma_bf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Elementwise product of two f16 pairs.
__device__ __forceinline__ uint32_t mul_f16x2(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

// c[16x8] += a[16x16] * b[16x8], f16 with fp32 accumulation; c as in mma_bf16.
__device__ __forceinline__ void mma_f16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Two e4m3 values (low 16 bits of `two`) as two f16 values; exact for finite
// values (a NaN becomes 480). The e4m3 bits moved down by one under the sign are
// an f16 with the exponent too small by 8; subnormals come out right by the same product.
__device__ __forceinline__ uint32_t e4m3x2_to_f16x2(uint32_t two) {
  const uint32_t spread = (two & 0xffu) | ((two & 0xff00u) << 8);
  const uint32_t small = ((spread & 0x00800080u) << 8) | ((spread & 0x007f007fu) << 7);
  return mul_f16x2(small, 0x5c005c00u);  // 256, 256
}

// c[16x8] += a[16x32] * b[32x8], e4m3 with fp32 accumulation; c as in mma_bf16.
__device__ __forceinline__ void mma_e4m3(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  // A register holds k = 4t..4t+3. Which k an instruction calls its first does not matter as long as a and b
  // agree, so each half of a register pair feeds one of two k = 16 steps.
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t wide_a[4] = {e4m3x2_to_f16x2(a[2 * half]), e4m3x2_to_f16x2(a[2 * half + 1]),
                                e4m3x2_to_f16x2(a[2 * half] >> 16), e4m3x2_to_f16x2(a[2 * half + 1] >> 16)};
    const uint32_t wide_b[2] = {e4m3x2_to_f16x2(b[half]), e4m3x2_to_f16x2(b[half] >> 16)};
    mma_f16(c, wide_a, wide_b);
  }
#endif
}

}  // namespace cglint::kernels::moe
