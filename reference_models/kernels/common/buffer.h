// Device memory with one owner, and the host-side helpers that tests and cases share.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace cglint::kernels {

using bf16 = __nv_bfloat16;
using fp8_e4m3 = __nv_fp8_e4m3;

// Owns `size()` elements of device memory from cudaMalloc; move-only. Not thread-safe. Destruction frees; a
// failure to free (context already gone) is ignored.
template <typename T>
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    if (this != &other) {
      reset();
      data_ = std::exchange(other.data_, nullptr);
      size_ = std::exchange(other.size_, 0);
    }
    return *this;
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer() { reset(); }

  // Frees what is held, then allocates `count` uninitialised elements. On failure the buffer is empty.
  [[nodiscard]] cudaError_t allocate(size_t count) {
    reset();
    void* pointer = nullptr;
    const cudaError_t status = cudaMalloc(&pointer, count * sizeof(T));
    if (status != cudaSuccess) return status;
    data_ = static_cast<T*>(pointer);
    size_ = count;
    return cudaSuccess;
  }
  void reset() {
    if (data_ != nullptr) (void)cudaFree(data_);
    data_ = nullptr;
    size_ = 0;
  }

  T* get() { return data_; }
  const T* get() const { return data_; }
  size_t size() const { return size_; }
  size_t size_bytes() const { return size_ * sizeof(T); }

  // Synchronous copies of the whole buffer.
  [[nodiscard]] cudaError_t upload(const std::vector<T>& host) {
    if (host.size() != size_) return cudaErrorInvalidValue;
    return cudaMemcpy(data_, host.data(), size_bytes(), cudaMemcpyHostToDevice);
  }
  [[nodiscard]] cudaError_t download(std::vector<T>& host) const {
    host.resize(size_);
    return cudaMemcpy(host.data(), data_, size_bytes(), cudaMemcpyDeviceToHost);
  }
  // Sets every byte to 0xFF: NaN for bf16, fp8_e4m3 and float, -1 for integers. Catches unwritten outputs.
  [[nodiscard]] cudaError_t poison() { return cudaMemset(data_, 0xFF, size_bytes()); }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

// Fill `count` elements with values uniform in [-scale, scale) (shifted by `offset`), a pure function of
// (seed, index). Enqueued on `stream`.
[[nodiscard]] cudaError_t fill_random(float* data, size_t count, uint64_t seed, float scale, float offset = 0,
                                      cudaStream_t stream = nullptr);
[[nodiscard]] cudaError_t fill_random(bf16* data, size_t count, uint64_t seed, float scale, float offset = 0,
                                      cudaStream_t stream = nullptr);
[[nodiscard]] cudaError_t fill_random(fp8_e4m3* data, size_t count, uint64_t seed, float scale,
                                      float offset = 0, cudaStream_t stream = nullptr);
// Integers uniform in [low, high).
[[nodiscard]] cudaError_t fill_random_int(int32_t* data, size_t count, uint64_t seed, int32_t low,
                                          int32_t high, cudaStream_t stream = nullptr);

// Widening to float on the host, for references.
std::vector<float> to_float(const std::vector<bf16>& values);
std::vector<float> to_float(const std::vector<fp8_e4m3>& values);
// Downloads and widens. On failure returns an empty vector (which max_scaled_error scores as infinity).
std::vector<float> download_float(const DeviceBuffer<bf16>& buffer);
std::vector<float> download_float(const DeviceBuffer<fp8_e4m3>& buffer);
std::vector<float> download_float(const DeviceBuffer<float>& buffer);

// Largest |got - want| divided by the root mean square of `want`. Infinity where the sizes differ, either is
// empty, `want` is all zero or anything is not finite.
double max_scaled_error(const std::vector<float>& got, const std::vector<float>& want);

}  // namespace cglint::kernels
