// The fuzzers' seeds and what they found, without a fuzzer: any bytes give a recording whose graphs verify, or an error.
#include <gtest/gtest.h>

#include <filesystem>

#include "ir/graph_builder.h"
#include "unit/import/import_helpers.h"

namespace cglint::import {
namespace {

using namespace cglint::testing;

TEST(Corpus, EveryFileIsReadOrRefused) {
  for (const auto& one : all_importers()) {
    const std::filesystem::path folder = std::filesystem::path(data_path("")).parent_path().parent_path() / "corpus" / one->name();
    std::size_t files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      SCOPED_TRACE(entry.path().string());
      ++files;
      auto recording = read_with(one->name(), read_bytes(entry.path().string()));
      if (!recording) {
        EXPECT_FALSE(recording.error().message.empty());
        continue;
      }
      for (const auto& graph : recording->graphs) EXPECT_TRUE(graph == nullptr || ir::verify(*graph).has_value());
    }
    EXPECT_GT(files, 0U) << folder;
  }
}

}  // namespace
}  // namespace cglint::import
