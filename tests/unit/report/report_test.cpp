#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/rule.h"
#include "report/json.h"
#include "report/text.h"

namespace cglint::report {
namespace {

engine::Report hostile_report() {
  engine::Report report;
  engine::Finding finding;
  finding.code = "CG101";
  finding.slug = "stream-explosion";
  finding.message = "kernel \x1b[31mred\x1b[0m\nsecond line <script>";
  finding.file = "a\x07.json";
  finding.graph_name = "g\xff";
  finding.fingerprint = "0123456789abcdef";
  finding.primary.push_back({engine::Entity::Kind::node, 3, 7, "k\x1b]0;title\x07", "opens", 2});
  finding.occurrence_count = 4;
  finding.occurrences = {{0, {}}, {1, {}}, {2, {}}, {5, {}}};
  finding.sources.push_back({"model.py", "forward", 812, false, "wait"});
  finding.cost = {engine::Cost::Basis::estimate, 12.34, 1000, 0.5};
  finding.evidence = {{"streams", std::int64_t{17}}, {"per_launch", std::map<std::int64_t, std::int64_t>{{2, 124}, {3, 32}}}};
  finding.fix.text = "record it later";
  report.findings.push_back(finding);
  engine::InputSummary input;
  input.file = finding.file;
  input.format = "kineto";
  report.inputs.push_back(input);
  return report;
}

TEST(Text, NeverPassesControlCharactersFromNames) {
  const std::string text = render_text(hostile_report(), engine::Config(), {});
  for (const char c : text) EXPECT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= 0x20) << static_cast<int>(c);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
}

TEST(Text, ShowsTheSourceFirstAndTheLayersInRanges) {
  const std::string text = render_text(hostile_report(), engine::Config(), {});
  EXPECT_TRUE(text.starts_with("model.py:812 (forward): CG101 ")) << text;
  EXPECT_NE(text.find("4 times, in layers 0-2, 5"), std::string::npos) << text;
  EXPECT_NE(text.find("{2: 124, 3: 32}"), std::string::npos) << text;
  EXPECT_NE(text.find("12.3 of 1000.0 us per replay (estimate, +/- 0.5 us)"), std::string::npos) << text;
}

TEST(Text, LongListsOfLayersAreCut) {
  engine::Report report = hostile_report();
  report.findings[0].occurrence_count = 61;
  report.findings[0].occurrences.clear();
  for (int layer = 0; layer < 122; layer += 2) report.findings[0].occurrences.push_back({layer, {}});
  const std::string text = render_text(report, engine::Config(), {});
  EXPECT_NE(text.find("61 times, in layers 0, 2, 4, 6, 8, 10, 12, 14, ...\n"), std::string::npos) << text;
}

TEST(Text, LayersOfTheFirstOccurrencesAreNotThoseOfAll) {
  engine::Report report = hostile_report();
  report.findings[0].occurrence_count = 12499;
  const std::string text = render_text(report, engine::Config(), {});
  EXPECT_NE(text.find("12499 times\n"), std::string::npos) << text;
}

TEST(Text, StatisticsCountWhatCouldNotBeChecked) {
  engine::Report report = hostile_report();
  for (const char* file : {"a.json", "b.json"}) {
    engine::NotChecked entry;
    entry.code = "CG201";
    entry.slug = "serialized-fork";
    entry.file = file;
    entry.reasons = {"a long reason, another for each input " + entry.file};
    report.not_checked.push_back(entry);
  }
  report.inputs[0].has_data_loss = true;
  report.inputs[0].losses.push_back({"data_loss", "operations were lost", 3, 7, {}});
  TextOptions options;
  options.statistics = true;
  const std::string text = render_text(report, engine::Config(), options);
  EXPECT_NE(text.find("not checked in 2 inputs: CG201\n"), std::string::npos) << text;
  EXPECT_NE(text.find("1 input lost data\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("long reason"), std::string::npos) << text;
}

// One line for each thing that is missing, and no rule without all of its reasons.
TEST(Text, WhatIsMissingIsNamedOnce) {
  engine::Report report;
  const auto add = [&](const char* code, std::vector<std::string> reasons, bool requested = false) {
    engine::NotChecked entry;
    entry.code = code;
    entry.file = "a.dot";
    entry.reasons = std::move(reasons);
    entry.requested = requested;
    report.not_checked.push_back(std::move(entry));
  };
  add("CG101", {"no streams"});
  add("CG202", {"no streams", "no times"});
  add("CG203", {"no times", "no parameters"});
  add("CG203", {"no times"});  // of another graph
  add("CG204", {"no times"});
  add("CG301", {"no parameters"}, true);
  const std::string text = render_text(report, engine::Config(), {});
  EXPECT_NE(text.find("a.dot: not checked (no times): CG202, CG203, CG204\n"
                      "a.dot: not checked (no streams): CG101, CG202\n"
                      "a.dot: not checked (no parameters): CG203\n"
                      "a.dot: not checked although asked for (no parameters): CG301\n"),
            std::string::npos)
      << text;
}

TEST(Text, ColoursOnlyWhenAsked) {
  TextOptions options;
  options.colour = true;
  EXPECT_NE(render_text(hostile_report(), engine::Config(), options).find("\x1b[1;33mCG101"), std::string::npos);
}

TEST(Text, QuietIsOneLinePerFinding) {
  TextOptions options;
  options.quiet = true;
  const std::string text = render_text(hostile_report(), engine::Config(), options);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
}

TEST(Text, ConsequencesAreShownBelowTheirCauseOnly) {
  engine::Report report = hostile_report();
  engine::Finding consequence = report.findings[0];
  consequence.code = "CG103";
  consequence.message = "over the budget";
  consequence.fingerprint = "fedcba9876543210";
  consequence.causes = {"0123456789abcdef"};
  report.findings.push_back(consequence);
  const std::string text = render_text(report, engine::Config(), {});
  EXPECT_NE(text.find("causes:"), std::string::npos);
  EXPECT_EQ(text.find("over the budget"), text.rfind("over the budget"));
}

TEST(Json, IsValidUtf8AndKeepsTypes) {
  const std::string text = render_json(hostile_report(), engine::Config(), "1.2.3");
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["findings"][0]["evidence"]["streams"], 17);
  EXPECT_EQ(json["findings"][0]["evidence"]["per_launch"]["3"], 32);
  EXPECT_EQ(json["findings"][0]["graph"], "g\xef\xbf\xbd");
  EXPECT_EQ(json["exit_code"], 1);
}

TEST(Json, SaysWhatWasNotChecked) {
  engine::Report report;
  engine::InputSummary input;
  input.nothing_to_check = true;
  input.nothing_reason = "4 GPU kernels, but no graph launch";
  report.inputs.push_back(input);
  engine::NotChecked entry;
  entry.code = "CG201";
  entry.missing = {ir::Fact::edges};
  report.not_checked.push_back(entry);
  const auto json = nlohmann::json::parse(render_json(report, engine::Config(), "1"));
  EXPECT_EQ(json["exit_code"], 4);
  EXPECT_EQ(json["inputs"][0]["reason"], "4 GPU kernels, but no graph launch");
  EXPECT_EQ(json["not_checked"][0]["missing"][0], "edges");
}

// Every rule: a page with all headings in order, whose first line is the summary; a legal, unique code and slug.
TEST(Catalogue, RulesAreCompleteAndConsistent) {
  std::set<std::string> codes, slugs;
  for (const auto& rule : engine::all_rules()) {
    const engine::RuleInfo& info = rule->info();
    SCOPED_TRACE(std::string(info.code));
    EXPECT_TRUE(codes.insert(std::string(info.code)).second);
    EXPECT_TRUE(slugs.insert(std::string(info.slug)).second);
    EXPECT_EQ(info.code.size(), 5U);
    EXPECT_FALSE(info.since.empty());
    EXPECT_FALSE(info.needs.empty());
    EXPECT_TRUE(info.summary.ends_with("."));
    const std::string_view page = engine::rule_page(info.code);
    EXPECT_TRUE(page.starts_with(info.summary)) << page.substr(0, 100);
    std::size_t position = 0;
    for (const std::string_view heading : {"## What it does", "## Why is this bad", "## Example", "## Good", "## How to fix", "## When not to apply", "## References"}) {
      const std::size_t found = page.find(heading, position);
      EXPECT_NE(found, std::string_view::npos) << heading;
      if (found != std::string_view::npos) position = found;
    }
  }
  EXPECT_FALSE(codes.empty());
}

}  // namespace
}  // namespace cglint::report
