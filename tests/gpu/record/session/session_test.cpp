// The recorder's library in a process whose driver and CUPTI are played: what it writes for captures that succeed and
// that break, launches outside capture, executables, a flush on demand, leaving the process. Each scenario runs in a
// process of its own and is judged by its capture file.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include "fake_driver.h"
#include "import/common/importer.h"
#include "unit/capture/activity_records.h"

namespace cglint {
namespace {

template <typename T>
T handle(std::uintptr_t value) {
  return reinterpret_cast<T>(value);
}

// The driver calls of a program.
class Program {
 public:
  static constexpr std::uintptr_t kMain = 0x100, kSide = 0x200, kFree = 0x300;

  Program() {
    library_ = dlopen(CGLINT_RECORD_LIBRARY, RTLD_NOW);
    if (library_ == nullptr) std::printf("%s\n", dlerror()), _exit(99);
    reinterpret_cast<int (*)()>(dlsym(library_, "InitializeInjection"))();
  }
  int flush() { return reinterpret_cast<int (*)()>(dlsym(library_, "cglint_record_flush"))(); }

  // A call: `work` happens between its two callbacks and gives its result.
  template <typename Params>
  CUresult call(CUpti_CallbackId id, const char* name, const Params& params, const std::function<CUresult()>& work,
                const char* symbol = nullptr) {
    CUpti_CallbackData data{};
    CUresult result = CUDA_SUCCESS;
    data.functionName = name;
    data.functionParams = &params;
    data.functionReturnValue = &result;
    data.symbolName = symbol;
    data.callbackSite = CUPTI_API_ENTER;
    fake::tell(CUPTI_CB_DOMAIN_DRIVER_API, id, &data);
    result = work();
    data.callbackSite = CUPTI_API_EXIT;
    fake::tell(CUPTI_CB_DOMAIN_DRIVER_API, id, &data);
    return result;
  }
  void resource(CUpti_CallbackIdResource id, const CUpti_GraphData& graph) {
    CUpti_ResourceData data{};
    data.resourceDescriptor = const_cast<CUpti_GraphData*>(&graph);
    fake::tell(CUPTI_CB_DOMAIN_RESOURCE, id, &data);
  }

