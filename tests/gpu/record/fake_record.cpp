// Stands in for libcglint_record.so where there is no GPU: the same entry points for the Python helper, writing the
// same lines into $FAKE_RECORD_OUT. fake_graph() is a graph that was instantiated: from then on there is a file.
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

#include "capture/allocator_blocks.h"
#include "capture/generated_source.h"
#include "capture/graph_record.h"
#include "capture/process_facts.h"
#include "capture/python_frames.h"
#include "capture/record_file.h"

namespace {
std::mutex mutex;
cglint::capture::RecordFile file;
std::uint64_t sequence = 0, flushes = 0;
std::uint32_t graphs = 0;
bool expected = false, over = false;
}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

// A graph with one kernel that reads `address`, in an allocation of 1 MiB.
EXPORT void fake_graph(std::uint64_t address) {
  using namespace cglint::capture;
  const std::lock_guard lock(mutex);
  std::string lines;
  if (!file.is_open()) {
    if (!file.open(std::getenv("FAKE_RECORD_OUT")).empty()) std::abort();
    write_header("fake", false, 1, lines);
    write_process(this_process(), lines);
  }
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
  const std::span all(words, blocks * cglint::capture::kBlockWords);
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
EXPORT std::uint64_t cglint_record_flushes() {
  const std::lock_guard lock(mutex);
  return flushes;
}
