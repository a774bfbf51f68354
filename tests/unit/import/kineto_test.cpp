#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "import/kineto/trace_reader.h"
#include "unit/import/import_helpers.h"

namespace cglint::import {
namespace {

using namespace cglint::testing;
using base::ErrorCode;
using ir::Fact;
using ir::NodeKind;

// --- hand-made traces -----------------------------------------------------------------------------------------------

struct KernelSpec {
  std::string name = "k";
  double ts_us = 0, dur_us = 1;
  int stream = 7;
  int correlation = 1;
  int device = 0;
  std::string extra_args = "";  // ", \"graph id\": 3"
  std::string cat = "kernel";
};

std::string event(const KernelSpec& k) {
  return fmt::format(
      "{{\"ph\": \"X\", \"cat\": \"{}\", \"name\": \"{}\", \"pid\": {}, \"tid\": {}, \"ts\": {:.3f}, \"dur\": {:.3f}, \"args\": "
      "{{\"queued\": 0, \"device\": {}, \"context\": 1, \"stream\": {}, \"correlation\": {}, \"registers per thread\": 32, "
      "\"shared memory\": 16, \"grid\": [4, 2, 1], \"block\": [128, 1, 1]{}}}}}",
      k.cat, k.name, k.device, k.stream, k.ts_us, k.dur_us, k.device, k.stream, k.correlation, k.extra_args);
}

std::string launch(double ts_us, int correlation, std::string_view name = "cudaGraphLaunch", int pid = 100) {
  return fmt::format(
      "{{\"ph\": \"X\", \"cat\": \"cuda_runtime\", \"name\": \"{}\", \"pid\": {}, \"tid\": {}, \"ts\": {:.3f}, \"dur\": 5.000, "
      "\"args\": {{\"cbid\": 311, \"correlation\": {}}}}}",
      name, pid, pid, ts_us, correlation);
}

std::string trace(const std::vector<std::string>& events, std::string_view properties = "\"schemaVersion\": 1") {
  std::string text = fmt::format("{{{}, \"traceEvents\": [", properties);
  for (std::size_t i = 0; i < events.size(); ++i) text += (i == 0 ? "\n" : ",\n") + events[i];
  return text + "\n], \"traceName\": \"t.json\"}\n";
}

ir::Recording read(const std::string& text) {
  auto recording = read_with("kineto", text);
  EXPECT_TRUE(recording) << recording.error().to_string();
  return *std::move(recording);
}

std::map<std::size_t, int> stream_histogram(const ir::Recording& recording) {
  std::map<std::size_t, int> histogram;
  for (const auto& graph : recording.graphs)
    for (const ir::Replay& replay : graph->replays) {
      std::set<std::pair<std::int32_t, std::uint64_t>> streams;
      for (const ir::ReplayOp& op : graph->ops(replay)) streams.insert({op.device, op.stream});
      ++histogram[streams.size()];
    }
  return histogram;
}

std::map<std::size_t, int> ops_histogram(const ir::Recording& recording) {
  std::map<std::size_t, int> histogram;
  for (const auto& graph : recording.graphs)
    for (const ir::Replay& replay : graph->replays) ++histogram[replay.ops.count];
  return histogram;
}

// A launch of `count` kernels named k0, k1, ... on stream 7.
std::vector<std::string> replay_of(int count, double at_us, int correlation, std::string_view prefix = "k") {
  std::vector<std::string> events;
  events.push_back(launch(at_us, correlation));
  for (int i = 0; i < count; ++i)
    events.push_back(event({.name = fmt::format("{}{}", prefix, i), .ts_us = at_us + 10 + i, .correlation = correlation}));
  return events;
}

void append(std::vector<std::string>& to, const std::vector<std::string>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

// --- numbers --------------------------------------------------------------------------------------------------------

TEST(KinetoTime, MicrosecondsBecomeNanosecondsExactly) {
  const auto ns = [](std::string_view text) {
    std::int64_t value = 0;
    EXPECT_TRUE(kineto::parse_us(text, value)) << text;
    return value;
  };
  EXPECT_EQ(ns("0"), 0);
  EXPECT_EQ(ns("1683564901548726"), 1683564901548726000);
  EXPECT_EQ(ns("5101596482938.681"), 5101596482938681);
  EXPECT_EQ(ns("5101596482938.6"), 5101596482938600);
  EXPECT_EQ(ns("1683564901548726.123"), 1683564901548726123) << "a double would lose the nanoseconds";
  EXPECT_EQ(ns("0.0004"), 0);
  EXPECT_EQ(ns("0.0005"), 1);
  EXPECT_EQ(ns("12.345678"), 12346);
  EXPECT_EQ(ns("-1.5"), -1500);
  EXPECT_EQ(ns("1.5e3"), 1500000);
  EXPECT_EQ(ns("1E2"), 100000);
  std::int64_t value = 0;
  for (const std::string_view bad : {"", "-", ".", "1.", ".5", "abc", "1x", "1.5.2", "99999999999999999999", "1e400", "nan",
                                     "9223372036854775.808", "--1", "+1", "0x10"})
    EXPECT_FALSE(kineto::parse_us(bad, value)) << bad;
}

// --- recordings -----------------------------------------------------------------------------------------------------

TEST(Kineto, RecordingsOfTheDevice) {
  struct Case {
    const char* file;
    std::size_t ops, kernels, streams;
  };
  for (const Case& c : {Case{"torch/kineto_alt_first.json.gz", 304, 304, 17},
                        Case{"torch/kineto_main_first.json.gz", 304, 304, 2}, Case{"torch/hf_glm4_moe.json.gz", 603, 573, 1}}) {
    SCOPED_TRACE(c.file);
    auto recording = read_file(data_path(c.file), {});
    ASSERT_TRUE(recording) << recording.error().to_string();
    ASSERT_EQ(recording->graphs.size(), 1U);
    const ir::Graph& graph = *recording->graphs[ir::GraphId(0)];
    EXPECT_EQ(graph.node_count(), c.ops);
    EXPECT_EQ(graph.kernels.size(), c.kernels);
    EXPECT_EQ(ops_histogram(*recording), (std::map<std::size_t, int>{{c.ops, 3}}));
    EXPECT_EQ(stream_histogram(*recording), (std::map<std::size_t, int>{{c.streams, 3}}));
    EXPECT_EQ(graph.facts, (ir::FactSet{Fact::nodes, Fact::kernel_names, Fact::launch_config, Fact::replay_streams,
                                        Fact::replay_times}));
    EXPECT_TRUE(recording->has_timeline);
    EXPECT_TRUE(recording->losses.empty());
    EXPECT_TRUE(recording->loose_ops.empty());
    for (const ir::ReplayOp& op : graph.replay_ops) EXPECT_TRUE(op.node.is_valid());
    for (const ir::Replay& replay : graph.replays) {
      EXPECT_TRUE(replay.complete);
      EXPECT_GT(replay.host_end_ns, replay.host_start_ns);
      EXPECT_LT(replay.host_start_ns, graph.ops(replay).front().start_ns);
    }
    const ir::Process& process = recording->processes[ir::ProcessId(0)];
    EXPECT_EQ(process.driver_version, 13000U);
    EXPECT_EQ(process.runtime_version, 13000U);
    EXPECT_EQ(process.cupti_version, 130001U);
    EXPECT_EQ(recording->text(process.framework), "pytorch");
    ASSERT_EQ(process.gpus.size(), 1U);
    EXPECT_EQ(recording->text(process.gpus[0].name), "NVIDIA H200");
    EXPECT_EQ(process.gpus[0].sm_count, 132U);
    EXPECT_FALSE(process.gpus[0].is_amd);
  }
  auto recording = read_file(data_path("torch/kineto_alt_first.json.gz"), {});
  const ir::Graph& graph = *recording->graphs[ir::GraphId(0)];
  EXPECT_EQ(graph.replay_ops[0].start_ns, 5101596487076130) << "microseconds of the file, exactly";
  EXPECT_EQ(graph.replay_ops[0].dur_ns(), 3136);
  EXPECT_EQ(graph.replays[ir::ReplayId(0)].correlation, 17694U);
}

// --- grouping -------------------------------------------------------------------------------------------------------

TEST(Kineto, LaunchesOfTwoGraphsAreKeptApart) {
  std::vector<std::string> events;
  for (int i = 0; i < 3; ++i) {
    append(events, replay_of(4, 1000 * i, 10 + 2 * i, "draft"));
    append(events, replay_of(6, 1000 * i + 500, 11 + 2 * i, "target"));
  }
  events.push_back(event({.name = "loose", .ts_us = 5000, .correlation = 99}));
  const ir::Recording recording = read(trace(events));
  ASSERT_EQ(recording.graphs.size(), 2U);
  EXPECT_EQ(recording.graphs[ir::GraphId(0)]->node_count(), 4U);
  EXPECT_EQ(recording.graphs[ir::GraphId(1)]->node_count(), 6U);
  EXPECT_EQ(recording.graphs[ir::GraphId(0)]->replays.size(), 3U);
  EXPECT_EQ(recording.graphs[ir::GraphId(1)]->replays.size(), 3U);
  ASSERT_EQ(recording.loose_ops.size(), 1U);
  EXPECT_EQ(recording.text(recording.loose_ops[0].name), "loose");
}

TEST(Kineto, EqualGraphsWithDifferentIdsAreKeptApart) {
  std::vector<std::string> events;
  for (const int graph : {3, 5}) {
    events.push_back(launch(100 * graph, graph));
    for (int i = 0; i < 2; ++i)
      events.push_back(event({.name = "k", .ts_us = 100.0 * graph + 10 + i, .correlation = graph,
                              .extra_args = fmt::format(", \"graph id\": {}, \"graph node id\": {}", graph, i + 1)}));
  }
  const ir::Recording recording = read(trace(events));
  ASSERT_EQ(recording.graphs.size(), 2U);
  EXPECT_EQ(recording.graphs[ir::GraphId(0)]->info.source_id, 3U);
  EXPECT_TRUE(recording.graphs[ir::GraphId(0)]->facts.contains(Fact::node_identity));
}

TEST(Kineto, NodeIdsPackedOrNot) {
  std::vector<std::string> events;
  events.push_back(launch(0, 1));
  events.push_back(event({.name = "a", .ts_us = 10, .correlation = 1, .extra_args = ", \"graph id\": 2, \"graph node id\": 8589934593"}));
  events.push_back(event({.name = "b", .ts_us = 12, .correlation = 1, .extra_args = ", \"graph id\": 2, \"graph node id\": 8589934594"}));
  events.push_back(launch(100, 2));
  // The second launch runs them in the other order, with short ids.
  events.push_back(event({.name = "b", .ts_us = 110, .correlation = 2, .extra_args = ", \"graph id\": 2, \"graph node id\": 2"}));
  events.push_back(event({.name = "a", .ts_us = 112, .correlation = 2, .extra_args = ", \"graph id\": 2, \"graph node id\": 1"}));
  const ir::Recording recording = read(trace(events));
  ASSERT_EQ(recording.graphs.size(), 1U);
  const ir::Graph& graph = *recording.graphs[ir::GraphId(0)];
  ASSERT_EQ(graph.node_count(), 2U);
  EXPECT_EQ(graph.replay_ops[2].node, ir::NodeId(1));
  EXPECT_EQ(graph.replay_ops[3].node, ir::NodeId(0));
}

TEST(Kineto, GraphIdZeroMeansNoGraph) {
  const ir::Recording recording =
      read(trace({event({.extra_args = ", \"graph id\": 0, \"graph node id\": 0"})}));
  EXPECT_TRUE(recording.graphs.empty());
  EXPECT_EQ(recording.loose_ops.size(), 1U);
}

TEST(Kineto, OccurrencesTieOperationsToNodes) {
  // The same kernel three times per launch: the nth is the nth.
  std::vector<std::string> events;
  for (int i = 0; i < 2; ++i) {
    events.push_back(launch(1000 * i, i + 1));
    for (int k = 0; k < 3; ++k)
      events.push_back(event({.name = "same", .ts_us = 1000.0 * i + 10 * (k + 1), .dur_us = 1.0 + k, .correlation = i + 1}));
  }
  const ir::Recording recording = read(trace(events));
  const ir::Graph& graph = *recording.graphs[ir::GraphId(0)];
  ASSERT_EQ(graph.node_count(), 3U);
  for (std::size_t i = 0; i < graph.replay_ops.size(); ++i)
    EXPECT_EQ(graph.replay_ops[i].node, ir::NodeId(static_cast<std::uint32_t>(i % 3)));
}

TEST(Kineto, ALaunchCutByTheEndOfTheTraceIsIncomplete) {
  std::vector<std::string> events;
  append(events, replay_of(5, 0, 1));
  append(events, replay_of(5, 1000, 2));
  std::vector<std::string> cut = replay_of(5, 2000, 3);
  cut.resize(3);
  append(events, cut);
  const ir::Recording recording = read(trace(events));
  ASSERT_EQ(recording.graphs.size(), 1U);
  const ir::Graph& graph = *recording.graphs[ir::GraphId(0)];
  ASSERT_EQ(graph.replays.size(), 3U);
  EXPECT_TRUE(graph.replays[ir::ReplayId(0)].complete);
  EXPECT_FALSE(graph.replays[ir::ReplayId(2)].complete);
  EXPECT_EQ(loss_count(recording, "incomplete"), 1U);
}

TEST(Kineto, ASmallGraphInTheMiddleIsItsOwn) {
  std::vector<std::string> events;
  append(events, replay_of(5, 0, 1));
  append(events, replay_of(2, 1000, 2));
  append(events, replay_of(5, 2000, 3));
  const ir::Recording recording = read(trace(events));
  EXPECT_EQ(recording.graphs.size(), 2U);
}

TEST(Kineto, OperationsBeforeTheirLaunchCallWasRecordedAreLoose) {
  std::vector<std::string> events;
  for (int i = 0; i < 3; ++i) events.push_back(event({.name = "early", .ts_us = 1.0 + i, .correlation = 5}));
  append(events, replay_of(4, 1000, 6));
  const ir::Recording recording = read(trace(events));
  EXPECT_EQ(recording.graphs.size(), 1U);
  EXPECT_EQ(recording.loose_ops.size(), 3U);
  EXPECT_EQ(loss_count(recording, "before it began"), 1U);
}

TEST(Kineto, WithoutHostRowsSharedCorrelationsAreLaunches) {
  std::vector<std::string> events;
  for (int i = 0; i < 3; ++i) events.push_back(event({.name = "g", .ts_us = 1.0 + i, .correlation = 5}));
  events.push_back(event({.name = "single", .ts_us = 9, .correlation = 6}));
  events.push_back(event({.name = "unknown", .ts_us = 10, .correlation = 0}));
  events.push_back(event({.name = "unknown", .ts_us = 11, .correlation = 0}));
  const ir::Recording recording = read(trace(events));
  ASSERT_EQ(recording.graphs.size(), 1U);
  EXPECT_EQ(recording.graphs[ir::GraphId(0)]->node_count(), 3U);
  EXPECT_EQ(recording.loose_ops.size(), 3U);
  EXPECT_EQ(loss_count(recording, "found by their shared correlation"), 1U);
}

TEST(Kineto, LaunchCallsOfEveryApi) {
  for (const std::string_view name :
       {"cudaGraphLaunch", "cuGraphLaunch", "cudaGraphLaunch_v10000", "cudaGraphLaunch_ptsz", "cuGraphLaunch_ptsz"}) {
    std::vector<std::string> events = {launch(0, 1, name), event({.ts_us = 10})};
    EXPECT_EQ(read(trace(events)).graphs.size(), 1U) << name;
  }
  const ir::Recording other = read(trace({launch(0, 1, "cudaGraphLaunchHostFunc"), event({.ts_us = 10})}));
  EXPECT_EQ(other.graphs.size(), 0U);
  EXPECT_EQ(other.loose_ops.size(), 1U);
}

TEST(Kineto, MergedProcessesMayRepeatACorrelation) {
  std::vector<std::string> events;
  events.push_back(launch(0, 1, "cudaGraphLaunch", 100));
  events.push_back(event({.name = "a", .ts_us = 10, .device = 0}));
  events.push_back(event({.name = "b", .ts_us = 12, .device = 0}));
  events.push_back(launch(1000, 1, "cudaGraphLaunch", 200));
  events.push_back(event({.name = "c", .ts_us = 1010, .device = 1}));
  const ir::Recording recording = read(trace(events));
  EXPECT_EQ(ops_histogram(recording), (std::map<std::size_t, int>{{1, 1}, {2, 1}}));
}

// --- streams --------------------------------------------------------------------------------------------------------

TEST(Kineto, StreamsAreCountedPerDevice) {
  std::vector<std::string> events = {launch(0, 1)};
  for (const int device : {0, 1})
    for (const int stream : {7, 20})
      events.push_back(event({.ts_us = 10.0 + stream, .stream = stream, .device = device}));
  EXPECT_EQ(stream_histogram(read(trace(events))), (std::map<std::size_t, int>{{4, 1}}));
}

TEST(Kineto, TheOriginalStreamWins) {
  std::vector<std::string> events = {launch(0, 1)};
  for (int i = 0; i < 3; ++i)
    events.push_back(event({.name = "k", .ts_us = 10.0 + i, .stream = 7, .extra_args = fmt::format(", \"original_stream\": {}", 140 + i)}));
  EXPECT_EQ(stream_histogram(read(trace(events))), (std::map<std::size_t, int>{{3, 1}}));
  // In the other order of properties, too.
  const std::string reversed =
      "{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"k\", \"pid\": 0, \"tid\": 7, \"ts\": 1, \"dur\": 1, \"args\": "
      "{\"original_stream\": 99, \"stream\": 7, \"device\": 0, \"correlation\": 1}}";
  const ir::Recording recording = read(trace({launch(0, 1), reversed}));
  EXPECT_EQ(recording.graphs[ir::GraphId(0)]->replay_ops[0].stream, 99U);
}

TEST(Kineto, ARewrittenTraceDoesNotVouchForStreams) {
  const std::string ids = ", \"graph id\": 2, \"graph node id\": 8589934593, \"name\": \"phase_a\"";
  const ir::Recording recording = read(trace({launch(0, 1), event({.ts_us = 10, .extra_args = ids})}));
  const ir::Graph& graph = *recording.graphs[ir::GraphId(0)];
  EXPECT_FALSE(graph.facts.contains(Fact::replay_streams));
  ASSERT_EQ(graph.spoiled.size(), 1U);
  EXPECT_EQ(graph.spoiled[0].fact, Fact::replay_streams);
  EXPECT_EQ(loss_count(recording, "_annotate_cuda_graph_trace"), 1U);
}

TEST(Kineto, RocmTracesDoNotVouchForStreams) {
  const ir::Recording recording =
      read(trace({launch(0, 1, "hipGraphLaunch"), event({.ts_us = 10}), event({.ts_us = 12})},
                 "\"deviceProperties\": [{\"id\": 0, \"name\": \"\", \"numSms\": 304}], \"roctracer_version\": 4.1"));
  const ir::Graph& graph = *recording.graphs[ir::GraphId(0)];
  EXPECT_FALSE(graph.facts.contains(Fact::replay_streams));
  EXPECT_TRUE(graph.facts.contains(Fact::replay_times));
  EXPECT_TRUE(recording.processes[ir::ProcessId(0)].gpus[0].is_amd);
}

TEST(Kineto, PeerCopiesHaveNoDevice) {
  const std::string copy =
      "{\"ph\": \"X\", \"cat\": \"gpu_memcpy\", \"name\": \"Memcpy PtoP (Device -> Device)\", \"pid\": 0, \"tid\": 9, \"ts\": 11, "
      "\"dur\": 2, \"args\": {\"fromDevice\": 2, \"inDevice\": 1, \"toDevice\": 3, \"stream\": 9, \"correlation\": 1, \"bytes\": 64}}";
  const ir::Recording recording = read(trace({launch(0, 1), copy}));
  const ir::Graph& graph = *recording.graphs[ir::GraphId(0)];
  EXPECT_EQ(graph.replay_ops[0].device, 1);
  EXPECT_EQ(graph.memcpy(ir::NodeId(0))->bytes(), 64U);
}

// --- categories and properties --------------------------------------------------------------------------------------

TEST(Kineto, OldCategories) {
  std::vector<std::string> events;
  std::string old_launch = launch(0, 1);
  old_launch.replace(old_launch.find("cuda_runtime"), 12, "Runtime");
  events.push_back(old_launch);
  events.push_back(event({.ts_us = 10, .cat = "Kernel"}));
  events.push_back(event({.name = "Memcpy HtoD", .ts_us = 12, .extra_args = ", \"bytes\": 640", .cat = "Memcpy"}));
  events.push_back(event({.name = "Memset (Device)", .ts_us = 14, .extra_args = ", \"bytes\": 64", .cat = "Memset"}));
  events.push_back(event({.ts_us = 16, .cat = "Operator"}));
  const ir::Recording recording = read(trace(events));
  const ir::Graph& graph = *recording.graphs[ir::GraphId(0)];
  EXPECT_EQ(graph.kind.raw(), (std::vector<NodeKind>{NodeKind::kernel, NodeKind::memcpy, NodeKind::memset}));
  EXPECT_EQ(graph.memcpy(ir::NodeId(1))->bytes(), 640U);
}

TEST(Kineto, AnnotationsAndSyncRowsAreNoOperations) {
  std::vector<std::string> events = {launch(0, 1), event({.ts_us = 10})};
  for (const std::string_view cat : {"gpu_user_annotation", "cuda_sync", "cuda_event", "overhead", "user_annotation"})
    events.push_back(event({.ts_us = 10, .stream = 55, .cat = std::string(cat)}));
  const ir::Recording recording = read(trace(events));
  EXPECT_EQ(ops_histogram(recording), (std::map<std::size_t, int>{{1, 1}}));
  EXPECT_TRUE(recording.loose_ops.empty());
}

TEST(Kineto, PropertiesBeforeAndBehindTheEvents) {
  const std::string text = "{\"traceEvents\": [" + launch(0, 1) + "," + event({.ts_us = 10}) +
                           "], \"distributedInfo\": {\"backend\": \"nccl\", \"rank\": 3, \"world_size\": 8, \"pg_config\": "
                           "[{\"pg_name\": \"0\", \"ranks\": [0, 1]}, {\"pg_name\": \"1\", \"ranks\": \"all\"}]}, "
                           "\"computeProperties\": [{\"id\": 0, \"name\": \"V100\", \"major\": 7, \"minor\": 0}]}";
  const ir::Recording recording = read(text);
  const ir::Process& process = recording.processes[ir::ProcessId(0)];
  EXPECT_EQ(process.rank, 3);
  EXPECT_EQ(process.world_size, 8);
  EXPECT_EQ(process.pid, 100);
  ASSERT_EQ(process.gpus.size(), 1U);
  EXPECT_EQ(process.gpus[0].compute_major, 7U);
}

TEST(Kineto, ABareArrayIsATrace) {
  const std::string text = "  [" + launch(0, 1) + "," + event({.ts_us = 10}) + "]\n";
  EXPECT_EQ(importer("kineto").sniff(text).match, SniffResult::Match::yes);
  EXPECT_EQ(read(text).graphs.size(), 1U);
}

TEST(Kineto, OneLineAndPrettyPrinted) {
  std::string pretty = trace({launch(0, 1), event({.ts_us = 10}), event({.name = "b", .ts_us = 12})});
  std::string out;
  bool in_string = false;
  for (const char c : pretty) {
    if (c == '"') in_string = !in_string;
    out += c;
    if (!in_string && (c == '{' || c == ',' || c == '[')) out += "\r\n\t  ";
  }
  EXPECT_EQ(ops_histogram(read(out)), (std::map<std::size_t, int>{{2, 1}}));
  std::string one_line;
  for (const char c : pretty)
    if (c != '\n') one_line += c;
  EXPECT_EQ(ops_histogram(read(one_line)), (std::map<std::size_t, int>{{2, 1}}));
}

TEST(Kineto, ZeroAndMissingDurations) {
  std::string no_duration = event({.name = "n", .ts_us = 12});
  const std::size_t at = no_duration.find("\"dur\"");
  no_duration.erase(at, no_duration.find("\"args\"") - at);
  const ir::Recording recording = read(trace({launch(0, 1), event({.name = "z", .ts_us = 10, .dur_us = 0}), no_duration}));
  const ir::Graph& graph = *recording.graphs[ir::GraphId(0)];
  ASSERT_EQ(graph.replay_ops.size(), 2U);
  EXPECT_EQ(graph.replay_ops[0].dur_ns(), 0);
  EXPECT_EQ(graph.replay_ops[1].dur_ns(), 0);
}

TEST(Kineto, ArgumentsBeforeTheCategory) {
  const std::string odd =
      "{\"args\": {\"device\": 0, \"stream\": 12, \"correlation\": 1, \"grid\": [3, 1, 1], \"block\": [32, 1, 1]}, \"ts\": \"10.5\", "
      "\"dur\": 1, \"name\": \"k\", \"cat\": \"kernel\", \"ph\": \"X\", \"pid\": 0, \"tid\": 12}";
  const ir::Recording recording = read(trace({launch(0, 1), odd}));
  const ir::Graph& graph = *recording.graphs[ir::GraphId(0)];
  EXPECT_EQ(graph.replay_ops[0].stream, 12U);
  EXPECT_EQ(graph.replay_ops[0].start_ns, 10500);
  EXPECT_EQ(graph.kernel(ir::NodeId(0))->grid.x, 3U);
}

TEST(Kineto, EscapedNames) {
  const ir::Recording recording = read(
      trace({launch(0, 1), event({.name = "a\\\"b\\\\c\\n\\u00e9\\ud83d\\ude00\\u0000z", .ts_us = 10})}));
  const ir::Graph& graph = *recording.graphs[ir::GraphId(0)];
  EXPECT_EQ(recording.text(graph.name[ir::NodeId(0)]), std::string("a\"b\\c\n\xc3\xa9\xf0\x9f\x98\x80\0z", 14));
}

TEST(Kineto, DependencyArrowsAreEdges) {
  const auto arrow = [](bool start, int number, int tid, double ts) {
    return fmt::format("{{\"ph\": \"{}\", \"id\": {}, \"pid\": 0, \"tid\": {}, \"ts\": {:.3f}, \"cat\": \"ac2g\", \"name\": \"ac2g\"{}}}",
                       start ? "s" : "f", (std::int64_t{1} << 40) + number, tid, ts, start ? "" : ", \"bp\": \"e\"");
  };
  const auto node = [](std::string_view name, double ts, int stream, int id, std::string_view cat = "kernel") {
    return event({.name = std::string(name), .ts_us = ts, .dur_us = 2, .stream = stream, .correlation = 1,
                  .extra_args = fmt::format(", \"graph id\": 2, \"graph node id\": {}", id), .cat = std::string(cat)});
  };
  // a -> b (back to back on one stream), a -> c, c -> EventRecord e, b -> d, e -> d
  std::vector<std::string> events = {launch(0, 1),          node("a", 10, 7, 1), node("b", 12, 7, 2), node("c", 13, 20, 3),
                                     node("EventRecord", 15, 20, 4, "graph_event_node"), node("d", 18, 7, 5)};
  events.push_back(arrow(true, 0, 7, 12));
  events.push_back(arrow(false, 0, 7, 12));
  events.push_back(arrow(true, 1, 7, 12));
  events.push_back(arrow(false, 1, 20, 13));
  events.push_back(arrow(true, 2, 20, 15));
  events.push_back(arrow(false, 2, 20, 15));
  events.push_back(arrow(true, 3, 7, 14));
  events.push_back(arrow(false, 3, 7, 18));
  events.push_back(arrow(true, 4, 20, 17));
  events.push_back(arrow(false, 4, 7, 18));
  // A launch arrow of Kineto itself has a small id and says nothing about dependencies.
  events.push_back("{\"ph\": \"f\", \"id\": 1, \"pid\": 0, \"tid\": 7, \"ts\": 10, \"cat\": \"ac2g\", \"name\": \"ac2g\", \"bp\": \"e\"}");
  const ir::Recording recording = read(trace(events));
  const ir::Graph& graph = *recording.graphs[ir::GraphId(0)];
  ASSERT_EQ(graph.node_count(), 5U);
  EXPECT_TRUE(graph.facts.contains(Fact::edges));
  std::set<std::pair<std::string, std::string>> edges;
  for (const ir::EdgeId e : graph.edges())
    edges.insert({std::string(recording.text(graph.name[graph.edge_from[e]])),
                  std::string(recording.text(graph.name[graph.edge_to[e]]))});
  EXPECT_EQ(edges, (std::set<std::pair<std::string, std::string>>{
                       {"a", "b"}, {"a", "c"}, {"c", "EventRecord"}, {"b", "d"}, {"EventRecord", "d"}}));
  // Without the arrow into b, its edge may have gone through a node that left no record.
  events.erase(events.begin() + 6, events.begin() + 8);
  const ir::Recording partial = read(trace(events));
  EXPECT_FALSE(partial.graphs[ir::GraphId(0)]->facts.contains(Fact::edges));
}

// --- damage ---------------------------------------------------------------------------------------------------------

TEST(KinetoDamage, InvalidUtf8AndControlCharacters) {
  const ir::Recording recording = read(trace({launch(0, 1), event({.name = "bad\xff\xc3(utf8", .ts_us = 10}),
                                              event({.name = std::string("nul\0tab\tesc\x1b", 12), .ts_us = 12})}));
  EXPECT_EQ(ops_histogram(recording), (std::map<std::size_t, int>{{2, 1}}));
  const ir::Graph& graph = *recording.graphs[ir::GraphId(0)];
  EXPECT_EQ(recording.text(graph.name[ir::NodeId(0)]), "bad?" "?(utf8");
  EXPECT_EQ(recording.text(graph.name[ir::NodeId(1)]), "nul tab esc ");
  EXPECT_GE(loss_count(recording, "not valid in JSON"), 4U);
}

TEST(KinetoDamage, UnescapedQuotesAreRepaired) {
  std::vector<std::string> events = {launch(0, 1)};
  for (int i = 0; i < 6; ++i)
    events.push_back(event({.name = i == 3 ? "say \"hi\" to" : fmt::format("k{}", i), .ts_us = 10.0 + i}));
  const ir::Recording recording = read(trace(events));
  EXPECT_EQ(ops_histogram(recording), (std::map<std::size_t, int>{{6, 1}}));
  EXPECT_EQ(loss_count(recording, "repaired"), 1U);
  const ir::Graph& graph = *recording.graphs[ir::GraphId(0)];
  EXPECT_EQ(recording.text(graph.name[ir::NodeId(3)]), "say \"hi\" to");
  // An odd number of quotes turns the rest of the text inside out.
  events[2] = event({.name = "odd \" one", .ts_us = 10.5});
  EXPECT_EQ(ops_histogram(read(trace(events))), (std::map<std::size_t, int>{{6, 1}}));
}

TEST(KinetoDamage, ALostOperationIsCountedAndMarksItsLaunch) {
  std::vector<std::string> events;
  append(events, replay_of(4, 0, 1));
  append(events, replay_of(4, 1000, 2));
  std::string broken = events[8];
  broken.replace(broken.find("\"dur\": 1.000"), 12, "\"dur\": }{{!");
  events[8] = broken;
  const ir::Recording recording = read(trace(events));
  ASSERT_EQ(recording.graphs.size(), 1U);
  const ir::Graph& graph = *recording.graphs[ir::GraphId(0)];
  ASSERT_EQ(graph.replays.size(), 2U);
  EXPECT_TRUE(graph.replays[ir::ReplayId(0)].complete);
  EXPECT_FALSE(graph.replays[ir::ReplayId(1)].complete);
  EXPECT_EQ(loss_count(recording, "may be GPU operations"), 1U);
}

TEST(KinetoDamage, ALostHostEventSpoilsNothing) {
  std::vector<std::string> events = replay_of(4, 0, 1);
  events.insert(events.begin() + 2, "{\"ph\": \"X\", \"cat\": \"cpu_op\", \"name\": \"x\", \"ts\": , \"dur\": \"args\": {]}");
  const ir::Recording recording = read(trace(events));
  EXPECT_EQ(ops_histogram(recording), (std::map<std::size_t, int>{{4, 1}}));
  EXPECT_TRUE(recording.graphs[ir::GraphId(0)]->replays[ir::ReplayId(0)].complete);
}

TEST(KinetoDamage, CutAtAnyByteIsAnErrorOrACountedLoss) {
  std::vector<std::string> events;
  append(events, replay_of(2, 0, 1));
  append(events, replay_of(2, 1000, 2));
  const std::string text = trace(events, "\"schemaVersion\": 1, \"deviceProperties\": [{\"id\": 0, \"name\": \"GPU\"}]");
  const std::size_t end = text.find_last_of('}');
  for (std::size_t cut = 0; cut <= end; ++cut) {
    auto recording = read_with("kineto", std::string_view(text).substr(0, cut));
    if (!recording) {
      EXPECT_EQ(recording.error().code, ErrorCode::malformed) << cut;
      EXPECT_LE(recording.error().offset_bytes, cut) << cut;
      continue;
    }
    EXPECT_EQ(loss_count(*recording, "the trace is not whole"), 1U) << cut;
    for (const ir::Loss& loss : recording->losses)
      if (recording->text(loss.what).starts_with("the trace is not whole")) {
        EXPECT_EQ(loss.severity, ir::Loss::Severity::error);
        EXPECT_LE(loss.offset_bytes, cut);
      }
  }
  EXPECT_EQ(loss_count(read(text.substr(0, end + 1)), "the trace is not whole"), 0U);
}

TEST(KinetoDamage, ATornGzipGivesWhatCameBefore) {
  std::vector<std::string> events;
  for (int i = 0; i < 300; ++i) append(events, replay_of(20, 1000 * i, i + 1, fmt::format("a{}_", i % 7)));
  const std::string packed = gzip(trace(events));
  auto recording = read_with("kineto", std::string_view(packed).substr(0, packed.size() / 2));
  ASSERT_TRUE(recording) << recording.error().to_string();
  EXPECT_GT(recording->graphs.size(), 3U);
  EXPECT_EQ(loss_count(*recording, "cut short"), 1U);
}

TEST(KinetoDamage, WhatIsNoTrace) {
  for (const std::string_view text : {"", "   ", "nonsense", "{", "{}", "{\"a\": 1}", "{\"traceEvents\": 5}", "{\"traceEvents\" [",
                                      "{\"traceEvents\": []} more", "{a: 1}", "\"traceEvents\"", "{\"traceEvents\": {}}"}) {
    auto recording = read_with("kineto", text);
    ASSERT_FALSE(recording) << text;
    EXPECT_EQ(recording.error().code, ErrorCode::malformed) << text;
  }
  EXPECT_TRUE(read_with("kineto", "{\"traceEvents\": []}"));
}

TEST(KinetoDamage, DeepNestingAndOddElements) {
  const std::string deep = "{\"ph\": \"X\", \"cat\": \"cpu_op\", \"name\": \"d\", \"args\": " + std::string(200000, '[') +
                           std::string(200000, ']') + "}";
  const std::string deep_gpu = "{\"ph\": \"X\", \"cat\": \"kernel\", \"args\": {\"x\": " + std::string(200000, '[') +
                               std::string(200000, ']') + "}, \"ts\": 1}";
  const ir::Recording recording =
      read(trace({"1", "\"text\"", "null", "[[1, 2], {\"a\": 3}]", deep, deep_gpu, launch(0, 1), "{}", event({.ts_us = 10})}));
  EXPECT_EQ(ops_histogram(recording), (std::map<std::size_t, int>{{1, 1}}));
}

TEST(KinetoDamage, HugeNumbers) {
  const std::string huge =
      "{\"ph\": \"X\", \"cat\": \"kernel\", \"name\": \"b\", \"pid\": 0, \"tid\": 7, \"ts\": 10, \"dur\": 1, \"args\": "
      "{\"stream\": 18446744073709551615, \"correlation\": 1, \"device\": 0, \"graph id\": 4294967296, \"graph node id\": "
      "18446744073709551615, \"grid\": [99999999999, 1, 1], \"block\": [1, 1, 1, 1]}}";
  const ir::Recording recording = read(trace({launch(0, 1), huge}));
  ASSERT_EQ(recording.graphs.size(), 1U);
  EXPECT_EQ(loss_count(recording, "without a stream"), 1U);
  // A time that does not fit is no operation.
  const ir::Recording late = read(trace({launch(0, 1), event({.ts_us = 10}), event({.ts_us = 1e17})}));
  EXPECT_EQ(loss_count(late, "may be GPU operations"), 1U);
}

TEST(KinetoDamage, AnEventThatGivesAPropertyTwiceIsLeftOut) {
  const auto twice = [](const std::string& text, std::string_view part) {
    std::string doubled = text;
    doubled.insert(doubled.find(part), std::string(part));
    return doubled;
  };
  const std::string good = event({.name = "good", .ts_us = 10}), bad = event({.name = "bad", .ts_us = 12});
  for (const std::string& event_text :
       {twice(bad, "\"stream\": 7, "), twice(bad, "\"ts\": 12.000, "), twice(bad, "\"cat\": \"kernel\", "),
        twice(bad, "\"device\": 0, "), twice(bad, "\"correlation\": 1, ")}) {
    const ir::Recording recording = read(trace({launch(0, 1), good, event_text}));
    EXPECT_EQ(ops_histogram(recording), (std::map<std::size_t, int>{{1, 1}})) << event_text;
    EXPECT_EQ(loss_count(recording, "give a property twice"), 1U);
    const ir::Graph& graph = *recording.graphs[ir::GraphId(0)];
    EXPECT_FALSE(graph.facts.contains(Fact::replay_streams));
    EXPECT_FALSE(graph.replays[ir::ReplayId(0)].complete);
  }
  // What cglint does not read may come twice.
  const ir::Recording ignored = read(trace({launch(0, 1), good, twice(bad, "\"context\": 1, ")}));
  EXPECT_EQ(ops_histogram(ignored), (std::map<std::size_t, int>{{2, 1}}));
  EXPECT_TRUE(ignored.losses.empty());
}

TEST(KinetoDamage, OperationsThatEndBeforeTheyBeginAreLeftOut) {
  const ir::Recording recording =
      read(trace({launch(0, 1), event({.ts_us = 10}), event({.name = "b", .ts_us = 20, .dur_us = -3})}));
  EXPECT_EQ(ops_histogram(recording), (std::map<std::size_t, int>{{1, 1}}));
  EXPECT_EQ(loss_count(recording, "end before they begin"), 1U);
  const ir::Graph& graph = *recording.graphs[ir::GraphId(0)];
  EXPECT_FALSE(graph.facts.contains(Fact::replay_times));
  EXPECT_FALSE(graph.facts.contains(Fact::replay_streams));
  EXPECT_FALSE(graph.replays[ir::ReplayId(0)].complete);
  // Only the launch call: its length is not that important.
  std::string backwards = launch(0, 1);
  backwards.replace(backwards.find("\"dur\": 5.000"), 12, "\"dur\": -5.00");
  const ir::Recording call = read(trace({backwards, event({.ts_us = 10})}));
  EXPECT_EQ(loss_count(call, "calls that end before they begin"), 1U);
  EXPECT_TRUE(call.graphs[ir::GraphId(0)]->facts.contains(Fact::replay_streams));
}

TEST(KinetoDamage, AnOperationWithoutADeviceSpoilsTheStreams) {
  const ir::Recording recording = read(trace({launch(0, 1), event({.ts_us = 10}), event({.ts_us = 12, .device = -1})}));
  EXPECT_EQ(loss_count(recording, "without a device"), 1U);
  const ir::Graph& graph = *recording.graphs[ir::GraphId(0)];
  EXPECT_FALSE(graph.facts.contains(Fact::replay_streams));
  EXPECT_TRUE(graph.facts.contains(Fact::replay_times));
}

TEST(KinetoDamage, AnUnusableStreamIsNotReplacedByTheRow) {
  const auto with = [](const std::string& property) {
    return read(trace({launch(0, 1), event({.ts_us = 10}),
                       R"({"ph": "X", "cat": "kernel", "name": "b", "pid": 0, "tid": 7, "ts": 12, "dur": 1, "args": {"device": 0, "correlation": 1)" + property + "}}"}));
  };
  for (const char* value : {"-1", "4294967296", "1180591620717411303424", "\"seven\"", "null", "7.5", "[7]"})
    for (const char* property : {", \"stream\": ", ", \"original_stream\": "}) {
      const ir::Recording recording = with(std::string(property) + value);
      EXPECT_EQ(loss_count(recording, "without a stream"), 1U) << property << value;
      EXPECT_FALSE(recording.graphs[ir::GraphId(0)]->facts.contains(Fact::replay_streams)) << property << value;
    }
  for (const char* property : {"", ", \"stream\": 4294967295", ", \"stream\": null, \"original_stream\": 7"}) {
    const ir::Recording recording = with(property);
    EXPECT_EQ(loss_count(recording, "without a stream"), 0U) << property;
    EXPECT_TRUE(recording.graphs[ir::GraphId(0)]->facts.contains(Fact::replay_streams)) << property;
  }
}

TEST(KinetoDamage, AnUnusableCorrelationIsALoss) {
  for (const char* value : {"-5", "4294967296", "5000000000000000000000000", "\"five\"", "null", "1.5"}) {
    const ir::Recording recording =
        read(trace({launch(0, 1), event({.ts_us = 10}),
                    std::string(R"({"ph": "X", "cat": "kernel", "name": "b", "pid": 0, "tid": 7, "ts": 12, "dur": 1, "args": {"device": 0, "stream": 7, "correlation": )") +
                        value + "}}"}));
    EXPECT_EQ(loss_count(recording, "no 32-bit number"), 1U) << value;
    EXPECT_FALSE(recording.graphs[ir::GraphId(0)]->facts.contains(Fact::replay_streams)) << value;
  }
}

TEST(KinetoDamage, ASecondListOfEventsIsALoss) {
  const std::string one = trace({launch(0, 1), event({.ts_us = 10})});
  const std::string head = one.substr(0, one.rfind('}'));
  for (const char* more : {", \"traceEvents\": []}", ", \"traceEvents\": 5}"}) {
    const ir::Recording recording = read(head + more);
    EXPECT_EQ(loss_count(recording, "lists of traceEvents"), 1U) << more;
    EXPECT_FALSE(recording.graphs[ir::GraphId(0)]->facts.contains(Fact::replay_streams)) << more;
  }
  EXPECT_EQ(loss_count(read(one), "lists of traceEvents"), 0U);
}

TEST(KinetoDamage, NoDamageMakesTheReaderHang) {
  // Every event is broken, in ways that defeat bracket counting; the work must stay in proportion to the file.
  std::string text = "{\"traceEvents\": [";
  for (int i = 0; i < 60000; ++i) text += "{\"a\": {\"b\": \"x},{\"";
  auto recording = read_with("kineto", text);
  if (recording) {
    EXPECT_GT(loss_count(*recording, "left out") + loss_count(*recording, "not whole"), 0U);
  } else {
    EXPECT_EQ(recording.error().code, ErrorCode::malformed);
  }
}

TEST(Kineto, WindowsOfAnySizeGiveTheSameEvents) {
  // Large enough for many windows, with nested arrays of objects that look like event boundaries.
  std::vector<std::string> events;
  for (int i = 0; i < 400; ++i) {
    append(events, replay_of(8, 1000 * i, i + 1, "w"));
    events.push_back(fmt::format(
        "{{\"ph\": \"X\", \"cat\": \"cpu_op\", \"name\": \"op }},{{\\\"ph\\\" {}\", \"pid\": 1, \"tid\": 1, \"ts\": {}, \"dur\": 1, \"args\": "
        "{{\"list\": [{{\"ph\": \"X\"}}, {{\"ph\": \"X\"}}, {{\"ph\": \"X\"}}], \"text\": \"{}\"}}}}",
        i, i, std::string(static_cast<std::size_t>(i) * 7, 'x')));
  }
  const std::string text = trace(events);
  ASSERT_GT(text.size(), std::size_t{1} << 20);
  const ir::Recording recording = read(text);
  EXPECT_EQ(ops_histogram(recording), (std::map<std::size_t, int>{{8, 400}}));
  EXPECT_TRUE(recording.losses.empty()) << recording.text(recording.losses[0].what);
}

TEST(Kineto, AnEventLargerThanTheWindow) {
  std::vector<std::string> events = {launch(0, 1), event({.ts_us = 10})};
  std::string big = "{\"ph\": \"X\", \"cat\": \"cpu_op\", \"name\": \"big\", \"args\": {\"list\": [";
  for (int i = 0; i < 100000; ++i) big += "{\"k\": \"v\"}, ";
  events.push_back(big + "0]}}");
  events.push_back(event({.name = "after", .ts_us = 12}));
  const ir::Recording recording = read(trace(events));
  EXPECT_EQ(ops_histogram(recording), (std::map<std::size_t, int>{{2, 1}}));
  EXPECT_TRUE(recording.losses.empty());
}

}  // namespace
}  // namespace cglint::import
