// What `cglint convert` offers: a recording as a capture file, a graph as DOT, the timelines as a Chrome
// trace. Nothing is printed; errors of the sink (disk full) come back.
#pragma once

#include <string>

#include "base/result.h"
#include "export/capture_writer.h"
#include "export/sink.h"
#include "ir/recording.h"

namespace cglint::exporter {

// Whole files at `path` ("-": standard output). The capture file is compressed by the path's suffix, unless
// the options ask for something else.
base::Result<CaptureWriterStats> write_capture_file(const ir::Recording& recording, const std::string& path,
                                                    CaptureWriterOptions options = {});

// The graph and its bodies in the form that cudaGraphDebugDotPrint writes (verbose, runtime structures; see
// docs/formats/dot.md), which cglint's importer and Graphviz read. What DOT has no place for (streams,
// parameters, sources) is lost; edge data, which the driver does not print, is shown by the edge's style and
// label.
base::Result<void> write_dot(const ir::Recording& recording, ir::GraphId graph, Sink& sink);

struct ChromeTraceStats {
  std::size_t operations = 0;        // slices
  std::size_t predicted_graphs = 0;  // drawn from the prediction, since they have no replay
  std::size_t skipped_graphs = 0;    // neither replays nor a prediction
};
// Chrome trace event JSON for chrome://tracing and Perfetto: one lane per device and stream, every replay of
// every graph and the operations outside graphs, and as flows the dependency edges of each graph's first
// complete replay. A graph without replays is drawn on its predicted streams, each operation one microsecond
// long, under a heading that says so.
base::Result<ChromeTraceStats> write_chrome_trace(const ir::Recording& recording, Sink& sink);

}  // namespace cglint::exporter
