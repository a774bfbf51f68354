// Threads that parse graph records while the reader goes on with the file.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "import/capture/graph_record.h"

namespace cglint::import::capture {

// A copy of a line, with zero bytes behind it. Its memory can be used again for another line.
class PaddedLine {
 public:
  void assign(std::string_view line, std::size_t padding) {
    const std::size_t needed = line.size() + padding;
    if (needed > capacity_) {
      capacity_ = needed + needed / 4;
      bytes_ = std::make_unique_for_overwrite<char[]>(capacity_);
    }
    std::memcpy(bytes_.get(), line.data(), line.size());
    std::memset(bytes_.get() + line.size(), 0, padding);
    size_ = line.size();
    padded_ = needed;
  }
  [[nodiscard]] std::string_view view() const { return {bytes_.get(), size_}; }
  [[nodiscard]] std::size_t padded_size() const { return padded_; }
  [[nodiscard]] std::size_t capacity() const { return capacity_; }

 private:
  std::unique_ptr<char[]> bytes_;
  std::size_t size_ = 0, padded_ = 0, capacity_ = 0;
};

class ParsePool {
 public:
  // A line, and once it is done what it holds. `parser` tells whose numbers the record's graph has.
  struct Job {
    PaddedLine text;
    std::uint64_t offset_bytes = 0;
    GraphRecord record;
    unsigned parser = 0;
    bool done = false;
    std::exception_ptr failure;  // memory ran out
  };

  // `options` must outlive the pool.
  ParsePool(const ReadOptions& options, unsigned threads);
  ParsePool(const ParsePool&) = delete;
  ParsePool& operator=(const ParsePool&) = delete;
  ~ParsePool();  // jobs that were not begun are dropped

  // Jobs are begun in the order of these calls. The job must live until it has been waited for, or until the pool is gone.
  void submit(Job& job);
  // Until the job is done. Throws what its thread threw.
  void wait(Job& job);

 private:
  void work(unsigned number);

  std::vector<std::unique_ptr<GraphRecordParser>> parsers_;
  std::mutex mutex_;
  std::condition_variable submitted_, finished_;
  std::deque<Job*> queue_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace cglint::import::capture
