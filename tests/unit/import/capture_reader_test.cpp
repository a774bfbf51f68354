// What the capture importer does with files that are not whole, not right, or newer than it.
#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "export/capture_writer.h"
#include "import/capture/capture_importer.h"
#include "ir/graph_builder.h"
#include "support/deep_equal.h"
#include "support/random_recording.h"

namespace cglint::import {
namespace {

base::Result<ir::Recording> try_read(const std::string& bytes, const ReadOptions& options = {}) {
  const auto source = Source::from_memory(bytes, "test", options.limits);
  return make_capture_importer()->read(*source, options);
}

ir::Recording read(const std::string& bytes, const ReadOptions& options = {}) {
  auto recording = try_read(bytes, options);
  if (!recording) {
    ADD_FAILURE() << recording.error().to_string();
    return {};
  }
  return std::move(*recording);
}

std::string write(const ir::Recording& recording,
                  exporter::Compression compression = exporter::Compression::none, bool merge = false) {
  std::string bytes;
  exporter::CaptureWriterOptions options;
  options.compression = compression;
  options.merge_equal = merge;
  EXPECT_TRUE(exporter::write_capture(recording, exporter::make_string_sink(bytes), options).has_value());
  return bytes;
}

// The losses of one severity, "count what|".
std::string losses(const ir::Recording& recording, ir::Loss::Severity severity) {
  std::string text;
  for (const ir::Loss& loss : recording.losses)
    if (loss.severity == severity)
      text += std::to_string(loss.count) + " " + std::string(recording.text(loss.what)) + "|";
  return text;
}
using Severity = ir::Loss::Severity;

std::uint64_t loss_count(const ir::Recording& recording, std::string_view part) {
  std::uint64_t count = 0;
  for (const ir::Loss& loss : recording.losses)
    if (recording.text(loss.what).find(part) != std::string_view::npos) count += loss.count;
  return count;
}

const std::string kHeader = "{\"type\":\"header\",\"format\":\"cglint-capture\",\"version\":\"1.0\"}\n";
const std::string kSmallGraph =
    R"({"type":"graph","graph":0,"facts":["nodes","edges","replay_streams"],"functions":[{"name":"k"}],)"
    R"("launches":[{"function":0,"grid":[2,1,1]}],"nodes":[{"kind":"kernel","launch":0},{"kind":"empty"}],"edges":[[0,1]]})"
    "\n";
std::string end(int records) {
  return "{\"type\":\"end\",\"records\":" + std::to_string(records) + "}\n";
}

// --- torn files
// -------------------------------------------------------------------------------------------------------------

// A recording whose text is small enough to be cut at every byte.
ir::Recording small_recording() {
  return test::random_recording(5, {.graphs = 2, .max_nodes = 2, .allocations = 2});
}

void expect_prefix(const ir::Recording& whole, const ir::Recording& torn) {
  // Graphs come in file order, so the graphs of a torn file are the first ones of the whole file.
  ASSERT_LE(torn.graphs.size(), whole.graphs.size());
  for (const ir::GraphId id : torn.graphs.ids()) {
    ASSERT_NE(torn.graphs[id], nullptr);
    EXPECT_EQ(torn.graphs[id]->node_count(), whole.graphs[id]->node_count());
    EXPECT_EQ(torn.graphs[id]->edge_count(), whole.graphs[id]->edge_count());
    EXPECT_LE(torn.graphs[id]->replays.size(), whole.graphs[id]->replays.size());
  }
}

TEST(CaptureReader, ATornTextReadsUpToTheTear) {
  const std::string bytes = write(small_recording());
  const ir::Recording whole = read(bytes);
  const std::size_t header = bytes.find('\n');
  std::size_t most = 0;
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    auto torn = try_read(bytes.substr(0, size));
    if (size < header) {
      ASSERT_FALSE(torn.has_value()) << size;
      continue;
    }
    ASSERT_TRUE(torn.has_value()) << size << ": " << torn.error().to_string();
    expect_prefix(whole, *torn);
    most = std::max(most, torn->graphs.size());
    const std::string lost = losses(*torn, Severity::data_loss);
    const bool at_line_end = bytes[size] == '\n' || bytes[size - 1] == '\n';
    // Cut just before the last newline nothing is missing.
    if (size + 1 == bytes.size()) {
      EXPECT_EQ(test::difference(whole, *torn), "");
      continue;
    }
    EXPECT_NE(lost.find("no end record"), std::string::npos) << size;
    EXPECT_EQ(lost.find("cut short and was left out") != std::string::npos, !at_line_end)
        << size << ": " << lost;
  }
  EXPECT_EQ(most, whole.graphs.size());
}

TEST(CaptureReader, ATornCompressedFileReadsUpToTheTear) {
  const ir::Recording recording = small_recording();
  for (const auto compression : {exporter::Compression::gzip, exporter::Compression::zstd}) {
    const std::string bytes = write(recording, compression);
    const ir::Recording whole = read(bytes);
    std::size_t most = 0, readable = 0;
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      auto torn = try_read(bytes.substr(0, size));
      if (!torn.has_value()) {
        ASSERT_EQ(readable, 0U) << size;  // only before the header is whole
        continue;
      }
      ++readable;
      expect_prefix(whole, *torn);
      most = std::max(most, torn->graphs.size());
      // The last 8 bytes of a gzip member are its check sum: the record itself is whole before them.
      EXPECT_TRUE(losses(*torn, Severity::data_loss).find("no end record") != std::string::npos ||
                  losses(*torn, Severity::data_loss).find("cut short") != std::string::npos)
          << size;
      // Nothing is an error that was none in the whole file.
      const std::string errors = losses(*torn, Severity::error);
      EXPECT_EQ(errors, losses(whole, Severity::error).substr(0, errors.size())) << size;
    }
    EXPECT_EQ(most, whole.graphs.size());
    EXPECT_GT(readable, bytes.size() / 2);
  }
}

