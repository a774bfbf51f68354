#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "capture/allocation_timeline.h"
#include "capture/allocator_blocks.h"
#include "capture/capture_book.h"
#include "capture/eager_book.h"
#include "capture/elf_lines.h"
#include "capture/elf_symbols.h"
#include "capture/generated_source.h"
#include "capture/graph_record.h"
#include "capture/moment_log.h"
#include "capture/native_frames.h"
#include "capture/process_facts.h"
#include "capture/python_frames.h"
#include "capture/range_stack.h"
#include "capture/record_file.h"
#include "capture/replay_book.h"
#include "capture/stack_table.h"
#include "example.h"
#include "unit/capture/activity_records.h"

namespace cglint::capture {
namespace {

TEST(StackTable, StoresEachStackOnce) {
  StackTable table;
  const std::vector<FrameText> a = {{"model.py", "forward", 812}, {"run.py", "main", 3}};
  const std::vector<FrameText> b = {{"model.py", "forward", 813}, {"run.py", "main", 3}};
  EXPECT_EQ(table.intern({}), kNone);
  const std::uint32_t first = table.intern(a), second = table.intern(b);
  EXPECT_NE(first, second);
  EXPECT_EQ(table.intern(a), first);
  ASSERT_EQ(table.stack(second).size(), 2U);
  EXPECT_EQ(table.frame(table.stack(second)[0]).line, 813U);
  EXPECT_EQ(table.stack(first)[1], table.stack(second)[1]) << "the outer frame is shared";
}

TEST(RangeStack, DomainsNestOnTheirOwn) {
  RangeStack stack;
  EXPECT_TRUE(stack.empty());
  EXPECT_EQ(stack.push(0, "layer.0"), 0);
  EXPECT_EQ(stack.push(7, "engine"), 0);
  EXPECT_EQ(stack.push(0, "moe"), 1);
  EXPECT_EQ(stack.texts(), (std::vector<std::string_view>{"layer.0", "engine", "moe"}));
  const std::uint64_t before = stack.version();
  EXPECT_EQ(stack.pop(7), 0);
  EXPECT_NE(stack.version(), before);
  EXPECT_EQ(stack.pop(7), -1);
  EXPECT_EQ(stack.texts(), (std::vector<std::string_view>{"layer.0", "moe"}));
  EXPECT_EQ(stack.pop(0), 1);
  EXPECT_EQ(stack.push(0, std::string(2 * kMaxRangeTextBytes, 'x')), 1) << "memory is used again";
  EXPECT_EQ(stack.texts()[1].size(), kMaxRangeTextBytes);
  EXPECT_EQ(stack.pop(0), 1);
  EXPECT_EQ(stack.pop(0), 0);
  EXPECT_TRUE(stack.empty());
  for (std::size_t i = 0; i < kMaxRangeDepth + 5; ++i) EXPECT_EQ(stack.push(1, "deep"), static_cast<int>(i));
  EXPECT_EQ(stack.texts().size(), kMaxRangeDepth);
  for (std::size_t i = kMaxRangeDepth + 5; i-- > 0;) EXPECT_EQ(stack.pop(1), static_cast<int>(i));
}

TEST(RangeTable, StoresEachStackOnce) {
  RangeTable table;
  const std::vector<std::string_view> a = {"layer.0", "moe"}, b = {"layer.0"};
  EXPECT_EQ(table.intern({}), kNone);
  const std::uint32_t first = table.intern(a);
  EXPECT_NE(table.intern(b), first);
  EXPECT_EQ(table.intern(a), first);
  EXPECT_EQ(table.ranges(first)[1], "moe");
  for (std::size_t i = table.size(); i < kMaxRangeStacks; ++i) {
    const std::string step = "step " + std::to_string(i);
    const std::vector<std::string_view> texts = {step};
    EXPECT_NE(table.intern(texts), kNone);
  }
  const std::vector<std::string_view> more = {"one more"};
  EXPECT_EQ(table.intern(more), kNone);
  EXPECT_EQ(table.refused(), 1U);
  EXPECT_EQ(table.intern(a), first);
}

FrameText describe(std::uintptr_t address) {
  std::array<NativeFrame, 1> frame;
  frame[0].address = address;
  describe_frames(frame);
  return frame[0].text;
}

TEST(NativeFrames, NameTheirModuleAndSymbol) {
  const FrameText frame = describe(reinterpret_cast<std::uintptr_t>(&::getpid));
  EXPECT_TRUE(frame.is_native);
  EXPECT_NE(frame.function.find("getpid"), std::string::npos) << frame.function;
  EXPECT_NE(frame.file.find(".so"), std::string::npos) << frame.file;
  EXPECT_EQ(describe(16).function, "0x10") << "in no module";
  EXPECT_TRUE(is_cuda_module("/usr/lib/libcuda.so.580.1"));
  EXPECT_FALSE(is_cuda_module("/opt/libtorch_cuda.so"));
}

// Not exported: only the program's own symbol table has it.
constexpr std::uint32_t kHiddenLine = __LINE__ + 3;
[[gnu::noinline]] std::uintptr_t hidden_function() {
  std::array<std::uintptr_t, 1> address{};
  const std::size_t count = native_addresses(address, 1);
  EXPECT_EQ(count, 1U);
  return address[0];
}

TEST(NativeFrames, NameFunctionsThatAreNotExported) {
  const FrameText frame = describe(hidden_function());
  EXPECT_NE(frame.function.find("hidden_function()"), std::string::npos) << frame.function;
  EXPECT_TRUE(std::filesystem::path(frame.file).is_absolute()) << frame.file;
  if (frame.line == 0) {
    EXPECT_NE(frame.function.find("+0x"), std::string::npos) << "without lines, the module and the offset";
  } else {
    EXPECT_NE(frame.file.find("capture_test.cpp"), std::string::npos) << frame.file;
    EXPECT_EQ(frame.line, kHiddenLine);
  }
}

TEST(NativeFrames, WrappersOfKernelsAreKnownByTheirStubs) {
  constexpr std::string_view kStub = "_Z33__device_stub__ZN12_GLOBAL__N_14spinEPfPKfiPfPKfi";
  EXPECT_TRUE(is_launch_wrapper(kStub, "_ZN12_GLOBAL__N_14spinEPfPKfi"));
  EXPECT_FALSE(is_launch_wrapper(kStub, "_ZN12_GLOBAL__N_111launch_spinERKNS_6BufferE"));
  EXPECT_FALSE(is_launch_wrapper(kStub, "main"));
  EXPECT_FALSE(is_launch_wrapper(kStub, ""));
  EXPECT_TRUE(is_launch_wrapper("_Z20__device_stub__scalePf", "scale")) << "extern C";
  EXPECT_FALSE(is_launch_wrapper("scale", "scale"));
}

TEST(ElfSymbols, TakesAnyFile) {
  std::uint64_t offset = 0;
  EXPECT_EQ(ElfSymbols("/nowhere").size(), 0U);
  EXPECT_EQ(ElfSymbols("/").size(), 0U);
  EXPECT_EQ(ElfSymbols("/etc/passwd").find(0, offset), "");
  std::ifstream in("/proc/self/exe", std::ios::binary);
  std::string bytes(std::istreambuf_iterator<char>(in), {});
  const std::size_t whole = ElfSymbols("/proc/self/exe").size();
  ASSERT_GT(whole, 100U);
  const std::string folder = temporary_folder();
  std::mt19937 random(3);
  // The header decides where everything else is; tables lie at the end.
  for (int round = 0; round < 40; ++round) {
    std::string broken = bytes;
    if (round % 2 == 0) {
      broken.resize(random() % bytes.size());
    } else {
      for (int n = 0; n < 3; ++n) broken[random() % 64] = static_cast<char>(random());
      for (int n = 0; n < 3; ++n) broken[bytes.size() - 1 - random() % 4096] = static_cast<char>(random());
    }
    {
      std::ofstream out(folder + "/module", std::ios::binary);
      out << broken;
    }
    const ElfSymbols symbols(folder + "/module");
    for (int n = 0; n < 20; ++n) (void)symbols.find(random(), offset);
    std::array<SourceLine, 2> lines = {SourceLine{0x1000}, SourceLine{0x40000}};
    find_lines(symbols.file(), lines);
    EXPECT_LE(symbols.size(), 2 * whole);
  }
  std::filesystem::remove_all(folder);
}

TEST(EagerBook, FoldsLaunchesOfOneSiteAndArguments) {
  EagerBook book;
  constexpr Handle kFunction = 5;
  EXPECT_FALSE(book.knows(kFunction));
  EXPECT_TRUE(book.wants_stack(kFunction));
  book.describe(kFunction, {"rms_norm", {{0, 8}, {8, 4}}, true, 16, 0});
  std::uint64_t address = 0x1000;
  std::uint32_t count = 4;
  std::array<void*, 2> params = {&address, &count};
  EagerLaunch launch;
  launch.params = params.data();
  launch.origin.stack = 3;
  std::uint64_t sequence = 0;
  const auto add = [&](std::uint64_t value, std::uint32_t stack) {
    address = value;
    launch.origin.stack = stack;
    launch.origin.sequence = ++sequence;
    book.add(kFunction, launch);
  };
  add(0x1000, 3), add(0x1000, 3), add(0, 3), add(0x1000, 4);
  add(0x1000, kNone);  // no call site: counts with the first of equal arguments
  for (std::uint64_t i = 1; i <= 10; ++i) add(0x2000 * i, 3);
  const GraphRecord graph = book.take();
  EXPECT_STREQ(graph.role, "eager");
  ASSERT_EQ(graph.functions.size(), 1U);
  ASSERT_EQ(graph.nodes.size(), 5U) << "four argument sets of site 3, one of site 4";
  std::uint64_t launches = 0;
  for (const NodeRecord& node : graph.nodes) launches += node.launches;
  EXPECT_EQ(launches, sequence) << "every launch counts";
  EXPECT_EQ(book.folded(), 8U);
  ASSERT_EQ(graph.nodes[1].words.size(), 2U);
  EXPECT_EQ(graph.nodes[0].words[0].value, 0x1000U);
  EXPECT_EQ(graph.nodes[1].words[0].value, 0U);
  EXPECT_EQ(graph.nodes[1].words[1].value, 4U);
  EXPECT_EQ(graph.nodes[2].origin.stack, 4U) << "in the order of first launches";
  EXPECT_TRUE(book.take().nodes.empty());
  EXPECT_TRUE(book.wants_stack(kFunction)) << "a new period";
  for (std::uint32_t i = 0; i < kEagerStacksLater; ++i) add(0, 3);
  EXPECT_FALSE(book.wants_stack(kFunction));
  // Packed arguments, at their offsets; too short a buffer is no arguments.
  std::array<unsigned char, 12> packed{};
  packed[8] = 9;
  launch.params = nullptr;
  launch.packed = packed;
  launch.origin.stack = 8;
  book.add(kFunction, launch);
  launch.packed = std::span(packed).first(11);
  launch.origin.stack = 9;
  book.add(kFunction, launch);
  const GraphRecord second = book.take();
  ASSERT_EQ(second.nodes.size(), 3U);
  EXPECT_EQ(second.nodes[1].words[1].value, 9U);
  EXPECT_FALSE(second.nodes[2].words_known);
  for (std::uint32_t i = 0; i < kEagerCompared + 10; ++i) add(i, kNone);
  std::uint64_t counted = 0;
  for (const NodeRecord& node : book.take().nodes) counted += node.launches;
  EXPECT_EQ(counted, kEagerCompared + 10);
  book.add(99, launch);  // never described
  EXPECT_TRUE(book.take().nodes.empty());
}

TEST(CaptureBook, AnUnjoinedStreamIsNamedByItsFork) {
  const auto capture = [](bool joined, bool works_after) {
    CaptureBook book;
    book.begin_capture(5, "global", sync(SyncCall::Kind::begin_capture, 1, 0, 1));
    book.node_captured(5, 10, origin(1, 2));
    book.event_recorded(5, sync(SyncCall::Kind::event_record, 1, 77, 3));
    book.event_waited(5, sync(SyncCall::Kind::event_wait, 2, 77, 4), {}, {});
    book.event_waited(5, sync(SyncCall::Kind::event_wait, 3, 77, 5), {}, {});  // forked, but no work
    book.node_captured(5, 11, origin(2, 6));
    book.event_recorded(5, sync(SyncCall::Kind::event_record, 2, 78, 7));
    if (works_after) book.node_captured(5, 12, origin(2, 8));
    // Through a third stream: it is joined all the same.
    if (joined) book.event_waited(5, sync(SyncCall::Kind::event_wait, 3, 78, 9), {}, {});
    if (joined) book.event_recorded(5, sync(SyncCall::Kind::event_record, 3, 79, 10));
    if (joined) book.event_waited(5, sync(SyncCall::Kind::event_wait, 1, 79, 11), {}, {});
    EXPECT_EQ(book.active().size(), 1U);
    book.capture_failed(1, {"cuStreamEndCapture", "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"});
    book.capture_failed(1, {"later", "other"});
    EXPECT_TRUE(book.active()[0].has_failed);
    book.graph_destroyed(5);  // before the capture ends: its facts stay
    EXPECT_EQ(book.find(5), nullptr);
    auto entry = book.take_failed(1);
    EXPECT_TRUE(book.active().empty());
    EXPECT_FALSE(book.take_failed(1).has_value());
    mark_unjoined(*entry);
    return *entry;
  };
  const GraphEntry left = capture(false, false);
  EXPECT_EQ(left.failure->call, "cuStreamEndCapture") << "the first failure is the cause";
  ASSERT_EQ(left.syncs.size(), 5U);
  EXPECT_TRUE(left.syncs[2].unjoined);
  EXPECT_FALSE(left.syncs[3].unjoined);
  for (const SyncCall& call : capture(true, false).syncs) EXPECT_FALSE(call.unjoined);
  EXPECT_TRUE(capture(true, true).syncs[2].unjoined) << "work after the join";
}

TEST(AllocationTimeline, NewIdsForReusedAddresses) {
  AllocationTimeline timeline;
  timeline.add(0x1000, 0x100, "device", 0, 1);
  const std::uint32_t first = timeline.find(0x10ff)->id;
  EXPECT_EQ(timeline.find(0x1100), nullptr);
  EXPECT_EQ(timeline.find(0xfff), nullptr);
  EXPECT_TRUE(timeline.remove(0x1000, 2));
  EXPECT_FALSE(timeline.remove(0x1000, 3));
  timeline.add(0x1000, 0x80, "device", 0, 4);
  EXPECT_NE(timeline.find(0x1000)->id, first);
  const std::vector<AllocationRow> rows = timeline.take_changes();
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].free_sequence, 2U);
  EXPECT_EQ(rows[1].free_sequence, 0U);
  EXPECT_TRUE(timeline.take_changes().empty());
  timeline.remove(0x1000, 9);
  ASSERT_EQ(timeline.take_changes().size(), 1U) << "a free after it was reported is reported again";
}

