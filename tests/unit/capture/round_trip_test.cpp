#include <gtest/gtest.h>

#include "capture/eager_book.h"
#include "capture/record_file.h"
#include "example.h"
#include "import/common/importer.h"

namespace cglint::capture {
namespace {

// What is written must be what the importer reads.
TEST(GraphRecord, IsReadBackByTheImporter) {
  StackTable stacks;
  AllocationTimeline timeline;
  timeline.add(0x7f0000001000, 4096, "vmm", 0, 1);
  GraphRecord graph = fork_graph();
  const std::vector<FrameText> frames = {{"model.py", "forward", 812}};
  for (NodeRecord& node : graph.nodes) node.origin.stack = stacks.intern(frames);
  const std::string folder = temporary_folder();
  RecordFile file;
  ASSERT_EQ(file.open(folder + "/deep/run.cgl.jsonl"), "");
  ASSERT_TRUE(file.write(segment(graph, timeline, stacks)));
  ASSERT_TRUE(file.write_end());
  auto read = import::read_file(file.path(), {});
  ASSERT_TRUE(read.has_value()) << read.error().message;
  const ir::Recording& recording = read.value();
  EXPECT_TRUE(recording.losses.empty()) << recording.text(recording.losses[0].what);
  ASSERT_EQ(recording.graphs.size(), 1U);
  const ir::Graph& got = **recording.graphs.begin();
  ASSERT_EQ(got.node_count(), 4U);
  ASSERT_EQ(got.edge_count(), 4U);
  EXPECT_TRUE(got.spoiled.empty());
  using ir::Fact;
  EXPECT_TRUE(got.facts.contains_all({Fact::nodes, Fact::creation_order, Fact::edges, Fact::edge_data,
                                      Fact::kernel_names, Fact::launch_config, Fact::kernel_attributes,
                                      Fact::kernel_params, Fact::allocations, Fact::capture_streams,
                                      Fact::sync_ops, Fact::source_frames, Fact::capture_status}));
  EXPECT_FALSE(got.facts.contains(Fact::replay_streams));
  EXPECT_FALSE(got.facts.contains(Fact::nvtx));
  const auto params = got.params_of(got.kernels[2]);
  ASSERT_EQ(params.size(), 2U);
  EXPECT_EQ(params[0].value, 0x7f0000001020U);
  EXPECT_EQ(params[0].allocation_offset, 0x20U);
  EXPECT_FALSE(params[1].allocation.is_valid());
  EXPECT_EQ(recording.streams[got.capture_stream[ir::NodeId(1)]].handle, 2U);
  EXPECT_EQ(recording.streams[got.capture_stream[ir::NodeId(1)]].priority, -5);
  EXPECT_EQ(got.sync_ops.size(), 6U);
  EXPECT_EQ(recording.frames(got.stack[ir::NodeId(3)])[0].line, 812U);
  std::filesystem::remove_all(folder);
}

ir::Recording read_back(const std::string& lines) {
  std::string text;
  write_header("test", false, 1, text);
  write_process(this_process(), text);
  text += lines;
  const std::string folder = temporary_folder();
  RecordFile file;
  EXPECT_EQ(file.open(folder + "/run.cgl.jsonl"), "");
  EXPECT_TRUE(file.write(text));
  EXPECT_TRUE(file.write_end());
  auto read = import::read_file(file.path(), {});
  EXPECT_TRUE(read.has_value());
  std::filesystem::remove_all(folder);
  return std::move(read.value());
}

TEST(GraphRecord, RangesFailuresAndExecutablesAreReadBack) {
  using ir::Fact;
  StackTable stacks;
  RangeTable ranges;
  GraphRecord graph = fork_graph();
  const std::vector<std::string_view> layer = {"layer.0", "moe"};
  graph.nodes[1].origin.nvtx = ranges.intern(layer);
  graph.nvtx_known = graph.eager_known = true;
  graph.instantiate_ns = 5000;
  graph.memory_bytes = 2 << 20;
  std::string lines;
  write_graph(graph, {stacks, ranges, {}}, lines);
  ExecFacts exec;
  exec.updates = 3, exec.upload_ns = 700;
  write_exec(0, exec, false, lines);
  write_graph_end(0, lines);
  exec.refused_updates = 1, exec.last_launch_sequence = 90, exec.destroyed_sequence = 91;
  write_exec(0, exec, true, lines);
  GraphRecord failed;
  failed.number = 1;
  failed.role = "captured";
  failed.edges_known = false;
  failed.entry = graph.entry;
  failed.entry.status = "invalidated";
  const std::vector<FrameText> frames = {{"model.py", "forward", 812}, {"/lib/libtorch.so", "at::empty+0x12", 0, true}};
  failed.entry.failure = Failure{"cuMemAlloc_v2", "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", true, true, 9, 44, 4711,
                                 stacks.intern(frames)};
  failed.entry.syncs[2].unjoined = true;
  failed.functions.emplace_back().name = "_Z4stepPfi";
  failed.nodes.resize(2);
  failed.nodes[0].kind = "kernel";
  failed.nodes[0].function = 0;
  failed.nodes[1].kind = "memset";
  write_graph(failed, {stacks, ranges, {}}, lines);
  write_graph_end(1, lines);
  const ir::Recording recording = read_back(lines);
  EXPECT_TRUE(recording.losses.empty()) << recording.text(recording.losses[0].what);
  ASSERT_EQ(recording.graphs.size(), 2U);
  const ir::Graph& got = *recording.graphs[ir::GraphId(0)];
  EXPECT_TRUE(got.facts.contains_all({Fact::nvtx, Fact::eager_launches, Fact::instantiate_info}));
  ASSERT_EQ(recording.nvtx(got.nvtx[ir::NodeId(1)]).size(), 2U);
  EXPECT_EQ(recording.text(recording.nvtx(got.nvtx[ir::NodeId(1)])[1]), "moe");
  EXPECT_FALSE(got.nvtx[ir::NodeId(0)].is_valid());
  EXPECT_EQ(got.info.instantiate_ns, 5000);
  EXPECT_EQ(got.info.memory_bytes, 2U << 20);
  EXPECT_EQ(got.info.exec_updates, 3U);
  EXPECT_EQ(got.info.upload_ns, 700);
  ASSERT_EQ(recording.executable_uses.size(), 1U);
  EXPECT_EQ(recording.executable_uses[0].last_launch_sequence, 90U);
  EXPECT_EQ(recording.executable_uses[0].destroyed_sequence, 91U);
  EXPECT_EQ(recording.executable_uses[0].failed_updates, 1U);
  const ir::Graph& lost = *recording.graphs[ir::GraphId(1)];
  EXPECT_EQ(lost.info.capture_status, ir::CaptureStatus::invalidated);
  EXPECT_EQ(recording.text(lost.info.failed_call), "cuMemAlloc_v2");
  EXPECT_EQ(recording.text(lost.info.failed_error), "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED");
  EXPECT_EQ(lost.info.failed_thread, 4711U);
  EXPECT_EQ(recording.streams[lost.info.failed_stream].handle, 9U);
  const auto stack = recording.frames(lost.info.failed_stack);
  ASSERT_EQ(stack.size(), 2U);
  EXPECT_EQ(stack[0].kind, ir::Frame::Kind::python);
  EXPECT_EQ(stack[1].kind, ir::Frame::Kind::native);
  EXPECT_TRUE(lost.sync_ops[ir::SyncOpId(2)].unjoined);
  EXPECT_FALSE(lost.facts.contains(Fact::edges));
  EXPECT_FALSE(lost.facts.contains(Fact::kernel_params));
  EXPECT_FALSE(lost.facts.contains(Fact::copy_params));
  EXPECT_TRUE(lost.facts.contains_all({Fact::nodes, Fact::kernel_names, Fact::capture_status, Fact::sync_ops}));
}

TEST(EagerBook, IsReadBackByTheImporter) {
  EagerBook book;
  book.describe(5, {"rms_norm", {{0, 8}}, true, 16, 0});
  std::uint64_t address = 0x1000;
  std::array<void*, 1> params = {&address};
  EagerLaunch launch;
  launch.grid = launch.block = {1, 1, 1};
  launch.params = params.data();
  launch.origin = origin(3, 1);
  book.add(5, launch);
  book.add(5, launch);
  GraphRecord graph = book.take();
  graph.eager_known = true;
  std::string lines;
  StackTable stacks;
  write_graph(graph, {stacks, {}, {}}, lines);
  const ir::Recording recording = read_back(lines);
  EXPECT_TRUE(recording.losses.empty()) << recording.text(recording.losses[0].what);
  ASSERT_EQ(recording.graphs.size(), 1U);
  const ir::Graph& got = *recording.graphs[ir::GraphId(0)];
  EXPECT_EQ(got.info.role, ir::GraphRole::eager);
  EXPECT_EQ(got.launches[ir::NodeId(0)], 2U);
  EXPECT_EQ(got.params_of(got.kernels[0])[0].value, 0x1000U);
  EXPECT_EQ(recording.streams[got.capture_stream[ir::NodeId(0)]].handle, 3U);
  EXPECT_TRUE(got.facts.contains_all({ir::Fact::eager_launches, ir::Fact::kernel_params, ir::Fact::capture_streams}));
  EXPECT_FALSE(got.facts.contains(ir::Fact::edges));
}

}  // namespace
}  // namespace cglint::capture