TEST(CaptureReader, EveryRecordIsAGzipMemberOfItsOwn) {
  const ir::Recording recording = small_recording();
  const std::string text = write(recording);
  std::string bytes = write(recording, exporter::Compression::gzip);
  std::size_t members = 0;
  std::string all;
  while (!bytes.empty()) {
    z_stream stream{};
    ASSERT_EQ(inflateInit2(&stream, 15 + 16), Z_OK);
    std::string record(1 << 20, '\0');
    stream.next_in = reinterpret_cast<Bytef*>(bytes.data());
    stream.avail_in = static_cast<uInt>(bytes.size());
    stream.next_out = reinterpret_cast<Bytef*>(record.data());
    stream.avail_out = static_cast<uInt>(record.size());
    ASSERT_EQ(inflate(&stream, Z_FINISH), Z_STREAM_END);
    record.resize(stream.total_out);
    bytes.erase(0, stream.total_in);
    inflateEnd(&stream);
    EXPECT_EQ(std::count(record.begin(), record.end(), '\n'), 1);
    EXPECT_EQ(record.back(), '\n');
    all += record;
    ++members;
  }
  EXPECT_EQ(all, text);
  EXPECT_EQ(members, static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')));
}

TEST(CaptureReader, WithoutGraphEndReplaysAreIncompleteAndPromisedFactsSpoiled) {
  const std::string replays =
      R"({"type":"replays","graph":0,"base_ns":"1000","replays":[{"correlation":5,"ops":[[0,0,7,1,2]]}]})"
      "\n";
  {
    const ir::Recording torn = read(kHeader + kSmallGraph + replays);
    const ir::Graph& graph = *torn.graphs[ir::GraphId(0)];
    ASSERT_EQ(graph.replays.size(), 1U);
    EXPECT_FALSE(graph.replays[ir::ReplayId(0)].complete);
    EXPECT_EQ(graph.replay_ops[0].start_ns, 1001);
    EXPECT_TRUE(graph.facts.contains(ir::Fact::replay_streams));
  }
  {
    const ir::Recording torn = read(kHeader + kSmallGraph);
    const ir::Graph& graph = *torn.graphs[ir::GraphId(0)];
    EXPECT_FALSE(graph.facts.contains(ir::Fact::replay_streams));
    ASSERT_EQ(graph.spoiled.size(), 1U);
    EXPECT_EQ(graph.spoiled[0].fact, ir::Fact::replay_streams);
  }
  {
    const ir::Recording whole =
        read(kHeader + kSmallGraph + replays + "{\"type\":\"graph_end\",\"graph\":0}\n");
    EXPECT_TRUE(whole.graphs[ir::GraphId(0)]->replays[ir::ReplayId(0)].complete);
  }
  {
    const ir::Recording whole = read(kHeader + kSmallGraph + replays + end(3));
    EXPECT_TRUE(whole.graphs[ir::GraphId(0)]->replays[ir::ReplayId(0)].complete);
    EXPECT_TRUE(whole.losses.empty()) << losses(whole, Severity::data_loss);
  }
}

// --- segments
// ---------------------------------------------------------------------------------------------------------------

TEST(CaptureReader, FilesCanBeConcatenated) {
  const ir::Recording first = test::random_recording(11), second = test::random_recording(12);
  for (const auto compression :
       {exporter::Compression::none, exporter::Compression::gzip, exporter::Compression::zstd}) {
    const ir::Recording both = read(write(first, compression) + write(second, compression));
    EXPECT_EQ(both.processes.size(), first.processes.size() + second.processes.size());
    EXPECT_EQ(both.graphs.size(), first.graphs.size() + second.graphs.size());
    EXPECT_EQ(both.allocations.size(), first.allocations.size() + second.allocations.size());
    EXPECT_EQ(losses(both, Severity::data_loss).find("no end record"), std::string::npos);
    // Numbers are the segment's: the second file's graphs belong to the second file's processes.
    for (std::size_t i = first.graphs.size(); i < both.graphs.size(); ++i) {
      const ir::ProcessId process = both.graphs[ir::GraphId::from_size(i)]->info.process;
      EXPECT_TRUE(!process.is_valid() || process.index() >= first.processes.size());
    }
    // Written as one file, it still says the same.
    EXPECT_EQ(test::difference(both, read(write(both, compression))), "");
  }
}

TEST(CaptureReader, ATornFirstFileDoesNotSpoilTheSecond) {
  const std::string whole = kHeader + kSmallGraph + "{\"type\":\"graph_end\",\"graph\":0}\n" + end(3);
  const ir::Recording both = read(kHeader + kSmallGraph + whole);
  ASSERT_EQ(both.graphs.size(), 2U);
  EXPECT_FALSE(both.graphs[ir::GraphId(0)]->facts.contains(ir::Fact::replay_streams));
  EXPECT_TRUE(both.graphs[ir::GraphId(1)]->facts.contains(ir::Fact::replay_streams));
  EXPECT_NE(losses(both, Severity::data_loss).find("1 a header stands where the recording before it has no end record"), std::string::npos);
}

// --- versions and unknown things
// ----------------------------------------------------------------------------------------------

TEST(CaptureReader, ANewerMajorVersionIsRefused) {
  for (const bool later : {false, true}) {
    auto result = try_read((later ? kHeader + end(1) : std::string()) +
                           "{\"type\":\"header\",\"format\":\"cglint-capture\",\"version\":\"2.0\"}\n");
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().code, base::ErrorCode::unsupported);
    EXPECT_NE(result.error().message.find("2.0"), std::string::npos);
  }
}

TEST(CaptureReader, ANewerMinorVersionIsReadAndUnknownThingsAreCounted) {
  const ir::Recording recording = read(
      "{\"type\":\"header\",\"format\":\"cglint-capture\",\"version\":\"1.7\",\"mood\":{\"deep\":[[[1]]]}}\n"
      R"({"type":"graph","graph":0,"colour":"red","facts":["nodes","telepathy"],"nodes":[{"kind":"teleport","x":1},{"kind":"empty"}]})"
      "\n"
      R"({"type":"weather","rain":true})"
      "\n" +
      end(3));
  ASSERT_EQ(recording.graphs.size(), 1U);
  EXPECT_EQ(recording.graphs[ir::GraphId(0)]->kind[ir::NodeId(0)], ir::NodeKind::unknown);
  EXPECT_EQ(
      losses(recording, Severity::info),
      "3 properties that this version does not know were ignored (the first: \"mood\")|"
      "2 values that this version does not know were taken as unknown (the first: fact \"telepathy\")|");
  EXPECT_EQ(losses(recording, Severity::data_loss),
            "1 records of a type that this version does not know were skipped (\"weather\")|");
  EXPECT_EQ(losses(recording, Severity::error), "");
}

// Left out, allocations of arguments are none. Beside a property that is not known they may be under that one's damaged name.
TEST(CaptureReader, AllocationsUnderAnUnknownNameMakeThemUnknown) {
  const auto has_allocations = [](const std::string& allocations) {
    const ir::Recording recording =
        read(kHeader + R"({"type":"process","process":0,"pid":1})" + "\n" +
             R"({"type":"allocations","process":0,"allocations":[{"id":9,"base":"0x1000","size_bytes":64}]})" + "\n" +
             R"({"type":"graph","graph":0,"process":0,"facts":["nodes","kernel_params","allocations"],"functions":[{"name":"k"}],)" +
             R"("launches":[{"function":0,"layout":[[0,0,8]]}],"nodes":[{"kind":"kernel","launch":0,"args":["0x1010"])" + allocations + "}]}\n" + end(4));
    EXPECT_EQ(recording.graphs.size(), 1U);
    EXPECT_EQ(losses(recording, Severity::data_loss), "");
    return recording.graphs[ir::GraphId(0)]->facts.contains(ir::Fact::allocations);
  };
  EXPECT_TRUE(has_allocations(R"(,"arg_allocations":[9])"));
  EXPECT_TRUE(has_allocations(""));
  EXPECT_TRUE(has_allocations(R"(,"arg_allocations":[9],"colour":"red")"));
  EXPECT_FALSE(has_allocations(R"(,"arg_allocatioos":[9])"));
}

TEST(CaptureReader, NotACaptureFileIsAnError) {
  for (const std::string text :
       {"", "\n\n", "{}\n", "[]\n", "{\"type\":\"graph\",\"graph\":0,\"facts\":[],\"nodes\":[]}\n",
        "plain text\n", "{\"type\":\"header\",\"format\":\"other\",\"version\":\"1.0\"}\n",
        "{\"type\":\"header\",\"format\":\"cglint-capture\",\"version\":\"one\"}\n",
        "{\"type\":\"header\",\"format\":\"cglint-capture\"}\n", "\xff\xfe\n"}) {
    auto result = try_read(text);
    EXPECT_FALSE(result.has_value()) << text;
  }
  // A broken header later on cannot be skipped: the numbers after it would mean something else.
  auto result = try_read(kHeader + "{\"type\":\"header\",\"format\":\"cglint-capture\",\"version\":1}\n");
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().offset_bytes, kHeader.size());
}

