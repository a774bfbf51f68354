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

std::string data_losses(const ir::Recording& recording) {
  std::string text;
  for (const ir::Loss& loss : recording.losses)
    if (loss.severity != ir::Loss::Severity::info) text += fmt::format("{} {}|", loss.count, recording.text(loss.what));
  return text;
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
  ASSERT_EQ(recording.processes.size(), 2U);
  EXPECT_EQ(recording.processes[ir::ProcessId(1)].pid, 200);
  EXPECT_EQ(data_losses(recording), "");
  for (const auto& graph : recording.graphs) EXPECT_EQ(graph->info.process.index(), graph->node_count() == 2 ? 0U : 1U);
}

// Two ranks that do the same at the same time, with the same ids, on a GPU each.
TEST(Kineto, ProcessesThatShareIdsAreKeptApart) {
  const auto ranks = [](bool shared_row) {
    std::vector<std::string> events;
    for (int i = 0; i < 4; ++i) {
      for (const int rank : {0, 1}) events.push_back(launch(1000 * i + 200 * rank, 7 + i, "cudaGraphLaunch", 100 + rank));
      for (const int rank : {0, 1})
        for (int k = 0; k < 3; ++k)
          events.push_back(event({.name = fmt::format("k{}", k), .ts_us = 1000.0 * i + 200 * rank + 20 + 2 * k, .dur_us = rank == 0 ? 1.5 : 1.25,
                                  .stream = rank == 0 ? 7 : 20, .correlation = 7 + i, .device = shared_row ? 0 : rank}));
    }
    return read(trace(events));
  };
  const ir::Recording apart = ranks(false);
  EXPECT_EQ(data_losses(apart), "");
  ASSERT_EQ(apart.graphs.size(), 2U);
  for (const auto& graph : apart.graphs) {
    EXPECT_EQ(graph->replays.size(), 4U);
    const int rank = static_cast<int>(graph->info.process.index());
    for (const ir::ReplayOp& op : graph->replay_ops) EXPECT_EQ(op.device, rank);
    EXPECT_TRUE(graph->facts.contains(Fact::replay_streams));
  }
  EXPECT_EQ(stream_histogram(apart), (std::map<std::size_t, int>{{1, 8}}));
  // On one GPU nothing tells whose they are: by time, with a loss.
  const ir::Recording shared = ranks(true);
  EXPECT_EQ(loss_count(shared, "in rows that do not tell of which process they are"), 24U);
  for (const auto& graph : shared.graphs) EXPECT_FALSE(graph->facts.contains(Fact::replay_streams));
}

// Ids that only one process has tell whose the rows are.
TEST(Kineto, OneProcessDoesNotTakeTheOperationsOfAnother) {
  std::vector<std::string> events;
  for (int i = 0; i < 3; ++i)
    for (const int rank : {0, 1}) {
      events.push_back(launch(1000 * i, 10 * (rank + 1) + i, "cudaGraphLaunch", 100 + rank));
      for (int k = 0; k < 3; ++k)
        events.push_back(event({.name = fmt::format("k{}", k), .ts_us = 1000.0 * i + 20 + 2 * k, .correlation = 10 * (rank + 1) + i, .device = rank}));
    }
  events.push_back(event({.name = "eager of the second", .ts_us = 500, .correlation = 10, .device = 1}));
  const ir::Recording recording = read(trace(events));
  EXPECT_EQ(data_losses(recording), "");
  EXPECT_EQ(ops_histogram(recording), (std::map<std::size_t, int>{{3, 6}}));
  EXPECT_EQ(recording.loose_ops.size(), 1U);
}

// --- records that are lost or given twice ----------------------------------------------------------------------------

// Launches of 12 kernels on two streams, `lacking` left out of the one in the middle.
std::vector<std::string> loop_of(const std::set<int>& lacking, bool closed_up = false) {
  std::vector<std::string> events;
  for (int i = 0; i < 5; ++i) {
    events.push_back(launch(1000 * i, i + 1));
    double shift[2] = {0, 0};
    for (int k = 0; k < 12; ++k) {
      const double at = 1000.0 * i + 20 + 5 * (k / 2) - shift[k % 2];
      if (i == 2 && lacking.contains(k)) {
        if (closed_up) shift[k % 2] += 5;
      } else {
        events.push_back(event({.name = fmt::format("k{}", k), .ts_us = at, .dur_us = 4, .stream = k % 2 == 0 ? 7 : 20, .correlation = i + 1}));
      }
    }
  }
  return events;
}

TEST(KinetoDamage, ALaunchThatLacksOperationsIsNoGraphOfItsOwn) {
  EXPECT_TRUE(read(trace(loop_of({}))).losses.empty());
  for (const std::set<int>& lacking : {std::set<int>{4}, {4, 5}, {4, 6}}) {
    const ir::Recording recording = read(trace(loop_of(lacking)));
    ASSERT_EQ(recording.graphs.size(), 1U);
    const ir::Graph& graph = *recording.graphs[ir::GraphId(0)];
    ASSERT_EQ(graph.replays.size(), 5U);
    EXPECT_FALSE(graph.replays[ir::ReplayId(2)].complete);
    EXPECT_EQ(loss_count(recording, "operations are missing in graph launches: a gap shows where"), lacking.size());
    EXPECT_FALSE(graph.facts.contains(Fact::replay_streams));
    EXPECT_FALSE(graph.facts.contains(Fact::replay_times));
  }
}

