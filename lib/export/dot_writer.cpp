#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <queue>
#include <unordered_map>
#include <vector>

#include "base/json_writer.h"
#include "export/export.h"

namespace cglint::exporter {
namespace {

using ir::Graph;
using ir::GraphId;
using ir::NodeId;
using ir::NodeKind;

constexpr std::size_t kFlushBytes = std::size_t{1} << 20;

// A text inside a record label. Characters that Graphviz or the record syntax would take for themselves get a
// backslash; control characters and bytes that are not UTF-8 have no escape there and are shown as \\xNN.
void append_escaped(std::string& out, std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte >= 0x80) {
      std::size_t skip = 0;
      const std::size_t length = base::JsonWriter::utf8_sequence_length(text.substr(i), skip);
      if (length == 0 || (length == 2 && byte == 0xc2 && static_cast<unsigned char>(text[i + 1]) < 0xa0)) {
        for (std::size_t k = std::max(length, skip); k > 0; --k)
          out += fmt::format("\\\\x{:02x}", static_cast<unsigned char>(text[i++]));
        continue;
      }
      out.append(text, i, length);
      i += length;
      continue;
    }
    if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\\\x{:02x}", byte);
    } else {
      if (std::string_view("<>{}|\"\\").find(text[i]) != std::string_view::npos) out += '\\';
      out += text[i];
    }
    ++i;
  }
}

std::string dim_text(const ir::Dim3& dim) {
  if (dim.z != 1) return fmt::format("\\{{{},{},{}\\}}", dim.x, dim.y, dim.z);
  if (dim.y != 1) return fmt::format("\\{{{},{}\\}}", dim.x, dim.y);
  return std::to_string(dim.x);
}

std::string_view side_word(ir::MemoryKind kind) {
  switch (kind) {
    case ir::MemoryKind::host_pageable:
      return "HOST PAGEABLE";
    case ir::MemoryKind::host_pinned:
      return "HOST PINNED";
    case ir::MemoryKind::device:
      return "DEVICE";
    case ir::MemoryKind::array:
      return "ARRAY";
    case ir::MemoryKind::managed:
      return "UNIFIED";
    case ir::MemoryKind::unknown:
      break;
  }
  return "UNKNOWN";
}

char side_letter(ir::MemoryKind kind) {
  switch (kind) {
    case ir::MemoryKind::host_pageable:
    case ir::MemoryKind::host_pinned:
      return 'H';
    case ir::MemoryKind::device:
      return 'D';
    case ir::MemoryKind::array:
      return 'A';
    default:
      return 'U';
  }
}

// The driver's topoId: falls along every edge, 0 for the last node.
std::vector<std::size_t> topology_ids(const Graph& graph) {
  const std::size_t n = graph.node_count();
  std::vector<std::size_t> missing(n), ids(n);
  std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> ready;
  for (const NodeId node : graph.nodes()) {
    missing[node.index()] = graph.predecessors(node).size();
    if (missing[node.index()] == 0) ready.push(node.index());
  }
  for (std::size_t next = n; !ready.empty();) {
    const NodeId node(ready.top());
    ready.pop();
    ids[node.index()] = --next;
    for (const NodeId successor : graph.successors(node))
      if (--missing[successor.index()] == 0) ready.push(successor.index());
  }
  return ids;
}

class DotWriter {
 public:
  DotWriter(const ir::Recording& recording, Sink& sink) : recording_(recording), sink_(sink) {}

  base::Result<void> run(GraphId root) {
    out_ = "digraph dot {\n";
    number(root);
    for (std::size_t i = 0; i < graphs_.size();
         ++i)  // bodies join the list behind their graph: breadth first
      CGLINT_TRY(write_cluster(*recording_.graphs[graphs_[i]], i + 1));
    out_ += "}\n";
    return sink_.write(out_);
  }

 private:
  // The number of a graph's cluster; 0 for a graph that is not in memory.
  std::size_t number(GraphId id) {
    if (!recording_.graphs.contains(id) || recording_.graphs[id] == nullptr) return 0;
    const auto [it, inserted] = numbers_.try_emplace(id, graphs_.size() + 1);
    if (inserted) graphs_.push_back(id);
    return it->second;
  }

