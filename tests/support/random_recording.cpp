#include "support/random_recording.h"

#include <algorithm>
#include <random>
#include <set>
#include <string>

#include "ir/graph_builder.h"

namespace cglint::test {
namespace {

using ir::GraphId;
using ir::NodeId;
using ir::NodeKind;

class Generator {
 public:
  Generator(std::uint64_t seed, const RandomRecordingOptions& options) : random_(seed), options_(options) {}

  ir::Recording run() {
    make_processes();
    make_tables();
    for (int i = 0; i < options_.graphs; ++i) make_tree(0);
    r_.has_timeline = chance(0.5);
    if (chance(0.8)) make_loose_ops();
    make_losses();
    make_executable_uses();
    return std::move(r_);
  }

 private:
  std::uint64_t bits() { return random_(); }
  std::uint64_t below(std::uint64_t limit) { return limit == 0 ? 0 : random_() % limit; }
  bool chance(double p) { return std::uniform_real_distribution<double>(0, 1)(random_) < p; }
  // Any 64-bit value, short ones and the extremes often.
  std::uint64_t wide() {
    switch (below(6)) {
      case 0:
        return 0;
      case 1:
        return below(10);
      case 2:
        return ~std::uint64_t{0};
      case 3:
        return std::uint64_t{1} << 63;
      default:
        return bits() >> below(64);
    }
  }
  std::uint32_t narrow() { return static_cast<std::uint32_t>(wide()); }
  std::int64_t signed_wide() { return static_cast<std::int64_t>(wide()); }
  template <typename Enum>
  Enum any(Enum last) {
    return static_cast<Enum>(below(static_cast<std::uint64_t>(last) + 1));
  }
  std::string name() {
    static const std::vector<std::string> kPieces = {"gemm",
                                                     "_Z4fillPfi",
                                                     "rms_norm<float, 4>",
                                                     "\"quoted\\",
                                                     "line\nbreak",
                                                     std::string("nul\0byte", 8),
                                                     "\x1b[31m",
                                                     "\x7f",
                                                     "\xc2\x85",
                                                     "größe",
                                                     "\xe2\x80\xa8",
                                                     "\xf0\x9f\x98\x80",
                                                     "/path/with space.py",
                                                     "</script>",
                                                     "\t\r\b"};
    std::string text;
    for (std::uint64_t i = below(3) + 1; i > 0; --i)
      text += options_.hostile_names ? kPieces[below(kPieces.size())] : kPieces[below(3)];
    return text + std::to_string(below(50));
  }
  ir::StringId text() { return chance(0.2) ? ir::kEmptyString : r_.intern(name()); }
  ir::Tri tri() { return any(ir::Tri::yes); }
  ir::Dim3 dim3() { return {narrow(), narrow(), narrow()}; }
  ir::ProcessId process() {
    return chance(0.1) ? ir::ProcessId()
                       : ir::ProcessId(static_cast<std::uint32_t>(below(r_.processes.size())));
  }
  template <typename IdType>
  IdType pick(std::size_t size, double none = 0.2) {
    return size == 0 || chance(none) ? IdType() : IdType(static_cast<std::uint32_t>(below(size)));
  }

  void make_processes() {
    for (std::uint64_t i = below(3) + 1; i > 0; --i) {
      ir::Process p;
      if (chance(0.9)) p.pid = signed_wide();
      if (chance(0.5)) p.rank = static_cast<std::int32_t>(below(8));
      if (chance(0.5)) p.world_size = 8;
      p.host = text();
      p.command = text();
      p.driver_version = narrow();
      p.driver_release = text();
      p.runtime_version = narrow();
      p.cupti_version = narrow();
      p.framework = text();
      p.framework_version = text();
      for (std::uint64_t n = below(3); n > 0; --n)
        p.gpus.push_back({static_cast<std::int32_t>(n), text(), text(), narrow(), narrow(), narrow(), wide(),
                          chance(0.2)});
      for (std::uint64_t n = below(4); n > 0; --n)
        p.environment.emplace_back(r_.intern("VARIABLE_" + std::to_string(n) + name()), text());
      r_.processes.push_back(p);
    }
  }

  ir::StackId stack() {
    std::vector<ir::Frame> frames;
    for (std::uint64_t n = below(5); n > 0; --n)
      frames.push_back({any(ir::Frame::Kind::native), text(), text(), narrow(), chance(0.3)});
    return r_.intern_stack(frames);
  }