TEST(CaptureReader, TablesMayStandAnywhere) {
  const ir::Recording usual = read(
      kHeader +
      R"({"type":"process","process":4,"pid":1})"
      "\n"
      R"({"type":"allocations","process":4,"allocations":[{"id":9,"base":"0x1000","size_bytes":64}]})"
      "\n"
      R"({"type":"graph","graph":0,"process":4,"facts":["nodes"],"functions":[{"name":"k"}],"launches":[{"function":0,"layout":[[0,0,8]]}],)"
      R"("streams":[{"handle":"0x5"}],"frames":[{"file":"f"}],"stacks":[[0]],"nvtx":[["a","b"]],"defaults":{"stream":0},)"
      R"("nodes":[{"kind":"kernel","launch":0,"args":["0x1010"],"arg_allocations":[9],"nvtx":0,"stack":0}],)"
      R"("sync_ops":[{"kind":"event_wait","stream":0}],"info":{"origin_stream":0}})"
      "\n" +
      end(4));
  const ir::Recording reversed = read(
      kHeader +
      R"({"pid":1,"process":4,"type":"process"})"
      "\n"
      R"({"allocations":[{"id":9,"base":"0x1000","size_bytes":64}],"process":4,"type":"allocations"})"
      "\n"
      R"({"info":{"origin_stream":0},"sync_ops":[{"stream":0,"kind":"event_wait"}],)"
      R"("nodes":[{"stack":0,"nvtx":0,"arg_allocations":[9],"args":["0x1010"],"launch":0,"kind":"kernel"}],"defaults":{"stream":0},)"
      R"("nvtx":[["a","b"]],"stacks":[[0]],"frames":[{"file":"f"}],"streams":[{"handle":"0x5"}],)"
      R"("launches":[{"layout":[[0,0,8]],"function":0}],"functions":[{"name":"k"}],"facts":["nodes"],"process":4,"graph":0,"type":"graph"})"
      "\n" +
      end(4));
  EXPECT_EQ(losses(usual, Severity::error) + losses(reversed, Severity::error), "");
  EXPECT_EQ(test::difference(usual, reversed), "");
  const ir::Graph& graph = *usual.graphs[ir::GraphId(0)];
  ASSERT_EQ(graph.params.size(), 1U);
  EXPECT_EQ(graph.params[0].allocation_offset, 0x10U);
  EXPECT_TRUE(graph.capture_stream[ir::NodeId(0)].is_valid());
}

TEST(CaptureReader, APropertyBesideALaunchReplacesTheLaunchs) {
  const ir::Recording recording = read(
      kHeader +
      R"({"type":"graph","graph":0,"facts":[],"functions":[{"name":"a"},{"name":"b"}],)"
      R"("launches":[{"function":0,"grid":[1,2,3],"block":[4,5,6],"priority":-1}],)"
      R"("nodes":[{"kind":"kernel","launch":0},{"kind":"kernel","launch":0,"function":1,"grid":[7,8,9]},)"
      R"({"kind":"kernel","function":1,"params":[[0,0,8,"0xff"],[1,4,4,"0x1","scalar",-1]]}]})"
      "\n" +
      end(2));
  EXPECT_EQ(losses(recording, Severity::error), "");
  const ir::Graph& graph = *recording.graphs[ir::GraphId(0)];
  EXPECT_EQ(graph.kernels[0].grid, (ir::Dim3{1, 2, 3}));
  EXPECT_EQ(graph.kernels[1].grid, (ir::Dim3{7, 8, 9}));
  EXPECT_EQ(graph.kernels[1].block, (ir::Dim3{4, 5, 6}));
  EXPECT_EQ(graph.kernels[1].priority, -1);
  EXPECT_EQ(recording.text(graph.name[ir::NodeId(1)]), "b");
  ASSERT_EQ(graph.params_of(graph.kernels[2]).size(), 2U);
  EXPECT_EQ(graph.params_of(graph.kernels[2])[1].type, ir::ParamWord::Type::scalar);
}

TEST(CaptureReader, LaterProcessAndAllocationLinesReplace) {
  const ir::Recording recording = read(
      kHeader +
      R"({"type":"process","process":0,"pid":7,"host":"a"})"
      "\n"
      R"({"type":"process","process":0,"rank":3,"host":"b"})"
      "\n"
      R"({"type":"allocations","process":0,"allocations":[{"id":1,"base":"0x10","size_bytes":8}]})"
      "\n"
      R"({"type":"allocations","process":0,"allocations":[{"id":1,"base":"0x10","size_bytes":8,"free_sequence":5}]})"
      "\n" +
      end(5));
  ASSERT_EQ(recording.processes.size(), 1U);
  const ir::Process& process = recording.processes[ir::ProcessId(0)];
  EXPECT_EQ(process.pid, 7);
  EXPECT_EQ(process.rank, 3);
  EXPECT_EQ(recording.text(process.host), "b");
  ASSERT_EQ(recording.allocations.size(), 1U);
  EXPECT_EQ(recording.allocations[ir::AllocationId(0)].free_sequence, 5U);
  EXPECT_TRUE(recording.losses.empty());
}

// Words that were read before hold their offset from the base that the id had.
TEST(CaptureReader, AnAllocationDoesNotMove) {
  const std::string before = kHeader + R"({"type":"process","process":0})" + "\n" + R"({"type":"process","process":1})" + "\n" +
                             R"({"type":"allocations","process":0,"allocations":[{"id":1,"base":"0x10","size_bytes":8}]})" + "\n";
  const ir::Recording recording = read(
      before +
      R"({"type":"allocations","process":0,"allocations":[{"id":2,"base":"0x40","size_bytes":8},{"id":1,"base":"0x20","size_bytes":8,"free_sequence":5}]})"
      "\n"
      R"({"type":"allocations","process":1,"allocations":[{"id":1,"base":"0x30","size_bytes":8}]})"
      "\n" +
      end(6));
  ASSERT_EQ(recording.allocations.size(), 2U);  // nothing of the broken record
  EXPECT_EQ(recording.allocations[ir::AllocationId(0)].base, 0x10U);
  EXPECT_EQ(recording.allocations[ir::AllocationId(0)].free_sequence, ir::Allocation().free_sequence);
  EXPECT_EQ(recording.allocations[ir::AllocationId(1)].base, 0x30U);
  ASSERT_EQ(recording.losses.size(), 1U);
  EXPECT_EQ(recording.losses[0].severity, Severity::error);
  EXPECT_EQ(recording.losses[0].offset_bytes, before.size());
  EXPECT_NE(recording.text(recording.losses[0].what).find("allocation 1 has another base than before"), std::string::npos);
}

// --- broken records
// -------------------------------------------------------------------------------------------------------------

struct Broken {
  const char* record;
  const char* why;
};

