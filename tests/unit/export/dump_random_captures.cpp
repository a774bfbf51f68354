// Prints capture files of random recordings, for the schema check.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "export/capture_writer.h"
#include "support/random_recording.h"

int main(int argc, char** argv) {
  using namespace cglint;
  const int count = argc > 1 ? std::atoi(argv[1]) : 10;
  for (int seed = 1; seed <= count; ++seed) {
    const ir::Recording recording = test::random_recording(static_cast<std::uint64_t>(seed), {.graphs = 3, .max_nodes = 12});
    std::string text;
    exporter::CaptureWriterOptions options;
    options.created_unix_s = 1'700'000'000;
    if (!exporter::write_capture(recording, exporter::make_string_sink(text), options)) return 1;
    std::fwrite(text.data(), 1, text.size(), stdout);
  }
  return 0;
}
