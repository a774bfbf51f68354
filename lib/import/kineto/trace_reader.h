// Reads a Kineto trace of any size in windows: the bytes are cut where one event ends and the next begins, and each
// window is parsed with simdjson. Memory does not grow with the file. Damaged events (unescaped quotes, invalid UTF-8,
// raw control characters) are repaired where the intent is plain, else reported lost, and reading goes on.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/result.h"
#include "import/common/importer.h"
#include "import/kineto/trace_events.h"

namespace cglint::import::kineto {

struct ReadStats {
  std::uint64_t events = 0;            // array elements seen
  std::uint64_t bytes = 0;
  std::uint64_t repaired = 0;          // events with unescaped quotes that could be read after all
  std::uint64_t replaced_bytes = 0;    // bytes that are no UTF-8 or may not stand in JSON
  std::uint64_t first_replaced_offset = 0;
  std::uint64_t skipped_properties = 0;  // top-level values too large to keep
  std::uint64_t repeated_lists = 0;    // further properties called traceEvents: readers disagree on which one counts
  std::uint64_t first_repeated_list_offset = 0;
  bool has_events_array = false;
  bool truncated = false;              // the file ends inside the JSON text
  std::string truncated_reason;
};

// ErrorCode::malformed if the bytes are no trace at all (with the offset), ErrorCode::limit and ErrorCode::io as the
// source reports them. A file that is cut short gives what came before the cut, with ReadStats::truncated.
base::Result<ReadStats> read_trace(Source& source, const ReadOptions& options, EventSink& sink);

// "12.345" microseconds as nanoseconds, exactly; more digits are rounded. false on anything that is not a number or does
// not fit in 63 bits.
bool parse_us(std::string_view text, std::int64_t& ns);

}  // namespace cglint::import::kineto
