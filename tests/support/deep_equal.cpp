#include "support/deep_equal.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>

namespace cglint::test {
namespace {

using ir::Graph;
using ir::GraphId;
using ir::NodeId;
using ir::Recording;

const Graph* find(const Recording& r, GraphId id) {
  return r.graphs.contains(id) ? r.graphs[id].get() : nullptr;
}

// Graphs in an order that does not depend on ids: by id, but bodies before the first graph that runs them.
std::vector<GraphId> graph_order(const Recording& r) {
  std::vector<GraphId> order;
  std::set<GraphId> seen;
  const auto visit = [&](auto&& self, GraphId id) -> void {
    const Graph* const graph = find(r, id);
    if (graph == nullptr || !seen.insert(id).second) return;
    for (const ir::ChildGraphNode& child : graph->child_graphs) self(self, child.body);
    for (const GraphId body : graph->bodies) self(self, body);
    order.push_back(id);
  };
  for (const bool bodies : {false, true})
    for (const GraphId id : r.graphs.ids())
      if (const Graph* graph = find(r, id);
          graph != nullptr && (graph->info.role == ir::GraphRole::body) == bodies)
        visit(visit, id);
  return order;
}

struct Side {
  const Recording& r;
  std::map<GraphId, std::size_t> rank;

  explicit Side(const Recording& recording) : r(recording) {
    const std::vector<GraphId> order = graph_order(recording);
    for (std::size_t i = 0; i < order.size(); ++i) rank[order[i]] = i;
  }
  [[nodiscard]] std::string text(ir::StringId id) const { return std::string(r.text(id)); }
  [[nodiscard]] std::string graph(GraphId id) const {
    const auto it = rank.find(id);
    return it == rank.end() ? "none" : std::to_string(it->second);
  }
  [[nodiscard]] std::string stream(ir::StreamId id) const {
    if (!r.streams.contains(id)) return "none";
    const ir::Stream& s = r.streams[id];
    return fmt::format("{:x} of {} priority {} \"{}\"", s.handle, s.process.index(), s.priority,
                       text(s.name));
  }
  [[nodiscard]] std::string stack(ir::StackId id) const {
    std::string out;
    for (const ir::Frame& f : r.frames(id))
      out += fmt::format("{} {}:{} {} {}|", static_cast<int>(f.kind), text(f.file), f.line, text(f.function),
                         f.generated);
    return out;
  }
  [[nodiscard]] std::string nvtx(ir::NvtxId id) const {
    std::string out;
    for (const ir::StringId range : r.nvtx(id)) out += text(range) + "|";
    return out;
  }
  [[nodiscard]] std::string function(ir::FunctionId id) const {
    if (!r.functions.contains(id)) return "none";
    const ir::Function& f = r.functions[id];
    std::string out =
        fmt::format("{} {:x} {} {}", text(f.name), f.image_hash, static_cast<int>(f.has_grid_dependency_wait),
                    static_cast<int>(f.has_launch_dependents));
    for (const ir::Function::Param& p : f.params)
      out += fmt::format(" ({} {} {} {})", p.offset_bytes, p.size_bytes, static_cast<int>(p.type),
                         text(p.type_name));
    return out;
  }
  [[nodiscard]] std::string allocation(ir::AllocationId id) const {
    return r.allocations.contains(id) ? std::to_string(id.index()) : "none";
  }
  [[nodiscard]] std::string info(const ir::GraphInfo& i) const {
    const ir::UntracedTiming& t = i.untraced;
    return fmt::format(
        "{} role {} process {} source {:x} parent {} {} batch {} key {} mode {} status {} call {} {} {} stack {} "
        "stream {} origin "
        "{} sequence {} {} instantiated {} {} {} {} memory {} updates {} timing {} {} {} {} {} instances {}",
        text(i.name), static_cast<int>(i.role), i.process.index(), i.source_id, graph(i.parent),
        i.parent_node.index(), i.batch_size, text(i.key), static_cast<int>(i.capture_mode),
        static_cast<int>(i.capture_status), text(i.failed_call), text(i.failed_error), i.failed_thread, stack(i.failed_stack),
        stream(i.failed_stream), stream(i.origin_stream), i.begin_sequence, i.end_sequence, i.instantiated,
        i.instantiate_flags, i.instantiate_ns, i.upload_ns, i.memory_bytes, i.exec_updates, t.samples,
        t.median_us, t.p10_us, t.p90_us, t.launch_cpu_us, i.instances);
  }
  template <typename T>
  static const T* row(const Graph& g, const std::vector<T>& table, NodeId node) {
    return g.side[node] < table.size() ? &table[g.side[node]] : nullptr;
  }
  [[nodiscard]] std::string params(const Graph& g, const ir::KernelNode& k) const {
    std::string out;
    for (const ir::ParamWord& w : g.params_of(k))
      out += fmt::format(" [{} {} {} {:x} {} {} {:x}]", w.slot, w.offset_bytes, w.size_bytes, w.value,
                         static_cast<int>(w.type), allocation(w.allocation),
                         w.allocation.is_valid() ? w.allocation_offset : 0);
    return out;
  }
  [[nodiscard]] std::string node(const Graph& g, NodeId n) const {
    std::string out = fmt::format("{} \"{}\"", ir::node_kind_name(g.kind[n]), text(g.name[n]));
    out += fmt::format(" sequence {}", g.sequence.empty() ? 0 : g.sequence[n]);
    out += fmt::format(" stream {}", g.capture_stream.empty() ? "none" : stream(g.capture_stream[n]));
    out += fmt::format(" thread {}", g.thread.empty() ? 0 : g.thread[n]);
    out += fmt::format(" nvtx {}", g.nvtx.empty() ? "" : nvtx(g.nvtx[n]));
    out += fmt::format(" stack {}", g.stack.empty() ? "" : stack(g.stack[n]));
    out += fmt::format(" device {}", g.device.empty() ? -1 : g.device[n]);
    out += fmt::format(" context {:x}", g.context.empty() ? 0 : g.context[n]);
    out += fmt::format(" enabled {}", g.enabled.empty() ? 1 : g.enabled[n]);
    out += fmt::format(" id {}", g.source_id.empty() ? std::string("index") : std::to_string(g.source_id[n]));
    out += fmt::format(" launches {}", g.launches.empty() ? 1 : g.launches[n]);
    out += fmt::format(" hash {:x}", g.content_hash.empty() ? 0 : g.content_hash[n]);
    switch (g.kind[n]) {
      case ir::NodeKind::kernel:
        if (const ir::KernelNode* k = g.kernel(n)) {
          out += fmt::format(
              " {} <<<{},{},{} {},{},{} {},{},{}>>> {} {} {} priority {} {} {}", function(k->function),
              k->grid.x, k->grid.y, k->grid.z, k->block.x, k->block.y, k->block.z, k->cluster.x, k->cluster.y,
              k->cluster.z, k->dynamic_shared_bytes, k->static_shared_bytes, k->registers_per_thread,
              k->priority, static_cast<int>(k->cooperative), static_cast<int>(k->programmatic_serialization));
          out += params(g, *k);
        } else {
          out += " bare";
        }
        break;
      case ir::NodeKind::memcpy:
        if (const ir::MemcpyNode* m = g.memcpy(n)) {
          out += fmt::format(" {:x} {:x} {} {} {} {} {} {} {} {} {} {} {}", m->src, m->dst,
                             m->src_pitch_bytes, m->dst_pitch_bytes, m->width_bytes, m->height, m->depth,
                             static_cast<int>(m->src_kind), static_cast<int>(m->dst_kind), m->src_device,
                             m->dst_device, allocation(m->src_allocation), allocation(m->dst_allocation));
        } else {
          out += " bare";
        }
        break;
      case ir::NodeKind::memset:
        if (const ir::MemsetNode* m = g.memset(n)) {
          out += fmt::format(" {:x} {} {} {} {} {} {}", m->dst, m->pitch_bytes, m->width, m->height, m->value,
                             m->element_bytes, allocation(m->dst_allocation));
        } else {
          out += " bare";
        }
        break;
      case ir::NodeKind::host:
        if (const auto* h = row(g, g.hosts, n))
          out += fmt::format(" {} {:x}", text(h->function), h->user_data);
        break;
      case ir::NodeKind::event_record:
      case ir::NodeKind::event_wait:
        if (const auto* e = row(g, g.events, n)) out += fmt::format(" {:x}", e->event);
        break;
      case ir::NodeKind::child_graph:
        if (const auto* c = row(g, g.child_graphs, n)) out += " body " + graph(c->body);
        break;
      case ir::NodeKind::conditional:
        if (const auto* c = row(g, g.conditionals, n)) {
          out += fmt::format(" {}", static_cast<int>(c->type));
          for (std::uint32_t i = 0; i < c->bodies.count; ++i)
            out += " body " + graph(g.bodies[c->bodies.first + i]);
        }
        break;
      case ir::NodeKind::mem_alloc:
      case ir::NodeKind::mem_free:
        if (const auto* a = row(g, g.allocs, n))
          out += fmt::format(" {:x} {} {}", a->address, a->bytes, allocation(a->allocation));
        break;
      case ir::NodeKind::ext_semaphore_signal:
      case ir::NodeKind::ext_semaphore_wait:
        if (const auto* s = row(g, g.semaphores, n)) out += fmt::format(" {}", s->count);
        break;
      case ir::NodeKind::batch_mem_op:
        if (const auto* b = row(g, g.batch_mem_ops, n)) out += fmt::format(" {} {:x}", b->count, b->address);
        break;
      case ir::NodeKind::empty:
      case ir::NodeKind::unknown:
        break;
    }
    return out;
  }
  [[nodiscard]] std::string edge(const Graph& g, ir::EdgeId e) const {
    const ir::EdgeData d = g.data(e);
    return fmt::format("{} -> {} ports {} {} type {} sync {}", g.edge_from[e].index(), g.edge_to[e].index(),
                       d.from_port, d.to_port, static_cast<int>(d.type),
                       g.edge_sync.empty() ? ir::SyncOpId().index() : g.edge_sync[e].index());
  }
  [[nodiscard]] std::string sync_op(const ir::SyncOp& op) const {
    return fmt::format("{} {} {:x} {} {} {} {} {}", static_cast<int>(op.kind), stream(op.stream), op.event,
                       op.sequence, op.record.index(), stack(op.stack), op.thread, op.unjoined);
  }
  [[nodiscard]] std::string replay(const Graph& g, const ir::Replay& p) const {
    std::string out = fmt::format("{} {} {} stream {} {} complete {} instance {}", p.correlation,
                                  p.host_start_ns, p.host_end_ns, p.has_launch_stream,
                                  p.has_launch_stream ? p.launch_stream : 0, p.complete, p.instance);
    for (const ir::ReplayOp& op : g.ops(p))
      out += fmt::format(" [{} {} {} {} {} {}]", op.node.index(), op.start_ns, op.end_ns, op.stream,
                         op.device, static_cast<int>(op.kind));
    return out;
  }
  [[nodiscard]] std::string process(const ir::Process& p) const {
    std::string out =
        fmt::format("{} {} {} {} {} {} {} {} {} {} {}", p.pid, p.rank, p.world_size, text(p.host),
                    text(p.command), p.driver_version, text(p.driver_release), p.runtime_version,
                    p.cupti_version, text(p.framework), text(p.framework_version));
    for (const ir::Gpu& g : p.gpus)
      out += fmt::format(" [{} {} {} {}.{} {} {} {}]", g.device, text(g.name), text(g.uuid), g.compute_major,
                         g.compute_minor, g.sm_count, g.memory_bytes, g.is_amd);
    for (const auto& [name, value] : p.environment) out += fmt::format(" {}={}", text(name), text(value));
    return out;
  }
  [[nodiscard]] std::string allocation_row(const ir::Allocation& a) const {
    return fmt::format("{:x} {} {} {} {} {} {} {} {} {}", a.base, a.size_bytes, static_cast<int>(a.kind),
                       a.device, a.process.index(), a.alloc_sequence, a.free_sequence, stack(a.alloc_stack),
                       stack(a.free_stack), text(a.pool));
  }
  [[nodiscard]] std::string block(const ir::AllocatorBlock& b) const {
    return fmt::format("{:x} {} {} {} {:x} {} {} {}", b.base, b.size_bytes, static_cast<int>(b.state),
                       text(b.pool), b.stream, b.sequence, b.alloc_sequence, b.process.index());
  }
  [[nodiscard]] std::string loose(const ir::LooseOp& o) const {
    return fmt::format("{} {} {} {} {} {} {}", text(o.name), o.start_ns, o.end_ns, o.stream, o.correlation,
                       o.device, static_cast<int>(o.kind));
  }
  [[nodiscard]] std::string executable_uses() const {
    std::set<std::string> lines;
    for (const ir::ExecutableUse& u : r.executable_uses)
      lines.insert(fmt::format("graph {} instance {}: launched {} destroyed {} failed updates {}\n", graph(u.graph), u.instance, u.last_launch_sequence,
                               u.destroyed_sequence, u.failed_updates));
    std::string out;
    for (const std::string& line : lines) out += line;
    return out;
  }
  [[nodiscard]] std::string loss(const ir::Loss& l) const {
    return fmt::format("{} {} {} {} {:x}", static_cast<int>(l.severity), text(l.what), l.count,
                       l.offset_bytes, l.facts.bits());
  }
};

std::string compare(std::string_view what, const std::string& a, const std::string& b) {
  return a == b ? std::string() : fmt::format("{}:\n  {}\n  {}", what, a, b);
}

#define CGLINT_DIFFER(...)                                                            \
  do {                                                                                \
    if (std::string differs = compare(__VA_ARGS__); !differs.empty()) return differs; \
  } while (false)

std::string graph_difference(const Side& a, const Graph& x, const Side& b, const Graph& y) {
  CGLINT_DIFFER("info", a.info(x.info), b.info(y.info));
  if (x.info.content_hash != 0 && y.info.content_hash != 0)
    CGLINT_DIFFER("content hash", std::to_string(x.info.content_hash), std::to_string(y.info.content_hash));
  CGLINT_DIFFER("facts", fmt::format("{:x}", x.facts.bits()), fmt::format("{:x}", y.facts.bits()));
  const auto spoiled = [](const Side& side, const Graph& g) {
    std::string out;
    for (const ir::SpoiledFact& s : g.spoiled)
      out += fmt::format("{} {}|", static_cast<int>(s.fact), side.text(s.reason));
    return out;
  };
  CGLINT_DIFFER("spoiled", spoiled(a, x), spoiled(b, y));
  const auto infos = [](const Side& side, const Graph& g) {
    std::string out;
    for (const ir::GraphInfo& i : g.instance_infos) out += side.info(i) + "\n  ";
    return out;
  };
  CGLINT_DIFFER("instances", infos(a, x), infos(b, y));
  CGLINT_DIFFER("node count", std::to_string(x.node_count()), std::to_string(y.node_count()));
  for (const NodeId n : x.nodes())
    CGLINT_DIFFER(fmt::format("node {}", n.index()), a.node(x, n), b.node(y, n));
  CGLINT_DIFFER("edge count", std::to_string(x.edge_count()), std::to_string(y.edge_count()));
  for (const ir::EdgeId e : x.edges())
    CGLINT_DIFFER(fmt::format("edge {}", e.index()), a.edge(x, e), b.edge(y, e));
  CGLINT_DIFFER("sync op count", std::to_string(x.sync_ops.size()), std::to_string(y.sync_ops.size()));
  for (const ir::SyncOpId i : x.sync_ops.ids())
    CGLINT_DIFFER(fmt::format("sync op {}", i.index()), a.sync_op(x.sync_ops[i]), b.sync_op(y.sync_ops[i]));
  CGLINT_DIFFER("replay count", std::to_string(x.replays.size()), std::to_string(y.replays.size()));
  for (const ir::ReplayId i : x.replays.ids())
    CGLINT_DIFFER(fmt::format("replay {}", i.index()), a.replay(x, x.replays[i]), b.replay(y, y.replays[i]));
  const auto accesses = [](const Graph& g) {
    std::string out = g.measured_reads_are_some ? "some reads " : "";
    for (const ir::MeasuredAccess& m : g.measured_accesses)
      out += fmt::format("[{} {:x} {:x} {} {} {} {}]", m.node.index(), m.begin, m.end, m.reads, m.writes, m.slot, m.offset_bytes);
    return out;
  };
  return compare("measured accesses", accesses(x), accesses(y));
}

template <typename Rows, typename Print>
std::string table_difference(std::string_view what, const Rows& x, const Rows& y, const Print& print_a,
                             const Print& print_b) {
  CGLINT_DIFFER(fmt::format("number of {}", what), std::to_string(x.size()), std::to_string(y.size()));
  auto other = y.begin();
  std::size_t index = 0;
  for (const auto& row : x)
    CGLINT_DIFFER(fmt::format("{} {}", what, index++), print_a(row), print_b(*other++));
  return {};
}

}  // namespace

std::string difference(const Recording& x, const Recording& y) {
  const Side a(x), b(y);
  std::string text;
  const auto table = [&](std::string_view what, const auto& rows_x, const auto& rows_y, const auto& print) {
    if (!text.empty()) return;
    using Row = std::decay_t<decltype(*rows_x.begin())>;
    const std::function<std::string(const Row&)> print_a = [&](const Row& row) { return print(a, row); };
    const std::function<std::string(const Row&)> print_b = [&](const Row& row) { return print(b, row); };
    text = table_difference(what, rows_x, rows_y, print_a, print_b);
  };
  table("process", x.processes, y.processes,
        [](const Side& s, const ir::Process& row) { return s.process(row); });
  table("allocation", x.allocations, y.allocations,
        [](const Side& s, const ir::Allocation& row) { return s.allocation_row(row); });
  table("allocator block", x.allocator_blocks, y.allocator_blocks,
        [](const Side& s, const ir::AllocatorBlock& row) { return s.block(row); });
  table("loose op", x.loose_ops, y.loose_ops,
        [](const Side& s, const ir::LooseOp& row) { return s.loose(row); });
  table("loss", x.losses, y.losses, [](const Side& s, const ir::Loss& row) { return s.loss(row); });
  if (!text.empty()) return text;
  const std::vector<GraphId> order_x = graph_order(x), order_y = graph_order(y);
  CGLINT_DIFFER("graph count", std::to_string(order_x.size()), std::to_string(order_y.size()));
  for (std::size_t i = 0; i < order_x.size(); ++i) {
    std::string found = graph_difference(a, *x.graphs[order_x[i]], b, *y.graphs[order_y[i]]);
    if (!found.empty()) return fmt::format("graph {}: {}", i, found);
  }
  CGLINT_DIFFER("executable uses", a.executable_uses(), b.executable_uses());
  const auto has_replays = [](const Recording& r) {
    return std::any_of(r.graphs.begin(), r.graphs.end(),
                       [](const auto& g) { return g != nullptr && !g->replays.empty(); });
  };
  return compare("has_timeline", std::to_string(x.has_timeline || has_replays(x)),
                 std::to_string(y.has_timeline || has_replays(y)));
}

}  // namespace cglint::test