TEST(CaptureReader, ABrokenRecordIsSkippedCountedAndNamed) {
  const Broken cases[] = {
      {R"(not json)", ""},
      {R"([1,2])", "the line is not a JSON object"},
      {R"({"type":5})", "type is not a string"},
      {R"({"graph":1})", "the record has no type"},
      {R"({"type":"process"})", "the record has no process"},
      {R"({"type":"process","process":-1})", "process is not an index"},
      {R"({"type":"process","process":4294967295})", "process is not an index"},
      {R"({"type":"process","process":0,"pid":"x"})", "pid is not a 64-bit integer"},
      {R"({"type":"process","process":0,"gpus":[{}]})", "a GPU has no device"},
      {R"({"type":"process","process":0} trailing)", ""},
      {R"({"type":"graph","graph":1,"facts":[]})", "the record has no nodes"},
      {R"({"type":"graph","graph":1,"nodes":[]})", "the record has no facts"},
      {R"({"type":"graph","facts":[],"nodes":[]})", "the record has no graph"},
      {R"({"type":"graph","graph":0,"facts":[],"nodes":[]})", "graph 0 was already recorded"},
      {R"({"type":"graph","graph":1,"facts":[],"nodes":[{}]})", "node 0: a node has no kind"},
      {R"({"type":"graph","graph":1,"facts":[],"nodes":[{"kind":"empty"},{"kind":"kernel","launch":3}]})",
       "node 1: launch 3 of 0"},
      {R"({"type":"graph","graph":1,"facts":[],"nodes":[{"kind":"empty","stream":0}]})",
       "node 0: stream 0 of 0"},
      {R"({"type":"graph","graph":1,"facts":[],"nodes":[{"kind":"empty","nvtx":0}]})", "node 0: nvtx 0 of 0"},
      {R"({"type":"graph","graph":1,"facts":[],"nodes":[{"kind":"empty","stack":0}]})",
       "node 0: stack 0 of 0"},
      {R"({"type":"graph","graph":1,"facts":[],"nodes":[{"kind":"empty","device":40000}]})",
       "node 0: device is not an integer in its range"},
      {R"({"type":"graph","graph":1,"facts":[],"nodes":[{"kind":"memset","dst":"12"}]})",
       "node 0: dst is not a hexadecimal number"},
      {R"({"type":"graph","graph":1,"facts":[],"nodes":[{"kind":"memset","dst":"0x11112222333344445"}]})",
       "node 0: dst is not a hexadecimal number"},
      {R"({"type":"graph","graph":1,"facts":[],"nodes":[{"kind":"memset","element_bytes":3}]})",
       "node 0: element_bytes is not 1, 2 or 4"},
      {R"({"type":"graph","graph":1,"facts":[],"launches":[{"layout":[[0,0,8]]}],"nodes":[{"kind":"kernel","launch":0,"args":[]}]})",
       "node 0: 0 args for a layout of 1"},
      {R"({"type":"graph","graph":1,"facts":[],"launches":[{"layout":[[0,0,3]]}],"nodes":[]})",
       "a word's size is not 1, 2, 4 or 8"},
      {R"({"type":"graph","graph":1,"facts":[],"launches":[{"function":0}],"nodes":[]})",
       "a launch names function 0 of 0"},
      {R"({"type":"graph","graph":1,"facts":[],"nodes":[{"kind":"empty"}],"edges":[[0,1]]})",
       "an edge names node 1 but the graph has 1 nodes"},
      {R"({"type":"graph","graph":1,"facts":[],"nodes":[{"kind":"empty"}],"edges":[[0,0]]})",
       "node 0 depends on itself"},
      {R"({"type":"graph","graph":1,"facts":[],"nodes":[{"kind":"empty"},{"kind":"empty"}],"edges":[[0,1],[1,0]]})",
       "cycle"},
      {R"({"type":"graph","graph":1,"facts":[],"nodes":[{"kind":"empty"},{"kind":"empty"}],"edges":[[0]]})",
       "an edge has 1 elements, not 2"},
      {R"({"type":"graph","graph":1,"facts":[],"nodes":[{"kind":"empty"},{"kind":"empty"}],"edges":[[0,1,0,0,2]]})",
       "an edge's type is not 0 or 1"},
      {R"({"type":"graph","graph":1,"facts":[],"nodes":[{"kind":"empty"},{"kind":"empty"}],"edges":[[0,1,0,0,0,7]]})",
       "missing sync operation"},
      {R"({"type":"graph","graph":1,"facts":[],"nodes":[{"kind":"empty"}],"edges":[[0,4294967296]]})",
       "an edge's end is not an index"},
      {R"({"type":"graph","graph":1,"facts":[],"nodes":[],"sync_ops":[{"kind":"event_wait","record":0},{"kind":"event_wait","record":2}]})",
       "a sync operation names record 2 of 2"},
      {R"({"type":"graph","graph":1,"facts":[],"nodes":[],"info":{"origin_stream":0}})",
       "origin_stream names stream 0 of 0"},
      {R"({"type":"graph","graph":1,"facts":[],"nodes":[],"info":{"instances":0}})", "instances is 0"},
      {R"({"type":"graph","graph":1,"facts":[],"stacks":[[0]],"nodes":[]})", "a stack names frame 0 of 0"},
      {R"({"type":"graph","graph":1,"facts":[],"nodes":[{"kind":"empty"})", ""},
      {R"({"type":"instance","graph":1,"of":5})", "graph 5 is not in the file before this line"},
      {R"({"type":"instance","graph":0,"of":0})", "graph 0 was already recorded"},
      {R"({"type":"replays","graph":8,"replays":[]})", "graph 8 is not in the file before this line"},
      {R"({"type":"replays","graph":0,"replays":[{"ops":[[2,0,0,0,0]]}]})", "an operation names node 2 of 2"},
      {R"({"type":"replays","graph":0,"replays":[{}]})", "a replay has no ops"},
      {R"({"type":"replays","graph":0,"base_ns":"12x","replays":[]})",
       "base_ns is not nanoseconds in a string"},
      {R"({"type":"replays","graph":0,"base_ns":"9223372036854775807","replays":[{"ops":[[0,0,0,1,1]]}]})",
       "a time does not fit 64 bits"},
      {R"({"type":"timing","graph":0,"samples":1})", "the record has no median_us"},
      {R"({"type":"exec","exec_updates":1})", "the record has no graph"},
      {R"({"type":"access","graph":0,"accesses":[[0,"0x2","0x1","r"]]})", "an access ends before it begins"},
      {R"({"type":"access","graph":0,"accesses":[[5,"0x1","0x2","r"]]})", "an access names node 5 of 2"},
      {R"({"type":"access","graph":0,"accesses":[[0,"0x1","0x2","r",70000,0]]})", "an access's argument is not an unsigned integer in its range"},
      {R"({"type":"allocations","allocations":[{"id":1,"base":"0x1"}]})",
       "an allocation has no size_bytes"},
      {R"({"type":"allocations","allocations":[{"id":1,"base":"0x1","size_bytes":1,"alloc_stack":0}]})",
       "an allocation names stack 0 of 0"},
      {R"({"type":"allocations","allocations":[{"id":1,"base":"0x10","size_bytes":8},{"id":1,"base":"0x20","size_bytes":8}]})",
       "allocation 1 has another base than before"},
      {R"({"type":"allocator_blocks","blocks":[{"base":"0x1","size_bytes":1,"state":"lost"}]})",
       "a block's state is unknown"},
      {R"({"type":"loose_ops","names":[],"ops":[[0,"kernel",0,0,0,0]]})", "an operation has name 0 of 0"},
      {R"({"type":"graph_end","graph":77})", "graph 77 is not in the file before this line"},
      {R"({"type":"loss","severity":"info"})", "the record has no what"},
      {R"({"type":"end"})", "the record has no records"},
      // Readers of JSON disagree on which of two equal properties counts.
      {R"({"type":"timing","graph":0,"samples":1,"samples":2,"median_us":1})", "the record gives \"samples\" twice"},
      {R"({"type":"timing","type":"graph_end","graph":0})", "the record gives \"type\" twice"},
      {R"({"type":"timing","graph":0,"samples":1,"median_us":1,"new":1,"new":2})", "the record gives \"new\" twice"},
      {R"({"type":"graph","graph":1,"facts":[],"nodes":[],"nodes":[]})", "the record gives \"nodes\" twice"},
      {R"({"type":"graph","graph":1,"facts":[],"nodes":[{"kind":"kernel","kind":"empty"}]})",
       "node 0: a node gives \"kind\" twice"},
      {R"({"type":"graph","graph":1,"facts":[],"launches":[{}],"nodes":[{"kind":"kernel","launch":0,"launch":0}]})",
       "node 0: a node gives \"launch\" twice"},
      {R"({"type":"graph","graph":1,"facts":[],"launches":[{"layout":[[0,0,8]]}],"nodes":[{"kind":"kernel","launch":0,"args":["0x1"],"args":["0x1"]}]})",
       "node 0: a node gives \"args\" twice"},
      {R"({"type":"replays","graph":0,"replays":[{"ops":[[0,0,7,20,10]]}]})", "an operation ends before it begins"},
      {R"({"type":"loose_ops","names":["k"],"ops":[[0,"kernel",0,7,20,10]]})", "an operation ends before it begins"},
  };
  for (const Broken& broken : cases) {
    const std::string before = kHeader + kSmallGraph;
    const ir::Recording recording =
        read(before + broken.record + "\n" + "{\"type\":\"graph_end\",\"graph\":0}\n" + end(4));
    SCOPED_TRACE(broken.record);
    std::vector<const ir::Loss*> errors;
    for (const ir::Loss& loss : recording.losses)
      if (loss.severity == Severity::error) errors.push_back(&loss);
    ASSERT_EQ(errors.size(), 1U);
    EXPECT_EQ(errors[0]->count, 1U);
    EXPECT_EQ(errors[0]->offset_bytes, before.size());
    const std::string what(recording.text(errors[0]->what));
    EXPECT_NE(what.find("record in line 3 was skipped"), std::string::npos) << what;
    EXPECT_NE(what.find(broken.why), std::string::npos) << what;
    // What came before and after it has been read.
    ASSERT_EQ(recording.graphs.size(), 1U);
    EXPECT_EQ(recording.graphs[ir::GraphId(0)]->edge_count(), 1U);
    EXPECT_EQ(losses(recording, Severity::data_loss), "");
  }
}

