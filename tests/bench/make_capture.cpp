// Writes a capture file like the ones an inference engine's worker leaves: thousands of graphs, one per batch size and
// piece of the model, each a stack of decode layers with a main and a side stream. For benchmarks of reading and linting.
//
//   make_capture OUTPUT [--graphs 5000] [--sizes log|uniform] [--min 10] [--max 5000] [--replays 0] [--equal 0.0] [--seed 1]
//
// Sizes are numbers of nodes, drawn log-uniformly or uniformly. Every kernel has launch configuration, attributes, 4 to 8
// parameter words (most of them pointers into recorded allocations), capture stream, sequence number, NVTX stack and
// source stack. `--equal` is the share of graphs that repeat an earlier one.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "export/export.h"
#include "ir/graph_builder.h"

namespace {

using namespace cglint;

struct Options {
  std::string output;
  int graphs = 5000;
  bool log_uniform = true;
  int min_nodes = 10, max_nodes = 5000;
  int replays = 0;
  double equal = 0;
  std::uint64_t seed = 1;
};

// A layer's kernels: main branch, then the side branch from `side` on; the last joins both.
constexpr const char* kLayer[] = {
    "_ZN4vllm14rms_norm_kernelIN3c108BFloat16EEEvPT_PKS3_S6_fi",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas",
    "_ZN4vllm23rotary_embedding_kernelIN3c108BFloat16ELb1EEEvPKlPT_S6_PKS5_illii",
    "_ZN4vllm32concat_and_cache_mla_kernelIN3c108BFloat16ES2_LNS_18Fp8KVCacheDataTypeE0EEEvPKT_S6_PT0_PKliiiiiiPKf",
    "flash_fwd_splitkv_mla_kernel",
    "flash_fwd_splitkv_mla_combine_kernel",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize2x1x1_execute_segment_k_off_kernel__5x_cublas",
    "_ZN4vllm24fused_add_rms_norm_kernelIN3c108BFloat16ELi8EEENSt9enable_ifE",
    "grouped_topk_fused_kernel",
    "moe_align_block_size_kernel",
    "fused_moe_kernel",
    "act_and_mul_kernel",
    "fused_moe_kernel_down",
    "moe_sum_kernel",
    "shared_gate_up_gemm",
    "shared_act_and_mul",
    "shared_down_gemm",
    "residual_add_kernel"};
constexpr int kLayerSize = static_cast<int>(std::size(kLayer));
constexpr int kSideFirst = 14, kSideLast = 16, kFork = 7;

class Maker {
 public:
  explicit Maker(const Options& options) : options_(options), random_(options.seed) {}

  base::Result<exporter::CaptureWriterStats> run() {
    auto sink = exporter::open_file_sink(options_.output);
    if (!sink) return std::move(sink).error();
    exporter::CaptureWriterOptions writing;
    writing.compression = exporter::compression_of_path(options_.output);
    writing.producer = "make_capture";
    exporter::CaptureWriter writer(std::move(*sink), writing);
    make_tables();
    CGLINT_TRY(writer.begin(r_));
    for (int i = 0; i < options_.graphs; ++i) {
      const ir::GraphId id = make_graph(i);
      CGLINT_TRY(writer.write_graph(r_, id));
      r_.graphs[id].reset();
    }
    CGLINT_TRY(writer.finish(r_));
    return writer.stats();
  }
  [[nodiscard]] std::uint64_t nodes() const { return nodes_; }
  [[nodiscard]] std::uint64_t edges() const { return edges_; }

 private:
  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }

  void make_tables() {
    ir::Process process;
    process.pid = 4242;
    process.rank = 0;
    process.world_size = 8;
    process.host = r_.intern("node01");
    process.command = r_.intern("python -m vllm.entrypoints.openai.api_server");
    process.driver_version = 13000;
    process.framework = r_.intern("pytorch");
    ir::Gpu gpu;
    gpu.name = r_.intern("NVIDIA H200");
    gpu.compute_major = 9;
    gpu.sm_count = 132;
    process.gpus.push_back(gpu);
    r_.processes.push_back(process);
    for (int i = 0; i < 4000; ++i) {
      ir::Allocation a;
      a.base = 0x7f0000000000ULL + static_cast<std::uint64_t>(i) * 0x2000000;
      a.size_bytes = 0x1800000;
      a.kind = ir::Allocation::Kind::device;
      a.device = 0;
      a.process = ir::ProcessId(0);
      a.alloc_sequence = static_cast<std::uint64_t>(i) + 1;
      r_.allocations.push_back(a);
    }
    for (const char* name : kLayer) functions_.push_back(r_.intern_function(name));
    main_ = r_.intern_stream(ir::ProcessId(0), 0x7ffe1000);
    side_ = r_.intern_stream(ir::ProcessId(0), 0x7ffe2000);
    const auto frame = [&](const std::string& file, const std::string& function, std::uint32_t line) {
      ir::Frame f;
      f.file = r_.intern(file);
      f.function = r_.intern(function);
      f.line = line;
      return f;
    };
    for (int k = 0; k < kLayerSize; ++k) {
      std::vector<ir::Frame> frames = {frame("vllm/_custom_ops.py", std::string("op_") + std::to_string(k), 100 + static_cast<std::uint32_t>(k)),
                                       frame("vllm/model_executor/models/deepseek_v2.py", "forward", 500 + static_cast<std::uint32_t>(k) / 3)};
      for (int d = 0; d < 12; ++d)
        frames.push_back(frame("torch/nn/modules/module_" + std::to_string(d % 5) + ".py", "_call_impl", 1700 + static_cast<std::uint32_t>(d)));
      frames.push_back(frame("vllm/v1/worker/gpu_model_runner.py", "_dummy_run", 2300));
      stacks_.push_back(r_.intern_stack(frames));
    }
  }

