// A few threads that work through the items of one list at a time.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace cglint::base {

// Owns its threads, which wait between lists. Used by one thread at a time.
class Crew {
 public:
  // `size` counts the caller of run(): 1 has no thread of its own. At least 1; fewer threads work where the system gives no more.
  explicit Crew(unsigned size);
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;
  ~Crew();

  // Calls work(0), ..., work(count - 1), each once, and returns when all have returned. Items are begun in this order, several at a
  // time, by the caller and the threads. After an item has thrown no further one is begun, and run() throws what the first of those
  // that threw has thrown.
  void run(std::size_t count, const std::function<void(std::size_t)>& work);

 private:
  void wait_for_work();
  void take_items(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable begun_, finished_;
  // Of the list; work_ is null between two.
  const std::function<void(std::size_t)>* work_ = nullptr;
  std::size_t next_ = 0, count_ = 0;
  std::size_t running_ = 0;          // items that were begun and have not returned
  std::size_t failed_item_ = 0;
  std::exception_ptr failure_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace cglint::base
