// The text that cudaGraphDebugDotPrint writes: one cluster per graph, its nodes in creation order with the parameters in
// the label, its edges behind them. Child graphs are clusters of their own, named in the label of the node; one cluster
// may be used by several nodes and is expanded for each use. Field by field: docs/formats/dot.md.
#include "import/dot/dot_importer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <span>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "import/dot/dot_label.h"
#include "import/dot/dot_scanner.h"
#include "ir/graph_builder.h"

namespace cglint::import {
namespace {

using base::ErrorCode;
using base::make_error;
using dot::Token;
using ir::Fact;
using ir::NodeKind;

constexpr std::uint32_t kNone = ~std::uint32_t{0};
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
constexpr std::size_t kMaxSubgraphDepth = 64;
// Child graphs that are used several times multiply; a few lines could otherwise ask for more nodes than fit in memory.
constexpr std::uint64_t kMaxExpandedNodes = 2'000'000;
constexpr std::uint64_t kMaxExpandedGraphs = 200'000;
constexpr std::uint64_t kTooMany = std::uint64_t{1} << 40;  // sums stop here

struct TypeWord {
  std::string_view word;
  NodeKind kind;
};
constexpr std::array<TypeWord, 16> kTypeWords = {{
    {"KERNEL", NodeKind::kernel},
    {"MEMCPY", NodeKind::memcpy},
    {"MEMSET", NodeKind::memset},
    {"HOST", NodeKind::host},
    {"GRAPH", NodeKind::child_graph},
    {"EMPTY", NodeKind::empty},
    {"WAIT_EVENT", NodeKind::event_wait},
    {"EVENT_WAIT", NodeKind::event_wait},
    {"EVENT_RECORD", NodeKind::event_record},
    {"EXT_SEMAS_SIGNAL", NodeKind::ext_semaphore_signal},
    {"EXT_SEMAS_WAIT", NodeKind::ext_semaphore_wait},
    {"MEM_ALLOC", NodeKind::mem_alloc},
    {"MEM_FREE", NodeKind::mem_free},
    {"BATCH_MEM_OP", NodeKind::batch_mem_op},
    {"CONDITIONAL", NodeKind::conditional},
    {"CHILD_GRAPH", NodeKind::child_graph},
}};

std::optional<NodeKind> kind_of_word(std::string_view word) {
  for (const TypeWord& entry : kTypeWords)
    if (entry.word == word) return entry.kind;
  return std::nullopt;
}

// A node statement, before graphs are built.
struct NodeStatement {
  std::string_view name;    // "graph_4_node_0"
  std::string_view label;   // the last label attribute; escapes untouched
  std::string_view shape;
  std::size_t offset = 0;
  std::uint32_t cluster = kNone;
};

struct EdgeStatement {
  std::uint32_t from = kNone, to = kNone;  // indices of node statements, resolved at the end
  std::string_view from_name, to_name;
  std::string_view head_label, tail_label, label, style;
  std::size_t offset = 0;
};

struct Cluster {
  std::uint64_t number = 0;
  std::string_view label;
  std::size_t offset = 0;
  std::uint32_t parent = kNone;          // the cluster that the braces nest in
  std::vector<std::uint32_t> nodes;      // node statements in file order
  std::vector<std::uint32_t> edges;
};

struct Attributes {
  std::string_view label, shape, style, head_label, tail_label;
  bool any = false;
};

// The file as statements.
class Document {
 public:
  std::vector<NodeStatement> nodes;
  std::vector<EdgeStatement> edges;
  std::vector<Cluster> clusters;
  std::uint64_t bare_nodes = 0;          // outside every cluster
  std::size_t first_bare_node = 0;       // offset

  base::Result<void> parse(std::string_view bytes, const Limits& limits);

 private:
  base::Result<void> parse_attributes(dot::Scanner& scanner, Attributes& out);
  base::Result<void> parse_statement(dot::Scanner& scanner, const Token& first);
  [[nodiscard]] base::Error unexpected(const Token& token, std::string_view wanted) const;

  std::vector<std::uint32_t> stack_;     // open clusters; kNone for anonymous braces
  std::unordered_map<std::string_view, std::uint32_t> node_by_name_;
  std::uint64_t max_nodes_ = 0;
  std::uint64_t max_string_bytes_ = 0;

