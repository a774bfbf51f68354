#include "base/crew.h"

#include <system_error>
#include <utility>

#include "base/check.h"

namespace cglint::base {

Crew::Crew(unsigned size) {
  CGLINT_CHECK(size >= 1);
  threads_.reserve(size - 1);
  try {
    for (unsigned i = 1; i < size; ++i) threads_.emplace_back([this] { wait_for_work(); });
  } catch (const std::system_error&) {  // the system gives no more threads: those that there are do the work
  }
}

Crew::~Crew() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  begun_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Crew::run(std::size_t count, const std::function<void(std::size_t)>& work) {
  std::unique_lock lock(mutex_);
  CGLINT_CHECK(work_ == nullptr);
  work_ = &work;
  next_ = 0;
  count_ = count;
  if (count > 1) begun_.notify_all();
  take_items(lock);
  finished_.wait(lock, [this] { return running_ == 0; });
  work_ = nullptr;
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void Crew::wait_for_work() {
  std::unique_lock lock(mutex_);
  while (true) {
    begun_.wait(lock, [this] { return stop_ || (work_ != nullptr && next_ < count_); });
    if (stop_) return;
    take_items(lock);
  }
}

// Returns, with the lock held, when no item is left to begin.
void Crew::take_items(std::unique_lock<std::mutex>& lock) {
  while (next_ < count_) {
    const std::size_t item = next_++;
    const std::function<void(std::size_t)>& work = *work_;
    ++running_;
    lock.unlock();
    std::exception_ptr failure;
    try {
      work(item);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    --running_;
    if (failure && (!failure_ || item < failed_item_)) {
      failure_ = failure;
      failed_item_ = item;
    }
    if (failure) next_ = count_;
  }
  if (running_ == 0) finished_.notify_all();
}

}  // namespace cglint::base
