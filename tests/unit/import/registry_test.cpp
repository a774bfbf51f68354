#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <new>
#include <set>

#include "unit/import/import_helpers.h"

namespace cglint::import {
namespace {

using namespace cglint::testing;
using base::ErrorCode;

constexpr std::string_view kDot =
    "digraph dot {\nsubgraph cluster_1 {\nlabel=\"graph_1\" graph[style=\"dashed\"];\n"
    "\"graph_1_node_0\"[style=\"solid\" shape=\"rectangle\" label=\"0\nEMPTY\n\"];\n\n}\n}\n";
constexpr std::string_view kTrace = "{\"schemaVersion\": 1, \"traceEvents\": []}";

TEST(Registry, NamesAreUniqueAndDescribed) {
  std::set<std::string_view> names;
  for (const auto& importer : all_importers()) {
    EXPECT_TRUE(names.insert(importer->name()).second) << importer->name();
    EXPECT_FALSE(importer->description().empty());
    EXPECT_TRUE(importer->can_supply().contains(ir::Fact::nodes));
  }
}

TEST(Registry, ReadsByContentNotByName) {
  TemporaryFolder folder;
  auto dot = read_file(folder.write("a.json", kDot), {});
  ASSERT_TRUE(dot) << dot.error().to_string();
  EXPECT_EQ(dot->format, "dot");
  auto trace = read_file(folder.write("a.dot", gzip(kTrace)), {});
  ASSERT_TRUE(trace) << trace.error().to_string();
  EXPECT_EQ(trace->format, "kineto");
  EXPECT_EQ(trace->file, folder.path() + "/a.dot");
  auto packed = read_file(folder.write("b", zstd(kDot)), {});
  ASSERT_TRUE(packed);
  EXPECT_EQ(packed->format, "dot");
}

TEST(Registry, OneClearErrorForWhatIsNoInput) {
  TemporaryFolder folder;
  auto empty = read_file(folder.write("empty", ""), {});
  ASSERT_FALSE(empty);
  EXPECT_EQ(empty.error().code, ErrorCode::unknown_format);
  EXPECT_EQ(empty.error().file, folder.path() + "/empty");
  auto text = read_file(folder.write("readme", "# a text\n"), {});
  ASSERT_FALSE(text);
  EXPECT_EQ(text.error().code, ErrorCode::unknown_format);
  EXPECT_NE(text.error().message.find("kineto"), std::string::npos) << "the message lists what is known";
  auto missing = read_file(folder.path() + "/none", {});
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::not_found);
  auto foreign = read_file(folder.write("g.dot", "digraph G { a -> b }"), {});
  ASSERT_FALSE(foreign);
  EXPECT_EQ(foreign.error().code, ErrorCode::foreign_format);
}

TEST(Registry, ExpandsFilesFoldersAndGlobs) {
  TemporaryFolder folder;
  const std::string a = folder.write("a.dot", kDot);
  const std::string b = folder.write("deep/er/b.json.gz", gzip(kTrace));
  const std::string note = folder.write("deep/readme.md", "text");
  const std::string foreign = folder.write("deep/g.dot", "digraph G { a -> b }");

  const std::vector<std::string> whole = {folder.path()};
  auto expanded = expand_paths(whole);
  ASSERT_TRUE(expanded);
  EXPECT_EQ(*expanded, (std::vector<std::string>{a, b})) << "only what an importer reads";

  const std::string damaged = folder.write("deep/killed.cgl.jsonl", "{\"type\":\"hea");
  expanded = expand_paths(whole);
  ASSERT_TRUE(expanded);
  EXPECT_EQ(*expanded, (std::vector<std::string>{a, b, damaged})) << "a capture file that cannot be recognised is not passed over";

  const std::vector<std::string> named = {note, a, a, "-"};
  expanded = expand_paths(named);
  ASSERT_TRUE(expanded);
  EXPECT_EQ(*expanded, (std::vector<std::string>{"-", a, note})) << "a file that was named stays, once";

  const std::vector<std::string> glob = {folder.path() + "/*.dot"};
  expanded = expand_paths(glob);
  ASSERT_TRUE(expanded);
  EXPECT_EQ(*expanded, std::vector<std::string>{a});

  const std::vector<std::string> nothing = {folder.path() + "/*.none"};
  expanded = expand_paths(nothing);
  ASSERT_FALSE(expanded);
  EXPECT_EQ(expanded.error().code, ErrorCode::not_found);
  const std::vector<std::string> missing = {folder.path() + "/none.dot"};
  EXPECT_FALSE(expand_paths(missing));
  TemporaryFolder barren;
  barren.write("x.txt", "x");
  const std::vector<std::string> no_input = {barren.path()};
  expanded = expand_paths(no_input);
  ASSERT_FALSE(expanded);
  EXPECT_EQ(expanded.error().code, ErrorCode::not_found);
}

TEST(Registry, PathErrorsSayWhatIsWrong) {
  TemporaryFolder folder;
  const auto message = [](const std::string& path) {
    const std::vector<std::string> arguments = {path};
    auto expanded = expand_paths(arguments);
    EXPECT_FALSE(expanded) << path;
    if (expanded) return std::string();
    EXPECT_EQ(expanded.error().file, path);
    auto opened = Source::open(path, Limits());
    EXPECT_FALSE(opened) << path;
    if (!opened) {
      EXPECT_EQ(opened.error().message, expanded.error().message);
    }
    return expanded.error().message;
  };
  const std::string file = folder.write("a.dot", kDot);
  EXPECT_EQ(message(folder.path() + "/none.dot"), "no such file");
  EXPECT_EQ(message(folder.path() + "/" + std::string(300, 'x')),
            fmt::format("the name is too long for a file ({} bytes)", folder.path().size() + 301));
  EXPECT_EQ(message(file + "/b.dot"), "cannot open: Not a directory");
  std::filesystem::create_symlink("gone.dot", folder.path() + "/link.dot");
  EXPECT_EQ(message(folder.path() + "/link.dot"), "a link to gone.dot, which does not exist");
  std::filesystem::create_symlink("loop.dot", folder.path() + "/loop.dot");
  EXPECT_EQ(message(folder.path() + "/loop.dot"), "a link that leads back to itself, or too many links");
}

TEST(Registry, RunningOutOfMemoryNamesTheFile) {
  TemporaryFolder folder;
  const std::string path = folder.write("a.dot", kDot);
  ReadOptions options;
  options.on_graph = [](ir::Recording&, ir::GraphId) { throw std::bad_alloc(); };
  const auto recording = read_file(path, options);
  ASSERT_FALSE(recording);
  EXPECT_EQ(recording.error().code, ErrorCode::internal);
  EXPECT_EQ(recording.error().file, path);
  EXPECT_NE(recording.error().message.find("out of memory"), std::string::npos);
}

}  // namespace
}  // namespace cglint::import
