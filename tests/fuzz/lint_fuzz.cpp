// libFuzzer entry for a whole run: the bytes are recognised, read and checked by every rule, and the report is rendered. What an
// importer accepts must be something that the analyses, the rules and the reports can handle.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "engine/runner.h"
#include "import/common/importer.h"
#include "report/json.h"
#include "report/text.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cglint;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  import::ReadOptions options;
  options.limits.max_decompressed_bytes = std::uint64_t{16} << 20;
  const import::Importer* importer = nullptr;
  for (const auto& one : import::all_importers())
    if (importer == nullptr && one->sniff(bytes.substr(0, std::size_t{64} << 10)).match == import::SniffResult::Match::yes)
      importer = one.get();
  if (importer == nullptr) return 0;
  engine::Config config;
  config.select = {"ALL"};
  config.max_streams = 1;
  config.min_confidence = engine::Confidence::possible;
  engine::InputChecker checker(config, analysis::KernelTable::builtin(), "fuzz");
  options.on_graph = [&](ir::Recording& recording, ir::GraphId graph) { checker.add_graph(recording, graph); };
  auto source = import::Source::from_memory(bytes, "fuzz", options.limits);
  auto recording = importer->read(*source, options);
  if (recording)
    checker.finish(*recording);
  else
    checker.fail(std::move(recording).error());
  std::vector<engine::InputChecker> inputs;
  inputs.push_back(std::move(checker));
  const engine::Report report = engine::merge_inputs(config, std::move(inputs));
  const int code = report.exit_code(config);
  CGLINT_CHECK(code == 0 || code == 1 || code == 2 || code == 4);
  CGLINT_CHECK(!report::render_json(report, config, "0").empty());
  CGLINT_CHECK(!report::render_text(report, config, {}).empty());
  return 0;
}
