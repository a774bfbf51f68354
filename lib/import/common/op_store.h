// A long list of small records that is filled once, sorted in place, and given back to the system piece by piece while it is used up:
// the traces' peak of memory is where operations become replays.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "base/check.h"

namespace cglint::import {

// Pages straight from the system, so that giving them back shrinks the process. Throws std::bad_alloc.
class PageBlock {
 public:
  explicit PageBlock(std::size_t bytes);
  PageBlock(PageBlock&& other) noexcept : data_(other.data_), bytes_(other.bytes_) { other.data_ = nullptr; }
  PageBlock& operator=(PageBlock&&) = delete;
  ~PageBlock() { reset(); }
  void reset();
  [[nodiscard]] void* data() const { return data_; }

 private:
  void* data_;
  std::size_t bytes_;
};

template <typename T>
class OpStore {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] bool empty() const { return size_ == 0; }
  // Not for what was released.
  T& operator[](std::size_t i) { return chunks_[i / kChunk].ops[i % kChunk]; }
  const T& operator[](std::size_t i) const { return chunks_[i / kChunk].ops[i % kChunk]; }
  void push_back(const T& op) {
    if (size_ % kChunk == 0) chunks_.emplace_back();
    Chunk& chunk = chunks_.back();
    chunk.ops[size_ % kChunk] = op;
    ++chunk.left;
    ++size_;
  }
  // Puts the element at first + order[i] to first + i: `order` lists the old places in the new order, and is used up.
  void permute(std::size_t first, std::vector<std::uint32_t>& order) {
    CGLINT_CHECK(first + order.size() <= size_);
    for (std::uint32_t i = 0; i < order.size(); ++i) {
      if (order[i] == i) continue;
      const T moved = (*this)[first + i];
      std::uint32_t at = i;
      while (order[at] != i) {
        (*this)[first + at] = (*this)[first + order[at]];
        const std::uint32_t next = order[at];
        order[at] = at;
        at = next;
      }
      (*this)[first + at] = moved;
      order[at] = at;
    }
  }
  // The same for elements that move in runs; `runs` lists all of them in the new order, and nothing was released. Takes 4 bytes
  // a run and a bit an element.
  struct Run {
    std::uint32_t first = 0, count = 0;  // old place
  };
  void permute_runs(const std::vector<Run>& runs) {
    std::vector<std::uint32_t> starts;  // new places
    starts.reserve(runs.size());
    std::uint32_t total = 0;
    for (const Run& run : runs) {
      starts.push_back(total);
      total += run.count;
    }
    CGLINT_CHECK(total == size_);
    const auto old_place = [&](std::uint32_t place) {
      const auto run = static_cast<std::size_t>(std::upper_bound(starts.begin(), starts.end(), place) - starts.begin()) - 1;
      return runs[run].first + (place - starts[run]);
    };
    std::vector<bool> done(size_);
    for (std::size_t run = 0; run < runs.size(); ++run) {
      if (runs[run].first == starts[run]) continue;
      for (std::uint32_t i = starts[run]; i < starts[run] + runs[run].count; ++i) {
        if (done[i]) continue;
        const T moved = (*this)[i];
        std::uint32_t at = i;
        for (std::uint32_t from = old_place(at); from != i; from = old_place(at)) {
          (*this)[at] = (*this)[from];
          done[at] = true;
          at = from;
        }
        (*this)[at] = moved;
        done[at] = true;
      }
    }
  }
  // [first, first + count) is not needed any more. Each element once.
  void release(std::size_t first, std::size_t count) {
    while (count != 0) {
      const std::size_t here = std::min(count, kChunk - first % kChunk);
      Chunk& chunk = chunks_[first / kChunk];
      CGLINT_DCHECK(chunk.left >= here);
      chunk.left -= here;
      if (chunk.left == 0) {
        chunk.pages.reset();
        chunk.ops = nullptr;
      }
      first += here;
      count -= here;
    }
  }

 private:
  static constexpr std::size_t kChunk = 16384;
  struct Chunk {
    PageBlock pages{kChunk * sizeof(T)};
    T* ops = static_cast<T*>(pages.data());
    std::size_t left = 0;
  };
  std::vector<Chunk> chunks_;
  std::size_t size_ = 0;
};

}  // namespace cglint::import