TEST(KinetoDamage, AGraphThatLacksOperationsWithoutAGapIsItsOwn) {
  // What follows comes at once: it was launched without the operation. At the end of a stream nothing can show a gap.
  for (const auto& [lacking, closed_up] : {std::pair<std::set<int>, bool>{{4}, true}, {{11}, false}, {{0}, false}}) {
    const ir::Recording recording = read(trace(loop_of(lacking, closed_up)));
    EXPECT_EQ(recording.graphs.size(), 2U);
    EXPECT_EQ(data_losses(recording), "");
    EXPECT_EQ(loss_count(recording, "perhaps launches of it with lost records"), 1U);
    for (const auto& graph : recording.graphs) EXPECT_TRUE(graph->facts.contains(Fact::replay_streams));
  }
}

TEST(KinetoDamage, AnOperationThatIsGivenTwiceCountsOnce) {
  const std::vector<std::string> whole = loop_of({});
  for (const std::size_t at : {std::size_t{1}, std::size_t{30}, whole.size() - 1}) {
    for (const bool behind_all : {false, true}) {
      std::vector<std::string> events = whole;
      events.insert(behind_all ? events.end() : events.begin() + static_cast<std::ptrdiff_t>(at), whole[at]);
      const ir::Recording recording = read(trace(events));
      EXPECT_EQ(loss_count(recording, "GPU operations that are in the file twice"), 1U);
      EXPECT_EQ(ops_histogram(recording), (std::map<std::size_t, int>{{12, 5}}));
      EXPECT_FALSE(recording.graphs[ir::GraphId(0)]->facts.contains(Fact::replay_streams));
    }
  }
  // The same kernel twice at one time on two streams is no repetition.
  EXPECT_TRUE(read(trace({launch(0, 1), event({.ts_us = 10, .stream = 7}), event({.ts_us = 10, .stream = 8})})).losses.empty());
  // Outside of graphs, too.
  std::vector<std::string> events = whole;
  events.insert(events.end(), 3, event({.name = "loose", .ts_us = 9000, .correlation = 900}));
  const ir::Recording recording = read(trace(events));
  EXPECT_EQ(loss_count(recording, "GPU operations that are in the file twice"), 2U);
  EXPECT_EQ(recording.loose_ops.size(), 1U);
}

TEST(KinetoDamage, ANodeThatRunsTwiceAtATimeIsTold) {
  const auto node = [](int id, double ts_us, double dur_us, int stream) {
    return event({.name = fmt::format("k{}", id),
                  .ts_us = ts_us,
                  .dur_us = dur_us,
                  .stream = stream,
                  .extra_args = fmt::format(", \"graph id\": 2, \"graph node id\": {}", id)});
  };
  const auto read_with = [&](const std::string& more) {
    return read(trace({launch(0, 1), node(1, 10, 4, 7), node(2, 20, 4, 7), node(3, 30, 4, 7), more}));
  };
  constexpr std::string_view kTold = "operations of nodes that were still running";
  const ir::Recording doubled = read_with(node(2, 21, 4, 8));
  EXPECT_EQ(loss_count(doubled, kTold), 1U);
  const ir::Graph& graph = *doubled.graphs[ir::GraphId(0)];
  ASSERT_EQ(graph.replays.size(), 1U);
  EXPECT_EQ(graph.replays.raw()[0].ops.count, 3U);
  EXPECT_FALSE(graph.facts.contains(Fact::replay_streams));
  EXPECT_FALSE(graph.facts.contains(Fact::replay_times));
  EXPECT_EQ(loss_count(doubled, "fewer operations than others"), 0U);  // no launch has more than the three that count
  // Again after its end, as in a loop, or before it by no more than clocks are apart.
  for (const double ts_us : {23.5, 25.0, 40.0}) {
    const ir::Recording again = read_with(node(2, ts_us, 4, 7));
    EXPECT_EQ(loss_count(again, kTold), 0U) << ts_us;
    EXPECT_EQ(again.graphs[ir::GraphId(0)]->replays.raw()[0].ops.count, 4U) << ts_us;
  }
}

TEST(KinetoDamage, LaunchCallsWithOneId) {
  std::vector<std::string> events = loop_of({});
  events.push_back(launch(1000, 2));
  const ir::Recording twice = read(trace(events));
  EXPECT_EQ(loss_count(twice, "graph launch calls that are in the file twice"), 1U);
  EXPECT_EQ(ops_histogram(twice), (std::map<std::size_t, int>{{12, 5}}));
  EXPECT_FALSE(twice.graphs[ir::GraphId(0)]->facts.contains(Fact::replay_streams));
  // The driver's call inside the runtime's.
  events.back() = launch(1001, 2, "cuGraphLaunch");
  events.back().replace(events.back().find("5.000"), 5, "3.000");
  EXPECT_TRUE(read(trace(events)).losses.empty());
  // Another call.
  events.back() = launch(1400, 2);
  const ir::Recording shared = read(trace(events));
  EXPECT_EQ(loss_count(shared, "with the correlation id of another one"), 1U);
  EXPECT_FALSE(shared.graphs[ir::GraphId(0)]->facts.contains(Fact::replay_streams));
}

