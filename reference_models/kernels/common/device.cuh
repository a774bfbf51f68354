// Device-side helpers shared by the reference kernels.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

// Around code for sm_90 alone. What was compiled is known to the host, what runs there is asked when a kernel is launched.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ == 900
#define CGLINT_SM90_CODE 1
#endif

namespace cglint::kernels {

// Whether code for sm_90 alone (tensor maps, wgmma) was compiled for this chip and runs on it.
inline bool runs_sm90_code(int device) {
  bool is_compiled = false;
#ifdef __CUDA_ARCH_LIST__
  for (const int arch : {__CUDA_ARCH_LIST__}) is_compiled = is_compiled || arch == 900;
#endif
  int major = 0;
  int minor = 0;
  return is_compiled && cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess && major == 9 && minor == 0;
}

inline bool current_device_runs_sm90_code() {
  int device = 0;
  return cudaGetDevice(&device) == cudaSuccess && runs_sm90_code(device);
}

// Waits until the kernels this one depends on through a programmatic edge have finished and their writes are
// visible. A no-op without such an edge and before sm_90. Call before the first load of data another kernel
// writes; loads of weights may come earlier.
__device__ __forceinline__ void pdl_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the programmatically dependent kernel start once every block has called this or exited. It promises
// nothing about this kernel's writes: the dependent still waits for the whole grid in pdl_wait(). The kernels
// here call it right after their own pdl_wait(), so that never more than two of a chain are in flight; before
// pdl_wait() they read weights only.
//
// What another kernel writes is read by plain loads: __ldg() and const __restrict__ mean data that nobody
// writes while the kernel runs, so the compiler may move such a load above the wait.
__device__ __forceinline__ void pdl_trigger() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Both, for a kernel compiled once for each kind of launch (LaunchContext::pdl). A plain launch is better off
// without: the wait keeps loads before and after it in order, and an RMSNorm that differed in nothing else took
// 2.32 us with it and 1.86 without on an H200.
template <bool kPdl>
__device__ __forceinline__ void pdl_begin() {
  if constexpr (kPdl) {
    pdl_wait();
    pdl_trigger();
  }
}

// Eight bf16 values moved as one 16-byte access.
struct alignas(16) Bf16x8 {
  __nv_bfloat162 pair[4];
};

__device__ __forceinline__ void unpack(const Bf16x8& packed, float (&values)[8]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two = __bfloat1622float2(packed.pair[i]);
    values[2 * i] = two.x;
    values[2 * i + 1] = two.y;
  }
}

__device__ __forceinline__ Bf16x8 pack(const float (&values)[8]) {
  Bf16x8 packed;
#pragma unroll
  for (int i = 0; i < 4; ++i) packed.pair[i] = __floats2bfloat162_rn(values[2 * i], values[2 * i + 1]);
  return packed;
}

// 16-byte load of data that is read once: not kept in L1.
__device__ __forceinline__ Bf16x8 load_streaming(const __nv_bfloat16* pointer) {
  Bf16x8 packed;
  uint32_t* words = reinterpret_cast<uint32_t*>(&packed);
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "l"(pointer));
  return packed;
}

// 16 bytes of weights, which nobody writes and which are read once.
__device__ __forceinline__ uint4 load_weights(const void* pointer) {
  uint4 words;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(pointer));
  return words;
}

// As one 16-byte access: a copy of the struct would be compiled member by member, as four of 4 bytes.
__device__ __forceinline__ Bf16x8 load8(const __nv_bfloat16* pointer) {
  const uint4 words = *reinterpret_cast<const uint4*>(pointer);
  Bf16x8 packed;
  memcpy(&packed, &words, sizeof packed);
  return packed;
}
__device__ __forceinline__ void store8(__nv_bfloat16* pointer, const Bf16x8& packed) {
  uint4 words;
  memcpy(&words, &packed, sizeof words);
  *reinterpret_cast<uint4*>(pointer) = words;
}

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
  return value;
}

// Sum over a block of up to 1024 threads (a multiple of 32); every thread gets it. `scratch` holds 32 floats
// and must not be in use by any thread of the block.
__device__ __forceinline__ float block_sum_once(float value, float* scratch) {
  const unsigned lane = threadIdx.x & 31u;
  const unsigned warps = (blockDim.x + 31u) >> 5;
  value = warp_sum(value);
  if (lane == 0) scratch[threadIdx.x >> 5] = value;
  __syncthreads();
  return warp_sum(lane < warps ? scratch[lane] : 0.0f);
}

// The same for a `scratch` that an earlier call may still be reading.
__device__ __forceinline__ float block_sum(float value, float* scratch) {
  __syncthreads();
  return block_sum_once(value, scratch);
}

}  // namespace cglint::kernels
