#include "analysis/pattern.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <regex>
#include <string>

#include "analysis/size_expression.h"

namespace cglint::analysis {
namespace {

TEST(Pattern, AgreesWithStdRegex) {
  // Random patterns over a small alphabet against the standard library's engine.
  std::mt19937 random(3);
  const auto atom = [&](auto&& self, int depth) -> std::string {
    switch (random() % (depth > 0 ? 12 : 9)) {
      case 0:
        return "a";
      case 1:
        return "b";
      case 2:
        return ".";
      case 3:
        return "[ab]";
      case 4:
        return "[^a]";
      case 5:
        return "\\d";
      case 6:
        return "\\b";
      case 7:
        return "_";
      case 8:
        return "1";
      default: {
        std::string text = "(";
        for (auto n = 1 + random() % 3; n > 0; --n)
          text += self(self, depth - 1) + (random() % 4 == 0 ? "|" : "");
        return text + ")";
      }
    }
  };
  int matched = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string source;
    if (random() % 8 == 0) source += "^";
    for (auto n = 1 + random() % 4; n > 0; --n) {
      std::string piece = atom(atom, 2);
      if (piece != "\\b") {
        switch (random() % 6) {
          case 0:
            piece += "*";
            break;
          case 1:
            piece += "+";
            break;
          case 2:
            piece += "?";
            break;
          case 3:
            piece += "{1,2}";
            break;
          default:
            break;
        }
      }
      source += piece;
    }
    if (random() % 8 == 0) source += "$";
    const base::Result<Pattern> pattern = Pattern::compile(source);
    ASSERT_TRUE(pattern.has_value()) << source << ": " << pattern.error().message;
    const std::regex expected(source);
    for (int i = 0; i < 8; ++i) {
      std::string text;
      for (auto n = random() % 7; n > 0; --n) text += "ab1_ c"[random() % 6];
      const bool want = std::regex_search(text, expected);
      ASSERT_EQ(pattern->matches(text), want) << source << " on '" << text << "'";
      matched += want ? 1 : 0;
    }
  }
  EXPECT_GT(matched, 5000);
}

TEST(Pattern, RefusesWhatRe2Refuses) {
  for (const char* source : {"(", ")", "a)", "[a", "*a", "a{3,2}", "(?=a)", "(?!a)", "\\1", "\\q", "a\\", "[b-a]"})
    EXPECT_EQ(Pattern::compile(source).error().code, base::ErrorCode::malformed) << source;
  EXPECT_EQ(Pattern::compile(std::string(5000, 'a')).error().code, base::ErrorCode::limit);
  EXPECT_FALSE(Pattern::compile("((((a{60}){60}){60}){60})").has_value());
  EXPECT_TRUE(Pattern::compile("").has_value());
  EXPECT_TRUE(Pattern::compile("(?:a|)(b){0,3}\\.\\[").has_value());
}

TEST(Pattern, LinearOnPathologicalInput) {
  const base::Result<Pattern> pattern = Pattern::compile("(a*)*(a*)*(a|a)*b$");
  ASSERT_TRUE(pattern.has_value());
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(pattern->matches("b" + std::string(60000, 'a')));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

TEST(SizeExpression, Evaluates) {
  const auto value = [](std::string_view text) -> std::int64_t {
    const base::Result<SizeExpression> expression = SizeExpression::parse(text);
    if (!expression) return -2;
    const auto result = expression->evaluate(
        [](SizeExpression::Variable variable, std::uint32_t index) -> std::optional<std::int64_t> {
          switch (variable) {
            case SizeExpression::Variable::parameter:
              return index == 9 ? std::nullopt : std::optional<std::int64_t>(index * 10);
            case SizeExpression::Variable::element:
              return 2;
            case SizeExpression::Variable::grid_x:
              return 7;
            case SizeExpression::Variable::block_z:
              return 3;
            case SizeExpression::Variable::field: {
              const auto field = SizeExpression::Field::from_index(index);
              return field.slot * 1'000'000 + field.offset_bytes * 10 + field.size_bytes;
            }
            case SizeExpression::Variable::template_argument:
              return index == 9 ? std::nullopt : std::optional<std::int64_t>(index + 50);
            default:
              return 1;
          }
        });
    return result ? static_cast<std::int64_t>(*result) : -1;
  };
  EXPECT_EQ(value("p4 * p5 * e0"), 40 * 50 * 2);
  EXPECT_EQ(value("(p1+1)*gx - bz"), 74);
  EXPECT_EQ(value("p1 / 3"), 4);  // rounds up
  EXPECT_EQ(value("4096"), 4096);
  EXPECT_EQ(value("p2@104"), 2'001'044);
  EXPECT_EQ(value("p4095@65535:8 + 0"), 4095'655'358);
  EXPECT_EQ(value("p0@40:1 * t3"), 401 * 53);
  EXPECT_EQ(value("p0@6:2"), 62);
  EXPECT_EQ(value("t9"), -1);
  EXPECT_EQ(value("min(p1, 3 * 2) + 1"), 7);
  EXPECT_EQ(value("min(4, min(9, p9))"), -1);
  EXPECT_EQ(value("p9 * 2"), -1);
  EXPECT_EQ(value("1 - 2"), -1);
  EXPECT_EQ(value("1 / (p1 - p1)"), -1);
  EXPECT_EQ(value("1 / (p0 * 0)"), -1);
  EXPECT_EQ(value("gx / (3 - 1)"), 4);
  EXPECT_EQ(value("999999999999999 * 999999999999999"), -1);
  for (const char* bad : {"", "p", "p4 *", "p4 p5", "(p4", "q1", "gw", "1e3", "p999999", "-1", "t", "p1@", "p1@4:3", "p1@4:", "p4096@0",
                          "p1@65536", "e1@4", "min(1", "min(1)", "min(,2)", "min 1"})
    EXPECT_EQ(value(bad), -2) << bad;
  EXPECT_EQ(value(std::string(100, '(') + "1" + std::string(100, ')')), -2);
  for (const char* bad : {"gx / 0", "1 / 0", "gx / (1 - 1)", "gx * 4 / (2 - 3) + p1", "min(p1, gx / (1 / 2 - 1))", "gx / min(4, 0 * 7)"}) {
    const base::Result<SizeExpression> expression = SizeExpression::parse(bad);
    ASSERT_FALSE(expression.has_value()) << bad;
    EXPECT_NE(expression.error().message.find(" divides by "), std::string::npos) << expression.error().message;
  }
  // As many values wait for an operator as the deepest nesting allows.
  std::string deep = "1 + 1 * 1";
  for (int level = 0; level < 32; ++level) deep = "1+1*min(1," + deep + ")";
  EXPECT_EQ(value(deep), 2);
  EXPECT_EQ(value("1+1*min(1," + deep + ")"), -2);
}

}  // namespace
}  // namespace cglint::analysis
