#include "import/capture/capture_importer.h"

#include <memory>

#include "import/capture/capture_reader.h"

namespace cglint::import {
namespace {

class CaptureImporter final : public Importer {
 public:
  [[nodiscard]] std::string_view name() const override { return "capture"; }
  [[nodiscard]] std::string_view description() const override {
    return "cglint capture file (.cgl.jsonl, .gz, .zst), written by cglint capture, record and convert";
  }
  [[nodiscard]] ir::FactSet can_supply() const override {
    ir::FactSet all;
    for (int i = 0; i < ir::kFactCount; ++i) all.insert(static_cast<ir::Fact>(i));
    // These come from other inputs of the same run.
    all.erase(ir::Fact::peer_ranks);
    all.erase(ir::Fact::moe_config_table);
    return all;
  }
  [[nodiscard]] SniffResult sniff(std::string_view prefix) const override {
    SniffResult result;
    if (looks_like_capture(prefix)) result.match = SniffResult::Match::yes;
    return result;
  }
  [[nodiscard]] base::Result<ir::Recording> read(Source& source, const ReadOptions& options) const override {
    return read_capture(source, options);
  }
};

}  // namespace

std::unique_ptr<Importer> make_capture_importer() {
  return std::make_unique<CaptureImporter>();
}

}  // namespace cglint::import
