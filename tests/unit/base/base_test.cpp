#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <concepts>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "base/crew.h"
#include "base/id.h"
#include "base/interner.h"
#include "base/packed_span.h"
#include "base/result.h"
#include "base/text.h"
#include "base/toml_check.h"
#include "base/value_table.h"

namespace cglint::base {
namespace {

using A = Id<struct TagA>;
using B = Id<struct TagB>;

// Ids of different tags do not mix, and an IdVector takes only its own id.
template <typename V, typename I>
concept Indexable = requires(V& v, I i) { v[i]; };
static_assert(Indexable<IdVector<A, int>, A>);
static_assert(!Indexable<IdVector<A, int>, B>);
static_assert(!Indexable<IdVector<A, int>, int>);
static_assert(!std::convertible_to<int, A> && !std::convertible_to<A, B> && !std::convertible_to<A, std::uint32_t>);
static_assert(!std::equality_comparable_with<A, B>);

TEST(Id, IsInvalidByDefaultAndOrdered) {
  EXPECT_FALSE(A().is_valid());
  EXPECT_TRUE(A(0).is_valid());
  EXPECT_LT(A(1), A(2));
  EXPECT_LT(A(2), A());  // invalid sorts last
}

TEST(IdVector, GivesIdsInOrder) {
  IdVector<A, std::string> items;
  const A first = items.push_back("x");
  const A second = items.push_back("y");
  EXPECT_EQ(items[first], "x");
  EXPECT_EQ(items[second], "y");
  std::size_t count = 0;
  for (const A id : items.ids()) count += items[id].size();
  EXPECT_EQ(count, 2U);
  EXPECT_FALSE(items.contains(A()));
}

TEST(Interner, EqualStringsShareAnIdAndViewsStay) {
  StringInterner strings;
  EXPECT_EQ(strings.intern(""), kEmptyString);
  const StringId first = strings.intern("kernel");
  const std::string_view view = strings.view(first);
  for (int i = 0; i < 20000; ++i) strings.intern("name " + std::to_string(i));
  strings.intern(std::string(200000, 'x'));  // larger than a block
  EXPECT_EQ(strings.intern("kernel"), first);
  EXPECT_EQ(view.data(), strings.view(first).data());
  EXPECT_EQ(strings.view(StringId()), "");
  EXPECT_FALSE(strings.find("absent").is_valid());
  EXPECT_EQ(strings.find("kernel"), first);
}

TEST(Interner, KeepsNulBytes) {
  StringInterner strings;
  const StringId a = strings.intern(std::string_view("a\0b", 3));
  EXPECT_NE(a, strings.intern("a"));
  EXPECT_EQ(strings.view(a).size(), 3U);
}

TEST(Interner, SurvivesBeingMoved) {
  StringInterner strings;
  const StringId id = strings.intern("kept");
  StringInterner moved = std::move(strings);
  EXPECT_EQ(moved.view(id), "kept");
  EXPECT_EQ(moved.intern("kept"), id);
}

Result<int> half(int value) {
  if (value % 2 != 0) return make_error(ErrorCode::malformed, "odd", 7);
  return value / 2;
}

Result<void> twice(int value) {
  CGLINT_TRY(half(value));
  return {};
}

TEST(SpanPacker, KeepsEverySpanExactly) {
  constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min(), kMost = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t kReach = std::int64_t{1} << 47, kLong = std::int64_t{1} << 32;
  std::mt19937_64 random(1);
  for (const std::int64_t base : {std::int64_t{0}, std::int64_t{1'700'000'000'000'000'000}, kLeast, kMost}) {
    SpanPacker packer;
    std::vector<SpanPacker::Span> spans{{base, base}};
    for (const std::int64_t begin : {kLeast, kMost, std::int64_t{-1}, kReach - 1, kReach, -kReach, -kReach - 1})
      for (const std::int64_t length : {std::int64_t{0}, std::int64_t{1}, kLong - 2, kLong - 1, kLong, std::int64_t{-1}, kMost})
        for (const std::int64_t from : {begin, static_cast<std::int64_t>(static_cast<std::uint64_t>(base) + static_cast<std::uint64_t>(begin))})
          spans.push_back({from, static_cast<std::int64_t>(static_cast<std::uint64_t>(from) + static_cast<std::uint64_t>(length))});
    for (int i = 0; i < 1000; ++i) spans.push_back({static_cast<std::int64_t>(random()), static_cast<std::int64_t>(random())});
    std::vector<PackedSpan> packed;
    for (const SpanPacker::Span& span : spans) packed.push_back(packer.pack(span.begin, span.end));
    for (std::size_t i = 0; i < spans.size(); ++i) ASSERT_EQ(packer.unpack(packed[i]), spans[i]) << i;
  }
}

TEST(ValueTable, NumbersDistinctValues) {
  struct OneOfFour {  // many values in one place
    std::uint64_t operator()(int value) const { return static_cast<std::uint64_t>(value) % 4; }
  };
  ValueTable<int, OneOfFour> table;
  std::vector<int> values;
  std::mt19937 random(2);
  for (int i = 0; i < 5000; ++i) {
    const int value = i % 700 < 400 ? i % 400 : static_cast<int>(random() % 600);
    const auto known = std::find(values.begin(), values.end(), value);
    const auto expected = static_cast<std::uint32_t>(known - values.begin());
    if (known == values.end()) values.push_back(value);
    ASSERT_EQ(table.intern(value), expected);
  }
  ASSERT_EQ(table.size(), values.size());
  for (std::uint32_t i = 0; i < values.size(); ++i) ASSERT_EQ(table[i], values[i]);
}

TEST(Result, CarriesAValueOrAnErrorWithFileAndOffset) {
  EXPECT_EQ(*half(4), 2);
  const auto failed = half(3);
  ASSERT_FALSE(failed);
  EXPECT_EQ(Error(failed.error()).with_file("a.dot").to_string(), "a.dot: odd (at byte 7)");
  EXPECT_TRUE(twice(2));
  EXPECT_EQ(twice(1).error().code, ErrorCode::malformed);
}

TEST(Printable, EscapesWhatATerminalWouldInterpret) {
  EXPECT_EQ(printable("gemm<1>"), "gemm<1>");
  EXPECT_EQ(printable("a\x1b[31mb"), "a\\x1b[31mb");
  EXPECT_EQ(printable(std::string_view("a\0b\n\x7f", 5)), "a\\x00b\\x0a\\x7f");
  EXPECT_EQ(printable("\xff\xfe"), "\\xff\\xfe");
  EXPECT_EQ(printable("\xc2\x9b" "31m"), "\\xc2\\x9b31m");  // U+009B is a control sequence introducer
  EXPECT_EQ(printable("caf\xc3\xa9 \xe2\x86\x92 \xf0\x9f\x94\xa5"), "caf\xc3\xa9 \xe2\x86\x92 \xf0\x9f\x94\xa5");
  EXPECT_EQ(printable("a\xe2\x80\xae" "b"), "a\\xe2\\x80\\xaeb");  // U+202E would show the rest backwards
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // a lone surrogate
  EXPECT_EQ(printable("\xc0\xaf"), "\\xc0\\xaf");           // an overlong form
}

TEST(Printable, CutsLongTextInTheMiddle) {
  const std::string cut = printable(std::string(500, 'a') + std::string(500, 'b'), 100);
  EXPECT_EQ(cut.size(), 100U);
  EXPECT_TRUE(cut.starts_with("aaa") && cut.ends_with("bbb") && cut.find("...") != std::string::npos);
  const std::string accents = [] {
    std::string text;
    for (int i = 0; i < 200; ++i) text += "\xc3\xa9";
    return text;
  }();
  for (std::size_t limit = 8; limit < 60; ++limit) EXPECT_TRUE(is_valid_utf8(printable(accents, limit))) << limit;
}

TEST(Closest, FindsTyposOnly) {
  constexpr std::array<std::string_view, 3> kNames = {"stream-explosion", "stream-budget", "CG101"};
  EXPECT_EQ(closest("stream-explosoin", kNames), "stream-explosion");
  EXPECT_EQ(closest("CG110", kNames), "CG101");  // swapped
  EXPECT_EQ(closest("CG234", kNames), "");
  EXPECT_EQ(closest("CG100", kNames), "CG101");
  EXPECT_EQ(closest("bananas", kNames), "");
  EXPECT_EQ(closest(std::string(100000, 'x'), kNames), "");
}

TEST(CountOf, UsesThePlural) {
  EXPECT_EQ(count_of(1, "graph"), "1 graph");
  EXPECT_EQ(count_of(0, "graph"), "0 graphs");
  EXPECT_EQ(count_of(2, "branch", "branches"), "2 branches");
}

TEST(TomlCheck, LetsEverythingThroughThatAParserHandles) {
  const std::string_view texts[] = {
      "",
      "a = 1\n[t]\n[[ u ]]\n['q']\n[\"r\"]\n[]\n",
      "a = [\n[1],\n{b = 2},\n[{c = 3}]\n]\n",
      "# \xc3\xa9\na = '\xc3\xa9' # \xc3\xa9\n",
      "a = \"\"\"\n[{ \xc3\xa9 \"\" \\\"\"\"\"\"\nb = '''\n[{'''\n",
      "a = \"not closed\n[b]\n",
      "\xef\xbb\xbf" "a = 1\n",
      "a = 'x'y'\n",
      "}]\n",
  };
  for (const std::string_view text : texts) EXPECT_TRUE(check_toml_text(text).has_value()) << text;
}

TEST(TomlCheck, RefusesWhatTheParserDoesNotSurvive) {
  const auto error = [](std::string_view text) {
    const auto result = check_toml_text(text);
    return result ? std::string() : result.error().message;
  };
  EXPECT_EQ(error("a = 1\n\n[{b}]\n"), "line 3: a table's name was expected behind '['");
  EXPECT_EQ(error("[[ \x01"), "line 1: a table's name was expected behind '['");
  EXPECT_EQ(error("a = '''\n\n'''\n[=]"), "line 4: a table's name was expected behind '['");
  EXPECT_EQ(error("a = \"x\"\nb\xc3\xa9 = 1"), "line 2: a character beyond ASCII outside strings and comments");
  EXPECT_EQ(error("a = 1\nb = '\xff'"), "line 2: the text is not UTF-8");
  EXPECT_EQ(error("a = [[[}match]]]"), "line 1: '}' in an array that was not closed");
  EXPECT_EQ(error("a = {b = [\n1, }"), "line 2: '}' in an array that was not closed");
}

TEST(Crew, WorksThroughEveryItemOnce) {
  for (const unsigned size : {1U, 2U, 5U}) {
    Crew crew(size);
    for (const std::size_t count : {0U, 1U, 2U, 1000U}) {
      std::vector<int> seen(count, 0);
      crew.run(count, [&](std::size_t item) { ++seen[item]; });
      EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), static_cast<std::ptrdiff_t>(count));
    }
  }
}

