#include "import/common/read_ahead.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

namespace cglint::import {
namespace {

constexpr std::size_t kBlockBytes = std::size_t{1} << 20;
constexpr std::size_t kBlocks = 4;

struct Block {
  std::vector<char> bytes;
  base::Error error;
  bool failed = false;
  bool torn = false;
  bool end = false;
  std::uint64_t consumed = 0;  // of the file, when the block was made
};

class ReadAheadSource final : public Source {
 public:
  explicit ReadAheadSource(Source& inner)
      : Source(inner.name()), inner_(inner), total_(inner.total_bytes()), thread_([this] { run(); }) {}
  ReadAheadSource(const ReadAheadSource&) = delete;
  ReadAheadSource& operator=(const ReadAheadSource&) = delete;
  ~ReadAheadSource() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    space_.notify_all();
    thread_.join();
  }

  base::Result<std::string_view> peek() override {
    return base::make_error(base::ErrorCode::internal, "peek before reading ahead");
  }

  base::Result<std::size_t> read(char* buffer, std::size_t size) override {
    std::size_t done = 0;
    while (done < size) {
      if (used_ == current_.bytes.size()) {
        if (current_.failed) {
          if (done != 0) return done;
          torn_ = current_.torn;
          return current_.error;
        }
        if (current_.end) return done;
        if (done != 0 && !has_block()) return done;
        next_block();
        continue;
      }
      const std::size_t n = std::min(size - done, current_.bytes.size() - used_);
      std::memcpy(buffer + done, current_.bytes.data() + used_, n);
      used_ += n;
      done += n;
      offset_ += n;
    }
    return done;
  }

  [[nodiscard]] bool torn() const override { return torn_; }
  [[nodiscard]] std::uint64_t offset_bytes() const override { return offset_; }
  [[nodiscard]] std::uint64_t consumed_bytes() const override { return current_.consumed; }
  [[nodiscard]] std::uint64_t total_bytes() const override { return total_; }

 private:
  void run() {
    while (true) {
      Block block;
      {
        std::unique_lock lock(mutex_);
        space_.wait(lock, [this] { return stop_ || ready_.size() < kBlocks; });
        if (stop_) return;
        if (!spare_.empty()) {
          block.bytes = std::move(spare_.back());
          spare_.pop_back();
        }
      }
      block.bytes.resize(kBlockBytes);
      std::size_t filled = 0;
      while (filled < kBlockBytes) {
        auto n = inner_.read(block.bytes.data() + filled, kBlockBytes - filled);
        if (!n) {
          block.error = std::move(n).error();
          block.failed = true;
          block.torn = inner_.torn();
          break;
        }
        if (*n == 0) {
          block.end = true;
          break;
        }
        filled += *n;
      }
      block.bytes.resize(filled);
      block.consumed = inner_.consumed_bytes();
      const bool last = block.end || block.failed;
      {
        const std::lock_guard lock(mutex_);
        ready_.push_back(std::move(block));
      }
      filled_.notify_one();
      if (last) return;
    }
  }

  bool has_block() {
    const std::lock_guard lock(mutex_);
    return !ready_.empty();
  }

  void next_block() {
    std::unique_lock lock(mutex_);
    filled_.wait(lock, [this] { return !ready_.empty(); });
    if (current_.bytes.capacity() != 0) spare_.push_back(std::move(current_.bytes));
    current_ = std::move(ready_.front());
    ready_.pop_front();
    used_ = 0;
    lock.unlock();
    space_.notify_one();
  }

  Source& inner_;
  const std::uint64_t total_;
  // Reader's side.
  Block current_;
  std::size_t used_ = 0;
  std::uint64_t offset_ = 0;
  bool torn_ = false;
  // Shared.
  std::mutex mutex_;
  std::condition_variable space_, filled_;
  std::deque<Block> ready_;
  std::vector<std::vector<char>> spare_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Source> read_ahead(Source& inner) { return std::make_unique<ReadAheadSource>(inner); }

}  // namespace cglint::import