TEST(KinetoDamage, EmptyEventsAreCounted) {
  std::vector<std::string> events = loop_of({});
  events.insert(events.begin() + 3, "{}");
  events.push_back("{ }");
  const ir::Recording recording = read(trace(events));
  EXPECT_EQ(loss_count(recording, "events without any property"), 2U);
  EXPECT_EQ(data_losses(recording), "");
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
  EXPECT_EQ(loss_count(recording, "without a duration"), 1U);
  EXPECT_FALSE(graph.facts.contains(Fact::replay_times));
  EXPECT_TRUE(graph.facts.contains(Fact::replay_streams));
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
  const ir::Recording recording = read(trace({"1", "\"text\"", "null", "[[1, 2], {\"a\": 3}]", deep, deep_gpu, launch(0, 1), "{}", event({.ts_us = 10})}));
  EXPECT_EQ(ops_histogram(recording), (std::map<std::size_t, int>{{1, 1}}));
  EXPECT_EQ(loss_count(recording, "may be GPU operations"), 4U);
}

// Operations of graph launches and loose ones.
std::size_t count_ops(const ir::Recording& recording) {
  std::size_t count = recording.loose_ops.size();
  for (const auto& graph : recording.graphs) count += graph->replay_ops.size();
  return count;
}

bool has_data_loss(const ir::Recording& recording) {
  return std::any_of(recording.losses.begin(), recording.losses.end(), [](const ir::Loss& loss) { return loss.severity != ir::Loss::Severity::info; });
}

// As json.dump writes it, with and without indent.
std::string one_line(const std::string& text) {
  std::string out;
  for (const char c : text)
    if (c != '\n') out += c;
  return out;
}
std::string pretty_printed(const std::string& text) {
  std::string out;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (in_string && text[i] == '\\') {
      out += text[i++];
    } else if (text[i] == '"') {
      in_string = !in_string;
    }
    out += text[i];
    if (!in_string && (text[i] == '{' || text[i] == ',' || text[i] == '[')) out += "\n    ";
  }
  return out;
}

TEST(KinetoDamage, AnElementThatIsNoObjectIsCountedAndSwallowsNothing) {
  const std::string loose = event({.name = "loose", .ts_us = 50, .correlation = 9});
  for (const std::string& odd : {std::string("1"), std::string("-2.5e3"), std::string("null"), std::string("true"), std::string("\"text, {\\\"ph\\\": \\\"X\\\"}\""),
                                 std::string("[]"), std::string("[[1, 2], {\"a\": 3}]"), "[" + loose + "]", std::string("nonsense"), std::string("1 2")}) {
    const std::vector<std::string> good = {launch(0, 1), event({.ts_us = 10}), event({.name = "b", .ts_us = 12}), loose};
    for (std::size_t at = 0; at <= good.size(); ++at) {
      std::vector<std::string> events = good;
      events.insert(events.begin() + static_cast<std::ptrdiff_t>(at), odd);
      const std::string object = trace(events);
      const std::string array = object.substr(object.find('['), object.rfind(']') + 1 - object.find('['));
      for (const std::string& text : {object, one_line(object), pretty_printed(object), array, one_line(array), gzip(object), gzip(one_line(array))}) {
        const ir::Recording recording = read(text);
        EXPECT_EQ(count_ops(recording), 3U) << odd << " before element " << at;
        EXPECT_EQ(ops_histogram(recording), (std::map<std::size_t, int>{{2, 1}})) << odd << " before element " << at;
        EXPECT_EQ(loss_count(recording, "may be GPU operations"), 1U) << odd << " before element " << at;
        for (const ir::Loss& loss : recording.losses)
          EXPECT_TRUE(loss.offset_bytes < 4 * object.size() || loss.severity == ir::Loss::Severity::info);
        ASSERT_EQ(recording.graphs.size(), 1U);
        EXPECT_FALSE(recording.graphs[ir::GraphId(0)]->facts.contains(Fact::replay_streams));
        EXPECT_FALSE(recording.graphs[ir::GraphId(0)]->facts.contains(Fact::replay_times));
      }
    }
  }
}

TEST(KinetoDamage, ElementsThatAreNoObjectsAtTheBordersOfWindows) {
  // A window is half a MiB; the stretch of events moves by a byte or two from one element to the next, so that elements of each kind lie on,
  // before and behind each border.
  const std::vector<std::string> odd = {"1", "null", "\"},{\"", "[1, {\"a\": 2}]", "[]"};
  for (const int step : {1, 7}) {
    std::vector<std::string> events = {launch(0, 1)};
    std::size_t odd_count = 0;
    for (int i = 0; i < 4000; ++i) {
      events.push_back(event({.name = std::string(static_cast<std::size_t>(i * step % 61), 'n'), .ts_us = 10.0 + i}));
      const auto repeat = static_cast<std::size_t>(i % 97 == 0 ? 300 : 1);
      for (std::size_t k = 0; k < repeat; ++k, ++odd_count) events.push_back(odd[(static_cast<std::size_t>(i) + k) % odd.size()]);
    }
    const std::string text = trace(events);
    ASSERT_GT(text.size(), std::size_t{1} << 20);
    for (const std::string& form : {text, one_line(text), pretty_printed(text), gzip(text)}) {
      const ir::Recording recording = read(form);
      EXPECT_EQ(count_ops(recording), 4000U);
      EXPECT_EQ(loss_count(recording, "may be GPU operations"), odd_count);
    }
  }
}

TEST(KinetoDamage, ManyElementsThatAreNoObjectsCostLittle) {
  std::string text = "[";
  for (int i = 0; i < 2000000; ++i) text += "1,";
  text += launch(0, 1) + "," + event({.ts_us = 10}) + "]";
  const ir::Recording recording = read(text);
  EXPECT_EQ(ops_histogram(recording), (std::map<std::size_t, int>{{1, 1}}));
  EXPECT_EQ(loss_count(recording, "may be GPU operations"), 2000000U);
}