  void make_tables() {
    for (int i = 0; i < 12; ++i) {
      // Two functions of one name are told apart by their images.
      ir::Function f;
      f.name = r_.intern(i % 3 == 0 ? "twice" : "kernel_" + std::to_string(i) + name());
      f.image_hash = i % 3 == 0 ? bits() | 1 : wide();
      f.has_grid_dependency_wait = tri();
      f.has_launch_dependents = tri();
      for (std::uint64_t n = below(4); n > 0; --n)
        f.params.push_back({narrow(), narrow(), any(ir::ParamWord::Type::scalar), text()});
      r_.functions.push_back(f);
    }
    for (int i = 0; i < 8; ++i) {
      std::vector<ir::StringId> ranges;
      for (std::uint64_t n = below(4); n > 0; --n) ranges.push_back(text());
      nvtx_.push_back(r_.intern_nvtx(ranges));
      stacks_.push_back(stack());
    }
    for (int i = 0; i < options_.allocations; ++i) {
      ir::Allocation a;
      a.base = wide();
      a.size_bytes = wide();
      a.kind = any(ir::Allocation::Kind::graph_node);
      if (chance(0.8)) a.device = static_cast<std::int32_t>(below(4));
      a.process = process();
      a.alloc_sequence = wide();
      a.free_sequence = wide();
      a.alloc_stack = stack();
      a.free_stack = stack();
      a.pool = text();
      r_.allocations.push_back(a);
    }
    for (int i = 0; i < options_.allocations / 2; ++i)
      r_.allocator_blocks.push_back(
          {wide(), wide(), any(ir::AllocatorBlock::State::free), text(), wide(), below(3), below(5), process()});
  }

  // Allocation numbers are the process's: only those of `process` can be named.
  ir::AllocationId allocation(ir::ProcessId process) {
    std::vector<ir::AllocationId> own;
    for (const ir::AllocationId id : r_.allocations.ids())
      if (r_.allocations[id].process == process) own.push_back(id);
    return own.empty() || chance(0.3) ? ir::AllocationId() : own[below(own.size())];
  }

  ir::GraphInfo info(ir::ProcessId process) {
    ir::GraphInfo i;
    i.name = text();
    i.process = process;
    i.source_id = wide();
    if (chance(0.5)) i.batch_size = signed_wide();
    i.key = text();
    i.capture_mode = any(ir::CaptureMode::relaxed);
    i.capture_status = any(ir::CaptureStatus::failed);
    i.failed_call = text();
    i.failed_error = text();
    i.failed_thread = narrow();
    i.begin_sequence = wide();
    i.end_sequence = wide();
    i.instantiated = chance(0.5);
    i.instantiate_flags = wide();
    i.instantiate_ns = signed_wide();
    i.upload_ns = signed_wide();
    i.memory_bytes = wide();
    i.exec_updates = narrow();
    if (chance(0.5)) i.content_hash = bits();
    if (chance(0.5)) {
      i.untraced.samples = narrow() | 1;
      i.untraced.median_us = std::uniform_real_distribution<double>(0, 1e6)(random_);
      i.untraced.p10_us = std::uniform_real_distribution<double>(0, 1e-3)(random_);
      i.untraced.p90_us = 1e300;
      i.untraced.launch_cpu_us = 0.1;
    }
    return i;
  }

