// The matrix instructions of a warpgroup, sm_90a alone: both operands in shared memory, accumulators in the registers of its
// four warps, asynchronous. A warpgroup's sequence: wgmma_pin() of the accumulators, wgmma_fence(), products, wgmma_commit(),
// wgmma_wait(), which is when accumulators may be read and operands overwritten.
#pragma once

#include <cstdint>

#include "kernels/common/device.cuh"

#ifdef CGLINT_SM90_CODE
namespace cglint::kernels {

// Operand whose rows of 64 bf16 lie 128 bytes apart, in 128-byte swizzle (tensor_map.h), k along the row. `address` is that of
// the first row, a multiple of 1,024, plus 32 bytes for each 16 values of k to skip.
__device__ __forceinline__ uint64_t wgmma_operand(uint32_t address) {
  constexpr uint64_t kEightRows = 1024 >> 4;  // from 8 rows to the next
  constexpr uint64_t kSwizzle128 = 1;
  return (static_cast<uint64_t>(address & 0x3ffff) >> 4) | (uint64_t{1} << 16) | (kEightRows << 32) | (kSwizzle128 << 62);
}

// d[64 x kN] += a[64 x 16] * b[kN x 16]^T, kN 8 or 16, fp32. Warp w of the warpgroup has rows 16 w..16 w + 15 of d, in it lane
// 4 g + t: d[4 j], d[4 j + 1] (row g, columns 8 j + 2 t and the next), d[4 j + 2], d[4 j + 3] (row g + 8).
template <int kN>
__device__ __forceinline__ void wgmma(float (&d)[kN / 2], uint64_t a, uint64_t b) {
  static_assert(kN == 8 || kN == 16);
  if constexpr (kN == 16) {
    asm volatile(
        "{\n"
        ".reg .pred add;\n"
        "setp.eq.u32 add, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, add, 1, 1, 0, 0;\n"
        "}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
        : "l"(a), "l"(b));
  } else {
    asm volatile(
        "{\n"
        ".reg .pred add;\n"
        "setp.eq.u32 add, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, add, 1, 1, 0, 0;\n"
        "}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "l"(a), "l"(b));
  }
}

// Accumulators are values to the compiler, which would otherwise move what sets them behind an instruction that uses them, or
// read them before they are there.
template <int kCount, int kValues>
__device__ __forceinline__ void wgmma_pin(float (&d)[kCount][kValues]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
#pragma unroll
    for (int v = 0; v < kValues; ++v) asm volatile("" : "+f"(d[i][v])::"memory");
  }
}
// Before the first product, and before the first in each stretch of code that others can be entered from.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits for everything committed, of which `d` are the accumulators.
template <int kCount, int kValues>
__device__ __forceinline__ void wgmma_wait(float (&d)[kCount][kValues]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  wgmma_pin(d);
}

// Makes this thread's stores to shared memory visible to asynchronous instructions that are issued after a barrier.
__device__ __forceinline__ void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace cglint::kernels
#endif