TEST(KinetoDamage, RowsStandInOnlyWhereNoOperationHasTheArgument) {
  const auto op = [](double ts, int tid, int pid, std::string_view args) {
    return fmt::format(R"({{"ph": "X", "cat": "kernel", "name": "k", "pid": {}, "tid": {}, "ts": {}, "dur": 1, "args": {{"correlation": 1{}}}}})", pid, tid, ts, args);
  };
  // None has a stream: the rows are the streams, as in very old traces, and that is said.
  const ir::Recording old = read(trace({launch(0, 1), op(10, 7, 0, ""), op(12, 9, 1, "")}));
  EXPECT_EQ(stream_histogram(old), (std::map<std::size_t, int>{{2, 1}}));
  EXPECT_EQ(loss_count(old, "rows of the trace were taken for streams"), 2U);
  EXPECT_FALSE(has_data_loss(old));
  EXPECT_TRUE(old.graphs[ir::GraphId(0)]->facts.contains(Fact::replay_streams));
  EXPECT_EQ(old.graphs[ir::GraphId(0)]->replay_ops[1].device, 1);
  // One has: another without has lost it, wherever it stands and whatever its row says.
  for (const bool first : {true, false}) {
    std::vector<std::string> events = {launch(0, 1), op(10, 7, 0, ", \"device\": 0, \"stream\": 7")};
    for (int i = 0; i < 5; ++i) events.insert(first ? events.begin() : events.end(), op(20 + i, 100 + i, 0, ", \"device\": 0"));
    const ir::Recording recording = read(trace(events));
    EXPECT_EQ(loss_count(recording, "without a stream"), 5U);
    EXPECT_FALSE(recording.graphs[ir::GraphId(0)]->facts.contains(Fact::replay_streams));
    EXPECT_TRUE(recording.graphs[ir::GraphId(0)]->facts.contains(Fact::replay_times));
    for (const ir::ReplayOp& o : recording.graphs[ir::GraphId(0)]->replay_ops) EXPECT_LE(o.stream, 7U) << "no stream is made up";
    // The same for devices.
    events = {launch(0, 1), op(10, 7, 0, ", \"device\": 0, \"stream\": 7")};
    for (int i = 0; i < 5; ++i) events.insert(first ? events.begin() : events.end(), op(20 + i, 7, 1 + i, ", \"stream\": 7"));
    const ir::Recording devices = read(trace(events));
    EXPECT_EQ(loss_count(devices, "without a device"), 5U);
    EXPECT_FALSE(devices.graphs[ir::GraphId(0)]->facts.contains(Fact::replay_streams));
    for (const ir::ReplayOp& o : devices.graphs[ir::GraphId(0)]->replay_ops) EXPECT_LE(o.device, 0);
  }
  // A stream that is given but unusable is one that is given.
  const ir::Recording unusable = read(trace({launch(0, 1), op(10, 7, 0, ", \"device\": 0, \"stream\": null"), op(12, 9, 0, ", \"device\": 0")}));
  EXPECT_EQ(loss_count(unusable, "without a stream"), 2U);
}

TEST(KinetoDamage, AnOperationThatLostItsCorrelation) {
  std::string lost = event({.name = "b", .ts_us = 12});
  lost.replace(lost.find("\"correlation\""), 13, "\"korrelation\"");
  const ir::Recording recording = read(trace({launch(0, 1), event({.ts_us = 10}), lost}));
  EXPECT_EQ(loss_count(recording, "without a correlation id"), 1U);
  EXPECT_FALSE(recording.graphs[ir::GraphId(0)]->facts.contains(Fact::replay_streams));
  EXPECT_FALSE(recording.graphs[ir::GraphId(0)]->replays[ir::ReplayId(0)].complete);
  // Where none has one, nothing was lost.
  EXPECT_FALSE(has_data_loss(read(trace({lost}))));
}