 public:
  struct Repeats {
    std::uint64_t count = 0;
    std::size_t first_offset = 0;
  };
  Repeats repeated_alike, repeated_otherwise;  // node statements for a node that was declared before
  [[nodiscard]] std::uint32_t find(std::string_view name) const {
    const auto it = node_by_name_.find(name);
    return it == node_by_name_.end() ? kNone : it->second;
  }
};

base::Error Document::unexpected(const Token& token, std::string_view wanted) const {
  if (token.kind == Token::Kind::too_long)
    return make_error(ErrorCode::limit, fmt::format("a name or label is longer than {} bytes (max_string_bytes)", max_string_bytes_), token.offset);
  if (token.kind == Token::Kind::end)
    return make_error(ErrorCode::malformed, fmt::format("the file ends where {} was expected: it is cut short", wanted),
                      token.offset);
  if (token.kind == Token::Kind::bad)
    return make_error(ErrorCode::malformed, fmt::format("{} where {} was expected", token.text, wanted), token.offset);
  return make_error(ErrorCode::malformed,
                    fmt::format("\"{}\" where {} was expected", token.text.substr(0, 40), wanted), token.offset);
}

base::Result<void> Document::parse_attributes(dot::Scanner& scanner, Attributes& out) {
  // [a=b c="d", e] ; several lists may follow each other.
  while (scanner.peek().is('[')) {
    scanner.next();
    out.any = true;
    while (true) {
      const Token key = scanner.next();
      if (key.is(']')) break;
      if (key.is(',') || key.is(';')) continue;
      if (!key.is_name()) return unexpected(key, "an attribute or ']'");
      if (!scanner.peek().is('=')) continue;
      scanner.next();
      const Token value = scanner.next();
      if (!value.is_name()) return unexpected(value, "an attribute value");
      if (key.text == "label") {
        out.label = value.text;
      } else if (key.text == "shape") {
        out.shape = value.text;
      } else if (key.text == "style") {
        out.style = value.text;
      } else if (key.text == "headlabel") {
        out.head_label = value.text;
      } else if (key.text == "taillabel") {
        out.tail_label = value.text;
      }
    }
  }
  return {};
}

base::Result<void> Document::parse_statement(dot::Scanner& scanner, const Token& first) {
  const std::uint32_t cluster = stack_.empty() ? kNone : stack_.back();
  if (first.kind == Token::Kind::id && (first.text == "graph" || first.text == "node" || first.text == "edge")) {
    Attributes ignored;
    return parse_attributes(scanner, ignored);
  }
  if (scanner.peek().is('=')) {
    scanner.next();
    const Token value = scanner.next();
    if (!value.is_name()) return unexpected(value, "an attribute value");
    if (first.text == "label" && cluster != kNone) clusters[cluster].label = value.text;
    return {};
  }
  // A port ("node:port:compass") does not change which node is meant.
  const auto skip_port = [&scanner]() {
    while (scanner.peek().is(':')) {
      scanner.next();
      if (scanner.peek().is_name()) scanner.next();
    }
  };
  skip_port();
  if (scanner.peek().kind == Token::Kind::arrow || scanner.peek().kind == Token::Kind::line) {
    const std::size_t first_edge = edges.size();
    Token from = first;
    while (scanner.peek().kind == Token::Kind::arrow || scanner.peek().kind == Token::Kind::line) {
      scanner.next();
      const Token to = scanner.next();
      if (!to.is_name()) return unexpected(to, "the head of an edge");
      skip_port();
      EdgeStatement edge;
      edge.from_name = from.text;
      edge.to_name = to.text;
      edge.offset = from.offset;
      edges.push_back(edge);
      from = to;
    }
    Attributes attributes;
    CGLINT_TRY(parse_attributes(scanner, attributes));
    for (std::size_t i = first_edge; i < edges.size(); ++i) {
      edges[i].head_label = attributes.head_label;
      edges[i].tail_label = attributes.tail_label;
      edges[i].label = attributes.label;
      edges[i].style = attributes.style;
    }
    return {};
  }
  Attributes attributes;
  CGLINT_TRY(parse_attributes(scanner, attributes));
  if (nodes.size() >= max_nodes_)
    return make_error(ErrorCode::limit, fmt::format("more than {} nodes (max_nodes_per_graph)", max_nodes_),
                      first.offset);
  const auto [it, inserted] = node_by_name_.try_emplace(first.text, static_cast<std::uint32_t>(nodes.size()));
  if (!inserted) {
    const NodeStatement& known = nodes[it->second];
    const bool same = known.label == attributes.label && known.shape == attributes.shape && known.cluster == cluster;
    if (Repeats& kind = same ? repeated_alike : repeated_otherwise; kind.count++ == 0) kind.first_offset = first.offset;
    return {};
  }
  NodeStatement node;
  node.name = first.text;
  node.label = attributes.label;
  node.shape = attributes.shape;
  node.offset = first.offset;
  node.cluster = cluster;
  if (cluster == kNone) {
    if (bare_nodes++ == 0) first_bare_node = first.offset;
  } else {
    clusters[cluster].nodes.push_back(static_cast<std::uint32_t>(nodes.size()));
  }
  nodes.push_back(node);
  return {};
}

base::Result<void> Document::parse(std::string_view bytes, const Limits& limits) {
  max_nodes_ = std::min<std::uint64_t>(limits.max_nodes_per_graph, kNone - 1);
  max_string_bytes_ = limits.max_string_bytes;
  dot::Scanner scanner(bytes, bytes.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0, max_string_bytes_);
  Token token = scanner.next();
  if (token.text == "strict") token = scanner.next();
  if (token.text != "digraph") return unexpected(token, "\"digraph\"");
  token = scanner.next();
  if (token.is_name()) token = scanner.next();
  if (!token.is('{')) return unexpected(token, "'{'");
  std::size_t depth = 1;
  while (depth > 0) {
    token = scanner.next();
    if (token.is('}')) {
      --depth;
      if (!stack_.empty()) stack_.pop_back();
    } else if (token.is('{') || (token.kind == Token::Kind::id && token.text == "subgraph")) {
      if (++depth > kMaxSubgraphDepth)
        return make_error(ErrorCode::limit, fmt::format("subgraphs nest deeper than {}", kMaxSubgraphDepth),
                          token.offset);
      std::uint32_t opened = stack_.empty() ? kNone : stack_.back();
      if (!token.is('{')) {
        Token name = scanner.next();
        if (name.is_name()) {
          Cluster cluster;
          cluster.parent = opened;
          cluster.offset = name.offset;
          cluster.number = ~std::uint64_t{0};
          if (name.text.starts_with("cluster_")) {
            const std::string_view digits = name.text.substr(8);
            std::uint64_t number = 0;
            const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
            if (error == std::errc() && end == digits.data() + digits.size()) cluster.number = number;
          }
          opened = static_cast<std::uint32_t>(clusters.size());
          clusters.push_back(std::move(cluster));
          name = scanner.next();
        }
        if (!name.is('{')) return unexpected(name, "'{'");
      }
      stack_.push_back(opened);
    } else if (token.is(';') || token.is(',')) {
      continue;
    } else if (token.is_name()) {
      CGLINT_TRY(parse_statement(scanner, token));
    } else {
      return unexpected(token, "a statement or '}'");
    }
  }
  token = scanner.next();
  if (token.kind != Token::Kind::end) return unexpected(token, "the end of the file");
  return {};
}

// What makes a node doubtful. Each is counted, and spoils facts of its graph and of those around it.
enum class Doubt : std::uint8_t { type, name, number, config, lacks_config, params, body, gap };
struct DoubtInfo {
  std::string_view what;
  ir::FactSet facts;
};
constexpr std::array<DoubtInfo, 8> kDoubts = {{
    {"nodes of a type that this version does not know", {Fact::creation_order}},  // whether they take a stream is not known
    {"kernels without a name", {Fact::kernel_names}},
    {"nodes whose label has another number than their name, or none", {Fact::creation_order}},
    {"kernels whose launch configuration, priority or cooperative flag is none", {Fact::launch_config}},
    {"kernels without a launch configuration, while others have one", {Fact::launch_config}},
    {"copies, fills and memory operations with a parameter that is none", {Fact::copy_params}},
    {"child graphs and conditional bodies that the file does not hold", {Fact::creation_order}},
    {"nodes that are missing, or whose topoId another node has: the topoIds of a graph have no gaps",
     {Fact::nodes, Fact::edges, Fact::creation_order}},
}};

constexpr std::uint64_t kNoTopologyId = ~std::uint64_t{0};

// A node statement understood.
struct ParsedNode {
  NodeKind kind = NodeKind::unknown;
  std::uint64_t id = 0;                  // creation order
  bool has_id = false;
  std::uint64_t topology_id = kNoTopologyId;
  bool has_config = false;
  bool has_copy_params = false;
  std::string_view escaped_name;         // kernel name, or what else to call it
  ir::KernelNode kernel;
  ir::MemcpyNode memcpy;
  ir::MemsetNode memset;
  ir::AllocNode alloc;
  ir::EventNode event;
  ir::HostNode host;
  ir::BatchMemOpNode batch;
  ir::SemaphoreNode semaphore;
  ir::ConditionalNode conditional;
  std::vector<std::uint64_t> body_graphs;  // graph numbers of child and conditional bodies
  std::uint32_t doubts = 0;              // bits of Doubt
  void doubt(Doubt doubt) { doubts |= 1u << static_cast<int>(doubt); }
};

std::uint64_t number_or(std::string_view text, std::uint64_t fallback) {
  const auto value = dot::parse_number(text);
  return value ? *value : fallback;
}

// A parameter; one that is missing is not known, one that is no number or beyond `most` is doubtful.
std::uint64_t parameter(ParsedNode& out, std::string_view text, std::uint64_t fallback = 0, std::uint64_t most = ~std::uint64_t{0}) {
  if (text.empty()) return fallback;
  const auto value = dot::parse_number(text);
  if (value && *value <= most) return *value;
  out.doubt(Doubt::params);
  return fallback;
}
constexpr std::uint64_t kMost32 = 0xffffffffu;

// "DEVICE", "HOST PINNED", "HOST PAGEABLE", "ARRAY"; "HOST" alone does not tell. "UNIFIED (DEVICE)" and the like: what the
// parentheses say.
ir::MemoryKind memory_kind(std::string_view text) {
  if (text.starts_with("ARRAY")) return ir::MemoryKind::array;
  if (const std::size_t open = text.find('('); open != std::string_view::npos) text.remove_prefix(open + 1);
  if (text.starts_with("DEVICE")) return ir::MemoryKind::device;
  if (text.starts_with("HOST PINNED")) return ir::MemoryKind::host_pinned;
  if (text.starts_with("HOST PAGEABLE")) return ir::MemoryKind::host_pageable;
  if (text.starts_with("MANAGED") || text.starts_with("UNIFIED")) return ir::MemoryKind::managed;
  if (text.starts_with("ARRAY")) return ir::MemoryKind::array;
  return ir::MemoryKind::unknown;
}

// "DtoD (DEVICE to DEVICE)", "HtoD (HOST PINNED to DEVICE)", or only "DtoH".
void set_copy_kinds(std::string_view text, ir::MemcpyNode& copy) {
  if (const std::size_t open = text.find('('); open != std::string_view::npos) {
    const std::string_view inner = text.substr(open + 1);
    if (const std::size_t to = inner.find(" to "); to != std::string_view::npos) {
      copy.src_kind = memory_kind(inner.substr(0, to));
      copy.dst_kind = memory_kind(inner.substr(to + 4));
    }
    return;
  }
  if (text.size() != 4 || text.substr(1, 2) != "to") return;
  if (text[0] == 'D') copy.src_kind = ir::MemoryKind::device;
  if (text[0] == 'A') copy.src_kind = ir::MemoryKind::array;
  if (text[3] == 'D') copy.dst_kind = ir::MemoryKind::device;
  if (text[3] == 'A') copy.dst_kind = ir::MemoryKind::array;
}

// "graph_7" -> 7.
std::optional<std::uint64_t> graph_number(std::string_view text) {
  constexpr std::string_view kPrefix = "graph_";
  if (!text.starts_with(kPrefix)) return std::nullopt;
  text.remove_prefix(kPrefix.size());
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// "0 (topoId: 3)" -> 3.
std::uint64_t topology_id(std::string_view text) {
  constexpr std::string_view kBefore = "(topoId: ";
  const std::size_t at = text.find(kBefore);
  if (at == std::string_view::npos || !text.ends_with(')')) return kNoTopologyId;
  const auto number = dot::parse_number(text.substr(at + kBefore.size(), text.size() - at - kBefore.size() - 1));
  return number && *number <= kMost32 ? *number : kNoTopologyId;
}

// How many numbers are missing in 0, 1, 2, ..., and how many come again. `numbers` is sorted; `others` have a number that is not known.
std::uint64_t gaps_and_repeats(std::span<const std::uint64_t> numbers, std::uint64_t others) {
  if (numbers.empty()) return 0;
  std::uint64_t repeats = 0;
  for (std::size_t i = 1; i < numbers.size(); ++i) repeats += numbers[i] == numbers[i - 1] ? 1 : 0;
  const std::uint64_t wanted = numbers.back() + 1, known = numbers.size() - repeats + others;
  return repeats + (wanted > known ? wanted - known : 0);
}

class Reader {
 public:
  Reader(const Document& document, ir::Recording& recording) : document_(document), recording_(recording) {}

  base::Result<void> build(const ReadOptions& options);

 private:
  // One graph to make of a cluster.
  struct Use {
    std::uint32_t cluster;
    ir::GraphId id;
    ir::GraphId parent;
    ir::NodeId parent_node;
  };
  // A node of cluster `from` that runs cluster `to`.
  struct BodyReference {
    std::uint32_t from, to;
    std::size_t offset;
  };

  void parse_node(const NodeStatement& statement, ParsedNode& out);
  void parse_record(ParsedNode& out);
  void parse_memcpy_record(ParsedNode& out);
  void parse_plain(const NodeStatement& statement, ParsedNode& out);
  base::Result<std::unique_ptr<ir::Graph>> build_graph(const Use& use, std::vector<Use>& uses);
  void resolve_edges();
  base::Result<void> check_nesting(const std::vector<BodyReference>& references);
  base::Result<void> check_expansion(const std::vector<std::uint8_t>& is_body) const;
  void note(Doubt doubt, std::size_t offset, bool count, std::uint64_t cases = 1);

  const Document& document_;
  ir::Recording& recording_;
  std::vector<EdgeStatement> edges_;
  std::vector<std::vector<std::uint32_t>> edges_of_cluster_;
  std::unordered_map<std::uint64_t, std::uint32_t> cluster_by_number_;
  struct Expansion {
    std::uint64_t nodes = 0, graphs = 1;
  };
  std::vector<Expansion> expansions_;   // of each cluster, with all that it contains
  dot::RecordLabel record_;
  std::string scratch_;
  bool edges_spoiled_ = false;
  struct Noted {
    std::uint64_t count = 0;
    std::size_t first_offset = 0;
    bool of_root = false;               // seen in the graph that is being built, or in what it contains
  };
  std::array<Noted, kDoubts.size()> noted_;
  std::vector<std::uint8_t> cluster_counted_;  // a cluster that is used twice is counted once
};

// Two dialects: the runtime's structures, with "kind" and "ptr", and the driver's, with "MemoryType", "Host", "Device".
void Reader::parse_memcpy_record(ParsedNode& out) {
  const auto number = [&](std::string_view key, std::size_t nth, std::uint64_t fallback = 0) {
    return parameter(out, record_.value(key, nth), fallback);
  };
  ir::MemcpyNode& copy = out.memcpy;
  out.escaped_name = "Memcpy";
  if (!record_.value("MemoryType", 1).empty()) {
    const auto side = [&](std::size_t nth, std::uint64_t& address, std::uint64_t& pitch, ir::MemoryKind& kind) {
      kind = memory_kind(record_.value("MemoryType", nth));
      pitch = number("Pitch", nth);
      if (kind == ir::MemoryKind::array) return;
      address = number("Device", nth);
      if (address == 0) address = number("Host", nth);
      // The "Height" of a side is its slice height; the extent's comes last.
      address += number("XInBytes", nth) + pitch * (number("Y", nth) + number("Height", nth) * number("Z", nth));
    };
    side(0, copy.src, copy.src_pitch_bytes, copy.src_kind);
    side(1, copy.dst, copy.dst_pitch_bytes, copy.dst_kind);
    copy.width_bytes = number("WidthInBytes", 0);
    copy.height = number("Height", 2, 1);
    copy.depth = number("Depth", 0, 1);
    // Each key comes once a side: where one is missing, values would be taken for the other side's.
    out.has_copy_params = true;
    for (const std::string_view key : {"Host", "Device", "XInBytes", "Y", "Z", "Pitch"})
      if (record_.value(key, 1).empty()) out.has_copy_params = false;
    if (!out.has_copy_params) out.doubt(Doubt::params);
    return;
  }
  const std::string_view kind = record_.value("kind");
  set_copy_kinds(kind, copy);
  scratch_ = "Memcpy ";
  scratch_ += kind.substr(0, kind.find(' '));
  out.escaped_name = recording_.text(recording_.intern(scratch_));
  // "pitch ptr xsize ysize", twice; an array side has no such group.
  const bool src_array = !record_.value("srcArray").empty();
  const bool dst_array = !record_.value("dstArray").empty();
  if (src_array) copy.src_kind = ir::MemoryKind::array;
  if (dst_array) copy.dst_kind = ir::MemoryKind::array;
  std::size_t group = 0;
  const auto side = [&](std::size_t nth_position, std::uint64_t& address, std::uint64_t& pitch) {
    pitch = number("pitch", group);
    address = number("ptr", group) + number("x", nth_position) +
              pitch * (number("y", nth_position) + number("ysize", group) * number("z", nth_position));
    ++group;
  };
  if (!src_array) side(0, copy.src, copy.src_pitch_bytes);
  if (!dst_array) side(1, copy.dst, copy.dst_pitch_bytes);
  // With an array on one side the width counts elements of unknown size.
  copy.width_bytes = src_array || dst_array ? 0 : number("Width", 0);
  copy.height = number("Height", 0, 1);
  copy.depth = number("Depth", 0, 1);
  out.has_copy_params = group != 0 && !record_.value("ptr", group - 1).empty() && !record_.value("pitch", group - 1).empty();
  if (!out.has_copy_params && group != 0) out.doubt(Doubt::params);
}

void Reader::parse_record(ParsedNode& out) {
  const std::string_view word = record_.type();
  const auto kind = kind_of_word(word);
  out.kind = kind.value_or(NodeKind::unknown);
  out.escaped_name = word;
  const std::string_view id_text = record_.value("ID");
  out.topology_id = topology_id(id_text);
  if (const auto id = dot::parse_number(id_text)) {
    out.id = *id;
    out.has_id = true;
  }
  if (!out.has_id && !id_text.starts_with('?')) out.doubt(Doubt::number);
  const auto address = [&](std::string_view key, std::size_t nth = 0) { return parameter(out, record_.value(key, nth)); };
  switch (out.kind) {
    case NodeKind::kernel: {
      const std::string_view cell = record_.after_value("ID");
      if (const auto config = dot::split_launch_config(cell, out.escaped_name)) {
        out.has_config = true;
        out.kernel.grid = config->grid;
        out.kernel.block = config->block;
        out.kernel.dynamic_shared_bytes = config->shared_bytes;
      }
      if (const std::string_view text = record_.value("cooperative"); !text.empty()) {
        if (const auto flag = dot::parse_number(text)) {
          out.kernel.cooperative = *flag != 0 ? ir::Tri::yes : ir::Tri::no;
        } else {
          out.doubt(Doubt::config);
        }
      }
      if (const std::string_view text = record_.value("priority"); !text.empty()) {
        std::int32_t priority = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), priority);
        if (error != std::errc() || end != text.data() + text.size()) {
          out.doubt(Doubt::config);
        } else {
          out.kernel.priority = priority;
        }
      }
      break;
    }
    case NodeKind::memcpy: parse_memcpy_record(out); break;
    case NodeKind::memset:
      out.memset.dst = address("dptr");
      out.memset.pitch_bytes = address("pitch");
      out.memset.value = static_cast<std::uint32_t>(parameter(out, record_.value("value"), 0, kMost32));
      out.memset.width = address("width");
      out.memset.height = parameter(out, record_.value("height"), 1);
      // There are no other sizes: with one, what the node fills is not known.
      if (const std::uint64_t size = number_or(record_.value("elementSize"), 0); size == 1 || size == 2 || size == 4) {
        out.memset.element_bytes = static_cast<std::uint8_t>(size);
        out.has_copy_params = !record_.value("dptr").empty();
      }
      if (!out.has_copy_params) out.doubt(Doubt::params);
      out.escaped_name = "Memset";
      break;
    case NodeKind::mem_alloc:
    case NodeKind::mem_free:
      out.alloc.address = address("dptr");
      out.alloc.bytes = address("bytesize");
      break;
    case NodeKind::batch_mem_op:
      out.batch.count = static_cast<std::uint32_t>(parameter(out, record_.value("count"), 0, kMost32));
      for (std::size_t i = 0; i + 1 < record_.leaves().size() && out.batch.address == 0; ++i) {
        const std::string_view text = record_.leaves()[i].text;
        if (text.starts_with("WRITE_VALUE") || text.starts_with("WAIT_VALUE"))
          out.batch.address = parameter(out, record_.leaves()[i + 1].text);
      }
      break;
    case NodeKind::child_graph:
    case NodeKind::conditional: {
      const std::string_view type = record_.value("Conditional Type");
      if (type == "IF") out.conditional.type = ir::ConditionalNode::Type::if_;
      if (type == "WHILE") out.conditional.type = ir::ConditionalNode::Type::while_;
      if (type == "SWITCH") out.conditional.type = ir::ConditionalNode::Type::switch_;
      for (const dot::RecordLabel::Leaf& leaf : record_.leaves())
        if (const auto number = graph_number(leaf.text)) out.body_graphs.push_back(*number);
      if (out.body_graphs.empty()) out.doubt(Doubt::body);
      break;
    }
    default: break;
  }
}

// Label lines: the id, the name or type word, then details that the flags asked for. A line ends in a newline or in a
// written "\n".
void Reader::parse_plain(const NodeStatement& statement, ParsedNode& out) {
  std::array<std::string_view, 8> lines;
  std::size_t count = 0;
  std::string_view rest = statement.label;
  while (count < lines.size() && !rest.empty()) {
    std::size_t end = rest.find("\\n");
    const std::size_t newline = rest.find('\n');
    std::size_t skip = 2;
    if (newline < end) {
      end = newline;
      skip = 1;
    }
    lines[count] = rest.substr(0, end);
    if (!lines[count].empty()) ++count;
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + skip);
  }
  std::size_t at = 0;
  if (count > 0) {
    out.topology_id = topology_id(lines[0]);
    if (const auto id = dot::parse_number(lines[0])) {
      out.id = *id;
      out.has_id = true;
      at = 1;
    } else if (statement.shape == "octagon" && count > 1) {
      out.doubt(Doubt::number);
      at = 1;  // what stands there is no name: a kernel has its number before it
    }
  }
  const std::string_view text = at < count ? lines[at] : std::string_view();
  out.escaped_name = text;
  const auto detail = [&](std::string_view key) -> std::uint64_t {
    for (std::size_t i = at + 1; i < count; ++i)
      if (lines[i].starts_with(key)) return parameter(out, lines[i].substr(key.size()));
    return 0;
  };
  // "(DtoD,4096)", "(171,640)"
  const auto pair = [&](std::string_view& first, std::uint64_t& second) {
    for (std::size_t i = at + 1; i < count; ++i) {
      const std::size_t comma = lines[i].find(',');
      if (!lines[i].starts_with('(') || !lines[i].ends_with(')') || comma == std::string_view::npos) continue;
      first = lines[i].substr(1, comma - 1);
      second = parameter(out, lines[i].substr(comma + 1, lines[i].size() - comma - 2));
      return true;
    }
    return false;
  };
  if (statement.shape == "octagon") {
    out.kind = NodeKind::kernel;  // a kernel may be called anything, "MEMSET" and "graph_7" included
    for (std::size_t i = at; i < count; ++i) {
      std::string_view name;
      const auto config = dot::split_launch_config(lines[i], name);
      if (!config) continue;
      if (i == at) out.escaped_name = name;
      out.has_config = true;
      out.kernel.grid = config->grid;
      out.kernel.block = config->block;
      out.kernel.dynamic_shared_bytes = config->shared_bytes;
      break;
    }
    return;
  }
  // One that is missing in the file is a child graph all the same.
  if (const auto body = graph_number(text); body && (statement.shape == "rectangle" || cluster_by_number_.contains(*body))) {
    out.kind = NodeKind::child_graph;
    out.body_graphs.push_back(*body);
    return;
  }
  out.kind = kind_of_word(text).value_or(NodeKind::unknown);
  std::string_view first;
  std::uint64_t second = 0;
  switch (out.kind) {
    case NodeKind::memcpy:
      out.escaped_name = "Memcpy";
      if (pair(first, second)) {
        set_copy_kinds(first, out.memcpy);
        out.memcpy.width_bytes = second;
        scratch_ = "Memcpy ";
        scratch_ += first.substr(0, first.find(' '));
        out.escaped_name = recording_.text(recording_.intern(scratch_));
      }
      break;
    case NodeKind::memset:
      out.escaped_name = "Memset";
      if (pair(first, second)) {
        out.memset.value = static_cast<std::uint32_t>(parameter(out, first, 0, kMost32));
        out.memset.width = second;
      }
      break;
    case NodeKind::host:
      out.host.user_data = detail("userData: ");
      if (const std::uint64_t function = detail("fn: "); function != 0)
        out.host.function = recording_.intern(fmt::format("0x{:x}", function));
      break;
    case NodeKind::event_record:
    case NodeKind::event_wait: out.event.event = detail("event: "); break;
    default: break;
  }
}

