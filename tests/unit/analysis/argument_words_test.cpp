#include "analysis/argument_words.h"

#include <gtest/gtest.h>

#include <vector>

#include "ir/graph_builder.h"

namespace cglint::analysis {
namespace {

ir::ParamWord word(std::uint64_t value, bool in_allocation, std::uint16_t slot, std::uint16_t offset = 0, std::uint8_t size = 8) {
  ir::ParamWord result;
  result.value = value;
  result.slot = slot;
  result.offset_bytes = offset;
  result.size_bytes = size;
  if (in_allocation) result.allocation = ir::AllocationId(0);
  return result;
}

TEST(ArgumentWords, CountsWhatTheWordsOfEachFunctionAre) {
  ir::GraphBuilder builder;
  builder.graph().facts = {ir::Fact::nodes, ir::Fact::kernel_params, ir::Fact::allocations};
  const auto launch = [&](std::uint32_t function, const std::vector<ir::ParamWord>& words) {
    ir::KernelNode kernel;
    kernel.function = ir::FunctionId(function);
    const ir::NodeId node = builder.add_kernel(ir::kEmptyString, kernel);
    builder.add_params(node, words);
    return node;
  };
  constexpr std::uint64_t kA = 0x7f0000000000, kB = 0x7f0000001000;
  launch(7, {word(kA, true, 0), word(kA, true, 1, 8), word(3, false, 2, 0, 4)});
  launch(2, {word(kB, false, 0)});
  launch(7, {word(kA, true, 0), word(kB, true, 1, 8), word(4, false, 2, 0, 4)});
  launch(7, {word(5, false, 0), word(kA, true, 1, 8), word(4, false, 2, 0, 4), word(0x7fff00000000, false, 3, 8)});
  launch(7, {word(5, false, 0), word(kA, true, 1, 8), word(4, false, 2, 0, 4), word(0x55d000000000, false, 3, 8)});
  const ir::NodeId disabled = launch(7, {word(kB, true, 0)});
  builder.set_enabled(disabled, false);
  auto graph = builder.finish();
  ASSERT_TRUE(graph.has_value());
  const std::vector<FunctionWords> functions = argument_words(**graph);
  ASSERT_EQ(functions.size(), 2U);
  EXPECT_EQ(functions[0].function, ir::FunctionId(7));
  ASSERT_EQ(functions[0].words.size(), 4U);
  const ArgumentWord& pointer = functions[0].words[0];
  EXPECT_EQ(pointer.inside, 2U);
  EXPECT_EQ(pointer.elsewhere, 2U);
  EXPECT_EQ(pointer.numbers, 2U);
  EXPECT_EQ(pointer.first, kA);
  EXPECT_FALSE(pointer.several);
  EXPECT_TRUE(pointer.values.empty());
  EXPECT_EQ(pointer.word.value, 5U);
  const ArgumentWord& member = functions[0].words[1];
  EXPECT_TRUE(member.in_struct && member.several && !member.many);
  EXPECT_EQ(member.values, (std::vector<std::uint64_t>{kA, kB}));
  EXPECT_EQ(functions[0].words[2].numbers, 4U);
  EXPECT_EQ(functions[0].words[3].regions, (std::vector<std::uint32_t>{0x7f, 0x55}));
  EXPECT_EQ(functions[1].words[0].elsewhere, 1U);
  EXPECT_EQ(functions[1].words[0].numbers, 0U);
}

TEST(ArgumentWords, KeepsSoManyAddressesOfAStruct) {
  ir::GraphBuilder builder;
  for (std::uint64_t i = 0; i < 200; ++i) {
    ir::KernelNode kernel;
    kernel.function = ir::FunctionId(0);
    const std::vector<ir::ParamWord> words = {word(0x7f0000000000 + i % 100, true, 0, 8)};
    builder.add_params(builder.add_kernel(ir::kEmptyString, kernel), words);
  }
  auto graph = builder.finish();
  ASSERT_TRUE(graph.has_value());
  const std::vector<FunctionWords> functions = argument_words(**graph);
  ASSERT_EQ(functions.size(), 1U);
  EXPECT_EQ(functions[0].words[0].values.size(), ArgumentWord::kMostValues);
  EXPECT_TRUE(functions[0].words[0].many);
  EXPECT_EQ(functions[0].words[0].inside, 200U);
}

}  // namespace
}  // namespace cglint::analysis
