// Device-side parts of the measurement of accesses: what changed, and states of many small ranges put back at once.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace cglint::models {

// 256 bytes of which some differ: bit b of mask[l] stands for byte 8 * l + b.
struct ChangedGranule {
  static constexpr std::size_t kBytes = 256;
  std::uint64_t number = 0;  // from the start of the memory compared
  std::uint8_t mask[32] = {};
};

// Appends the granules of `now` that differ from `before` to `list`; `count` (on the device) counts on where `capacity` is passed.
[[nodiscard]] cudaError_t enqueue_diff(const void* now, const void* before, std::size_t bytes, ChangedGranule* list,
                                       std::uint32_t capacity, std::uint32_t* count, cudaStream_t stream);

// A range of device memory and where its bytes lie in a packed buffer; both are as far from a multiple of eight.
struct Cell {
  std::uint64_t address = 0;
  std::uint64_t at = 0;
  std::uint64_t bytes = 0;
};
enum class CellMove { pack, unpack, flip };  // memory to buffer, buffer to memory, memory ^= 0xA5 (no buffer)

// `chosen`, if not null, says of each cell whether it takes part (not 0).
[[nodiscard]] cudaError_t enqueue_cells(CellMove move, const Cell* cells, std::uint32_t count, const std::uint8_t* chosen,
                                        std::uint8_t* buffer, cudaStream_t stream);
// differs[i] = whether cell i of the two buffers differs; of memory and `b` where `a` is null.
[[nodiscard]] cudaError_t enqueue_compare(const Cell* cells, std::uint32_t count, const std::uint8_t* a, const std::uint8_t* b,
                                          std::uint8_t* differs, cudaStream_t stream);

}  // namespace cglint::models