TEST(CaptureReader, ABrokenRecordSpoilsWhatItCouldHaveTold) {
  const std::string two = R"({"type":"graph","graph":1,"facts":["nodes","replay_streams"],"nodes":[]})"
                          "\n";
  // It names its graph: only that one is in doubt.
  ir::Recording recording = read(kHeader + kSmallGraph + two +
                                 R"({"type":"replays","graph":0,"replays":[{"ops":5}]})"
                                 "\n" +
                                 end(4));
  EXPECT_FALSE(recording.graphs[ir::GraphId(0)]->facts.contains(ir::Fact::replay_streams));
  EXPECT_TRUE(recording.graphs[ir::GraphId(1)]->facts.contains(ir::Fact::replay_streams));
  // It could have been about any graph.
  recording = read(kHeader + kSmallGraph + two + "garbage\n" + end(4));
  EXPECT_FALSE(recording.graphs[ir::GraphId(0)]->facts.contains(ir::Fact::replay_streams));
  EXPECT_FALSE(recording.graphs[ir::GraphId(1)]->facts.contains(ir::Fact::replay_streams));
  EXPECT_TRUE(recording.graphs[ir::GraphId(1)]->facts.contains(ir::Fact::nodes));
}

TEST(CaptureReader, ManyBrokenRecordsAreCountedNotListed) {
  std::string text = kHeader;
  for (int i = 0; i < 1000; ++i) text += "{\"type\":\"timing\",\"graph\":" + std::to_string(i) + "}\n";
  const ir::Recording recording = read(text + end(1001));
  std::uint64_t count = 0;
  for (const ir::Loss& loss : recording.losses) count += loss.count;
  EXPECT_EQ(count, 1000U);
  EXPECT_LT(recording.losses.size(), 20U);
}

TEST(CaptureReader, MissingLinesAreNoticed) {
  const ir::Recording recording = read(kHeader + kSmallGraph + end(5));
  EXPECT_EQ(losses(recording, Severity::data_loss), "3 records that the recorder wrote are not in the file|");
}

TEST(CaptureReader, RepeatedLinesAreNoticed) {
  const std::string replays = R"({"type":"replays","graph":0,"replays":[{"ops":[[0,0,7,0,10]]}]})"
                              "\n";
  const std::string_view surplus = "1 records more than the recorder wrote are in the file: some are repeated or not its own|";
  const auto facts = [](const ir::Recording& recording, std::size_t graph) {
    return recording.graphs[ir::GraphId(static_cast<std::uint32_t>(graph))]->facts.contains(ir::Fact::replay_streams);
  };
  const std::string graph =
      R"({"type":"graph","graph":0,"facts":["nodes","replay_streams"],"functions":[{"name":"k"}],"launches":[{"function":0}],)"
      R"("nodes":[{"kind":"kernel","launch":0}]})"
      "\n";
  const std::string whole = kHeader + graph + replays + end(3);
  const ir::Recording good = read(whole);
  EXPECT_TRUE(good.losses.empty());
  EXPECT_TRUE(facts(good, 0));
  const std::string twice_given = "1 replays records that are in the file twice were left out once|";
  const ir::Recording repeated = read(kHeader + graph + replays + replays + end(3));
  EXPECT_EQ(losses(repeated, Severity::data_loss), twice_given);
  EXPECT_FALSE(facts(repeated, 0));
  EXPECT_EQ(repeated.graphs[ir::GraphId(0)]->replays.size(), 1U);
  EXPECT_EQ(losses(read(kHeader + graph + replays + end(2)), Severity::data_loss), surplus);
  // One line lost, another written twice: the count is right.
  const std::string timing = "{\"type\":\"timing\",\"graph\":0,\"samples\":3,\"median_us\":1.5}\n";
  EXPECT_TRUE(read(kHeader + graph + replays + timing + end(4)).losses.empty());
  for (const std::string& kept : {replays, timing})
    EXPECT_EQ(losses(read(kHeader + graph + kept + kept + end(4)), Severity::data_loss),
              (kept == replays ? twice_given : "1 timing records that are in the file twice were left out once|") +
                  "1 records that the recorder wrote are not in the file|");
  // What may be said again.
  const std::string exec = "{\"type\":\"exec\",\"graph\":0,\"last_launch_sequence\":9}\n";
  EXPECT_TRUE(read(kHeader + graph + replays + exec + exec + end(5)).losses.empty());
  // Each segment has a count of its own, and empty lines are no records.
  const ir::Recording twice = read(whole + "\n" + whole);
  EXPECT_TRUE(twice.losses.empty());
  EXPECT_TRUE(facts(twice, 0) && facts(twice, 1));
  EXPECT_EQ(losses(read(whole + kHeader + graph + replays + replays + end(3)), Severity::data_loss), twice_given);
}