TEST(Kineto, EscapedKeysAndValuesAreWhatTheyMean) {
  const std::string plain = event({.name = "name", .ts_us = 10, .stream = 31, .extra_args = ", \"graph id\": 3, \"graph node id\": 5, \"priority\": -2"});
  const ir::Recording wanted = read(trace({launch(0, 1), plain}));
  const auto escaped = [](std::string text, std::string_view word) {
    std::string by;
    for (const char c : word) by += fmt::format("\\u{:04x}", static_cast<int>(c));
    const std::size_t at = text.find(fmt::format("\"{}\"", word));
    EXPECT_NE(at, std::string::npos) << word;
    return at == std::string::npos ? text : text.replace(at + 1, word.size(), by);
  };
  for (const std::string_view word : {"ph", "X", "cat", "kernel", "name", "pid", "tid", "ts", "dur", "args", "device", "stream", "correlation", "registers per thread",
                                      "shared memory", "grid", "block", "graph id", "graph node id", "priority"}) {
    const ir::Recording recording = read(trace({launch(0, 1), escaped(plain, word)}));
    EXPECT_TRUE(recording.losses.empty()) << word;
    ASSERT_EQ(recording.graphs.size(), 1U) << word;
    const ir::Graph& graph = *recording.graphs[ir::GraphId(0)];
    const ir::Graph& same = *wanted.graphs[ir::GraphId(0)];
    EXPECT_EQ(graph.facts, same.facts) << word;
    ASSERT_EQ(graph.replay_ops.size(), 1U) << word;
    EXPECT_EQ(graph.replay_ops[0].stream, 31U) << word;
    EXPECT_EQ(graph.replay_ops[0].start_ns, 10000) << word;
    EXPECT_EQ(graph.replay_ops[0].dur_ns(), 1000) << word;
    EXPECT_EQ(recording.text(graph.name[ir::NodeId(0)]), "name") << word;
    EXPECT_EQ(graph.kernel(ir::NodeId(0))->grid, (ir::Dim3{4, 2, 1})) << word;
    EXPECT_EQ(graph.kernel(ir::NodeId(0))->block.x, 128U) << word;
    EXPECT_EQ(graph.kernel(ir::NodeId(0))->priority, -2) << word;
    EXPECT_EQ(graph.info.source_id, 3U) << word;
  }
  // Part of a word is enough, and numbers may be quoted and escaped.
  std::string part = plain;
  part.replace(part.find("\"stream\": 31"), 12, "\"str\\u0065am\": \"\\u0033\\u0031\"");
  EXPECT_EQ(read(trace({launch(0, 1), part})).graphs[ir::GraphId(0)]->replay_ops[0].stream, 31U);
  for (const std::string_view word : {"cat", "cuda_runtime", "name", "cudaGraphLaunch", "args", "correlation", "ts", "dur", "pid", "ph", "X"}) {
    const ir::Recording recording = read(trace({escaped(launch(0, 1), word), event({.ts_us = 10}), event({.name = "b", .ts_us = 12})}));
    EXPECT_EQ(ops_histogram(recording), (std::map<std::size_t, int>{{2, 1}})) << word;
    EXPECT_TRUE(recording.losses.empty()) << word;
    EXPECT_EQ(recording.graphs[ir::GraphId(0)]->replays[ir::ReplayId(0)].host_end_ns, 5000) << word;
  }
  // Given twice, once escaped.
  std::string twice = plain;
  twice.insert(twice.find("\"stream\""), "\"\\u0073tream\": 8, ");
  EXPECT_EQ(loss_count(read(trace({launch(0, 1), twice})), "give a property twice"), 1U);
  // Properties of the file.
  std::string list = trace({launch(0, 1), event({.ts_us = 10})});
  list.replace(list.find("traceEvents"), 11, "trace\\u0045vents");
  EXPECT_EQ(ops_histogram(read(list)), (std::map<std::size_t, int>{{1, 1}}));
  // An escape that is none, and half of a pair.
  const ir::Recording bad = read(trace({launch(0, 1), event({.name = "a\\qb", .ts_us = 10}), event({.name = "c\\ud83d", .ts_us = 12})}));
  EXPECT_EQ(loss_count(bad, "escapes that stand for no character"), 2U);
  EXPECT_EQ(bad.text(bad.graphs[ir::GraphId(0)]->name[ir::NodeId(0)]), "a?b");
}

TEST(KinetoDamage, ANameBeyondTheLimitIsALoss) {
  ReadOptions options;
  options.limits.max_string_bytes = 1000;
  const auto read_limited = [&](const std::string& text) {
    auto recording = read_with("kineto", text, options);
    EXPECT_TRUE(recording);
    return *std::move(recording);
  };
  const ir::Recording fits = read_limited(trace({launch(0, 1), event({.name = std::string(1000, 'x'), .ts_us = 10})}));
  EXPECT_TRUE(fits.losses.empty());
  const ir::Recording recording = read_limited(trace({launch(0, 1), event({.ts_us = 10}), event({.name = std::string(1001, 'x'), .ts_us = 12})}));
  EXPECT_EQ(loss_count(recording, "name that is too long"), 1U);
  EXPECT_EQ(count_ops(recording), 1U);
  EXPECT_FALSE(recording.graphs[ir::GraphId(0)]->facts.contains(Fact::replay_streams));
  EXPECT_FALSE(recording.graphs[ir::GraphId(0)]->replays[ir::ReplayId(0)].complete);
}

TEST(KinetoDamage, AnEventBeyondTheLimitIsOneErrorAndOneWithinItIsRead) {
  std::string text = trace({launch(0, 1), "{\"ph\": \"X\", \"cat\": \"cpu_op\", \"name\": \"" + std::string(std::size_t{60} << 20, 'x') + "\"}", event({.ts_us = 10})});
  EXPECT_EQ(ops_histogram(read(text)), (std::map<std::size_t, int>{{1, 1}}));
  EXPECT_TRUE(read(text).losses.empty());
  const std::size_t big = text.find("{\"ph\": \"X\", \"cat\": \"cpu_op\"");
  text.insert(text.find("xxx"), std::string(std::size_t{5} << 20, 'x'));
  auto recording = read_with("kineto", text);
  ASSERT_FALSE(recording);
  EXPECT_EQ(recording.error().code, ErrorCode::limit);
  EXPECT_EQ(recording.error().offset_bytes, big);
  EXPECT_NE(recording.error().message.find("67108864 bytes"), std::string::npos) << recording.error().message;
}