TEST(AllocationTimeline, ShortLivedRowsAreBounded) {
  AllocationTimeline timeline;
  std::uint64_t sequence = 0;
  timeline.add(0x10, 0x10, "device", 0, ++sequence);
  timeline.take_changes();
  for (std::size_t i = 0; i < kMaxShortLived + 7; ++i) {
    timeline.add(0x1000, 0x10, "device", 0, ++sequence);
    timeline.remove(0x1000, ++sequence);
  }
  timeline.remove(0x10, ++sequence);
  EXPECT_EQ(timeline.forgotten(), 7U);
  const std::vector<AllocationRow> rows = timeline.take_changes();
  ASSERT_EQ(rows.size(), kMaxShortLived + 1);
  EXPECT_EQ(rows[0].base, 0x10U) << "the free of what was reported is never forgotten";
  EXPECT_EQ(rows[1].id, 8U) << "the oldest are";
}

TEST(AllocationTimeline, AgreesWithAnArrayOfBytes) {
  std::mt19937 random(7);
  AllocationTimeline timeline;
  std::array<std::uint32_t, 512> owner;
  owner.fill(kNone);
  std::uint32_t next = 0;
  std::uint64_t sequence = 0;
  for (int step = 0; step < 4000; ++step) {
    const auto base = static_cast<std::uint32_t>(1 + random() % 480), size = static_cast<std::uint32_t>(1 + random() % 24);
    const auto clear = [&](std::uint32_t id) {
      for (std::uint32_t& each : owner)
        if (each == id) each = kNone;
    };
    switch (random() % 3) {
      case 0:
        for (std::uint32_t i = base; i < base + size; ++i)
          if (owner[i] != kNone) clear(owner[i]);
        for (std::uint32_t i = base; i < base + size; ++i) owner[i] = next;
        ++next;
        timeline.add(base, size, "device", 0, ++sequence);
        break;
      case 1: {
        const bool starts = owner[base] != kNone && owner[base - 1] != owner[base];
        EXPECT_EQ(timeline.remove(base, ++sequence), starts);
        if (starts) clear(owner[base]);
        break;
      }
      default:
        for (std::uint32_t i = base; i < base + size; ++i)
          if (owner[i] != kNone && owner[i - 1] != owner[i]) clear(owner[i]);
        timeline.remove_range(base, size, ++sequence);
    }
    for (std::uint32_t i = 0; i < owner.size(); ++i) {
      const AllocationRow* const row = timeline.find(i);
      ASSERT_EQ(row == nullptr ? kNone : row->id, owner[i]) << "byte " << i << " after step " << step;
    }
  }
}

