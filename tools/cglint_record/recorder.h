// The recorder that lives in the recorded process: keeps the books that the callbacks fill, and writes each
// graph when it is instantiated. Thread safe. Two locks, taken in this order: `output_` (the file), `state_`
// (the books); neither is held during a call into the driver, CUPTI or Python, because callbacks come with
// their locks held.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "capture/allocation_timeline.h"
#include "capture/capture_book.h"
#include "capture/eager_book.h"
#include "capture/generated_source.h"
#include "capture/graph_walker.h"
#include "capture/moment_log.h"
#include "capture/native_frames.h"
#include "capture/process_facts.h"
#include "capture/range_stack.h"
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
  bool native_stacks = true;   // $CGLINT_RECORD_NATIVE_STACKS=0
  bool eager = true;           // $CGLINT_RECORD_EAGER=0
  bool redact = false;         // $CGLINT_RECORD_REDACT=1 (paths, host, command), =names (and kernel and range names)
  bool redact_names = false;
  int flush_signal = 0;                // $CGLINT_RECORD_FLUSH_SIGNAL
  std::uint64_t detach_launches = 0;   // $CGLINT_RECORD_DETACH=N: after N graph launches,
  std::uint64_t detach_after_ns = 0;   // =Ns: N seconds after the first capture; 0: never
  std::uint32_t replays = 0;   // $CGLINT_RECORD_REPLAYS
};
Settings settings_from_environment();

// One line on stderr that begins with "cglint: ".
void log_line(const std::string& text);
// One line (list_lines.h) to $CGLINT_RECORD_LIST, if it is set.
void add_to_list(std::string_view line);

// A graph that is being instantiated, as it was walked; kept by the thread that instantiates. `nodes`: where
// the clones come from.
struct Instantiation {
  std::uint32_t number = 0;
  std::vector<capture::GraphRecord> records;  // bodies first
  std::size_t expected_ops = 0;               // 0: not known
  std::int64_t walk_ns = 0;                   // what the walk took
  struct Place {
    std::int64_t node;  // -1: in a body
    std::string_view kind;
  };
  std::unordered_map<capture::Handle, Place> nodes;
};

class Recorder {
 public:
  using Handle = capture::Handle;

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
  void count_captures();  // after the book's captures changed

  // The calling thread's source stack, or kNone: Python frames, then native ones, innermost first each.
  std::uint32_t take_stack();
  // The same of Python frames that somebody else found.
  std::uint32_t intern_stack(std::vector<capture::FrameText> frames);
  // The calling thread's NVTX ranges, or kNone.
  std::uint32_t take_ranges();

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
  // Something happened now that other libraries' events are compared with.
  void mark_moment();

  // Reads the graph; nothing is written yet.
  std::unique_ptr<Instantiation> walk(CUgraph graph, std::optional<std::uint64_t> flags);
  // Writes it; the file is opened by the first one. `exec` 0: the executable graph's handle is not known.
  void write_instantiated(Instantiation& instantiation, Handle exec, std::int64_t instantiate_ns,
                          std::uint64_t memory_bytes);
  // A capture that came to nothing.
  void write_failed(capture::GraphEntry entry);
  // The program leaves the calling thread's open capture because of an error of its own. False where there is none, or
  // the driver had broken it before.
  bool capture_left(const std::string& error, std::vector<capture::FrameText> frames);

  // Executable graphs.
  void exec_updated(Handle exec, bool ok);
  void exec_uploaded(Handle exec, std::int64_t ns);
  void exec_destroyed(Handle exec);
  // True when the process should be let go (--detach-after).
  bool exec_launched(Handle exec);
  [[nodiscard]] bool detach_is_due() const;

  // Launches outside capture.
  [[nodiscard]] bool records_eager() const { return settings_.eager; }
  bool eager_wants_stack(Handle function);
  void add_eager(CUfunction function, const char* name, const capture::EagerLaunch& launch);
  // A copy or fill on a stream that does not capture; wanted where the calling thread has a capture open.
  [[nodiscard]] bool has_open_capture(std::uint32_t thread);
  void add_eager_copy(const char* kind, const capture::NodeOrigin& origin);