void Reader::parse_node(const NodeStatement& statement, ParsedNode& out) {
  out = ParsedNode();
  if (record_.parse(statement.label)) {
    parse_record(out);
  } else {
    parse_plain(statement, out);
  }
  // The node's own name carries the id as well.
  const std::size_t at = statement.name.rfind("_node_");
  const auto id = at != std::string_view::npos ? dot::parse_number(statement.name.substr(at + 6)) : std::nullopt;
  if (at != std::string_view::npos && out.has_id && (!id || *id != out.id)) out.doubt(Doubt::number);
  if (id && !out.has_id) {
    out.id = *id;
    out.has_id = true;
  }
  if (out.kind == NodeKind::unknown) out.doubt(Doubt::type);
  if (out.kind == NodeKind::kernel) {
    if (out.escaped_name.empty()) out.doubt(Doubt::name);
    if (!out.has_config && statement.label.find("\\<\\<\\<") != std::string_view::npos) out.doubt(Doubt::config);
  }
}

void Reader::note(Doubt doubt, std::size_t offset, bool count, std::uint64_t cases) {
  Noted& noted = noted_[static_cast<std::size_t>(doubt)];
  noted.of_root = true;
  if (!count) return;
  if (noted.count == 0) noted.first_offset = offset;
  noted.count += cases;
}