  // A graph with its bodies; returns its id.
  GraphId make_tree(int depth) {
    const ir::ProcessId owner = depth == 0 ? process() : tree_process_;
    if (depth == 0) tree_process_ = owner;
    ir::GraphBuilder builder;
    ir::Graph& g = builder.graph();
    g.info = info(owner);
    g.info.role = depth > 0 ? ir::GraphRole::body : any(ir::GraphRole::built);
    if (depth == 0 && chance(0.2)) g.info.role = ir::GraphRole::eager;
    for (int f = 0; f < ir::kFactCount; ++f) {
      if (chance(0.5)) {
        g.facts.insert(static_cast<ir::Fact>(f));
      } else if (chance(0.1)) {
        g.spoiled.push_back({static_cast<ir::Fact>(f), text()});
      }
    }
    std::vector<ir::StreamId> streams;
    for (std::uint64_t n = below(4); n > 0; --n) {
      ir::Stream s{wide(), owner, static_cast<std::int32_t>(signed_wide()), text()};
      streams.push_back(r_.streams.push_back(s));
    }
    const auto stream = [&] {
      return streams.empty() || chance(0.1) ? ir::StreamId() : streams[below(streams.size())];
    };
    g.info.origin_stream = stream();
    g.info.failed_stream = stream();
    g.info.failed_stack = stacks_[below(stacks_.size())];

    std::vector<std::pair<GraphId, NodeId>> children;
    const std::uint64_t count = below(static_cast<std::uint64_t>(options_.max_nodes)) + 1;
    const std::uint64_t columns = options_.sparse ? bits() : ~std::uint64_t{0};
    for (std::uint64_t i = 0; i < count; ++i) {
      const NodeId node = add_node(builder, owner, depth, children);
      const auto column = [&](int bit) { return (columns >> bit & 1) != 0 && chance(0.8); };
      if (column(0)) builder.set_sequence(node, wide());
      if (column(1)) builder.set_capture_stream(node, stream());
      if (column(2)) builder.set_thread(node, chance(0.7) ? 4711 : narrow());
      if (column(3)) builder.set_nvtx(node, nvtx_[below(nvtx_.size())]);
      if (column(4)) builder.set_stack(node, stacks_[below(stacks_.size())]);
      if (column(5))
        builder.set_device(node, chance(0.7) ? std::int16_t{0} : static_cast<std::int16_t>(below(3)));
      if (column(6)) builder.set_context(node, chance(0.7) ? 0x5500 : wide());
      if (column(7)) builder.set_enabled(node, chance(0.8));
      if (column(8)) builder.set_source_id(node, wide());
      if (column(9)) builder.set_content_hash(node, wide());
      if (column(10)) builder.set_launches(node, narrow());
    }
    for (std::uint64_t n = below(10); n > 0; --n) {
      ir::SyncOp op;
      op.kind = any(ir::SyncOp::Kind::update_dependencies);
      op.stream = stream();
      op.event = wide();
      op.sequence = wide();
      op.record = pick<ir::SyncOpId>(g.sync_ops.size(), 0.5);
      op.stack = stacks_[below(stacks_.size())];
      op.thread = narrow();
      op.unjoined = chance(0.1);
      g.sync_ops.push_back(op);
    }
    if (g.info.role != ir::GraphRole::eager && count > 1) {
      for (std::uint64_t n = below(3 * count); n > 0; --n) {
        const std::uint64_t from = below(count - 1);
        const std::uint64_t to = from + 1 + below(count - from - 1);
        ir::EdgeData data;
        if (chance(0.3))
          data = {static_cast<std::uint8_t>(below(3)), static_cast<std::uint8_t>(below(256)),
                  any(ir::EdgeType::programmatic)};
        builder.add_edge(NodeId(static_cast<std::uint32_t>(from)), NodeId(static_cast<std::uint32_t>(to)),
                         data, pick<ir::SyncOpId>(g.sync_ops.size(), 0.6));
      }
    }
    if (depth == 0) add_replays(g, static_cast<std::uint32_t>(count));
    auto finished = builder.finish();
    CGLINT_CHECK(finished.has_value());
    const GraphId id = r_.graphs.push_back(std::move(*finished));
    for (const auto& [body, node] : children) {
      ir::Graph& child = *r_.graphs[body];
      if (child.info.parent.is_valid()) continue;
      child.info.parent = id;
      child.info.parent_node = node;
    }
    return id;
  }

