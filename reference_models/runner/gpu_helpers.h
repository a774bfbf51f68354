// Kernels that the timing loop enqueues around a replay.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace cglint::models {

// Whether kernels were compiled for the current device: cudaSuccess, or why one cannot be loaded.
[[nodiscard]] cudaError_t find_kernels();
// Reads `bytes` of `data` once, so that L2 holds (clean) lines of it and nothing else. `sink` takes 4 bytes
// that nobody reads.
[[nodiscard]] cudaError_t enqueue_read(const void* data, std::size_t bytes, std::uint32_t* sink,
                                       cudaStream_t stream);
// Keeps the stream busy for `ns` nanoseconds with one thread.
[[nodiscard]] cudaError_t enqueue_spin(std::uint64_t ns, cudaStream_t stream);

}  // namespace cglint::models