  // A node's name. Its number is its place in creation order; where that is not known, nothing may read like one.
  static std::string node_name(const Graph& graph, NodeId node, std::size_t cluster) {
    return fmt::format("\"graph_{}_node_{}{}\"", cluster, graph.facts.contains(ir::Fact::creation_order) ? "" : "n", node.index());
  }

  // The short forms of copies and fills, for graphs that do not know their addresses: "(HtoD,640)", "(171,640)". What is not known of the two is left out.
  static std::string copy_summary(const ir::MemcpyNode& copy) {
    const bool has_kind = copy.src_kind != ir::MemoryKind::unknown || copy.dst_kind != ir::MemoryKind::unknown;
    if (!has_kind && copy.bytes() == 0) return {};
    std::string kind = fmt::format("{}to{}", side_letter(copy.src_kind), side_letter(copy.dst_kind));
    const auto letter_tells = [](ir::MemoryKind side) {
      return side == ir::MemoryKind::device || side == ir::MemoryKind::array || side == ir::MemoryKind::unknown;
    };
    if (!letter_tells(copy.src_kind) || !letter_tells(copy.dst_kind))
      kind += fmt::format(" ({} to {})", side_word(copy.src_kind), side_word(copy.dst_kind));
    return fmt::format("({},{})\n", kind, copy.bytes() != 0 ? std::to_string(copy.bytes()) : std::string());
  }
  static std::string fill_summary(const ir::MemsetNode& fill) {
    if (fill.value == 0 && fill.bytes() == 0) return {};
    return fmt::format("({},{})\n", fill.value != 0 ? std::to_string(fill.value) : std::string(),
                       fill.bytes() != 0 ? std::to_string(fill.bytes()) : std::string());
  }