TEST(Crew, SeveralItemsAreUnderWayAtATime) {
  Crew crew(3);
  std::atomic<int> arrived{0};
  // Each waits for the two others: with fewer threads this would never end.
  crew.run(3, [&](std::size_t) {
    ++arrived;
    while (arrived < 3) std::this_thread::yield();
  });
  EXPECT_EQ(arrived, 3);
}

TEST(Crew, AFailureEndsTheListAndComesOut) {
  for (const unsigned size : {1U, 4U}) {
    Crew crew(size);
    std::atomic<std::size_t> begun{0};
    try {
      crew.run(100'000, [&](std::size_t item) {
        ++begun;
        if (item == 3) throw std::runtime_error("three");
      });
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "three");
    }
    EXPECT_GE(begun, 4U);
    if (size == 1) {
      EXPECT_EQ(begun, 4U);
    }
    // It works on.
    std::atomic<int> sum{0};
    crew.run(10, [&](std::size_t item) { sum += static_cast<int>(item); });
    EXPECT_EQ(sum, 45);
  }
}

TEST(Crew, OfSeveralFailuresTheFirstItemsComesOut) {
  Crew crew(2);
  std::atomic<int> arrived{0};
  try {
    crew.run(2, [&](std::size_t item) {
      ++arrived;
      while (arrived < 2) std::this_thread::yield();
      if (item == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      throw std::runtime_error(item == 0 ? "first" : "second");
    });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "first");
  }
}

}  // namespace
}  // namespace cglint::base
