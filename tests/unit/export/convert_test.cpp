#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "export/export.h"
#include "import/dot/dot_importer.h"
#include "import/kineto/kineto_importer.h"
#include "ir/graph_builder.h"
#include "support/random_recording.h"

namespace cglint {
namespace {

ir::Recording import_text(const import::Importer& importer, const std::string& text) {
  const import::ReadOptions options;
  const auto source = import::Source::from_memory(text, "test", options.limits);
  EXPECT_EQ(importer.sniff(std::string_view(text).substr(0, 65536)).match, import::SniffResult::Match::yes);
  auto recording = importer.read(*source, options);
  if (!recording) {
    ADD_FAILURE() << recording.error().to_string();
    return {};
  }
  return std::move(*recording);
}

std::string dot_of(const ir::Recording& recording, ir::GraphId id) {
  std::string text;
  EXPECT_TRUE(exporter::write_dot(recording, id, *exporter::make_string_sink(text)).has_value());
  return text;
}

// What DOT can keep of a graph must come back, names of any kind included.
void expect_same_dot_graph(const ir::Recording& ra, const ir::Graph& a, const ir::Recording& rb,
                           const ir::Graph& b) {
  ASSERT_EQ(a.node_count(), b.node_count());
  for (const ir::NodeId node : a.nodes()) {
    ASSERT_EQ(ir::node_kind_name(a.kind[node]), ir::node_kind_name(b.kind[node])) << node.index();
    if (const ir::KernelNode* k = a.kernel(node)) {
      EXPECT_EQ(k->priority, b.kernel(node)->priority);
      if (a.facts.contains(ir::Fact::launch_config)) {
        EXPECT_EQ(k->grid, b.kernel(node)->grid);
        EXPECT_EQ(k->block, b.kernel(node)->block);
        EXPECT_EQ(k->dynamic_shared_bytes, b.kernel(node)->dynamic_shared_bytes);
      }
    }
    const bool has_copy_params = a.facts.contains(ir::Fact::copy_params);
    if (const ir::MemcpyNode* m = a.memcpy(node); m != nullptr && !has_copy_params) {
      EXPECT_FALSE(b.facts.contains(ir::Fact::copy_params));
      EXPECT_EQ(b.memcpy(node)->src, 0U);
      EXPECT_EQ(b.memcpy(node)->dst, 0U);
      EXPECT_EQ(b.memcpy(node)->bytes(), m->bytes());
      EXPECT_EQ(b.memcpy(node)->src_kind, m->src_kind);
      EXPECT_EQ(b.memcpy(node)->dst_kind, m->dst_kind);
    } else if (m != nullptr) {
      EXPECT_EQ(m->src, b.memcpy(node)->src);
      EXPECT_EQ(m->dst, b.memcpy(node)->dst);
      EXPECT_EQ(m->width_bytes, b.memcpy(node)->width_bytes);
      EXPECT_EQ(m->height, b.memcpy(node)->height);
      EXPECT_EQ(m->depth, b.memcpy(node)->depth);
    }
    if (const ir::MemsetNode* m = a.memset(node); m != nullptr && !has_copy_params) {
      EXPECT_FALSE(b.facts.contains(ir::Fact::copy_params));
      EXPECT_EQ(b.memset(node)->dst, 0U);
      EXPECT_EQ(b.memset(node)->bytes(), m->bytes());
      EXPECT_EQ(b.memset(node)->value, m->value);
    } else if (m != nullptr) {
      EXPECT_EQ(m->dst, b.memset(node)->dst);
      EXPECT_EQ(m->value, b.memset(node)->value);
      EXPECT_EQ(m->width, b.memset(node)->width);
      EXPECT_EQ(m->element_bytes, b.memset(node)->element_bytes);
    }
  }
  // Nothing is added; what is lost (by nodes of unknown types, conditionals without bodies) is said.
  const auto has_order = [](const ir::Graph& graph) { return graph.facts.contains(ir::Fact::creation_order); };
  EXPECT_TRUE(a.node_count() == 0 || has_order(a) || !has_order(b));
  EXPECT_TRUE(has_order(b) || !has_order(a) || !b.spoiled.empty());
  ASSERT_EQ(a.edge_count(), b.edge_count());
  for (const ir::EdgeId edge : a.edges()) {
    EXPECT_EQ(a.edge_from[edge], b.edge_from[edge]);
    EXPECT_EQ(a.edge_to[edge], b.edge_to[edge]);
  }
  (void)ra;
  (void)rb;
}

TEST(DotWriter, GraphsComeBackThroughTheImporter) {
  const auto importer = import::make_dot_importer();
  int bodies = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const ir::Recording original = test::random_recording(seed);
    for (const ir::GraphId id : original.graphs.ids()) {
      const ir::Graph& graph = *original.graphs[id];
      if (graph.info.role == ir::GraphRole::body) continue;
      const ir::Recording read = import_text(*importer, dot_of(original, id));
      ASSERT_FALSE(read.graphs.empty()) << "seed " << seed;
      expect_same_dot_graph(original, graph, read, *read.graphs[ir::GraphId(0)]);
      bodies += static_cast<int>(read.graphs.size()) - 1;
      if (HasFatalFailure()) FAIL() << "seed " << seed << "\n" << dot_of(original, id);
    }
  }
  EXPECT_GT(bodies, 50);
}

// One node of each kind that has parameters, none of them known but the sizes.
TEST(DotWriter, WhatIsNotKnownIsNotWritten) {
  ir::Recording recording;
  recording.processes.push_back(ir::Process());
  ir::GraphBuilder builder;
  const ir::StringId name = recording.intern("x");
  ir::KernelNode kernel;
  kernel.function = recording.intern_function("k");
  builder.add_kernel(recording.intern("k"), kernel);
  ir::MemcpyNode copy;
  copy.width_bytes = 640;
  builder.add_memcpy(name, copy);
  copy.src_kind = ir::MemoryKind::host_pinned;
  copy.dst_kind = ir::MemoryKind::device;
  builder.add_memcpy(name, copy);
  copy = {};
  copy.src_kind = copy.dst_kind = ir::MemoryKind::device;
  builder.add_memcpy(name, copy);
  builder.add_memcpy(name, {});
  ir::MemsetNode fill;
  fill.width = 16;
  fill.element_bytes = 4;
  builder.add_memset(name, fill);
  builder.add_memset(name, {});
  builder.add_host(name, {});
  builder.add_event(ir::NodeKind::event_record, name, {});
  builder.add_alloc(ir::NodeKind::mem_alloc, name, {});
  builder.add_alloc(ir::NodeKind::mem_free, name, {});
  builder.add_batch_mem_op(name, {});
  builder.add_edge(ir::NodeId(0), ir::NodeId(1));
  builder.add_edge(ir::NodeId(2), ir::NodeId(5));
  builder.graph().facts = {ir::Fact::nodes, ir::Fact::edges, ir::Fact::kernel_names};
  const ir::GraphId id = recording.graphs.push_back(*builder.finish());
  const std::string text = dot_of(recording, id);
  EXPECT_EQ(text.find("0x"), std::string::npos) << text;
  for (const char* part : {"shape=\"trapezium\" label=\"MEMCPY\n(UtoU,640)\n\"", "MEMCPY\n(HtoD (HOST PINNED to DEVICE),640)\n", "MEMCPY\n(DtoD,)\n", "label=\"MEMCPY\n\"",
                           "shape=\"invtrapezium\" label=\"MEMSET\n(,64)\n\"", "label=\"MEMSET\n\"", "label=\"HOST\n\"", "label=\"EVENT_RECORD\n\"", "label=\"MEM_ALLOC\n\"",
                           "label=\"MEM_FREE\n\"", "label=\"BATCH_MEM_OP\n\""})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  const ir::Recording read = import_text(*import::make_dot_importer(), text);
  ASSERT_EQ(read.graphs.size(), 1U);
  const ir::Graph& back = *read.graphs[ir::GraphId(0)];
  EXPECT_EQ(back.facts, recording.graphs[id]->facts) << "neither addresses nor a creation order were known";
  EXPECT_TRUE(read.losses.empty());
  expect_same_dot_graph(recording, *recording.graphs[id], read, back);
  EXPECT_EQ(dot_of(read, ir::GraphId(0)), text) << "and once more";
}

TEST(DotWriter, PlainNamesComeBackExactly) {
  ir::Recording recording;
  ir::GraphBuilder builder;
  const std::vector<std::string> names = {"_Z1kPf",  "gemm<float, 4>", "a|b{c}", "quote\"back\\slash",
                                          "graph_7", "größe",          "MEMSET"};
  for (const std::string& name : names) {
    ir::KernelNode kernel;
    kernel.function = recording.intern_function(name);
    kernel.grid = {7, 8, 9};
    builder.add_kernel(recording.intern(name), kernel);
  }
  builder.add_edge(ir::NodeId(0), ir::NodeId(1));
  builder.add_edge(ir::NodeId(0), ir::NodeId(2), {ir::kPortProgrammatic, 0, ir::EdgeType::programmatic});
  builder.add_edge(ir::NodeId(1), ir::NodeId(2), {ir::kPortLaunchOrder, 0, ir::EdgeType::programmatic});
  builder.graph().facts = {ir::Fact::nodes, ir::Fact::launch_config};
  const ir::GraphId id = recording.graphs.push_back(*builder.finish());
  const std::string text = dot_of(recording, id);
  EXPECT_NE(text.find("style=\"dashed\" label=\"programmatic\""), std::string::npos);
  EXPECT_NE(text.find("style=\"dotted\" label=\"launch order\""), std::string::npos);
  const ir::Recording read = import_text(*import::make_dot_importer(), text);
  ASSERT_EQ(read.graphs.size(), 1U);
  const ir::Graph& graph = *read.graphs[ir::GraphId(0)];
  ASSERT_EQ(graph.node_count(), names.size());
  for (std::size_t i = 0; i < names.size(); ++i)
    EXPECT_EQ(read.text(graph.name[ir::NodeId(static_cast<std::uint32_t>(i))]), names[i]);
  EXPECT_EQ(graph.kernels[0].grid, (ir::Dim3{7, 8, 9}));
}

// Two launches of a three-node graph on two streams.
ir::Recording timed_recording() {
  ir::Recording recording;
  recording.processes.push_back(ir::Process());
  ir::GraphBuilder builder;
  ir::Graph& g = builder.graph();
  for (const char* name : {"first", "side", "last"}) {
    ir::KernelNode kernel;
    kernel.function = recording.intern_function(name);
    builder.add_kernel(recording.intern(name), kernel);
  }
  builder.add_edge(ir::NodeId(0), ir::NodeId(1));
  builder.add_edge(ir::NodeId(0), ir::NodeId(2));
  builder.add_edge(ir::NodeId(1), ir::NodeId(2));
  g.facts = {ir::Fact::nodes,        ir::Fact::edges,          ir::Fact::creation_order,
             ir::Fact::kernel_names, ir::Fact::replay_streams, ir::Fact::replay_times,
             ir::Fact::node_identity};
  g.info.name = recording.intern("decode \"b=8\"");
  for (int i = 0; i < 2; ++i) {
    const std::int64_t t = 1'700'000'000'123'456'789 + std::int64_t{i} * 10'001;
    ir::Replay replay;
    replay.correlation = static_cast<std::uint64_t>(100 + i);
    replay.host_start_ns = t - 777;
    replay.host_end_ns = t - 77;
    replay.ops = {static_cast<std::uint32_t>(g.replay_ops.size()), 3};
    g.replay_ops.push_back({ir::NodeId(0), t, t + 1'001, 7, 0, ir::NodeKind::kernel});
    g.replay_ops.push_back({ir::NodeId(1), t + 1'101, t + 2'203, 13, 0, ir::NodeKind::kernel});
    g.replay_ops.push_back({ir::NodeId(2), t + 2'999, t + 3'000, 7, 0, ir::NodeKind::kernel});
    g.replays.push_back(replay);
  }
  recording.graphs.push_back(*builder.finish());
  recording.loose_ops.push_back({recording.intern("eager"), 1'700'000'000'123'400'000,
                                 1'700'000'000'123'400'500, 7, 99, 0, ir::NodeKind::kernel});
  recording.has_timeline = true;
  return recording;
}

TEST(ChromeTrace, TimesStreamsAndFlows) {
  std::string text;
  auto stats = exporter::write_chrome_trace(timed_recording(), *exporter::make_string_sink(text));
  ASSERT_TRUE(stats.has_value());
  EXPECT_EQ(stats->operations, 7U);
  EXPECT_EQ(stats->predicted_graphs, 0U);
  EXPECT_NE(text.find(R"("baseTimeNanoseconds":1700000000123400000)"), std::string::npos);
  EXPECT_NE(text.find(R"("ts":56.789,"dur":1.001)"), std::string::npos);
  EXPECT_NE(text.find(R"("ts":59.788,"dur":0.001)"), std::string::npos);
  std::size_t starts = 0;
  for (std::size_t at = text.find("\"ph\":\"s\""); at != std::string::npos;
       at = text.find("\"ph\":\"s\"", at + 1))
    ++starts;
  EXPECT_EQ(starts, 3U);  // the edges, once
}

TEST(ChromeTrace, ReadsBackAsATrace) {
  std::string text;
  ASSERT_TRUE(exporter::write_chrome_trace(timed_recording(), *exporter::make_string_sink(text)).has_value());
  const ir::Recording read = import_text(*import::make_kineto_importer(), text);
  ASSERT_EQ(read.graphs.size(), 1U);
  const ir::Graph& graph = *read.graphs[ir::GraphId(0)];
  ASSERT_EQ(graph.replays.size(), 2U);
  std::map<std::string, std::int64_t> dur;
  std::set<std::uint64_t> streams;
  for (const ir::ReplayOp& op : graph.ops(graph.replays[ir::ReplayId(0)])) {
    ASSERT_TRUE(op.node.is_valid());
    dur[std::string(read.text(graph.name[op.node]))] = op.dur_ns();
    streams.insert(op.stream);
  }
  EXPECT_EQ(dur, (std::map<std::string, std::int64_t>{{"first", 1'001}, {"side", 1'102}, {"last", 1}}));
  EXPECT_EQ(streams, (std::set<std::uint64_t>{7, 13}));
  EXPECT_EQ(read.loose_ops.size(), 1U);
}

TEST(ChromeTrace, DoubtsComeBackWithTheTrace) {
  ir::Recording recording = timed_recording();
  ir::Graph& graph = *recording.graphs[ir::GraphId(0)];
  graph.facts.erase(ir::Fact::replay_streams);
  const std::string reason = "ROCm traces report one stream for every operation of a graph launch";
  graph.spoiled.push_back({ir::Fact::replay_streams, recording.intern(reason)});
  graph.replays[ir::ReplayId(1)].complete = false;
  recording.add_loss(ir::Loss::Severity::data_loss, "something was lost", 3, 17, {ir::Fact::replay_times});
  recording.add_loss(ir::Loss::Severity::info, "only a note");
  std::string text;
  ASSERT_TRUE(exporter::write_chrome_trace(recording, *exporter::make_string_sink(text)).has_value());
  const ir::Recording read = import_text(*import::make_kineto_importer(), text);
  ASSERT_EQ(read.graphs.size(), 1U);
  const ir::Graph& back = *read.graphs[ir::GraphId(0)];
  EXPECT_FALSE(back.facts.contains(ir::Fact::replay_streams));
  EXPECT_FALSE(back.facts.contains(ir::Fact::replay_times)) << "spoiled by the loss";
  ASSERT_FALSE(back.spoiled.empty());
  EXPECT_EQ(read.text(back.spoiled[0].reason), reason);
  EXPECT_TRUE(back.replays[ir::ReplayId(0)].complete);
  EXPECT_FALSE(back.replays[ir::ReplayId(1)].complete);
  bool lost = false;
  for (const ir::Loss& loss : read.losses) {
    EXPECT_NE(read.text(loss.what), "only a note");
    if (read.text(loss.what) != "something was lost") continue;
    lost = true;
    EXPECT_EQ(loss.count, 3U);
    EXPECT_EQ(loss.severity, ir::Loss::Severity::data_loss);
  }
  EXPECT_TRUE(lost);
  // A trace without doubts says nothing of the kind.
  text.clear();
  ASSERT_TRUE(exporter::write_chrome_trace(timed_recording(), *exporter::make_string_sink(text)).has_value());
  EXPECT_EQ(text.find("\"cglint\""), std::string::npos);
}

TEST(ChromeTrace, NamesAndIdsThatWereNotKnownAreNotKnownAfterwards) {
  for (const ir::Fact fact : {ir::Fact::kernel_names, ir::Fact::node_identity}) {
    ir::Recording recording = timed_recording();
    recording.graphs[ir::GraphId(0)]->facts.erase(fact);
    std::string text;
    ASSERT_TRUE(exporter::write_chrome_trace(recording, *exporter::make_string_sink(text)).has_value());
    const ir::Recording read = import_text(*import::make_kineto_importer(), text);
    ASSERT_EQ(read.graphs.size(), 1U);
    EXPECT_FALSE(read.graphs[ir::GraphId(0)]->facts.contains(fact));
    EXPECT_TRUE(read.losses.empty());
  }
}

TEST(ChromeTrace, ARocmTraceStaysOne) {
  const auto event = [](std::string_view name, int ts) {
    return R"({"ph": "X", "cat": "kernel", "name": ")" + std::string(name) + R"(", "pid": 2, "tid": 7, "ts": )" + std::to_string(ts) +
           R"(, "dur": 1, "args": {"device": 2, "stream": 7, "correlation": 1, "grid": [1, 1, 1], "block": [64, 1, 1]}})";
  };
  const std::string launch = R"({"ph": "X", "cat": "hip_runtime", "name": "hipGraphLaunch", "pid": 9, "tid": 9, "ts": 1, "dur": 2, "args": {"correlation": 1}})";
  const std::string devices = R"("deviceProperties": [{"id": 2, "name": "MI300X", "totalGlobalMem": 206141652992, "numSms": 304}], "distributedInfo": {"rank": 2, "world_size": 8},)";
  for (const bool has_devices : {true, false})
    for (const bool has_launch : {true, false}) {
      std::string text = "{" + (has_devices ? devices : std::string()) + R"("roctracer_version": 4, "traceEvents": [)" + (has_launch ? launch + "," : std::string()) + event("a", 10) + "," +
                         event("b", 12) + "]}";
      for (int round = 0; round < 2; ++round) {
        const ir::Recording read = import_text(*import::make_kineto_importer(), text);
        ASSERT_EQ(read.graphs.size(), 1U);
        const ir::Graph& graph = *read.graphs[ir::GraphId(0)];
        EXPECT_FALSE(graph.facts.contains(ir::Fact::replay_streams));
        EXPECT_TRUE(std::any_of(graph.spoiled.begin(), graph.spoiled.end(),
                                [&](const ir::SpoiledFact& spoiled) { return read.text(spoiled.reason).starts_with("ROCm traces"); }));
        const ir::Process& process = read.processes[ir::ProcessId(0)];
        ASSERT_EQ(process.gpus.size(), 1U);
        EXPECT_TRUE(process.gpus[0].is_amd);
        EXPECT_EQ(process.gpus[0].device, 2);
        EXPECT_EQ(read.text(process.gpus[0].name), has_devices ? "MI300X" : "");
        EXPECT_EQ(process.rank, has_devices ? 2 : -1);
        text.clear();
        ASSERT_TRUE(exporter::write_chrome_trace(read, *exporter::make_string_sink(text)).has_value());
        EXPECT_EQ(text.find("cudaGraphLaunch"), std::string::npos);
        EXPECT_EQ(text.find("hipGraphLaunch") != std::string::npos, has_launch);
      }
    }
}

TEST(ChromeTrace, WithoutReplaysThePredictionIsDrawnAndSaysSo) {
  ir::Recording recording = timed_recording();
  ir::Graph& graph = *recording.graphs[ir::GraphId(0)];
  graph.replays.clear();
  graph.replay_ops.clear();
  graph.facts.erase(ir::Fact::replay_streams);
  graph.facts.erase(ir::Fact::replay_times);
  std::string text;
  auto stats = exporter::write_chrome_trace(recording, *exporter::make_string_sink(text));
  ASSERT_TRUE(stats.has_value());
  EXPECT_EQ(stats->predicted_graphs + stats->skipped_graphs, 1U);
  ASSERT_EQ(stats->predicted_graphs, 1U);
  EXPECT_NE(text.find("predicted streams, no measured times"), std::string::npos);
  EXPECT_NE(text.find("predicted stream 0"), std::string::npos);
}

TEST(Sinks, AFailedStreamIsAnError) {
  std::ostringstream out;
  out.setstate(std::ios::badbit);
  auto result = exporter::write_capture(timed_recording(), exporter::make_stream_sink(out), {});
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, base::ErrorCode::io);
  EXPECT_FALSE(exporter::open_file_sink("/nonexistent/folder/file").has_value());
}

TEST(Sinks, AFullDiskIsAnError) {
  auto result = exporter::write_capture_file(timed_recording(), "/dev/full");
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, base::ErrorCode::io);
}

}  // namespace
}  // namespace cglint
