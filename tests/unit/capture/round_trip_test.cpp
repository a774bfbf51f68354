#include <gtest/gtest.h>

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

}  // namespace
}  // namespace cglint::capture