  void begin(std::uintptr_t stream) {
    cuStreamBeginCapture_v2_params params{handle<CUstream>(stream), CU_STREAM_CAPTURE_MODE_GLOBAL};
    call(CUPTI_DRIVER_TRACE_CBID_cuStreamBeginCapture_v2, "cuStreamBeginCapture", params, [&] {
      const auto graph = handle<CUgraph>(0x10000 + 0x100 * graphs_++);
      fake::driver().graphs[graph] = {};
      fake::driver().streams[params.hStream] = {CU_STREAM_CAPTURE_STATUS_ACTIVE, graph, {}};
      CUpti_GraphData data{};
      data.graph = graph;
      resource(CUPTI_CBID_RESOURCE_GRAPH_CREATED, data);
      return CUDA_SUCCESS;
    });
  }
  CUresult launch(std::uintptr_t stream, std::uint64_t address, CUresult refused = CUDA_SUCCESS) {
    std::uint32_t number = 7;
    std::array<void*, 2> arguments = {&address, &number};
    return launch(stream, arguments.data(), nullptr, refused);
  }
  CUresult launch(std::uintptr_t stream, void** arguments, void** extra, CUresult refused = CUDA_SUCCESS) {
    cuLaunchKernel_params params{};
    params.f = handle<CUfunction>(0x5000);
    params.gridDimX = params.gridDimY = params.gridDimZ = 1;
    params.blockDimX = params.blockDimY = params.blockDimZ = 1;
    params.hStream = handle<CUstream>(stream);
    params.kernelParams = arguments;
    params.extra = extra;
    fake::driver().functions[params.f] = "_Z4stepPfi";
    return call(
        CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, "cuLaunchKernel", params,
        [&] {
          fake::Capture& capture = fake::driver().streams[params.hStream];
          if (refused != CUDA_SUCCESS) {
            invalidate();
          } else if (capture.status == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
            const auto node = reinterpret_cast<CUgraphNode>(new fake::Node);
            fake::Graph& graph = fake::driver().graphs.at(capture.graph);
            graph.nodes.push_back(node);
            for (CUgraphNode before : capture.dependencies) graph.edges.emplace_back(before, node);
            capture.dependencies = {node};
            CUpti_GraphData data{};
            data.graph = capture.graph;
            data.node = node;
            resource(CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED, data);
          }
          return refused;
        },
        "_Z4stepPfi");
  }
  void record(std::uintptr_t event, std::uintptr_t stream) {
    cuEventRecord_params params{handle<CUevent>(event), handle<CUstream>(stream)};
    call(CUPTI_DRIVER_TRACE_CBID_cuEventRecord, "cuEventRecord", params, [&] {
      events_[event] = fake::driver().streams[params.hStream];
      return CUDA_SUCCESS;
    });
  }
  void wait(std::uintptr_t stream, std::uintptr_t event) {
    cuStreamWaitEvent_params params{handle<CUstream>(stream), handle<CUevent>(event), 0};
    call(CUPTI_DRIVER_TRACE_CBID_cuStreamWaitEvent, "cuStreamWaitEvent", params, [&] {
      fake::Capture& capture = fake::driver().streams[params.hStream];
      const fake::Capture& recorded = events_[event];
      capture.status = recorded.status;
      capture.graph = recorded.graph;
      for (CUgraphNode node : recorded.dependencies) capture.dependencies.push_back(node);
      return CUDA_SUCCESS;
    });
  }
  // A call that captures do not allow, as cudaMalloc.
  void allocate(bool breaks, std::uint64_t address = 0x7000000) {
    CUdeviceptr pointer = address;
    cuMemAlloc_v2_params params{&pointer, 4096};
    call(CUPTI_DRIVER_TRACE_CBID_cuMemAlloc_v2, "cuMemAlloc_v2", params, [&] {
      if (breaks) invalidate();
      return breaks ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
    });
  }
  void free(std::uint64_t address = 0x7000000, CUresult result = CUDA_SUCCESS) {
    cuMemFree_v2_params params{address};
    call(CUPTI_DRIVER_TRACE_CBID_cuMemFree_v2, "cuMemFree_v2", params, [&] {
      if (result != CUDA_SUCCESS) invalidate();
      return result;
    });
  }
  void invalidate() {
    for (auto& [stream, capture] : fake::driver().streams)
      if (capture.status == CU_STREAM_CAPTURE_STATUS_ACTIVE) capture.status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
  }
  CUgraph end(std::uintptr_t stream, CUresult result = CUDA_SUCCESS) {
    CUgraph graph = fake::driver().streams[handle<CUstream>(stream)].graph;
    cuStreamEndCapture_params params{handle<CUstream>(stream), &graph};
    call(CUPTI_DRIVER_TRACE_CBID_cuStreamEndCapture, "cuStreamEndCapture", params, [&] {
      if (result != CUDA_SUCCESS) {
        CUpti_GraphData data{};
        data.graph = graph;
        resource(CUPTI_CBID_RESOURCE_GRAPH_DESTROY_STARTING, data);
      }
      for (auto& [each, capture] : fake::driver().streams) capture = {};
      return result;
    });
    return graph;
  }
  // A graph that is built node by node.
  CUgraph make_graph() {
    const auto graph = handle<CUgraph>(0x10000 + 0x100 * graphs_++);
    fake::driver().graphs[graph] = {};
    CUpti_GraphData data{};
    data.graph = graph;
    resource(CUPTI_CBID_RESOURCE_GRAPH_CREATED, data);
    return graph;
  }
  CUgraphNode make_node(CUgraph graph, CUgraphNodeType type) {
    auto* const node = new fake::Node;
    node->type = type;
    fake::driver().graphs.at(graph).nodes.push_back(reinterpret_cast<CUgraphNode>(node));
    CUpti_GraphData data{};
    data.graph = graph;
    data.node = reinterpret_cast<CUgraphNode>(node);
    resource(CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED, data);
    return data.node;
  }
  CUgraphNode add_kernel(CUgraph graph) {
    CUgraphNode node = nullptr;
    cuGraphAddKernelNode_v2_params params{&node, graph, nullptr, 0, nullptr};
    call(CUPTI_DRIVER_TRACE_CBID_cuGraphAddKernelNode_v2, "cuGraphAddKernelNode", params, [&] {
      node = make_node(graph, CU_GRAPH_NODE_TYPE_KERNEL);
      return CUDA_SUCCESS;
    });
    return node;
  }
  // What the driver tells of a kernel node.
  void set_arguments(CUgraphNode node, void** each, void** packed) {
    CUDA_KERNEL_NODE_PARAMS_v2& kernel = reinterpret_cast<fake::Node*>(node)->kernel;
    kernel.func = handle<CUfunction>(0x5000);
    kernel.gridDimX = kernel.gridDimY = kernel.gridDimZ = 1;
    kernel.blockDimX = kernel.blockDimY = kernel.blockDimZ = 1;
    kernel.kernelParams = each;
    kernel.extra = packed;
    fake::driver().functions[kernel.func] = "_Z4stepPfi";
  }
  CUgraphNode add_node(CUgraph graph, CUgraphNodeType type) {
    CUgraphNode node = nullptr;
    CUgraphNodeParams asked{};
    asked.type = type;
    cuGraphAddNode_v2_params params{&node, graph, nullptr, nullptr, 0, &asked};
    call(CUPTI_DRIVER_TRACE_CBID_cuGraphAddNode_v2, "cuGraphAddNode_v2", params, [&] {
      node = make_node(graph, type);
      return CUDA_SUCCESS;
    });
    return node;
  }
  void copy_node(CUgraph from, CUgraphNode original, CUgraph to) {
    auto* const node = new fake::Node;
    fake::driver().graphs.at(to).nodes.push_back(reinterpret_cast<CUgraphNode>(node));
    CUpti_GraphData data{};
    data.originalGraph = from;
    data.originalNode = original;
    data.graph = to;
    data.node = reinterpret_cast<CUgraphNode>(node);
    resource(CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED, data);
  }
  CUgraphExec instantiate(CUgraph graph) {
    CUgraphExec exec = handle<CUgraphExec>(0x90000 + 0x100 * execs_++);
    cuGraphInstantiateWithFlags_params params{&exec, graph, 0};
    call(CUPTI_DRIVER_TRACE_CBID_cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags", params, [&] {
      clones_.clear();
      for (const CUgraphNode node : fake::driver().graphs.at(graph).nodes) {
        CUpti_GraphData cloned{};
        cloned.originalGraph = graph;
        cloned.originalNode = node;
        cloned.graph = handle<CUgraph>(0x60000);
        cloned.node = reinterpret_cast<CUgraphNode>(new fake::Node);
        resource(CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED, cloned);
        clones_.push_back(reinterpret_cast<std::uint64_t>(cloned.node));  // its id
      }
      CUpti_GraphData data{};
      data.graph = graph;
      data.graphExec = exec;
      resource(CUPTI_CBID_RESOURCE_GRAPHEXEC_CREATE_STARTING, data);
      resource(CUPTI_CBID_RESOURCE_GRAPHEXEC_CREATED, data);
      return CUDA_SUCCESS;
    });
    return exec;
  }
  // The ids of the nodes that the last instantiation made.
  [[nodiscard]] const std::vector<std::uint64_t>& clones() const { return clones_; }
  void launch_graph(CUgraphExec exec, std::uintptr_t stream = kMain) {
    cuGraphLaunch_params params{exec, handle<CUstream>(stream)};
    call(CUPTI_DRIVER_TRACE_CBID_cuGraphLaunch, "cuGraphLaunch", params, [] { return CUDA_SUCCESS; });
  }
  void update(CUgraphExec exec, CUresult result) {
    cuGraphExecUpdate_v2_params params{exec, nullptr, nullptr};
    call(CUPTI_DRIVER_TRACE_CBID_cuGraphExecUpdate_v2, "cuGraphExecUpdate", params, [&] { return result; });
  }
  void upload(CUgraphExec exec) {
    cuGraphUpload_params params{exec, handle<CUstream>(kMain)};
    call(CUPTI_DRIVER_TRACE_CBID_cuGraphUpload, "cuGraphUpload", params, [] {
      usleep(2000);
      return CUDA_SUCCESS;
    });
  }
  void fill(std::uintptr_t stream) {
    cuMemsetD8Async_params params{0x7000000, 0, 4096, handle<CUstream>(stream)};
    call(CUPTI_DRIVER_TRACE_CBID_cuMemsetD8Async, "cuMemsetD8Async", params, [] { return CUDA_SUCCESS; });
  }
  void copy_at_once() {
    cuMemcpyHtoD_v2_params params{0x7000000, nullptr, 4096};
    call(CUPTI_DRIVER_TRACE_CBID_cuMemcpyHtoD_v2, "cuMemcpyHtoD_v2", params, [] { return CUDA_SUCCESS; });
  }
  // What the Python helper calls; returns 0 where it was noted.
  int left(const char* error) {
    using Left = int (*)(const char*, const char* const*, const char* const*, const std::uint32_t*, std::size_t);
    const auto call_left = reinterpret_cast<Left>(dlsym(library_, "cglint_record_capture_left"));
    const std::array<const char*, 2> files = {"model.py", "run.py"}, functions = {"step", "<module>"};
    const std::array<std::uint32_t, 2> lines = {12, 3};
    return call_left == nullptr ? -1 : call_left(error, files.data(), functions.data(), lines.data(), files.size());
  }
  void destroy(CUgraphExec exec) {
    CUpti_GraphData data{};
    data.graphExec = exec;
    resource(CUPTI_CBID_RESOURCE_GRAPHEXEC_DESTROY_STARTING, data);
  }

