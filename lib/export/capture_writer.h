// Writes capture files (docs/schema/capture.schema.json): a record per line, each handed to the operating
// system when the call returns, compressed as a gzip member or zstd frame of its own, so that a killed
// process leaves a file that reads up to its last record.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "export/sink.h"
#include "ir/recording.h"

namespace cglint::exporter {

enum class Compression : std::uint8_t { none, gzip, zstd };
// By the file's last suffix: ".gz", ".zst", else none.
Compression compression_of_path(std::string_view path);

struct CaptureWriterOptions {
  Compression compression = Compression::none;
  int level = -1;  // -1: fast (gzip 4, zstd 3)
  // Store equal graphs once (see content_hash.h). What is known about each of them is kept, but for the
  // sequence numbers and ids of its nodes and events. Equality is checked value by value; only where the
  // first of the graphs has been dropped meanwhile is it taken from a 128-bit hash.
  bool merge_equal = true;
  std::string producer = "cglint";
  std::uint64_t created_unix_s = 0;  // 0: not written
};

struct CaptureWriterStats {
  std::uint64_t records = 0;
  std::uint64_t text_bytes = 0;    // before compression
  std::uint64_t graphs = 0;        // stored in full
  std::uint64_t instances = 0;     // stored as instance records
  std::uint64_t invalid_utf8 = 0;  // places in names that were not UTF-8 and were replaced
};

// Graphs may be written as they come and dropped afterwards: begin(), write_graph() for each, finish(). Not
// thread safe. After an error every call returns that error.
class CaptureWriter {
 public:
  CaptureWriter(std::unique_ptr<Sink> sink, CaptureWriterOptions options);
  ~CaptureWriter();
  CaptureWriter(const CaptureWriter&) = delete;
  CaptureWriter& operator=(const CaptureWriter&) = delete;

  // The header, and the processes known so far. All calls take the same recording, which may have been moved.
  base::Result<void> begin(const ir::Recording& recording);
  // The graph with its bodies, replays, times and measured accesses, closed by graph_end; shared tables that
  // it refers to come first. A body is written with the graph that runs it; does nothing for a graph already
  // written.
  base::Result<void> write_graph(const ir::Recording& recording, ir::GraphId graph);
  // What belongs to no graph: allocations that changed, allocator blocks, loose operations, losses, and the
  // end record.
  base::Result<void> finish(const ir::Recording& recording);

  // All of the above for a recording that is in memory as a whole. Equal graphs are found beforehand, so that
  // their instance records stand before the graph_end.
  base::Result<void> write_all(const ir::Recording& recording);

  [[nodiscard]] CaptureWriterStats stats() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// CaptureWriter::write_all in one call.
base::Result<CaptureWriterStats> write_capture(const ir::Recording& recording, std::unique_ptr<Sink> sink,
                                               const CaptureWriterOptions& options);

}  // namespace cglint::exporter