TEST(CaptureBook, EdgesKnowTheWaitTheyCameFrom) {
  CaptureBook book;
  fork_and_join(book, 5);
  const GraphEntry& entry = *book.find(5);
  ASSERT_EQ(entry.syncs.size(), 6U);
  EXPECT_EQ(entry.syncs[2].record, 1U);
  EXPECT_EQ(entry.syncs[4].record, 3U);
  ASSERT_EQ(entry.edge_sync.size(), 2U) << "edges along a stream came from no call";
  EXPECT_EQ(entry.edge_sync.at({10, 11}), 2U);
  EXPECT_EQ(entry.edge_sync.at({11, 13}), 4U);
  EXPECT_STREQ(entry.status, "ok");
}

TEST(CaptureBook, AHandleThatComesBackIsAnotherGraph) {
  CaptureBook book;
  fork_and_join(book, 5);
  book.graph_created(5);
  EXPECT_EQ(book.find(5), nullptr);
  book.node_created(5, 10, origin(3, 20));
  EXPECT_EQ(book.find(5)->nodes.at(10).stream, 3U);
  book.node_created(5, 10, origin(4, 21));
  EXPECT_EQ(book.find(5)->nodes.at(10).stream, 3U) << "the first statement wins";
  book.node_destroyed(5, 10);
  EXPECT_TRUE(book.find(5)->nodes.empty());
  book.graph_destroyed(5);
  EXPECT_EQ(book.graph_count(), 0U);
}