  void write_node(const Graph& graph, NodeId node, std::size_t cluster, std::size_t topology_id) {
    const bool has_order = graph.facts.contains(ir::Fact::creation_order);
    const std::string id = has_order ? fmt::format("{} (topoId: {})", node.index(), topology_id) : fmt::format("? (topoId: {})", topology_id);
    out_ += node_name(graph, node, cluster);
    const std::uint32_t side = graph.side[node];
    const auto in = [&](const auto& table) { return side < table.size(); };
    // Kinds without rows: a box with a few lines.
    const auto box = [&](std::string_view type, const std::string& rows, std::string_view shape = "rectangle") {
      out_ += fmt::format("[style=\"solid\" shape=\"{}\" label=\"{}{}\n{}\"];\n\n", shape, has_order ? id + "\n" : std::string(), type, rows);
    };
    const auto hex = [](std::string_view key, std::uint64_t value) {
      return value != 0 ? fmt::format("{}: 0x{:016X}\n", key, value) : std::string();
    };
    const bool has_copy_params = graph.facts.contains(ir::Fact::copy_params);
    switch (graph.kind[node]) {
      case NodeKind::kernel: {
        out_ += fmt::format("[style=\"bold\" shape=\"record\" label=\"{{KERNEL\n| {{ID | {} | ", id);
        append_escaped(out_, recording_.text(graph.name[node]));
        if (const ir::KernelNode* k = graph.kernel(node)) {
          if (graph.facts.contains(ir::Fact::launch_config))
            out_ += fmt::format("\\<\\<\\<{},{},{}\\>\\>\\>", dim_text(k->grid), dim_text(k->block),
                                k->dynamic_shared_bytes);
          out_ += "}\n";
          if (k->cooperative != ir::Tri::unknown)
            out_ += fmt::format("| {{cooperative | {}}}\n", k->cooperative == ir::Tri::yes ? 1 : 0);
          if (graph.facts.contains(ir::Fact::kernel_attributes) || k->priority != 0)
            out_ += fmt::format("| {{priority | {}}}\n", k->priority);
        } else {
          out_ += "}\n";
        }
        out_ += "}\"];\n\n";
        return;
      }
      case NodeKind::memcpy: {
        if (graph.memcpy(node) == nullptr) return box("MEMCPY", "", "trapezium");
        const ir::MemcpyNode& copy = *graph.memcpy(node);
        if (!has_copy_params) return box("MEMCPY", copy_summary(copy), "trapezium");
        out_ += fmt::format(
            "[style=\"solid\" shape=\"record\" label=\"{{\nMEMCPY\n| {{{{ID | node handle}} | {{{} | "
            "0x{:016X}}}}}\n",
            id, 0);
        out_ += fmt::format("| {{kind | {}to{} ({} to {})}}\n", side_letter(copy.src_kind),
                            side_letter(copy.dst_kind), side_word(copy.src_kind), side_word(copy.dst_kind));
        out_ += fmt::format(
            "| {{{{srcPtr | dstPtr}} | {{pitch | ptr | xsize | ysize | pitch | ptr | xsize | ysize}} | "
            "{{{} | 0x{:016X} | 0 | "
            "0 | {} | 0x{:016X} | 0 | 0}}}}\n",
            copy.src_pitch_bytes, copy.src, copy.dst_pitch_bytes, copy.dst);
        out_ += fmt::format("| {{Extent | {{{{Width | {}}} | {{Height | {}}} | {{Depth | {}}}}}}}\n", copy.width_bytes, copy.height, copy.depth);
        out_ += "}\"];\n\n";
        return;
      }
      case NodeKind::memset: {
        const ir::MemsetNode* fill = graph.memset(node);
        if (fill == nullptr) return box("MEMSET", "", "invtrapezium");
        if (!has_copy_params) return box("MEMSET", fill_summary(*fill), "invtrapezium");
        out_ += fmt::format(
            "[style=\"solid\" shape=\"record\" label=\"{{MEMSET\n| {{{{ID | node handle | dptr | pitch | "
            "value | elementSize | "
            "width | height}} | {{{} | 0x{:016X} | 0x{:016X} | {} | {} | {} | {} | {}}}}}}}\"];\n\n",
            id, 0, fill->dst, fill->pitch_bytes, fill->value, fill->element_bytes, fill->width, fill->height);
        return;
      }
      case NodeKind::host:
      {
        std::string rows;
        if (in(graph.hosts)) {
          const std::string_view function = recording_.text(graph.hosts[side].function);
          if (function.starts_with("0x")) rows = fmt::format("fn: {}\n", function);  // an address; DOT has no place for a name
          rows += hex("userData", graph.hosts[side].user_data);
        }
        return box("HOST", rows);
      }
      case NodeKind::empty:
        return box("EMPTY", "");
      case NodeKind::event_record:
        return box("EVENT_RECORD", in(graph.events) ? hex("event", graph.events[side].event) : std::string());
      case NodeKind::event_wait:
        return box("EVENT_WAIT", in(graph.events) ? hex("event", graph.events[side].event) : std::string());
      case NodeKind::child_graph: {
        const std::size_t body = in(graph.child_graphs) ? number(graph.child_graphs[side].body) : 0;
        return box(body != 0 ? fmt::format("graph_{}", body) : std::string("GRAPH"), "");
      }
      case NodeKind::mem_alloc:
      case NodeKind::mem_free: {
        const bool is_alloc = graph.kind[node] == NodeKind::mem_alloc;
        const ir::AllocNode alloc = in(graph.allocs) ? graph.allocs[side] : ir::AllocNode();
        if (alloc.address == 0 && alloc.bytes == 0) return box(is_alloc ? "MEM_ALLOC" : "MEM_FREE", "");
        out_ += fmt::format(
            "[style=\"solid\" shape=\"record\" label=\"{{\n{}\n| {{{{ID | node handle}} | {{{} | "
            "0x{:016X}}}}}\n",
            is_alloc ? "MEM_ALLOC" : "MEM_FREE", id, 0);
        if (is_alloc) {
          out_ += fmt::format("| {{{{bytesize | dptr}} | {{{} | 0x{:016X}}}}}\n", alloc.bytes, alloc.address);
        } else {
          out_ += fmt::format("| {{{{dptr}} | {{0x{:016X}}}}}\n", alloc.address);
        }
        out_ += "}\"];\n\n";
        return;
      }
      case NodeKind::ext_semaphore_signal:
        return box("EXT_SEMAS_SIGNAL", "");
      case NodeKind::ext_semaphore_wait:
        return box("EXT_SEMAS_WAIT", "");
      case NodeKind::batch_mem_op: {
        const ir::BatchMemOpNode batch =
            in(graph.batch_mem_ops) ? graph.batch_mem_ops[side] : ir::BatchMemOpNode();
        if (batch.count == 0) return box("BATCH_MEM_OP", "");
        out_ += fmt::format(
            "[style=\"solid\" shape=\"record\" label=\"{{\nBATCH_MEM_OP\n| {{{{ID | node handle | count | "
            "flags }} | {{{} | 0x{:016X} "
            "| {} | 0x00000000 }}}}\n}}\"];\n\n",
            id, 0, batch.count);
        return;
      }
      case NodeKind::conditional: {
        out_ += fmt::format("[style=\"bold\" shape=\"record\" label=\"{{\nCONDITIONAL\n| {{ID | {}}}\n", id);
        if (in(graph.conditionals)) {
          const ir::ConditionalNode& conditional = graph.conditionals[side];
          const bool is_switch = conditional.type == ir::ConditionalNode::Type::switch_;
          switch (conditional.type) {
            case ir::ConditionalNode::Type::if_:
              out_ += "| {Conditional Type| IF}\n";
              break;
            case ir::ConditionalNode::Type::while_:
              out_ += "| {Conditional Type| WHILE}\n";
              break;
            case ir::ConditionalNode::Type::switch_:
              out_ += "| {Conditional Type| SWITCH}\n";
              break;
            case ir::ConditionalNode::Type::unknown:
              break;
          }
          for (std::uint32_t i = 0; i < conditional.bodies.count; ++i) {
            const std::size_t body = number(graph.bodies[conditional.bodies.first + i]);
            if (body == 0) continue;
            if (is_switch) {
              out_ += fmt::format("| {{{}|  graph_{}}}\n", i, body);
            } else {
              out_ += fmt::format("| {{{}|graph_{}}}\n", i == 0 ? "True" : "False", body);
            }
          }
        }
        out_ += "}\n\"];\n\n";
        return;
      }
      case NodeKind::unknown: {
        std::string name;
        append_escaped(name, recording_.text(graph.name[node]));
        return box("UNKNOWN", name.empty() ? name : name + "\n");
      }
    }
  }