void Reader::resolve_edges() {
  edges_ = document_.edges;
  edges_of_cluster_.resize(document_.clusters.size());
  std::uint64_t dangling = 0, crossing = 0;
  std::size_t dangling_at = 0, crossing_at = 0;
  for (std::uint32_t i = 0; i < edges_.size(); ++i) {
    EdgeStatement& edge = edges_[i];
    edge.from = document_.find(edge.from_name);
    edge.to = document_.find(edge.to_name);
    if (edge.from == kNone || edge.to == kNone) {
      if (dangling++ == 0) dangling_at = edge.offset;
      continue;
    }
    const std::uint32_t cluster = document_.nodes[edge.from].cluster;
    if (cluster == kNone || cluster != document_.nodes[edge.to].cluster) {
      if (crossing++ == 0) crossing_at = edge.offset;
      continue;
    }
    edges_of_cluster_[cluster].push_back(i);
  }
  // A headlabel is the edge's place among the dependencies of the node that it points to.
  struct Place {
    std::uint32_t to;
    std::uint64_t place;
    std::uint32_t from;
  };
  const auto by_place = [](const Place& a, const Place& b) { return std::tie(a.to, a.place, a.from) < std::tie(b.to, b.place, b.from); };
  const auto is_same = [](const Place& a, const Place& b) { return std::tie(a.to, a.place, a.from) == std::tie(b.to, b.place, b.from); };
  std::vector<Place> places;
  std::vector<std::uint32_t> without_place;  // heads
  for (const EdgeStatement& edge : edges_) {
    if (edge.to == kNone) continue;
    const auto place = dot::parse_number(edge.head_label);
    if (place && *place <= kMost32) {
      places.push_back({edge.to, *place, edge.from});
    } else {
      without_place.push_back(edge.to);
    }
  }
  std::sort(places.begin(), places.end(), by_place);
  places.erase(std::unique(places.begin(), places.end(), is_same), places.end());  // repeated edges are merged
  std::sort(without_place.begin(), without_place.end());
  std::uint64_t gaps = 0;
  std::size_t gap_at = 0;
  std::vector<std::uint64_t> numbers;
  for (std::size_t begin = 0, end = 0; begin < places.size(); begin = end) {
    numbers.clear();
    for (; end < places.size() && places[end].to == places[begin].to; ++end) numbers.push_back(places[end].place);
    const auto others = std::equal_range(without_place.begin(), without_place.end(), places[begin].to);
    const std::uint64_t found = gaps_and_repeats(numbers, static_cast<std::uint64_t>(others.second - others.first));
    if (const std::size_t offset = document_.nodes[places[begin].to].offset; found != 0 && (gaps == 0 || offset < gap_at)) gap_at = offset;
    gaps += found;
  }
  edges_spoiled_ = dangling + crossing + gaps != 0;
  if (gaps != 0)
    recording_.add_loss(ir::Loss::Severity::data_loss,
                        "edges that are missing, or whose headlabel another edge of their node has: a node's headlabels have no gaps", gaps, gap_at,
                        {Fact::edges});
  if (dangling != 0)
    recording_.add_loss(ir::Loss::Severity::data_loss, "edges that name a node which the file does not declare", dangling,
                        dangling_at, {Fact::edges});
  if (crossing != 0)
    recording_.add_loss(ir::Loss::Severity::data_loss, "edges between nodes of different graphs", crossing, crossing_at,
                        {Fact::edges});
}

