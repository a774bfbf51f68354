// libFuzzer entry for a structure file and a trace given together: what stands before the line "====" and
// what stands behind it. The trace's replays are moved into the graphs of the other as `cglint lint` does,
// and both are checked and reported. The first byte's lowest bit is
// --join.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "engine/runner.h"
#include "import/common/importer.h"
#include "ir/graph_builder.h"
#include "join/join.h"
#include "report/json.h"
#include "report/text.h"

namespace {

using namespace cglint;

base::Result<ir::Recording> read(std::string_view bytes) {
  import::ReadOptions options;
  options.limits.max_decompressed_bytes = std::uint64_t{16} << 20;
  for (const auto& one : import::all_importers()) {
    if (one->sniff(bytes.substr(0, std::size_t{64} << 10)).match != import::SniffResult::Match::yes) continue;
    auto source = import::Source::from_memory(bytes, "fuzz", options.limits);
    return one->read(*source, options);
  }
  return base::make_error(base::ErrorCode::unknown_format, "not recognised");
}

std::size_t replays(const ir::Recording& recording) {
  std::size_t count = 0;
  for (const auto& graph : recording.graphs)
    if (graph != nullptr) count += graph->replays.size();
  return count;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const bool force = (data[0] & 1U) != 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  constexpr std::string_view kBetween = "\n====\n";
  const std::size_t at = bytes.find(kBetween);
  if (at == std::string_view::npos) return 0;
  auto structure = read(bytes.substr(0, at + 1));
  if (!structure) return 0;
  auto timeline = read(bytes.substr(at + kBetween.size()));
  if (!timeline) return 0;
  const std::size_t before = replays(*structure) + replays(*timeline);
  const join::Report joined = join::join_timeline(*structure, *timeline, force);
  CGLINT_CHECK(replays(*structure) + replays(*timeline) <= before);
  for (const join::Match& match : joined.matches)
    CGLINT_CHECK(match.matched <= match.operations && match.ambiguous <= match.matched);
  for (const ir::Recording* recording : {&*structure, &*timeline})
    for (const auto& graph : recording->graphs)
      if (graph != nullptr) CGLINT_CHECK(ir::verify(*graph).has_value());
  engine::Config config;
  config.select = {"ALL"};
  config.max_streams = 1;
  config.min_confidence = engine::Confidence::possible;
  std::vector<engine::InputChecker> inputs;
  for (const ir::Recording* recording : {&*structure, &*timeline}) {
    inputs.emplace_back(config, analysis::KernelTable::builtin(), "fuzz");
    inputs.back().finish(*recording);
  }
  const engine::Report report = engine::merge_inputs(config, std::move(inputs));
  CGLINT_CHECK(!report::render_json(report, config, "0").empty());
  CGLINT_CHECK(!report::render_text(report, config, {}).empty());
  return 0;
}
