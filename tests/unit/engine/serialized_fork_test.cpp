// CG201 on dense graphs: the patterns that a plain walk over every block gives, and no silence where there are too many.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "analysis/kernel_table.h"
#include "engine/rule.h"
#include "unit/analysis/test_graphs.h"

namespace cglint {
namespace {

using namespace cglint::testing;

struct Collected final : engine::FindingSink {
  std::map<std::string, engine::Finding> findings;  // by what the fingerprint is made from
  std::vector<std::string> reasons;
  void report(engine::Finding finding, std::string_view basis) override {
    EXPECT_TRUE(findings.try_emplace(std::string(basis), std::move(finding)).second) << basis;
  }
  void not_checked(ir::FactSet, std::string_view reason) override { reasons.emplace_back(reason); }
  void not_checked_although_asked_for(std::string_view reason) override { reasons.emplace_back(reason); }
};

using Edges = std::vector<std::pair<std::uint32_t, std::uint32_t>>;

// Kernels 0 .. names.size() - 1 with these names ("a", "b", ...) and the edges, in a recording of their own.
struct Case {
  ir::Recording recording;
  ir::GraphId id;

  Case(const std::vector<std::uint32_t>& names, const Edges& edges) {
    for (std::uint32_t i = 0; i <= *std::max_element(names.begin(), names.end()); ++i) {
      ir::Function function;
      function.name = recording.strings.intern(name(i));
      recording.functions.push_back(function);
    }
    ir::GraphBuilder builder;
    for (const std::uint32_t i : names) {
      ir::KernelNode kernel;
      kernel.function = ir::FunctionId(i);
      builder.add_kernel(ir::kEmptyString, kernel);
    }
    for (const auto& [from, to] : edges) builder.add_edge(node(from), node(to));
    auto graph = finish(builder);
    graph->facts = {ir::Fact::nodes, ir::Fact::edges, ir::Fact::kernel_names};
    id = recording.graphs.push_back(std::move(graph));
  }
  static std::string name(std::uint32_t i) { return "kernel" + std::string(1, static_cast<char>('a' + i % 26)) + std::string(1 + i / 26, 'x'); }