// A graph that contains itself would have no root, and vanish; one walk over all references, without recursion.
base::Result<void> Reader::check_nesting(const std::vector<BodyReference>& references) {
  const std::size_t clusters = document_.clusters.size();
  std::vector<std::size_t> first(clusters + 1, 0);  // of each cluster's references in `sorted`
  for (const BodyReference& reference : references) ++first[reference.from + 1];
  for (std::size_t c = 0; c < clusters; ++c) first[c + 1] += first[c];
  std::vector<BodyReference> sorted(references.size());
  std::vector<std::size_t> next(first.begin(), first.end() - 1);
  for (const BodyReference& reference : references) sorted[next[reference.from]++] = reference;
  std::copy(first.begin(), first.end() - 1, next.begin());
  enum class State : std::uint8_t { unseen, open, done };
  std::vector<State> state(clusters, State::unseen);
  // What is done has been added up; beyond the limit numbers do not matter.
  expansions_.resize(clusters);
  for (std::size_t c = 0; c < clusters; ++c) expansions_[c].nodes = document_.clusters[c].nodes.size();
  const auto add_up = [&](std::uint32_t cluster) {
    Expansion& sum = expansions_[cluster];
    for (std::size_t r = first[cluster]; r < first[cluster + 1]; ++r) {
      const Expansion& part = expansions_[sorted[r].to];
      sum.nodes = std::min(sum.nodes + part.nodes, kTooMany);
      sum.graphs = std::min(sum.graphs + part.graphs, kTooMany);
    }
  };
  std::vector<std::uint32_t> path;
  for (std::uint32_t start = 0; start < clusters; ++start) {
    if (state[start] != State::unseen) continue;
    state[start] = State::open;
    path.push_back(start);
    while (!path.empty()) {
      const std::uint32_t at = path.back();
      if (next[at] == first[at + 1]) {
        state[at] = State::done;
        add_up(at);
        path.pop_back();
        continue;
      }
      const BodyReference& reference = sorted[next[at]++];
      if (state[reference.to] == State::open)
        return make_error(ErrorCode::malformed,
                          fmt::format("child graphs contain each other in a circle through graph_{}",
                                      document_.clusters[reference.to].number),
                          reference.offset);
      if (state[reference.to] == State::done) continue;
      state[reference.to] = State::open;
      path.push_back(reference.to);
    }
  }
  return {};
}