  NodeId add_node(ir::GraphBuilder& builder, ir::ProcessId owner, int depth,
                  std::vector<std::pair<GraphId, NodeId>>& children) {
    NodeKind kind = chance(0.5) ? NodeKind::kernel : any(NodeKind::unknown);
    const auto body = [&] {
      const GraphId id = depth < 2 && chance(0.5) ? make_tree(depth + 1) : GraphId();
      if (id.is_valid())
        children.emplace_back(id, NodeId(static_cast<std::uint32_t>(builder.graph().node_count())));
      return id;
    };
    switch (kind) {
      case NodeKind::kernel: {
        if (chance(0.05)) return builder.add_node(kind, text());
        ir::KernelNode k;
        k.function = pick<ir::FunctionId>(r_.functions.size(), 0.1);
        k.grid = dim3();
        k.block = dim3();
        if (chance(0.3)) k.cluster = dim3();
        k.dynamic_shared_bytes = narrow();
        k.static_shared_bytes = narrow();
        k.registers_per_thread = narrow();
        k.priority = static_cast<std::int32_t>(signed_wide());
        k.cooperative = tri();
        k.programmatic_serialization = tri();
        if (chance(0.4)) k = repeated_;  // equal launches share a table entry
        repeated_ = k;
        const ir::StringId name =
            chance(0.7) && k.function.is_valid() ? r_.functions[k.function].name : text();
        const NodeId node = builder.add_kernel(name, k);
        std::vector<ir::ParamWord> words;
        for (std::uint64_t n = below(6); n > 0; --n) {
          ir::ParamWord w;
          w.value = wide();
          w.allocation = allocation(owner);
          if (w.allocation.is_valid()) w.allocation_offset = w.value - r_.allocations[w.allocation].base;
          w.slot = static_cast<std::uint16_t>(bits());
          w.offset_bytes = static_cast<std::uint16_t>(bits());
          w.size_bytes = static_cast<std::uint8_t>(1U << below(4));
          w.type = any(ir::ParamWord::Type::scalar);
          words.push_back(w);
        }
        builder.add_params(node, words);
        return node;
      }
      case NodeKind::memcpy: {
        if (chance(0.1)) return builder.add_node(kind, text());
        ir::MemcpyNode m{wide(),
                         wide(),
                         wide(),
                         wide(),
                         wide(),
                         wide(),
                         wide(),
                         any(ir::MemoryKind::managed),
                         any(ir::MemoryKind::managed),
                         static_cast<std::int32_t>(signed_wide()),
                         static_cast<std::int32_t>(signed_wide()),
                         allocation(owner),
                         allocation(owner)};
        return builder.add_memcpy(text(), m);
      }
      case NodeKind::memset: {
        if (chance(0.1)) return builder.add_node(kind, text());
        ir::MemsetNode m{wide(),           wide(),   wide(),
                         wide(),           narrow(), static_cast<std::uint8_t>(1U << below(3)),
                         allocation(owner)};
        return builder.add_memset(text(), m);
      }
      case NodeKind::host:
        return builder.add_host(text(), {text(), wide()});
      case NodeKind::event_record:
      case NodeKind::event_wait:
        return builder.add_event(kind, text(), {wide()});
      case NodeKind::child_graph: {
        const GraphId child = body();
        return builder.add_child_graph(text(), {child});
      }
      case NodeKind::conditional: {
        std::vector<GraphId> bodies;
        for (std::uint64_t n = below(3); n > 0; --n) bodies.push_back(body());
        ir::ConditionalNode node;
        node.type = any(ir::ConditionalNode::Type::switch_);
        return builder.add_conditional(text(), node, bodies);
      }
      case NodeKind::mem_alloc:
      case NodeKind::mem_free:
        return builder.add_alloc(kind, text(), {wide(), wide(), allocation(owner)});
      case NodeKind::ext_semaphore_signal:
      case NodeKind::ext_semaphore_wait:
        return builder.add_semaphore(kind, text(), {narrow()});
      case NodeKind::batch_mem_op:
        return builder.add_batch_mem_op(text(), {narrow(), wide()});
      case NodeKind::empty:
      case NodeKind::unknown:
        return builder.add_node(kind, text());
    }
    return builder.add_node(kind, text());
  }

