// Threads that parse graph records while the reader goes on with the file.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "import/capture/graph_record.h"

namespace cglint::import::capture {

class ParsePool {
 public:
  // A line, and once it is done what it holds. `parser` tells whose numbers the record's graph has.
  struct Job {
    std::vector<char> text;   // with padding
    std::size_t size = 0;     // of the line
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