base::Result<void> Reader::check_expansion(const std::vector<std::uint8_t>& is_body) const {
  std::uint64_t nodes = 0, graphs = 0;
  for (std::size_t c = 0; c < is_body.size(); ++c) {
    if (is_body[c] != 0) continue;
    nodes += expansions_[c].nodes;
    graphs += expansions_[c].graphs;
    const bool too_many_nodes = nodes > document_.nodes.size() + kMaxExpandedNodes;
    if (too_many_nodes || graphs > document_.clusters.size() + kMaxExpandedGraphs)
      return make_error(ErrorCode::limit,
                        fmt::format("child graphs that are used several times expand to more than {} {}",
                                    too_many_nodes ? kMaxExpandedNodes : kMaxExpandedGraphs, too_many_nodes ? "nodes" : "graphs"),
                        document_.clusters[c].offset);
  }
  return {};
}

base::Result<std::unique_ptr<ir::Graph>> Reader::build_graph(const Use& use, std::vector<Use>& uses) {
  const Cluster& cluster = document_.clusters[use.cluster];
  std::vector<std::uint32_t> order = cluster.nodes;
  std::vector<std::uint64_t> ids(order.size());
  std::vector<ParsedNode> parsed(order.size());
  bool all_have_ids = true, all_have_config = true, all_have_names = true, all_have_copies = true;
  bool any_has_config = false;
  const bool count = cluster_counted_[use.cluster] == 0;
  cluster_counted_[use.cluster] = 1;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const NodeStatement& statement = document_.nodes[order[i]];
    parse_node(statement, parsed[i]);
    all_have_ids = all_have_ids && parsed[i].has_id;
    ids[i] = parsed[i].id;
    if (parsed[i].kind == NodeKind::kernel) {
      all_have_config = all_have_config && parsed[i].has_config;
      all_have_names = all_have_names && !parsed[i].escaped_name.empty();
    }
    if (parsed[i].kind == NodeKind::memcpy || parsed[i].kind == NodeKind::memset)
      all_have_copies = all_have_copies && parsed[i].has_copy_params;
    any_has_config = any_has_config || parsed[i].has_config;
    for (std::size_t d = 0; d < kDoubts.size(); ++d)
      if ((parsed[i].doubts >> d & 1u) != 0) note(static_cast<Doubt>(d), statement.offset, count);
  }
  for (std::size_t i = 0; any_has_config && !all_have_config && i < order.size(); ++i)
    if (parsed[i].kind == NodeKind::kernel && !parsed[i].has_config && (parsed[i].doubts >> static_cast<int>(Doubt::config) & 1u) == 0)
      note(Doubt::lacks_config, document_.nodes[order[i]].offset, count);
  std::vector<std::uint64_t> topology_ids;
  for (const ParsedNode& node : parsed)
    if (node.topology_id != kNoTopologyId) topology_ids.push_back(node.topology_id);
  std::sort(topology_ids.begin(), topology_ids.end());
  if (const std::uint64_t gaps = gaps_and_repeats(topology_ids, order.size() - topology_ids.size()); gaps != 0)
    note(Doubt::gap, cluster.offset, count, gaps);
  std::vector<std::uint32_t> sorted(order.size());
  for (std::uint32_t i = 0; i < sorted.size(); ++i) sorted[i] = i;
  if (all_have_ids && !std::is_sorted(ids.begin(), ids.end()))
    std::stable_sort(sorted.begin(), sorted.end(), [&](std::uint32_t a, std::uint32_t b) { return ids[a] < ids[b]; });
  std::uint64_t shared_ids = 0;
  for (std::size_t i = 1; all_have_ids && i < sorted.size(); ++i)
    if (ids[sorted[i - 1]] == ids[sorted[i]]) ++shared_ids;

  ir::GraphBuilder builder;
  std::unordered_map<std::uint32_t, ir::NodeId> node_of_statement;
  node_of_statement.reserve(order.size());
  for (const std::uint32_t i : sorted) {
    ParsedNode& node = parsed[i];
    dot::unescape(node.escaped_name, scratch_);
    const ir::StringId name = recording_.intern(scratch_);
    ir::NodeId id;
    switch (node.kind) {
      case NodeKind::kernel:
        node.kernel.function = recording_.intern_function(scratch_);
        id = builder.add_kernel(name, node.kernel);
        break;
      case NodeKind::memcpy: id = builder.add_memcpy(name, node.memcpy); break;
      case NodeKind::memset: id = builder.add_memset(name, node.memset); break;
      case NodeKind::host: id = builder.add_host(name, node.host); break;
      case NodeKind::event_record:
      case NodeKind::event_wait: id = builder.add_event(node.kind, name, node.event); break;
      case NodeKind::mem_alloc:
      case NodeKind::mem_free: id = builder.add_alloc(node.kind, name, node.alloc); break;
      case NodeKind::ext_semaphore_signal:
      case NodeKind::ext_semaphore_wait: id = builder.add_semaphore(node.kind, name, node.semaphore); break;
      case NodeKind::batch_mem_op: id = builder.add_batch_mem_op(name, node.batch); break;
      case NodeKind::child_graph:
      case NodeKind::conditional: {
        std::vector<ir::GraphId> bodies;
        const ir::NodeId next_node = ir::NodeId::from_size(builder.graph().node_count());
        for (const std::uint64_t number : node.body_graphs) {
          const auto it = cluster_by_number_.find(number);
          if (it == cluster_by_number_.end()) {
            note(Doubt::body, document_.nodes[order[i]].offset, count);
            continue;
          }
          const ir::GraphId body = recording_.graphs.push_back(nullptr);
          bodies.push_back(body);
          uses.push_back({it->second, body, use.id, next_node});
        }
        if (node.kind == NodeKind::child_graph) {
          ir::ChildGraphNode child;
          if (!bodies.empty()) child.body = bodies.front();
          id = builder.add_child_graph(name, child);
        } else {
          id = builder.add_conditional(name, node.conditional, bodies);
        }
        break;
      }
      default: id = builder.add_node(node.kind, name); break;
    }
    if (node.has_id) builder.set_source_id(id, node.id);
    node_of_statement.emplace(order[i], id);
  }
  for (const std::uint32_t e : edges_of_cluster_[use.cluster])
    builder.add_edge(node_of_statement.at(edges_[e].from), node_of_statement.at(edges_[e].to));

  ir::Graph& graph = builder.graph();
  dot::unescape(cluster.label, scratch_);
  graph.info.name = recording_.intern(scratch_.empty() ? fmt::format("graph_{}", cluster.number) : scratch_);
  graph.info.source_id = cluster.number;
  graph.info.process = ir::ProcessId(0);
  if (use.parent.is_valid()) {
    graph.info.role = ir::GraphRole::body;
    graph.info.parent = use.parent;
    graph.info.parent_node = use.parent_node;
  }
  graph.facts = {Fact::nodes, Fact::edges};
  if (all_have_ids) graph.facts.insert(Fact::creation_order);
  if (all_have_names) graph.facts.insert(Fact::kernel_names);
  if (all_have_config) graph.facts.insert(Fact::launch_config);
  if (all_have_copies) graph.facts.insert(Fact::copy_params);
  const auto spoil = [&](Fact fact, std::string_view reason) {
    if (!graph.facts.contains(fact)) return;
    graph.facts.erase(fact);
    graph.spoiled.push_back({fact, recording_.intern(reason)});
  };
  if (edges_spoiled_) spoil(Fact::edges, "some edges of this file could not be placed");
  if (shared_ids != 0) {
    recording_.add_loss(ir::Loss::Severity::data_loss, "nodes with the id of another node of their graph", shared_ids,
                        cluster.offset, {Fact::creation_order});
    spoil(Fact::creation_order, "several nodes of the graph have the same id");
  }
  if (document_.repeated_otherwise.count != 0)
    for (const Fact fact : {Fact::kernel_names, Fact::launch_config, Fact::copy_params})
      spoil(fact, "some nodes of this file are declared twice and differently");
  auto finished = builder.finish();
  if (finished && builder.duplicate_edges() != 0)
    recording_.add_loss(ir::Loss::Severity::info, "repeated edges were merged", builder.duplicate_edges(), cluster.offset);
  return finished;
}

