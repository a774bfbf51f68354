#include "base/json_writer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>

namespace cglint::base {
namespace {

std::string as_json(std::string_view text, std::uint64_t* replaced = nullptr) {
  std::string out;
  JsonWriter json(out);
  json.string(text);
  if (replaced != nullptr) *replaced = json.invalid_utf8();
  return out;
}

TEST(JsonWriter, PutsCommasBetweenValues) {
  std::string out;
  JsonWriter json(out);
  json.begin_object();
  json.field("a", 1);
  json.key("b");
  json.begin_array();
  json.end_array();
  json.key("c");
  json.begin_array();
  json.number(1);
  json.begin_object();
  json.end_object();
  json.null();
  json.boolean(false);
  json.raw("[2]");
  json.end_array();
  json.field("d", "text");
  json.field("e", true);
  json.end_object();
  EXPECT_EQ(out, R"({"a":1,"b":[],"c":[1,{},null,false,[2]],"d":"text","e":true})");
}

TEST(JsonWriter, IntegersAreExact) {
  std::string out;
  JsonWriter json(out);
  json.begin_array();
  json.number(std::numeric_limits<std::uint64_t>::max());
  json.number(std::numeric_limits<std::int64_t>::min());
  json.number(std::uint8_t{200});
  json.number(std::int16_t{-1});
  json.hex(std::numeric_limits<std::uint64_t>::max());
  json.hex(0);
  json.end_array();
  EXPECT_EQ(out, R"([18446744073709551615,-9223372036854775808,200,-1,"0xffffffffffffffff","0x0"])");
}

TEST(JsonWriter, DoublesReadBackToTheSameBits) {
  for (const double value : {0.1, 1.0 / 3, 1e300, 5e-324, -0.0, 123456789.125}) {
    std::string out;
    JsonWriter json(out);
    json.number(value);
    const double back = std::strtod(out.c_str(), nullptr);
    EXPECT_EQ(std::signbit(back), std::signbit(value));
    EXPECT_EQ(back, value) << out;
  }
  std::string out;
  JsonWriter json(out);
  json.number(std::numeric_limits<double>::infinity());
  EXPECT_EQ(out, "null");
}

TEST(JsonWriter, EscapesEveryControlCharacter) {
  for (int c = 0; c < 0x20; ++c) {
    const std::string text = as_json(std::string(1, static_cast<char>(c)));
    EXPECT_TRUE(text.starts_with("\"\\")) << c;
    for (const char byte : text) EXPECT_GE(static_cast<unsigned char>(byte), 0x20) << c;
  }
  EXPECT_EQ(as_json("a\"b\\c\n\r\t"), R"("a\"b\\c\n\r\t")");
  EXPECT_EQ(as_json(std::string_view("\0", 1)), R"("\u0000")");
  EXPECT_EQ(as_json("\x1b[0m"), R"("\u001b[0m")");
  EXPECT_EQ(as_json("\x7f"), R"("\u007f")");
  EXPECT_EQ(as_json("\xc2\x9b"), R"("\u009b")");  // a control character of its own in many terminals
  EXPECT_EQ(as_json("\xc2\xa0"), "\"\xc2\xa0\"");
}

TEST(JsonWriter, KeepsValidUtf8AndReplacesTheRest) {
  std::uint64_t replaced = 0;
  const std::string valid =
      "gr\xc3\xb6\xc3\x9f"
      "e \xe2\x82\xac \xf0\x9f\x98\x80 \xf4\x8f\xbf\xbf \xed\x9f\xbf";
  EXPECT_EQ(as_json(valid, &replaced), "\"" + valid + "\"");
  EXPECT_EQ(replaced, 0U);
  const std::string mark = "\xef\xbf\xbd";
  struct Case {
    std::string text;
    int marks;
  };
  // One mark per maximal subpart, as Unicode recommends.
  const Case cases[] = {{"\x80", 1},
                        {"\xff", 1},
                        {"\xc0\xaf", 2},          // overlong
                        {"\xc3", 1},              // cut
                        {"\xe2\x82", 1},          // cut
                        {"\xf0\x9f\x98", 1},      // cut
                        {"\xe0\x80\x80", 3},      // overlong
                        {"\xed\xa0\x80", 3},      // surrogate
                        {"\xf4\x90\x80\x80", 4},  // beyond U+10FFFF
                        {"\xf8\x88\x80\x80\x80", 5}};
  for (const Case& c : cases) {
    std::string expected = "\"a";
    for (int i = 0; i < c.marks; ++i) expected += mark;
    EXPECT_EQ(as_json("a" + c.text + "b", &replaced), expected + "b\"") << c.text;
    EXPECT_EQ(replaced, static_cast<std::uint64_t>(c.marks));
  }
}

}  // namespace
}  // namespace cglint::base
