#include "import/common/source.h"

#include <gtest/gtest.h>

#include "unit/import/import_helpers.h"

namespace cglint::import {
namespace {

using namespace cglint::testing;
using base::ErrorCode;

std::string lines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += "line " + std::to_string(i) + " of a text that compresses\n";
  return text;
}

// Reads everything in steps of `step`; `error` gets what stopped it.
std::string drain(Source& source, std::size_t step, base::Error* error = nullptr) {
  std::string all;
  std::string buffer(step, '\0');
  while (true) {
    auto n = source.read(buffer.data(), step);
    if (!n) {
      if (error != nullptr) *error = n.error();
      return all;
    }
    if (*n == 0) return all;
    all.append(buffer.data(), *n);
  }
}

class SourceForms : public ::testing::TestWithParam<int> {
 protected:
  static std::string pack(std::string_view text) {
    switch (GetParam()) {
      case 1: return gzip(text);
      case 2: return zstd(text);
      default: return std::string(text);
    }
  }
};

TEST_P(SourceForms, GivesTheTextInAnyStep) {
  const std::string text = lines(9000);
  const std::string packed = pack(text);
  for (const std::size_t step : {std::size_t{1} << 20, std::size_t{4096}, std::size_t{7}}) {
    auto source = Source::from_memory(packed, "x", Limits());
    EXPECT_EQ(drain(*source, step), text);
    EXPECT_FALSE(source->torn());
    EXPECT_EQ(source->offset_bytes(), text.size());
    EXPECT_EQ(source->consumed_bytes(), packed.size());
  }
}

TEST_P(SourceForms, PeekShowsTheStartAndConsumesNothing) {
  const std::string text = lines(9000);
  const std::string packed = pack(text);
  auto source = Source::from_memory(packed, "x", Limits());
  auto prefix = source->peek();
  ASSERT_TRUE(prefix);
  EXPECT_EQ(prefix->size(), std::size_t{64} << 10);
  EXPECT_TRUE(text.starts_with(*prefix));
  EXPECT_EQ(source->offset_bytes(), 0U);
  EXPECT_EQ(drain(*source, 1000), text);
}

TEST_P(SourceForms, MembersFollowEachOther) {
  const std::string packed = pack("one ") + pack("") + pack("two ") + pack(lines(3000));
  auto source = Source::from_memory(packed, "x", Limits());
  EXPECT_EQ(drain(*source, 64), "one two " + lines(3000));
}

TEST_P(SourceForms, ReadAllIsPaddedAndComplete) {
  const std::string text = lines(9000);
  const std::string packed = pack(text);
  auto source = Source::from_memory(packed, "x", Limits());
  auto all = source->read_all(64);
  ASSERT_TRUE(all);
  EXPECT_EQ(*all, text);
  ASSERT_GE(all->capacity(), text.size() + 64);
}

TEST_P(SourceForms, EmptyInputIsEmpty) {
  const std::string packed = pack("");
  auto source = Source::from_memory(packed, "x", Limits());
  auto prefix = source->peek();
  ASSERT_TRUE(prefix);
  EXPECT_TRUE(prefix->empty());
  EXPECT_EQ(drain(*source, 64), "");
}

INSTANTIATE_TEST_SUITE_P(PlainGzipZstd, SourceForms, ::testing::Values(0, 1, 2));

TEST(Source, AFileCutAtAnyByteGivesWhatCameBeforeThenTheError) {
  const std::string text = lines(40);
  for (const std::string& packed : {gzip(text), zstd(text)}) {
    for (std::size_t cut = 4; cut < packed.size(); ++cut) {
      auto source = Source::from_memory(std::string_view(packed).substr(0, cut), "x", Limits());
      base::Error error;
      const std::string got = drain(*source, 100, &error);
      EXPECT_TRUE(text.starts_with(got)) << cut;
      EXPECT_EQ(error.code, ErrorCode::malformed) << cut;
      EXPECT_TRUE(source->torn()) << cut;
      EXPECT_EQ(error.offset_bytes, got.size()) << cut;
    }
  }
}

TEST(Source, WhatFollowsTheLastFrameIsAnError) {
  const std::string text = lines(40);
  for (const std::string_view junk : {"j", "junk", "junk that is longer"}) {
    const std::string packed = zstd(text) + std::string(junk);
    auto source = Source::from_memory(packed, "x", Limits());
    base::Error error;
    const std::string got = drain(*source, 100, &error);
    EXPECT_EQ(got, text) << junk;
    EXPECT_EQ(error.code, ErrorCode::malformed) << junk;
  }
}

TEST(Source, AMemberThatIsCutKeepsTheWholeOnesBefore) {
  const std::string tail = gzip(lines(500));
  const std::string packed = gzip("first\n") + tail.substr(0, tail.size() / 2);
  auto source = Source::from_memory(packed, "x", Limits());
  base::Error error;
  EXPECT_TRUE(drain(*source, 100, &error).starts_with("first\nline 0"));
  EXPECT_TRUE(source->torn());
  EXPECT_NE(error.message.find("cut short"), std::string::npos) << error.message;
}

TEST(Source, CorruptBytesAreNotATear) {
  std::string packed = gzip(lines(500));
  packed[packed.size() / 2] = static_cast<char>(packed[packed.size() / 2] ^ 0x55);
  auto source = Source::from_memory(packed, "x", Limits());
  base::Error error;
  drain(*source, 1000, &error);
  EXPECT_EQ(error.code, ErrorCode::malformed);
  EXPECT_FALSE(source->torn());
  // The error stays: a reader that goes on does not get past it.
  char byte = 0;
  EXPECT_FALSE(source->read(&byte, 1));
}

TEST(Source, GarbageBehindAMemberIsAnError) {
  const std::string packed = gzip("text") + "garbage";
  auto source = Source::from_memory(packed, "x", Limits());
  base::Error error;
  EXPECT_EQ(drain(*source, 100, &error), "text");
  EXPECT_EQ(error.code, ErrorCode::malformed);
  const std::string padded = gzip("text") + std::string(512, '\0');  // tar and tapes pad with zeros
  auto fine = Source::from_memory(padded, "x", Limits());
  base::Error none;
  none.code = ErrorCode::usage;
  EXPECT_EQ(drain(*fine, 100, &none), "text");
  EXPECT_EQ(none.code, ErrorCode::usage);
}

TEST(Source, ABombStopsAtTheRatio) {
  std::string packed;
  {
    const std::string zeros(std::size_t{1} << 20, 'z');
    const std::string member = zstd(zeros);  // about 1:20,000
    ASSERT_LT(member.size() * 2000, zeros.size());
    for (int i = 0; i < 256; ++i) packed += member;
  }
  auto source = Source::from_memory(packed, "x", Limits());
  base::Error error;
  const std::string got = drain(*source, std::size_t{1} << 20, &error);
  EXPECT_EQ(error.code, ErrorCode::limit);
  EXPECT_NE(error.message.find("max_compression_ratio"), std::string::npos);
  EXPECT_LT(got.size(), std::size_t{80} << 20);
}

TEST(Source, TheSizeLimitHolds) {
  Limits limits;
  limits.max_decompressed_bytes = 1000;
  auto source = Source::from_memory(gzip(lines(100)), "x", limits);
  const std::string packed = gzip(lines(100));
  source = Source::from_memory(packed, "x", limits);
  base::Error error;
  drain(*source, 100, &error);
  EXPECT_EQ(error.code, ErrorCode::limit);
}

TEST(Source, FilesSayWhereTheyAre) {
  TemporaryFolder folder;
  const std::string plain = folder.write("a.txt", "hello");
  const std::string packed = folder.write("a.txt.gz", gzip("hello"));
  auto source = Source::open(plain, Limits());
  ASSERT_TRUE(source);
  ASSERT_TRUE((*source)->peek());
  EXPECT_EQ((*source)->plain_path(), plain);
  EXPECT_EQ((*source)->total_bytes(), 5U);
  auto compressed = Source::open(packed, Limits());
  ASSERT_TRUE(compressed);
  ASSERT_TRUE((*compressed)->peek());
  EXPECT_EQ((*compressed)->plain_path(), "");
  auto missing = Source::open(folder.path() + "/none", Limits());
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::not_found);
  auto directory = Source::open(folder.path(), Limits());
  ASSERT_FALSE(directory);
  EXPECT_EQ(directory.error().code, ErrorCode::usage);
}

}  // namespace
}  // namespace cglint::import
