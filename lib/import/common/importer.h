// The importer interface: bytes in, ir::Recording out. Formats are recognised by content, not by name.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "import/common/source.h"
#include "ir/recording.h"

namespace cglint::import {

// Stated limits against hostile input; every one has a clear error when exceeded.
struct Limits {
  std::uint64_t max_decompressed_bytes = std::uint64_t{64} << 30;
  std::uint64_t max_compression_ratio = 250;         // checked beyond 64 MiB of output
  std::uint64_t max_nodes_per_graph = 20'000'000;
  std::uint64_t max_string_bytes = 16u << 20;
};

struct ReadOptions {
  Limits limits;
  // If set, finished graphs are handed over instead of being stored in Recording::graphs: the slot is filled before
  // the call and may be reset by it. Called in file order, on the reading thread.
  std::function<void(ir::Recording& recording, ir::GraphId graph)> on_graph;
  // Threads that reading one file may keep busy: 1 for none but the caller's, 0 for as many as there are cores. What is read is the
  // same for any number.
  unsigned threads = 0;
  // Progress for files that take long; may be empty. Bytes of the (compressed) file consumed so far.
  std::function<void(std::uint64_t done_bytes, std::uint64_t total_bytes)> on_progress;
};

struct SniffResult {
  enum class Match : std::uint8_t { no, yes, foreign } match = Match::no;
  std::string foreign_name;          // for `foreign`: what it is, "hipGraphDebugDotPrint output"
};

class Importer {
 public:
  virtual ~Importer() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;         // "dot", "kineto", "capture", "nsys-sqlite"
  [[nodiscard]] virtual std::string_view description() const = 0;  // one line for --capabilities
  // The facts that a file of this format can supply at best.
  [[nodiscard]] virtual ir::FactSet can_supply() const = 0;
  // Pure; sees the first bytes (decompressed, at most 64 KiB).
  [[nodiscard]] virtual SniffResult sniff(std::string_view prefix) const = 0;
  // A broken container is an Error with the byte offset. A bad record is counted in Recording::losses, the facts it
  // spoils are removed from the graph (and listed in Graph::spoiled), and reading goes on.
  [[nodiscard]] virtual base::Result<ir::Recording> read(Source& source, const ReadOptions& options) const = 0;
};

// All importers, in sniffing order.
std::span<const std::unique_ptr<Importer>> all_importers();

// The name of the importer that recognises the file, or "" (also for a file that cannot be opened). Standard input is not
// looked at.
std::string recognise_file(const std::string& path);

// ErrorCode::internal, with the file's name.
base::Error out_of_memory(const std::string& path);

// Opens, decompresses, recognises and reads. `path` "-" is standard input. Memory that runs out is an error like others, so that it
// names the file.
base::Result<ir::Recording> read_file(const std::string& path, const ReadOptions& options);

// Expands files, directories (recursively, files that an importer recognises) and globs into a sorted list.
base::Result<std::vector<std::string>> expand_paths(std::span<const std::string> arguments);

}  // namespace cglint::import
