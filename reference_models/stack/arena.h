// The models' device memory: a small caching allocator with the habits of an engine's (blocks of one
// cudaMalloc'ed segment are handed out, released and handed out again during a capture), so that a recorded
// graph shows the addresses that real captures show.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace cglint::models {

class Arena;

// A device buffer with one owner. address() is null once released, as data_ptr() is for a tensor whose
// storage was dropped: asking a released tensor for its address is how a null argument gets into a captured
// launch.
class Tensor {
 public:
  Tensor() = default;
  Tensor(Tensor&&) noexcept;
  Tensor& operator=(Tensor&&) noexcept;
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  ~Tensor();

  [[nodiscard]] void* address() const { return address_; }
  template <typename T>
  [[nodiscard]] T* as() const {
    return static_cast<T*>(address_);
  }
  [[nodiscard]] std::size_t size_bytes() const { return size_bytes_; }
  // Another owner of the same storage: the block lives until both are gone ("taking a reference").
  [[nodiscard]] Tensor share() const;
  // Drops the storage now; address() is null from here on.
  void release();

 private:
  friend class Arena;
  struct Block;
  std::shared_ptr<Block> block_;
  void* address_ = nullptr;
  std::size_t size_bytes_ = 0;
};

// Owns device memory; everything must be released before it is destroyed. Not thread-safe.
class Arena {
 public:
  Arena();
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Memory that lives as long as the arena (weights, caches): its own cudaMalloc, 256-byte aligned.
  [[nodiscard]] cudaError_t persistent(std::size_t bytes, Tensor& out);
  // The segment from which a pool's transient tensors are cut, first fit; call once a pool, before its first
  // transient(). A released block is handed out again at once, to the same pool only: use one pool a stream,
  // as engines' allocators do, so that the stream's order keeps the old user and the new one apart.
  [[nodiscard]] cudaError_t reserve_transient(std::size_t bytes, int pool = 0);
  // A block for an activation. cudaErrorMemoryAllocation where the segment has no room. No CUDA call: legal
  // during capture. Which blocks are cut where depends on the order of calls alone.
  [[nodiscard]] cudaError_t transient(std::size_t bytes, Tensor& out, int pool = 0);

  [[nodiscard]] std::size_t persistent_bytes() const;
  [[nodiscard]] std::size_t transient_peak_bytes() const;  // sum of the pools' peaks

 private:
  friend class Tensor;
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace cglint::models
