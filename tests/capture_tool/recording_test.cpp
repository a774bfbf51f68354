// Accesses that a process with other addresses measured, added to a recording.
#include <gtest/gtest.h>

#include "ir/graph_builder.h"
#include "recording.h"

namespace cglint::capture_tool {
namespace {

class AddAccesses : public testing::Test {
 protected:
  // A kernel with these words of 8 bytes as its arguments.
  void kernel(const std::vector<std::uint64_t>& values) {
    const ir::KernelNode node;
    std::vector<ir::ParamWord> words;
    for (std::size_t slot = 0; slot < values.size(); ++slot) {
      ir::ParamWord word;
      word.slot = static_cast<std::uint16_t>(slot);
      word.size_bytes = 8;
      word.value = values[slot];
      words.push_back(word);
    }
    builder_.add_params(builder_.add_kernel(ir::kEmptyString, node), words);
  }
  ir::Graph& graph() { return builder_.graph(); }

  ir::GraphBuilder builder_;
};

TEST_F(AddAccesses, FollowTheAllocations) {
  kernel({0x100000, 0x900040});
  kernel({0x900080, 7});
  AccessFacts facts;
  facts.nodes.push_back({0, {{0, 0, 0x5000, 0x5000}, {1, 0, 0x70040, 0x70000}}, {{0x5000, 0x5100, 0x5000, true, false}, {0x70040, 0x70080, 0x70000, false, true}}});
  facts.nodes.push_back({1, {{0, 0, 0x70080, 0x70000}}, {{0x70080, 0x70090, 0x70000, true, true}}});
  EXPECT_EQ(add_accesses(facts, graph()), "");
  ASSERT_EQ(graph().measured_accesses.size(), 3U);
  EXPECT_EQ(graph().measured_accesses[0].begin, 0x100000U);
  EXPECT_EQ(graph().measured_accesses[0].end, 0x100100U);
  EXPECT_TRUE(graph().measured_accesses[0].reads && !graph().measured_accesses[0].writes);
  EXPECT_EQ(graph().measured_accesses[1].begin, 0x900040U);
  EXPECT_EQ(graph().measured_accesses[2].begin, 0x900080U);
  EXPECT_TRUE(graph().measured_reads_are_some);
  EXPECT_TRUE(graph().facts.contains(ir::Fact::measured_access));
}

// What a kernel does with null says nothing of what else it touches.
TEST_F(AddAccesses, ADereferencedNullIsNoMeasurement) {
  kernel({0x100000, 0x40});
  AccessFacts facts;
  facts.nulls.push_back({0, 1, 0, 0x40});
  EXPECT_EQ(add_accesses(facts, graph()), "");
  ASSERT_EQ(graph().measured_accesses.size(), 1U);
  const ir::MeasuredAccess& row = graph().measured_accesses[0];
  EXPECT_TRUE(row.is_null() && row.begin == 0x40 && row.end == 0x41 && !row.reads && !row.writes && row.slot == 1 && row.offset_bytes == 0);
  EXPECT_FALSE(graph().facts.contains(ir::Fact::measured_access));
  facts.nulls[0].value = 0x48;
  EXPECT_NE(add_accesses(facts, graph()), "") << "another value";
  facts.nulls[0] = {3, 1, 0, 0x40};
  EXPECT_NE(add_accesses(facts, graph()), "") << "no such node";
}

TEST_F(AddAccesses, RefusesWhatDoesNotFit) {
  kernel({0x100000, 0x100200});
  const auto said = [&](const AccessFacts::Node& node) {
    AccessFacts facts;
    facts.nodes.push_back(node);
    return add_accesses(facts, graph());
  };
  EXPECT_NE(said({5, {}, {}}), "") << "no such node";
  EXPECT_NE(said({0, {{0, 0, 0x5000, 0x5000}, {1, 0, 0x5100, 0x5000}}, {}}), "") << "two distances for one allocation";
  EXPECT_NE(said({0, {{0, 0, 0x5000, 0x5000}}, {{0x9000, 0x9001, 0x9000, true, false}}}), "") << "an allocation that no argument names";
  EXPECT_TRUE(graph().measured_accesses.empty());
  EXPECT_FALSE(graph().facts.contains(ir::Fact::measured_access));
}

TEST(RunOfCommand, SaysWhichRunItIs) {
  const auto run = run_of_command("cglint-model-runner run k2_full --variant mla_main_moe_main --preset k2-tp8 --layers 8 --batch 4 --context 99 --seed 1 --no-pdl --beside other");
  ASSERT_TRUE(run.has_value());
  EXPECT_EQ(*run, (HeldRun{"k2_full", "mla_main_moe_main", "k2-tp8", "other", 8, 4}));
  EXPECT_EQ(run_of_command("/opt/bin/cglint-model-runner run m --batch 1 --layers 2 --preset p --variant v"), (HeldRun{"m", "v", "p", "", 2, 1}));
}

TEST(RunOfCommand, SaysNothingOfOthers) {
  for (const char* command : {"", " ", "python serve.py", "cglint-model-runner", "cglint-model-runner run", "cglint-model-runner list m --variant v --preset p --layers 2 --batch 1",
                              "other run m --variant v --preset p --layers 2 --batch 1", "cglint-model-runner run m", "cglint-model-runner run m --variant v --preset p --layers 2",
                              "cglint-model-runner run m --variant v --preset p --layers 2 --batch", "cglint-model-runner run m --variant v --preset p --layers x --batch 1",
                              "cglint-model-runner run m --variant v --preset p --layers 2 --batch 99999999999"})
    EXPECT_FALSE(run_of_command(command).has_value()) << command;
}

}  // namespace
}  // namespace cglint::capture_tool
