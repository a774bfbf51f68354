// Stands in for libcglint_record.so where there is no GPU: the same entry points for the Python helper, writing the
// same lines into $FAKE_RECORD_OUT. fake_graph() is a graph that was instantiated: from then on there is a file.
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "capture/allocator_blocks.h"
#include "capture/generated_source.h"
#include "capture/graph_record.h"
#include "capture/moment_log.h"
#include "capture/process_facts.h"
#include "capture/python_frames.h"
#include "capture/record_file.h"

namespace {
std::mutex mutex;
cglint::capture::RecordFile file;
std::uint64_t sequence = 0, flushes = 0;
std::uint32_t graphs = 0;
bool expected = false, over = false;
cglint::capture::MomentLog moments;
}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

// With the lock held: from here on there is a file.
static void open_file(std::string& lines) {
  if (file.is_open()) return;
  if (!file.open(std::getenv("FAKE_RECORD_OUT")).empty()) std::abort();
  cglint::capture::write_header("fake", false, 1, lines);
  cglint::capture::write_process(cglint::capture::this_process(), lines);
}

// A graph with one kernel that reads `address`, in an allocation of 1 MiB.
EXPORT void fake_graph(std::uint64_t address) {
  using namespace cglint::capture;
  const std::lock_guard lock(mutex);
  std::string lines;
  open_file(lines);
  AllocationTimeline timeline;
  timeline.add(address & ~std::uint64_t{0xfffff}, 1 << 20, "device", 0, ++sequence);
  write_allocations(timeline.take_changes(), lines);
  GraphRecord graph;
  graph.number = graphs++;
  graph.role = "captured";
  graph.entry.captured = true;
  graph.entry.status = "ok";
  graph.entry.begin_sequence = ++sequence;
  graph.instantiated = graph.allocations_known = true;
  graph.blocks_expected = expected;
  graph.functions.push_back({"gemm", {{0, 8}}, true, 0, 0});
  NodeRecord node;
  node.kind = "kernel";
  node.function = 0;
  node.origin.sequence = ++sequence;
  node.origin.stream = 1;
  node.has_origin = node.origin.has_stream = true;
  node.details_known = node.words_known = true;
  node.grid = node.block = {1, 1, 1};
  node.words.push_back({0, 0, 8, address, kNone});
  graph.nodes.push_back(node);
  graph.entry.end_sequence = ++sequence;
  moments.add({wall_clock_us(), ++sequence});
  resolve_addresses(timeline, graph);
  const StackTable stacks;
  const RangeTable ranges;
  write_graph(graph, {stacks, ranges, {}}, lines);
  write_graph_end(graph.number, lines);
  file.write(lines);
}
// The calling thread's Python frames, as "function:line;" each; "none", or "late". Valid until the next call.
EXPORT const char* fake_frames() {
  using namespace cglint::capture;
  static std::string text;
  std::vector<FrameText> frames;
  const FramesResult result = python_frames(frames, 2000);
  GeneratedSources().follow(frames);
  text = result == FramesResult::ok ? "" : result == FramesResult::no_python ? "none" : "late";
  for (const FrameText& frame : frames) text += frame.function + ":" + std::to_string(frame.line) + ";";
  return text.c_str();
}
// The calling thread's frames, with a mutex held as an allocator holds its own; after `hold_ms`, so that another thread can want it or the
// interpreter lock. 1: they came too late; 0: in time; -1: none.
static std::mutex allocator_mutex;
EXPORT int fake_frames_in_mutex(int hold_ms, int timeout_ms) {
  const std::lock_guard lock(allocator_mutex);
  std::this_thread::sleep_for(std::chrono::milliseconds(hold_ms));
  std::vector<cglint::capture::FrameText> frames;
  const cglint::capture::FramesResult result = cglint::capture::python_frames(frames, timeout_ms);
  return result == cglint::capture::FramesResult::timed_out ? 1 : result == cglint::capture::FramesResult::ok ? 0 : -1;
}
EXPORT void fake_take_and_give() {
  const std::lock_guard lock(allocator_mutex);
}
EXPORT void fake_block(int ms) {
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}
EXPORT void fake_flush() {
  const std::lock_guard lock(mutex);
  ++flushes;
}
EXPORT void fake_end() {
  const std::lock_guard lock(mutex);
  if (file.is_open()) file.write_end();
  over = true;
}

EXPORT int cglint_record_expect_blocks() {
  const std::lock_guard lock(mutex);
  expected = true;
  return over;
}
EXPORT std::uint64_t cglint_record_moment() {
  const std::lock_guard lock(mutex);
  return over ? 0 : ++sequence;
}
EXPORT int cglint_record_blocks(std::uint64_t moment, const std::uint64_t* words, std::size_t blocks, const char* const* pools,
                                std::size_t pool_count) {
  const std::lock_guard lock(mutex);
  if (over) return 1;
  const std::vector<std::string_view> names(pools, pools + pool_count);
  std::vector<std::uint64_t> all(words, words + blocks * cglint::capture::kBlockWords);
  for (std::size_t i = cglint::capture::kBlockSince; i < all.size(); i += cglint::capture::kBlockWords)
    if (all[i] != 0) all[i] = moments.before(static_cast<std::int64_t>(all[i]));
  if (!cglint::capture::check_blocks(all, pool_count).empty()) return 2;
  if (!file.is_open()) return 3;
  std::string lines;
  cglint::capture::write_blocks(all, names, moment, lines);
  file.write(lines);
  return 0;
}
EXPORT int cglint_record_blocks_failed(const char* why) {
  const std::lock_guard lock(mutex);
  expected = false;
  std::string lines;
  cglint::capture::write_no_blocks(why, lines);
  if (file.is_open()) file.write(lines);
  return 0;
}
EXPORT int cglint_record_blocks_missed() {
  const std::lock_guard lock(mutex);
  std::string lines;
  cglint::capture::write_loss("info", "calls missed", 1, lines);
  if (file.is_open()) file.write(lines);
  return 0;
}
EXPORT int cglint_record_capture_left(const char* error, const char* const* files, const char* const* functions, const std::uint32_t* lines,
                                      std::size_t count) {
  using namespace cglint::capture;
  const std::lock_guard lock(mutex);
  std::string text;
  open_file(text);
  StackTable stacks;
  std::vector<FrameText> frames;
  for (std::size_t i = 0; i < count; ++i) frames.push_back({files[i], functions[i], lines[i]});
  GraphRecord graph;
  graph.number = graphs++;
  graph.role = "captured";
  graph.edges_known = false;
  graph.entry.captured = true;
  graph.entry.status = "failed";
  graph.entry.failure.emplace();
  graph.entry.failure->call = "exception";
  graph.entry.failure->error = error;
  graph.entry.failure->stack = stacks.intern(frames);
  const RangeTable ranges;
  write_graph(graph, {stacks, ranges, {}}, text);
  write_graph_end(graph.number, text);
  file.write(text);
  return 0;
}
EXPORT std::uint64_t cglint_record_flushes() {
  const std::lock_guard lock(mutex);
  return flushes;
}