// Two kernels in a row, a memset that is switched off, and a node that leaves no operation.
std::string chain(const std::string& facts = R"("nodes","edges","replay_streams","replay_times")", const std::string& info = "{}") {
  return R"({"type":"graph","graph":0,"info":)" + info + R"(,"facts":[)" + facts +
         R"(],"functions":[{"name":"k"}],"launches":[{"function":0}],)"
         R"("nodes":[{"kind":"kernel","launch":0},{"kind":"kernel","launch":0},{"kind":"memset","enabled":false},{"kind":"empty"}],)"
         R"("edges":[[0,1],[1,2],[2,3]]})"
         "\n";
}
std::string launches(const std::string& list) {
  return R"({"type":"replays","graph":0,"replays":[)" + list + "]}\n";
}
bool knows_replays(const ir::Recording& recording) {
  const ir::FactSet& facts = recording.graphs[ir::GraphId(0)]->facts;
  EXPECT_EQ(facts.contains(ir::Fact::replay_streams), facts.contains(ir::Fact::replay_times));
  return facts.contains(ir::Fact::replay_streams);
}

TEST(CaptureReader, ACompleteLaunchHasEveryOperation) {
  const std::string whole = R"({"correlation":1,"ops":[[0,0,7,0,10],[1,0,7,10,20]]})";
  const std::string lacks = R"({"correlation":2,"ops":[[0,0,7,30,40]]})";
  const std::string told = R"({"correlation":3,"complete":false,"ops":[[0,0,7,50,60]]})";
  const auto text = [&](const std::string& graph, const std::string& list) { return kHeader + graph + launches(list) + end(3); };
  const ir::Recording good = read(text(chain(), whole + "," + told));
  EXPECT_TRUE(good.losses.empty());
  EXPECT_TRUE(knows_replays(good));
  const ir::Recording recording = read(text(chain(), whole + "," + lacks + "," + told));
  EXPECT_EQ(losses(recording, Severity::data_loss), "1 operations of nodes are missing in launches that are given as complete|");
  EXPECT_EQ(recording.losses[0].offset_bytes, (kHeader + chain()).size());
  EXPECT_FALSE(knows_replays(recording));
  const ir::Graph& graph = *recording.graphs[ir::GraphId(0)];
  EXPECT_TRUE(graph.replays[ir::ReplayId(0)].complete);
  EXPECT_FALSE(graph.replays[ir::ReplayId(1)].complete);
  // A body may not run, and where the nodes are what a trace showed, some launches need not have run all of them.
  EXPECT_TRUE(read(text(chain(R"("nodes","edges","replay_streams","replay_times")", R"({"role":"body"})"), lacks)).losses.empty());
  EXPECT_TRUE(read(text(chain(R"("nodes","replay_streams","replay_times")"), lacks)).losses.empty());
}

TEST(CaptureReader, ANodeRunsOnceInALaunch) {
  const std::string twice = "1 operations of nodes that had run in the same launch already|";
  const auto text = [&](const std::string& graph, const std::string& ops) {
    return kHeader + graph + launches(R"({"correlation":1,"ops":[)" + ops + "]}") + end(3);
  };
  for (const char* ops : {"[0,0,7,0,10],[1,0,7,10,20],[1,0,7,10,20]", "[0,0,7,0,10],[1,0,7,10,20],[0,0,7,5000,6000]"}) {
    const ir::Recording recording = read(text(chain(), ops));
    EXPECT_EQ(losses(recording, Severity::data_loss), twice);
    EXPECT_FALSE(knows_replays(recording));
  }
  // A loop: its body runs again, but not beside itself.
  const std::string loop = chain(R"("nodes","replay_streams","replay_times")");
  EXPECT_TRUE(read(text(loop, "[0,0,7,0,10],[0,0,7,10,20],[0,0,7,20,30]")).losses.empty());
  EXPECT_EQ(losses(read(text(loop, "[0,0,7,0,10],[0,0,7,0,10]")), Severity::data_loss), twice);
  EXPECT_EQ(losses(read(text(loop, "[0,0,7,0,9000],[1,0,8,3000,4000],[0,0,7,5000,9500]")), Severity::data_loss), twice);
}

TEST(CaptureReader, ALaunchThatIsGivenTwiceIsNoticed) {
  const std::string first = R"({"correlation":1,"ops":[[0,0,7,0,10],[1,0,7,10,20]]})", second = R"({"correlation":2,"ops":[[0,0,7,30,40],[1,0,7,40,50]]})",
                    again = R"({"correlation":1,"ops":[[0,0,7,60,70],[1,0,7,70,80]]})";
  const auto text = [&](const std::string& one, const std::string& other, const std::string& behind = "") {
    return kHeader + chain() + launches(one) + launches(other) + behind + end(behind.empty() ? 4 : 5);
  };
  EXPECT_TRUE(read(text(first, second + "," + again)).losses.empty());
  // Without the call's id operations decide.
  const std::string unnamed = R"({"ops":[[0,0,7,0,10],[1,0,7,10,20]]})", other_end = R"({"ops":[[0,0,7,0,10],[1,0,7,10,21]]})";
  EXPECT_TRUE(read(text(unnamed, other_end)).losses.empty());
  EXPECT_EQ(losses(read(text(unnamed, second + "," + unnamed)), Severity::data_loss), "1 graph launches are in the file twice|");
  for (const std::string behind : {"", "{\"type\":\"graph_end\",\"graph\":0}\n"}) {
    const ir::Recording recording = read(text(first + "," + second, first, behind));
    EXPECT_EQ(losses(recording, Severity::data_loss), "1 graph launches are in the file twice|");
    EXPECT_EQ(recording.graphs[ir::GraphId(0)]->replays.size(), 2U);  // what is converted has it once
    EXPECT_FALSE(knows_replays(recording));
  }
}

TEST(CaptureReader, NothingFollowsARecordOnItsLine) {
  const std::string timing = R"({"type":"timing","graph":0,"samples":3,"median_us":1.5})";
  for (const std::string& text : {kHeader + chain() + timing + launches("") + end(4), kHeader + kSmallGraph.substr(0, kSmallGraph.size() - 1) + timing + "\n" + end(3)})
    EXPECT_NE(losses(read(text), Severity::error).find("more text follows the record"), std::string::npos) << losses(read(text), Severity::error);
}

// cat a b, where a does not end with a newline.
TEST(CaptureReader, FilesCanBeConcatenatedWithoutANewlineBetweenThem) {
  const std::string whole = kHeader + chain() + end(2), open = whole.substr(0, whole.size() - 1);
  for (const std::string mark : {"", "\xef\xbb\xbf"}) {
    const ir::Recording both = read(mark + open + mark + whole);
    EXPECT_TRUE(both.losses.empty()) << losses(both, Severity::error) << losses(both, Severity::data_loss);
    EXPECT_EQ(both.graphs.size(), 2U);
  }
  // The first one is cut inside its last line, or right behind its graph.
  const ir::Recording cut = read(kHeader + chain() + "{\"type\":\"end\",\"rec" + whole);
  EXPECT_EQ(cut.graphs.size(), 2U);
  EXPECT_EQ(losses(cut, Severity::error), "");
  EXPECT_EQ(loss_count(cut, "the last record is cut short"), 1U);
  EXPECT_EQ(loss_count(cut, "a header stands where the recording before it has no end record"), 1U);
  const ir::Recording no_end = read(kHeader + chain().substr(0, chain().size() - 1) + whole);
  EXPECT_EQ(no_end.graphs.size(), 2U);
  EXPECT_EQ(losses(no_end, Severity::data_loss).find("no end record: the recorder was stopped"), std::string::npos);
  EXPECT_EQ(loss_count(no_end, "a header stands where the recording before it has no end record"), 1U);
}