  ir::NvtxId nvtx(int layer) {
    const auto at = static_cast<std::size_t>(layer);
    while (nvtx_.size() <= at) {
      const std::vector<ir::StringId> ranges = {r_.intern("decode"), r_.intern("layer " + std::to_string(nvtx_.size()))};
      nvtx_.push_back(r_.intern_nvtx(ranges));
    }
    return nvtx_[at];
  }

  ir::GraphId make_graph(int index) {
    if (!shapes_.empty() && std::uniform_real_distribution<double>(0, 1)(random_) < options_.equal) {
      const auto [seed, size] = shapes_[below(shapes_.size())];
      return build(index, seed, size);
    }
    const double u = std::uniform_real_distribution<double>(0, 1)(random_);
    const double low = options_.min_nodes, high = options_.max_nodes;
    const int size = options_.log_uniform ? static_cast<int>(std::lround(low * std::pow(high / low, u)))
                                          : static_cast<int>(std::lround(low + (high - low) * u));
    const std::uint64_t seed = random_();
    shapes_.emplace_back(seed, size);
    return build(index, seed, size);
  }

  ir::GraphId build(int index, std::uint64_t seed, int size) {
    std::mt19937_64 own(seed);
    ir::GraphBuilder builder;
    ir::Graph& g = builder.graph();
    using ir::Fact;
    g.facts = {Fact::nodes, Fact::creation_order, Fact::edges, Fact::edge_data, Fact::kernel_names, Fact::launch_config,
               Fact::kernel_attributes, Fact::copy_params, Fact::kernel_params, Fact::allocations, Fact::capture_streams,
               Fact::sync_ops, Fact::nvtx, Fact::source_frames, Fact::instantiate_info, Fact::graph_key, Fact::capture_status};
    g.info.name = r_.intern("decode piece " + std::to_string(index));
    g.info.process = ir::ProcessId(0);
    g.info.source_id = static_cast<std::uint64_t>(index) + 1;
    g.info.batch_size = 1 + static_cast<std::int64_t>(own() % 512);
    g.info.capture_mode = ir::CaptureMode::thread_local_;
    g.info.capture_status = ir::CaptureStatus::ok;
    g.info.origin_stream = main_;
    g.info.instantiated = true;
    g.info.begin_sequence = ++sequence_;
    g.info.instantiate_ns = 1'000'000 + 900 * size;
    const std::uint32_t batch = static_cast<std::uint32_t>(g.info.batch_size);
    std::vector<ir::ParamWord> words;
    ir::NodeId main_tail, side_tail, fork;
    for (int n = 0; n < size; ++n) {
      const int k = n % kLayerSize, layer = n / kLayerSize;
      const bool on_side = k >= kSideFirst && k <= kSideLast;
      ir::KernelNode kernel;
      kernel.function = functions_[static_cast<std::size_t>(k)];
      kernel.grid = {batch * (1 + static_cast<std::uint32_t>(k) % 3), 1 + static_cast<std::uint32_t>(k) % 5, 1};
      kernel.block = {128, 1, 1};
      kernel.dynamic_shared_bytes = k % 4 == 1 ? 98304 : 0;
      kernel.registers_per_thread = 64 + static_cast<std::uint32_t>(k);
      kernel.cooperative = ir::Tri::no;
      kernel.programmatic_serialization = k % 6 == 0 ? ir::Tri::yes : ir::Tri::no;
      const ir::NodeId node = builder.add_kernel(r_.functions[kernel.function].name, kernel);
      words.clear();
      const int count = 4 + k % 5;
      for (int w = 0; w < count; ++w) {
        ir::ParamWord word;
        word.slot = static_cast<std::uint16_t>(w);
        if (w < count - 2) {
          word.allocation = ir::AllocationId(static_cast<std::uint32_t>(own() % 4000));
          word.allocation_offset = (own() % 0x1000) * 256;
          word.value = r_.allocations[word.allocation].base + word.allocation_offset;
          word.type = ir::ParamWord::Type::pointer;
        } else {
          word.size_bytes = 4;
          word.value = own() % 8192;
          word.type = ir::ParamWord::Type::scalar;
        }
        words.push_back(word);
      }
      builder.add_params(node, words);
      builder.set_sequence(node, ++sequence_);
      builder.set_capture_stream(node, on_side ? side_ : main_);
      builder.set_thread(node, 4243);
      builder.set_nvtx(node, nvtx(layer));
      builder.set_stack(node, stacks_[static_cast<std::size_t>(k)]);
      builder.set_device(node, 0);
      builder.set_context(node, 0x55d0c0de);
      const auto wait = [&](ir::StreamId stream) {
        ir::SyncOp op;
        op.kind = ir::SyncOp::Kind::event_wait;
        op.stream = stream;
        op.sequence = ++sequence_;
        op.event = 0x7f55aa00 + static_cast<std::uint64_t>(layer % 16) * 64;
        op.stack = stacks_[kFork];
        op.thread = 4243;
        g.sync_ops.push_back(op);
        return ir::SyncOpId::from_size(g.sync_ops.size() - 1);
      };
      if (on_side) {
        if (k == kSideFirst) {
          if (fork.is_valid()) builder.add_edge(fork, node, {}, wait(side_));
        } else {
          builder.add_edge(side_tail, node);
        }
        side_tail = node;
      } else {
        if (main_tail.is_valid())
          builder.add_edge(main_tail, node, k % 6 == 0 ? ir::EdgeData{ir::kPortProgrammatic, 0, ir::EdgeType::programmatic} : ir::EdgeData());
        if (k == kLayerSize - 1 && side_tail.is_valid()) builder.add_edge(side_tail, node, {}, wait(main_));
        main_tail = node;
      }
      if (k == kFork) fork = node;
    }
    std::int64_t clock = 1'700'000'000'000'000'000 + static_cast<std::int64_t>(index) * 1'000'000'000;
    for (int i = 0; i < options_.replays; ++i) {
      ir::Replay replay;
      replay.correlation = static_cast<std::uint64_t>(index) * 100 + static_cast<std::uint64_t>(i);
      replay.ops = {static_cast<std::uint32_t>(g.replay_ops.size()), static_cast<std::uint32_t>(size)};
      for (int n = 0; n < size; ++n, clock += 2500)
        g.replay_ops.push_back({ir::NodeId(static_cast<std::uint32_t>(n)), clock, clock + 2000 + static_cast<std::int64_t>(own() % 400),
                                n % kLayerSize >= kSideFirst && n % kLayerSize <= kSideLast ? 13U : 7U, 0, ir::NodeKind::kernel});
      g.replays.push_back(replay);
    }
    if (options_.replays > 0)
      g.facts = g.facts.unite({Fact::replay_streams, Fact::replay_times, Fact::node_identity});
    g.info.end_sequence = ++sequence_;
    auto finished = builder.finish();
    CGLINT_CHECK(finished.has_value());
    nodes_ += (*finished)->node_count();
    edges_ += (*finished)->edge_count();
    return r_.graphs.push_back(std::move(*finished));
  }

