// All capture files of the project as one file, checked by the real rules: by several threads the report is the one of a single thread.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/rule.h"
#include "engine/runner.h"
#include "report/json.h"
#include "report/text.h"
#include "unit/import/import_helpers.h"

namespace cglint {
namespace {

// Fixtures of rules and recordings of models, each a segment of the file; broken ones are for other tests.
std::string all_captures() {
  const std::filesystem::path project(CGLINT_PROJECT);
  std::vector<std::string> paths;
  for (const char* const folder : {"rules", "reference_models", "tests/data/record"})
    for (const auto& entry : std::filesystem::recursive_directory_iterator(project / folder)) {
      const std::string name = entry.path().filename().string();
      if (name.ends_with(".cgl.jsonl") || name.ends_with(".cgl.jsonl.gz")) paths.push_back(entry.path().string());
    }
  std::sort(paths.begin(), paths.end());
  std::string all;
  for (const std::string& path : paths) {
    all += testing::read_text(path);
    if (!all.ends_with('\n')) all += '\n';
  }
  EXPECT_GT(paths.size(), 200U);
  return all;
}

struct Rendered {
  std::string json, text;
  std::size_t graphs = 0, findings = 0, rules_checked = 0;
};

Rendered check(std::string_view bytes, unsigned threads) {
  engine::Config config;
  config.select = {"ALL"};
  config.max_streams = 1;
  config.min_confidence = engine::Confidence::possible;
  engine::InputChecker checker(config, analysis::KernelTable::builtin(), "all", threads);
  import::ReadOptions options;
  options.threads = threads;
  options.on_graph = [&](ir::Recording& recording, ir::GraphId graph) { checker.add_graph(recording, graph); };
  auto source = import::Source::from_memory(bytes, "all", options.limits);
  auto recording = testing::importer("capture").read(*source, options);
  if (!recording) {
    ADD_FAILURE() << recording.error().to_string();
    return {};
  }
  checker.finish(*recording);
  std::vector<engine::InputChecker> inputs;
  inputs.push_back(std::move(checker));
  const engine::Report report = engine::merge_inputs(config, std::move(inputs));
  return {report::render_json(report, config, "0"), report::render_text(report, config, {}), report.inputs[0].graphs,
          report.findings.size(), report.rules_checked.size()};
}

TEST(RulesInThreads, SayWhatTheySayInOne) {
  const std::string bytes = all_captures();
  const Rendered one = check(bytes, 1);
  EXPECT_GT(one.graphs, 300U);
  EXPECT_GT(one.findings, 50U);
  EXPECT_EQ(one.rules_checked, engine::all_rules().size() - 1);  // CG605 needs a folder of configurations
  for (const unsigned threads : {2U, 5U}) {
    const Rendered several = check(bytes, threads);
    EXPECT_TRUE(several.json == one.json) << threads;  // not printed: megabytes
    EXPECT_TRUE(several.text == one.text) << threads;
  }
}

}  // namespace
}  // namespace cglint
