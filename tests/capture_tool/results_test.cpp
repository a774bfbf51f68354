#include "results.h"

#include <gtest/gtest.h>

namespace cglint::capture_tool {
namespace {

Json run(std::string variant, std::string hash) {
  return {{"model", "m"}, {"variant", std::move(variant)}, {"preset", "p"}, {"layers", 2}, {"batch", 1}, {"context", 64}, {"seed", 1},
          {"output", {{"hash", std::move(hash)}, {"equals_eager", true}}}};
}

TEST(Results, BitsAreComparedWithTheSameOptionsOnly) {
  Json runs = Json::array({run("a", "0x1"), run("b", "0x2")});
  runs[1]["same_bits_as"] = "a";
  EXPECT_FALSE(compare_bits(runs));
  EXPECT_FALSE(runs[1]["same_bits"]["equal"].get<bool>());
  runs[1]["output"]["hash"] = "0x1";
  EXPECT_TRUE(compare_bits(runs));
  EXPECT_TRUE(runs[1]["same_bits"]["equal"].get<bool>());
  runs[1]["output"]["hash"] = "0x2";
  runs[1]["batch"] = 8;
  runs[1].erase("same_bits");
  EXPECT_TRUE(compare_bits(runs));
  EXPECT_FALSE(runs[1].contains("same_bits")) << "the other variant has not run with batch 8";
}

TEST(Results, RunsAreTheSameWhenAllTheirOptionsAre) {
  const Json a = run("a", "0x1");
  Json b = run("a", "0x2");
  EXPECT_TRUE(same_run(a, b));
  b["connections"] = 8;
  EXPECT_FALSE(same_run(a, b));
  EXPECT_FALSE(same_run(b, a));
}

TEST(Results, TheTableSaysWhatIsMissing) {
  Json document = make_document("m");
  document["runs"] = Json::array({run("plain", "0x1"), run("failing", "0x1"), run("broken", "0x1")});
  document["runs"][0]["streams_predicted"] = 17;
  document["runs"][1].erase("output");
  document["runs"][1]["error"] = "too little GPU memory: 24.0 GB needed, 8.0 GB free";
  document["runs"][2]["verify"] = {{"ok", false}, {"differences", {"expected, not found: CG101"}}};
  document["runs"][2]["findings"] = Json::array();
  const std::string table = render_table(document);
  EXPECT_NE(table.find("17/-"), std::string::npos) << table;
  EXPECT_NE(table.find("failing batch 1: too little GPU memory"), std::string::npos) << table;
  EXPECT_NE(table.find("none (NOT AS EXPECTED)"), std::string::npos) << table;
  EXPECT_NE(table.find("broken batch 1: expected, not found: CG101"), std::string::npos) << table;
}

}  // namespace
}  // namespace cglint::capture_tool
