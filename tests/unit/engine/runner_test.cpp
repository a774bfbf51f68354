#include "engine/runner.h"

#include <gtest/gtest.h>

#include "engine/rule.h"
#include "ir/graph_builder.h"
#include "report/json.h"
#include "test_rules.h"

namespace cglint::engine {
namespace {

using ir::Fact;

void add_graph(ir::Recording& recording, std::string_view name, std::size_t nodes, ir::FactSet facts) {
  ir::GraphBuilder builder;
  for (std::size_t i = 0; i < nodes; ++i) builder.add_node(ir::NodeKind::empty, ir::kEmptyString);
  builder.graph().info.name = recording.intern(name);
  builder.graph().facts = facts;
  recording.graphs.push_back(std::move(*builder.finish()));
}

Report run(const Config& config, std::vector<ir::Recording> recordings) {
  std::vector<InputChecker> inputs;
  for (ir::Recording& recording : recordings) {
    inputs.emplace_back(config, analysis::KernelTable::builtin(), recording.file);
    inputs.back().finish(recording);
  }
  return merge_inputs(config, std::move(inputs));
}

Report run_one(const Config& config, ir::FactSet facts = {Fact::nodes}) {
  std::vector<ir::Recording> recordings(1);
  recordings[0].file = "a";
  add_graph(recordings[0], "g", 2, facts);
  return run(config, std::move(recordings));
}

Config only(std::initializer_list<std::string> codes) {
  Config config;
  config.select = codes;
  return config;
}

TEST(Runner, ReportsAndExitsOne) {
  const Config config = only({"CG001"});
  const Report report = run_one(config);
  ASSERT_EQ(report.findings.size(), 1U);
  EXPECT_EQ(report.findings[0].code, "CG001");
  EXPECT_EQ(report.findings[0].slug, "always");
  EXPECT_EQ(report.findings[0].file, "a");
  EXPECT_EQ(report.findings[0].graph_name, "g");
  EXPECT_EQ(report.findings[0].fingerprint.size(), 16U);
  EXPECT_EQ(report.exit_code(config), 1);
}

TEST(Runner, MissingFactsAreNotCheckedAndNeverClean) {
  Config config = only({"CG"});
  config.ignore = {"CG001", "CG003", "CG004", "CG006", "CG007", "CG009", "CG010"};
  Report report = run_one(config);
  ASSERT_EQ(report.not_checked.size(), 1U);
  EXPECT_EQ(report.not_checked[0].code, "CG002");
  EXPECT_EQ(report.not_checked[0].reason(), "the input has no dependency edges");
  EXPECT_TRUE(report.inputs[0].nothing_to_check);  // no rule at all could look at the input
  EXPECT_EQ(report.exit_code(config), 4);
  // With one rule that could, the run is clean unless unchecked rules fail it.
  config.ignore = {"CG001", "CG003", "CG006", "CG007", "CG009", "CG010"};
  report = run_one(config);
  EXPECT_FALSE(report.inputs[0].nothing_to_check);
  EXPECT_EQ(report.exit_code(config), 0);
  config.fail_on_unchecked = true;
  EXPECT_EQ(report.exit_code(config), 4);
  // Asked for by name: exit 4 without any flag.
  const Config by_name = only({"needs-edges"});
  EXPECT_EQ(run_one(by_name).exit_code(by_name), 4);
}

TEST(Runner, AlternativeNeedsNameTheNearestMiss) {
  const Config config = only({"CG003"});
  const Report report = run_one(config);
  ASSERT_EQ(report.not_checked.size(), 1U);
  EXPECT_EQ(report.not_checked[0].missing, ir::FactSet{Fact::replay_streams});
  EXPECT_EQ(run_one(config, {Fact::nodes, Fact::edges, Fact::edge_data}).findings.size(), 1U);
  EXPECT_EQ(run_one(config, {Fact::nodes, Fact::replay_streams}).findings.size(), 1U);
}

TEST(Runner, SpoiledFactsGiveTheirOwnReason) {
  const Config config = only({"CG002"});
  std::vector<ir::Recording> recordings(1);
  add_graph(recordings[0], "g", 1, {Fact::nodes});
  recordings[0].graphs[ir::GraphId(0)]->spoiled.push_back({Fact::edges, recordings[0].intern("three edge lines were lost")});
  const Report report = run(config, std::move(recordings));
  ASSERT_EQ(report.not_checked.size(), 1U);
  EXPECT_EQ(report.not_checked[0].reason(), "three edge lines were lost");
}

TEST(Runner, PossibleFindingsAreCountedButNotShown) {
  Config config = only({"CG004"});
  const Report hidden = run_one(config);
  EXPECT_TRUE(hidden.findings.empty());
  EXPECT_EQ(hidden.hidden_possible, 1U);
  EXPECT_EQ(hidden.exit_code(config), 0);
  config.min_confidence = Confidence::possible;
  EXPECT_EQ(run_one(config).findings.size(), 1U);
}

TEST(Runner, OptInRulesRunOnlyWithTheirLimit) {
  Config config = only({"CG005"});
  EXPECT_TRUE(run_one(config, {Fact::nodes, Fact::edges}).findings.empty());
  EXPECT_TRUE(run_one(config).not_checked.empty());
  config.max_streams = 3;
  EXPECT_EQ(run_one(config, {Fact::nodes, Fact::edges}).findings.size(), 1U);
  // A limit that cannot be checked is exit 4 however the rule was selected.
  Config all;
  all.ignore = {"CG001", "CG006", "CG009"};
  all.max_streams = 3;
  EXPECT_EQ(run_one(all).exit_code(all), 4);
}

TEST(Runner, CausesHideConsequences) {
  const Config config = only({"CG001", "CG006"});
  const Report report = run_one(config);
  ASSERT_EQ(report.findings.size(), 2U);
  EXPECT_EQ(report.findings[0].code, "CG001");
  ASSERT_EQ(report.findings[0].causes.size(), 1U);
  EXPECT_EQ(report.findings[0].causes[0], report.findings[1].fingerprint);
  EXPECT_TRUE(report.findings[1].causes.empty());
}

TEST(Runner, RemovedRulesNeverRun) {
  const Config config = only({"ALL"});
  for (const Finding& finding : run_one(config).findings) EXPECT_NE(finding.code, "CG008");
}

TEST(Runner, LateDoubtIsNotChecked) {
  const Config config = only({"CG007"});
  const Report report = run_one(config);
  ASSERT_EQ(report.not_checked.size(), 1U);
  EXPECT_EQ(report.not_checked[0].reason(), "no ranges after all");
  EXPECT_EQ(report.exit_code(config), 4);
}

TEST(Runner, OnePatternInOneGraphIsOneFinding) {
  const Report report = run_one(only({"CG009"}));
  ASSERT_EQ(report.findings.size(), 1U);
  EXPECT_EQ(report.findings[0].occurrence_count, 2U);
  EXPECT_EQ(report.findings[0].occurrences.size(), 2U);
}

TEST(Runner, EqualFindingsOfSeveralGraphsBecomeOne) {
  std::vector<ir::Recording> recordings(1);
  for (int i = 0; i < 9; ++i) add_graph(recordings[0], "g" + std::to_string(i), i == 4 ? 50 : 2, {Fact::nodes});
  const Report report = run(only({"CG001"}), std::move(recordings));
  ASSERT_EQ(report.findings.size(), 1U);
  EXPECT_EQ(report.findings[0].graph_name, "g4");  // the costliest stands for all
  EXPECT_EQ(report.findings[0].graph_instances, 9U);
  EXPECT_EQ(report.findings[0].also_in.size(), 5U);
}

TEST(Runner, BodiesAndEagerLaunchesAreNotCheckedAsGraphs) {
  std::vector<ir::Recording> recordings(1);
  add_graph(recordings[0], "body", 2, {Fact::nodes});
  add_graph(recordings[0], "eager", 2, {Fact::nodes});
  recordings[0].graphs[ir::GraphId(0)]->info.role = ir::GraphRole::body;
  recordings[0].graphs[ir::GraphId(1)]->info.role = ir::GraphRole::eager;
  const Config config = only({"CG001"});
  const Report report = run(config, std::move(recordings));
  EXPECT_TRUE(report.findings.empty());
  EXPECT_EQ(report.exit_code(config), 4);
}

TEST(Runner, RecordingRulesSeeEveryGraphAndReportOnce) {
  std::vector<ir::Recording> recordings(1);
  recordings[0].file = "a";
  add_graph(recordings[0], "eager", 5, {});
  add_graph(recordings[0], "bare", 100, {Fact::nodes});
  add_graph(recordings[0], "first", 2, {Fact::nodes, Fact::edges});
  add_graph(recordings[0], "second", 3, {Fact::nodes, Fact::edges});
  recordings[0].graphs[ir::GraphId(0)]->info.role = ir::GraphRole::eager;
  const Config config = only({"CG002", "CG010"});
  const Report report = run(config, std::move(recordings));
  ASSERT_EQ(report.findings.size(), 2U);
  EXPECT_EQ(report.findings[1].message, "10 nodes");  // the graph without the needed facts is not shown to it
  EXPECT_EQ(report.findings[1].graph_name, "second");
  EXPECT_EQ(report.findings[1].file, "a");
  ASSERT_EQ(report.not_checked.size(), 2U);
  EXPECT_EQ(report.not_checked[1].code, "CG010");
  EXPECT_EQ(report.not_checked[1].graph_name, "bare");
  EXPECT_EQ(report.rules_checked, (std::vector<std::string>{"CG002", "CG010"}));
}

TEST(Runner, RecordingRulesExplainFindingsOfTheirGraph) {
  const Report report = run_one(only({"CG002", "CG010"}), {Fact::nodes, Fact::edges});
  ASSERT_EQ(report.findings.size(), 2U);
  EXPECT_EQ(report.findings[0].causes, std::vector<std::string>{report.findings[1].fingerprint});
  EXPECT_TRUE(report.findings[1].causes.empty());
}

TEST(Runner, RecordingRulesThatSawNoGraphAreNotChecked) {
  const Config config = only({"CG010"});
  const Report report = run_one(config);
  EXPECT_TRUE(report.findings.empty());
  EXPECT_EQ(report.not_checked.size(), 1U);
  EXPECT_EQ(report.exit_code(config), 4);
}

TEST(Runner, AFailedCaptureIsNoGraphForOtherRules) {
  std::vector<ir::Recording> recordings(1);
  add_graph(recordings[0], "g", 2, {Fact::nodes, Fact::edges, Fact::capture_status});
  recordings[0].graphs[ir::GraphId(0)]->info.capture_status = ir::CaptureStatus::invalidated;
  const Report report = run(only({"CG001", "CG010"}), std::move(recordings));
  EXPECT_TRUE(report.findings.empty());
  EXPECT_EQ(report.not_checked.size(), 2U);
}

// Graphs of three rounds: what rules of scope `graph` say of them differs, and so does what rules of scope `recording` add up.
std::string report_of_rounds(unsigned threads, std::size_t& graphs_left) {
  const Config config = only({"CG"});
  ir::Recording recording;
  InputChecker checker(config, analysis::KernelTable::builtin(), "a", threads);
  for (std::size_t i = 0; i < 120; ++i) {
    const ir::FactSet facts = i % 7 == 0 ? ir::FactSet{Fact::nodes} : ir::FactSet{Fact::nodes, Fact::edges};
    add_graph(recording, "g" + std::to_string(i), 1000 + 7919 * i % 14000, facts);
    if (i % 10 == 3) recording.graphs[ir::GraphId::from_size(i)]->info.role = i % 20 == 3 ? ir::GraphRole::body : ir::GraphRole::eager;
    checker.add_graph(recording, ir::GraphId::from_size(i));
  }
  graphs_left = 0;
  for (const auto& graph : recording.graphs) graphs_left += graph != nullptr ? 1 : 0;
  const ir::Recording moved = std::move(recording);
  checker.finish(moved);
  std::vector<InputChecker> inputs;
  inputs.push_back(std::move(checker));
  const Report report = merge_inputs(config, std::move(inputs));
  EXPECT_EQ(report.inputs[0].graph_summaries.size(), 108U);
  return report::render_json(report, config, "0");
}

TEST(Runner, TheReportIsTheSameForAnyNumberOfThreads) {
  std::size_t left_by_one = 0, left_by_four = 0;
  const std::string one = report_of_rounds(1, left_by_one);
  EXPECT_NE(one.find("CG010"), std::string::npos);
  for (int run = 0; run < 3; ++run) EXPECT_EQ(report_of_rounds(4, left_by_four), one);
  EXPECT_EQ(left_by_one, left_by_four);
}

TEST(Runner, GraphsAreDroppedRoundByRoundUnlessOthersLookThemUp) {
  std::size_t left = 0;
  report_of_rounds(2, left);
  EXPECT_GE(left, 12U);  // bodies and eager launches, and those of the last round
  EXPECT_LT(left, 80U);
}

TEST(Runner, AGraphIsCheckedOnce) {
  const Config config = only({"CG010"});
  ir::Recording recording;
  add_graph(recording, "g", 3, {Fact::nodes, Fact::edges});
  InputChecker checker(config, analysis::KernelTable::builtin(), "a");
  checker.add_graph(recording, ir::GraphId(0));
  checker.add_graph(recording, ir::GraphId(0));
  checker.finish(recording);
  std::vector<InputChecker> inputs;
  inputs.push_back(std::move(checker));
  const Report report = merge_inputs(config, std::move(inputs));
  ASSERT_EQ(report.findings.size(), 1U);
  EXPECT_EQ(report.findings[0].message, "3 nodes");
}

TEST(ExitCode, FirstOfThreeTwoOneFour) {
  const Config config = only({"CG001"});
  Report report = run_one(config);
  InputSummary nothing;
  nothing.nothing_to_check = true;
  report.inputs.push_back(nothing);
  EXPECT_EQ(report.exit_code(config), 1);
  report.errors.push_back(base::make_error(base::ErrorCode::malformed, "broken"));
  EXPECT_EQ(report.exit_code(config), 2);
  report.errors.push_back(base::make_error(base::ErrorCode::internal, "ours"));
  EXPECT_EQ(report.exit_code(config), 3);
  EXPECT_EQ(Report().exit_code(config), 4);
}

TEST(ExitCode, FailOnIsAThreshold) {
  Config config = only({"CG001"});
  config.fail_on = Severity::error;
  EXPECT_EQ(run_one(config).exit_code(config), 0);
  config.severity["CG001"] = Severity::error;
  EXPECT_EQ(run_one(config).exit_code(config), 1);
  config.fail_on = std::nullopt;
  EXPECT_EQ(run_one(config).exit_code(config), 0);
}

TEST(ExitCode, RecordsThatCouldNotBeReadFailTheRun) {
  std::vector<ir::Recording> recordings(1);
  add_graph(recordings[0], "g", 1, {Fact::nodes});
  recordings[0].add_loss(ir::Loss::Severity::data_loss, "torn");
  Config config = only({"CG008", "CG009"});
  config.fail_on = std::nullopt;
  EXPECT_EQ(run(config, [&] { std::vector<ir::Recording> r; r.push_back(std::move(recordings[0])); return r; }()).exit_code(config), 4);
  std::vector<ir::Recording> broken(1);
  add_graph(broken[0], "g", 1, {Fact::nodes});
  broken[0].add_loss(ir::Loss::Severity::error, "a line is no JSON");
  EXPECT_EQ(run(config, std::move(broken)).exit_code(config), 2);
}

TEST(Config, SelectionPrefersTheMoreExactSelector) {
  const RuleInfo& rule = find_rule("CG001")->info();
  const auto selected = [&](std::vector<std::string> select, std::vector<std::string> ignore) {
    Config config;
    config.select = std::move(select);
    config.ignore = std::move(ignore);
    return config.selected(rule);
  };
  EXPECT_TRUE(selected({}, {}));
  EXPECT_FALSE(selected({}, {"CG0"}));
  EXPECT_FALSE(selected({}, {"ALL"}));
  EXPECT_TRUE(selected({"CG001"}, {"CG0"}));
  EXPECT_FALSE(selected({"CG0"}, {"CG001"}));
  EXPECT_FALSE(selected({"CG0"}, {"CG0"}));
  EXPECT_TRUE(selected({"always"}, {"CG00"}));
  EXPECT_FALSE(selected({"CG002"}, {}));
  EXPECT_TRUE(selected({"test"}, {}));
}

TEST(Config, ValidatesNamesAndValues) {
  Config config;
  EXPECT_TRUE(validate(config));
  config.select = {"alwyas"};
  ASSERT_FALSE(validate(config));
  EXPECT_NE(validate(config).error().message.find("did you mean 'always'"), std::string::npos);
  config.select = {"CG00"};
  EXPECT_TRUE(validate(config));
  config.options = {{"CG001.limit", "12"}, {"CG001.strict", "true"}};
  EXPECT_TRUE(validate(config));
  EXPECT_EQ(config.integer(find_rule("CG001")->info(), "limit"), 12);
  EXPECT_TRUE(config.boolean(find_rule("CG001")->info(), "strict"));
  config.options = {{"CG001.limit", "12x"}};
  EXPECT_FALSE(validate(config));
  config.options = {{"CG001.limti", "1"}};
  ASSERT_FALSE(validate(config));
  EXPECT_NE(validate(config).error().message.find("'limit'"), std::string::npos);
  config.options = {{"limit", "1"}};
  EXPECT_FALSE(validate(config));
}

TEST(Fingerprint, DependsOnTheBasisOnly) {
  const Config config = only({"CG001"});
  std::vector<ir::Recording> other(1);
  other[0].file = "b";
  add_graph(other[0], "another", 40, {Fact::nodes});
  EXPECT_EQ(run_one(config).findings[0].fingerprint, run(config, std::move(other)).findings[0].fingerprint);
  EXPECT_NE(run_one(config).findings[0].fingerprint, run_one(only({"CG006"})).findings[0].fingerprint);
}

}  // namespace
}  // namespace cglint::engine
