#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <algorithm>
#include <random>
#include <set>

#include "unit/import/import_helpers.h"

namespace cglint::import {
namespace {

using namespace cglint::testing;
using base::ErrorCode;
using ir::Fact;
using ir::NodeKind;

constexpr std::int64_t kPid = 0x1234;
constexpr std::int64_t kGlobalPid = kPid << 24;
constexpr std::int64_t kThread = kGlobalPid | 0x77;

// Writes a database with the given statements and returns its path.
std::string make_database(const TemporaryFolder& folder, const std::string& name, const std::vector<std::string>& sql) {
  const std::string path = folder.path() + "/" + name;
  sqlite3* handle = nullptr;
  EXPECT_EQ(sqlite3_open(path.c_str(), &handle), SQLITE_OK);
  for (const std::string& statement : sql) {
    char* message = nullptr;
    EXPECT_EQ(sqlite3_exec(handle, statement.c_str(), nullptr, nullptr, &message), SQLITE_OK) << statement << ": " << message;
    sqlite3_free(message);
  }
  sqlite3_close(handle);
  return path;
}

std::vector<std::string> base_tables(std::string_view schema = "3.24.0") {
  return {"CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)",
          "CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT)",
          fmt::format("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', '{}')", schema),
          "INSERT INTO StringIds VALUES (1, 'cudaGraphLaunch_v10000'), (2, 'cudaLaunchKernel_v7000'), (3, '_Z5alphav'), "
          "(4, 'beta(int)'), (5, 'Graph Node Creation'), (6, 'model.layers.3')",
          "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER, "
          "correlationId INTEGER, nameId INTEGER)",
          "CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, smCount INTEGER, computeMajor INTEGER, computeMinor INTEGER)",
          "INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H200', 132, 9, 0)"};
}

constexpr std::string_view kKernelTable =
    "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId "
    "INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER, mangledName INTEGER, gridX INTEGER, gridY INTEGER, "
    "gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER, graphNodeId INTEGER, graphId INTEGER)";

std::string kernel(std::int64_t start, int stream, int correlation, int name, std::int64_t node, std::int64_t pid = kGlobalPid) {
  return fmt::format("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({}, {}, 0, {}, {}, {}, 4, 4, {}, 4, 2, 1, 128, 1, 1, {}, {})", start,
                     start + 100, stream, correlation, pid, name, node == 0 ? "NULL" : std::to_string(node),
                     node == 0 ? "NULL" : std::to_string(node >> 32));
}

std::string launch(std::int64_t start, int correlation, int name = 1, std::int64_t thread = kThread) {
  return fmt::format("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES ({}, {}, 0, {}, {}, {})", start, start + 50, thread, correlation, name);
}

constexpr std::int64_t kGraph = std::int64_t{9} << 32;

// Two launches of a graph of three kernels on two streams, and one eager kernel.
std::vector<std::string> node_mode() {
  std::vector<std::string> sql = base_tables();
  sql.emplace_back(kKernelTable);
  for (int i = 0; i < 2; ++i) {
    const std::int64_t at = 10000 + 5000 * i;
    sql.push_back(launch(at, 10 + i));
    sql.push_back(kernel(at + 100, 7, 10 + i, 3, kGraph + 1));
    sql.push_back(kernel(at + 300, 7, 10 + i, 4, kGraph + 2));
    sql.push_back(kernel(at + 310, 20, 10 + i, 3, kGraph + 3));
  }
  sql.push_back(launch(30000, 50, 2));
  sql.push_back(kernel(30100, 7, 50, 3, 0));
  return sql;
}

ir::Recording read(const std::string& path) {
  auto recording = read_file(path, {});
  EXPECT_TRUE(recording) << recording.error().to_string();
  return *std::move(recording);
}

TEST(Nsys, NodeMode) {
  TemporaryFolder folder;
  const ir::Recording recording = read(make_database(folder, "a.sqlite", node_mode()));
  EXPECT_EQ(recording.format, "nsys-sqlite");
  ASSERT_EQ(recording.graphs.size(), 1U);
  const ir::Graph& graph = *recording.graphs[ir::GraphId(0)];
  EXPECT_EQ(graph.node_count(), 3U);
  EXPECT_EQ(graph.info.source_id, 9U);
  ASSERT_EQ(graph.replays.size(), 2U);
  EXPECT_EQ(graph.replays[ir::ReplayId(0)].correlation, 10U);
  EXPECT_EQ(graph.replays[ir::ReplayId(0)].host_start_ns, 10000);
  for (const ir::Replay& replay : graph.replays) {
    std::set<std::uint64_t> streams;
    for (const ir::ReplayOp& op : graph.ops(replay)) streams.insert(op.stream);
    EXPECT_EQ(streams, (std::set<std::uint64_t>{7, 20}));
  }
  EXPECT_EQ(graph.facts, (ir::FactSet{Fact::nodes, Fact::kernel_names, Fact::launch_config, Fact::node_identity,
                                      Fact::replay_streams, Fact::replay_times}));
  EXPECT_EQ(recording.text(graph.name[ir::NodeId(0)]), "_Z5alphav") << "the mangled name where there is one";
  EXPECT_EQ(graph.kernel(ir::NodeId(0))->grid, (ir::Dim3{4, 2, 1}));
  EXPECT_EQ(recording.loose_ops.size(), 1U);
  ASSERT_EQ(recording.processes.size(), 1U);
  EXPECT_EQ(recording.processes[ir::ProcessId(0)].pid, kPid);
  ASSERT_EQ(recording.processes[ir::ProcessId(0)].gpus.size(), 1U);
  EXPECT_EQ(recording.processes[ir::ProcessId(0)].gpus[0].sm_count, 132U);
}

TEST(Nsys, GraphModeSaysHowToRecapture) {
  TemporaryFolder folder;
  std::vector<std::string> sql = base_tables();
  sql.emplace_back("CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, "
                   "streamId INTEGER, correlationId INTEGER, globalPid INTEGER, graphId INTEGER, graphExecId INTEGER)");
  for (int i = 0; i < 3; ++i) {
    sql.push_back(launch(1000 * i, 5 + i));
    sql.push_back(fmt::format("INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES ({}, {}, 0, 1, 7, {}, {}, 4, 6)", 1000 * i + 100,
                              1000 * i + 900, 5 + i, kGlobalPid));
  }
  const ir::Recording recording = read(make_database(folder, "a.sqlite", sql));
  ASSERT_EQ(recording.graphs.size(), 1U);
  const ir::Graph& graph = *recording.graphs[ir::GraphId(0)];
  EXPECT_TRUE(graph.facts.empty()) << "neither nodes nor streams: nothing may be called clean";
  EXPECT_EQ(graph.node_count(), 0U);
  EXPECT_EQ(graph.replays.size(), 3U);
  EXPECT_EQ(graph.replays[ir::ReplayId(0)].host_end_ns, 50);
  ASSERT_FALSE(graph.spoiled.empty());
  EXPECT_EQ(graph.spoiled[0].fact, Fact::nodes);
  EXPECT_NE(recording.text(graph.spoiled[0].reason).find("--cuda-graph-trace=node"), std::string_view::npos);
  EXPECT_EQ(loss_count(recording, "--cuda-graph-trace=node"), 1U);
  EXPECT_EQ(loss_count(recording, "without GPU operations"), 0U) << "the launches have their rows";
}

TEST(Nsys, CaptureTimeRangesNameTheNodes) {
  for (const bool old_schema : {false, true}) {
    SCOPED_TRACE(old_schema);
    TemporaryFolder folder;
    std::vector<std::string> sql = node_mode();
    const std::string table = old_schema ? "CUDA_GRAPH_EVENTS" : "CUDA_GRAPH_NODE_EVENTS";
    sql.push_back("CREATE TABLE " + table +
                  " (start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER, nameId INTEGER, graphNodeId INTEGER, "
                  "originalGraphNodeId INTEGER)");
    const auto creation = [&](std::int64_t time, std::int64_t node, const std::string& original) {
      sql.push_back(fmt::format("INSERT INTO {} VALUES ({}, {}, 0, {}, 5, {}, {})", table, time, time + 1, kThread, node, original));
    };
    // Captured as graph 2, cloned as 5, cloned again as 9 (the executable).
    const std::int64_t first = std::int64_t{2} << 32, second = std::int64_t{5} << 32;
    creation(100, first + 1, "NULL");
    creation(200, first + 2, "NULL");
    creation(900, second + 1, std::to_string(first + 1));
    creation(901, second + 2, std::to_string(first + 2));
    creation(950, kGraph + 1, std::to_string(second + 1));
    creation(951, kGraph + 2, std::to_string(second + 2));
    creation(952, kGraph + 3, std::to_string(kGraph + 3));  // its own original: a circle must not hang
    sql.emplace_back("CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, textId INTEGER, globalTid INTEGER)");
    sql.push_back(fmt::format("INSERT INTO NVTX_EVENTS VALUES (50, 300, 59, 'capture', NULL, {0}), (90, 150, 59, NULL, 6, {0}), "
                              "(190, 250, 60, 'layer 4', NULL, {0}), (100, 100, 34, 'mark', NULL, {0}), (0, 999, 59, 'other thread', NULL, {1})",
                              kThread, kThread + 1));
    const ir::Recording recording = read(make_database(folder, "a.sqlite", sql));
    const ir::Graph& graph = *recording.graphs[ir::GraphId(0)];
    EXPECT_TRUE(graph.facts.contains(Fact::nvtx));
    const auto names = [&](std::uint32_t node) {
      std::vector<std::string> all;
      for (const ir::StringId id : recording.nvtx(graph.nvtx[ir::NodeId(node)])) all.emplace_back(recording.text(id));
      return all;
    };
    EXPECT_EQ(names(0), (std::vector<std::string>{"capture", "model.layers.3"}));
    EXPECT_EQ(names(1), (std::vector<std::string>{"capture", "layer 4"}));
    EXPECT_TRUE(names(2).empty());
  }
}

TEST(Nsys, ProcessesKeepTheirCorrelationsApart) {
  TemporaryFolder folder;
  std::vector<std::string> sql = base_tables();
  sql.emplace_back(kKernelTable);
  for (const std::int64_t pid : {std::int64_t{1}, std::int64_t{2}}) {
    sql.push_back(launch(100, 10, 1, (pid << 24) | 5));
    sql.push_back(kernel(200, 7, 10, 3, kGraph + 1, pid << 24));
    sql.push_back(kernel(400, 7, 10, 3, kGraph + 2, pid << 24));
  }
  const ir::Recording recording = read(make_database(folder, "a.sqlite", sql));
  ASSERT_EQ(recording.graphs.size(), 2U);
  EXPECT_EQ(recording.processes.size(), 2U);
  EXPECT_NE(recording.graphs[ir::GraphId(0)]->info.process, recording.graphs[ir::GraphId(1)]->info.process);
  EXPECT_EQ(recording.graphs[ir::GraphId(0)]->replays[ir::ReplayId(0)].ops.count, 2U);
}

// Whatever the order of the rows: launches of three graphs in turn, on two devices, some of them at the same time.
TEST(Nsys, RowsInAnyOrderGiveTheSameReplays) {
  TemporaryFolder folder;
  std::vector<std::string> rows;
  for (int i = 0; i < 40; ++i) {
    const std::int64_t at = 10000 + 1000 * (i / 2), graph = (9 + i % 3) * (std::int64_t{1} << 32);
    for (int n = 0; n < 4; ++n) rows.push_back(kernel(at + 100 * n + i % 2, 7 + n % 2, 10 + i, 3 + n % 2, graph + n + 1));
    if (i % 5 == 0) rows.push_back(kernel(at + 50, 3, 500 + i, 3, 0));
  }
  const auto read_in_order = [&](const std::string& name) {
    std::vector<std::string> sql = base_tables();
    sql.emplace_back(kKernelTable);
    for (int i = 0; i < 40; ++i) sql.push_back(launch(9900 + 1000 * (i / 2) + i % 2, 10 + i));
    sql.insert(sql.end(), rows.begin(), rows.end());
    return read(make_database(folder, name, sql));
  };
  const auto text_of = [](const ir::Recording& recording) {
    std::string out;
    for (const auto& graph : recording.graphs) {
      out += fmt::format("graph {} of {} nodes\n", graph->info.source_id, graph->node_count());
      for (const ir::Replay& replay : graph->replays) {
        out += fmt::format(" {} {} {}:", replay.correlation, replay.host_start_ns, replay.complete);
        for (const ir::ReplayOp& op : graph->ops(replay)) out += fmt::format(" {}+{} {} on {}", op.start_ns, op.dur_ns(), graph->source_id[op.node] & 0xff, op.stream);
        out += "\n";
      }
    }
    for (const ir::LooseOp& op : recording.loose_ops) out += fmt::format("loose {} {}\n", op.start_ns, op.correlation);
    return out;
  };
  const std::string expected = text_of(read_in_order("sorted.sqlite"));
  EXPECT_EQ(std::count(expected.begin(), expected.end(), '\n'), 3 + 40 + 8) << expected;
  std::mt19937 random(5);
  std::reverse(rows.begin(), rows.end());
  EXPECT_EQ(text_of(read_in_order("reversed.sqlite")), expected);
  std::stable_sort(rows.begin(), rows.end(), [](const std::string& a, const std::string& b) { return a < b; });  // by time: launches side by side
  EXPECT_EQ(text_of(read_in_order("by_time.sqlite")), expected);
  for (int i = 0; i < 3; ++i) {
    std::shuffle(rows.begin(), rows.end(), random);
    EXPECT_EQ(text_of(read_in_order(fmt::format("shuffled{}.sqlite", i))), expected);
  }
}

TEST(Nsys, MissingTablesAndColumnsAreFine) {
  TemporaryFolder folder;
  // The smallest known hand-made form: six columns of kernels, no graph columns.
  const ir::Recording recording = read(make_database(
      folder, "a.sqlite",
      {"CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)", "INSERT INTO StringIds VALUES (1, 'k')",
       "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, \"end\" INTEGER, deviceId INTEGER, streamId INTEGER, correlationId "
       "INTEGER, shortName INTEGER)",
       "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 2, 0, 7, 3, 1), (3, 4, 0, 7, 4, 1)"}));
  EXPECT_TRUE(recording.graphs.empty());
  ASSERT_EQ(recording.loose_ops.size(), 2U);
  EXPECT_EQ(recording.text(recording.loose_ops[0].name), "k");
  const ir::Recording empty = read(make_database(folder, "b.sqlite", base_tables()));
  EXPECT_FALSE(empty.has_timeline);
}

TEST(Nsys, ANewerSchemaIsNoted) {
  TemporaryFolder folder;
  std::vector<std::string> sql = base_tables("4.1.0");
  EXPECT_EQ(loss_count(read(make_database(folder, "a.sqlite", sql)), "newer than any"), 1U);
}

TEST(NsysDamage, WrongTypesAndImpossibleTimesAreCounted) {
  TemporaryFolder folder;
  std::vector<std::string> sql = node_mode();
  sql.emplace_back("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (NULL, 5, 0, 7, 10, 0, 4, 4, 3, 1, 1, 1, 1, 1, 1, NULL, NULL)");
  sql.emplace_back("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (500, 5, 0, 7, 10, 0, 4, 4, 3, 1, 1, 1, 1, 1, 1, NULL, NULL)");
  sql.emplace_back("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ('x', 'y', 'z', x'00ff', -4, 'q', -1, 'n', 99, -7, 9e99, 1, 1, 1, 1, 'a', 'b')");
  const ir::Recording recording = read(make_database(folder, "a.sqlite", sql));
  EXPECT_EQ(loss_count(recording, "without usable times"), 3U);
  for (const auto& graph : recording.graphs)
    for (const ir::Replay& replay : graph->replays) EXPECT_FALSE(replay.complete);
}

TEST(NsysDamage, OperationsWithoutDeviceOrStreamSpoilTheStreams) {
  for (const std::string_view columns : {"-1, 7", "NULL, 7", "0, NULL", "0, -3", "4294967296, 7", "'x', 7", "0, 'x'", "1.5, 7", "0, 7.5",
                                         "0, x'37'", "0, 4294967296", "0, 4611686018427387904", "-9223372036854775808, 7"}) {
    TemporaryFolder folder;
    std::vector<std::string> sql = node_mode();
    sql.push_back(fmt::format("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (10600, 10700, {}, 10, {}, 4, 4, 3, 4, 2, 1, 128, 1, 1, {}, 9)",
                              columns, kGlobalPid, kGraph + 4));
    const ir::Recording recording = read(make_database(folder, "a.sqlite", sql));
    EXPECT_EQ(loss_count(recording, "GPU operations without a"), 1U) << columns;
    ASSERT_EQ(recording.graphs.size(), 1U);
    EXPECT_FALSE(recording.graphs[ir::GraphId(0)]->facts.contains(Fact::replay_streams)) << columns;
    EXPECT_TRUE(recording.graphs[ir::GraphId(0)]->facts.contains(Fact::replay_times)) << columns;
  }
}

TEST(NsysDamage, NamesNumbersAndSizesThatAreNoneAreLosses) {
  const std::string kernels = "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET ";
  const std::string copies = "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, "
                             "globalPid INTEGER, bytes INTEGER, copyKind INTEGER, graphNodeId INTEGER, graphId INTEGER);";
  const auto copy = [&](std::string_view bytes, std::string_view kind) {
    return copies + fmt::format("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (10500, 10600, 0, 7, 10, {}, {}, {}, {}, 9)", kGlobalPid, bytes, kind, kGraph + 4);
  };
  struct Case {
    std::string damage, loss;
    std::uint64_t count;
    ir::FactSet facts;
  };
  const ir::FactSet names = {Fact::kernel_names}, config = {Fact::launch_config, Fact::node_identity}, bytes = {Fact::node_identity, Fact::replay_times},
                    nodes = {Fact::node_identity, Fact::replay_streams, Fact::replay_times}, timeline = {Fact::replay_streams, Fact::replay_times};
  for (const Case& c : {Case{kernels + "mangledName = 99 WHERE start = 10310", "stands for no text", 1, names},
                        {kernels + "mangledName = 'x' WHERE start = 10310", "stands for no text", 1, names},
                        {kernels + "mangledName = 99, demangledName = 98, shortName = NULL WHERE start = 10310", "kernels without a usable name", 1, names},
                        {kernels + "mangledName = NULL, demangledName = NULL, shortName = NULL WHERE start = 10310", "kernels without a usable name", 1, names},
                        {"DELETE FROM StringIds WHERE id = 4", "kernels without a usable name", 2, names},
                        {kernels + "gridX = 'four' WHERE start = 10310", "launch configuration is none", 1, config},
                        {kernels + "gridX = 4.5 WHERE streamId = 20", "launch configuration is none", 2, config},
                        {kernels + "blockY = -1, gridZ = 4294967296 WHERE start = 10310", "launch configuration is none", 1, config},
                        {copy("'many'", "8"), "size is no number", 1, bytes},
                        {copy("-4", "8"), "size is no number", 1, bytes},
                        {copy("64", "'d'"), "size is no number", 1, bytes},
                        {kernels + "graphNodeId = 'x' WHERE start = 10310", "graph or node id is none", 1, nodes},
                        {kernels + "graphId = x'09' WHERE start = 10310", "graph or node id is none", 1, nodes},
                        {"DELETE FROM StringIds WHERE id = 1", "they may be graph launches", 2, timeline},
                        {"UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET nameId = NULL WHERE correlationId = 10", "they may be graph launches", 1, timeline},
                        {"UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET nameId = 77 WHERE correlationId = 10", "they may be graph launches", 1, timeline}}) {
    SCOPED_TRACE(c.damage);
    TemporaryFolder folder;
    std::vector<std::string> sql = node_mode();
    sql.push_back(c.damage);
    const ir::Recording recording = read(make_database(folder, "a.sqlite", sql));
    EXPECT_EQ(loss_count(recording, c.loss), c.count);
    for (const ir::Loss& loss : recording.losses)
      EXPECT_TRUE(recording.text(loss.what).find(c.loss) == std::string_view::npos || loss.severity == ir::Loss::Severity::data_loss);
    ASSERT_GE(recording.graphs.size(), 1U);
    for (int f = 0; f < ir::kFactCount; ++f)
      EXPECT_FALSE(c.facts.contains(static_cast<Fact>(f)) && recording.graphs[ir::GraphId(0)]->facts.contains(static_cast<Fact>(f))) << f;
  }
  TemporaryFolder folder;
  std::vector<std::string> sql = node_mode();
  sql.push_back(copy("64", "8"));
  for (const ir::Loss& loss : read(make_database(folder, "a.sqlite", sql)).losses) EXPECT_EQ(loss.severity, ir::Loss::Severity::info);
}

TEST(NsysDamage, OperationsWithoutACorrelationIdMakeLaunchesIncomplete) {
  const std::string kernels = "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET correlationId = ",
                    calls = "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET correlationId = ";
  const std::string none = "GPU operations without a correlation id, while others have one",
                    bad = "rows whose correlation id is no 32-bit number",
                    call = "graph launch calls without a correlation id";
  for (const auto& [damage, loss, count] : std::vector<std::tuple<std::string, std::string, std::uint64_t>>{
           {kernels + "NULL WHERE start = 10310", none, 1},
           {kernels + "NULL WHERE streamId = 20", none, 2},
           {kernels + "'zz' WHERE streamId = 20", bad, 2},
           {kernels + "10.5 WHERE start = 10310", bad, 1},
           {kernels + "x'3130' WHERE start = 10310", bad, 1},
           {kernels + "4294967306 WHERE streamId = 20", bad, 2},
           {kernels + "-10 WHERE streamId = 20", bad, 2},
           {kernels + "'zz'", bad, 7},
           {calls + "NULL WHERE correlationId = 11", call, 1},
           {calls + "'zz' WHERE correlationId = 11", bad, 1}}) {
    SCOPED_TRACE(damage);
    TemporaryFolder folder;
    std::vector<std::string> sql = node_mode();
    sql.push_back(damage);
    const ir::Recording recording = read(make_database(folder, "a.sqlite", sql));
    EXPECT_EQ(loss_count(recording, loss), count);
    for (const auto& graph : recording.graphs) {
      EXPECT_FALSE(graph->facts.contains(Fact::replay_streams));
      EXPECT_FALSE(graph->facts.contains(Fact::replay_times));
      for (const ir::Replay& replay : graph->replays) EXPECT_FALSE(replay.complete);
    }
  }
  // 0 is CUPTI's word for none, and where no operation has an id none has lost one.
  for (const std::string& damage : {kernels + "0 WHERE correlationId = 50", kernels + "NULL"}) {
    SCOPED_TRACE(damage);
    TemporaryFolder folder;
    std::vector<std::string> sql = node_mode();
    sql.push_back(damage);
    EXPECT_EQ(loss_count(read(make_database(folder, "a.sqlite", sql)), "correlation id"), 0U);
  }
}

TEST(NsysDamage, FilesThatAreCutShort) {
  TemporaryFolder folder;
  const std::string bytes = read_bytes(make_database(folder, "a.sqlite", node_mode()));
  constexpr std::size_t kPageBytes = 4096;
  ASSERT_EQ(bytes.size() % kPageBytes, 0U);
  for (const std::size_t cut : {1, 2, 8, 20, 24, 100, 4095, 4096, 5000, 8192}) {
    const std::size_t left = bytes.size() - cut;
    const std::string path = folder.write(fmt::format("{}.sqlite", cut), bytes.substr(0, left));
    for (const std::string& file : {path, folder.write(fmt::format("{}.sqlite.gz", cut), gzip(bytes.substr(0, left)))}) {
      const auto recording = read_file(file, {});
      ASSERT_FALSE(recording) << file;
      EXPECT_EQ(recording.error().code, ErrorCode::malformed);
      EXPECT_EQ(recording.error().offset_bytes, left);
      EXPECT_EQ(recording.error().file, file);
      EXPECT_EQ(recording.error().message, fmt::format("the database is cut short: {} bytes of {}", left, bytes.size()));
    }
  }
  EXPECT_EQ(read(folder.write("longer.sqlite", bytes + std::string(kPageBytes, '\0'))).graphs.size(), 1U);
  // A program that does not keep the number of pages: it counts for nothing.
  std::string old = bytes;
  old[27] = static_cast<char>(old[27] + 1);
  old[31] = 100;
  EXPECT_EQ(read(folder.write("old.sqlite", old)).graphs.size(), 1U);
  old.pop_back();
  const auto recording = read_file(folder.write("old_cut.sqlite", old), {});
  ASSERT_FALSE(recording);
  EXPECT_EQ(recording.error().offset_bytes, old.size());
  EXPECT_EQ(recording.error().message,
            fmt::format("the database is cut short: {} bytes are no whole number of pages of 4096 bytes", old.size()));
}

TEST(NsysDamage, ViewsAndForeignDatabases) {
  TemporaryFolder folder;
  // A view of a wanted name is no table: it could run anything.
  std::vector<std::string> sql = base_tables();
  sql.emplace_back("CREATE TABLE t (start INTEGER, \"end\" INTEGER)");
  sql.emplace_back("INSERT INTO t VALUES (1, 2)");
  sql.emplace_back("CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS SELECT start, \"end\", randomblob(1000000000) AS deviceId FROM t");
  const ir::Recording recording = read(make_database(folder, "a.sqlite", sql));
  EXPECT_TRUE(recording.loose_ops.empty());
  auto foreign = read_file(make_database(folder, "b.sqlite", {"CREATE TABLE photos (id INTEGER)"}), {});
  ASSERT_FALSE(foreign);
  EXPECT_EQ(foreign.error().code, ErrorCode::foreign_format);
}

// SQLite keeps rows in files beside a database that a program is writing; without them it is not whole.
TEST(NsysDamage, FilesBesideTheDatabase) {
  const auto error_of = [](const std::string& path) {
    const auto recording = read_file(path, {});
    return recording ? std::string() : recording.error().message;
  };
  TemporaryFolder folder;
  const std::string whole = make_database(folder, "whole.sqlite", node_mode());
  // As a writer that was killed leaves it: the rows of launches and kernels are in the log alone.
  const std::vector<std::string> all = node_mode();
  const auto tables = all.begin() + static_cast<std::ptrdiff_t>(base_tables().size()) + 1;
  const std::string path = make_database(folder, "open.sqlite", {all.begin(), tables});
  sqlite3* writer = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &writer), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(writer, "PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint=0", nullptr, nullptr, nullptr), SQLITE_OK);
  for (const std::string& sql : std::vector<std::string>(tables, all.end())) ASSERT_EQ(sqlite3_exec(writer, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK);
  std::filesystem::copy_file(path, folder.path() + "/killed.sqlite");
  std::filesystem::copy_file(path + "-wal", folder.path() + "/killed.sqlite-wal");
  sqlite3_close(writer);
  EXPECT_NE(error_of(folder.path() + "/killed.sqlite").find("/killed.sqlite-wal holds "), std::string::npos) << error_of(folder.path() + "/killed.sqlite");
  EXPECT_EQ(error_of(path), "") << "closed, the log is folded in";
  std::filesystem::create_symlink("killed.sqlite", folder.path() + "/link.sqlite");
  EXPECT_NE(error_of(folder.path() + "/link.sqlite").find("/killed.sqlite-wal holds "), std::string::npos) << "of the file that the link leads to";

  // All of it is in the log: there is nothing that tells an export from other databases.
  const std::string log_only = folder.path() + "/log_only.sqlite";
  ASSERT_EQ(sqlite3_open(log_only.c_str(), &writer), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(writer, "PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint=0", nullptr, nullptr, nullptr), SQLITE_OK);
  for (const std::string& sql : all) ASSERT_EQ(sqlite3_exec(writer, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK);
  std::filesystem::create_directory(folder.path() + "/logs");
  std::filesystem::copy_file(log_only, folder.path() + "/logs/a.sqlite");
  std::filesystem::copy_file(log_only + "-wal", folder.path() + "/logs/a.sqlite-wal");
  sqlite3_close(writer);
  EXPECT_NE(error_of(folder.path() + "/logs/a.sqlite").find("/a.sqlite-wal holds "), std::string::npos) << error_of(folder.path() + "/logs/a.sqlite");
  const std::vector<std::string> folders = {folder.path() + "/logs"};
  const auto listed = expand_paths(folders);
  ASSERT_TRUE(listed);
  EXPECT_EQ(*listed, std::vector<std::string>{folder.path() + "/logs/a.sqlite"});

  folder.write("whole.sqlite-wal", "");
  folder.write("whole.sqlite-journal", std::string(512, '\0'));  // as journal_mode=PERSIST leaves it
  EXPECT_EQ(error_of(whole), "");
  folder.write("whole.sqlite-journal", "\xd9\xd5\x05\xf9\x20\xa1\x63\xd7");
  EXPECT_NE(error_of(whole).find("/whole.sqlite-journal tells of a change"), std::string::npos) << error_of(whole);
}

TEST(Nsys, ThreadsGiveTheSame) {
  TemporaryFolder folder;
  std::vector<std::string> sql = node_mode();
  sql.emplace_back("BEGIN");
  // More row ids than a range has, on graphs and outside them.
  sql.emplace_back("WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 2000) INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (rowid, start, end, "
                   "deviceId, streamId, correlationId, globalPid, demangledName, shortName, mangledName, graphNodeId) SELECT 1000 + 400 * i, 50000 + 10 * i, "
                   "50005 + 10 * i, 0, 7 + i % 3, 100 + i / 5, " + std::to_string(kGlobalPid) + ", 4, 4, NULL, CASE WHEN i / 5 % 2 = 0 THEN (9 << 32) + i % 3 + 1 END FROM n");
  sql.emplace_back("COMMIT");
  const std::string path = make_database(folder, "a.sqlite", sql);
  std::vector<std::string> texts;
  for (const unsigned threads : {1U, 2U, 7U}) {
    ReadOptions options;
    options.threads = threads;
    const auto recording = read_file(path, options);
    ASSERT_TRUE(recording);
    std::string text;
    for (const ir::LooseOp& op : recording->loose_ops) text += fmt::format("{} {} {} {}\n", recording->text(op.name), op.start_ns, op.correlation, op.stream);
    for (const auto& graph : recording->graphs)
      for (const ir::Replay& replay : graph->replays)
        for (const ir::ReplayOp& op : graph->ops(replay)) text += fmt::format("{} {} {} {}\n", replay.correlation, op.node.index(), op.start_ns, op.stream);
    texts.push_back(text);
  }
  EXPECT_EQ(std::count(texts[0].begin(), texts[0].end(), '\n'), 2001 + 7);
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_EQ(texts[0], texts[2]);
}

TEST(NsysDamage, HugeTextIsALimit) {
  TemporaryFolder folder;
  std::vector<std::string> sql = node_mode();
  sql.emplace_back("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', hex(zeroblob(20000000)))");
  auto recording = read_file(make_database(folder, "a.sqlite", sql), {});
  ASSERT_FALSE(recording);
  EXPECT_EQ(recording.error().code, ErrorCode::limit);
}

TEST(NsysDamage, CorruptAndCutFilesAreErrorsOrReadable) {
  TemporaryFolder folder;
  const std::string bytes = read_bytes(make_database(folder, "a.sqlite", node_mode()));
  std::uint32_t state = 1;
  for (int round = 0; round < 300; ++round) {
    std::string broken = bytes;
    for (int i = 0; i < 8; ++i) {
      state = state * 1664525 + 1013904223;
      broken[100 + state % (broken.size() - 100)] = static_cast<char>(state >> 24);
    }
    auto recording = read_with("nsys-sqlite", broken);
    if (!recording) {
      EXPECT_FALSE(recording.error().message.empty());
    }
  }
  for (std::size_t cut = 0; cut < bytes.size(); cut += 512) {
    auto recording = read_with("nsys-sqlite", std::string_view(bytes).substr(0, cut));
    if (!recording) {
      EXPECT_FALSE(recording.error().message.empty());
    }
  }
}

TEST(Nsys, CompressedDatabasesAreReadFromMemory) {
  TemporaryFolder folder;
  const std::string bytes = read_bytes(make_database(folder, "a.sqlite", node_mode()));
  const ir::Recording recording = read(folder.write("a.sqlite.gz", gzip(bytes)));
  EXPECT_EQ(recording.graphs.size(), 1U);
}

}  // namespace
}  // namespace cglint::import