  base::Result<void> write_cluster(const Graph& graph, std::size_t cluster) {
    out_ += fmt::format("subgraph cluster_{}", cluster);
    out_ += " {\nlabel=\"";
    const std::string_view name = recording_.text(graph.info.name);
    if (name.empty()) {
      out_ += fmt::format("graph_{}", cluster);
    } else {
      append_escaped(out_, name);
    }
    out_ += "\" graph[style=\"dashed\"];\n";
    const std::vector<std::size_t> topology = topology_ids(graph);
    for (const NodeId node : graph.nodes()) {
      write_node(graph, node, cluster, topology[node.index()]);
      CGLINT_TRY(flush());
    }
    // headlabel: the edge's place among the dependencies of the node it points to.
    std::vector<std::uint32_t> place(graph.node_count(), 0);
    for (const ir::EdgeId edge : graph.edges()) {
      const NodeId from = graph.edge_from[edge], to = graph.edge_to[edge];
      out_ += fmt::format("{} -> {} [headlabel={}", node_name(graph, from, cluster), node_name(graph, to, cluster), place[to.index()]++);
      const ir::EdgeData data = graph.data(edge);
      if (data.is_programmatic()) out_ += " style=\"dashed\" label=\"programmatic\"";
      if (data.is_launch_order()) out_ += " style=\"dotted\" label=\"launch order\"";
      out_ += "];\n";
      CGLINT_TRY(flush());
    }
    out_ += "}\n";
    return {};
  }

  base::Result<void> flush() {
    if (out_.size() < kFlushBytes) return {};
    CGLINT_TRY(sink_.write(out_));
    out_.clear();
    return {};
  }

  const ir::Recording& recording_;
  Sink& sink_;
  std::string out_;
  std::vector<GraphId> graphs_;
  std::unordered_map<GraphId, std::size_t> numbers_;
};

}  // namespace

base::Result<void> write_dot(const ir::Recording& recording, GraphId graph, Sink& sink) {
  CGLINT_CHECK(recording.graphs.contains(graph) && recording.graphs[graph] != nullptr);
  return DotWriter(recording, sink).run(graph);
}

base::Result<CaptureWriterStats> write_capture_file(const ir::Recording& recording, const std::string& path,
                                                    CaptureWriterOptions options) {
  if (options.compression == Compression::none) options.compression = compression_of_path(path);
  auto sink = open_file_sink(path);
  if (!sink) return std::move(sink).error();
  return write_capture(recording, std::move(*sink), options);
}

}  // namespace cglint::exporter