base::Result<void> Reader::build(const ReadOptions& options) {
  for (std::uint32_t i = 0; i < document_.clusters.size(); ++i) {
    const auto [it, inserted] = cluster_by_number_.try_emplace(document_.clusters[i].number, i);
    if (!inserted)
      return make_error(ErrorCode::malformed,
                        fmt::format("two graphs of this file have the number {}", document_.clusters[i].number),
                        document_.clusters[i].offset);
  }
  resolve_edges();
  cluster_counted_.resize(document_.clusters.size());
  if (document_.repeated_alike.count != 0)
    recording_.add_loss(ir::Loss::Severity::info, "node declarations that repeat an earlier one word for word",
                        document_.repeated_alike.count, document_.repeated_alike.first_offset);
  if (document_.repeated_otherwise.count != 0)
    recording_.add_loss(ir::Loss::Severity::data_loss,
                        "nodes declared twice and differently; the first declaration was taken",
                        document_.repeated_otherwise.count, document_.repeated_otherwise.first_offset,
                        {Fact::kernel_names, Fact::launch_config, Fact::copy_params});

  // Clusters that some node names as its body are not graphs of their own. A node outside every graph is left out, and
  // what it names is not lost with it.
  std::vector<std::uint8_t> is_body(document_.clusters.size(), 0);
  std::vector<BodyReference> references;
  ParsedNode node;
  for (const NodeStatement& statement : document_.nodes) {
    if (statement.cluster == kNone || statement.label.find("graph_") == std::string_view::npos) continue;
    parse_node(statement, node);
    for (const std::uint64_t number : node.body_graphs) {
      const auto it = cluster_by_number_.find(number);
      if (it == cluster_by_number_.end()) continue;
      is_body[it->second] = 1;
      references.push_back({statement.cluster, it->second, statement.offset});
    }
  }
  CGLINT_TRY(check_nesting(references));
  CGLINT_TRY(check_expansion(is_body));
  for (std::uint32_t c = 0; c < document_.clusters.size(); ++c) {
    if (is_body[c] != 0) continue;
    std::vector<Use> uses;
    uses.push_back({c, recording_.graphs.push_back(nullptr), ir::GraphId(), ir::NodeId()});
    for (std::size_t u = 0; u < uses.size(); ++u) {
      const Use use = uses[u];
      auto graph = build_graph(use, uses);
      if (!graph) {
        base::Error error = std::move(graph).error();
        if (error.offset_bytes == base::Error::kNoOffset) error.offset_bytes = document_.clusters[use.cluster].offset;
        return error;
      }
      recording_.graphs[use.id] = *std::move(graph);
    }
    // What a graph contains is a part of it: doubts about one of them are doubts about all.
    for (std::size_t d = 0; d < kDoubts.size(); ++d) {
      if (!noted_[d].of_root) continue;
      noted_[d].of_root = false;
      for (const Use& use : uses) {
        ir::Graph& graph = *recording_.graphs[use.id];
        for (int f = 0; f < ir::kFactCount; ++f) {
          const auto fact = static_cast<Fact>(f);
          if (!kDoubts[d].facts.contains(fact)) continue;
          graph.facts.erase(fact);
          if (std::none_of(graph.spoiled.begin(), graph.spoiled.end(), [&](const ir::SpoiledFact& spoiled) { return spoiled.fact == fact; }))
            graph.spoiled.push_back({fact, recording_.intern(kDoubts[d].what)});
        }
      }
    }
    if (options.on_graph)
      for (const Use& use : uses) options.on_graph(recording_, use.id);
  }
  for (std::size_t d = 0; d < kDoubts.size(); ++d)
    if (noted_[d].count != 0)
      recording_.add_loss(ir::Loss::Severity::data_loss, kDoubts[d].what, noted_[d].count, noted_[d].first_offset, kDoubts[d].facts);
  return {};
}

