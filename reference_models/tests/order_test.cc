// The order in which the models enqueue a step, on a CUDA runtime that runs nothing: the graph is
// what stream capture would make of it, and the stream model says on how many streams it would replay.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>

#include "analysis/order_search.h"
#include "analysis/stream_model.h"
#include "manifest.h"
#include "stack/model.h"
#include "tests/fake_cuda.h"

namespace cglint::models {
const ModelInfo& deepseek_moe_model();
const ModelInfo& mla_two_stream_model();
const ModelInfo& k2_full_model();
const ModelInfo& nvfp4_preamble_model();
const ModelInfo& kimi_linear_model();
const ModelInfo& fused_moe_model();

namespace {

using fake_cuda::Graph;

const cudaStream_t kMain = reinterpret_cast<cudaStream_t>(0x10);
const cudaStream_t kSide[] = {reinterpret_cast<cudaStream_t>(0x20), reinterpret_cast<cudaStream_t>(0x30)};

// One step, enqueued as the harness would.
Graph step_of(const ModelInfo& info, Model& model, bool capturing) {
  static std::uintptr_t events = 0;
  fake_cuda::reset();
  StepContext context;
  context.main = kMain;
  context.side = std::span(kSide).first(static_cast<std::size_t>(info.side_streams));
  context.capturing = capturing;
  context.next_event = [](StepContext&) { return reinterpret_cast<cudaEvent_t>(events += 16); };
  EXPECT_EQ(model.record(context), cudaSuccess);
  return fake_cuda::graph();
}

// The graph as the stream model takes it; node i becomes node position[i] where positions are given.
struct StreamColumns {
  std::vector<analysis::StreamNodeKind> kinds;
  std::vector<analysis::StreamEdge> edges;
  explicit StreamColumns(const Graph& graph, std::span<const std::uint32_t> position = {})
      : kinds(graph.nodes.size()) {
    const auto at = [&](std::uint32_t node) { return position.empty() ? node : position[node]; };
    for (std::uint32_t i = 0; i < graph.nodes.size(); ++i)
      kinds[at(i)] = graph.nodes[i].function == "memcpy" ? analysis::StreamNodeKind::memcpy_on_device
                                                         : analysis::StreamNodeKind::kernel;
    for (const fake_cuda::Edge& edge : graph.edges)
      edges.push_back(
          {at(edge.from), at(edge.to),
           edge.programmatic ? analysis::StreamEdgeType::programmatic : analysis::StreamEdgeType::full});
  }
  analysis::StreamGraph view() const { return {kinds, edges, {}}; }
};

std::uint32_t predicted_streams(const Graph& graph) {
  return analysis::predict_stream_count(StreamColumns(graph).view());
}

std::size_t null_inputs(const Graph& graph) {
  return static_cast<std::size_t>(
      std::count_if(graph.nodes.begin(), graph.nodes.end(), [](const fake_cuda::Node& node) {
        return node.function.find("skinny_gemm_kernel") != std::string::npos && node.first == nullptr;
      }));
}

// Node `to` starts after node `from` has finished.
bool ordered(const Graph& graph, std::uint32_t from, std::uint32_t to) {
  std::vector<bool> after(graph.nodes.size());
  after[from] = true;
  for (std::uint32_t node = from + 1; node <= to; ++node)
    for (const fake_cuda::Edge& edge : graph.edges)
      if (edge.to == node && after[edge.from]) after[node] = true;
  return after[to];
}

std::vector<std::uint32_t> nodes_named(const Graph& graph, std::string_view name) {
  std::vector<std::uint32_t> nodes;
  for (std::uint32_t i = 0; i < graph.nodes.size(); ++i)
    if (graph.nodes[i].function.find(name) != std::string::npos) nodes.push_back(i);
  return nodes;
}

capture_tool::Manifest manifest_of(const ModelInfo& info) {
  const std::string path = std::string(CGLINT_MODELS_DIR) + "/" + std::string(info.name) + "/manifest.toml";
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  auto manifest = capture_tool::Manifest::parse(text.str(), path);
  if (!manifest) throw std::runtime_error(manifest.error().message);
  return *std::move(manifest);
}

struct Loaded {
  Arena arena;
  std::unique_ptr<Model> model;
  Loaded(const ModelInfo& info, const StackOptions& options) : model(info.make(options)) {
    EXPECT_NE(model, nullptr);
    EXPECT_EQ(model->prepare(arena), cudaSuccess);
  }
  ~Loaded() { model.reset(); }
};

// Any model.
class Stack : public testing::TestWithParam<const ModelInfo*> {
 protected:
  // Dense layers take their own kernels, so that the graph does not depend on a library that is there or not.
  Stack() { setenv("CGLINT_CUBLASLT", "/nonexistent", 1); }
};
// The models of the decoder stack.
class Order : public Stack {};

TEST_P(Stack, EveryVariantReplaysOnTheStreamsThatItsManifestStates) {
  const ModelInfo& info = *GetParam();
  const capture_tool::Manifest manifest = manifest_of(info);
  for (const PresetInfo& preset : info.presets) {
    for (const VariantInfo& variant : info.variants) {
      for (const int layers : {preset.layers, 12, 7}) {
        StackOptions options;
        options.preset = preset.name;
        options.variant = variant.name;
        options.layers = layers;
        options.context = 500;
        SCOPED_TRACE(options.preset + " " + options.variant + " " + std::to_string(layers));
        Loaded loaded(info, options);
        const Graph graph = step_of(info, *loaded.model, true);
        EXPECT_EQ(fake_cuda::unjoined(kMain), 0U);
        const capture_tool::RunKey run{options.variant, options.preset, layers, preset.layers, 1, {}};
        const auto expectation = manifest.expected(run);
        ASSERT_TRUE(expectation);
        const auto streams = capture_tool::Manifest::expected_streams(*expectation, run);
        ASSERT_TRUE(streams);
        EXPECT_EQ(predicted_streams(graph), *streams);
      }
    }
  }
}

TEST_P(Stack, ManifestKnowsNoOtherVariants) {
  std::set<std::string> known;
  for (const VariantInfo& variant : GetParam()->variants) {
    known.emplace(variant.name);
    const auto base =
        std::find_if(GetParam()->variants.begin(), GetParam()->variants.end(),
                     [&](const VariantInfo& other) { return other.name == variant.same_bits_as; });
    EXPECT_EQ(variant.same_bits_as.empty(), base == GetParam()->variants.end()) << variant.name;
  }
  const std::vector<std::string> stated = manifest_of(*GetParam()).variants();
  EXPECT_EQ(std::set<std::string>(stated.begin(), stated.end()), known);
}

TEST_P(Stack, StepsRepeat) {
  for (const VariantInfo& variant : GetParam()->variants) {
    StackOptions options;
    options.variant = variant.name;
    options.layers = 4;
    options.batch = 3;
    options.context = 100;
    SCOPED_TRACE(options.variant);
    Loaded loaded(*GetParam(), options);
    const auto kernels_of = [&](bool capturing) {
      std::vector<std::pair<std::string, const void*>> kernels;
      for (const fake_cuda::Node& node : step_of(*GetParam(), *loaded.model, capturing).nodes)
        kernels.emplace_back(node.function, node.first);
      return kernels;
    };
    EXPECT_EQ(kernels_of(true), kernels_of(true));
    EXPECT_EQ(kernels_of(false), kernels_of(false));
    EXPECT_EQ(null_inputs(step_of(*GetParam(), *loaded.model, false)), 0U) << "outside capture";
  }
}

// A variant that claims the bits of another launches the same kernels, in whatever order.
TEST_P(Order, SameBitsComeFromTheSameKernels) {
  const auto kernels_of = [&](std::string_view variant) {
    StackOptions options;
    options.variant = variant;
    options.layers = 4;
    options.pdl = false;  // which kernels are compiled twice for
    Loaded loaded(*GetParam(), options);
    std::multiset<std::string> kernels;
    for (const fake_cuda::Node& node : step_of(*GetParam(), *loaded.model, true).nodes)
      if (node.function != "memcpy") kernels.insert(node.function);
    return kernels;
  };
  for (const VariantInfo& variant : GetParam()->variants) {
    if (!variant.same_bits_as.empty()) {
      EXPECT_EQ(kernels_of(variant.name), kernels_of(variant.same_bits_as)) << variant.name;
    }
  }
}

// For what a graph costs by its size: more layers than any published model has.
TEST_P(Order, DeeperThanPublished) {
  const ModelInfo& info = *GetParam();
  const capture_tool::Manifest manifest = manifest_of(info);
  for (const VariantInfo& variant : info.variants) {
    StackOptions options;
    options.variant = variant.name;
    options.layers = 128;
    SCOPED_TRACE(options.variant);
    Loaded loaded(info, options);
    const Graph graph = step_of(info, *loaded.model, true);
    EXPECT_LE(loaded.arena.persistent_bytes() + loaded.arena.transient_peak_bytes(), info.memory_bytes(options));
    const capture_tool::RunKey run{options.variant, std::string(info.presets[0].name), 128, info.presets[0].layers, 1, {}};
    const auto expectation = manifest.expected(run);
    ASSERT_TRUE(expectation);
    EXPECT_EQ(predicted_streams(graph), capture_tool::Manifest::expected_streams(*expectation, run));
  }
}

// The routed experts' faults change what is launched with, not what is launched.
TEST_P(Stack, FaultsKeepTheGraph) {
  EXPECT_GE(GetParam()->faults.size(), 3U);
  StackOptions options;
  options.layers = 6;
  options.context = 100;
  const auto functions_of = [&] {
    Loaded loaded(*GetParam(), options);
    std::vector<std::string> functions;
    for (const fake_cuda::Node& node : step_of(*GetParam(), *loaded.model, true).nodes) functions.push_back(node.function);
    return functions;
  };
  const std::vector<std::string> sound = functions_of();
  for (const std::string_view fault : GetParam()->faults) {
    options.fault = fault;
    EXPECT_EQ(functions_of(), sound) << fault;
  }
}

TEST_P(Order, OptionsItDoesNotKnow) {
  StackOptions good;
  EXPECT_GT(GetParam()->memory_bytes(good), std::size_t{1} << 30);
  EXPECT_LT(GetParam()->memory_bytes(good), std::size_t{24} << 30);
  for (const auto& change : std::initializer_list<void (*)(StackOptions&)>{
           [](StackOptions& o) { o.batch = 65; }, [](StackOptions& o) { o.batch = 0; },
           [](StackOptions& o) { o.context = 0; }, [](StackOptions& o) { o.context = 1 << 20; },
           [](StackOptions& o) { o.layers = 1025; }, [](StackOptions& o) { o.moe_config_dir = "x"; }}) {
    StackOptions bad;
    change(bad);
    EXPECT_EQ(GetParam()->memory_bytes(bad), 0U);
    Arena arena;
    const std::unique_ptr<Model> model = GetParam()->make(bad);
    ASSERT_NE(model, nullptr);
    EXPECT_NE(model->prepare(arena), cudaSuccess);
    EXPECT_NE(model->failure(), "");
  }
  StackOptions unknown;
  unknown.variant = "no such variant";
  EXPECT_EQ(GetParam()->make(unknown), nullptr);
  unknown.variant.clear();
  unknown.preset = "no such preset";
  EXPECT_EQ(GetParam()->make(unknown), nullptr);
  EXPECT_EQ(GetParam()->memory_bytes(unknown), 0U);
}

// Kernels move eight values in one access.
TEST_P(Stack, RowsAreAligned) {
  for (const VariantInfo& variant : GetParam()->variants) {
    for (const int batch : {1, 3}) {
      StackOptions options;
      options.variant = variant.name;
      options.layers = 5;
      options.batch = batch;
      options.context = 100;
      Loaded loaded(*GetParam(), options);
      std::size_t rows = 0;
      for (const fake_cuda::Node& node : step_of(*GetParam(), *loaded.model, true).nodes) {
        rows += node.rows;
        EXPECT_EQ(node.misaligned, 0U) << variant.name << " " << node.function;
      }
      EXPECT_GT(rows, 10U);
    }
  }
}

TEST_P(Stack, TakesNoMoreMemoryThanItSays) {
  for (const PresetInfo& preset : GetParam()->presets) {
    for (const int batch : {1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64}) {
      StackOptions options;
      options.preset = preset.name;
      options.batch = batch;
      options.context = 700;
      Loaded loaded(*GetParam(), options);
      (void)step_of(*GetParam(), *loaded.model, true);
      EXPECT_LE(loaded.arena.persistent_bytes() + loaded.arena.transient_peak_bytes(),
                GetParam()->memory_bytes(options));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Stack,
                         testing::Values(&deepseek_moe_model(), &mla_two_stream_model(), &k2_full_model(),
                                         &nvfp4_preamble_model(), &kimi_linear_model(), &fused_moe_model()),
                         [](const auto& model) { return std::string(model.param->name); });
INSTANTIATE_TEST_SUITE_P(Models, Order,
                         testing::Values(&deepseek_moe_model(), &mla_two_stream_model(), &k2_full_model()),
                         [](const auto& model) { return std::string(model.param->name); });

TEST(ReleasedInput, IsNullInEveryLayerWithExpertsWhileCapturing) {
  for (const auto& [variant, nulls] :
       {std::pair("main_first_released", 5U), {"main_first_reference", 0U}, {"release_disabled", 0U}}) {
    StackOptions options;
    options.variant = variant;
    options.layers = 6;  // the first is dense
    Loaded loaded(deepseek_moe_model(), options);
    EXPECT_EQ(null_inputs(step_of(deepseek_moe_model(), *loaded.model, true)), nulls) << variant;
  }
}

TEST(CacheWrite, IsOrderedBeforeAttentionUnlessTheJoinIsLateOrMissing) {
  for (const VariantInfo& variant : mla_two_stream_model().variants) {
    const bool races = variant.name.starts_with("join_");
    StackOptions options;
    options.variant = variant.name;
    options.layers = 3;
    Loaded loaded(mla_two_stream_model(), options);
    for (const bool capturing : {false, true}) {
      const Graph graph = step_of(mla_two_stream_model(), *loaded.model, capturing);
      const std::vector<std::uint32_t> writes = nodes_named(graph, "concat_and_cache_mla"),
                                       reads = nodes_named(graph, "mla_decode_split");
      ASSERT_EQ(writes.size(), 3U);
      ASSERT_EQ(reads.size(), 3U);
      for (std::size_t i = 0; i < 3; ++i)
        EXPECT_EQ(ordered(graph, writes[i], reads[i]), !(races && capturing)) << variant.name << i;
    }
  }
}

// On an H200, where they were compiled, models get the kernels for it. Models that say with which tiles they run, run with them.
TEST(Sm90, HasItsOwnKernels) {
  StackOptions options;
  options.layers = 3;
  Loaded attention(mla_two_stream_model(), options);
  const Graph decode = step_of(mla_two_stream_model(), *attention.model, true);
  EXPECT_EQ(nodes_named(decode, "mla_decode_split_tensor").size(), 3U * CGLINT_SM90_KERNELS);
  EXPECT_EQ(nodes_named(decode, "mla_decode_combine_tensor").size(), 3U * CGLINT_SM90_KERNELS);
  EXPECT_EQ(nodes_named(decode, "mla_decode_combine").size(), 3U);
  StackOptions four_sequences = options;  // two pages a block
  four_sequences.batch = 4;
  Loaded four(mla_two_stream_model(), four_sequences);
  const Graph four_decoded = step_of(mla_two_stream_model(), *four.model, true);
  EXPECT_EQ(nodes_named(four_decoded, "mla_decode_split_pages").size(), 3U * CGLINT_SM90_KERNELS);
  EXPECT_EQ(nodes_named(four_decoded, "mla_decode_combine_pages").size(), 3U * CGLINT_SM90_KERNELS);
  Loaded experts(deepseek_moe_model(), options);
  const Graph layers = step_of(deepseek_moe_model(), *experts.model, true);
  const std::size_t routed_layers = nodes_named(layers, "moe_align").size();
  EXPECT_GT(routed_layers, 0U);
  EXPECT_EQ(nodes_named(layers, "moe_gemm_direct").size(), 2 * routed_layers * CGLINT_SM90_KERNELS);
  // Of each layer the shared expert's gate_up and the router, whose logits then come in one part.
  EXPECT_EQ(nodes_named(layers, "cluster_skinny_gemm").size(), 2 * routed_layers * CGLINT_SM90_KERNELS);
  EXPECT_EQ(nodes_named(layers, "moe_topk_warp").size(), routed_layers * CGLINT_SM90_KERNELS);
  for (const VariantInfo& variant : fused_moe_model().variants) {
    options.variant = variant.name;
    Loaded loaded(fused_moe_model(), options);
    EXPECT_TRUE(nodes_named(step_of(fused_moe_model(), *loaded.model, true), "moe_gemm_direct").empty()) << variant.name;
  }
}

TEST(LateWait, LeavesNothingToOverlap) {
  StackOptions options;
  options.layers = 3;
  const auto overlaps = [&](const char* variant) {
    options.variant = variant;
    Loaded loaded(deepseek_moe_model(), options);
    const Graph graph = step_of(deepseek_moe_model(), *loaded.model, true);
    for (std::uint32_t a = 0; a < graph.nodes.size(); ++a)
      for (std::uint32_t b = a + 1; b < graph.nodes.size(); ++b)
        if (!ordered(graph, a, b)) return true;
    return false;
  };
  EXPECT_FALSE(overlaps("late_wait"));
  EXPECT_FALSE(overlaps("sequential"));
  EXPECT_TRUE(overlaps("legacy_wait_stream"));
  EXPECT_TRUE(overlaps("event_early_fixed"));
}

TEST(JoinBeforeResidual, KeepsTheProgrammaticChainUnlessACopyBreaksIt) {
  const auto full_edges_into_main_kernels = [](const char* variant) {
    StackOptions options;
    options.variant = variant;
    options.layers = 6;
    Loaded loaded(deepseek_moe_model(), options);
    const Graph graph = step_of(deepseek_moe_model(), *loaded.model, true);
    return std::count_if(graph.edges.begin(), graph.edges.end(), [&](const fake_cuda::Edge& edge) {
      return !edge.programmatic && graph.nodes[edge.from].stream == kMain &&
             graph.nodes[edge.to].stream == kMain && graph.nodes[edge.to].function != "memcpy";
    });
  };
  EXPECT_EQ(full_edges_into_main_kernels("main_first"), 0);
  EXPECT_EQ(full_edges_into_main_kernels("join_before_residual"), 0);
  EXPECT_EQ(full_edges_into_main_kernels("copy_before_residual"), 5);
}

// At published depth: whatever the order of recording, another one that keeps every dependency takes three streams.
TEST(FixSearch, BringsEveryOrderOfK2ToThreeStreams) {
  setenv("CGLINT_CUBLASLT", "/nonexistent", 1);
  for (const auto& [variant, streams] : {std::pair("mla_main_moe_main", 3U), {"mla_side_moe_main", 63U},
                                         {"mla_main_moe_side", 62U}, {"mla_side_moe_side", 122U}}) {
    SCOPED_TRACE(variant);
    StackOptions options;
    options.variant = variant;
    options.layers = 61;
    Loaded loaded(k2_full_model(), options);
    const Graph graph = step_of(k2_full_model(), *loaded.model, true);
    const StreamColumns columns(graph);
    analysis::OrderSearchInput input;
    input.graph = columns.view();
    std::vector<std::int32_t> capture_stream;
    std::vector<std::uint32_t> label;
    std::vector<std::string> names;
    for (const fake_cuda::Node& node : graph.nodes) {
      capture_stream.push_back(static_cast<std::int32_t>(reinterpret_cast<std::uintptr_t>(node.stream)));
      const auto known = std::find(names.begin(), names.end(), node.function);
      label.push_back(static_cast<std::uint32_t>(known - names.begin()));
      if (known == names.end()) names.push_back(node.function);
    }
    input.capture_stream = capture_stream;
    input.label = label;
    input.needed_streams = 2;  // the graph's width
    const analysis::OrderSearchResult result = analysis::search_order(input);
    EXPECT_EQ(result.streams_before, streams);
    EXPECT_EQ(result.streams_after, 3U);
    // What it says holds of a graph that is recorded in this order.
    ASSERT_EQ(result.order.size(), graph.nodes.size());
    std::vector<std::uint32_t> position(graph.nodes.size(), ~0U);
    for (std::uint32_t i = 0; i < result.order.size(); ++i) position[result.order[i]] = i;
    ASSERT_EQ(std::count(position.begin(), position.end(), ~0U), 0) << "each node once";
    for (const fake_cuda::Edge& edge : graph.edges) ASSERT_LT(position[edge.from], position[edge.to]);
    EXPECT_EQ(analysis::predict_stream_count(StreamColumns(graph, position).view()), 3U);
  }
}

// A draft model of one layer has no experts.
TEST(OneLayer, IsEnough) {
  for (const ModelInfo* const info : {&deepseek_moe_model(), &mla_two_stream_model(), &k2_full_model()}) {
    for (const VariantInfo& variant : info->variants) {
      StackOptions options;
      options.variant = variant.name;
      options.layers = 1;
      Loaded loaded(*info, options);
      EXPECT_GT(step_of(*info, *loaded.model, true).nodes.size(), 15U);
      EXPECT_EQ(fake_cuda::unjoined(kMain), 0U);
    }
  }
}

TEST(Preamble, IsThreeLaunchesALayer) {
  const auto kernels_of = [](const char* variant) {
    StackOptions options;
    options.variant = variant;
    options.layers = 4;
    Loaded loaded(nvfp4_preamble_model(), options);
    return step_of(nvfp4_preamble_model(), *loaded.model, true);
  };
  const Graph full = kernels_of("fill_and_cast"), elided = kernels_of("elided"), padded = kernels_of("padding_read");
  EXPECT_EQ(nodes_named(full, "zero_fill_kernel").size(), 8U);
  EXPECT_EQ(nodes_named(full, "cast_bf16_kernel").size(), 4U);
  EXPECT_EQ(nodes_named(elided, "zero_fill_kernel").size() + nodes_named(elided, "cast_bf16_kernel").size(), 0U);
  EXPECT_EQ(full.nodes.size() - elided.nodes.size(), 12U);
  EXPECT_EQ(nodes_named(padded, "zero_fill_kernel").size(), 4U);
  EXPECT_EQ(nodes_named(padded, "global_scale_kernel").size(), 4U);
}

// The published threshold: two streams up to 1,024 tokens, and never outside capture.
TEST(KimiLinear, OverlapsWhereTheVariantSays) {
  setenv("CGLINT_CUBLASLT", "/nonexistent", 1);
  for (const VariantInfo& variant : kimi_linear_model().variants) {
    StackOptions options;
    options.variant = variant.name;
    options.layers = 4;
    options.batch = 2;
    options.context = 100;
    Loaded loaded(kimi_linear_model(), options);
    for (const bool capturing : {false, true}) {
      const Graph graph = step_of(kimi_linear_model(), *loaded.model, capturing);
      const bool two = std::any_of(graph.nodes.begin(), graph.nodes.end(),
                                   [](const fake_cuda::Node& node) { return node.stream != kMain; });
      EXPECT_EQ(two, capturing && variant.name != "sequential") << variant.name;
      // The delta rule in three of four layers, latent attention in the fourth.
      EXPECT_EQ(nodes_named(graph, "kda_delta_rule").size(), 3U);
      EXPECT_EQ(nodes_named(graph, "mla_decode_split").size(), 1U);
    }
  }
}

TEST(KimiLinear, BranchesAreTheSameKernelsInEveryVariant) {
  std::set<std::multiset<std::string>> different;
  for (const VariantInfo& variant : kimi_linear_model().variants) {
    StackOptions options;
    options.variant = variant.name;
    options.layers = 5;
    Loaded loaded(kimi_linear_model(), options);
    std::multiset<std::string> kernels;
    for (const fake_cuda::Node& node : step_of(kimi_linear_model(), *loaded.model, true).nodes)
      kernels.insert(node.function);
    different.insert(kernels);
  }
  EXPECT_EQ(different.size(), 1U);
}

// A folder without the table is no reason to take the default tiles.
TEST(FusedMoe, NamesTheTableThatIsMissing) {
  StackOptions options;
  options.variant = "tuned";
  options.layers = 2;
  options.moe_config_dir = CGLINT_MODELS_DIR "/fused_moe/configs";
  { Loaded loaded(fused_moe_model(), options); }
  options.moe_config_dir = CGLINT_MODELS_DIR "/fused_moe";
  Arena arena;
  const std::unique_ptr<Model> model = fused_moe_model().make(options);
  ASSERT_NE(model, nullptr);
  EXPECT_NE(model->prepare(arena), cudaSuccess);
  EXPECT_NE(model->failure().find("fused_moe"), std::string::npos) << model->failure();
}

}  // namespace
}  // namespace cglint::models
