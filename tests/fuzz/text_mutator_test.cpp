#include "text_mutator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

namespace cglint::fuzz {
namespace {

constexpr std::string_view kRecord =
    R"({"type":"graph","nodes":[{"id":1,"kind":"kernel"},{"id":2,"kind":"memset"}],"edges":[[0,1],[1,2]],"name":"a \"b\" [c"})";

TEST(TextMutator, KeepsTheFormOfJsonMostly) {
  int same = 0;
  int whole = 0;
  for (std::uint32_t seed = 0; seed < 2000; ++seed) {
    const std::string text = mutate_text(kRecord, {}, 4096, seed);
    same += text == kRecord ? 1 : 0;
    whole += nlohmann::json::accept(text) ? 1 : 0;
  }
  EXPECT_LT(same, 300);
  EXPECT_GT(whole, 1200);
}

TEST(TextMutator, TakesFromTheOtherText) {
  int taken = 0;
  for (std::uint32_t seed = 0; seed < 2000; ++seed)
    taken += mutate_text(kRecord, R"(["elsewhere",{"elsewhere":3}])", 4096, seed).find("elsewhere") !=
                     std::string::npos
                 ? 1
                 : 0;
  EXPECT_GT(taken, 200);
}

TEST(TextMutator, KeepsToTheSizeAndToTheSeed) {
  const std::string line = std::string(kRecord) + "\n";
  const std::string text = line + line + line;
  std::set<std::string> seen;
  for (std::uint32_t seed = 0; seed < 1000; ++seed) {
    const std::string once = mutate_text(text, line, text.size() + 8, seed);
    EXPECT_LE(once.size(), text.size() + 8);
    EXPECT_EQ(once, mutate_text(text, line, text.size() + 8, seed));
    seen.insert(once);
  }
  EXPECT_GT(seen.size(), 500U);
  EXPECT_EQ(mutate_text(text, {}, 10, 1).size(), 10U);
}

TEST(TextMutator, LinesMoveWhole) {
  // Every line that is left is one of the old ones.
  constexpr std::string_view kText =
      "+\n--\n++-\n";  // no numbers, words or brackets: lines are all that can change
  std::set<std::string> seen;
  for (std::uint32_t seed = 0; seed < 2000; ++seed) {
    const std::string text = mutate_text(kText, "", 4096, seed);
    std::size_t begin = 0;
    for (std::size_t end = text.find('\n'); end != std::string::npos;
         begin = end + 1, end = text.find('\n', begin)) {
      const std::string line = text.substr(begin, end - begin);
      EXPECT_TRUE(line == "+" || line == "--" || line == "++-") << seed << ": " << line;
    }
    EXPECT_EQ(begin, text.size());
    seen.insert(text);
  }
  EXPECT_TRUE(seen.contains("--\n++-\n"));        // removed
  EXPECT_TRUE(seen.contains("+\n+\n--\n++-\n"));  // repeated
  EXPECT_TRUE(seen.contains("--\n+\n++-\n"));     // moved down
  EXPECT_TRUE(seen.contains("+\n++-\n--\n"));     // moved up
}

TEST(TextMutator, AnyBytes) {
  EXPECT_EQ(mutate_text({}, {}, 16, 3), "");
  for (std::uint32_t seed = 0; seed < 2000; ++seed) {
    std::string bytes;
    for (std::uint32_t i = 0, state = seed + 1; i < 40; ++i)
      bytes += "\"\\\n{}[],-0x1a \xff"[(state = state * 1664525U + 1013904223U) >> 28];
    EXPECT_LE(mutate_text(bytes, bytes, 64, seed).size(), 64U);
  }
}

}  // namespace
}  // namespace cglint::fuzz