class DotImporter final : public Importer {
 public:
  [[nodiscard]] std::string_view name() const override { return "dot"; }
  [[nodiscard]] std::string_view description() const override {
    return "CUDA graph dumps (cudaGraphDebugDotPrint, torch.cuda.CUDAGraph.debug_dump)";
  }
  [[nodiscard]] ir::FactSet can_supply() const override {
    return {Fact::nodes, Fact::creation_order, Fact::edges, Fact::kernel_names, Fact::launch_config, Fact::copy_params};
  }
  [[nodiscard]] SniffResult sniff(std::string_view prefix) const override;
  [[nodiscard]] base::Result<ir::Recording> read(Source& source, const ReadOptions& options) const override;
};

SniffResult DotImporter::sniff(std::string_view prefix) const {
  if (prefix.starts_with(kByteOrderMark)) prefix.remove_prefix(kByteOrderMark.size());
  dot::Scanner scanner(prefix);
  Token token = scanner.next();
  if (token.text == "strict" && token.kind == Token::Kind::id) token = scanner.next();
  if (token.kind != Token::Kind::id) return {};
  if (token.text == "graph" && scanner.peek().is_name()) {
    scanner.next();
    if (scanner.peek().is('{')) return {SniffResult::Match::foreign, "an undirected Graphviz file"};
    return {};
  }
  if (token.text != "digraph") return {};
  token = scanner.next();
  std::string_view graph_name;
  if (token.is_name()) {
    graph_name = token.text;
    token = scanner.next();
  }
  if (!token.is('{')) return {};
  const auto has = [prefix](std::string_view text) { return prefix.find(text) != std::string_view::npos; };
  const auto foreign = [](std::string_view text) { return SniffResult{SniffResult::Match::foreign, std::string(text)}; };
  if (graph_name == "Taskflow" || graph_name == "cudaFlow" || graph_name == "cudaGraph" || graph_name == "syclFlow")
    return foreign("a Taskflow dump");
  if (has("TYPE = CG")) return foreign("a SYCL graph dump (print_graph)");
  if (has("\"graph[style=\"dashed\"]")) return foreign("hipGraphDebugDotPrint output (ROCm)");
  if (has("\" graph[style=\"dashed\"]") || has("\"graph_")) {
    if (has("\nsubgraph cluster_") || has("subgraph cluster_")) return {SniffResult::Match::yes, {}};
  }
  if (graph_name == "dot" && scanner.peek().is('}')) return {SniffResult::Match::yes, {}};  // a dump without graphs
  return foreign("a Graphviz file that no CUDA graph dump wrote");
}

base::Result<ir::Recording> DotImporter::read(Source& source, const ReadOptions& options) const {
  auto bytes = source.read_all();
  if (!bytes) return std::move(bytes).error();
  Document document;
  CGLINT_TRY(document.parse(*bytes, options.limits));
  ir::Recording recording;
  recording.processes.push_back(ir::Process());
  Reader reader(document, recording);
  CGLINT_TRY(reader.build(options));
  if (document.bare_nodes != 0)
    recording.add_loss(ir::Loss::Severity::data_loss, "nodes outside every graph of the file were left out", document.bare_nodes,
                       document.first_bare_node, {Fact::nodes});
  return recording;
}

}  // namespace

std::unique_ptr<Importer> make_dot_importer() { return std::make_unique<DotImporter>(); }

}  // namespace cglint::import