TEST(KinetoDamage, ADamagedArrowSpoilsTheEdgesWhereItMayBeADependency) {
  const auto arrow = [](bool start, std::string_view id, std::string_view tid, double ts) {
    return fmt::format(R"({{"ph": "{}", "id": {}, "pid": 0, "tid": {}, "ts": {:.3f}, "cat": "ac2g", "name": "ac2g"}})", start ? "s" : "f", id, tid, ts);
  };
  const std::vector<std::string> nodes = {launch(0, 1), event({.name = "a", .ts_us = 10}), event({.name = "b", .ts_us = 12})};
  const auto with = [&](const std::vector<std::string>& arrows) {
    std::vector<std::string> events = nodes;
    append(events, arrows);
    return read(trace(events));
  };
  const std::string big = "1099511627777", other = "1099511627778";
  const std::vector<std::string> edge = {arrow(true, big, "7", 11), arrow(false, big, "7", 12)};
  EXPECT_TRUE(with(edge).graphs[ir::GraphId(0)]->facts.contains(Fact::edges));
  const auto plus = [&](const std::string& more) { return with({edge[0], edge[1], more}); };
  std::string broken = arrow(true, other, "7", 11);
  broken.replace(broken.find("\"ts\": 11.000"), 12, "\"ts\": }{!!!!");
  std::string no_phase = arrow(true, other, "7", 11);
  no_phase.replace(no_phase.find("\"s\""), 3, "\"q\"");
  for (const std::string& more : {arrow(true, other, "\"row\"", 11), arrow(true, other, "null", 11), broken, no_phase}) {
    const ir::Recording recording = plus(more);
    EXPECT_EQ(loss_count(recording, "damaged dependency arrows"), 1U) << more;
    EXPECT_FALSE(recording.graphs[ir::GraphId(0)]->facts.contains(Fact::edges)) << more;
    EXPECT_TRUE(recording.graphs[ir::GraphId(0)]->facts.contains(Fact::replay_streams)) << more;
  }
  for (const std::string_view id : {"null", "\"x\"", "1.5", "-3", "18446744073709551616"}) {
    const ir::Recording recording = plus(arrow(true, id, "7", 11));
    EXPECT_EQ(loss_count(recording, "may be dependencies"), 1U) << id;
    EXPECT_FALSE(recording.graphs[ir::GraphId(0)]->facts.contains(Fact::edges)) << id;
    // Without dependency arrows it can only be one between a launch call and its operations, which correlation ids tie together.
    const ir::Recording launches = with({arrow(true, id, "7", 11)});
    EXPECT_FALSE(has_data_loss(launches)) << id;
    EXPECT_EQ(loss_count(launches, "nothing is missing"), 1U) << id;
    EXPECT_EQ(launches.graphs[ir::GraphId(0)]->facts, with({}).graphs[ir::GraphId(0)]->facts) << id;
  }
  // One that is known to be a launch's spoils nothing anywhere.
  broken.replace(broken.find(other), other.size(), "17");
  EXPECT_FALSE(has_data_loss(plus(broken)));
  EXPECT_TRUE(plus(broken).graphs[ir::GraphId(0)]->facts.contains(Fact::edges));
  EXPECT_TRUE(plus(arrow(true, "17", "null", 11)).losses.empty());
}

TEST(KinetoDamage, ALostLaunchCallIsNoHostEvent) {
  std::vector<std::string> events = replay_of(3, 0, 1);
  append(events, replay_of(3, 1000, 2));
  const auto with = [&](std::string_view from, std::string_view to) {
    std::vector<std::string> damaged = events;
    const std::size_t at = damaged[4].find(from);
    EXPECT_NE(at, std::string::npos) << from;
    damaged[4].replace(at, from.size(), to);
    return read(trace(damaged));
  };
  for (const auto& [from, to] : std::vector<std::pair<std::string_view, std::string_view>>{{"\"ts\": 1000.000", "\"ts\": null"},
                                                                                           {"\"ts\": 1000.000", "\"ts\": }{!"},
                                                                                           {"\"cudaGraphLaunch\"", "7"},
                                                                                           {"\"name\"", "\"nome\""},
                                                                                           {"\"X\"", "\"Y\""},
                                                                                           {"\"correlation\"", "\"kkrrelation\""},
                                                                                           {"{\"cbid\": 311, \"correlation\": 2}", "5"}}) {
    const ir::Recording recording = with(from, to);
    EXPECT_EQ(loss_count(recording, "may be graph launch calls"), 1U) << to;
    ASSERT_FALSE(recording.graphs.empty());
    EXPECT_FALSE(recording.graphs[ir::GraphId(0)]->facts.contains(Fact::replay_streams)) << to;
  }
  EXPECT_EQ(loss_count(with("\"dur\": 5.000", "\"dur\": null"), "without a usable duration"), 1U);
  EXPECT_FALSE(has_data_loss(with("\"dur\": 5.000", "\"dur\": null")));
  EXPECT_EQ(loss_count(with("\"pid\": 100", "\"pid\": {}"), "without a usable process id"), 1U);
}

