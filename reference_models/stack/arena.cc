#include "stack/arena.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace cglint::models {

namespace {
// As engines' allocators do; 16-byte vector loads and tensor maps need less.
constexpr std::size_t kGranuleBytes = 512;

std::size_t rounded(std::size_t bytes) {
  return (bytes + kGranuleBytes - 1) / kGranuleBytes * kGranuleBytes;
}

struct Pool {
  void* segment = nullptr;
  std::map<std::size_t, std::size_t> free_blocks;  // offset -> bytes; neighbours are merged
  std::size_t used_bytes = 0;
  std::size_t peak_bytes = 0;

  // The offset of a block of `bytes`, the first that fits.
  bool take(std::size_t bytes, std::size_t& offset) {
    for (auto block = free_blocks.begin(); block != free_blocks.end(); ++block) {
      if (block->second < bytes) continue;
      offset = block->first;
      const std::size_t left = block->second - bytes;
      free_blocks.erase(block);
      if (left != 0) free_blocks.emplace(offset + bytes, left);
      used_bytes += bytes;
      peak_bytes = std::max(peak_bytes, used_bytes);
      return true;
    }
    return false;
  }

  void give_back(std::size_t offset, std::size_t bytes) {
    used_bytes -= bytes;
    const auto next = free_blocks.lower_bound(offset);
    if (next != free_blocks.end() && next->first == offset + bytes) {
      bytes += next->second;
      free_blocks.erase(next);
    }
    const auto after = free_blocks.lower_bound(offset);
    if (after != free_blocks.begin()) {
      const auto before = std::prev(after);
      if (before->first + before->second == offset) {
        before->second += bytes;
        return;
      }
    }
    free_blocks.emplace(offset, bytes);
  }
};
}  // namespace

struct Arena::State {
  std::map<int, Pool> pools;  // nodes stay where they are: blocks point to them
  std::size_t persistent_bytes = 0;

  ~State() {
    for (auto& [number, pool] : pools)
      if (pool.segment != nullptr) (void)cudaFree(pool.segment);
  }
};

// What the owners of one storage share. It keeps the arena's state alive, so that a tensor that outlives its
// arena (which the contract forbids) does no harm.
struct Tensor::Block {
  std::shared_ptr<Arena::State> state;
  std::size_t* persistent_bytes = nullptr;
  void* own_memory = nullptr;  // persistent: from cudaMalloc
  Pool* pool = nullptr;        // transient
  std::size_t offset = 0;
  std::size_t bytes = 0;

  ~Block() {
    if (own_memory != nullptr) {
      (void)cudaFree(own_memory);
      *persistent_bytes -= bytes;
    } else if (pool != nullptr) {
      pool->give_back(offset, bytes);
    }
  }
};

Tensor::Tensor(Tensor&& other) noexcept
    : block_(std::move(other.block_)),
      address_(std::exchange(other.address_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

Tensor& Tensor::operator=(Tensor&& other) noexcept {
  if (this != &other) {
    block_ = std::move(other.block_);
    address_ = std::exchange(other.address_, nullptr);
    size_bytes_ = std::exchange(other.size_bytes_, 0);
  }
  return *this;
}

Tensor::~Tensor() = default;

Tensor Tensor::share() const {
  Tensor copy;
  copy.block_ = block_;
  copy.address_ = address_;
  copy.size_bytes_ = size_bytes_;
  return copy;
}

void Tensor::release() {
  block_.reset();
  address_ = nullptr;
  size_bytes_ = 0;
}

Arena::Arena() : state_(std::make_shared<State>()) {}
Arena::~Arena() = default;

cudaError_t Arena::persistent(std::size_t bytes, Tensor& out) {
  out.release();
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, bytes);
  if (status != cudaSuccess) {
    (void)cudaGetLastError();  // running out of memory is not sticky
    return status;
  }
  out.block_ = std::make_shared<Tensor::Block>();
  out.block_->state = state_;
  out.block_->persistent_bytes = &state_->persistent_bytes;
  out.block_->own_memory = memory;
  out.block_->bytes = bytes;
  out.address_ = memory;
  out.size_bytes_ = bytes;
  state_->persistent_bytes += bytes;
  return cudaSuccess;
}

cudaError_t Arena::reserve_transient(std::size_t bytes, int pool_number) {
  if (bytes == 0 || state_->pools.contains(pool_number)) return cudaErrorInvalidValue;
  bytes = rounded(bytes);
  void* segment = nullptr;
  const cudaError_t status = cudaMalloc(&segment, bytes);
  if (status != cudaSuccess) {
    (void)cudaGetLastError();
    return status;
  }
  Pool& pool = state_->pools[pool_number];
  pool.segment = segment;
  pool.free_blocks.emplace(0, bytes);
  return cudaSuccess;
}

cudaError_t Arena::transient(std::size_t bytes, Tensor& out, int pool_number) {
  out.release();
  const auto found = state_->pools.find(pool_number);
  if (bytes == 0 || found == state_->pools.end()) return cudaErrorInvalidValue;
  Pool& pool = found->second;
  std::size_t offset = 0;
  if (!pool.take(rounded(bytes), offset)) return cudaErrorMemoryAllocation;
  out.block_ = std::make_shared<Tensor::Block>();
  out.block_->state = state_;
  out.block_->pool = &pool;
  out.block_->offset = offset;
  out.block_->bytes = rounded(bytes);
  out.address_ = static_cast<char*>(pool.segment) + offset;
  out.size_bytes_ = bytes;
  return cudaSuccess;
}

std::size_t Arena::persistent_bytes() const {
  return state_->persistent_bytes;
}
std::size_t Arena::transient_peak_bytes() const {
  std::size_t bytes = 0;
  for (const auto& [number, pool] : state_->pools) bytes += pool.peak_bytes;
  return bytes;
}

}  // namespace cglint::models
