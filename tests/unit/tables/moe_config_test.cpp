#include "tables/moe_config.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

namespace cglint::tables {
namespace {

TEST(MoeConfigName, AsPublished) {
  MoeConfigKey key{96, 2048, moe_config_device("NVIDIA H200"), "fp8_w8a8", {128, 128}};
  EXPECT_EQ(moe_config_file_name(key), "E=96,N=2048,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json");
  EXPECT_EQ(parse_moe_config_file_name(moe_config_file_name(key)), key);
  key.dtype.clear();
  key.block_shape.clear();
  EXPECT_EQ(moe_config_file_name(key), "E=96,N=2048,device_name=NVIDIA_H200.json");
  EXPECT_EQ(parse_moe_config_file_name(moe_config_file_name(key)), key);
  key.dtype = "int8_w8a16";
  EXPECT_EQ(parse_moe_config_file_name(moe_config_file_name(key)), key);
}

TEST(MoeConfigName, OneNameForTheH200Family) {
  EXPECT_EQ(moe_config_device("NVIDIA H200 NVL"), "NVIDIA_H200");
  EXPECT_EQ(moe_config_device("NVIDIA H20"), "NVIDIA_H20");
  EXPECT_EQ(moe_config_device("NVIDIA GH200 480GB"), "NVIDIA_GH200_480GB");
  EXPECT_EQ(moe_config_device(""), "");
}

TEST(MoeConfigName, OthersAreNotTaken) {
  for (const char* name : {"", "README.json", "E=1,N=2.json", "E=,N=2,device_name=A.json", "E=1,N=x,device_name=A.json", "E=1,N=2,device_name=.json",
                           "E=1,N=2,device_name=A", "E=1,N=2,device_name=A,dtype=.json", "E=1,N=2,device_name=A,block_shape=[1,].json",
                           "E=99999999999999999999,N=2,device_name=A.json", "E=1,N=2,device_name=A,other=3.json", "E=1,N=2,device_name=A,block_shape=[1"})
    EXPECT_FALSE(parse_moe_config_file_name(name).has_value()) << name;
}

TEST(MoeConfigFile, ReadsWhatItWrites) {
  MoeConfigsByTokens configs;
  configs[1] = {16, 128, 128, 1, 1, 4, 3};
  configs[64] = {64, 64, 256, 32, 4, 8, 5};
  const auto again = parse_moe_config(format_moe_config(configs));
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(*again, configs);
}

// What the tuner left behind: names and texts as the writer would give them again, and found under the key that they are named by.
TEST(MoeConfigFile, CommittedTablesAreWrittenAsTheyWereRead) {
  const std::string folder = CGLINT_MOE_TABLES;
  const auto directory = MoeConfigDirectory::read(folder);
  ASSERT_TRUE(directory.has_value()) << directory.error().to_string();
  EXPECT_GE(directory->files().size(), 2U);
  for (const auto& [key, file] : directory->files()) {
    EXPECT_EQ(file.path, folder + "/" + moe_config_file_name(key));
    EXPECT_EQ(key.block_shape, (std::vector<std::int64_t>{128, 128}));
    std::stringstream text;
    text << std::ifstream(file.path).rdbuf();
    EXPECT_EQ(format_moe_config(file.configs), text.str()) << file.path;
  }
}

TEST(MoeConfigFile, SkipsWhatItDoesNotKnow) {
  const auto read = parse_moe_config(
      R"( {"triton_version": "3.4.0", "note": [1, {"a\"": null}, true, -2.5e3], "8": {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "waves_per_eu": 0, "BLOCK_SIZE_K": 64}}
)");
  ASSERT_TRUE(read.has_value()) << read.error().to_string();
  EXPECT_EQ(read->at(8), (MoeTileConfig{16, 32, 64, 1, 1, 4, 3}));
}

TEST(MoeConfigFile, ErrorsSayWhere) {
  const struct {
    const char *text, *message;
    std::uint64_t offset;
  } cases[] = {
      {"", "expected '{'", 0},
      {"{}", "no token count in the table", 0},
      {"[1]", "expected '{'", 0},
      {R"({"1": 3})", "expected '{'", 6},
      {R"({"1": {"BLOCK_SIZE_M": 16}})", "BLOCK_SIZE_N is missing", 1},
      {R"({"1": {"BLOCK_SIZE_M": 0}})", "BLOCK_SIZE_M is not a whole number from 1 to 1048576", 7},
      {R"({"1": {"BLOCK_SIZE_M": 1.5}})", "BLOCK_SIZE_M is not a whole number from 1 to 1048576", 7},
      {R"({"1": {"BLOCK_SIZE_M": 1, "BLOCK_SIZE_M": 1}})", "BLOCK_SIZE_M occurs twice", 26},
      {R"({"-1": {}})", "token count '-1' is out of range", 1},
      {R"({"x": tru})", "expected a value", 6},
      {R"({"x": 1} y)", "text after the end", 9},
      {R"({"x)", "string without an end", 1},
      {R"({"x": "\)", "string without an end", 6},
  };
  for (const auto& c : cases) {
    const auto read = parse_moe_config(c.text);
    ASSERT_FALSE(read.has_value()) << c.text;
    EXPECT_EQ(read.error().message, c.message) << c.text;
    EXPECT_EQ(read.error().offset_bytes, c.offset) << c.text;
  }
  const std::string entry = R"({"BLOCK_SIZE_M":1,"BLOCK_SIZE_N":1,"BLOCK_SIZE_K":1})";
  EXPECT_EQ(parse_moe_config("{\"1\":" + entry + ",\"1\":" + entry + "}").error().message, "token count 1 occurs twice");
}

