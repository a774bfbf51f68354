#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>

#include "selftest_streams/selftest.h"

namespace cglint::gpu {
namespace {

std::vector<ReferenceGraph> reference() {
  std::ifstream in(CGLINT_REFERENCE);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  std::vector<ReferenceGraph> graphs;
  EXPECT_EQ(parse_reference(text, graphs), "");
  return graphs;
}

// What the reference driver would measure.
std::vector<Measured> as_measured(const std::vector<ReferenceGraph>& graphs) {
  std::vector<Measured> out;
  for (const ReferenceGraph& graph : graphs) {
    Measured measured;
    auto next = graph.streams.begin();
    measured.streams.assign(next, next + graph.spec.size());
    next += graph.spec.size();
    for (const BodyRef& body : body_paths(graph.spec)) {
      measured.body_streams.emplace_back(next, next + body.spec->size());
      next += body.spec->size();
    }
    out.push_back(std::move(measured));
  }
  return out;
}

TEST(StreamSelftest, HoldsForTheReferenceDriver) {
  const std::vector<ReferenceGraph> graphs = reference();
  ASSERT_GT(graphs.size(), 300u);
  for (const ReferenceGraph& graph : graphs) EXPECT_FALSE(graph.streams.empty()) << graph.line;
  const SelftestResult result = judge(graphs, as_measured(graphs), 580);
  EXPECT_TRUE(result.holds());
  EXPECT_EQ(result.measured, result.graphs);
  for (const KindResult& kind : result.kinds) {
    EXPECT_EQ(kind.as_reference, kind.graphs) << kind.kind;
    EXPECT_EQ(kind.new_mismatches, 0) << kind.kind;
    EXPECT_EQ(kind.covered, kind.graphs) << kind.kind;
    EXPECT_EQ(kind.agree, kind.graphs) << kind.kind;
  }
}

TEST(StreamSelftest, OneOtherStreamIsANewMismatch) {
  std::vector<ReferenceGraph> graphs = reference();
  std::vector<Measured> measured = as_measured(graphs);
  // A graph that the model predicts: put its last recorded node on a stream of its own.
  size_t changed = graphs.size();
  for (size_t i = 0; i < graphs.size() && changed == graphs.size(); ++i) {
    std::vector<int>& streams = measured[i].streams;
    if (streams.size() < 3 || streams.back() < 0 ||
        std::count(streams.begin(), streams.end(), streams.back()) < 2)
      continue;
    if (!measured[i].body_streams.empty() || !same_partition(streams, predict(graphs[i].spec, 580))) continue;
    streams.back() = 9999;
    changed = i;
  }
  ASSERT_LT(changed, graphs.size());
  const SelftestResult result = judge(graphs, measured, 580);
  EXPECT_FALSE(result.holds());
  EXPECT_EQ(result.new_mismatches(), 1);
  ASSERT_FALSE(result.mismatches.empty());
  EXPECT_EQ(result.mismatches[0].line, graphs[changed].line);
  EXPECT_FALSE(result.mismatches[0].known_gap);
}

TEST(StreamSelftest, RefusedGraphsAreCountedAndTooManyAreNoResult) {
  const std::vector<ReferenceGraph> graphs = reference();
  std::vector<Measured> measured = as_measured(graphs);
  measured[0].error = "cudaGraphInstantiate: cudaErrorNotSupported";
  SelftestResult result = judge(graphs, measured, 580);
  EXPECT_TRUE(result.holds());
  ASSERT_EQ(result.refused.size(), 1u);
  for (Measured& each : measured) each.error = "cudaGraphInstantiate: cudaErrorNotSupported";
  result = judge(graphs, measured, 580);
  EXPECT_FALSE(result.holds()) << "nothing was measured: that is not agreement";
}

TEST(StreamSelftest, PartitionsAreComparedOverRecordedNodes) {
  EXPECT_TRUE(same_partition({0, 1, 1}, {5, 2, 2}));
  EXPECT_FALSE(same_partition({0, 1, 1}, {5, 2, 3}));
  EXPECT_FALSE(same_partition({0, 1, 2}, {5, 2, 2}));
  EXPECT_TRUE(same_partition({0, -1, 1}, {0, 0, 1})) << "a node without a record says nothing";
  EXPECT_FALSE(same_partition({0, 1}, {0, -1})) << "the model gives no stream to a node that ran on one";
}

TEST(StreamSelftest, DamagedReferencesAreRefused) {
  std::vector<ReferenceGraph> graphs;
  EXPECT_NE(parse_reference("f KK 0-1 => 0\n", graphs), "");
  EXPECT_NE(parse_reference("f KK 0-1 => 0,\n", graphs), "");
  EXPECT_NE(parse_reference("f KK 0-5 => 0,0\n", graphs), "");
}

}  // namespace
}  // namespace cglint::gpu
