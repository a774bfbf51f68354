// libFuzzer entry for what `cglint convert` writes. Whatever an importer accepted must be written as a
// capture file that reads back as the same recording, and is written as the same bytes again; as a Chrome
// trace that is JSON; and each graph whose edges are known as DOT that reads back with as many nodes and
// edges.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/check.h"
#include "export/export.h"
#include "import/common/importer.h"
#include "support/deep_equal.h"

namespace {

using namespace cglint;

const import::Importer* importer_of(std::string_view bytes) {
  for (const auto& one : import::all_importers())
    if (one->sniff(bytes.substr(0, std::size_t{64} << 10)).match == import::SniffResult::Match::yes)
      return one.get();
  return nullptr;
}

base::Result<ir::Recording> read(const import::Importer& importer, std::string_view bytes) {
  import::ReadOptions options;
  options.limits.max_decompressed_bytes = std::uint64_t{16} << 20;
  auto source = import::Source::from_memory(bytes, "fuzz", options.limits);
  return importer.read(*source, options);
}

exporter::CaptureWriterStats write(const ir::Recording& recording, std::string& bytes) {
  exporter::CaptureWriterOptions options;
  options.merge_equal = false;
  const auto stats = exporter::write_capture(recording, exporter::make_string_sink(bytes), options);
  CGLINT_CHECK(stats.has_value());
  return *stats;
}

ir::Recording read_again(const std::string& bytes) {
  const import::Importer* const importer = importer_of(bytes);
  CGLINT_CHECK(importer != nullptr && importer->name() == "capture");
  auto recording = read(*importer, bytes);
  if (!recording) std::fprintf(stderr, "%s\n", recording.error().to_string().c_str());
  CGLINT_CHECK(recording.has_value());
  return std::move(*recording);
}

void check_same(const ir::Recording& a, const ir::Recording& b) {
  const std::string difference = test::difference(a, b);
  if (!difference.empty()) std::fprintf(stderr, "%s\n", difference.c_str());
  CGLINT_CHECK(difference.empty());
}

void check_dot(const ir::Recording& recording, ir::GraphId id) {
  const ir::Graph& graph = *recording.graphs[id];
  std::string text;
  CGLINT_CHECK(exporter::write_dot(recording, id, *exporter::make_string_sink(text)).has_value());
  const import::Importer* const importer = importer_of(text);
  CGLINT_CHECK(importer != nullptr && importer->name() == "dot");
  const auto again = read(*importer, text);
  if (!again) std::fprintf(stderr, "%s\n", again.error().to_string().c_str());
  CGLINT_CHECK(again.has_value() && !again->graphs.empty());
  bool found = false;
  for (const auto& other : again->graphs)
    found |= other != nullptr && other->info.role != ir::GraphRole::body &&
             other->node_count() == graph.node_count() && other->edge_count() == graph.edge_count();
  CGLINT_CHECK(found);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const import::Importer* const importer = importer_of(bytes);
  if (importer == nullptr) return 0;
  const auto recording = read(*importer, bytes);
  if (!recording) return 0;
  std::string once;
  const bool exact = write(*recording, once).invalid_utf8 == 0;
  const ir::Recording back = read_again(once);
  if (exact) check_same(*recording, back);
  std::string twice;
  write(back, twice);
  const ir::Recording back_again = read_again(twice);
  check_same(back, back_again);
  std::string thrice;
  write(back_again, thrice);
  CGLINT_CHECK(twice == thrice);

  std::string trace;
  CGLINT_CHECK(exporter::write_chrome_trace(*recording, *exporter::make_string_sink(trace)).has_value());
  CGLINT_CHECK(nlohmann::json::accept(trace));
  for (const ir::GraphId id : recording->graphs.ids())
    if (const ir::Graph* const graph = recording->graphs[id].get();
        graph != nullptr && graph->info.role != ir::GraphRole::body &&
        graph->facts.contains_all({ir::Fact::nodes, ir::Fact::edges}))
      check_dot(*recording, id);
  return 0;
}
