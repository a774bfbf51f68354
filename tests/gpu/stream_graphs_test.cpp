#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "stream_probe/generate.h"
#include "stream_probe/graph_spec.h"

namespace cglint::gpu {
namespace {

std::string error_of(std::string_view line) {
  GraphSpec spec;
  std::string error;
  return parse_line(line, spec, error) ? "" : error;
}

TEST(GraphLine, ReadsEveryField) {
  GraphSpec spec;
  std::string error;
  ASSERT_TRUE(
      parse_line("some/family KKMCUDEHRWAFBK 0-1p,1-13l,10-11,2-0 prio=1:-3,13:0 useprio=1 lprio=-2 "
                 "pdlattr=0 free=11:10",
                 spec, error))
      << error;
  EXPECT_EQ(spec.family, "some/family");
  ASSERT_EQ(spec.size(), 14);
  EXPECT_EQ(spec.kinds[4], NodeKind::kMemcpyHtoD);
  EXPECT_EQ(spec.edges[0].type, EdgeType::kProgrammatic);
  EXPECT_EQ(spec.edges[1].type, EdgeType::kLaunchOrder);
  EXPECT_EQ(spec.edges[2].type, EdgeType::kDefault);
  EXPECT_TRUE(spec.edges_after) << "an edge goes from a larger index to a smaller one";
  EXPECT_EQ(spec.priorities.at(1), -3);
  EXPECT_TRUE(spec.use_node_priority);
  EXPECT_EQ(spec.launch_priority.value_or(0), -2);
  EXPECT_FALSE(spec.pdl_attribute);
  EXPECT_EQ(spec.frees.at(11), 10);
}

TEST(GraphLine, ReadsNestedBodies) {
  GraphSpec spec;
  std::string error;
  ASSERT_TRUE(
      parse_line("f KSG 0-1,1-2 body=1:K/. body=1:KI/0-1 body=1#1.1:KK/0-1 body=2:KKK/0-1,0-2", spec, error))
      << error;
  ASSERT_EQ(spec.bodies.at(1).size(), 2u);
  EXPECT_EQ(spec.bodies.at(1)[1].bodies.at(1)[0].size(), 2);
  EXPECT_EQ(total_nodes(spec), 3 + 1 + 2 + 2 + 3);
  std::vector<std::string> paths;
  for (const BodyRef& body : body_paths(spec)) paths.push_back(body.path);
  EXPECT_EQ(paths, (std::vector<std::string>{"1", "1#1", "1#1.1", "2"}));
}

TEST(GraphLine, ReadsCopySettingsAndAttributes) {
  const std::string line =
      "f KKCM 0-1,1-2,2-3 attr=0:coop,1:shared flags=1 bytes=1024 rows=3 element=2 value=171 offset=4 "
      "copykind=default pageable=1";
  GraphSpec spec;
  std::string error;
  ASSERT_TRUE(parse_line(line, spec, error)) << error;
  EXPECT_EQ(spec.traits.at(1), KernelTrait::kSharedMemory);
  EXPECT_EQ(spec.flags, 1);
  EXPECT_EQ(spec.extra_bytes, 1024u);
  EXPECT_EQ(spec.rows, 3);
  EXPECT_EQ(print_line(spec), line);
  EXPECT_NE(error_of("f KM . attr=1:coop"), "");
  EXPECT_NE(error_of("f KM . element=3"), "");
  EXPECT_NE(error_of("f KM . bytes=3"), "") << "bytes mark the node: a multiple of 4";
  EXPECT_NE(error_of("f KM . rows=1024 bytes=1048576"), "") << "larger than the buffers";
}

TEST(GraphLine, FreeTakesTheLatestAllocationItDependsOn) {
  GraphSpec spec;
  std::string error;
  ASSERT_TRUE(parse_line("f AAKFF 0-2,2-3,1-4", spec, error)) << error;
  EXPECT_EQ(spec.frees.at(3), 0) << "node 1 is later, but node 3 does not depend on it";
  EXPECT_EQ(spec.frees.at(4), 1);
}

TEST(GraphLine, RefusesWhatCannotBeBuilt) {
  EXPECT_NE(error_of("f K"), "");
  EXPECT_NE(error_of("f KX 0-1"), "");
  EXPECT_NE(error_of("f KK 0-2"), "");
  EXPECT_NE(error_of("f KK 0-1,1-0"), "") << "cycle";
  EXPECT_NE(error_of("f KK 0-0"), "");
  EXPECT_NE(error_of("f KK 0-1,"), "");
  EXPECT_NE(error_of("f KM 0-1p"), "") << "programmatic edges join kernels only";
  EXPECT_NE(error_of("f KM . prio=1:-1"), "");
  EXPECT_NE(error_of("f FK 0-1"), "") << "free without allocation";
  EXPECT_NE(error_of("f KL 0-1 body=1:M/."), "") << "a while body without a kernel would not end";
  EXPECT_NE(error_of("f KK 0-1 body=1:K/."), "");
  EXPECT_NE(error_of("f KK 0-1 colour=1"), "");
  EXPECT_NE(error_of("f KK 99999999999-1"), "");
  EXPECT_NE(error_of("f\" KK 0-1"), "");
  EXPECT_EQ(error_of("f KK 0-1"), "");
}

TEST(Generator, EveryKindGivesLinesThatReadBackTheSame) {
  for (const std::string& kind : study_kinds()) {
    for (uint64_t i = 0; i < 60; ++i) {
      const std::string line = print_line(random_graph(kind, 3, i));
      GraphSpec back;
      std::string error;
      ASSERT_TRUE(parse_line(line, back, error)) << error << ": " << line;
      EXPECT_EQ(print_line(back), line);
    }
    for (const GraphSpec& spec : small_graphs(kind)) {
      GraphSpec back;
      std::string error;
      ASSERT_TRUE(parse_line(print_line(spec), back, error)) << error << ": " << print_line(spec);
    }
  }
}

TEST(Generator, IsReproducible) {
  // The committed measurements name their graphs by kind, seed and index: these lines may never change.
  EXPECT_EQ(print_line(random_graph("memcpy-dtod", 1, 0)), print_line(random_graph("memcpy-dtod", 1, 0)));
  EXPECT_NE(print_line(random_graph("memcpy-dtod", 1, 0)), print_line(random_graph("memcpy-dtod", 2, 0)));
  EXPECT_EQ(print_line(random_graph("child", 1, 0)),
            "child GGK 0-1,1-2 body=0:K/. body=1:KKKKKK/0-1,0-2,0-3,1-4,4-5,0-5");
}

TEST(Generator, CoversWhatItSays) {
  int not_topological = 0;
  int wide_forks = 0;
  int large = 0;
  for (uint64_t i = 0; i < 400; ++i) {
    const GraphSpec spec = random_graph("memcpy-dtod", 1, i);
    ASSERT_GE(spec.size(), 3);
    EXPECT_LE(spec.size(), 200);
    EXPECT_NE(std::count(spec.kinds.begin(), spec.kinds.end(), NodeKind::kMemcpyDtoD), 0);
    std::vector<int> children(spec.kinds.size(), 0);
    bool backwards = false;
    for (const Edge& edge : spec.edges) {
      ++children[static_cast<size_t>(edge.from)];
      backwards = backwards || edge.from > edge.to;
    }
    not_topological += backwards;
    large += spec.size() > 40;
    wide_forks += *std::max_element(children.begin(), children.end()) >= 7;
  }
  EXPECT_GT(not_topological, 60);
  EXPECT_GT(wide_forks, 40);
  EXPECT_GT(large, 5);
}

TEST(Generator, DesignedGraphsAreDistinctAndValid) {
  std::set<std::string> families;
  for (const GraphSpec& spec : designed_graphs()) {
    EXPECT_TRUE(families.insert(spec.family).second) << spec.family;
    EXPECT_EQ(error_of(print_line(spec)), "") << spec.family;
  }
  EXPECT_GT(families.size(), 200u);
}

TEST(GraphJson, WritesOnlyTheFieldsThatApply) {
  GraphSpec spec;
  std::string error;
  ASSERT_TRUE(parse_line("f KK 0-1", spec, error));
  Measured measured;
  measured.streams = {0, 0};
  EXPECT_EQ(to_json(spec, measured), R"({"family":"f","n":2,"edges":[[0,1]],"streams":[0,0]})");
  ASSERT_TRUE(parse_line("f UKG 0-1,1-2 body=2:KK/0-1l", spec, error)) << error;
  measured.streams = {1, 0, -1};
  measured.body_streams = {{0, 2}};
  EXPECT_EQ(
      to_json(spec, measured),
      R"({"family":"f","n":3,"edges":[[0,1],[1,2]],"streams":[1,0,-1],"kinds":["memcpy","kernel","child-graph"],"copy":["htod"],)"
      R"("bodies":[{"path":"2","n":2,"edges":[[0,1]],"edge_types":[2],"streams":[0,2]}]})");
  measured.error = "cudaGraphInstantiate: cudaErrorNotSupported";
  EXPECT_NE(to_json(spec, measured).find(R"("error":"cudaGraphInstantiate: cudaErrorNotSupported")"),
            std::string::npos);
}

}  // namespace
}  // namespace cglint::gpu