TEST(Words, AStructIsCutIntoWords) {
  std::array<unsigned char, 23> bytes;
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i + 1);
  std::vector<WordRecord> words;
  append_words(3, bytes, words);
  ASSERT_EQ(words.size(), 5U);  // 8 + 8 + 4 + 2 + 1
  EXPECT_EQ(words[0].value, 0x0807060504030201U);
  EXPECT_EQ(words[2].size_bytes, 4U);
  EXPECT_EQ(words[2].value, 0x14131211U);
  EXPECT_EQ(words[4].offset_bytes, 22U);
  EXPECT_EQ(words[4].value, 23U);
}

TEST(GraphRecord, WhatSomeNodesLackIsSpoiledAndWhatAllLackIsNotStated) {
  StackTable stacks;
  AllocationTimeline timeline;
  GraphRecord graph = fork_graph();
  graph.nodes[1].words_known = false;
  graph.nodes[1].words.clear();
  std::string lines = segment(graph, timeline, stacks);
  EXPECT_NE(lines.find("\"fact\":\"kernel_params\",\"reason\":\"the parameters of 1 of 4"), std::string::npos)
      << lines;
  EXPECT_EQ(lines.find("source_frames"), std::string::npos);
  for (NodeRecord& node : graph.nodes) node.words_known = false;
  graph.failure = "";
  lines = segment(graph, timeline, stacks);
  EXPECT_EQ(lines.find("kernel_params"), std::string::npos);
  graph.failure = "the driver said no";
  lines = segment(graph, timeline, stacks);
  EXPECT_NE(lines.find("\"facts\":[]"), std::string::npos) << lines;
}

TEST(ProcessFacts, TheDriversReleaseIsInTheNameOfItsFile) {
  EXPECT_EQ(driver_release_of("/usr/lib/libcuda.so.580.159.04"), "580.159.04");
  EXPECT_EQ(driver_release_of("libcuda.so.580.159.04"), "580.159.04");
  EXPECT_EQ(driver_release_of("/usr/lib/libcuda.so.1"), "");
  EXPECT_EQ(driver_release_of("/usr/lib/libcuda.so"), "");
}

