#include "analysis/layers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "ir/graph_builder.h"

namespace cglint::analysis {
namespace {

// A graph of kernels named by `names`, in this order; "name@grid" sets the grid.
struct Sequence {
  explicit Sequence(const std::vector<std::string>& names,
                    const std::vector<std::vector<std::string>>& nvtx = {}) {
    ir::GraphBuilder builder;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const std::size_t at = names[i].find('@');
      ir::KernelNode kernel;
      kernel.function = recording.intern_function(names[i].substr(0, at));
      if (at != std::string::npos)
        kernel.grid.x = static_cast<std::uint32_t>(std::stoul(names[i].substr(at + 1)));
      const ir::NodeId node = builder.add_kernel(recording.functions[kernel.function].name, kernel);
      if (i < nvtx.size() && !nvtx[i].empty()) {
        std::vector<ir::StringId> ranges;
        for (const std::string& range : nvtx[i]) ranges.push_back(recording.intern(range));
        builder.set_nvtx(node, recording.intern_nvtx(ranges));
      }
    }
    builder.graph().facts = {ir::Fact::nodes, ir::Fact::kernel_names, ir::Fact::launch_config};
    auto built = builder.finish();
    CGLINT_CHECK(built.has_value());
    graph = std::move(*built);
  }
  [[nodiscard]] Layers detect() const {
    const KernelIdentities identities(recording, KernelTable::builtin());
    return detect_layers(recording, *graph, identities);
  }
  ir::Recording recording;
  std::unique_ptr<ir::Graph> graph;
};

using Names = std::vector<std::string>;

void append(Names& names, const Names& more) {
  names.insert(names.end(), more.begin(), more.end());
}

const Names kAttention = {"rms_norm@4", "nvjet_a@12", "rope@4", "kv_write@2", "attention@64", "nvjet_b@8"};
const Names kMoe = {"rms_norm@4",   "router_gemm@2", "topk@1",        "align@1",
                    "moe_gemm@96",  "silu_mul@32",   "moe_gemm@48",   "moe_sum@8",
                    "shared_up@16", "silu_mul@4",    "shared_down@8", "add@4"};
const Names kDense = {"rms_norm@4", "dense_up@32", "silu_mul@16", "dense_down@16"};
const Names kKda = {"rms_norm@4", "nvjet_qkv@20", "conv@4",     "kda_gate@2",
                    "kda@32",     "gated_norm@4", "nvjet_out@8"};

// First node of each layer, in order of layers.
std::vector<std::uint32_t> starts(const Layers& layers) {
  std::vector<std::uint32_t> result;
  std::int32_t previous = -1;
  for (std::uint32_t i = 0; i < layers.layer.size(); ++i) {
    const std::int32_t layer = layers.layer[ir::NodeId(i)];
    if (layer >= 0 && layer != previous) result.push_back(i);
    previous = layer;
  }
  return result;
}

TEST(LayersFromNvtx, NumbersInNames) {
  const auto text = [](std::string_view name) {
    std::string result;
    for (const NumberedName& named : numbers_in_name(name))
      result += "[" + named.prefix + "|" + std::to_string(named.number) + "]";
    return result;
  };
  EXPECT_EQ(text("layer.12"), "[layer.|12]");
  EXPECT_EQ(text("model.layers.12.mlp.experts.3"), "[model.layers.|12][model.layers.#.mlp.experts.|3]");
  EXPECT_EQ(text("DecoderLayer[7]"), "[DecoderLayer[|7]");
  EXPECT_EQ(text("layer_3"), "[layer_|3]");
  EXPECT_EQ(text("Layer 3: attention"), "[Layer |3]");
  EXPECT_EQ(text("layer12"), "[layer|12]");
  EXPECT_EQ(text("{'Module': 'model.layers.4.self_attn'}"), "[{'Module': 'model.layers.|4]");
  EXPECT_EQ(text("bf16_gemm"), "");
  EXPECT_EQ(text("sm90"), "");
  EXPECT_EQ(text("conv2d"), "");
  EXPECT_EQ(text("tile 64x8"), "");
  EXPECT_EQ(text("layers.99999999999"), "");
  EXPECT_EQ(text(""), "");
}

TEST(LayersFromNvtx, OutermostLayerRangeWins) {
  Names names;
  std::vector<std::vector<std::string>> nvtx;
  names.push_back("embedding");
  nvtx.push_back({"step 7", "embed"});
  for (int layer = 30; layer < 34; ++layer)
    for (int i = 0; i < 3 + layer % 2; ++i) {  // uneven layers, no period
      names.push_back("k" + std::to_string(i * layer));
      nvtx.push_back({"step 7", "model.layers." + std::to_string(layer),
                      "model.layers." + std::to_string(layer) + ".mlp.experts." + std::to_string(i)});
    }
  names.push_back("lm_head");
  nvtx.push_back({"step 7"});
  const Layers layers = Sequence(names, nvtx).detect();
  EXPECT_EQ(layers.source, Layers::Source::nvtx);
  EXPECT_EQ(layers.count, 4U);
  EXPECT_EQ(layers.confidence, 1);
  EXPECT_EQ(layers.period_nodes, 0U);
  EXPECT_EQ(layers.layer[ir::NodeId(0)], -1);
  EXPECT_EQ(layers.layer[ir::NodeId(1)], 30);
  EXPECT_EQ(layers.layer[ir::NodeId(static_cast<std::uint32_t>(names.size() - 2))], 33);
  EXPECT_EQ(layers.layer[ir::NodeId(static_cast<std::uint32_t>(names.size() - 1))], -1);
}

TEST(LayersFromNvtx, MicrobatchesAreNoLayersWhereLayersAreNamed) {
  Names names;
  std::vector<std::vector<std::string>> nvtx;
  for (int micro = 0; micro < 2; ++micro)
    for (int layer = 0; layer < 5; ++layer) {
      names.push_back("k");
      nvtx.push_back({"microbatch " + std::to_string(micro), "layer." + std::to_string(layer)});
    }
  const Layers layers = Sequence(names, nvtx).detect();
  EXPECT_EQ(layers.count, 5U);
  EXPECT_EQ(layers.layer[ir::NodeId(6)], 1);
}

TEST(LayersFromNvtx, SparseNumbersAreNoLayers) {
  Names names;
  std::vector<std::vector<std::string>> nvtx;
  for (const char* range : {"bs 1", "bs 8", "bs 64"}) {
    names.push_back("k");
    nvtx.push_back({range});
  }
  EXPECT_EQ(Sequence(names, nvtx).detect().source, Layers::Source::none);
}

TEST(LayersFromPeriod, ExactRepetition) {
  for (const int count : {2, 3, 16, 61}) {
    Names names = {"embedding", "prepare"};
    for (int i = 0; i < count; ++i) {
      append(names, kAttention);
      append(names, kMoe);
    }
    append(names, {"final_norm", "lm_head", "argmax"});
    const Layers layers = Sequence(names).detect();
    EXPECT_EQ(layers.source, Layers::Source::period);
    EXPECT_EQ(layers.count, static_cast<std::uint32_t>(count));
    EXPECT_EQ(layers.confidence, 1);
    EXPECT_EQ(layers.period_nodes, kAttention.size() + kMoe.size());
    ASSERT_EQ(starts(layers).size(), static_cast<std::size_t>(count));
    EXPECT_EQ(starts(layers)[0], 2U);  // behind embedding and prepare
    EXPECT_EQ(layers.layer[ir::NodeId(static_cast<std::uint32_t>(names.size() - 4))], count - 1);
    EXPECT_EQ(layers.layer[ir::NodeId(static_cast<std::uint32_t>(names.size() - 3))], -1);
  }
}

TEST(LayersFromPeriod, DenseFirstLayersCount) {
  for (const int dense : {1, 3}) {
    Names names = {"embedding"};
    for (int i = 0; i < dense; ++i) {
      append(names, kAttention);
      append(names, kDense);
    }
    for (int i = 0; i < 20; ++i) {
      append(names, kAttention);
      append(names, kMoe);
    }
    append(names, {"final_norm", "lm_head"});
    const Layers layers = Sequence(names).detect();
    EXPECT_EQ(layers.count, static_cast<std::uint32_t>(20 + dense));
    ASSERT_FALSE(starts(layers).empty());
    EXPECT_EQ(starts(layers)[0], 1U);
    EXPECT_EQ(starts(layers)[1], 1 + kAttention.size() + kDense.size());
    EXPECT_EQ(layers.period_nodes, 0U);
    EXPECT_GT(layers.confidence, 0.8);
  }
}

TEST(LayersFromPeriod, GroupsOfUnlikeLayersAreDivided) {
  // Three layers of one attention, one of another, all with the same mixture of experts.
  Names names = {"embedding"};
  for (int group = 0; group < 6; ++group)
    for (int i = 0; i < 4; ++i) {
      append(names, i < 3 ? kKda : kAttention);
      append(names, kMoe);
    }
  append(names, {"final_norm", "lm_head"});
  const Layers layers = Sequence(names).detect();
  EXPECT_EQ(layers.count, 24U);
  EXPECT_GT(layers.confidence, 0.9);
}

TEST(LayersFromPeriod, HalvesOfALayerAreNoLayers) {
  // The same norm twice per layer, at even distance.
  Names names;
  for (int i = 0; i < 12; ++i) {
    append(names, {"norm@4", "qkv@8", "rope@2", "attention@16", "out@4", "add@4"});
    append(names, {"norm@4", "up@32", "silu@8", "quantise@8", "down@4", "add@4"});
  }
  EXPECT_EQ(Sequence(names).detect().count, 12U);
}

TEST(LayersFromPeriod, ExpertLoopsAreNoLayers) {
  Names names = {"embedding"};
  for (int i = 0; i < 5; ++i) {
    append(names, kAttention);
    for (int expert = 0; expert < 8; ++expert)
      append(names, {"gather@2", "expert_up@8", "silu_mul@4", "expert_down@4", "scatter@2"});
    append(names, {"add@4"});
  }
  EXPECT_EQ(Sequence(names).detect().count, 5U);
}

TEST(LayersFromPeriod, BranchesInterleavedDifferently) {
  // A trace without dependency edges shows concurrent branches in another order in each layer.
  std::mt19937 random(5);
  const Names main = {"rms_norm@4",  "router_gemm@2", "topk@1",      "align@1",
                      "moe_gemm@96", "silu_mul@32",   "moe_gemm@48", "moe_sum@8"};
  const Names side = {"shared_up@16", "silu_mul@4", "shared_down@8"};
  Names names = {"embedding"};
  for (int i = 0; i < 30; ++i) {
    append(names, kAttention);
    std::size_t a = 0, b = 0;
    while (a < main.size() || b < side.size()) {
      const bool take_main = b == side.size() || (a < main.size() && random() % 2 == 0);
      names.push_back(take_main ? main[a++] : side[b++]);
    }
    names.push_back("add@4");
  }
  append(names, {"final_norm", "lm_head"});
  const Layers layers = Sequence(names).detect();
  EXPECT_EQ(layers.count, 30U);
  EXPECT_GT(layers.confidence, 0.95);
}

TEST(LayersFromPeriod, OtherTilesInSomeLayers) {
  // Every fifth layer's GEMM is another function of the same normalised name.
  Names names;
  for (int i = 0; i < 20; ++i) {
    append(names, kAttention);
    append(names, kMoe);
    if (i % 5 == 0)
      std::replace(names.end() - 18, names.end(), std::string("nvjet_a@12"), std::string("nvjet_a_64x8@16"));
  }
  const Layers layers = Sequence(names).detect();
  EXPECT_EQ(layers.count, 20U);
}

// The same kernels `count` times, piece i + step behind piece i.
Layers detect_linked(std::uint32_t count, std::uint32_t step) {
  Names names;
  for (std::uint32_t i = 0; i < count; ++i) append(names, kMoe);
  Sequence sequence(names);
  const auto size = static_cast<std::uint32_t>(kMoe.size());
  ir::GraphBuilder builder;
  for (const ir::NodeId node : sequence.graph->nodes())
    builder.add_kernel(sequence.graph->name[node], *sequence.graph->kernel(node));
  for (std::uint32_t i = 0; i < count; ++i) {
    for (std::uint32_t k = 1; k < size; ++k)
      builder.add_edge(ir::NodeId(i * size + k - 1), ir::NodeId(i * size + k));
    if (i >= step) builder.add_edge(ir::NodeId((i - step) * size + size - 1), ir::NodeId(i * size));
  }
  builder.graph().facts = sequence.graph->facts;
  builder.graph().facts.insert(ir::Fact::edges);
  auto built = builder.finish();
  CGLINT_CHECK(built.has_value());
  sequence.graph = std::move(*built);
  return sequence.detect();
}

TEST(LayersFromPeriod, EqualBranchesAreNoLayers) {
  EXPECT_EQ(detect_linked(8, 1).count, 8U);
  EXPECT_EQ(detect_linked(8, 8).count, 0U);  // eight branches side by side
  EXPECT_EQ(detect_linked(20, 20).count, 0U);
}

TEST(LayersFromPeriod, AlternatingMicrobatchesShareLayers) {
  const Layers layers = detect_linked(32, 2);
  EXPECT_EQ(layers.count, 16U);
  EXPECT_EQ(layers.period_nodes, 2 * kMoe.size());
}

TEST(LayersFromPeriod, NothingIsInvented) {
  EXPECT_EQ(Sequence({}).detect().count, 0U);
  EXPECT_EQ(Sequence({"a", "b", "c"}).detect().count, 0U);
  EXPECT_EQ(Sequence(Names(100, "same")).detect().count, 0U);
  Names pairs;
  for (int i = 0; i < 30; ++i) append(pairs, {"memset", "kernel"});
  EXPECT_EQ(Sequence(pairs).detect().count, 0U);
  Names different;
  for (int i = 0; i < 200; ++i) different.push_back("k" + std::to_string(i));
  EXPECT_EQ(Sequence(different).detect().count, 0U);
  // Random order of a few kernels.
  std::mt19937 random(9);
  for (int round = 0; round < 50; ++round) {
    Names names;
    for (int i = 0; i < 300; ++i) names.push_back("k" + std::to_string(random() % 12));
    const Layers layers = Sequence(names).detect();
    EXPECT_EQ(layers.count, 0U) << "round " << round << " confidence " << layers.confidence;
    EXPECT_EQ(layers.layer.size(), names.size());
  }
  // A layer once, with unlike rest.
  Names once = different;
  append(once, kAttention);
  append(once, kMoe);
  EXPECT_EQ(Sequence(once).detect().count, 0U);
}

TEST(LayersFromPeriod, LargeGraphsAreQuick) {
  Names names;
  for (int i = 0; i < 1100; ++i) {
    append(names, kAttention);
    append(names, kMoe);
  }
  const Sequence sequence(names);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(sequence.detect().count, 1100U);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

}  // namespace
}  // namespace cglint::analysis