  // Writes what changed since the last write: frees, launches outside capture, updates.
  void flush();
  // The same after a free, if graphs have the address of what was freed: the next launch may be the process's last.
  void flush_held_frees();
  // Is a flush due: somebody asked, or a burst of captures is over?
  [[nodiscard]] bool flush_is_due() const;
  void request_flush() { flush_requested_.store(true, std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t flushes() const { return flushes_.load(std::memory_order_relaxed); }

  // The state of a framework's caching allocator, which only the framework can tell. expect_blocks: from here on
  // graphs promise it. add_blocks: good words (capture::check_blocks) of one moment, with times; false where there is no
  // file yet. blocks_missed: that many of its calls are not known, so that a block may have changed hands unseen.
  void expect_blocks() { blocks_expected_.store(true, std::memory_order_relaxed); }
  bool add_blocks(std::span<const std::uint64_t> words, std::span<const std::string_view> pools, std::uint64_t moment);
  void blocks_failed(std::string_view why);
  void blocks_missed() { blocks_missed_.fetch_add(1, std::memory_order_relaxed); }

  // Replays: clones while a graph is instantiated, then operations as CUPTI hands them over.
  void refuse_replays(const char* why) { no_replays_ = why; }
  [[nodiscard]] bool records_replays() const { return settings_.replays != 0 && no_replays_ == nullptr; }
  void add_clone(const Instantiation& instantiation, capture::Handle original, std::uint64_t clone_id);
  void add_operations(std::span<const capture::ActivityOp> operations, std::size_t dropped);

  // Have all graphs been launched often enough to be traced? Have these launches come in?
  [[nodiscard]] bool is_traced();
  [[nodiscard]] bool has_all_replays();

  // The rest of the file and its end record. `why` not empty: recording ended before the process did.
  void finish(const std::string& why = "");

 private:
  // What is known of an executable graph that lives.
  struct Exec {
    std::uint32_t number = 0;
    std::uint64_t launches = 0;
    std::int64_t last_launch_us = 0;
    capture::ExecFacts facts;
    bool is_ended = false;    // its graph_end is written
    bool is_changed = false;  // since its line was written; then it is in changed_execs_
  };
  bool open_file();  // with output_ held
  void write_now();  // what changed
  // With output_ and state_ held: appends the lines.
  void write_changes(std::string& lines);
  void write_record(capture::GraphRecord& record, std::string& lines);
  void end_graph(Exec& exec, std::string& lines);
  void write_exec(Exec& exec, std::string& lines);
  void exec_changed(Handle handle, Exec& exec);
  void redact(capture::GraphRecord& record) const;
  void polish(std::vector<capture::FrameText>& frames);  // generated code is followed, folders left out if asked for
  [[nodiscard]] std::vector<capture::GpuFacts> read_gpus() const;

  const Settings settings_;
  const cuda::DriverApi& driver_;
  const cuda::CuptiApi& cupti_;
  std::atomic<bool> on_{true}, logged_{false}, stacks_on_;
  std::atomic<std::uint64_t> sequence_{0}, stacks_missed_{0};
  std::atomic<std::uint32_t> numbers_{0};
  std::atomic<int> captures_{0}, misses_in_a_row_{0};
  std::atomic<bool> flush_requested_{false}, blocks_expected_{false};
  std::atomic<std::uint64_t> flushes_{0}, blocks_missed_{0};
  std::atomic<std::uint64_t> flush_due_ns_{0}, first_capture_ns_{0}, graph_launches_{0};
  const char* no_replays_ = nullptr;  // why there are none

  std::mutex output_;
  capture::RecordFile file_;
  bool open_failed_ = false;

  std::mutex state_;
  capture::CaptureBook book_;
  capture::AllocationTimeline timeline_;
  capture::StackTable stacks_;
  capture::ReplayBook replays_;
  capture::RangeTable ranges_;
  struct KnownFrame {
    std::uint32_t index, launch_index;  // of the stack table; kNone: left out. launch_index: behind a launch stub
    bool is_launch_stub, is_runtime;
    std::string symbol;
  };
  std::unordered_map<std::uintptr_t, KnownFrame> native_frames_;
  std::unordered_map<Handle, Exec> execs_;
  std::deque<Handle> open_execs_;  // whose graph has no graph_end yet, oldest first
  std::vector<Handle> changed_execs_;
  std::string pending_;            // lines to write with the next ones
  std::vector<capture::StreamFacts> streams_;
  std::uint64_t dropped_ = 0, execs_given_up_ = 0;
  std::uint64_t held_flush_ns_ = 0;
  capture::MomentLog moments_;     // ends of captures, destructions of executables

  std::mutex generated_mutex_;  // taken alone
  capture::GeneratedSources generated_;

  std::mutex eager_mutex_;  // taken after the others
  capture::EagerBook eager_;
};

}  // namespace cglint::record