  void add_replays(ir::Graph& g, std::uint32_t count) {
    for (std::uint64_t n = below(3); n > 0; --n) {
      ir::GraphInfo other = info(g.info.process);
      other.role = g.info.role;
      other.origin_stream = g.info.origin_stream;
      other.failed_stream = g.info.failed_stream;
      other.failed_stack = g.info.failed_stack;
      other.instances = 1 + static_cast<std::uint32_t>(below(3));
      g.info.instances += other.instances;
      g.instance_infos.push_back(other);
    }
    g.info.instances += static_cast<std::uint32_t>(below(3));
    std::int64_t clock = chance(0.5) ? 1'700'000'000'000'000'000 : -1000;
    for (std::uint64_t n = below(6); n > 0; --n) {
      ir::Replay replay;
      replay.correlation = wide();
      if (chance(0.7)) {
        replay.host_start_ns = clock - 50;
        replay.host_end_ns = clock - 20;
      }
      replay.has_launch_stream = chance(0.7);
      if (replay.has_launch_stream) replay.launch_stream = wide();
      replay.complete = chance(0.8);
      replay.instance = static_cast<std::uint32_t>(below(g.instance_infos.size() + 1));
      replay.ops.first = static_cast<std::uint32_t>(g.replay_ops.size());
      replay.ops.count = static_cast<std::uint32_t>(below(8) + 1);
      // A node once in a launch; all of them if it is complete: readers take anything else for damage.
      std::set<std::uint32_t> unused;
      for (const ir::NodeId node : g.nodes())
        if (ir::is_activity(g.kind[node]) && (node.index() >= g.enabled.size() || g.enabled[node] != 0)) unused.insert(node.index());
      if (replay.complete) replay.ops.count = static_cast<std::uint32_t>(unused.size() + below(3)) + (unused.empty() ? 1 : 0);
      std::set<std::uint32_t> used;
      for (std::uint32_t i = 0; i < replay.ops.count; ++i) {
        ir::ReplayOp op;
        if (replay.complete && !unused.empty()) {
          const auto next = std::next(unused.begin(), static_cast<std::ptrdiff_t>(below(unused.size())));
          op.node = ir::NodeId(*next);
          unused.erase(next);
          used.insert(op.node.index());
        } else if (const auto node = static_cast<std::uint32_t>(below(count)); !chance(0.1) && used.insert(node).second) {
          op.node = ir::NodeId(node);
        }
        op.start_ns = clock;
        op.end_ns = clock + static_cast<std::int64_t>(below(100));
        op.stream = wide();
        op.device = static_cast<std::int32_t>(below(8));
        op.kind = op.node.is_valid() && chance(0.9) ? g.kind[op.node] : any(NodeKind::unknown);
        g.replay_ops.push_back(op);
        clock += 1 + static_cast<std::int64_t>(below(50));
      }
      g.replays.push_back(replay);
      clock += 1000;
    }
    for (std::uint64_t n = below(5); n > 0; --n) {
      ir::MeasuredAccess access;
      access.node = NodeId(static_cast<std::uint32_t>(below(count)));
      access.begin = bits() >> 1;
      access.end = access.begin + below(1 << 20);
      access.reads = chance(0.5);
      access.writes = chance(0.5);
      if (chance(0.3)) {
        access.slot = static_cast<std::uint16_t>(below(ir::MeasuredAccess::kNoSlot));
        access.offset_bytes = static_cast<std::uint16_t>(below(0x10000));
      }
      g.measured_accesses.push_back(access);
    }
    g.measured_reads_are_some = !g.measured_accesses.empty() && chance(0.5);
  }

  void make_loose_ops() {
    std::int64_t clock = signed_wide() / 4;
    for (std::uint64_t n = below(30); n > 0; --n) {
      clock += 1 + static_cast<std::int64_t>(below(1000));
      r_.loose_ops.push_back({text(), clock, clock + static_cast<std::int64_t>(below(100)), wide(), wide(),
                              static_cast<std::int32_t>(below(4)), any(NodeKind::unknown)});
    }
  }

  void make_losses() {
    for (std::uint64_t n = below(4); n > 0; --n) {
      ir::FactSet facts;
      if (chance(0.5)) facts.insert(any(static_cast<ir::Fact>(ir::kFactCount - 1)));
      r_.add_loss(any(ir::Loss::Severity::error), "loss " + std::to_string(n) + name(), wide() | 1, wide(),
                  facts);
    }
  }

  void make_executable_uses() {
    for (const ir::GraphId id : r_.graphs.ids()) {
      const ir::Graph& graph = *r_.graphs[id];
      if (graph.info.role == ir::GraphRole::body || graph.info.role == ir::GraphRole::eager) continue;
      for (std::uint32_t instance = 0; instance <= graph.instance_infos.size(); ++instance)
        if (chance(0.5)) r_.executable_uses.push_back({id, instance, wide(), wide(), narrow()});
    }
  }

  std::mt19937_64 random_;
  RandomRecordingOptions options_;
  ir::Recording r_;
  std::vector<ir::StackId> stacks_;
  std::vector<ir::NvtxId> nvtx_;
  ir::ProcessId tree_process_;
  ir::KernelNode repeated_;
};

}  // namespace

ir::Recording random_recording(std::uint64_t seed, const RandomRecordingOptions& options) {
  return Generator(seed, options).run();
}

}  // namespace cglint::test
