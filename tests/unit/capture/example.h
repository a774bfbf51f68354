// A small captured graph, as the callbacks would tell of it and as the walker would read it.
#pragma once

#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "capture/allocation_timeline.h"
#include "capture/capture_book.h"
#include "capture/graph_record.h"
#include "capture/process_facts.h"
#include "capture/stack_table.h"

namespace cglint::capture {

inline std::string temporary_folder() {
  std::string path = std::filesystem::temp_directory_path() / "cglint-capture-test-XXXXXX";
  return mkdtemp(path.data());
}

inline SyncCall sync(SyncCall::Kind kind, Handle stream, Handle event, std::uint64_t sequence) {
  SyncCall call;
  call.kind = kind, call.stream = stream, call.event = event, call.sequence = sequence;
  return call;
}
inline NodeOrigin origin(Handle stream, std::uint64_t sequence) {
  NodeOrigin origin;
  origin.stream = stream, origin.has_stream = true, origin.sequence = sequence;
  return origin;
}

// Main stream 1 makes nodes 10 and 12, side stream 2 is forked after 10, makes 11, and is joined before 13.
inline void fork_and_join(CaptureBook& book, Handle graph) {
  const std::array<Handle, 1> ten = {10}, twelve = {12};
  const std::array<Handle, 2> joined = {12, 11};
  book.begin_capture(graph, "global", sync(SyncCall::Kind::begin_capture, 1, 0, 1));
  book.node_captured(graph, 10, origin(1, 2));
  book.event_recorded(graph, sync(SyncCall::Kind::event_record, 1, 77, 3));
  book.event_waited(graph, sync(SyncCall::Kind::event_wait, 2, 77, 4), {}, ten);
  book.node_captured(graph, 11, origin(2, 5));
  book.node_captured(graph, 12, origin(1, 6));
  book.event_recorded(graph, sync(SyncCall::Kind::event_record, 2, 78, 7));
  book.event_waited(graph, sync(SyncCall::Kind::event_wait, 1, 78, 8), twelve, joined);
  book.node_captured(graph, 13, origin(1, 9));
  book.end_capture(graph, sync(SyncCall::Kind::end_capture, 1, 0, 10));
}

inline GraphRecord fork_graph() {
  CaptureBook book;
  fork_and_join(book, 5);
  GraphRecord graph;
  graph.number = 0;
  graph.role = "captured";
  graph.instantiated = true;
  graph.allocations_known = true;
  graph.entry = *book.find(5);
  graph.functions.push_back({"_Z4stepPfi", {{0, 8}, {8, 4}}, true, 16, 0});
  for (std::uint32_t i = 0; i < 4; ++i) {
    NodeRecord node;
    node.kind = "kernel";
    node.id = 0x100000000 + i;
    node.origin = graph.entry.nodes.at(10 + i);
    node.has_origin = true;
    node.details_known = node.words_known = true;
    node.function = 0;
    node.grid = {4, 1, 1}, node.block = {128, 1, 1};
    node.priority = 0, node.cooperative = false, node.programmatic = false;
    const std::uint64_t address = 0x7f0000001000 + std::uint64_t{16} * i;
    std::array<unsigned char, 8> bytes;
    std::memcpy(bytes.data(), &address, 8);
    append_words(0, bytes, node.words);
    append_words(1, std::span(bytes).first(4), node.words);
    graph.nodes.push_back(node);
  }
  graph.edges = {{0, 1, 0, 0, 0, 2}, {0, 2}, {1, 3, 0, 0, 0, 4}, {2, 3, 1, 0, 1}};
  return graph;
}

inline std::string segment(GraphRecord& graph, const AllocationTimeline& timeline, const StackTable& stacks,
                           const RangeTable& ranges = {}) {
  std::string lines;
  write_header("test", false, 1, lines);
  ProcessFacts process = this_process();
  process.gpus.push_back({0, "NVIDIA H200", 9, 0, 132, 1});
  write_process(process, lines);
  AllocationTimeline copy = timeline;
  write_allocations(copy.take_changes(), lines);
  resolve_addresses(timeline, graph);
  const std::array<StreamFacts, 1> streams = {StreamFacts{2, -5}};
  write_graph(graph, {stacks, ranges, streams}, lines);
  write_graph_end(graph.number, lines);
  return lines;
}

}  // namespace cglint::capture