  [[nodiscard]] Collected check() const {
    const analysis::KernelIdentities identities(recording, analysis::KernelTable::builtin());
    analysis::Analyses analyses(recording, id, identities);
    const engine::Rule& rule = *engine::find_rule("CG201");
    const engine::Config config;
    Collected collected;
    rule.check({recording, id, *recording.graphs[id], analyses, config, rule.info()}, collected);
    return collected;
  }
};

Edges complete(std::uint32_t n) {
  Edges edges;
  for (std::uint32_t to = 0; to < n; ++to)
    for (std::uint32_t from = 0; from < to; ++from) edges.emplace_back(from, to);
  return edges;
}

// In a chain 0 -> 1 -> ... with more edges every node is ordered with all others and every further edge is implied. What the rule
// says of it, by lists of nodes: per pattern its blocks (first and last node).
std::map<std::string, std::vector<std::pair<std::uint32_t, std::uint32_t>>> expected(const std::vector<std::uint32_t>& names, Edges edges) {
  std::sort(edges.begin(), edges.end());
  std::vector<std::vector<std::uint32_t>> spans;
  for (const auto& [from, to] : edges) {
    std::vector<std::uint32_t> between;
    for (std::uint32_t p = from + 1; p < to; ++p) between.push_back(p);
    if (!between.empty()) spans.push_back(between);
  }
  std::map<std::string, std::vector<std::pair<std::uint32_t, std::uint32_t>>> patterns;
  std::vector<std::uint32_t> last_block;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const std::vector<std::uint32_t>* other = nullptr;
    const bool before = i > 0 && spans[i - 1].back() + 1 == spans[i].front();
    if (before) other = &spans[i - 1];
    else if (i + 1 < spans.size() && spans[i].back() + 1 == spans[i + 1].front()) other = &spans[i + 1];
    if (other != nullptr && other->size() < spans[i].size()) continue;
    if (before && other->size() == spans[i].size() && last_block == *other) continue;
    last_block = spans[i];
    std::string basis, previous;
    for (const std::uint32_t p : spans[i]) {
      if (Case::name(names[p]) == previous) continue;
      previous = Case::name(names[p]);
      basis += (basis.empty() ? "" : ";") + previous;
    }
    patterns[basis].emplace_back(spans[i].front(), spans[i].back());
  }
  return patterns;
}

TEST(SerializedForkOnDenseGraphs, PatternsAreThoseOfEveryBlockWalked) {
  Rng rng(7);
  std::size_t patterns = 0, repeated = 0;
  for (int round = 0; round < 300; ++round) {
    const std::uint32_t n = 3 + below(rng, 40);
    const std::uint32_t kinds = 1 + below(rng, round % 3 == 0 ? 2 : 5), density = 1 + below(rng, 100), reach = 2 + below(rng, n);
    std::vector<std::uint32_t> names(n);
    for (std::uint32_t& each : names) each = below(rng, kinds);
    Edges edges;
    for (std::uint32_t from = 0; from + 1 < n; ++from) {
      edges.emplace_back(from, from + 1);
      for (std::uint32_t to = from + 2; to < n && to <= from + reach; ++to)
        if (chance(rng, density)) edges.emplace_back(from, to);
    }
    const Collected found = Case(names, edges).check();
    const auto wanted = expected(names, edges);
    EXPECT_TRUE(found.reasons.empty());
    ASSERT_EQ(found.findings.size(), wanted.size()) << round;
    for (const auto& [basis, blocks] : wanted) {
      const auto finding = found.findings.find(basis);
      ASSERT_NE(finding, found.findings.end()) << basis;
      ASSERT_EQ(finding->second.occurrence_count, blocks.size()) << basis;
      for (std::size_t i = 0; i < finding->second.occurrences.size(); ++i) {
        const auto& entities = finding->second.occurrences[i].entities;
        const auto& [first, last] = blocks[i];
        EXPECT_EQ(std::tuple(entities[0].id, entities[1].id, entities[2].id, entities[3].id), std::tuple(first, last, first - 1, last + 1));
      }
      ++patterns;
      repeated += blocks.size() > 1 ? 1 : 0;
    }
  }
  EXPECT_GT(patterns, 1000U);
  EXPECT_GT(repeated, 500U);
}

// 720,000 edges whose blocks have 288 million nodes.
TEST(SerializedForkOnDenseGraphs, OneNameIsOnePattern) {
  const Collected found = Case(std::vector<std::uint32_t>(1200, 0), complete(1200)).check();
  ASSERT_EQ(found.findings.size(), 1U);
  EXPECT_TRUE(found.reasons.empty());
  EXPECT_EQ(found.findings.begin()->second.occurrences.size(), 256U);
  EXPECT_GT(found.findings.begin()->second.occurrence_count, 700'000U);
}

TEST(SerializedForkOnDenseGraphs, TooManyPatternsAreNotClean) {
  std::vector<std::uint32_t> names(100);
  for (std::uint32_t i = 0; i < names.size(); ++i) names[i] = i;
  const Collected found = Case(names, complete(100)).check();
  EXPECT_EQ(found.findings.size(), 1000U);
  ASSERT_EQ(found.reasons.size(), 1U);
  EXPECT_NE(found.reasons[0].find("more patterns of side work"), std::string::npos);
}

// The names in all patterns together are limited too: their strings would be as long as the blocks.
TEST(SerializedForkOnDenseGraphs, LongPatternsAreNotClean) {
  constexpr std::uint32_t kNodes = 4000;
  std::vector<std::uint32_t> names(kNodes);
  for (std::uint32_t i = 0; i < kNodes; ++i) names[i] = i % 7;
  Edges edges;
  for (std::uint32_t i = 0; i + 1 < kNodes; ++i) {
    edges.emplace_back(i, i + 1);
    if (i + 2 < kNodes && i < kNodes / 4) edges.emplace_back(i, kNodes - 1 - i);
  }
  const Collected found = Case(names, edges).check();
  EXPECT_GT(found.findings.size(), 100U);
  EXPECT_LT(found.findings.size(), 1000U);
  EXPECT_EQ(found.reasons.size(), 1U);
}

}  // namespace
}  // namespace cglint