TEST(CaptureReader, AByteOrderMarkIsSkipped) {
  const std::string whole = "\xef\xbb\xbf" + kHeader + chain() + "[]\n" + end(3);
  const ir::Recording recording = read(whole);
  EXPECT_EQ(recording.graphs.size(), 1U);
  ASSERT_EQ(recording.losses.size(), 1U);
  EXPECT_EQ(recording.losses[0].offset_bytes, whole.find("[]\n"));
  EXPECT_NE(recording.text(recording.losses[0].what).find("in line 3"), std::string::npos);
}

TEST(CaptureReader, MissingAllocationsAndBodiesAreCounted) {
  const ir::Recording recording = read(
      kHeader +
      R"({"type":"graph","graph":0,"facts":["nodes","allocations"],"nodes":[{"kind":"child_graph","body":3},)"
      R"({"kind":"mem_alloc","allocation":12},{"kind":"conditional","bodies":[4,-1]}]})"
      "\n" +
      end(2));
  EXPECT_EQ(losses(recording, Severity::data_loss),
            "1 parameters name allocations that the file does not contain|"
            "2 nodes run graphs that the file does not contain before them|");
  const ir::Graph& graph = *recording.graphs[ir::GraphId(0)];
  EXPECT_FALSE(graph.facts.contains(ir::Fact::allocations));
  EXPECT_FALSE(graph.child_graphs[0].body.is_valid());
  EXPECT_EQ(graph.conditionals[0].bodies.count, 2U);
}

TEST(CaptureReader, TextThatIsNotUtf8IsRepairedAndCounted) {
  std::string graph = kSmallGraph;
  graph.replace(graph.find("\"k\""), 3, "\"k\xff\xc3\"");
  const ir::Recording recording = read(kHeader + graph + end(2));
  EXPECT_EQ(losses(recording, Severity::info), "1 text that is not UTF-8 was repaired|");
  EXPECT_EQ(recording.text(recording.functions[ir::FunctionId(0)].name), "k\xef\xbf\xbd\xef\xbf\xbd");
}

// Any single damaged byte gives an error, a loss or a readable change, never a crash or a hang.
TEST(CaptureReader, DamagedBytesNeverCrash) {
  const std::string bytes = write(small_recording());
  std::uint64_t state = 12345;
  for (int i = 0; i < 4000; ++i) {
    std::string damaged = bytes;
    for (int n = 0; n < 1 + i % 3; ++n) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      damaged[(state >> 20) % damaged.size()] = static_cast<char>(state >> 56);
    }
    auto recording = try_read(damaged);
    if (!recording) continue;
    for (const auto& graph : recording->graphs)
      ASSERT_TRUE(graph == nullptr || ir::verify(*graph).has_value());
  }
}

TEST(CaptureReader, FailedCapturesEagerLaunchesAndExecutables) {
  const ir::Recording recording = read(
      kHeader +
      R"({"type":"graph","graph":0,"facts":["nodes"],"nodes":[{"kind":"kernel","launches":7},{"kind":"kernel"}],"info":{"role":"eager"}})"
      "\n"
      R"({"type":"graph","graph":1,"facts":[],"nodes":[],"streams":[{"handle":"0x5"}],"info":{"capture_status":"failed","failed_call":"cuStreamEndCapture",)"
      R"("failed_error":"CUDA_ERROR_STREAM_CAPTURE_UNJOINED","failed_thread":12,"failed_stream":0},"sync_ops":[{"kind":"event_wait","stream":0,"unjoined":true}]})"
      "\n"
      R"({"type":"exec","graph":1,"exec_updates":3,"upload_ns":5,"instantiate_ns":6,"memory_bytes":7})"
      "\n" +
      end(4));
  EXPECT_TRUE(recording.losses.empty()) << losses(recording, Severity::error);
  ASSERT_EQ(recording.graphs.size(), 2U);
  const ir::Graph& eager = *recording.graphs[ir::GraphId(0)];
  EXPECT_EQ(eager.launches[ir::NodeId(0)], 7U);
  EXPECT_EQ(eager.launches[ir::NodeId(1)], 1U);
  const ir::Graph& failed = *recording.graphs[ir::GraphId(1)];
  EXPECT_EQ(recording.text(failed.info.failed_error), "CUDA_ERROR_STREAM_CAPTURE_UNJOINED");
  EXPECT_EQ(failed.info.failed_thread, 12U);
  EXPECT_TRUE(failed.sync_ops[ir::SyncOpId(0)].unjoined);
  EXPECT_EQ(failed.info.exec_updates, 3U);
  EXPECT_EQ(failed.info.upload_ns, 5);
  EXPECT_EQ(failed.info.instantiate_ns, 6);
  EXPECT_EQ(failed.info.memory_bytes, 7U);
}

// --- equal graphs
// ---------------------------------------------------------------------------------------------------------------

TEST(CaptureReader, EqualGraphsAreStoredOnce) {
  const ir::Recording merged =
      read(kHeader + kSmallGraph +
           R"({"type":"instance","graph":9,"of":0,"info":{"key":"b=4","batch_size":4,"begin_sequence":77}})"
           "\n"
           R"({"type":"replays","graph":9,"replays":[{"ops":[[0,0,3,10,20]]}]})"
           "\n"
           R"({"type":"replays","graph":0,"replays":[{"ops":[[0,0,2,1,2]]}]})"
           "\n"
           R"({"type":"timing","graph":9,"samples":3,"median_us":1.5})"
           "\n"
           R"({"type":"instance","graph":10,"of":9,"info":{"instances":5}})"
           "\n"
           R"({"type":"graph_end","graph":9})"
           "\n"
           R"({"type":"graph_end","graph":0})"
           "\n" +
           end(9));
  EXPECT_TRUE(merged.losses.empty()) << losses(merged, Severity::error);
  ASSERT_EQ(merged.graphs.size(), 1U);
  const ir::Graph& graph = *merged.graphs[ir::GraphId(0)];
  EXPECT_EQ(graph.info.instances, 7U);
  ASSERT_EQ(graph.instance_infos.size(), 2U);
  EXPECT_EQ(graph.instance_infos[0].batch_size, 4);
  EXPECT_EQ(graph.instance_infos[0].begin_sequence, 77U);
  EXPECT_EQ(graph.instance_infos[0].untraced.median_us, 1.5);
  ASSERT_EQ(graph.replays.size(), 2U);  // by time
  EXPECT_EQ(graph.replays[ir::ReplayId(0)].instance, 0U);
  EXPECT_EQ(graph.replays[ir::ReplayId(1)].instance, 1U);
  EXPECT_EQ(test::difference(merged, read(write(merged, exporter::Compression::none, true))), "");
}

TEST(CaptureReader, AnEqualGraphAfterTheEndIsKeptIfTheGraphIs) {
  const std::string text = kHeader + kSmallGraph +
                           R"({"type":"graph_end","graph":0})"
                           "\n"
                           R"({"type":"instance","graph":1,"of":0,"info":{"name":"late"}})"
                           "\n" +
                           end(4);
  const ir::Recording kept = read(text);
  EXPECT_EQ(kept.graphs[ir::GraphId(0)]->info.instances, 2U);
  EXPECT_TRUE(kept.late_instances.empty());
  ReadOptions options;
  int seen = 0;
  options.on_graph = [&](ir::Recording& recording, ir::GraphId id) {
    ++seen;
    recording.graphs[id].reset();
  };
  const ir::Recording dropped = read(text, options);
  EXPECT_EQ(seen, 1);
  ASSERT_EQ(dropped.late_instances.size(), 1U);
  EXPECT_EQ(dropped.late_instances[0].of, ir::GraphId(0));
  EXPECT_EQ(dropped.text(dropped.late_instances[0].info.name), "late");
}