TEST(RecordFile, NamesCarryProcessAndRank) {
  EXPECT_EQ(record_path("", false, "python3", -1, 47), "python3.47.cgl.jsonl");
  EXPECT_EQ(record_path("/out/", false, "python3", 2, 47), "/out/python3.rank2.47.cgl.jsonl");
  EXPECT_EQ(record_path("/out", true, "python3", -1, 47), "/out/python3.47.cgl.jsonl");
  EXPECT_EQ(record_path("/out/run.cgl.jsonl", false, "python3", 0, 47), "/out/run.rank0.47.cgl.jsonl");
  EXPECT_EQ(record_path("a.b/run", false, "python3", -1, 47), "a.b/run.47.cgl.jsonl");
  EXPECT_EQ(record_path("", false, "", -1, 47), "cglint.47.cgl.jsonl");
}

TEST(RecordFile, AForksChildDoesNotWriteTheParentsFile) {
  const std::string folder = temporary_folder();
  RecordFile file;
  ASSERT_EQ(file.open(folder + "/a"), "");
  ASSERT_TRUE(file.write("{\"type\":\"header\"}\n"));
  EXPECT_NE(RecordFile().open(folder + "/a"), "") << "never replaces a file";
  const pid_t child = fork();
  if (child == 0) _exit(!file.is_open() && !file.write("child\n") && !file.write_end() ? 0 : 1);
  int status = 1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  ASSERT_TRUE(file.write_end());
  std::ifstream in(folder + "/a");
  std::stringstream text;
  text << in.rdbuf();
  EXPECT_EQ(text.str(), "{\"type\":\"header\"}\n{\"type\":\"end\",\"records\":1}\n");
  std::filesystem::remove_all(folder);
}

