#include "export/content_hash.h"

#define XXH_STATIC_LINKING_ONLY  // the state on the stack
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

namespace cglint::exporter {
namespace {

using ir::Graph;
using ir::NodeId;
using ir::NodeKind;
using ir::Recording;

constexpr int kMaxBodyDepth = 64;

// The value of an optional column, or what its absence means.
template <typename T>
T column_value(const base::IdVector<NodeId, T>& column, NodeId node, T absent) {
  return column.empty() ? absent : column[node];
}

std::uint64_t pack(std::uint32_t high, std::uint32_t low) {
  return std::uint64_t{high} << 32 | low;
}

bool same_params(const Graph& a, const ir::KernelNode& ka, const Graph& b, const ir::KernelNode& kb) {
  const auto pa = a.params_of(ka);
  const auto pb = b.params_of(kb);
  return std::equal(
      pa.begin(), pa.end(), pb.begin(), pb.end(), [](const ir::ParamWord& x, const ir::ParamWord& y) {
        return x.value == y.value && x.allocation_offset == y.allocation_offset &&
               x.allocation == y.allocation && x.slot == y.slot && x.offset_bytes == y.offset_bytes &&
               x.size_bytes == y.size_bytes && x.type == y.type;
      });
}

bool same_kernel(const Graph& a, const ir::KernelNode& x, const Graph& b, const ir::KernelNode& y) {
  return x.function == y.function && x.grid == y.grid && x.block == y.block && x.cluster == y.cluster &&
         x.dynamic_shared_bytes == y.dynamic_shared_bytes && x.static_shared_bytes == y.static_shared_bytes &&
         x.registers_per_thread == y.registers_per_thread && x.priority == y.priority &&
         x.cooperative == y.cooperative && x.programmatic_serialization == y.programmatic_serialization &&
         same_params(a, x, b, y);
}

bool same_memcpy(const ir::MemcpyNode& x, const ir::MemcpyNode& y) {
  return x.src == y.src && x.dst == y.dst && x.src_pitch_bytes == y.src_pitch_bytes &&
         x.dst_pitch_bytes == y.dst_pitch_bytes && x.width_bytes == y.width_bytes && x.height == y.height &&
         x.depth == y.depth && x.src_kind == y.src_kind && x.dst_kind == y.dst_kind &&
         x.src_device == y.src_device && x.dst_device == y.dst_device &&
         x.src_allocation == y.src_allocation && x.dst_allocation == y.dst_allocation;
}

bool same_memset(const ir::MemsetNode& x, const ir::MemsetNode& y) {
  return x.dst == y.dst && x.pitch_bytes == y.pitch_bytes && x.width == y.width && x.height == y.height &&
         x.value == y.value && x.element_bytes == y.element_bytes && x.dst_allocation == y.dst_allocation;
}

// The row of a side table, or null where the node has none.
template <typename T>
const T* row(const Graph& graph, const std::vector<T>& table, NodeId node) {
  const std::uint32_t index = graph.side[node];
  return index < table.size() ? &table[index] : nullptr;
}

template <typename T, typename Same>
bool same_row(const Graph& a, const std::vector<T>& ta, const Graph& b, const std::vector<T>& tb, NodeId node,
              const Same& same) {
  const T* const x = row(a, ta, node);
  const T* const y = row(b, tb, node);
  if (x == nullptr || y == nullptr) return x == y;
  return same(*x, *y);
}

using BodyPairs = std::vector<std::pair<ir::GraphId, ir::GraphId>>;

bool same_side(const Graph& a, const Graph& b, NodeId node, BodyPairs& bodies) {
  switch (a.kind[node]) {
    case NodeKind::kernel:
      return same_row(a, a.kernels, b, b.kernels, node,
                      [&](const auto& x, const auto& y) { return same_kernel(a, x, b, y); });
    case NodeKind::memcpy:
      return same_row(a, a.memcpys, b, b.memcpys, node, same_memcpy);
    case NodeKind::memset:
      return same_row(a, a.memsets, b, b.memsets, node, same_memset);
    case NodeKind::host:
      return same_row(a, a.hosts, b, b.hosts, node, [](const auto& x, const auto& y) {
        return x.function == y.function && x.user_data == y.user_data;
      });
    case NodeKind::event_record:
    case NodeKind::event_wait:
      // Events are renamed from capture to capture; those of graph nodes are visible to the rest of the
      // process.
      return same_row(a, a.events, b, b.events, node,
                      [](const auto& x, const auto& y) { return x.event == y.event; });
    case NodeKind::child_graph:
      return same_row(a, a.child_graphs, b, b.child_graphs, node, [&](const auto& x, const auto& y) {
        bodies.emplace_back(x.body, y.body);
        return true;
      });
    case NodeKind::conditional:
      return same_row(a, a.conditionals, b, b.conditionals, node, [&](const auto& x, const auto& y) {
        if (x.type != y.type || x.bodies.count != y.bodies.count) return false;
        for (std::uint32_t i = 0; i < x.bodies.count; ++i)
          bodies.emplace_back(a.bodies[x.bodies.first + i], b.bodies[y.bodies.first + i]);
        return true;
      });
    case NodeKind::mem_alloc:
    case NodeKind::mem_free:
      return same_row(a, a.allocs, b, b.allocs, node, [](const auto& x, const auto& y) {
        return x.address == y.address && x.bytes == y.bytes && x.allocation == y.allocation;
      });
    case NodeKind::ext_semaphore_signal:
    case NodeKind::ext_semaphore_wait:
      return same_row(a, a.semaphores, b, b.semaphores, node,
                      [](const auto& x, const auto& y) { return x.count == y.count; });
    case NodeKind::batch_mem_op:
      return same_row(a, a.batch_mem_ops, b, b.batch_mem_ops, node, [](const auto& x, const auto& y) {
        return x.count == y.count && x.address == y.address;
      });
    case NodeKind::empty:
    case NodeKind::unknown:
      return true;
  }
  return true;
}

// Everything but the bodies, which are added to `bodies` for the caller to compare.
bool is_same_graph(const Graph& a, const Graph& b, BodyPairs& bodies) {
  const ir::GraphInfo& x = a.info;
  const ir::GraphInfo& y = b.info;
  if (a.node_count() != b.node_count() || a.edge_count() != b.edge_count() || a.facts != b.facts)
    return false;
  if (x.role != y.role || x.process != y.process || x.origin_stream != y.origin_stream ||
      x.failed_stream != y.failed_stream || x.failed_stack != y.failed_stack)
    return false;
  const auto same_spoiled = [](const ir::SpoiledFact& p, const ir::SpoiledFact& q) {
    return p.fact == q.fact && p.reason == q.reason;
  };
  if (!std::equal(a.spoiled.begin(), a.spoiled.end(), b.spoiled.begin(), b.spoiled.end(), same_spoiled))
    return false;
  const auto same_access = [](const ir::MeasuredAccess& p, const ir::MeasuredAccess& q) {
    return p.node == q.node && p.begin == q.begin && p.end == q.end && p.reads == q.reads &&
           p.writes == q.writes && p.slot == q.slot && p.offset_bytes == q.offset_bytes;
  };
  if (a.measured_reads_are_some != b.measured_reads_are_some) return false;
  if (!std::equal(a.measured_accesses.begin(), a.measured_accesses.end(), b.measured_accesses.begin(),
                  b.measured_accesses.end(), same_access))
    return false;
  for (const NodeId node : a.nodes()) {
    if (a.kind[node] != b.kind[node] || a.name[node] != b.name[node]) return false;
    if (column_value(a.capture_stream, node, ir::StreamId()) !=
            column_value(b.capture_stream, node, ir::StreamId()) ||
        column_value(a.thread, node, 0U) != column_value(b.thread, node, 0U) ||
        column_value(a.nvtx, node, ir::NvtxId()) != column_value(b.nvtx, node, ir::NvtxId()) ||
        column_value(a.stack, node, ir::StackId()) != column_value(b.stack, node, ir::StackId()) ||
        column_value<std::int16_t>(a.device, node, -1) != column_value<std::int16_t>(b.device, node, -1) ||
        column_value<std::uint64_t>(a.context, node, 0) != column_value<std::uint64_t>(b.context, node, 0) ||
        column_value<std::uint8_t>(a.enabled, node, 1) != column_value<std::uint8_t>(b.enabled, node, 1) ||
        column_value(a.launches, node, 1U) != column_value(b.launches, node, 1U) ||
        column_value<std::uint64_t>(a.content_hash, node, 0) !=
            column_value<std::uint64_t>(b.content_hash, node, 0))
      return false;
    if (!same_side(a, b, node, bodies)) return false;
  }
  for (const ir::EdgeId edge : a.edges()) {
    if (a.edge_from[edge] != b.edge_from[edge] || a.edge_to[edge] != b.edge_to[edge] ||
        a.data(edge) != b.data(edge))
      return false;
    const ir::SyncOpId sa = a.edge_sync.empty() ? ir::SyncOpId() : a.edge_sync[edge];
    const ir::SyncOpId sb = b.edge_sync.empty() ? ir::SyncOpId() : b.edge_sync[edge];
    if (sa != sb) return false;
  }
  return std::equal(a.sync_ops.begin(), a.sync_ops.end(), b.sync_ops.begin(), b.sync_ops.end(),
                    [](const ir::SyncOp& p, const ir::SyncOp& q) {
                      return p.kind == q.kind && p.stream == q.stream && p.record == q.record &&
                             p.stack == q.stack && p.thread == q.thread && p.unjoined == q.unjoined;
                    });
}

const Graph* find_graph(const Recording& recording, ir::GraphId id) {
  return recording.graphs.contains(id) ? recording.graphs[id].get() : nullptr;
}

}  // namespace

bool is_same_work(const Recording& recording, const Graph& a, const Graph& b) {
  BodyPairs pending;
  if (!is_same_graph(a, b, pending)) return false;
  std::set<std::pair<ir::GraphId, ir::GraphId>> seen;
  while (!pending.empty()) {
    const auto pair = pending.back();
    pending.pop_back();
    if (pair.first == pair.second || !seen.insert(pair).second) continue;
    const Graph* const x = find_graph(recording, pair.first);
    const Graph* const y = find_graph(recording, pair.second);
    if (x == nullptr || y == nullptr) return false;  // dropped: nothing can be said
    if (!is_same_graph(*x, *y, pending)) return false;
  }
  return true;
}

// 64-bit words on their way into the hash.
struct ContentHasher::Buffer {
  Buffer() { XXH3_128bits_reset(&state); }
  void add(std::uint64_t word) {
    if (used == words.size()) flush();
    words[used++] = word;
  }
  void flush() {
    XXH3_128bits_update(&state, words.data(), used * sizeof(std::uint64_t));
    used = 0;
  }
  ContentHash finish() {
    flush();
    const XXH128_hash_t hash = XXH3_128bits_digest(&state);
    return {hash.low64, hash.high64};
  }
  XXH3_state_t state;
  std::array<std::uint64_t, 512> words;
  std::size_t used = 0;
};

namespace {

// Looks `id` up in `cache`, computing it on first use; 0 stands for "not computed".
template <typename IdType, typename Compute>
std::uint64_t cached(std::vector<std::uint64_t>& cache, IdType id, const Compute& compute) {
  if (!id.is_valid()) return 0;
  if (cache.size() <= id.index()) cache.resize(std::size_t{id.index()} + 1, 0);
  if (cache[id.index()] == 0) {
    const std::uint64_t hash = compute();  // may grow the cache
    cache[id.index()] = hash == 0 ? 1 : hash;
  }
  return cache[id.index()];
}

}  // namespace

std::uint64_t ContentHasher::text_hash(ir::StringId text) {
  return cached(texts_, text, [&] {
    const std::string_view view = recording_->text(text);
    return XXH3_64bits(view.data(), view.size());
  });
}

std::uint64_t ContentHasher::stack_hash(ir::StackId stack) {
  return cached(stacks_, stack, [&] {
    Buffer buffer;
    for (const ir::Frame& frame : recording_->frames(stack)) {
      buffer.add(text_hash(frame.file));
      buffer.add(text_hash(frame.function));
      buffer.add(pack(frame.line, static_cast<std::uint32_t>(frame.kind) << 1 | (frame.generated ? 1U : 0U)));
    }
    return buffer.finish().low;
  });
}

std::uint64_t ContentHasher::nvtx_hash(ir::NvtxId nvtx) {
  return cached(nvtx_, nvtx, [&] {
    Buffer buffer;
    for (const ir::StringId range : recording_->nvtx(nvtx)) buffer.add(text_hash(range));
    return buffer.finish().low;
  });
}

std::uint64_t ContentHasher::function_hash(ir::FunctionId function) {
  return cached(functions_, function, [&] {
    const ir::Function& f = recording_->functions[function];
    Buffer buffer;
    buffer.add(text_hash(f.name));
    buffer.add(f.image_hash);
    buffer.add(pack(static_cast<std::uint32_t>(f.has_grid_dependency_wait),
                    static_cast<std::uint32_t>(f.has_launch_dependents)));
    for (const ir::Function::Param& param : f.params) {
      buffer.add(pack(param.offset_bytes, param.size_bytes));
      buffer.add(text_hash(param.type_name) + static_cast<std::uint64_t>(param.type));
    }
    return buffer.finish().low;
  });
}

ContentHash ContentHasher::hash(const Recording& recording, const Graph& graph) {
  recording_ = &recording;
  return hash_one(graph, 0);
}

ContentHash ContentHasher::hash_one(const Graph& g, int depth) {
  const Recording& r = *recording_;
  const auto stream_word = [&](ir::StreamId stream) -> std::uint64_t {
    return r.streams.contains(stream) ? r.streams[stream].handle + 1 : 0;
  };
  const auto address_word = [&](ir::AllocationId allocation) -> std::uint64_t {
    return r.allocations.contains(allocation) ? r.allocations[allocation].base + 1 : 0;
  };
  Buffer buffer;
  buffer.add(pack(static_cast<std::uint32_t>(g.node_count()), static_cast<std::uint32_t>(g.edge_count())));
  buffer.add(g.facts.bits());
  buffer.add(static_cast<std::uint64_t>(g.info.role));
  const auto add_body = [&](ir::GraphId body) {
    auto known = bodies_.find(body);
    if (known == bodies_.end()) {
      const Graph* const graph = find_graph(r, body);
      if (graph == nullptr || depth >= kMaxBodyDepth) return buffer.add(0);
      known = bodies_.emplace(body, hash_one(*graph, depth + 1)).first;
    }
    const ContentHash hash = known->second;
    buffer.add(hash.low);
    buffer.add(hash.high);
  };
  for (const NodeId node : g.nodes()) {
    buffer.add(
        pack(static_cast<std::uint32_t>(g.kind[node]), column_value<std::uint8_t>(g.enabled, node, 1)));
    buffer.add(text_hash(g.name[node]));
    if (!g.capture_stream.empty()) buffer.add(stream_word(g.capture_stream[node]));
    if (!g.thread.empty() || !g.device.empty())
      buffer.add(pack(column_value(g.thread, node, 0U),
                      static_cast<std::uint32_t>(column_value<std::int16_t>(g.device, node, -1))));
    if (!g.nvtx.empty()) buffer.add(nvtx_hash(g.nvtx[node]));
    if (!g.stack.empty()) buffer.add(stack_hash(g.stack[node]));
    if (!g.context.empty()) buffer.add(g.context[node]);
    if (!g.content_hash.empty()) buffer.add(g.content_hash[node]);
    switch (g.kind[node]) {
      case NodeKind::kernel:
        if (const ir::KernelNode* k = g.kernel(node)) {
          buffer.add(function_hash(k->function));
          buffer.add(pack(k->grid.x, k->grid.y));
          buffer.add(pack(k->grid.z, k->block.x));
          buffer.add(pack(k->block.y, k->block.z));
          buffer.add(pack(k->cluster.x, k->cluster.y));
          buffer.add(pack(k->cluster.z, k->dynamic_shared_bytes));
          buffer.add(pack(k->static_shared_bytes, k->registers_per_thread));
          buffer.add(pack(static_cast<std::uint32_t>(k->priority),
                          static_cast<std::uint32_t>(k->cooperative) << 8 |
                              static_cast<std::uint32_t>(k->programmatic_serialization)));
          for (const ir::ParamWord& word : g.params_of(*k)) {
            buffer.add(word.value);
            buffer.add(pack(std::uint32_t{word.slot} << 16 | word.offset_bytes,
                            std::uint32_t{word.size_bytes} << 8 | static_cast<std::uint32_t>(word.type)));
            buffer.add(address_word(word.allocation));
          }
        }
        break;
      case NodeKind::memcpy:
        if (const ir::MemcpyNode* m = g.memcpy(node)) {
          for (const std::uint64_t word :
               {m->src, m->dst, m->src_pitch_bytes, m->dst_pitch_bytes, m->width_bytes, m->height, m->depth,
                address_word(m->src_allocation), address_word(m->dst_allocation)})
            buffer.add(word);
          buffer.add(static_cast<std::uint64_t>(m->src_kind) << 8 | static_cast<std::uint64_t>(m->dst_kind));
          buffer.add(
              pack(static_cast<std::uint32_t>(m->src_device), static_cast<std::uint32_t>(m->dst_device)));
        }
        break;
      case NodeKind::memset:
        if (const ir::MemsetNode* m = g.memset(node)) {
          for (const std::uint64_t word :
               {m->dst, m->pitch_bytes, m->width, m->height, address_word(m->dst_allocation)})
            buffer.add(word);
          buffer.add(pack(m->value, m->element_bytes));
        }
        break;
      case NodeKind::host:
        if (const ir::HostNode* h = row(g, g.hosts, node)) {
          buffer.add(text_hash(h->function));
          buffer.add(h->user_data);
        }
        break;
      case NodeKind::event_record:
      case NodeKind::event_wait:
        if (const ir::EventNode* e = row(g, g.events, node)) buffer.add(e->event);
        break;
      case NodeKind::child_graph:
        if (const ir::ChildGraphNode* c = row(g, g.child_graphs, node)) add_body(c->body);
        break;
      case NodeKind::conditional:
        if (const ir::ConditionalNode* c = row(g, g.conditionals, node)) {
          buffer.add(static_cast<std::uint64_t>(c->type));
          for (std::uint32_t i = 0; i < c->bodies.count; ++i) add_body(g.bodies[c->bodies.first + i]);
        }
        break;
      case NodeKind::mem_alloc:
      case NodeKind::mem_free:
        if (const ir::AllocNode* a = row(g, g.allocs, node)) {
          buffer.add(a->address);
          buffer.add(a->bytes);
          buffer.add(address_word(a->allocation));
        }
        break;
      case NodeKind::ext_semaphore_signal:
      case NodeKind::ext_semaphore_wait:
        if (const ir::SemaphoreNode* s = row(g, g.semaphores, node)) buffer.add(s->count);
        break;
      case NodeKind::batch_mem_op:
        if (const ir::BatchMemOpNode* b = row(g, g.batch_mem_ops, node)) {
          buffer.add(b->count);
          buffer.add(b->address);
        }
        break;
      case NodeKind::empty:
      case NodeKind::unknown:
        break;
    }
  }
  for (const ir::EdgeId edge : g.edges()) {
    const ir::EdgeData data = g.data(edge);
    buffer.add(pack(g.edge_from[edge].index(), g.edge_to[edge].index()));
    buffer.add(pack(std::uint32_t{data.from_port} << 16 | std::uint32_t{data.to_port} << 8 |
                        static_cast<std::uint32_t>(data.type),
                    g.edge_sync.empty() ? ~0U : g.edge_sync[edge].index()));
  }
  for (const ir::SyncOp& op : g.sync_ops) {
    buffer.add(pack(static_cast<std::uint32_t>(op.kind), op.record.index()));
    buffer.add(stream_word(op.stream));
    buffer.add(stack_hash(op.stack));
    buffer.add(op.thread);
  }
  return buffer.finish();
}

}  // namespace cglint::exporter