 private:
  void* library_ = nullptr;
  std::uintptr_t graphs_ = 0, execs_ = 0;
  std::map<std::uintptr_t, fake::Capture> events_;
  std::vector<std::uint64_t> clones_;
};

// Runs the scenario in a process of its own, with exit handlers if `in_order`; reads its file.
ir::Recording recorded(const std::function<void(Program&)>& scenario, bool in_order = true,
                       const std::vector<std::pair<const char*, const char*>>& environment = {}) {
  std::string folder = std::filesystem::temp_directory_path() / "cglint-session-XXXXXX";
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  const pid_t child = fork();
  if (child == 0) {
    setenv("CGLINT_RECORD_OUT", folder.c_str(), 1);
    setenv("CGLINT_RECORD_OUT_FOLDER", "1", 1);
    for (const auto& [name, value] : environment) setenv(name, value, 1);
    Program program;
    scenario(program);
    if (in_order) std::exit(0);
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry.path());
  EXPECT_EQ(files.size(), 1U);
  if (files.empty()) return {};
  auto read = import::read_file(files[0], {});
  EXPECT_TRUE(read.has_value());
  std::filesystem::remove_all(folder);
  for (const ir::Loss& loss : read.value().losses) {
    EXPECT_TRUE(!in_order || loss.severity == ir::Loss::Severity::info) << read.value().text(loss.what);
  }
  return std::move(read.value());
}

const ir::Graph* graph_of(const ir::Recording& recording, ir::GraphRole role, std::size_t number = 0) {
  for (const auto& graph : recording.graphs)
    if (graph->info.role == role && number-- == 0) return graph.get();
  return nullptr;
}

TEST(RecordSession, CapturesAndLaunchesOutsideThem) {
  const ir::Recording recording = recorded([](Program& p) {
    p.allocate(false);
    for (int i = 0; i < 5; ++i) p.launch(Program::kMain, 0x7000010);
    p.begin(Program::kMain);
    p.launch(Program::kMain, 0x7000010);
    p.record(1, Program::kMain);
    p.wait(Program::kSide, 1);
    p.launch(Program::kSide, 0x7000020);
    p.launch(Program::kFree, 0);  // beside the capture
    p.record(2, Program::kSide);
    p.launch(Program::kMain, 0x7000030);
    p.wait(Program::kMain, 2);
    p.launch(Program::kMain, 0x7000040);
    p.launch_graph(p.instantiate(p.end(Program::kMain)));
  });
  const ir::Graph* const graph = graph_of(recording, ir::GraphRole::captured);
  ASSERT_NE(graph, nullptr);
  ASSERT_EQ(graph->node_count(), 4U);
  EXPECT_EQ(graph->info.capture_status, ir::CaptureStatus::ok);
  EXPECT_TRUE(graph->info.instantiated);
  EXPECT_EQ(graph->info.memory_bytes, 4096U);
  EXPECT_EQ(recording.streams[graph->capture_stream[ir::NodeId(1)]].handle, Program::kSide);
  EXPECT_FALSE(recording.frames(graph->stack[ir::NodeId(0)]).empty());
  ASSERT_EQ(graph->edge_count(), 4U);
  const ir::EdgeId last = graph->in_edges(ir::NodeId(3))[0];
  EXPECT_EQ(graph->sync_ops[graph->edge_sync[last]].event, 2U) << "the edge names its wait";
  const ir::Graph* const eager = graph_of(recording, ir::GraphRole::eager);
  ASSERT_NE(eager, nullptr);
  std::uint64_t launches = 0;
  bool has_null = false;
  for (const ir::NodeId node : eager->nodes()) {
    launches += eager->launches.empty() ? 1 : eager->launches[node];
    const auto params = eager->params_of(*eager->kernel(node));
    ASSERT_EQ(params.size(), 2U);
    has_null = has_null || params[0].value == 0;
    EXPECT_EQ(params[0].allocation.is_valid(), params[0].value != 0);
    EXPECT_EQ(params[1].value, 7U);
  }
  EXPECT_EQ(launches, 6U);
  EXPECT_TRUE(has_null);
}

TEST(RecordSession, GraphsBuiltNodeByNode) {
  const ir::Recording recording = recorded([](Program& p) {
    const CUgraph graph = p.make_graph(), copy = p.make_graph();
    const CUgraphNode first = p.add_kernel(graph);
    p.add_node(graph, CU_GRAPH_NODE_TYPE_KERNEL);
    p.add_node(graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    p.make_node(graph, CU_GRAPH_NODE_TYPE_KERNEL);  // by a call that is not looked at
    p.copy_node(graph, first, copy);
    p.instantiate(graph);
    p.instantiate(copy);
  });
  const ir::Graph* const graph = graph_of(recording, ir::GraphRole::built, 0);
  const ir::Graph* const copy = graph_of(recording, ir::GraphRole::built, 1);
  ASSERT_NE(copy, nullptr);
  ASSERT_EQ(graph->node_count(), 4U);
  EXPECT_TRUE(graph->facts.contains(ir::Fact::source_frames));
  EXPECT_FALSE(graph->facts.contains(ir::Fact::capture_streams));
  for (const std::uint32_t i : {0U, 1U}) EXPECT_FALSE(recording.frames(graph->stack[ir::NodeId(i)]).empty()) << i;
  ASSERT_EQ(recording.allocations.size(), 1U) << "the memory of the graph's own node";
  EXPECT_EQ(recording.allocations[ir::AllocationId(0)].base, fake::kNodeMemory);
  EXPECT_EQ(recording.allocations[ir::AllocationId(0)].kind, ir::Allocation::Kind::graph_node);
  for (const std::uint32_t i : {2U, 3U}) EXPECT_FALSE(graph->stack[ir::NodeId(i)].is_valid()) << "no frames in calls about memory: " << i;
  EXPECT_EQ(copy->stack[ir::NodeId(0)], graph->stack[ir::NodeId(0)]) << "the copy comes from where the first came from";
}

TEST(RecordSession, TheCallThatBreaksACapture) {
  const ir::Recording recording = recorded([](Program& p) {
    p.begin(Program::kMain);
    p.launch(Program::kMain, 0x10);
    p.allocate(true);
    p.launch(Program::kMain, 0x20, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    p.end(Program::kMain, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    p.begin(Program::kMain);  // the stream is usable again
    p.launch(Program::kMain, 0x10);
    p.instantiate(p.end(Program::kMain));
  });
  const ir::Graph* const broken = graph_of(recording, ir::GraphRole::captured, 0);
  const ir::Graph* const good = graph_of(recording, ir::GraphRole::captured, 1);
  ASSERT_NE(good, nullptr);
  EXPECT_EQ(broken->info.capture_status, ir::CaptureStatus::invalidated);
  EXPECT_EQ(recording.text(broken->info.failed_call), "cuMemAlloc_v2");
  EXPECT_EQ(recording.text(broken->info.failed_error), "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED");
  EXPECT_FALSE(broken->info.failed_stream.is_valid()) << "the call has none";
  EXPECT_FALSE(recording.frames(broken->info.failed_stack).empty());
  EXPECT_FALSE(broken->info.instantiated);
  ASSERT_EQ(broken->node_count(), 1U);
  EXPECT_EQ(recording.text(recording.functions[broken->kernel(ir::NodeId(0))->function].name), "_Z4stepPfi");
  EXPECT_FALSE(broken->facts.contains(ir::Fact::edges));
  EXPECT_EQ(good->info.capture_status, ir::CaptureStatus::ok);
  EXPECT_FALSE(good->info.failed_call != ir::kEmptyString && good->info.failed_call.is_valid());
}

TEST(RecordSession, AStreamThatIsNotJoined) {
  const ir::Recording recording = recorded([](Program& p) {
    p.begin(Program::kMain);
    p.launch(Program::kMain, 0x10);
    p.record(1, Program::kMain);
    p.wait(Program::kSide, 1);
    p.launch(Program::kSide, 0x20);
    p.end(Program::kMain, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  });
  const ir::Graph* const graph = graph_of(recording, ir::GraphRole::captured);
  ASSERT_NE(graph, nullptr);
  EXPECT_EQ(graph->info.capture_status, ir::CaptureStatus::failed);
  EXPECT_EQ(recording.text(graph->info.failed_call), "cuStreamEndCapture");
  ASSERT_EQ(graph->node_count(), 2U);
  std::size_t unjoined = 0;
  for (const ir::SyncOp& op : graph->sync_ops) {
    if (!op.unjoined) continue;
    ++unjoined;
    EXPECT_EQ(op.kind, ir::SyncOp::Kind::event_wait);
    EXPECT_EQ(recording.streams[op.stream].handle, Program::kSide);
    EXPECT_TRUE(op.record.is_valid()) << "where it forked";
  }
  EXPECT_EQ(unjoined, 1U);
}

TEST(RecordSession, ABrokenCaptureThatNobodyEnds) {
  const ir::Recording recording = recorded([](Program& p) {
    p.begin(Program::kMain);
    p.launch(Program::kMain, 0x10);
    p.launch(0, 0x20, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  });
  const ir::Graph* const graph = graph_of(recording, ir::GraphRole::captured);
  ASSERT_NE(graph, nullptr);
  EXPECT_EQ(recording.text(graph->info.failed_call), "cuLaunchKernel");
  EXPECT_EQ(recording.text(graph->info.failed_error), "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT");
  ASSERT_TRUE(graph->info.failed_stream.is_valid());
  EXPECT_EQ(recording.streams[graph->info.failed_stream].handle, 0U) << "the legacy stream";
}

TEST(RecordSession, ACaptureThatNobodyEnds) {
  const ir::Recording recording = recorded([](Program& p) {
    p.begin(Program::kMain);
    p.launch(Program::kMain, 0x10);
  });
  ASSERT_EQ(recording.graphs.size(), 1U);
  const ir::Graph* const graph = graph_of(recording, ir::GraphRole::captured);
  EXPECT_EQ(graph->info.capture_status, ir::CaptureStatus::failed);
  EXPECT_EQ(recording.text(graph->info.failed_call), "exit");
  EXPECT_EQ(graph->node_count(), 1U);
}

TEST(RecordSession, ACaptureThatTheProgramLeaves) {
  const ir::Recording recording = recorded([](Program& p) {
    if (p.left("RuntimeError: nothing captures") != 1) std::abort();
    p.begin(Program::kMain);
    p.launch(Program::kMain, 0x10);
    if (p.left("RuntimeError: no such thing while capturing") != 0) std::abort();
    if (p.left("RuntimeError: again") != 1) std::abort();  // the first one is the cause
    p.end(Program::kMain);                                 // the driver ends it well
    p.begin(Program::kMain);
    p.launch(Program::kMain, 0x10);
    p.instantiate(p.end(Program::kMain));
  });
  ASSERT_EQ(recording.graphs.size(), 2U);
  const ir::Graph* const graph = graph_of(recording, ir::GraphRole::captured);
  EXPECT_EQ(graph->info.capture_status, ir::CaptureStatus::failed);
  EXPECT_EQ(recording.text(graph->info.failed_call), "exception");
  EXPECT_EQ(recording.text(graph->info.failed_error), "RuntimeError: no such thing while capturing");
  const auto frames = recording.frames(graph->info.failed_stack);
  ASSERT_EQ(frames.size(), 2U);
  EXPECT_EQ(recording.text(frames[0].file), "model.py");
  EXPECT_EQ(frames[0].line, 12U);
  EXPECT_EQ(graph_of(recording, ir::GraphRole::captured, 1)->info.capture_status, ir::CaptureStatus::ok);
}

TEST(RecordSession, CopiesAndFillsThatACaptureMisses) {
  const ir::Recording recording = recorded([](Program& p) {
    p.fill(Program::kFree);  // nothing captures yet
    p.begin(Program::kMain);
    p.launch(Program::kMain, 0x10);
    p.fill(Program::kFree);
    p.copy_at_once();
    p.instantiate(p.end(Program::kMain));
  });
  const ir::Graph* const eager = graph_of(recording, ir::GraphRole::eager);
  ASSERT_NE(eager, nullptr);
  ASSERT_EQ(eager->node_count(), 2U);
  EXPECT_EQ(eager->kind[ir::NodeId(0)], ir::NodeKind::memset);
  EXPECT_EQ(eager->kind[ir::NodeId(1)], ir::NodeKind::memcpy);
}

TEST(RecordSession, ABrokenCaptureOfAProgramThatAborts) {
  const ir::Recording recording = recorded(
      [](Program& p) {
        p.allocate(false);
        p.begin(Program::kMain);
        p.launch(Program::kMain, 0x7000010);
        p.free(0x7000000, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
      },
      false);
  const ir::Graph* const graph = graph_of(recording, ir::GraphRole::captured);
  ASSERT_NE(graph, nullptr);
  EXPECT_EQ(recording.text(graph->info.failed_call), "cuMemFree_v2");
  EXPECT_EQ(graph->node_count(), 1U);
}

TEST(RecordSession, AFailureIsWrittenOnceAndAFreeThatFailedFreesNothing) {
  const ir::Recording recording = recorded([](Program& p) {
    p.allocate(false);
    p.begin(Program::kMain);
    p.launch(Program::kMain, 0x7000010);
    p.free(0x7000000, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    p.end(Program::kMain, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    p.begin(Program::kMain);
    p.launch(Program::kMain, 0x7000010);
    p.instantiate(p.end(Program::kMain));
  });
  ASSERT_EQ(recording.graphs.size(), 2U);
  ASSERT_EQ(recording.allocations.size(), 1U);
  EXPECT_EQ(recording.allocations[ir::AllocationId(0)].free_sequence, 0U);
}

TEST(RecordSession, ACallOnAnotherStreamEndsNothing) {
  const ir::Recording recording = recorded([](Program& p) {
    p.begin(Program::kMain);
    p.launch(Program::kMain, 0x10);
    cuStreamEndCapture_params params{handle<CUstream>(Program::kFree), nullptr};
    p.call(CUPTI_DRIVER_TRACE_CBID_cuStreamEndCapture, "cuStreamEndCapture", params, [] { return CUDA_ERROR_ILLEGAL_STATE; });
    p.launch(Program::kMain, 0x20);
    p.instantiate(p.end(Program::kMain));
  });
  ASSERT_EQ(recording.graphs.size(), 1U);
  EXPECT_EQ(graph_of(recording, ir::GraphRole::captured)->node_count(), 2U);
}

TEST(RecordSession, Executables) {
  // Left by _exit: what was flushed is in the file.
  const ir::Recording recording = recorded(
      [](Program& p) {
        p.allocate(false);
        std::vector<CUgraphExec> execs;
        for (int i = 0; i < 2; ++i) {
          p.begin(Program::kMain);
          p.launch(Program::kMain, 0x7000010);
          execs.push_back(p.instantiate(p.end(Program::kMain)));
        }
        p.upload(execs[0]);
        p.update(execs[0], CUDA_SUCCESS);
        p.update(execs[0], CUDA_SUCCESS);
        p.update(execs[0], CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
        p.launch_graph(execs[0]);
        p.free();
        p.launch_graph(execs[1]);
        p.destroy(execs[0]);
        EXPECT_EQ(p.flush(), 0);
      },
      false);
  const ir::Graph* const first = graph_of(recording, ir::GraphRole::captured, 0);
  ASSERT_NE(graph_of(recording, ir::GraphRole::captured, 1), nullptr);
  EXPECT_EQ(first->info.exec_updates, 2U);
  EXPECT_GE(first->info.upload_ns, 2'000'000);
  ASSERT_EQ(recording.executable_uses.size(), 2U);
  const ir::ExecutableUse& used = recording.executable_uses[0];
  const ir::ExecutableUse& other = recording.executable_uses[1];
  EXPECT_EQ(used.failed_updates, 1U);
  const std::uint64_t freed = recording.allocations[ir::AllocationId(0)].free_sequence;
  EXPECT_LT(used.last_launch_sequence, freed);
  EXPECT_LT(freed, other.last_launch_sequence) << "launched after its memory was given back";
  EXPECT_LT(other.last_launch_sequence, used.destroyed_sequence);
  EXPECT_EQ(other.destroyed_sequence, 0U);
}

TEST(RecordSession, LeavesTheProcessWhenAsked) {
  const ir::Recording recording = recorded(
      [](Program& p) {
        for (int i = 0; i < 3; ++i) {
          p.begin(Program::kMain);
          p.launch(Program::kMain, 0x10);
          const CUgraphExec exec = p.instantiate(p.end(Program::kMain));
          p.launch_graph(exec);
          if (fake::finalized() != (i == 0 ? 0 : 1)) _exit(98);
        }
        if (p.flush() != 1) _exit(97);
      },
      true, {{"CGLINT_RECORD_DETACH", "2"}});
  EXPECT_NE(graph_of(recording, ir::GraphRole::captured, 1), nullptr);
  EXPECT_EQ(graph_of(recording, ir::GraphRole::captured, 2), nullptr) << "captured after the recorder left";
  bool said = false;
  for (const ir::Loss& loss : recording.losses)
    said = said || recording.text(loss.what).find("--detach-after") != std::string_view::npos;
  EXPECT_TRUE(said);
}

void another_tool_has_cupti(const char* version, const std::string& named) {
  const std::string folder = std::filesystem::temp_directory_path() / ("cglint-session-" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  testing::internal::CaptureStderr();
  const pid_t child = fork();
  if (child == 0) {
    setenv("CGLINT_RECORD_OUT", folder.c_str(), 1);
    setenv("CGLINT_RECORD_OUT_FOLDER", "1", 1);
    setenv("CGLINT_FAKE_CUPTI", version, 1);
    setenv("CGLINT_FAKE_HOLDER", "CUPTI for some profiler", 1);
    Program p;
    p.begin(Program::kMain);
    p.launch(Program::kMain, 0x10);
    p.launch_graph(p.instantiate(p.end(Program::kMain)));
    std::exit(p.flush() == 1 ? 0 : 97);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "cglint: CUPTI is in use by " + named + "; this process is not recorded\n");
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove_all(folder);
}
TEST(RecordSession, AnotherToolHasCupti) {
  another_tool_has_cupti("130001", "some profiler");
  another_tool_has_cupti("130200", "another tool");
}

// What `cglint record` learns of a process without a file of its own.
TEST(RecordSession, TellsTheListWhatBecameOfTheProcess) {
  const std::string folder = std::filesystem::temp_directory_path() / ("cglint-session-list-" + std::to_string(getpid()));
  const auto listed = [&](const std::function<void(Program&)>& scenario, const char* holder, const std::string& out) {
    std::filesystem::create_directory(folder);
    const std::string list = folder + "/list";
    std::ofstream(list).flush();
    testing::internal::CaptureStderr();
    const pid_t child = fork();
    if (child == 0) {
      setenv("CGLINT_RECORD_OUT", (folder + out).c_str(), 1);
      setenv("CGLINT_RECORD_OUT_FOLDER", "1", 1);
      setenv("CGLINT_RECORD_LIST", list.c_str(), 1);
      if (holder != nullptr) setenv("CGLINT_FAKE_HOLDER", holder, 1);
      Program p;
      unsetenv("CGLINT_RECORD_LIST");  // the program may
      scenario(p);
      std::exit(0);
    }
    EXPECT_EQ(waitpid(child, nullptr, 0), child);
    testing::internal::GetCapturedStderr();
    std::ifstream in(list);
    std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
    std::filesystem::remove_all(folder);
    return text;
  };
  const auto graph = [](Program& p) {
    p.begin(Program::kMain);
    p.launch(Program::kMain, 0x10);
    p.instantiate(p.end(Program::kMain));
  };
  EXPECT_EQ(listed([](Program& p) { p.launch(Program::kMain, 0x10); }, nullptr, "/out"), "loaded\n");
  EXPECT_EQ(listed(graph, nullptr, "/out").substr(0, 8 + folder.size()), "loaded\n" + folder + "/");
  EXPECT_EQ(listed(graph, "some profiler", "/out"), "loaded\noff\n");
  EXPECT_EQ(listed(graph, nullptr, "/list/out"), "loaded\noff\n") << "a file is in the way";
}

TEST(RecordSession, Redacted) {
  const auto scenario = [](Program& p) {
    p.launch(Program::kMain, 0x10);
    p.begin(Program::kMain);
    p.launch(Program::kMain, 0x10);
    p.instantiate(p.end(Program::kMain));
  };
  const ir::Recording plain = recorded(scenario), redacted = recorded(scenario, true, {{"CGLINT_RECORD_REDACT", "names"}});
  const auto has_folder = [](const ir::Recording& recording) {
    const ir::Graph& graph = *graph_of(recording, ir::GraphRole::captured);
    for (const ir::Frame& frame : recording.frames(graph.stack[ir::NodeId(0)]))
      if (recording.text(frame.file).find('/') != std::string_view::npos) return true;
    return false;
  };
  EXPECT_TRUE(has_folder(plain));
  EXPECT_FALSE(has_folder(redacted));
  EXPECT_NE(plain.text(plain.processes[ir::ProcessId(0)].command), "");
  EXPECT_EQ(redacted.text(redacted.processes[ir::ProcessId(0)].command), "");
  EXPECT_EQ(redacted.text(redacted.processes[ir::ProcessId(0)].host), "");
  for (const ir::Function& function : redacted.functions)
    EXPECT_EQ(redacted.text(function.name).substr(0, 2), "k_");
}

TEST(RecordSession, NothingOutsideCaptureWithoutEager) {
  const ir::Recording recording = recorded(
      [](Program& p) {
        p.launch(Program::kMain, 0x10);
        p.begin(Program::kMain);
        p.launch(Program::kMain, 0x10);
        p.instantiate(p.end(Program::kMain));
      },
      true, {{"CGLINT_RECORD_EAGER", "0"}});
  EXPECT_EQ(graph_of(recording, ir::GraphRole::eager), nullptr);
  EXPECT_FALSE(graph_of(recording, ir::GraphRole::captured)->facts.contains(ir::Fact::eager_launches));
}

// A kernel, a copy and a fill, replayed: the records that a CUPTI of this version hands out, made by hand.
ir::Recording replayed(const capture::VersionRecords& version, bool is_known) {
  const std::string number = std::to_string(version.version);
  return recorded(
      [&](Program& p) {
        const CUgraph graph = p.make_graph();
        p.add_kernel(graph);
        p.add_node(graph, CU_GRAPH_NODE_TYPE_MEMCPY);
        p.add_node(graph, CU_GRAPH_NODE_TYPE_MEMSET);
        const CUgraphExec exec = p.instantiate(graph);
        p.launch_graph(exec);
        const auto record = [&](std::string_view name, CUpti_ActivityKind kind, std::size_t node, std::uint64_t start) {
          capture::ActivityOp op;
          op.start_ns = start, op.end_ns = start + 50, op.device = 2, op.stream = 7 + static_cast<std::uint32_t>(node);
          op.correlation = 41, op.node_id = p.clones().at(node);
          return capture::made_record(name, kind, op);
        };
        const bool taken = fake::hand_over({record(version.kernel, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, 0, 1000),
                                            record(version.memcpy, CUPTI_ACTIVITY_KIND_MEMCPY, 1, 1100),
                                            record(version.memset, CUPTI_ACTIVITY_KIND_MEMSET, 2, 1300)});
        if (taken != is_known || p.flush() != 0) _exit(96);
      },
      is_known, {{"CGLINT_RECORD_REPLAYS", "1"}, {"CGLINT_FAKE_CUPTI", number.c_str()}});
}

TEST(RecordSession, ReplaysWithTheRecordsOfEachCuptiVersion) {
  for (const capture::VersionRecords& version : capture::kVersionRecords) {
    const ir::Recording recording = replayed(version, true);
    const ir::Graph* const graph = graph_of(recording, ir::GraphRole::built);
    ASSERT_NE(graph, nullptr) << version.version;
    ASSERT_EQ(graph->replays.size(), 1U) << version.version;
    const ir::ReplayOps ops = graph->ops(graph->replays[ir::ReplayId(0)]);
    ASSERT_EQ(ops.size(), 3U) << version.version;
    const ir::NodeKind kinds[] = {ir::NodeKind::kernel, ir::NodeKind::memcpy, ir::NodeKind::memset};
    const std::int64_t starts[] = {0, 100, 300};
    for (std::uint32_t i = 0; i < 3; ++i) {
      EXPECT_EQ(ops[i].node, ir::NodeId(i)) << version.version;
      EXPECT_EQ(ops[i].kind, kinds[i]) << version.version;
      EXPECT_EQ(ops[i].start_ns - ops[0].start_ns, starts[i]) << version.version;
      EXPECT_EQ(ops[i].dur_ns(), 50) << version.version;
      EXPECT_EQ(ops[i].stream, 7U + i) << version.version;
      EXPECT_EQ(ops[i].device, 2) << version.version;
    }
  }
}

TEST(RecordSession, NoReplaysWithACuptiWhoseRecordsAreNotKnown) {
  for (const std::uint32_t unknown : {18U, 130600U}) {
    const ir::Recording recording =
        replayed({unknown, "CUpti_ActivityKernel10", "CUpti_ActivityMemcpy6", "CUpti_ActivityMemset4"}, false);
    const ir::Graph* const graph = graph_of(recording, ir::GraphRole::built);
    ASSERT_NE(graph, nullptr) << unknown;
    EXPECT_EQ(graph->node_count(), 3U);
    EXPECT_TRUE(graph->replays.empty());
    EXPECT_FALSE(graph->facts.contains(ir::Fact::replay_times));
    bool said = false;
    for (const ir::Loss& loss : recording.losses)
      said = said || recording.text(loss.what).find("the record layouts of this CUPTI version are not known") != std::string_view::npos;
    EXPECT_TRUE(said) << unknown;
  }
}

// A kernel's arguments, an address and a 4-byte number, one by one and packed. Behind the packed ones nothing can be read.
class Arguments {
 public:
  explicit Arguments(std::uint64_t address, std::size_t packed_bytes = 12) : address_(address), bytes_(packed_bytes) {
    const auto page = static_cast<std::size_t>(getpagesize());
    auto* const pages = static_cast<unsigned char*>(mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (pages == MAP_FAILED || mprotect(pages + page, page, PROT_NONE) != 0) _exit(95);
    std::array<unsigned char, 12> whole;
    std::memcpy(whole.data(), &address_, 8), std::memcpy(whole.data() + 8, &number_, 4);
    buffer_ = pages + page - bytes_;
    std::memcpy(buffer_, whole.data(), bytes_);
  }
  void** each() { return each_.data(); }
  void** packed() { return extra({CU_LAUNCH_PARAM_BUFFER_POINTER, buffer_, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes_}); }
  void** packed_size_first() { return extra({CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes_, CU_LAUNCH_PARAM_BUFFER_POINTER, buffer_}); }
  void** packed_without_size() { return extra({CU_LAUNCH_PARAM_BUFFER_POINTER, buffer_}); }
  void** packed_and_more() {
    return extra({CU_LAUNCH_PARAM_BUFFER_POINTER, buffer_, handle<void*>(0x17), &number_, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes_});
  }

 private:
  void** extra(std::vector<void*> entries) {
    entries.push_back(CU_LAUNCH_PARAM_END);
    extra_ = std::move(entries);
    return extra_.data();
  }
  std::uint64_t address_;
  std::uint32_t number_ = 7;
  std::size_t bytes_;
  unsigned char* buffer_ = nullptr;
  std::array<void*, 2> each_ = {&address_, &number_};
  std::vector<void*> extra_;
};

// A graph of kernels with these arguments, kernelParams or extra; what it says of its parameters.
struct Recorded {
  ir::Recording recording;
  const ir::Graph* graph = nullptr;
  [[nodiscard]] std::vector<std::uint64_t> words(std::uint32_t node) const {
    std::vector<std::uint64_t> values;
    for (const ir::ParamWord& word : graph->params_of(*graph->kernel(ir::NodeId(node)))) values.push_back(word.value);
    return values;
  }
  // Whether all of them are there. A graph that lacks some must not be taken for one whose parameters are known.
  [[nodiscard]] std::string params() const {
    const bool is_known = graph->facts.contains(ir::Fact::kernel_params);
    if (graph->info.role != ir::GraphRole::eager && is_known && !graph->spoiled.empty()) return "wrong";
    for (const ir::SpoiledFact& each : graph->spoiled)
      if (each.fact == ir::Fact::kernel_params) return "spoiled: " + std::string(recording.text(each.reason));
    return is_known ? "known" : "missing";
  }
};
using Make = std::function<std::pair<void**, void**>()>;
Recorded recorded_nodes(const std::vector<Make>& kernels) {
  Recorded made;
  made.recording = recorded([&](Program& p) {
    const CUgraph graph = p.make_graph();
    for (const Make& make : kernels) p.set_arguments(p.add_kernel(graph), make().first, make().second);
    p.instantiate(graph);
  });
  made.graph = graph_of(made.recording, ir::GraphRole::built);
  return made;
}
Recorded recorded_launches(const std::vector<Make>& kernels) {
  Recorded made;
  made.recording = recorded([&](Program& p) {
    for (const Make& make : kernels) {
      const auto [each, extra] = make();
      p.launch(Program::kMain, each, extra);
    }
    p.begin(Program::kMain);
    p.launch(Program::kMain, 0x10);
    p.instantiate(p.end(Program::kMain));
  });
  made.graph = graph_of(made.recording, ir::GraphRole::eager);
  return made;
}
Make one_by_one(std::uint64_t address) {
  return [=] { return std::pair((new Arguments(address))->each(), static_cast<void**>(nullptr)); };
}
Make packed(std::uint64_t address, void** (Arguments::*form)() = &Arguments::packed, std::size_t bytes = 12) {
  return [=] { return std::pair(static_cast<void**>(nullptr), ((new Arguments(address, bytes))->*form)()); };
}

constexpr auto kRecorders = {recorded_nodes, recorded_launches};

TEST(RecordSession, PackedArgumentsAreThoseGivenOneByOne) {
  for (const auto record : kRecorders) {
    const Recorded made =
        record({one_by_one(0x7000010), packed(0x7000020), packed(0x7000030, &Arguments::packed_size_first), one_by_one(0x7000040)});
    ASSERT_NE(made.graph, nullptr);
    EXPECT_EQ(made.params(), "known");
    ASSERT_EQ(made.graph->node_count(), 4U);
    for (std::uint32_t i = 0; i < 4; ++i) {
      EXPECT_EQ(made.words(i), (std::vector<std::uint64_t>{0x7000010 + 0x10 * std::uint64_t{i}, 7})) << i;
      const auto params = made.graph->params_of(*made.graph->kernel(ir::NodeId(i)));
      EXPECT_EQ(params[0].size_bytes, 8U);
      EXPECT_EQ(params[1].size_bytes, 4U);
    }
  }
}

TEST(RecordSession, PackedArgumentsThatEndBeforeTheLastParameter) {
  for (const auto record : kRecorders) {
    for (const std::size_t bytes : {11U, 8U, 0U}) {
      const Recorded made = record({one_by_one(0x7000010), packed(0x7000020, &Arguments::packed, bytes)});
      ASSERT_NE(made.graph, nullptr);
      EXPECT_EQ(made.params(), "spoiled: the parameters of 1 of 2 nodes could not be recorded") << bytes;
      EXPECT_EQ(made.words(0), (std::vector<std::uint64_t>{0x7000010, 7}));
      EXPECT_LT(made.words(1).size(), 2U) << "what is not in the buffer has no value";
    }
  }
}

TEST(RecordSession, PackedArgumentsThatAreNotUnderstood) {
  for (const auto record : kRecorders) {
    for (const auto form : {&Arguments::packed_and_more, &Arguments::packed_without_size}) {
      const Recorded some = record({one_by_one(0x7000010), packed(0x7000020, form)});
      ASSERT_NE(some.graph, nullptr);
      EXPECT_EQ(some.params(), "spoiled: the parameters of 1 of 2 nodes could not be recorded");
      EXPECT_EQ(some.words(1), std::vector<std::uint64_t>{});
      const Recorded all = record({packed(0x7000020, form)});
      EXPECT_EQ(all.params(), "missing");
    }
  }
}

}  // namespace
}  // namespace cglint