TEST(RecordFile, PastTheLimitOfAFileTheProgramGoesOn) {
  const std::string folder = temporary_folder();
  const pid_t child = fork();
  if (child == 0) {
    static int signals = 0;
    signal(SIGXFSZ, [](int) { ++signals; });  // the program's own handler is not called either
    const rlimit limit{4096, 4096};
    setrlimit(RLIMIT_FSIZE, &limit);
    RecordFile file;
    const bool good = file.open(folder + "/a").empty() && file.write(std::string(4000, 'x') + "\n") && !file.write(std::string(4000, 'y') + "\n") && !file.is_open();
    sigset_t pending, blocked;
    sigpending(&pending);
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    raise(SIGXFSZ);  // and is as it was before
    _exit(good && sigismember(&pending, SIGXFSZ) == 0 && sigismember(&blocked, SIGXFSZ) == 0 && signals == 1 ? 0 : 1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(std::filesystem::file_size(folder + "/a"), 4096U);
  std::filesystem::remove_all(folder);
}

TEST(ReplayBook, LayoutsOfUnknownVersionsAreNotGuessed) {
  for (const ActivityKind kind : {ActivityKind::kernel, ActivityKind::memcpy, ActivityKind::memset})
    for (const std::uint32_t unknown : {0U, 17U, 18U, 29U, 100U, 129999U, 130600U, 140000U})
      EXPECT_FALSE(activity_layout(kind, unknown).has_value()) << unknown;
}

TEST(ReplayBook, RecordsOfEveryVersionAreReadByOffset) {
  for (const VersionRecords& version : kVersionRecords) {
    const std::pair<ActivityKind, std::string_view> records[] = {
        {ActivityKind::kernel, version.kernel}, {ActivityKind::memcpy, version.memcpy}, {ActivityKind::memset, version.memset}};
    for (const auto& [kind, name] : records) {
      const auto layout = activity_layout(kind, version.version);
      ASSERT_TRUE(layout.has_value()) << version.version;
      EXPECT_EQ(layout->record, name) << version.version;
      ActivityOp made;
      made.start_ns = 0x1122334455667788, made.end_ns = 0x1122334455667799;
      made.device = 3, made.stream = 17, made.correlation = 4711, made.node_id = std::uint64_t{5} << 32 | 9;
      const std::vector<unsigned char> record = made_record(name, 10, made);
      ASSERT_FALSE(record.empty()) << name;
      const ActivityOp op = read_activity(kind, *layout, record.data());
      EXPECT_EQ(op.kind, kind);
      EXPECT_EQ(op.start_ns, made.start_ns) << name;
      EXPECT_EQ(op.end_ns, made.end_ns) << name;
      EXPECT_EQ(op.device, made.device) << name;
      EXPECT_EQ(op.stream, made.stream) << name;
      EXPECT_EQ(op.correlation, made.correlation) << name;
      EXPECT_EQ(op.node_id, made.node_id) << name;
    }
  }
}

ActivityOp op(std::uint64_t node, std::uint32_t correlation, std::uint64_t start, std::uint64_t end) {
  ActivityOp op;
  op.node_id = node, op.correlation = correlation, op.start_ns = start, op.end_ns = end, op.stream = 7;
  return op;
}

// A clone of a node, in the driver's graph number `graph`.
std::uint64_t clone(std::uint64_t node, std::uint64_t graph = 9) {
  return graph << 32 | node;
}

TEST(ReplayBook, KeepsTheFirstLaunchesAndCountsOddRecords) {
  ReplayBook book(2);
  book.add_graph(4, 2);
  book.add_clone(clone(100), 4, 0, "kernel");
  book.add_clone(clone(101), 4, 1, "memset");
  std::string out;
  for (std::uint32_t launch = 1; launch <= 3; ++launch) {
    book.add_op(op(clone(101), launch, launch * 100 + 50, launch * 100 + 60));
    book.write_finished(out);
    book.add_op(op(clone(100), launch, launch * 100, launch * 100 + 40));
    if (launch < 2) {
      EXPECT_EQ(out, "");
    }
  }
  book.add_op(op(0, 1, 1, 2));  // of no graph
  book.add_op(op(clone(100), 1, 5, 4));
  book.add_op(op(clone(100), 0, 5, 6));
  book.add_op(op(999, 1, 5, 6));
  EXPECT_EQ(book.odd(), 2U);
  EXPECT_EQ(book.unknown(), 1U);
  book.write_finished(out);
  EXPECT_EQ(out,
            "{\"type\":\"replays\",\"graph\":4,\"base_ns\":\"100\",\"replays\":[{\"correlation\":1,"
            "\"complete\":true,\"ops\":[[0,0,7,0,40],"
            "[1,0,7,50,60,\"kernel\"]]},{\"correlation\":2,\"complete\":true,\"ops\":[[0,0,7,100,140],[1,0,7,"
            "150,160,\"kernel\"]]}]}\n"
            "{\"type\":\"graph_end\",\"graph\":4}\n");
  out.clear();
  book.write_all(out);
  EXPECT_EQ(out, "") << "written once";
}

TEST(ReplayBook, NothingIsKeptOfGraphsThatAreGone) {
  ReplayBook book(2);
  std::string out;
  const auto lines = [&] { return std::count(out.begin(), out.end(), '\n'); };
  for (std::uint32_t graph = 0; graph < 4; ++graph) {
    book.add_graph(graph, 1);
    book.add_clone(clone(1, graph), graph, 0, "kernel");
  }
  book.end_graph(0, 0, out);  // never launched
  EXPECT_EQ(out, "{\"type\":\"graph_end\",\"graph\":0}\n");
  book.add_op(op(clone(1, 1), 11, 10, 20));
  out.clear();
  book.end_graph(1, 1, out);  // launched less often than was asked for
  EXPECT_EQ(lines(), 2) << out;
  out.clear();
  book.end_graph(2, 5, out);
  EXPECT_EQ(out, "") << "its launches are on their way";
  book.add_op(op(clone(1, 2), 21, 10, 20));
  book.add_op(op(clone(1, 2), 22, 30, 40));
  book.write_finished(out);
  EXPECT_EQ(lines(), 2) << out;
  book.close_graph(3);
  book.close_graph(1);  // gone already
  EXPECT_FALSE(book.is_waiting());
  out.clear();
  for (const std::uint64_t graph : {0U, 1U, 2U}) book.add_op(op(clone(1, graph), 31, 50, 60));
  EXPECT_EQ(book.unknown(), 0U) << "later launches of graphs whose lines are written";
  book.add_op(op(clone(1, 3), 41, 50, 60));
  book.write_all(out);
  EXPECT_EQ(lines(), 2) << out;
  EXPECT_NE(out.find("\"graph\":3"), std::string::npos) << out;
}

TEST(ReplayBook, ALaunchWithRecordsMissingIsNotComplete) {
  ReplayBook book(2);
  book.add_graph(0, 2);
  book.add_clone(100, 0, 0, "kernel");
  book.add_op(op(100, 1, 10, 20));
  std::string out;
  book.write_finished(out);
  EXPECT_EQ(out, "");
  book.write_all(out);
  EXPECT_NE(out.find("\"complete\":false"), std::string::npos) << out;
}

TEST(PythonFrames, AProcessWithoutPythonHasNone) {
  std::vector<FrameText> frames;
  EXPECT_EQ(python_frames(frames), FramesResult::no_python);
}

TEST(AllocationTimeline, AFreeOfWhatAGraphHoldsIsTold) {
  AllocationTimeline timeline;
  timeline.add(0x1000, 0x100, "device", 0, 1);
  timeline.add(0x2000, 0x100, "device", 0, 2);
  timeline.hold(0x1080);
  timeline.hold(0x1100);  // behind it
  timeline.hold(0);
  EXPECT_TRUE(timeline.remove(0x2000, 3));
  EXPECT_FALSE(timeline.take_held_freed());
  EXPECT_TRUE(timeline.remove(0x1000, 4));
  EXPECT_TRUE(timeline.take_held_freed());
  EXPECT_FALSE(timeline.take_held_freed());
  // The next one at this place is not held.
  timeline.add(0x1000, 0x100, "device", 0, 5);
  EXPECT_TRUE(timeline.remove(0x1000, 6));
  EXPECT_FALSE(timeline.take_held_freed());
}

TEST(EagerBook, LaunchesOnAnotherStreamHaveTheirOwnRow) {
  EagerBook book;
  constexpr Handle kFunction = 5;
  book.describe(kFunction, {"spin", {}, false, 16, 0});
  EagerLaunch launch;
  launch.origin.stack = 3;
  for (const std::uint32_t stream : {1U, 1U, 2U, 1U}) {
    ++launch.origin.sequence;
    launch.origin.stream = stream;
    book.add(kFunction, launch);
  }
  const GraphRecord graph = book.take();
  ASSERT_EQ(graph.nodes.size(), 2U);
  EXPECT_EQ(graph.nodes[0].launches, 3U);
  EXPECT_EQ(graph.nodes[1].launches, 1U);
  EXPECT_EQ(graph.nodes[1].origin.stream, 2U);
  EXPECT_EQ(graph.nodes[1].origin.sequence, 3U);
}

TEST(EagerBook, CopiesThatACaptureMissesStandAmongTheLaunches) {
  EagerBook book;
  NodeOrigin origin;
  origin.sequence = 5;
  origin.stack = 3;
  origin.stream = 9;
  book.add_copy("memset", origin);
  origin.sequence = 8;
  book.add_copy("memset", origin);  // from the same line
  origin.stack = 4;
  book.add_copy("memcpy", origin);
  const GraphRecord graph = book.take();
  ASSERT_EQ(graph.nodes.size(), 2U);
  EXPECT_EQ(graph.nodes[0].kind, "memset");
  EXPECT_EQ(graph.nodes[0].launches, 2U);
  EXPECT_EQ(graph.nodes[0].origin.sequence, 5U);
  EXPECT_EQ(graph.nodes[1].kind, "memcpy");
  EXPECT_TRUE(book.take().nodes.empty());
  for (std::uint32_t i = 0; i < kEagerCopies + 2; ++i) {
    origin.stack = i;
    book.add_copy("memcpy", origin);
  }
  EXPECT_EQ(book.folded(), 2U);
}

TEST(AllocatorBlocks, BadOnesAreRefused) {
  const std::vector<std::uint64_t> good = {0x1000, 512, 2, 0, 0, 0};
  EXPECT_EQ(check_blocks(good, 1), "");
  EXPECT_EQ(check_blocks({}, 0), "");
  EXPECT_EQ(check_blocks(std::span(good).first(5), 1), "a block is cut short");
  EXPECT_EQ(check_blocks(good, 0), "a block's pool is unknown");
  EXPECT_EQ(check_blocks(std::vector<std::uint64_t>{0x1000, 0, 2, 0, 0, 0}, 1), "a block's size is impossible");
  EXPECT_EQ(check_blocks(std::vector<std::uint64_t>{0x1000, ~std::uint64_t{0}, 2, 0, 0, 0}, 1), "a block's size is impossible");
  EXPECT_EQ(check_blocks(std::vector<std::uint64_t>{0x1000, 512, 3, 0, 0, 0}, 1), "a block's state is unknown");
}

TEST(AllocatorBlocks, WhenTheyWereHandedOutIsToldWhereItIsKnown) {
  const std::vector<std::uint64_t> words = {0x1000, 512, 0, 0, 0, 7, 0x2000, 512, 2, 0, 0, 7, 0x3000, 512, 0, 0, 0, 0};
  const std::vector<std::string_view> pools = {""};
  std::string lines;
  write_blocks(words, pools, 9, lines);
  EXPECT_EQ(lines,
            "{\"type\":\"allocator_blocks\",\"process\":0,\"sequence\":9,\"blocks\":[{\"base\":\"0x1000\",\"size_bytes\":512,\"state\":\"active\","
            "\"alloc_sequence\":7},{\"base\":\"0x2000\",\"size_bytes\":512,\"state\":\"free\",\"alloc_sequence\":7},{\"base\":\"0x3000\",\"size_bytes\":512,\"state\":\"active\"}]}\n");
}

TEST(MomentLog, AnEventComesAfterTheLastMomentThatIsNotLater) {
  MomentLog log;
  EXPECT_EQ(log.before(1000), 0U);
  for (std::int64_t i = 1; i <= 10; ++i) log.add({100 * i, static_cast<std::uint64_t>(i)});
  EXPECT_EQ(log.before(99), 0U);
  EXPECT_EQ(log.before(100), 1U);
  EXPECT_EQ(log.before(549), 5U);
  EXPECT_EQ(log.before(5000), 10U);
  EXPECT_EQ(log.before(549, {{500, 77}, {550, 99}}), 77U);
  // Threads that asked the clock in another order than they got their numbers.
  log.add({1300, 13});
  log.add({1200, 12});
  EXPECT_EQ(log.before(1250), 12U);
  EXPECT_EQ(log.before(1300), 13U);
}

TEST(MomentLog, OldMomentsAreThinned) {
  MomentLog log;
  const auto most = static_cast<std::int64_t>(3 * MomentLog::kMost);
  for (std::int64_t i = 1; i <= most; ++i) log.add({10 * i, static_cast<std::uint64_t>(i)});
  EXPECT_EQ(log.before(10 * most), static_cast<std::uint64_t>(most));
  EXPECT_EQ(log.before(10 * most - 5), static_cast<std::uint64_t>(most - 1));
  // A lower bound, where the moment itself is gone.
  for (const std::int64_t i : {most / 2, most / 3, most / 9}) {
    EXPECT_LE(log.before(10 * i), static_cast<std::uint64_t>(i));
    EXPECT_GT(log.before(10 * i), static_cast<std::uint64_t>(i / 2));
  }
}

TEST(AllocatorBlocks, ManyAreSeveralLinesOfOneMoment) {
  std::vector<std::uint64_t> words;
  for (std::uint64_t i = 0; i < 70000; ++i) words.insert(words.end(), {i << 12, 4096, i % 3, i, i % 2, 0});
  const std::vector<std::string_view> pools = {"", "graph"};
  std::string lines;
  write_blocks(words, pools, 9, lines);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 2);
  lines.clear();
  write_blocks({}, pools, 9, lines);
  EXPECT_EQ(lines, "{\"type\":\"allocator_blocks\",\"process\":0,\"sequence\":9,\"blocks\":[]}\n");
}

const char* const kGeneratedPath = "/tmp/torchinductor_user/j3/cj3aaa4oa3cxacjerv7baomyivvg5jvg7usxhp2tlidhqirw7j2s.py";

TEST(GeneratedSource, FilesAreKnownByTheirNames) {
  EXPECT_TRUE(is_generated_file(kGeneratedPath));
  EXPECT_TRUE(is_generated_file("<eval_with_key>.12 from /a/b.py:3 in f"));
  EXPECT_FALSE(is_generated_file("/tmp/torchinductor_user/xx/cj3aaa4oa3cxacjerv7baomyivvg5jvg7usxhp2tlidhqirw7j2s.py"));
  EXPECT_FALSE(is_generated_file("/home/user/co/config.py"));
  EXPECT_FALSE(is_generated_file("/home/user/as/cascade_attention_kernels_v2.py"));
  EXPECT_FALSE(is_generated_file("<string>"));
  EXPECT_FALSE(is_generated_file(""));
  EXPECT_FALSE(is_generated_file("/c.py"));
}

TEST(GeneratedSource, LinesAreFollowedByTheCommentAbove) {
  const SourceComments comments(
      "# AOT ID: ['0_inference']\n"
      "# Topologically Sorted Source Nodes: [a], Original ATen: [aten.mm], File: /m/other.py:1 in f\n"
      "triton_0 = async_compile.triton('x')\n"
      "def call(args):\n"
      "    arg0_1, = args\n"
      "        # Topologically Sorted Source Nodes: [mm], Original ATen: [aten.mm], File: /m/a b.py:812 in forward, File: /m/model.py:813 in forward\n"
      "        extern_kernels.mm(a, b, out=c)\n"
      "        del a\n"
      "        # Topologically Sorted Source Nodes: [add], Original ATen: [aten.add]\n"
      "        triton_0.run(c)\n"
      "        # File: /m/model.py:820, code: y = x\r\n"
      "        # [Provenance debug handles] triton_0:2\n"
      "        stream0 = get_raw_stream(0)\n"
      "        triton_0.run(d)\n");
  const auto at = [&](std::uint32_t line) {
    const FrameText frame = comments.find(line);
    return frame.file + ":" + std::to_string(frame.line) + " " + frame.function;
  };
  EXPECT_EQ(at(7), "/m/a b.py:812 forward");
  EXPECT_EQ(at(8), "/m/a b.py:812 forward");
  EXPECT_EQ(at(5), ":0 ");   // the comment above belongs to something outside the function
  EXPECT_EQ(at(10), ":0 ");  // a comment that does not tell
  EXPECT_EQ(at(14), "/m/model.py:820 ");
  EXPECT_EQ(at(0), ":0 ");
  EXPECT_EQ(at(5000), ":0 ");
}

TEST(GeneratedSource, HostileFilesTellNothing) {
  for (const char* text : {"# File: ", "# File: x", "# File: :5", "# File: x:0", "# File: x:-1", "# File: x:99999999999", "# File: x:5y",
                           "# File: x: in f", "#File: in ", ""})
    EXPECT_TRUE(SourceComments(text).find(2).file.empty()) << text;
  EXPECT_TRUE(SourceComments("# File: " + std::string(1 << 20, 'x') + ":7 in f\n").find(2).file.empty());
  EXPECT_TRUE(SourceComments("# File: " + std::string(5000, 'x') + ":7 in f\n").find(2).file.empty());
  std::string many;
  for (std::size_t i = 0; i <= SourceComments::kMaxComments; ++i) many += "# File: x:1 in f\n";
  EXPECT_TRUE(SourceComments(many).find(2).file.empty());
}

TEST(GeneratedSource, FramesOfGeneratedFilesAreMarkedAndFollowed) {
  const std::string folder = temporary_folder();
  const std::string file = folder + "/j3/cj3aaa4oa3cxacjerv7baomyivvg5jvg7usxhp2tlidhqirw7j2s.py";
  std::filesystem::create_directories(folder + "/j3");
  std::ofstream(file) << "def call(args):\n    # Source Nodes: [mm], File: /m/model.py:812 in forward\n    extern_kernels.mm(a)\n";
  GeneratedSources sources;
  std::vector<FrameText> frames = {{file, "call", 3}, {"/v/site-packages/torch/_inductor/utils.py", "run", 9}, {"/v/site-packages/cglint/bin/cglint_python_helper/sitecustomize.py", "wrapper", 5},
                                   {"/m/main.py", "main", 1}};
  sources.follow(frames);
  ASSERT_EQ(frames.size(), 4U);
  EXPECT_TRUE(frames[0].is_generated);
  EXPECT_EQ(frames[1].file + " " + frames[1].function, "/m/model.py forward");
  EXPECT_EQ(frames[1].line, 812U);
  EXPECT_FALSE(frames[1].is_generated || frames[3].is_generated);
  // What is not a file, or is not there, is marked and not followed.
  const std::string a_folder = folder + "/j3/cj3bbb4oa3cxacjerv7baomyivvg5jvg7usxhp2tlidhqirw7j2s.py";
  const std::string a_pipe = folder + "/j3/cj3ccc4oa3cxacjerv7baomyivvg5jvg7usxhp2tlidhqirw7j2s.py";
  std::filesystem::create_directories(a_folder);
  ASSERT_EQ(mkfifo(a_pipe.c_str(), 0600), 0);
  for (const std::string& other : {a_folder, a_pipe, std::string(kGeneratedPath), std::string("<eval_with_key>.1")}) {
    std::vector<FrameText> alone = {{other, "call", 3}};
    sources.follow(alone);
    EXPECT_EQ(alone.size(), 1U) << other;
    EXPECT_TRUE(alone[0].is_generated) << other;
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace cglint::capture
