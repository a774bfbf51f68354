#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "import/dot/dot_label.h"
#include "import/dot/dot_scanner.h"
#include "unit/import/import_helpers.h"

namespace cglint::import {
namespace {

using namespace cglint::testing;
using base::ErrorCode;
using ir::Fact;
using ir::NodeId;
using ir::NodeKind;

ir::Recording read_fixture(std::string_view name) {
  auto recording = read_file(data_path(std::string("dot/") + std::string(name)), {});
  EXPECT_TRUE(recording) << name << ": " << recording.error().to_string();
  return *std::move(recording);
}

std::vector<NodeKind> kinds(const ir::Graph& graph) { return graph.kind.raw(); }

std::string wrap(std::string_view body) {
  return fmt::format("digraph dot {{\nsubgraph cluster_1 {{\nlabel=\"graph_1\" graph[style=\"dashed\"];\n{}}}\n}}\n", body);
}

TEST(DotScanner, Tokens) {
  dot::Scanner scanner("a1 \"q\\\"x\" -> -- -5 <b<i>>[]{}=;,: // c\n# d\n/* e */ \xc3\xa4");
  using Kind = dot::Token::Kind;
  const auto expect = [&](Kind kind, std::string_view text) {
    const dot::Token token = scanner.next();
    EXPECT_EQ(token.kind, kind);
    EXPECT_EQ(token.text, text);
  };
  expect(Kind::id, "a1");
  expect(Kind::quoted, "q\\\"x");
  expect(Kind::arrow, "->");
  expect(Kind::line, "--");
  expect(Kind::id, "-5");
  expect(Kind::html, "b<i>");
  for (const char c : std::string_view("[]{}=;,:")) expect(Kind::punctuation, std::string_view(&c, 1));
  expect(Kind::id, "\xc3\xa4");
  expect(Kind::end, "");
}

TEST(DotLabel, Records) {
  dot::RecordLabel label;
  ASSERT_TRUE(label.parse("{KERNEL\n| {ID | 3 (topoId: 7) | k\\<\\<\\<2,32,0\\>\\>\\>}\n"
                          "| {{node handle | func handle} | {0x10 | 0x20}}\n| {priority | -2}\n}"));
  EXPECT_EQ(label.type(), "KERNEL");
  EXPECT_EQ(dot::parse_number(label.value("ID")), 3U);
  EXPECT_EQ(label.value("node handle"), "0x10");
  EXPECT_EQ(label.value("func handle"), "0x20");
  EXPECT_EQ(label.value("priority"), "-2");
  EXPECT_EQ(label.value("no such row"), "");
  std::string_view name;
  const auto config = dot::split_launch_config(label.after_value("ID"), name);
  ASSERT_TRUE(config);
  EXPECT_EQ(name, "k");
  EXPECT_FALSE(label.parse("{a | {b}"));
  EXPECT_FALSE(label.parse("{a}} b {"));
  EXPECT_FALSE(label.parse("plain"));
  EXPECT_FALSE(label.parse(std::string(100, '{') + std::string(100, '}')));
}

TEST(DotLabel, LaunchConfigurations) {
  const auto split = [](std::string_view text) {
    std::string_view name;
    return dot::split_launch_config(text, name);
  };
  const auto three = split("k\\<\\<\\<\\{16,10,4\\},128,0\\>\\>\\>");
  ASSERT_TRUE(three);
  EXPECT_EQ(three->grid, (ir::Dim3{16, 10, 4}));
  EXPECT_EQ(three->block, (ir::Dim3{128, 1, 1}));
  const auto two = split("k\\<\\<\\<8,\\{32,4\\},2048\\>\\>\\>");
  ASSERT_TRUE(two);
  EXPECT_EQ(two->block, (ir::Dim3{32, 4, 1}));
  EXPECT_EQ(two->shared_bytes, 2048U);
  for (const std::string_view bad :
       {"k", "k\\<\\<\\<\\>\\>\\>", "k\\<\\<\\<1,2\\>\\>\\>", "k\\<\\<\\<1,2,3,4\\>\\>\\>", "k\\<\\<\\<99999999999,1,0\\>\\>\\>",
        "k\\<\\<\\<\\{1,2,1,0\\>\\>\\>"})
    EXPECT_FALSE(split(bad)) << bad;
}

TEST(Dot, PyTorchDumps) {
  for (const auto& [name, nodes, kernels, edges] :
       {std::tuple{"torch/torch_alt_first.dot.gz", 304U, 304U, 334U},
        std::tuple{"torch/torch_main_first.dot.gz", 304U, 304U, 334U},
        std::tuple{"torch/hf_glm4_moe.dot.gz", 603U, 573U, 602U}}) {
    auto recording = read_file(data_path(name), {});
    ASSERT_TRUE(recording);
    ASSERT_EQ(recording->graphs.size(), 1U);
    const ir::Graph& graph = *recording->graphs[ir::GraphId(0)];
    EXPECT_EQ(graph.node_count(), nodes);
    EXPECT_EQ(graph.kernels.size(), kernels);
    EXPECT_EQ(graph.edge_count(), edges);
    EXPECT_EQ(graph.facts, (ir::FactSet{Fact::nodes, Fact::creation_order, Fact::edges, Fact::kernel_names,
                                        Fact::launch_config, Fact::copy_params}));
    EXPECT_FALSE(recording->has_timeline);
    EXPECT_TRUE(recording->losses.empty());
    EXPECT_EQ(graph.info.role, ir::GraphRole::captured);
  }
  auto recording = read_file(data_path("torch/torch_alt_first.dot.gz"), {});
  const ir::Graph& graph = *recording->graphs[ir::GraphId(0)];
  const ir::KernelNode& first = *graph.kernel(NodeId(0));
  EXPECT_EQ(first.grid, (ir::Dim3{4, 1, 1}));
  EXPECT_EQ(first.block, (ir::Dim3{32, 4, 1}));
  EXPECT_EQ(first.dynamic_shared_bytes, 24U);
  EXPECT_EQ(first.cooperative, ir::Tri::no);
  EXPECT_TRUE(recording->text(recording->functions[first.function].name).starts_with("_ZN2at6native"));
}

TEST(Dot, KernelsInEveryForm) {
  for (const std::string_view flags : {"00000", "00001", "00004", "00200", "00400", "04000"}) {
    SCOPED_TRACE(flags);
    const ir::Recording recording = read_fixture(fmt::format("kernels.{}.dot", flags));
    const ir::Graph& graph = *recording.graphs[ir::GraphId(0)];
    ASSERT_EQ(kinds(graph), std::vector<NodeKind>(6, NodeKind::kernel));
    EXPECT_EQ(recording.text(graph.name[NodeId(1)]), "_ZN7fixture16templated_kernelIfLi3EEEvPT_S1_");
    EXPECT_EQ(recording.text(graph.name[NodeId(5)]), "_ZN7fixture7graph_7EPfi");
    EXPECT_EQ(graph.edge_count(), 6U);
    EXPECT_TRUE(graph.facts.contains(Fact::creation_order));
    const bool has_config = flags == "00001" || flags == "00004";
    EXPECT_EQ(graph.facts.contains(Fact::launch_config), has_config);
    if (has_config) {
      EXPECT_EQ(graph.kernel(NodeId(1))->grid, (ir::Dim3{16, 10, 4}));
      EXPECT_EQ(graph.kernel(NodeId(1))->block, (ir::Dim3{8, 4, 2}));
      EXPECT_EQ(graph.kernel(NodeId(1))->dynamic_shared_bytes, 2048U);
    }
    if (flags == "00001" || flags == "00200") {
      EXPECT_EQ(graph.kernel(NodeId(2))->priority, -3);
      EXPECT_EQ(graph.kernel(NodeId(4))->cooperative, ir::Tri::yes);
      EXPECT_EQ(graph.kernel(NodeId(0))->cooperative, ir::Tri::no);
    } else {
      EXPECT_EQ(graph.kernel(NodeId(0))->cooperative, ir::Tri::unknown);
    }
    EXPECT_FALSE(graph.facts.contains(Fact::kernel_attributes)) << "clusters and PDL are not printed";
    EXPECT_FALSE(graph.facts.contains(Fact::edge_data));
  }
}

TEST(Dot, CopiesOfBothStructures) {
  for (const std::string_view flags : {"00001", "00003"}) {
    SCOPED_TRACE(flags);
    const ir::Recording recording = read_fixture(fmt::format("copies.{}.dot", flags));
    const ir::Graph& graph = *recording.graphs[ir::GraphId(0)];
    ASSERT_EQ(graph.node_count(), 17U);
    EXPECT_TRUE(graph.facts.contains(Fact::copy_params));
    const ir::MemcpyNode& device = *graph.memcpy(NodeId(1));
    EXPECT_EQ(device.src_kind, ir::MemoryKind::device);
    EXPECT_EQ(device.dst_kind, ir::MemoryKind::device);
    EXPECT_EQ(device.bytes(), 4096U);
    EXPECT_NE(device.src, 0U);
    EXPECT_NE(device.dst, 0U);
    EXPECT_NE(device.src, device.dst);
    const ir::MemcpyNode& to_device = *graph.memcpy(NodeId(2));
    EXPECT_EQ(to_device.src_kind, ir::MemoryKind::host_pinned);
    EXPECT_EQ(to_device.dst_kind, ir::MemoryKind::device);
    EXPECT_EQ(to_device.dst, device.src) << "the fixture copies into the buffer that it copies from";
    EXPECT_EQ(graph.memcpy(NodeId(3))->dst_kind, ir::MemoryKind::host_pinned);
    EXPECT_EQ(graph.memcpy(NodeId(5))->src_kind, ir::MemoryKind::host_pageable);
    EXPECT_EQ(graph.memcpy(NodeId(11))->dst_kind, ir::MemoryKind::array);
    EXPECT_EQ(graph.memcpy(NodeId(11))->dst, 0U);
    EXPECT_EQ(graph.memcpy(NodeId(12))->src_kind, ir::MemoryKind::array);
    const ir::MemsetNode& byte = *graph.memset(NodeId(13));
    EXPECT_EQ(byte.value, 171U);
    EXPECT_EQ(byte.element_bytes, 1);
    EXPECT_EQ(byte.bytes(), 640U);
    const ir::MemsetNode& word = *graph.memset(NodeId(15));
    EXPECT_EQ(word.value, 3735928559U);
    EXPECT_EQ(word.element_bytes, 4);
    EXPECT_EQ(word.width, 160U);
    const ir::MemsetNode& flat = *graph.memset(NodeId(16));
    EXPECT_EQ(flat.pitch_bytes, 512U);
    EXPECT_EQ(flat.height, 8U);
  }
  // Two dialects of one graph must agree.
  const ir::Recording driver = read_fixture("copies.00001.dot");
  const ir::Recording runtime = read_fixture("copies.00003.dot");
  const ir::Graph& a = *driver.graphs[ir::GraphId(0)];
  const ir::Graph& b = *runtime.graphs[ir::GraphId(0)];
  for (const NodeId node : a.nodes()) {
    if (a.memcpy(node) == nullptr) continue;
    SCOPED_TRACE(node.index());
    EXPECT_EQ(a.memcpy(node)->src, b.memcpy(node)->src);
    EXPECT_EQ(a.memcpy(node)->dst, b.memcpy(node)->dst);
    EXPECT_EQ(a.memcpy(node)->src_kind, b.memcpy(node)->src_kind);
    EXPECT_EQ(a.memcpy(node)->dst_kind, b.memcpy(node)->dst_kind);
    EXPECT_EQ(a.memcpy(node)->height, b.memcpy(node)->height);
    if (b.memcpy(node)->src_kind == ir::MemoryKind::array || b.memcpy(node)->dst_kind == ir::MemoryKind::array) continue;
    EXPECT_EQ(a.memcpy(node)->bytes(), b.memcpy(node)->bytes());
  }
}

TEST(Dot, CopiesWithoutAddressesDoNotClaimThem) {
  const ir::Recording recording = read_fixture("copies.00000.dot");
  const ir::Graph& graph = *recording.graphs[ir::GraphId(0)];
  EXPECT_FALSE(graph.facts.contains(Fact::copy_params));
  EXPECT_EQ(graph.memcpy(NodeId(2))->bytes(), 4096U);
  EXPECT_EQ(graph.memcpy(NodeId(2))->dst_kind, ir::MemoryKind::device);
  EXPECT_EQ(graph.memset(NodeId(13))->value, 171U);
}

TEST(Dot, FillsOfElementsThatDoNotExistAreNotClaimed) {
  for (const auto& [size, known] : {std::pair("2", true), std::pair("3", false), std::pair("256", false), std::pair("", false)}) {
    const auto recording = read_with("dot", wrap(fmt::format(
        "\"graph_1_node_0\"[label=\"{{MEMSET\n| {{{{ID | node handle | dptr | pitch | value | elementSize | width | height}} | {{0 | 0x1 | 0x1000 | 0 | 7 | {} | 320 | 1}}}}}}\"];\n",
        size)));
    ASSERT_TRUE(recording) << size;
    const ir::Graph& graph = *recording->graphs[ir::GraphId(0)];
    EXPECT_EQ(graph.facts.contains(Fact::copy_params), known) << size;
    EXPECT_EQ(graph.memset(NodeId(0))->element_bytes, known ? 2 : 1) << size;
  }
}

TEST(Dot, SynchronisationAndMemoryNodes) {
  const std::vector<NodeKind> expected = {
      NodeKind::kernel,       NodeKind::host,         NodeKind::empty,     NodeKind::event_record,
      NodeKind::event_wait,   NodeKind::batch_mem_op, NodeKind::batch_mem_op, NodeKind::batch_mem_op,
      NodeKind::mem_alloc,    NodeKind::kernel,       NodeKind::mem_free};
  for (const std::string_view flags : {"00000", "00001", "00020", "00040", "00400", "00800", "01000", "02000"}) {
    SCOPED_TRACE(flags);
    const ir::Recording recording = read_fixture(fmt::format("sync.{}.dot", flags));
    EXPECT_EQ(kinds(*recording.graphs[ir::GraphId(0)]), expected);
    EXPECT_TRUE(recording.losses.empty());
  }
  const ir::Recording recording = read_fixture("sync.00001.dot");
  const ir::Graph& graph = *recording.graphs[ir::GraphId(0)];
  ASSERT_EQ(graph.events.size(), 2U);
  EXPECT_NE(graph.events[0].event, 0U);
  EXPECT_EQ(graph.events[0].event, graph.events[1].event);
  ASSERT_EQ(graph.batch_mem_ops.size(), 3U);
  EXPECT_EQ(graph.batch_mem_ops[0].count, 1U);
  EXPECT_EQ(graph.batch_mem_ops[1].count, 3U);
  EXPECT_EQ(graph.batch_mem_ops[2].count, 4U);
  EXPECT_EQ(graph.batch_mem_ops[2].address, graph.batch_mem_ops[0].address);
  ASSERT_EQ(graph.allocs.size(), 2U);
  EXPECT_EQ(graph.allocs[0].bytes, 65536U);
  EXPECT_EQ(graph.allocs[0].address, graph.allocs[1].address);
  EXPECT_EQ(graph.allocs[0].address, 0x302000000U);
  EXPECT_NE(graph.hosts[0].user_data, 0U);
}

TEST(Dot, ChildGraphs) {
  for (const std::string_view flags : {"00000", "00001", "00400"}) {
    SCOPED_TRACE(flags);
    const ir::Recording recording = read_fixture(fmt::format("children.{}.dot", flags));
    ASSERT_EQ(recording.graphs.size(), 5U);
    const ir::Graph& parent = *recording.graphs[ir::GraphId(0)];
    EXPECT_EQ(recording.text(parent.info.name), "graph_3");
    EXPECT_EQ(parent.info.source_id, 3U);
    ASSERT_EQ(parent.child_graphs.size(), 3U);
    for (const ir::ChildGraphNode& child : parent.child_graphs) {
      const ir::Graph& body = *recording.graphs[child.body];
      EXPECT_EQ(body.info.role, ir::GraphRole::body);
      EXPECT_EQ(body.info.parent, ir::GraphId(0));
      EXPECT_EQ(parent.child_graphs[parent.side[body.info.parent_node]].body, child.body);
    }
    // The third child holds a kernel named graph_7 and a child graph.
    const ir::Graph& outer = *recording.graphs[parent.child_graphs[2].body];
    EXPECT_EQ(kinds(outer), (std::vector<NodeKind>{NodeKind::kernel, NodeKind::child_graph}));
    EXPECT_EQ(recording.graphs[outer.child_graphs[0].body]->info.parent, parent.child_graphs[2].body);
  }
}

TEST(Dot, Conditionals) {
  for (const std::string_view flags : {"00000", "00001", "00400"}) {
    SCOPED_TRACE(flags);
    const ir::Recording recording = read_fixture(fmt::format("conditionals.{}.dot", flags));
    const ir::Graph& graph = *recording.graphs[ir::GraphId(0)];
    ASSERT_EQ(graph.conditionals.size(), 4U);
    using Type = ir::ConditionalNode::Type;
    EXPECT_EQ(graph.conditionals[0].type, Type::if_);
    EXPECT_EQ(graph.conditionals[0].bodies.count, 1U);
    EXPECT_EQ(graph.conditionals[1].type, Type::if_);
    EXPECT_EQ(graph.conditionals[1].bodies.count, 2U);
    EXPECT_EQ(graph.conditionals[2].type, Type::while_);
    EXPECT_EQ(graph.conditionals[3].type, Type::switch_);
    EXPECT_EQ(graph.conditionals[3].bodies.count, 3U);
    const auto body = [&](std::size_t conditional, std::uint32_t nth) {
      return std::string(
          recording.text(recording.graphs[graph.bodies[graph.conditionals[conditional].bodies.first + nth]]->info.name));
    };
    EXPECT_EQ(body(1, 0), "graph_4");
    EXPECT_EQ(body(1, 1), "graph_5");
    EXPECT_EQ(body(3, 2), "graph_9");
    // An if inside an if.
    const ir::Graph& first = *recording.graphs[graph.bodies[graph.conditionals[0].bodies.first]];
    EXPECT_EQ(first.conditionals.size(), 1U);
  }
}

TEST(Dot, CreationOrderSurvivesADestroyedNode) {
  for (const std::string_view name : {"destroyed_node.00000.dot", "destroyed_node.00001.dot", "destroyed_node.00400.dot",
                                      "clone_of_destroyed_node.00001.dot"}) {
    SCOPED_TRACE(name);
    const ir::Recording recording = read_fixture(name);
    const ir::Graph& graph = *recording.graphs[ir::GraphId(0)];
    ASSERT_EQ(graph.node_count(), 6U);
    EXPECT_TRUE(std::is_sorted(graph.source_id.begin(), graph.source_id.end()));
    EXPECT_EQ(graph.source_id[NodeId(5)], 6U) << "one id is missing";
    EXPECT_EQ(graph.edge_count(), 6U);
  }
}

TEST(Dot, NodesAreSortedByIdWhateverTheFileOrder) {
  auto recording = read_with("dot", wrap("\"graph_1_node_2\"[shape=\"octagon\" label=\"2\nc\n\"];\n"
                                         "\"graph_1_node_0\"[shape=\"octagon\" label=\"0\na\n\"];\n"
                                         "\"graph_1_node_0\" -> \"graph_1_node_2\";\n"));
  ASSERT_TRUE(recording);
  const ir::Graph& graph = *recording->graphs[ir::GraphId(0)];
  EXPECT_EQ(recording->text(graph.name[NodeId(0)]), "a");
  EXPECT_EQ(graph.edge_from[ir::EdgeId(0)], NodeId(0));
}

TEST(Dot, OneChildClusterUsedTwiceIsExpandedTwice) {
  const std::string text =
      "digraph dot {\nsubgraph cluster_1 {\nlabel=\"graph_1\" graph[style=\"dashed\"];\n"
      "\"graph_1_node_0\"[shape=\"rectangle\" label=\"0\\ngraph_2\\n\"];\n"
      "\"graph_1_node_1\"[shape=\"rectangle\" label=\"1\\ngraph_2\\n\"];\n}\n"
      "subgraph cluster_2 {\nlabel=\"graph_2\" graph[style=\"dashed\"];\n"
      "\"graph_2_node_0\"[shape=\"octagon\" label=\"0\\nk\\n\"];\n}\n}\n";
  auto recording = read_with("dot", text);
  ASSERT_TRUE(recording) << recording.error().to_string();
  ASSERT_EQ(recording->graphs.size(), 3U);
  const ir::Graph& parent = *recording->graphs[ir::GraphId(0)];
  EXPECT_NE(parent.child_graphs[0].body, parent.child_graphs[1].body);
  EXPECT_EQ(recording->graphs[parent.child_graphs[1].body]->info.parent_node, NodeId(1));
}

TEST(Dot, ChildGraphsInACircleAreAnError) {
  const auto cluster = [](int number, int child) {
    return fmt::format("subgraph cluster_{0} {{\nlabel=\"graph_{0}\" graph[style=\"dashed\"];\n"
                       "\"graph_{0}_node_0\"[shape=\"rectangle\" label=\"0\\ngraph_{1}\\n\"];\n}}\n",
                       number, child);
  };
  auto closed = read_with("dot", "digraph dot {\n" + cluster(1, 2) + cluster(2, 1) + "}\n");
  ASSERT_FALSE(closed);
  EXPECT_EQ(closed.error().code, ErrorCode::malformed);
  auto entered = read_with("dot", "digraph dot {\n" + cluster(1, 2) + cluster(2, 3) + cluster(3, 2) + "}\n");
  ASSERT_FALSE(entered);
  EXPECT_EQ(entered.error().code, ErrorCode::malformed);
  EXPECT_NE(entered.error().offset_bytes, base::Error::kNoOffset);
}

// A circle beside sound graphs: its graphs have no root, and must not vanish without a word.
TEST(Dot, ChildGraphsInACircleBesideAnotherGraphAreAnError) {
  const auto cluster = [](int number, std::string_view nodes) {
    return fmt::format("subgraph cluster_{0} {{\nlabel=\"graph_{0}\" graph[style=\"dashed\"];\n{1}}}\n", number, nodes);
  };
  const auto child = [](int graph, int node, int body) {
    return fmt::format("\"graph_{0}_node_{1}\"[shape=\"rectangle\" label=\"{1}\\ngraph_{2}\\n\"];\n", graph, node, body);
  };
  const auto conditional = [](int graph, int node, int body) {
    return fmt::format("\"graph_{0}_node_{1}\"[shape=\"record\" label=\"{{\nCONDITIONAL\n| {{ID | {1}}}\n| {{Conditional Type| IF}}\n| {{True|graph_{2}}}\n}}\n\"];\n",
                       graph, node, body);
  };
  const std::string kernel = "\"graph_9_node_0\"[shape=\"octagon\" label=\"0\\nk\\n\"];\n";
  const std::string sound = cluster(9, kernel);
  struct Case {
    std::string clusters, closes;  // the node that closes the circle
  };
  const std::vector<Case> cases = {
      {cluster(1, child(1, 0, 1)), "\"graph_1_node_0\"["},
      {cluster(1, child(1, 0, 9) + child(1, 1, 2)) + cluster(2, child(2, 0, 1)), "\"graph_2_node_0\"["},
      {cluster(1, child(1, 0, 9) + conditional(1, 1, 2)) + cluster(2, conditional(2, 0, 1)), "\"graph_2_node_0\"["},
      {cluster(4, child(4, 0, 1)) + cluster(1, child(1, 0, 2)) + cluster(2, child(2, 0, 3)) + cluster(3, child(3, 0, 1)), "\"graph_3_node_0\"["},
  };
  for (const Case& c : cases) {
    for (const std::string& text : {"digraph dot {\n" + sound + c.clusters + "}\n", "digraph dot {\n" + c.clusters + sound + "}\n"}) {
      const auto recording = read_with("dot", text);
      ASSERT_FALSE(recording) << text;
      EXPECT_EQ(recording.error().code, ErrorCode::malformed);
      EXPECT_NE(recording.error().message.find("child graphs contain each other in a circle"), std::string::npos) << recording.error().message;
      EXPECT_EQ(recording.error().offset_bytes, text.find(c.closes)) << text;
    }
  }
  // One graph that two others share, directly and through each other, is no circle.
  const auto shared = read_with("dot", "digraph dot {\n" + cluster(1, child(1, 0, 2) + child(1, 1, 9)) + cluster(2, child(2, 0, 9) + child(2, 1, 9)) + sound + "}\n");
  ASSERT_TRUE(shared) << shared.error().to_string();
  EXPECT_EQ(shared->graphs.size(), 5U);
  EXPECT_TRUE(shared->losses.empty());
}

TEST(Dot, ALongChainOfChildGraphsIsReadWithoutRecursion) {
  constexpr int kLevels = 50000;
  std::string text = "digraph dot {\n";
  for (int level = 1; level <= kLevels; ++level)
    text += fmt::format("subgraph cluster_{0} {{\n\"graph_{0}_node_0\"[shape=\"rectangle\" label=\"0\\ngraph_{1}\\n\"];\n}}\n", level, level % kLevels + 1);
  const auto closed = read_with("dot", text + "}\n");
  ASSERT_FALSE(closed);
  EXPECT_NE(closed.error().message.find("in a circle"), std::string::npos);
  text.replace(text.rfind("graph_1\\n"), 9, "EMPTY\\n");
  const auto open = read_with("dot", text + "}\n");
  ASSERT_TRUE(open) << open.error().to_string();
  EXPECT_EQ(open->graphs.size(), static_cast<std::size_t>(kLevels));
}

// A node outside every graph is left out; the graph that it names is a graph of its own.
TEST(Dot, ANodeOutsideEveryGraphDoesNotTakeAGraphWithIt) {
  std::string text = wrap("\"graph_1_node_0\"[shape=\"octagon\" label=\"0\\nk\\n\"];\n");
  text.insert(text.rfind('}'), "\"graph_2_node_0\"[shape=\"rectangle\" label=\"0\\ngraph_1\\n\"];\n");
  const auto recording = read_with("dot", text);
  ASSERT_TRUE(recording) << recording.error().to_string();
  EXPECT_EQ(recording->graphs.size(), 1U);
  EXPECT_EQ(loss_count(*recording, "outside every graph"), 1U);
}

TEST(Dot, ChildGraphsThatMultiplyHitTheLimit) {
  // 24 levels of two uses each: 16 million graphs from 50 lines.
  std::string text = "digraph dot {\n";
  for (int level = 1; level <= 24; ++level) {
    text += fmt::format("subgraph cluster_{0} {{\nlabel=\"graph_{0}\" graph[style=\"dashed\"];\n", level);
    for (int use = 0; use < 2; ++use)
      text += fmt::format("\"graph_{}_node_{}\"[shape=\"rectangle\" label=\"{}\\ngraph_{}\\n\"];\n", level, use, use,
                          level + 1);
    text += "}\n";
  }
  text += "subgraph cluster_25 {\n\"graph_25_node_0\"[shape=\"octagon\" label=\"0\\nk\\n\"];\n}\n}\n";
  auto recording = read_with("dot", text);
  ASSERT_FALSE(recording);
  EXPECT_EQ(recording.error().code, ErrorCode::limit);
  EXPECT_EQ(recording.error().offset_bytes, text.find("cluster_1 "));
}

// The limit is on what is built, and looked at before: many graphs of few nodes, few graphs of many nodes.
TEST(Dot, ChildGraphsThatAreUsedOftenAreReadUpToTheLimit) {
  const auto text = [](int uses, int nodes) {
    std::string out = "digraph dot {\nsubgraph cluster_1 {\nlabel=\"graph_1\" graph[style=\"dashed\"];\n";
    for (int i = 0; i < uses; ++i) out += fmt::format("\"graph_1_node_{0}\"[shape=\"rectangle\" label=\"{0}\\ngraph_2\\n\"];\n", i);
    out += "}\nsubgraph cluster_2 {\n";
    for (int i = 0; i < nodes; ++i) out += fmt::format("\"graph_2_node_{0}\"[shape=\"octagon\" label=\"{0}\\nk\\n\"];\n", i);
    return out + "}\n}\n";
  };
  const auto few = read_with("dot", text(300, 2));
  ASSERT_TRUE(few);
  EXPECT_EQ(few->graphs.size(), 301U);
  for (const auto& [uses, nodes] : {std::pair{200'100, 1}, {2100, 1000}}) {
    const auto many = read_with("dot", text(uses, nodes));
    ASSERT_FALSE(many);
    EXPECT_EQ(many.error().code, ErrorCode::limit);
  }
}

// "(topoId: k)" and headlabel number nodes and the edges into a node from 0 on.
TEST(Dot, GapsInTheNumberingAreLosses) {
  const auto node = [](int i, std::string_view topology) {
    return fmt::format("\"graph_1_node_{0}\"[style=\"solid\" shape=\"octagon\" label=\"{0}{1}\\nk\\n\"];\n\n", i, topology);
  };
  const auto edge = [](int from, std::string_view head) { return fmt::format("\"graph_1_node_{}\" -> \"graph_1_node_3\"{};\n", from, head); };
  const std::vector<std::string> nodes = {node(0, " (topoId: 3)"), node(1, " (topoId: 1)"), node(2, " (topoId: 2)"), node(3, " (topoId: 0)")};
  const std::vector<std::string> edges = {edge(0, " [headlabel=0]"), edge(1, " [headlabel=1]"), edge(2, " [headlabel=2]")};
  const auto text = [&](int without_node, int without_edge, const std::string& more = "") {
    std::string out;
    for (int i = 0; i < 4; ++i) out += i == without_node ? "" : nodes[static_cast<std::size_t>(i)];
    for (int i = 0; i < 3; ++i) out += i == without_edge || i == without_node ? "" : edges[static_cast<std::size_t>(i)];
    return wrap(out + more);
  };
  const auto check = [](const std::string& bytes, std::uint64_t lost_nodes, std::uint64_t lost_edges) {
    const auto recording = read_with("dot", bytes);
    ASSERT_TRUE(recording);
    EXPECT_EQ(loss_count(*recording, "topoIds of a graph have no gaps"), lost_nodes) << bytes;
    EXPECT_EQ(loss_count(*recording, "headlabels have no gaps"), lost_edges) << bytes;
    const ir::FactSet& facts = recording->graphs[ir::GraphId(0)]->facts;
    EXPECT_EQ(facts.contains(Fact::nodes), lost_nodes == 0);
    EXPECT_EQ(facts.contains(Fact::creation_order), lost_nodes == 0);
    EXPECT_EQ(facts.contains(Fact::edges), lost_nodes + lost_edges == 0);
  };
  check(text(-1, -1), 0, 0);
  check(text(1, -1), 1, 1);
  check(text(-1, 0), 0, 1);
  check(text(-1, 1), 0, 1);
  check(text(-1, 2), 0, 0);  // the last one cannot be known
  check(text(-1, -1, edges[1]), 0, 0);                          // repeated edges are merged
  check(text(-1, 1, edge(1, " [headlabel=0]")), 0, 2);          // 0 twice, 1 missing
  check(text(-1, 1, edge(1, "")), 0, 0);                        // its place is free
  check(text(1, 1, node(1, "")), 0, 1);
  check(text(1, 1, node(1, " (topoId: 2)")), 2, 1);
  check(text(1, 1, node(1, " (topoId: 99)")), 96, 1);
}

TEST(Dot, AChildGraphThatIsNotThereIsNoUnknownNode) {
  const auto recording = read_with("dot", wrap("\"graph_1_node_0\"[shape=\"rectangle\" label=\"0\\ngraph_7\\n\"];\n"));
  ASSERT_TRUE(recording);
  EXPECT_EQ(loss_count(*recording, "child graphs and conditional bodies that the file does not hold"), 1U);
  EXPECT_EQ(loss_count(*recording, "type that this version does not know"), 0U);
  EXPECT_EQ(recording->graphs[ir::GraphId(0)]->kind[NodeId(0)], NodeKind::child_graph);
}

TEST(Dot, ATextBeyondTheLimitIsAnError) {
  import::ReadOptions options;
  options.limits.max_string_bytes = 20;
  const std::string fits = wrap("\"graph_1_node_0\"[shape=\"octagon\" label=\"0\\nk\\n\"];\n");
  EXPECT_TRUE(read_with("dot", fits, options));
  const std::string label(21, 'n');
  for (const std::string& text : {wrap("\"graph_1_node_0\"[shape=\"octagon\" label=\"" + label + "\"];\n"), wrap("\"graph_1_node_0\"[shape=\"octagon\" label=<" + label + ">];\n"),
                                  wrap("a[b=c " + label + "=d];\n"), wrap("\"" + label + "\";\n"), wrap("a -> \"" + label + "\";\n"), wrap("a:\"" + label + "\" -> b;\n"), wrap("label=" + label + ";\n"),
                                  wrap("subgraph " + label + " {}\n")}) {
    const auto recording = read_with("dot", text, options);
    ASSERT_FALSE(recording) << text;
    EXPECT_EQ(recording.error().code, ErrorCode::limit) << text;
    EXPECT_LE(text.find(label) - recording.error().offset_bytes, 1U) << text;
  }
}

TEST(Dot, OffsetsCountAByteOrderMark) {
  const std::string body = wrap("\"graph_1_node_0\"[shape=\"octagon\" label=\"0\\nk\\n\"];\n\"graph_1_node_0\" -> \"graph_1_node_9\";\n");
  for (const std::string& text : {body, wrap("\"graph_1_node_0\" -> ;\n"), wrap("\"graph_1_node_0\" [label=\"0\\nk\\n\"];\n\"graph_1_node_0\" -> \"graph_1_node_0\";\n")}) {
    const auto plain = read_with("dot", text), marked = read_with("dot", "\xef\xbb\xbf" + text);
    ASSERT_EQ(plain.has_value(), marked.has_value());
    if (!plain) {
      EXPECT_EQ(marked.error().offset_bytes, plain.error().offset_bytes + 3);
      continue;
    }
    ASSERT_EQ(plain->losses.size(), 1U);
    EXPECT_EQ(marked->losses[0].offset_bytes, plain->losses[0].offset_bytes + 3);
  }
}

TEST(Dot, BadEdgesAreCountedAndSpoilTheFact) {
  auto recording = read_with("dot", wrap("\"graph_1_node_0\"[shape=\"octagon\" label=\"0\na\n\"];\n"
                                         "\"graph_1_node_1\"[shape=\"octagon\" label=\"1\nb\n\"];\n"
                                         "\"graph_1_node_0\" -> \"graph_1_node_1\";\n"
                                         "\"graph_1_node_0\" -> \"graph_1_node_4294967296\";\n"));
  ASSERT_TRUE(recording);
  const ir::Graph& graph = *recording->graphs[ir::GraphId(0)];
  EXPECT_EQ(graph.edge_count(), 1U);
  EXPECT_FALSE(graph.facts.contains(Fact::edges));
  ASSERT_EQ(graph.spoiled.size(), 1U);
  EXPECT_EQ(graph.spoiled[0].fact, Fact::edges);
  EXPECT_EQ(loss_count(*recording, "does not declare"), 1U);
}

TEST(Dot, CyclesAndSelfEdgesAreErrors) {
  const std::string nodes = "\"graph_1_node_0\"[shape=\"octagon\" label=\"0\na\n\"];\n"
                            "\"graph_1_node_1\"[shape=\"octagon\" label=\"1\nb\n\"];\n";
  for (const std::string_view edges : {"\"graph_1_node_0\" -> \"graph_1_node_1\";\n\"graph_1_node_1\" -> \"graph_1_node_0\";\n",
                                       "\"graph_1_node_0\" -> \"graph_1_node_0\";\n"}) {
    auto recording = read_with("dot", wrap(nodes + std::string(edges)));
    ASSERT_FALSE(recording);
    EXPECT_EQ(recording.error().code, ErrorCode::malformed);
  }
}

TEST(Dot, RepeatedNodesCountOnce) {
  const std::string a = "\"graph_1_node_0\"[shape=\"octagon\" label=\"0\na\n\"];\n";
  auto recording = read_with("dot", wrap(a + "\"graph_1_node_0\"[shape=\"octagon\" label=\"0\nb\n\"];\n"));
  ASSERT_TRUE(recording);
  EXPECT_EQ(recording->graphs[ir::GraphId(0)]->node_count(), 1U);
  EXPECT_EQ(loss_count(*recording, "declared twice and differently"), 1U);
  EXPECT_FALSE(recording->graphs[ir::GraphId(0)]->facts.contains(Fact::kernel_names)) << "which name is the right one?";
  // Word for word the same: nothing is in doubt.
  auto same = read_with("dot", wrap(a + a + a));
  ASSERT_TRUE(same);
  EXPECT_EQ(loss_count(*same, "word for word"), 2U);
  EXPECT_TRUE(same->graphs[ir::GraphId(0)]->facts.contains(Fact::kernel_names));
}

TEST(Dot, RepeatedEdgesAndSharedIdsAreCounted) {
  const std::string nodes = "\"graph_1_node_0\"[shape=\"octagon\" label=\"0\na\n\"];\n"
                            "\"graph_1_node_1\"[shape=\"octagon\" label=\"1\nb\n\"];\n";
  const std::string edge = "\"graph_1_node_0\" -> \"graph_1_node_1\";\n";
  auto edges = read_with("dot", wrap(nodes + edge + edge));
  ASSERT_TRUE(edges);
  EXPECT_EQ(edges->graphs[ir::GraphId(0)]->edge_count(), 1U);
  EXPECT_EQ(loss_count(*edges, "repeated edges"), 1U);
  EXPECT_TRUE(edges->graphs[ir::GraphId(0)]->facts.contains(Fact::edges));
  auto ids = read_with("dot", wrap(nodes + "\"graph_1_node_2\"[shape=\"octagon\" label=\"1\nc\n\"];\n"));
  ASSERT_TRUE(ids);
  EXPECT_EQ(ids->graphs[ir::GraphId(0)]->node_count(), 3U);
  EXPECT_EQ(loss_count(*ids, "id of another node"), 1U);
  EXPECT_FALSE(ids->graphs[ir::GraphId(0)]->facts.contains(Fact::creation_order));
}

TEST(Dot, NamesMayHoldAnything) {
  const std::string name("n\0u\x1b[31mred\\\"quote\\\\back", 23);
  auto recording = read_with("dot", wrap("\"graph_1_node_0\"[shape=\"octagon\" label=\"0\n" + name + "\n\"];\n"));
  ASSERT_TRUE(recording) << recording.error().to_string();
  const ir::Graph& graph = *recording->graphs[ir::GraphId(0)];
  EXPECT_EQ(recording->text(graph.name[NodeId(0)]), std::string("n\0u\x1b[31mred\"quote\\back", 21));
}

TEST(Dot, UnknownTypesAndRowsAreKept) {
  auto recording = read_with("dot", wrap("\"graph_1_node_0\"[shape=\"record\" label=\"{WARP_DRIVE\n| {ID | 0}\n| {speed | 9}}\"];\n"
                                         "\"graph_1_node_1\"[shape=\"record\" label=\"{KERNEL\n| {ID | 1 | k\\<\\<\\<1,2,3\\>\\>\\>}\n"
                                         "| {cluster dim | \\{2,1,1\\}}\n| {cooperative | 0}\n}\"];\n"));
  ASSERT_TRUE(recording) << recording.error().to_string();
  const ir::Graph& graph = *recording->graphs[ir::GraphId(0)];
  EXPECT_EQ(kinds(graph), (std::vector<NodeKind>{NodeKind::unknown, NodeKind::kernel}));
  EXPECT_EQ(recording->text(graph.name[NodeId(0)]), "WARP_DRIVE");
  EXPECT_EQ(loss_count(*recording, "does not know"), 1U);
}

// Every damaged field of a node is counted at its node and spoils the facts that rest on it, in the graphs around it as well.
TEST(Dot, FieldsThatAreNoneAreCounted) {
  const std::string config = R"(k\<\<\<4,32,0\>\>\>)";
  const std::string kernel = "\"graph_1_node_0\"[shape=\"record\" label=\"{KERNEL\n| {ID | 0 (topoId: 3) | " + config + "}\n| {cooperative | 0}\n| {priority | -2}\n}\"];\n";
  const std::string other = "\"graph_1_node_1\"[shape=\"record\" label=\"{KERNEL\n| {ID | 1 (topoId: 2) | " + config + "}\n}\"];\n";
  const std::string copy =
      "\"graph_1_node_2\"[shape=\"record\" label=\"{\nMEMCPY\n| {{ID | node handle} | {2 (topoId: 1) | 0x1}}\n| {kind | DtoD (DEVICE to DEVICE)}\n| {{srcPtr | dstPtr} | {pitch | ptr | xsize | ysize "
      "| pitch | ptr | xsize | ysize} | {64 | 0x1000 | 0 | 0 | 64 | 0x2000 | 0 | 0}}\n| {Extent | {{Width | 64} | {Height | 1} | {Depth | 1}}}\n}\"];\n";
  const std::string fill =
      "\"graph_1_node_3\"[shape=\"record\" label=\"{MEMSET\n| {{ID | node handle | dptr | pitch | value | elementSize | width | height} | {3 (topoId: 0) | 0x1 | 0x3000 | 0 | 7 | 4 | 16 | 1}}}\"];\n";
  const std::string good = kernel + other + copy + fill;
  const auto whole = read_with("dot", wrap(good));
  ASSERT_TRUE(whole);
  ASSERT_TRUE(whole->losses.empty());
  const ir::FactSet facts = whole->graphs[ir::GraphId(0)]->facts;
  EXPECT_EQ(facts, (ir::FactSet{Fact::nodes, Fact::edges, Fact::creation_order, Fact::kernel_names, Fact::launch_config, Fact::copy_params}));
  struct Case {
    std::string_view from, to, what;
    Fact fact;
  };
  const std::vector<Case> cases = {
      {"ID | 0 (", "ID | x (", "another number", Fact::creation_order},
      {"ID | 0 (", "ID | 18446744073709551616 (", "another number", Fact::creation_order},
      {"ID | 0 (", "ID | 5 (", "another number", Fact::creation_order},
      {"<4,32,0", "<4,32,x", "launch configuration, priority", Fact::launch_config},
      {"<4,32,0", "<-4,32,0", "launch configuration, priority", Fact::launch_config},
      {"<4,32,0", "<4,4294967296,0", "launch configuration, priority", Fact::launch_config},
      {R"(k\<\<\<4,32,0\>\>\>)", "k", "while others have one", Fact::launch_config},
      {R"( | k\<\<\<4,32,0\>\>\>)", "", "without a name", Fact::kernel_names},
      {"cooperative | 0", "cooperative | yes", "launch configuration, priority", Fact::launch_config},
      {"priority | -2", "priority | 1.5", "launch configuration, priority", Fact::launch_config},
      {"priority | -2", "priority | 99999999999", "launch configuration, priority", Fact::launch_config},
      {"KERNEL", "KERNAL", "does not know", Fact::creation_order},
      {"0x1000", "0xg", "parameter that is none", Fact::copy_params},
      {"0x1000", "0x11111111111111111", "parameter that is none", Fact::copy_params},
      {"| ptr |", "| otr |", "parameter that is none", Fact::copy_params},
      {"Width | 64", "Width | -64", "parameter that is none", Fact::copy_params},
      {"Height | 1", "Height | null", "parameter that is none", Fact::copy_params},
      {"0x3000", "none", "parameter that is none", Fact::copy_params},
      {"dptr", "dpt", "parameter that is none", Fact::copy_params},
      {"0 | 7 | 4 | 16", "0 | 4294967296 | 4 | 16", "parameter that is none", Fact::copy_params},
      {"0 | 7 | 4 | 16", "0 | 7 | 3 | 16", "parameter that is none", Fact::copy_params},
      {"0 | 7 | 4 | 16", "0 | 7 | 4 | 1.5", "parameter that is none", Fact::copy_params},
  };
  for (const Case& c : cases) {
    std::string bad = good;
    const std::size_t at = bad.find(c.from);
    ASSERT_NE(at, std::string::npos) << c.from;
    bad.replace(at, c.from.size(), c.to);
    const auto recording = read_with("dot", wrap(bad));
    ASSERT_TRUE(recording) << c.to;
    EXPECT_EQ(loss_count(*recording, c.what), 1U) << c.from << " -> " << c.to;
    for (const ir::Loss& loss : recording->losses) {
      EXPECT_EQ(loss.severity, ir::Loss::Severity::data_loss);
      EXPECT_LT(loss.offset_bytes, bad.size() + 200);
    }
    EXPECT_FALSE(recording->graphs[ir::GraphId(0)]->facts.contains(c.fact)) << c.to;
    EXPECT_TRUE(recording->graphs[ir::GraphId(0)]->facts.contains(Fact::nodes));
  }
  // A kernel's number in the short form: what stands in its place is not the name.
  const auto plain = read_with("dot", wrap("\"graph_1_node_0\"[shape=\"octagon\" label=\"x\na\n\"];\n"));
  ASSERT_TRUE(plain);
  EXPECT_EQ(loss_count(*plain, "another number"), 1U);
  EXPECT_EQ(plain->text(plain->graphs[ir::GraphId(0)]->name[NodeId(0)]), "a");
}

TEST(Dot, ANameWhoseNumberCannotBeReadIsCounted) {
  for (const std::string_view number : {"18446744073709551616", "-1", "x", ""}) {
    for (const std::string_view label : {"shape=\"octagon\" label=\"0\\nk\\n\"", "shape=\"record\" label=\"{KERNEL\n| {ID | 0 | k}\n}\""}) {
      const auto recording = read_with("dot", wrap(fmt::format("\"graph_1_node_{}\"[{}];\n", number, label)));
      ASSERT_TRUE(recording) << number;
      EXPECT_EQ(loss_count(*recording, "another number than their name"), 1U) << number << label;
      EXPECT_FALSE(recording->graphs[ir::GraphId(0)]->facts.contains(Fact::creation_order)) << number;
    }
  }
  // Without a number in the label either, the order is not known and nothing is contradicted: `cglint convert` writes this.
  const auto unordered = read_with("dot", wrap("\"graph_1_node_n0\"[shape=\"octagon\" label=\"k\\n\"];\n"));
  ASSERT_TRUE(unordered);
  EXPECT_TRUE(unordered->losses.empty());
  EXPECT_FALSE(unordered->graphs[ir::GraphId(0)]->facts.contains(Fact::creation_order));
}

TEST(Dot, ADoubtAboutABodyIsOneAboutItsParents) {
  const auto text = [](std::string_view name, std::string_view body) {
    return fmt::format("digraph dot {{\nsubgraph cluster_1 {{\nlabel=\"graph_1\" graph[style=\"dashed\"];\n"
                       "\"graph_1_node_0\"[shape=\"rectangle\" label=\"0\\ngraph_2\\n\"];\n\"graph_1_node_1\"[shape=\"rectangle\" label=\"1\\ngraph_2\\n\"];\n"
                       "\"graph_1_node_2\"[shape=\"record\" label=\"{{\nCONDITIONAL\n| {{ID | 2}}\n| {{Conditional Type| IF}}\n| {{True|{1}}}\n}}\n\"];\n}}\n"
                       "subgraph cluster_2 {{\nlabel=\"graph_2\" graph[style=\"dashed\"];\n\"graph_2_node_0\"[shape=\"octagon\" label=\"{0}\\nk\\n\"];\n}}\n"
                       "subgraph cluster_3 {{\nlabel=\"graph_3\" graph[style=\"dashed\"];\n\"graph_3_node_0\"[shape=\"octagon\" label=\"0\\nk\\n\"];\n}}\n"
                       "subgraph cluster_4 {{\nlabel=\"graph_4\" graph[style=\"dashed\"];\n\"graph_4_node_0\"[shape=\"octagon\" label=\"0\\nk\\n\"];\n}}\n}}\n",
                       name, body);
  };
  const auto good = read_with("dot", text("0", "graph_3"));
  ASSERT_TRUE(good);
  EXPECT_TRUE(good->losses.empty());
  for (const auto& [number, body, what] : {std::tuple{"5", "graph_3", "another number"}, std::tuple{"0", "graph_9", "does not hold"}, std::tuple{"0", "graphs", "does not hold"}}) {
    const auto recording = read_with("dot", text(number, body));
    ASSERT_TRUE(recording);
    EXPECT_EQ(loss_count(*recording, what), 1U) << "once, however often the cluster is used";
    for (const auto& graph : recording->graphs) {
      const bool apart = recording->text(graph->info.name) == "graph_4" || (recording->text(graph->info.name) == "graph_3" && std::string_view(body) != "graph_3");
      EXPECT_EQ(graph->facts.contains(Fact::creation_order), apart) << recording->text(graph->info.name);
    }
  }
}

TEST(Dot, NoSingleByteMakesANodeVanishSilently) {
  const std::string text = wrap("\"graph_1_node_0\"[style=\"bold\" shape=\"record\" label=\"{KERNEL\n| {ID | 0 (topoId: 1) | k\\<\\<\\<4,32,0\\>\\>\\>}\n| {cooperative | 0}\n}\"];\n\n"
                                "\"graph_1_node_1\"[style=\"solid\" shape=\"octagon\" label=\"1\nb\n\"];\n\n\"graph_1_node_0\" -> \"graph_1_node_1\" [headlabel=0];\n");
  const auto whole = read_with("dot", text);
  ASSERT_TRUE(whole);
  for (std::size_t at = 0; at < text.size(); ++at)
    for (const char with : {'"', '{', '}', '[', ']', '|', ';', ' ', '\\', '\0', static_cast<char>(text[at] ^ 1)}) {
      std::string flipped = text;
      flipped[at] = with;
      const auto recording = read_with("dot", flipped);
      if (!recording) {
        EXPECT_NE(recording.error().offset_bytes, base::Error::kNoOffset) << flipped;
        continue;
      }
      const bool lossy = std::any_of(recording->losses.begin(), recording->losses.end(), [](const ir::Loss& loss) { return loss.severity != ir::Loss::Severity::info; });
      std::size_t kernels = 0, edges = 0;
      for (const auto& graph : recording->graphs) {
        kernels += graph->kernels.size();
        edges += graph->edge_count();
      }
      EXPECT_TRUE(lossy || (kernels == 2 && edges == 1)) << at << "\n" << flipped;
    }
}

TEST(Dot, ForeignDialectsAreNamed) {
  const auto name_of = [](std::string_view text) {
    const SniffResult result = importer("dot").sniff(text);
    return result.match == SniffResult::Match::foreign ? result.foreign_name
                                                       : (result.match == SniffResult::Match::yes ? "yes" : "no");
  };
  EXPECT_EQ(name_of("digraph dot {\nsubgraph cluster_1 {\nlabel=\"graph_1\"graph[style=\"dashed\"];\n\"graph_1_node_0\"[style=\"bold\""),
            "hipGraphDebugDotPrint output (ROCm)");
  EXPECT_EQ(name_of("digraph Taskflow {\nsubgraph cluster_p0x1 {\nlabel=\"Taskflow: p0x1\";\n"), "a Taskflow dump");
  EXPECT_EQ(name_of("digraph dot {\n\"0x5581\" [style=bold, label=\"ID = 0x5581\\nTYPE = CGExecKernel \\n\"];\n"),
            "a SYCL graph dump (print_graph)");
  EXPECT_EQ(name_of("digraph G { a -> b }"), "a Graphviz file that no CUDA graph dump wrote");
  EXPECT_EQ(name_of("graph G { a -- b }"), "an undirected Graphviz file");
  EXPECT_EQ(name_of("{\"traceEvents\": []}"), "no");
  EXPECT_EQ(name_of(""), "no");
  EXPECT_EQ(name_of("digraph dot {\n}\n"), "yes");
  EXPECT_EQ(name_of(wrap("")), "yes");
}

TEST(Dot, CutAtAnyByteIsOneErrorWithAPlace) {
  const std::string text = read_bytes(data_path("dot/children.00001.dot"));
  const std::size_t end = text.find_last_of('}');
  for (std::size_t cut = 0; cut <= end; ++cut) {
    auto recording = read_with("dot", std::string_view(text).substr(0, cut));
    ASSERT_FALSE(recording) << cut;
    EXPECT_EQ(recording.error().code, ErrorCode::malformed) << cut;
    EXPECT_LE(recording.error().offset_bytes, cut) << cut;
  }
  EXPECT_TRUE(read_with("dot", std::string_view(text).substr(0, end + 1)));
}

TEST(Dot, DeepNestingIsALimitNotACrash) {
  std::string text = "digraph dot {\n";
  for (int i = 0; i < 100000; ++i) text += "subgraph cluster_1 {\n";
  auto recording = read_with("dot", text);
  ASSERT_FALSE(recording);
  EXPECT_EQ(recording.error().code, ErrorCode::limit);
}

TEST(Dot, OnGraphSeesEveryGraphAndMayDropIt) {
  ReadOptions options;
  std::vector<std::uint32_t> seen;
  options.on_graph = [&](ir::Recording& recording, ir::GraphId id) {
    ASSERT_NE(recording.graphs[id], nullptr);
    seen.push_back(id.index());
    recording.graphs[id].reset();
  };
  auto recording = read_file(data_path("dot/children.00001.dot"), options);
  ASSERT_TRUE(recording);
  EXPECT_EQ(seen, (std::vector<std::uint32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(recording->graphs[ir::GraphId(0)], nullptr);
}

}  // namespace
}  // namespace cglint::import