  Options options_;
  std::mt19937_64 random_;
  ir::Recording r_;
  std::vector<ir::FunctionId> functions_;
  std::vector<ir::StackId> stacks_;
  std::vector<ir::NvtxId> nvtx_;
  ir::StreamId main_, side_;
  std::uint64_t sequence_ = 10000, nodes_ = 0, edges_ = 0;
  std::vector<std::pair<std::uint64_t, int>> shapes_;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (!name.starts_with("--")) {
      options.output = name;
      continue;
    }
    if (i + 1 == argc) return std::fprintf(stderr, "%s needs a value\n", argv[i]), 2;
    const char* const value = argv[++i];
    if (name == "--graphs") options.graphs = std::atoi(value);
    else if (name == "--sizes") options.log_uniform = std::strcmp(value, "uniform") != 0;
    else if (name == "--min") options.min_nodes = std::atoi(value);
    else if (name == "--max") options.max_nodes = std::atoi(value);
    else if (name == "--replays") options.replays = std::atoi(value);
    else if (name == "--equal") options.equal = std::atof(value);
    else if (name == "--seed") options.seed = std::strtoull(value, nullptr, 10);
    else return std::fprintf(stderr, "unknown option %s\n", argv[i - 1]), 2;
  }
  if (options.output.empty() || options.min_nodes < 1 || options.max_nodes < options.min_nodes)
    return std::fprintf(stderr, "usage: make_capture OUTPUT [options]\n"), 2;
  Maker maker(options);
  const auto stats = maker.run();
  if (!stats) return std::fprintf(stderr, "%s\n", stats.error().to_string().c_str()), 2;
  std::printf("graphs %llu instances %llu nodes %llu edges %llu records %llu text_bytes %llu\n",
              static_cast<unsigned long long>(stats->graphs), static_cast<unsigned long long>(stats->instances),
              static_cast<unsigned long long>(maker.nodes()), static_cast<unsigned long long>(maker.edges()),
              static_cast<unsigned long long>(stats->records), static_cast<unsigned long long>(stats->text_bytes));
  return 0;
}