TEST(KinetoDamage, NoArgumentOfTheWrongTypeIsSilent) {
  const std::string good = event({.name = "b", .ts_us = 12, .extra_args = ", \"graph id\": 3, \"graph node id\": 5, \"priority\": -2, \"bytes\": 16"});
  const std::vector<std::string> others = {launch(0, 1), event({.name = "a", .ts_us = 10, .extra_args = ", \"graph id\": 3, \"graph node id\": 4"})};
  EXPECT_TRUE(read(trace({others[0], others[1], good})).losses.empty());
  const std::vector<std::string_view> wrong = {"null", "true", "\"text\"", "\"\"", "1.5", "-7", "18446744073709551616", "1e99", "{}", "[]", "[null, 1, 1]", "{\"x\": 1}"};
  struct Field {
    std::string_view text, key;
    std::set<std::string_view> fine;  // values that are right
  };
  const std::vector<Field> fields = {
      {"\"ph\": \"X\"", "ph", {}},
      {"\"cat\": \"kernel\"", "cat", {}},
      {"\"name\": \"b\"", "name", {"\"text\""}},
      {"\"ts\": 12.000", "ts", {"1.5", "-7"}},
      {"\"dur\": 1.000", "dur", {"1.5"}},
      {"\"args\": {", "args", {"{}"}},
      {"\"device\": 0", "device", {}},
      {"\"stream\": 7", "stream", {}},
      {"\"correlation\": 1", "correlation", {}},
      {"\"registers per thread\": 32", "registers per thread", {}},
      {"\"shared memory\": 16", "shared memory", {}},
      {"\"grid\": [4, 2, 1]", "grid", {}},
      {"\"block\": [128, 1, 1]", "block", {}},
      {"\"graph id\": 3", "graph id", {}},
      {"\"graph node id\": 5", "graph node id", {}},
      {"\"priority\": -2", "priority", {"-7"}},
      {"\"bytes\": 16", "bytes", {}},
  };
  for (const Field& field : fields)
    for (const std::string_view value : wrong) {
      std::string bad = good;
      const std::size_t at = bad.find(field.text);
      ASSERT_NE(at, std::string::npos) << field.text;
      if (field.key == "args") {
        bad = bad.substr(0, at) + "\"args\": " + std::string(value) + "}";
      } else {
        bad.replace(at, field.text.size(), fmt::format("\"{}\": {}", field.key, value));
      }
      const ir::Recording recording = read(trace({others[0], others[1], bad}));
      SCOPED_TRACE(bad);
      // Without arguments the operation lacks what the other one has.
      EXPECT_EQ(has_data_loss(recording), !field.fine.contains(value) || field.key == "args");
      for (const ir::Loss& loss : recording.losses) {
        if (loss.severity == ir::Loss::Severity::info) continue;
        EXPECT_NE(loss.offset_bytes, ~std::uint64_t{0});
        EXPECT_NE(loss.facts, ir::FactSet{}) << "spoils nothing";
      }
      for (const auto& graph : recording.graphs) {
        for (const ir::Loss& loss : recording.losses)
          EXPECT_TRUE(loss.severity == ir::Loss::Severity::info || graph->facts.intersect(loss.facts) == ir::FactSet{});
      }
    }
}

TEST(KinetoDamage, AnOperationOfACategoryThatIsNotKnownIsALoss) {
  const ir::Recording recording = read(trace({launch(0, 1), event({.ts_us = 10}), event({.name = "b", .ts_us = 12, .cat = "kernel2"})}));
  EXPECT_EQ(loss_count(recording, "category that this version does not know"), 1U);
  EXPECT_FALSE(recording.graphs[ir::GraphId(0)]->facts.contains(Fact::replay_streams));
  // Without what operations have it is something else: no loss.
  EXPECT_TRUE(read(trace({launch(0, 1), event({.ts_us = 10}), R"({"ph": "X", "cat": "my_range", "name": "r", "pid": 1, "tid": 1, "ts": 1, "dur": 2, "args": {}})"})).losses.empty());
  // An event without a category could be anything; moments and metadata have none.
  EXPECT_EQ(loss_count(read(trace({event({.ts_us = 10}), R"({"ph": "X", "name": "r", "pid": 1, "tid": 1, "ts": 1, "dur": 2})"})), "may be GPU operations"), 1U);
  EXPECT_TRUE(read(trace({event({.ts_us = 10}), R"({"ph": "i", "name": "r", "pid": 1, "tid": 1, "ts": 1, "s": "g"})", R"({"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "x"}})"}))
                  .losses.empty());
}

TEST(KinetoDamage, NoSingleByteMakesOperationsVanishSilently) {
  std::vector<std::string> events = replay_of(2, 0, 1);
  events.insert(events.begin() + 1, R"({"ph": "X", "cat": "cpu_op", "name": "op", "pid": 1, "tid": 1, "ts": 1, "dur": 2, "args": {"External id": 3, "dims": [[1], [2]], "s": "a"}})");
  events.push_back(R"({"ph": "f", "id": 1, "pid": 0, "tid": 7, "ts": 10, "cat": "ac2g", "name": "ac2g", "bp": "e"})");
  events.push_back(R"({"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 0, "args": {"name": "x"}})");
  events.push_back(event({.name = "loose", .ts_us = 50, .correlation = 9}));
  // All of them on one line; brackets and quotes on several as well.
  for (const bool lines : {false, true}) {
    const std::string text = lines ? trace(events) : one_line(trace(events));
    ASSERT_EQ(count_ops(read(text)), 3U);
    for (std::size_t at = 0; at < text.size(); ++at)
      for (const char with : std::string(lines ? "\"}" : "\"{}[],:x")) {
        std::string flipped = text;
        flipped[at] = with == 'x' ? static_cast<char>(text[at] ^ 1) : with;
        auto recording = read_with("kineto", flipped);
        if (!recording) {
          EXPECT_NE(recording.error().offset_bytes, base::Error::kNoOffset) << flipped;
          continue;
        }
        EXPECT_TRUE(count_ops(*recording) == 3U || has_data_loss(*recording)) << at << " " << flipped;
        EXPECT_LE(count_ops(*recording), 3U) << at << " " << flipped;
      }
  }
}

