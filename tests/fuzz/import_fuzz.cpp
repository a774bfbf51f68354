// libFuzzer entry for one importer (CGLINT_FUZZ_IMPORTER names it): any bytes must give a recording or an error, and every
// graph of a recording must verify.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "import/common/importer.h"
#include "ir/graph_builder.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cglint;
  static const import::Importer* const importer = [] {
    for (const auto& one : import::all_importers())
      if (one->name() == CGLINT_FUZZ_IMPORTER) return one.get();
    return static_cast<import::Importer*>(nullptr);
  }();
  CGLINT_CHECK(importer != nullptr);
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  import::ReadOptions options;
  options.limits.max_decompressed_bytes = std::uint64_t{16} << 20;
  (void)importer->sniff(bytes.substr(0, std::size_t{64} << 10));
  auto source = import::Source::from_memory(bytes, "fuzz", options.limits);
  auto recording = importer->read(*source, options);
  if (!recording) {
    CGLINT_CHECK(!recording.error().message.empty());
    return 0;
  }
  for (const auto& graph : recording->graphs)
    if (graph != nullptr) CGLINT_CHECK(ir::verify(*graph).has_value());
  return 0;
}
