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

// Eight bytes at a time where both sides are aligned alike, which Cell::at is chosen for; `word` and `byte` are given offsets into
// the cell. Blocks of one column share a cell.
template <typename Word, typename Byte>
__device__ void for_each_piece(const Cell& cell, const Word& word, const Byte& byte) {
  const std::uint64_t first = blockIdx.y * static_cast<std::uint64_t>(blockDim.x) + threadIdx.x;
  const std::uint64_t step = static_cast<std::uint64_t>(gridDim.y) * blockDim.x;
  std::uint64_t head = (8 - cell.address % 8) % 8;
  if (head > cell.bytes) head = cell.bytes;
  const std::uint64_t words = (cell.bytes - head) / 8;
  for (std::uint64_t i = first; i < words; i += step) word(head + 8 * i);
  for (std::uint64_t i = first; i < head; i += step) byte(i);
  for (std::uint64_t i = head + 8 * words + first; i < cell.bytes; i += step) byte(i);
}

__device__ std::uint64_t& word_at(std::uint8_t* bytes, std::uint64_t offset) {
  return *reinterpret_cast<std::uint64_t*>(bytes + offset);
}
__device__ std::uint64_t word_at(const std::uint8_t* bytes, std::uint64_t offset) {
  return *reinterpret_cast<const std::uint64_t*>(bytes + offset);
}

__global__ void cells_kernel(CellMove move, const Cell* cells, std::uint32_t count, const std::uint8_t* chosen,
                             std::uint8_t* buffer) {
  for (std::uint32_t i = blockIdx.x; i < count; i += gridDim.x) {
    if (chosen != nullptr && chosen[i] == 0) continue;
    auto* const memory = reinterpret_cast<std::uint8_t*>(cells[i].address);
    std::uint8_t* const packed = buffer == nullptr ? nullptr : buffer + cells[i].at;
    for_each_piece(
        cells[i],
        [&](std::uint64_t at) {
          if (move == CellMove::pack) word_at(packed, at) = word_at(memory, at);
          if (move == CellMove::unpack) word_at(memory, at) = word_at(packed, at);
          if (move == CellMove::flip) word_at(memory, at) ^= 0xA5A5A5A5A5A5A5A5U;
        },
        [&](std::uint64_t at) {
          if (move == CellMove::pack) packed[at] = memory[at];
          if (move == CellMove::unpack) memory[at] = packed[at];
          if (move == CellMove::flip) memory[at] ^= 0xA5;
        });
  }
}

__global__ void compare_kernel(const Cell* cells, std::uint32_t count, const std::uint8_t* a, const std::uint8_t* b,
                               std::uint8_t* differs) {
  for (std::uint32_t i = blockIdx.x; i < count; i += gridDim.x) {
    const std::uint8_t* const left = a == nullptr ? reinterpret_cast<const std::uint8_t*>(cells[i].address) : a + cells[i].at;
    const std::uint8_t* const right = b + cells[i].at;
    bool other = false;
    for_each_piece(
        cells[i], [&](std::uint64_t at) { other = other || word_at(left, at) != word_at(right, at); },
        [&](std::uint64_t at) { other = other || left[at] != right[at]; });
    if (other) differs[i] = 1;  // all that write write the same
  }
}

dim3 grid_of_cells(std::uint32_t count) {
  return {count < 2048 ? count : 2048, 16};
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
  cells_kernel<<<grid_of_cells(count), kBlock, 0, stream>>>(move, cells, count, chosen, buffer);
  return cudaGetLastError();
}

cudaError_t enqueue_compare(const Cell* cells, std::uint32_t count, const std::uint8_t* a, const std::uint8_t* b,
                            std::uint8_t* differs, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  if (const cudaError_t status = cudaMemsetAsync(differs, 0, count, stream); status != cudaSuccess) return status;
  compare_kernel<<<grid_of_cells(count), kBlock, 0, stream>>>(cells, count, a, b, differs);
  return cudaGetLastError();
}

}  // namespace cglint::models
