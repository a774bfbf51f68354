#include "kernels/common/buffer.h"

namespace cglint::kernels {
namespace {

// splitmix64 of the index, offset by the seed.
__device__ uint32_t random_bits(uint64_t seed, uint64_t index) {
  uint64_t z = seed * 0x9E3779B97F4A7C15ull + index + 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return static_cast<uint32_t>((z ^ (z >> 31)) >> 32);
}

template <typename T>
__global__ void fill_random_kernel(T* data, size_t count, uint64_t seed, float scale, float offset) {
  const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    const float unit = static_cast<float>(random_bits(seed, i) >> 8) * (2.0f / 16777216.0f) - 1.0f;
    data[i] = T(unit * scale + offset);
  }
}

__global__ void fill_random_int_kernel(int32_t* data, size_t count, uint64_t seed, int32_t low,
                                       uint32_t range) {
  const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
    data[i] = low + static_cast<int32_t>(random_bits(seed, i) % range);
  }
}

unsigned blocks_for(size_t count) {
  const size_t blocks = (count + 255) / 256;
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks > 4096 ? 4096 : blocks);
}

template <typename T>
cudaError_t fill(T* data, size_t count, uint64_t seed, float scale, float offset, cudaStream_t stream) {
  fill_random_kernel<T><<<blocks_for(count), 256, 0, stream>>>(data, count, seed, scale, offset);
  return cudaGetLastError();
}

}  // namespace

cudaError_t fill_random(float* data, size_t count, uint64_t seed, float scale, float offset,
                        cudaStream_t stream) {
  return fill(data, count, seed, scale, offset, stream);
}
cudaError_t fill_random(bf16* data, size_t count, uint64_t seed, float scale, float offset,
                        cudaStream_t stream) {
  return fill(data, count, seed, scale, offset, stream);
}
cudaError_t fill_random(fp8_e4m3* data, size_t count, uint64_t seed, float scale, float offset,
                        cudaStream_t stream) {
  return fill(data, count, seed, scale, offset, stream);
}
cudaError_t fill_random_int(int32_t* data, size_t count, uint64_t seed, int32_t low, int32_t high,
                            cudaStream_t stream) {
  if (high <= low) return cudaErrorInvalidValue;
  fill_random_int_kernel<<<blocks_for(count), 256, 0, stream>>>(data, count, seed, low,
                                                                static_cast<uint32_t>(high - low));
  return cudaGetLastError();
}

}  // namespace cglint::kernels
