// The recorder that lives in the recorded process: keeps the books that the callbacks fill, and writes each
// graph when it is instantiated. Thread safe. Two locks, taken in this order: `output_` (the file), `state_`
// (the books); neither is held during a call into the driver, CUPTI or Python, because callbacks come with
// their locks held.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "capture/allocation_timeline.h"
#include "capture/capture_book.h"
#include "capture/graph_walker.h"
#include "capture/process_facts.h"
#include "capture/record_file.h"
#include "capture/replay_book.h"
#include "capture/stack_table.h"
#include "cuda/cupti_api.h"
#include "cuda/driver_api.h"

namespace cglint::record {

struct Settings {
  std::string out;             // $CGLINT_RECORD_OUT
  bool out_is_folder = false;  // $CGLINT_RECORD_OUT_FOLDER=1
  bool python_stacks = true;   // $CGLINT_RECORD_PYTHON_STACKS=0
  std::uint32_t replays = 0;   // $CGLINT_RECORD_REPLAYS
  std::string list;  // $CGLINT_RECORD_LIST: a file to which each process adds the name of its capture file
};
Settings settings_from_environment();

// One line on stderr that begins with "cglint: ".
void log_line(const std::string& text);

// Where the clones of a graph that is being instantiated come from; kept by the thread that instantiates.
struct Instantiation {
  std::uint32_t number = 0;
  struct Place {
    std::int64_t node;  // -1: in a body
    std::string_view kind;
  };
  std::unordered_map<capture::Handle, Place> nodes;
};

class Recorder {
 public:
  Recorder(Settings settings, const cuda::DriverApi& driver, const cuda::CuptiApi& cupti);

  [[nodiscard]] bool is_on() const { return on_.load(std::memory_order_relaxed); }
  // Something inside failed: said once, and nothing is recorded from here on.
  void switch_off(const std::string& reason);
  [[nodiscard]] const Settings& settings() const { return settings_; }
  [[nodiscard]] const cuda::DriverApi& driver() const { return driver_; }
  [[nodiscard]] const cuda::CuptiApi& cupti() const { return cupti_; }

  std::uint64_t next_sequence() { return sequence_.fetch_add(1, std::memory_order_relaxed) + 1; }
  // Is any stream of the process capturing? Cheap: the first question of every callback.
  [[nodiscard]] bool is_capturing() const { return captures_.load(std::memory_order_relaxed) > 0; }
  void capture_began() { captures_.fetch_add(1, std::memory_order_relaxed); }
  void capture_ended();

  // The calling thread's source stack, or kNone.
  std::uint32_t take_stack();

  template <typename Function>
  auto with_book(Function&& function) {
    const std::lock_guard lock(state_);
    return function(book_);
  }
  template <typename Function>
  auto with_timeline(Function&& function) {
    const std::lock_guard lock(state_);
    return function(timeline_);
  }
  void stream_priority(capture::Handle stream, int priority);

  // Walks the graph and writes it; the file is opened by the first one.
  std::optional<Instantiation> instantiate(CUgraph graph, std::optional<std::uint64_t> flags);

  // Replays: clones while a graph is instantiated, then operations as CUPTI hands them over.
  void set_layouts_known(bool known) { layouts_known_ = known; }
  [[nodiscard]] bool records_replays() const { return settings_.replays != 0 && layouts_known_; }
  void add_clone(const Instantiation& instantiation, capture::Handle original, std::uint64_t clone_id);
  void add_operations(std::span<const capture::ActivityOp> operations, std::size_t dropped);

  // The rest of the file and its end record.
  void finish();

 private:
  bool open_file();  // with output_ held
  [[nodiscard]] std::vector<capture::GpuFacts> read_gpus() const;

  const Settings settings_;
  const cuda::DriverApi& driver_;
  const cuda::CuptiApi& cupti_;
  std::atomic<bool> on_{true}, logged_{false}, stacks_on_;
  std::atomic<std::uint64_t> sequence_{0}, stacks_missed_{0};
  std::atomic<std::uint32_t> numbers_{0};
  std::atomic<int> captures_{0}, misses_in_a_row_{0};
  bool layouts_known_ = false;

  std::mutex output_;
  capture::RecordFile file_;
  bool open_failed_ = false;

  std::mutex state_;
  capture::CaptureBook book_;
  capture::AllocationTimeline timeline_;
  capture::StackTable stacks_;
  capture::ReplayBook replays_;
  std::vector<capture::StreamFacts> streams_;
  std::uint64_t dropped_ = 0;
};

}  // namespace cglint::record
