#include "import/capture/parse_pool.h"

namespace cglint::import::capture {

ParsePool::ParsePool(const ReadOptions& options, unsigned threads) {
  for (unsigned i = 0; i < threads; ++i) parsers_.push_back(std::make_unique<GraphRecordParser>(options));
  for (unsigned i = 0; i < threads; ++i) threads_.emplace_back([this, i] { work(i); });
}

ParsePool::~ParsePool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  submitted_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ParsePool::submit(Job& job) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(&job);
  }
  submitted_.notify_one();
}

void ParsePool::wait(Job& job) {
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [&] { return job.done; });
  if (job.failure) std::rethrow_exception(job.failure);
}

void ParsePool::work(unsigned number) {
  std::unique_lock lock(mutex_);
  while (true) {
    submitted_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (stop_) return;
    Job& job = *queue_.front();
    queue_.pop_front();
    lock.unlock();
    job.parser = number;
    try {
      job.record = parsers_[number]->parse(job.text.view(), job.text.padded_size(), job.offset_bytes);
    } catch (...) {
      job.failure = std::current_exception();
    }
    lock.lock();
    job.done = true;
    finished_.notify_one();
  }
}

}  // namespace cglint::import::capture
