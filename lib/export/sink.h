// Where exporters put their bytes. A sink reports failure (disk full, closed pipe) as a returned error.
//
// The namespace of lib/export is cglint::exporter, since `export` is a keyword.
#pragma once

#include <iosfwd>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"

namespace cglint::exporter {

class Sink {
 public:
  virtual ~Sink() = default;
  Sink() = default;
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;
  // All of `bytes`, handed to the operating system when it returns (a killed process keeps what was written).
  virtual base::Result<void> write(std::string_view bytes) = 0;
  // Reports what only closing shows (a full quota on a network file system). Nothing may be written
  // afterwards.
  virtual base::Result<void> close() { return {}; }
};

// Creates or truncates `path`; "-" is standard output.
base::Result<std::unique_ptr<Sink>> open_file_sink(const std::string& path);
// Appends to `out`, which must outlive the sink.
std::unique_ptr<Sink> make_string_sink(std::string& out);
std::unique_ptr<Sink> make_stream_sink(std::ostream& out);

}  // namespace cglint::exporter