TEST(CaptureReader, UseOfAnExecutableIsKeptAfterItsGraphWasDropped) {
  const std::string text = kHeader + kSmallGraph +
                           R"({"type":"instance","graph":1,"of":0,"info":{"name":"again"}})"
                           "\n"
                           R"({"type":"graph_end","graph":0})"
                           "\n"
                           R"({"type":"exec","graph":1,"last_launch_sequence":70})"
                           "\n"
                           R"({"type":"exec","graph":0,"last_launch_sequence":80,"failed_updates":2})"
                           "\n"
                           R"({"type":"exec","graph":1,"last_launch_sequence":90,"destroyed_sequence":95})"
                           "\n" +
                           end(7);
  ReadOptions options;
  options.on_graph = [](ir::Recording& recording, ir::GraphId id) { recording.graphs[id].reset(); };
  const ir::Recording kept = read(text);
  const ir::Recording again = read(write(kept, exporter::Compression::none, true));
  for (const ir::Recording* recording : {&kept, &again}) {
    ASSERT_EQ(recording->executable_uses.size(), 2U);
    EXPECT_EQ(recording->executable_uses[0].instance, 1U);
    EXPECT_EQ(recording->executable_uses[0].last_launch_sequence, 90U);
    EXPECT_EQ(recording->executable_uses[0].destroyed_sequence, 95U);
    EXPECT_EQ(recording->executable_uses[1].instance, 0U);
    EXPECT_EQ(recording->executable_uses[1].last_launch_sequence, 80U);
    EXPECT_EQ(recording->executable_uses[1].failed_updates, 2U);
  }
  const ir::Recording dropped = read(text, options);
  EXPECT_EQ(dropped.executable_uses.size(), 2U);
  EXPECT_TRUE(dropped.losses.empty());
}

TEST(CaptureReader, AnOperationWithoutADeviceSpoilsTheStreams) {
  const ir::Recording recording = read(kHeader + kSmallGraph +
                                       R"({"type":"replays","graph":0,"replays":[{"ops":[[0,-1,3,10,20]]},{"ops":[[0,0,3,30,40]]}]})"
                                       "\n"
                                       R"({"type":"graph_end","graph":0})"
                                       "\n" +
                                       end(4));
  const ir::Graph& graph = *recording.graphs[ir::GraphId(0)];
  EXPECT_FALSE(graph.facts.contains(ir::Fact::replay_streams));
  ASSERT_EQ(graph.spoiled.size(), 1U);
  EXPECT_EQ(recording.text(graph.spoiled[0].reason), "some GPU operations have no device");
  EXPECT_EQ(losses(recording, Severity::data_loss), "1 GPU operations without a device|");
}

// --- several threads
// ------------------------------------------------------------------------------------------------------------------

// Files that are long enough for the threads, with broken records, equal graphs, bodies and two segments in them.
TEST(CaptureReader, ThreadsReadTheSame) {
  std::string text;
  for (const std::uint64_t seed : {1, 2}) {
    std::string part;
    while (part.size() < (std::size_t{3} << 19)) {
      // The numbers of the graphs of one recording start anew in each header's segment.
      part += write(test::random_recording(seed + part.size(), {.graphs = 30, .max_nodes = 60}));
      part.insert(part.rfind("{\"type\":\"end\""), R"({"type":"graph","graph":900001,"facts":[],"nodes":[{}]})"
                                                    "\ngarbage\n");
    }
    text += part;
  }
  text += "{\"type\":\"graph\",\"graph\":";  // and it is cut short
  ReadOptions alone;
  alone.threads = 1;
  const ir::Recording expected = read(text, alone);
  EXPECT_GT(expected.graphs.size(), 100U);
  EXPECT_NE(losses(expected, Severity::data_loss).find("cut short and was left out"), std::string::npos);
  for (const unsigned threads : {2U, 3U, 8U}) {
    ReadOptions options;
    options.threads = threads;
    const ir::Recording recording = read(text, options);
    EXPECT_EQ(test::difference(expected, recording), "");
    EXPECT_EQ(losses(recording, Severity::error), losses(expected, Severity::error));
    EXPECT_EQ(losses(recording, Severity::data_loss), losses(expected, Severity::data_loss));
    EXPECT_EQ(losses(recording, Severity::info), losses(expected, Severity::info));
    ASSERT_EQ(recording.strings.size(), expected.strings.size());
    for (std::uint32_t i = 0; i < recording.strings.size(); ++i)  // even the numbers are the same
      ASSERT_EQ(recording.text(ir::StringId(i)), expected.text(ir::StringId(i)));
    // Handed over in file order, on this thread.
    std::vector<std::string> names, expected_names;
    const auto collect = [](std::vector<std::string>& to, std::thread::id here) {
      return [&to, here](ir::Recording& r, ir::GraphId id) {
        EXPECT_EQ(std::this_thread::get_id(), here);
        to.emplace_back(r.text(r.graphs[id]->info.name));
        r.graphs[id].reset();
      };
    };
    options.on_graph = collect(names, std::this_thread::get_id());
    alone.on_graph = collect(expected_names, std::this_thread::get_id());
    (void)read(text, options);
    (void)read(text, alone);
    EXPECT_EQ(names, expected_names);
  }
}

TEST(CaptureReader, AnErrorInTheMiddleStopsTheThreads) {
  std::string text = write(test::random_recording(7, {.graphs = 30, .max_nodes = 60}));
  while (text.size() < (std::size_t{2} << 20)) text += write(test::random_recording(text.size(), {.graphs = 30, .max_nodes = 60}));
  const std::size_t at = text.size();
  text += R"({"type":"header","format":"cglint-capture","version":"9.0"})"
          "\n" +
          text;
  ReadOptions options;
  options.threads = 4;
  const auto result = try_read(text, options);
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, base::ErrorCode::unsupported);
  EXPECT_EQ(result.error().offset_bytes, at);
}

TEST(CaptureReader, LimitsAreErrors) {
  ReadOptions options;
  options.limits.max_nodes_per_graph = 1;
  auto result = try_read(kHeader + kSmallGraph + end(2), options);
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, base::ErrorCode::limit);
  EXPECT_EQ(result.error().offset_bytes, kHeader.size());
}

TEST(CaptureReader, IsRecognisedByContent) {
  const auto importer = make_capture_importer();
  EXPECT_EQ(importer->sniff(kHeader).match, SniffResult::Match::yes);
  EXPECT_EQ(importer->sniff("{ \"format\" : \"cglint-capture\", \"type\":\"header\"}\n").match,
            SniffResult::Match::yes);
  EXPECT_EQ(importer->sniff(kHeader.substr(0, 25)).match, SniffResult::Match::yes);
  EXPECT_EQ(importer->sniff("{\"traceEvents\":[]}\n{\"x\":\"cglint-capture\"}").match,
            SniffResult::Match::no);
  EXPECT_EQ(importer->sniff("digraph dot {").match, SniffResult::Match::no);
  EXPECT_EQ(importer->sniff("").match, SniffResult::Match::no);
}

}  // namespace
}  // namespace cglint::import