TEST(MoeConfigFile, DeepNestingIsAnErrorNotACrash) {
  const auto read = parse_moe_config("{\"x\":" + std::string(100'000, '['));
  ASSERT_FALSE(read.has_value());
  EXPECT_EQ(read.error().message, "nested too deeply");
}

TEST(MoeConfigFile, DamagedTextNeverCrashes) {
  MoeConfigsByTokens configs;
  for (const int tokens : {1, 2, 4, 8}) configs[tokens] = {16, 128, 128, 1, 2, 4, 3};
  const std::string good = format_moe_config(configs);
  std::mt19937 random(7);
  int refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string text = good;
    for (int change = 1 + static_cast<int>(random() % 3); change > 0; --change) {
      const std::size_t at = random() % text.size();
      if (random() % 2 == 0) text[at] = static_cast<char>(random());
      else text.erase(at, 1 + random() % 4);
    }
    refused += parse_moe_config(text).has_value() ? 0 : 1;
  }
  EXPECT_GT(refused, 10'000);
}

TEST(MoeConfigNearest, AsTheEngineChooses) {
  MoeConfigsByTokens configs;
  EXPECT_EQ(nearest_moe_config(configs, 1), nullptr);
  for (const int tokens : {1, 2, 4, 8}) configs[tokens].block_m = tokens;
  for (const auto& [tokens, entry] : {std::pair{1, 1}, {2, 2}, {3, 2}, {5, 4}, {6, 4}, {7, 8}, {100, 8}, {0, 1}})
    EXPECT_EQ(nearest_moe_config(configs, tokens)->first, entry) << tokens;
}

TEST(MoeConfigDirectory, ReadsAFolder) {
  const auto folder = std::filesystem::temp_directory_path() / ("cglint_moe_config_test." + std::to_string(getpid()));
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  EXPECT_FALSE(MoeConfigDirectory::read((folder / "missing").string()).has_value());
  EXPECT_FALSE(MoeConfigDirectory::read(folder.string()).has_value());  // nothing in it
  MoeConfigKey key{96, 2048, "NVIDIA_H200", "fp8_w8a8", {128, 128}};
  MoeConfigsByTokens configs;
  configs[8] = {16, 128, 128, 1, 1, 4, 3};
  std::ofstream(folder / moe_config_file_name(key)) << format_moe_config(configs);
  std::ofstream(folder / "README.md") << "not a table";
  {
    const auto directory = MoeConfigDirectory::read(folder.string());
    ASSERT_TRUE(directory.has_value()) << directory.error().to_string();
    ASSERT_NE(directory->find(key), nullptr);
    EXPECT_EQ(directory->find(key)->configs, configs);
    key.n = 1024;
    EXPECT_EQ(directory->find(key), nullptr);
  }
  std::ofstream(folder / moe_config_file_name(key)) << "{";
  const auto broken = MoeConfigDirectory::read(folder.string());
  ASSERT_FALSE(broken.has_value());
  EXPECT_NE(broken.error().file.find("N=1024"), std::string::npos);
  // What is no regular file is not read: a pipe without a writer would never end.
  const std::string odd = folder / moe_config_file_name(key);
  std::filesystem::remove(odd);
  ASSERT_EQ(mkfifo(odd.c_str(), 0600), 0);
  const auto pipe = MoeConfigDirectory::read(folder.string());
  ASSERT_FALSE(pipe.has_value());
  EXPECT_EQ(pipe.error().to_string(), odd + ": cannot read: not a regular file");
  std::filesystem::remove(odd);
  std::filesystem::create_directory(odd);
  const auto inner_folder = MoeConfigDirectory::read(folder.string());
  ASSERT_FALSE(inner_folder.has_value());
  EXPECT_EQ(inner_folder.error().to_string(), odd + ": cannot read: Is a directory");
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace cglint::tables
