#include "manifest.h"

#include <gtest/gtest.h>

namespace cglint::capture_tool {
namespace {

Manifest parsed(std::string_view text) {
  auto manifest = Manifest::parse(text, "m.toml");
  EXPECT_TRUE(manifest) << (manifest ? "" : manifest.error().to_string());
  return manifest ? std::move(*manifest) : Manifest();
}

constexpr std::string_view kText = R"(
summary = "two branches"
sources = ["sgl-project/sglang#30460"]
layers = {k2 = 61}
[[expect]]
variant = ["side_first", "old"]
codes = ["CG102", "CG101"]
streams = 61
streams_per_layer = 1
[[expect]]
variant = "side_first"
preset = "v3"
streams = 59
[[expect]]
variant = "side_first"
batch_min = 64
codes = ["CG204"]
[[expect]]
variant = "side_first"
beside = "main_first"
codes = ["CG101", "CG203"]
[[expect]]
variant = "main_first"
streams = 2
[[expect]]
variant = "deep"
layers_min = 4
codes = ["CG101"]
)";

RunKey key(std::string variant, std::string preset = "k2", int layers = 61, int batch = 1) {
  return {std::move(variant), std::move(preset), layers, 61, batch, {}};
}

TEST(Manifest, LaterEntriesReplaceWhatTheyState) {
  const Manifest manifest = parsed(kText);
  const auto side = manifest.expected(key("side_first"));
  ASSERT_TRUE(side);
  EXPECT_EQ(side->codes, (std::vector<std::string>{"CG101", "CG102"}));
  EXPECT_EQ(Manifest::expected_streams(*side, key("side_first")), 61U);
  const auto v3 = manifest.expected(key("side_first", "v3"));
  ASSERT_TRUE(v3);
  EXPECT_EQ(v3->codes, side->codes);
  EXPECT_EQ(Manifest::expected_streams(*v3, key("side_first", "v3")), 59U);
  const auto large = manifest.expected(key("side_first", "k2", 61, 64));
  ASSERT_TRUE(large);
  EXPECT_EQ(large->codes, std::vector<std::string>{"CG204"});
  EXPECT_EQ(manifest.sources(), std::vector<std::string>{"sgl-project/sglang#30460"});
}

// A recording with another variant's graph beside is another run: only entries that name it are about it.
TEST(Manifest, TwoGraphsInOneRecordingHaveEntriesOfTheirOwn) {
  const Manifest manifest = parsed(kText);
  RunKey both = key("side_first");
  both.beside = "main_first";
  const auto expected = manifest.expected(both);
  ASSERT_TRUE(expected);
  EXPECT_EQ(expected->codes, (std::vector<std::string>{"CG101", "CG203"}));
  EXPECT_FALSE(expected->streams);
  both.beside = "deep";
  EXPECT_FALSE(manifest.expected(both));
  EXPECT_EQ(manifest.expected(key("side_first"))->codes, (std::vector<std::string>{"CG101", "CG102"}));
}

TEST(Manifest, StreamsFollowTheNumberOfLayers) {
  const Manifest manifest = parsed(kText);
  const auto side = manifest.expected(key("side_first", "k2", 8));
  ASSERT_TRUE(side);
  EXPECT_EQ(Manifest::expected_streams(*side, key("side_first", "k2", 8)), 8U);
  EXPECT_EQ(Manifest::expected_streams(*side, key("side_first", "k2", 128)), 128U);
  const auto main = manifest.expected(key("main_first", "k2", 8));
  ASSERT_TRUE(main);
  EXPECT_EQ(Manifest::expected_streams(*main, key("main_first", "k2", 8)), 2U);
  EXPECT_TRUE(main->codes.empty());
}

TEST(Manifest, PublishedLayersOfAPreset) {
  const Manifest manifest = parsed(kText);
  EXPECT_EQ(manifest.layers_of("k2"), 61);
  EXPECT_EQ(manifest.layers_of("v3"), 0);
}

TEST(Manifest, WhatItDoesNotKnowIsNotClean) {
  const Manifest manifest = parsed(kText);
  EXPECT_FALSE(manifest.expected(key("unknown")));
  EXPECT_FALSE(manifest.expected(key("deep", "k2", 3)));
  EXPECT_TRUE(manifest.expected(key("deep", "k2", 4)));
}

TEST(Manifest, RulesThatMustHaveLooked) {
  const Manifest manifest = parsed("[[expect]]\nvariant = \"a\"\ncodes = []\nchecked = [\"CG605\", \"CG101\"]\n[[expect]]\nvariant = \"a\"\nbatch_min = 9\ncodes = [\"CG605\"]\n");
  RunKey run = key("a");
  EXPECT_EQ(manifest.expected(run)->checked, (std::vector<std::string>{"CG101", "CG605"}));
  run.batch = 9;  // a later entry that does not state them leaves them
  EXPECT_EQ(manifest.expected(run)->checked, (std::vector<std::string>{"CG101", "CG605"}));
  EXPECT_EQ(manifest.expected(run)->codes, std::vector<std::string>{"CG605"});
}

TEST(Manifest, RulesThatMustHaveLookedInAllVariantsButThoseThatStateOthers) {
  const Manifest manifest = parsed("checked = [\"CG301\", \"CG201\"]\n[[expect]]\nvariant = [\"a\", \"b\"]\ncodes = []\n[[expect]]\nvariant = \"b\"\nchecked = [\"CG404\"]\n");
  EXPECT_EQ(manifest.expected(key("a"))->checked, (std::vector<std::string>{"CG201", "CG301"}));
  EXPECT_EQ(manifest.expected(key("b"))->checked, std::vector<std::string>{"CG404"});
  EXPECT_FALSE(manifest.expected(key("c")));
}

TEST(Manifest, NamesItsRecordings) {
  const Manifest manifest = parsed("recordings = [\"*.k2.b1.l8\", \"b.k2.b64.beside-a\"]\n[[expect]]\nvariant = [\"b\", \"a\"]\ncodes = []\n");
  EXPECT_EQ(manifest.recordings(), (std::vector<std::string>{"a.k2.b1.l8", "b.k2.b1.l8", "b.k2.b64.beside-a"}));
}

TEST(Manifest, ErrorsNameTheLine) {
  const auto message = [](std::string_view text) {
    const auto manifest = Manifest::parse(text, "m.toml");
    return manifest ? std::string("parsed") : manifest.error().to_string();
  };
  EXPECT_NE(message("summary = \"x\"\nwrong = 1\n").find("m.toml: line 2: unknown key 'wrong'"), std::string::npos);
  EXPECT_NE(message("[[expect]]\nvariant = \"a\"\ncodes = [\"101\"]\n").find("line 3"), std::string::npos);
  EXPECT_NE(message("[[expect]]\nvariant = \"a\"\nstreams = -1\n").find("line 3"), std::string::npos);
  EXPECT_NE(message("[[expect]]\nvariant = \"a\"\nchecked = \"CG101\"\n").find("line 3: checked is a list"), std::string::npos);
  EXPECT_NE(message("[[expect]]\ncodes = []\n").find("needs a variant"), std::string::npos);
  EXPECT_NE(message("[[expect]\n").find("line 1"), std::string::npos);
  EXPECT_NE(message("\nlayers = {k2 = 0}\n").find("line 2"), std::string::npos);
  EXPECT_NE(message("\nchecked = [1]\n").find("line 2: checked are texts"), std::string::npos);
  EXPECT_NE(message("recordings = [\"*.k2.b1.cgl.jsonl.gz\"]\n").find("line 1: recordings are texts like"), std::string::npos);
  EXPECT_NE(message("recordings = \"a.k2.b1\"\n").find("line 1: recordings is a list"), std::string::npos);
  EXPECT_NE(message("sources = [1]\n").find("sources"), std::string::npos);
}

}  // namespace
}  // namespace cglint::capture_tool