TEST(KinetoDamage, TwoStrayQuotesHideNoEventsBetweenThem) {
  // Between two stray quotes, text and strings change places, and brackets still balance.
  const std::string host_name = R"({"ph": "X", "cat": "cpu_op", "name": "a"b", "pid": 1, "tid": 1, "ts": 1, "dur": 2, "args": {"External id": 3}})";
  const std::string host_arg = R"({"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 2, "args": {"External id": 3, "stack": "a"b"}})";
  const std::string call = R"({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 1, "dur": 2, "args": {"cbid": 3, "x": "a"b", "correlation": 8}})";
  for (const std::string& host : {host_name, host_arg, call}) {
    for (const int between : {1, 5}) {
      std::vector<std::string> events = {launch(0, 1), event({.ts_us = 10}), host};
      for (int i = 0; i < between; ++i) events.push_back(event({.name = fmt::format("k{}", i), .ts_us = 12.0 + i}));
      events.push_back(host);
      events.push_back(event({.name = "after", .ts_us = 50}));
      for (const std::string& text : {trace(events), one_line(trace(events))}) {
        const ir::Recording recording = read(text);
        EXPECT_TRUE(count_ops(recording) == 2U + static_cast<std::size_t>(between) || has_data_loss(recording)) << text;
      }
    }
  }
}

TEST(KinetoDamage, ALostEventDoesNotTakeTheNextOneWithIt) {
  // The bracket that ends the host event is gone; the kernel behind it is not.
  std::vector<std::string> events = {launch(0, 1), R"({"ph": "X", "cat": "cpu_op", "name": "op", "pid": 1, "tid": 1, "ts": 1, "dur": 2)",
                                     event({.ts_us = 10}), event({.name = "b", .ts_us = 12})};
  const ir::Recording recording = read(trace(events));
  EXPECT_EQ(count_ops(recording), 2U);
  EXPECT_EQ(loss_count(recording, "damaged host events"), 1U);
  // Where the next one cannot be told apart, the loss is that of an operation.
  for (std::string& text : events)
    if (text.starts_with("{\"ph\": \"X\", \"cat\"")) text = text.substr(0, 1) + "\"x\": 1, " + text.substr(1);
  const ir::Recording both = read(trace(events));
  EXPECT_TRUE(has_data_loss(both));
}

TEST(KinetoDamage, AGzipCutAtAnyByteIsAnErrorOrACountedLoss) {
  std::vector<std::string> events;
  for (int i = 0; i < 20; ++i) append(events, replay_of(2, 1000 * i, i + 1));
  const std::string text = trace(events);
  const std::string packed = gzip(text);
  for (std::size_t cut = 0; cut < packed.size(); ++cut) {
    auto recording = read_with("kineto", std::string_view(packed).substr(0, cut));
    if (!recording) {
      EXPECT_FALSE(recording.error().message.empty());
      continue;
    }
    EXPECT_TRUE(has_data_loss(*recording)) << cut << " of " << packed.size();
  }
  for (std::size_t at = 0; at < packed.size(); ++at) {
    std::string flipped = packed;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    auto recording = read_with("kineto", flipped);
    EXPECT_TRUE(!recording || count_ops(*recording) == 40 || has_data_loss(*recording)) << at;
  }
}

TEST(KinetoDamage, PropertiesOfTheWrongType) {
  const std::string events = trace({launch(0, 1), event({.ts_us = 10})}).substr(1);
  for (const std::string_view property : {"\"deviceProperties\": 5", "\"deviceProperties\": [5]", "\"deviceProperties\": [{\"id\": \"x\"}]", "\"deviceProperties\": [{\"name\": 5}]",
                                          "\"deviceProperties\": [{\"totalGlobalMem\": -5}]", "\"distributedInfo\": 7", "\"distributedInfo\": {\"rank\": \"a\"}",
                                          "\"cuda_driver_version\": \"13\"", "\"cupti_version\": null"}) {
    const ir::Recording recording = read("{" + std::string(property) + "," + events);
    EXPECT_EQ(loss_count(recording, "properties of the trace could not be read"), 1U) << property;
    EXPECT_FALSE(has_data_loss(recording)) << property;
  }
  for (const std::string_view doubts : {"5", "[]", "{\"spoiled\": 5}", "{\"spoiled\": [5]}", "{\"spoiled\": [{\"fact\": \"moon\", \"reason\": \"x\"}]}", "{\"losses\": [{}]}",
                                        "{\"losses\": [{\"count\": 1, \"facts\": 5, \"severity\": \"error\", \"what\": \"x\"}]}", "{\"incomplete_launches\": [null]}", "{\"rocm\": 1}",
                                        "{\"later\": 1}"}) {
    const ir::Recording recording = read("{\"cglint\": " + std::string(doubts) + "," + events);
    EXPECT_EQ(loss_count(recording, "the property \"cglint\""), 1U) << doubts;
    EXPECT_FALSE(recording.graphs[ir::GraphId(0)]->facts.contains(Fact::replay_streams)) << doubts;
  }
  EXPECT_TRUE(read("{\"cglint\": {\"spoiled\": [], \"losses\": [], \"incomplete_launches\": []}," + events).losses.empty());
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
  for (const char* property : {", \"stream\": 4294967295", ", \"stream\": null, \"original_stream\": 7"}) {
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
