// What the reference models' manifests state, against what is committed beside them: which recordings there are, and what was found in the
// measured runs. What is found in the recordings the tests model_recordings.* ask.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "manifest.h"

namespace cglint::capture_tool {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::map<std::string, Manifest> manifests() {
  std::map<std::string, Manifest> all;
  for (const auto& entry : fs::directory_iterator(CGLINT_SOURCE_DIR "/reference_models")) {
    const fs::path path = entry.path() / "manifest.toml";
    if (!fs::exists(path)) continue;
    auto manifest = Manifest::parse(text_of(path), path.string());
    EXPECT_TRUE(manifest) << (manifest ? "" : manifest.error().to_string());
    if (manifest) all.emplace(entry.path().filename().string(), std::move(*manifest));
  }
  return all;
}

// A recording that is gone takes its check with it, one that no manifest names is not meant.
TEST(Models, HaveTheRecordingsThatTheirManifestsName) {
  const auto all = manifests();
  EXPECT_GE(all.size(), 7U);
  for (const auto& [model, manifest] : all) {
    SCOPED_TRACE(model);
    std::vector<std::string> there;
    std::error_code gone;
    for (const auto& entry : fs::directory_iterator(CGLINT_SOURCE_DIR "/reference_models/" + model + "/recordings", gone)) {
      const std::string name = entry.path().filename().string();
      EXPECT_TRUE(name.ends_with(".cgl.jsonl.gz")) << name;
      there.push_back(name.substr(0, name.size() - std::string_view(".cgl.jsonl.gz").size()));
    }
    std::sort(there.begin(), there.end());
    EXPECT_EQ(there, manifest.recordings());
    std::set<std::string> recorded;
    for (const std::string& name : manifest.recordings()) recorded.insert(name.substr(0, name.find('.')));
    const std::vector<std::string> variants = manifest.variants();
    EXPECT_EQ(recorded, std::set<std::string>(variants.begin(), variants.end())) << "each variant is recorded";
  }
}

// A rule of which nothing is asked in a variant may stop looking there unseen.
TEST(Models, SayOfEveryVariantWhichRulesMustHaveLooked) {
  for (const auto& [model, manifest] : manifests())
    for (const std::string& name : manifest.recordings()) {
      SCOPED_TRACE(model + " " + name);
      RunKey run{name.substr(0, name.find('.')), {}, 8, 8, 1, {}};
      const std::size_t preset = name.find('.') + 1;
      run.preset = name.substr(preset, name.find('.', preset) - preset);
      run.batch = std::stoi(name.substr(name.find(".b") + 2));
      if (const std::size_t beside = name.find(".beside-"); beside != std::string::npos) run.beside = name.substr(beside + 8);
      const auto expected = manifest.expected(run);
      ASSERT_TRUE(expected);
      EXPECT_FALSE(expected->checked.empty());
    }
}

// The runs of docs/measurements that were verified give the findings, streams and rules not checked that the manifests allow now.
TEST(Models, MeasuredRunsAreAsTheManifestsState) {
  const auto all = manifests();
  std::map<std::string, std::size_t> verified;
  for (const auto& entry : fs::directory_iterator(CGLINT_SOURCE_DIR "/docs/measurements")) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("models-") || !name.ends_with(".json")) continue;
    const Json document = Json::parse(text_of(entry.path()));
    const auto manifest = all.find(document["model"].get<std::string>());
    ASSERT_NE(manifest, all.end()) << name;
    for (const Json& job : document["jobs"])
      for (const Json& run : job.value("runs", Json::array())) {
        if (!run.contains("verify")) continue;
        const int published = manifest->second.layers_of(run["preset"].get<std::string>());
        const RunKey key{run["variant"], run["preset"], run["layers"], published, run["batch"], run.value("beside", "")};
        SCOPED_TRACE(name + " " + job.value("name", "") + " " + key.variant + " " + key.preset + " batch " + std::to_string(key.batch));
        const auto expected = manifest->second.expected(key);
        ASSERT_TRUE(expected);
        EXPECT_EQ(run["findings"].get<std::vector<std::string>>(), expected->codes);
        std::vector<std::string> unchecked = run["not_checked"], lacking;
        std::sort(unchecked.begin(), unchecked.end());
        std::set_intersection(unchecked.begin(), unchecked.end(), expected->checked.begin(), expected->checked.end(), std::back_inserter(lacking));
        EXPECT_EQ(lacking, std::vector<std::string>()) << "not checked";
        if (const auto streams = Manifest::expected_streams(*expected, key); streams && run.contains("streams_measured")) {
          EXPECT_EQ(run["streams_measured"], *streams);
        }
        ++verified[manifest->first];
      }
  }
  for (const auto& [model, manifest] : all) EXPECT_GE(verified[model], manifest.variants().size()) << model;
}

}  // namespace
}  // namespace cglint::capture_tool
