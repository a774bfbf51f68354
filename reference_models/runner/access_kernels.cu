#include "runner/access_kernels.h"

namespace cglint::models {
namespace {

constexpr int kBlock = 256;

// A warp a granule, eight bytes a lane.
__global__ void diff_kernel(const std::uint8_t* now, const std::uint8_t* before, std::size_t bytes, ChangedGranule* list,
                            std::uint32_t capacity, std::uint32_t* count) {
  const unsigned lane = threadIdx.x % 32;
  const std::size_t granules = (bytes + ChangedGranule::kBytes - 1) / ChangedGranule::kBytes;
  const std::size_t warps = static_cast<std::size_t>(gridDim.x) * blockDim.x / 32;
  for (std::size_t g = (static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32; g < granules; g += warps) {
    const std::size_t at = g * ChangedGranule::kBytes + lane * 8;
    unsigned mask = 0;
    if (at + 8 <= bytes) {
      const std::uint64_t difference = *reinterpret_cast<const std::uint64_t*>(now + at) ^
                                       *reinterpret_cast<const std::uint64_t*>(before + at);
      for (int b = 0; b < 8; ++b) mask |= static_cast<unsigned>((difference >> (8 * b) & 0xFF) != 0) << b;
    } else {
      for (std::size_t b = 0; at + b < bytes; ++b) mask |= static_cast<unsigned>(now[at + b] != before[at + b]) << b;
    }
    if (__ballot_sync(0xFFFFFFFFU, mask != 0) == 0) continue;
    std::uint32_t place = 0;
    if (lane == 0) place = atomicAdd(count, 1U);
    place = __shfl_sync(0xFFFFFFFFU, place, 0);
    if (place >= capacity) continue;
    if (lane == 0) list[place].number = g;
    list[place].mask[lane] = static_cast<std::uint8_t>(mask);
  }
}

// A block a cell, in turn.
__global__ void cells_kernel(CellMove move, const Cell* cells, std::uint32_t count, const std::uint8_t* chosen,
                             std::uint8_t* buffer) {
  for (std::uint32_t i = blockIdx.x; i < count; i += gridDim.x) {
    if (chosen != nullptr && chosen[i] == 0) continue;
    auto* const memory = reinterpret_cast<std::uint8_t*>(cells[i].address);
    std::uint8_t* const packed = buffer == nullptr ? nullptr : buffer + cells[i].at;
    for (std::uint64_t b = threadIdx.x; b < cells[i].bytes; b += blockDim.x) {
      if (move == CellMove::pack) packed[b] = memory[b];
      if (move == CellMove::unpack) memory[b] = packed[b];
      if (move == CellMove::flip) memory[b] ^= 0xA5;
    }
  }
}

__global__ void compare_kernel(const Cell* cells, std::uint32_t count, const std::uint8_t* a, const std::uint8_t* b,
                               std::uint8_t* differs) {
  for (std::uint32_t i = blockIdx.x; i < count; i += gridDim.x) {
    const std::uint8_t* const left = a == nullptr ? reinterpret_cast<const std::uint8_t*>(cells[i].address) : a + cells[i].at;
    const std::uint8_t* const right = b + cells[i].at;
    bool other = false;
    for (std::uint64_t n = threadIdx.x; n < cells[i].bytes; n += blockDim.x) other = other || left[n] != right[n];
    const int any = __syncthreads_or(other ? 1 : 0);
    if (threadIdx.x == 0) differs[i] = any != 0 ? 1 : 0;
  }
}

unsigned grid_of(std::uint32_t count) {
  return count < 4096 ? count : 4096;
}

}  // namespace

cudaError_t enqueue_diff(const void* now, const void* before, std::size_t bytes, ChangedGranule* list, std::uint32_t capacity,
                         std::uint32_t* count, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  const std::size_t granules = (bytes + ChangedGranule::kBytes - 1) / ChangedGranule::kBytes;
  const auto blocks = static_cast<unsigned>(granules / (kBlock / 32) + 1 < 4096 ? granules / (kBlock / 32) + 1 : 4096);
  diff_kernel<<<blocks, kBlock, 0, stream>>>(static_cast<const std::uint8_t*>(now), static_cast<const std::uint8_t*>(before),
                                             bytes, list, capacity, count);
  return cudaGetLastError();
}

cudaError_t enqueue_cells(CellMove move, const Cell* cells, std::uint32_t count, const std::uint8_t* chosen, std::uint8_t* buffer,
                          cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  cells_kernel<<<grid_of(count), kBlock, 0, stream>>>(move, cells, count, chosen, buffer);
  return cudaGetLastError();
}

cudaError_t enqueue_compare(const Cell* cells, std::uint32_t count, const std::uint8_t* a, const std::uint8_t* b,
                            std::uint8_t* differs, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  compare_kernel<<<grid_of(count), kBlock, 0, stream>>>(cells, count, a, b, differs);
  return cudaGetLastError();
}

}  // namespace cglint::models
