#include "stream_probe/graph_spec.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <functional>

namespace cglint::gpu {
namespace {

bool known_kind(char letter) {
  return std::string_view("KMCUDEHRWAFBGILS").find(letter) != std::string_view::npos;
}

// Takes a decimal integer off the front of `text`.
bool take_int(std::string_view& text, int& value) {
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc{}) return false;
  text.remove_prefix(static_cast<size_t>(result.ptr - text.data()));
  return true;
}

bool take_char(std::string_view& text, char wanted) {
  if (text.empty() || text.front() != wanted) return false;
  text.remove_prefix(1);
  return true;
}

bool parse_kinds(std::string_view text, std::vector<NodeKind>& kinds) {
  if (text.size() > static_cast<size_t>(kMaxNodes)) return false;
  for (const char letter : text) {
    if (!known_kind(letter)) return false;
    kinds.push_back(static_cast<NodeKind>(letter));
  }
  return !kinds.empty();
}

bool parse_edges(std::string_view text, std::vector<Edge>& edges) {
  if (text == ".") return true;
  while (true) {
    Edge edge;
    if (!take_int(text, edge.from) || !take_char(text, '-') || !take_int(text, edge.to)) return false;
    if (take_char(text, 'p'))
      edge.type = EdgeType::kProgrammatic;
    else if (take_char(text, 'l'))
      edge.type = EdgeType::kLaunchOrder;
    edges.push_back(edge);
    if (text.empty()) return true;
    if (!take_char(text, ',')) return false;
  }
}

bool parse_pairs(std::string_view text, std::map<int, int>& pairs) {
  while (true) {
    int first = 0;
    int second = 0;
    if (!take_int(text, first) || !take_char(text, ':') || !take_int(text, second)) return false;
    pairs[first] = second;
    if (text.empty()) return true;
    if (!take_char(text, ',')) return false;
  }
}

bool parse_traits(std::string_view text, std::map<int, KernelTrait>& traits) {
  while (true) {
    int node = 0;
    if (!take_int(text, node) || !take_char(text, ':')) return false;
    const size_t end = std::min(text.find(','), text.size());
    const std::string_view name = text.substr(0, end);
    if (name == "coop") {
      traits[node] = KernelTrait::kCooperative;
    } else if (name == "cluster") {
      traits[node] = KernelTrait::kCluster;
    } else if (name == "shared") {
      traits[node] = KernelTrait::kSharedMemory;
    } else {
      return false;
    }
    text.remove_prefix(end);
    if (text.empty()) return true;
    text.remove_prefix(1);
  }
}

// PATH:kinds/edges, with PATH = node[#body](.node[#body])*; the last step takes no #body: it appends one.
bool parse_body(std::string_view text, GraphSpec& root) {
  GraphSpec* owner = &root;
  int node = 0;
  for (int depth = 0; depth < kMaxBodyDepth; ++depth) {
    if (!take_int(text, node) || node < 0) return false;
    if (take_char(text, ':')) {
      GraphSpec body;
      const size_t slash = text.find('/');
      if (slash == std::string_view::npos) return false;
      if (!parse_kinds(text.substr(0, slash), body.kinds)) return false;
      if (!parse_edges(text.substr(slash + 1), body.edges)) return false;
      owner->bodies[node].push_back(std::move(body));
      return true;
    }
    int which = 0;
    if (take_char(text, '#') && (!take_int(text, which) || which < 0)) return false;
    if (!take_char(text, '.')) return false;
    const auto found = owner->bodies.find(node);
    if (found == owner->bodies.end() || static_cast<size_t>(which) >= found->second.size()) return false;
    owner = &found->second[static_cast<size_t>(which)];
  }
  return false;
}

std::string_view trait_name(KernelTrait trait) {
  return trait == KernelTrait::kCooperative ? "coop" : trait == KernelTrait::kCluster ? "cluster" : "shared";
}

std::string print_edges(const std::vector<Edge>& edges) {
  if (edges.empty()) return ".";
  std::string out;
  for (const Edge& edge : edges) {
    if (!out.empty()) out += ',';
    out += std::to_string(edge.from) + '-' + std::to_string(edge.to);
    if (edge.type == EdgeType::kProgrammatic) out += 'p';
    if (edge.type == EdgeType::kLaunchOrder) out += 'l';
  }
  return out;
}

std::string print_kinds(const std::vector<NodeKind>& kinds) {
  std::string out;
  for (const NodeKind kind : kinds) out += static_cast<char>(kind);
  return out;
}

// reaches[v] holds one bit per node that v can reach. Empty when the graph has a cycle.
std::vector<std::vector<bool>> reachability(const GraphSpec& spec) {
  const size_t n = spec.kinds.size();
  std::vector<std::vector<size_t>> children(n);
  std::vector<int> waiting(n, 0);
  for (const Edge& edge : spec.edges) {
    children[static_cast<size_t>(edge.from)].push_back(static_cast<size_t>(edge.to));
    ++waiting[static_cast<size_t>(edge.to)];
  }
  std::vector<size_t> order;
  for (size_t v = 0; v < n; ++v) {
    if (waiting[v] == 0) order.push_back(v);
  }
  for (size_t i = 0; i < order.size(); ++i) {
    for (const size_t child : children[order[i]]) {
      if (--waiting[child] == 0) order.push_back(child);
    }
  }
  if (order.size() != n) return {};
  std::vector<std::vector<bool>> reaches(n, std::vector<bool>(n, false));
  for (size_t i = n; i-- > 0;) {
    const size_t v = order[i];
    for (const size_t child : children[v]) {
      reaches[v][child] = true;
      for (size_t w = 0; w < n; ++w) {
        if (reaches[child][w]) reaches[v][w] = true;
      }
    }
  }
  return reaches;
}

std::string normalise_one(GraphSpec& spec, int depth) {
  const int n = spec.size();
  if (n == 0) return "no node";
  if (depth > kMaxBodyDepth) return "bodies nest too deeply";
  for (const Edge& edge : spec.edges) {
    if (edge.from < 0 || edge.to < 0 || edge.from >= n || edge.to >= n || edge.from == edge.to)
      return "edge out of range";
    if (edge.type != EdgeType::kDefault && (spec.kinds[static_cast<size_t>(edge.from)] != NodeKind::kKernel ||
                                            spec.kinds[static_cast<size_t>(edge.to)] != NodeKind::kKernel)) {
      return "a programmatic edge must join two kernels";
    }
    if (edge.from > edge.to) spec.edges_after = true;
  }
  for (const auto& [node, priority] : spec.priorities) {
    if (node < 0 || node >= n || spec.kinds[static_cast<size_t>(node)] != NodeKind::kKernel)
      return "priority of a node that is no kernel";
  }
  for (const auto& [node, trait] : spec.traits) {
    if (node < 0 || node >= n || spec.kinds[static_cast<size_t>(node)] != NodeKind::kKernel)
      return "attribute of a node that is no kernel";
  }
  bool needs_reach = false;
  for (int v = 0; v < n; ++v) {
    const NodeKind kind = spec.kinds[static_cast<size_t>(v)];
    if (has_bodies(kind)) {
      std::vector<GraphSpec>& bodies = spec.bodies[v];
      if (bodies.empty()) {
        GraphSpec body;
        body.kinds = {NodeKind::kKernel};
        bodies.push_back(std::move(body));
      }
      const size_t most = kind == NodeKind::kSwitch ? 16 : kind == NodeKind::kIf ? 2 : 1;
      if (bodies.size() > most) return "too many bodies for one node";
      for (GraphSpec& body : bodies) {
        std::string wrong = normalise_one(body, depth + 1);
        if (!wrong.empty()) return wrong;
        if (kind == NodeKind::kWhile &&
            std::find(body.kinds.begin(), body.kinds.end(), NodeKind::kKernel) == body.kinds.end()) {
          return "a while body without a kernel would not end";
        }
      }
    }
    if (kind == NodeKind::kMemFree) needs_reach = true;
  }
  for (const auto& [node, bodies] : spec.bodies) {
    if (node < 0 || node >= n || !has_bodies(spec.kinds[static_cast<size_t>(node)]))
      return "body of a node that has none";
  }
  const std::vector<std::vector<bool>> reaches = reachability(spec);
  if (reaches.empty()) return "the edges form a cycle";
  if (needs_reach) {
    std::vector<bool> freed(static_cast<size_t>(n), false);
    for (const auto& [node, alloc] : spec.frees) {
      if (node < 0 || node >= n || alloc < 0 || alloc >= n) return "free= out of range";
      freed[static_cast<size_t>(alloc)] = true;
    }
    for (int v = 0; v < n; ++v) {
      if (spec.kinds[static_cast<size_t>(v)] != NodeKind::kMemFree) continue;
      if (spec.frees.count(v) == 0) {
        for (int a = v - 1; a >= 0 && spec.frees.count(v) == 0; --a) {
          if (spec.kinds[static_cast<size_t>(a)] == NodeKind::kMemAlloc && !freed[static_cast<size_t>(a)] &&
              reaches[static_cast<size_t>(a)][static_cast<size_t>(v)]) {
            spec.frees[v] = a;
          }
        }
        if (spec.frees.count(v) == 0) return "a free without an allocation";
      }
      const int alloc = spec.frees[v];
      if (alloc > v || spec.kinds[static_cast<size_t>(alloc)] != NodeKind::kMemAlloc ||
          !reaches[static_cast<size_t>(alloc)][static_cast<size_t>(v)]) {
        return "a free must come after its allocation";
      }
      freed[static_cast<size_t>(alloc)] = true;
    }
  }
  return "";
}

void list_bodies(const GraphSpec& spec, const std::string& prefix, std::vector<BodyRef>& out) {
  for (const auto& [node, bodies] : spec.bodies) {
    for (size_t i = 0; i < bodies.size(); ++i) {
      std::string path = prefix + std::to_string(node);
      if (i > 0) path += '#' + std::to_string(i);
      out.push_back({path, &bodies[i]});
      list_bodies(bodies[i], path + '.', out);
    }
  }
}

void append_ints(std::string& out, const std::vector<int>& values) {
  out += '[';
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) out += ',';
    out += std::to_string(values[i]);
  }
  out += ']';
}

void append_edges(std::string& out, const GraphSpec& spec) {
  out += "\"n\":" + std::to_string(spec.size()) + ",\"edges\":[";
  bool typed = false;
  for (size_t i = 0; i < spec.edges.size(); ++i) {
    const Edge& edge = spec.edges[i];
    if (i > 0) out += ',';
    out += '[' + std::to_string(edge.from) + ',' + std::to_string(edge.to) + ']';
    typed = typed || edge.type != EdgeType::kDefault;
  }
  out += ']';
  if (typed) {
    std::vector<int> types;
    for (const Edge& edge : spec.edges) types.push_back(static_cast<int>(edge.type));
    out += ",\"edge_types\":";
    append_ints(out, types);
  }
}

void append_kinds(std::string& out, const GraphSpec& spec) {
  const auto other = [](NodeKind kind) { return kind != NodeKind::kKernel; };
  if (std::none_of(spec.kinds.begin(), spec.kinds.end(), other)) return;
  std::string copies;
  out += ",\"kinds\":[";
  for (size_t i = 0; i < spec.kinds.size(); ++i) {
    if (i > 0) out += ',';
    out += '"';
    out += kind_name(spec.kinds[i]);
    out += '"';
    if (is_memcpy(spec.kinds[i])) {
      if (!copies.empty()) copies += ',';
      const NodeKind kind = spec.kinds[i];
      copies += kind == NodeKind::kMemcpyDtoD   ? "\"dtod\""
                : kind == NodeKind::kMemcpyHtoD ? "\"htod\""
                                                : "\"dtoh\"";
    }
  }
  out += ']';
  if (!copies.empty()) out += ",\"copy\":[" + copies + ']';
}

}  // namespace

bool has_bodies(NodeKind kind) {
  return kind == NodeKind::kChild || kind == NodeKind::kIf || kind == NodeKind::kWhile ||
         kind == NodeKind::kSwitch;
}

bool is_memcpy(NodeKind kind) {
  return kind == NodeKind::kMemcpyDtoD || kind == NodeKind::kMemcpyHtoD || kind == NodeKind::kMemcpyDtoH;
}

bool has_record(NodeKind kind) {
  return kind == NodeKind::kKernel || kind == NodeKind::kMemset || is_memcpy(kind);
}

std::string_view kind_name(NodeKind kind) {
  switch (kind) {
    case NodeKind::kKernel:
      return "kernel";
    case NodeKind::kMemset:
      return "memset";
    case NodeKind::kMemcpyDtoD:
    case NodeKind::kMemcpyHtoD:
    case NodeKind::kMemcpyDtoH:
      return "memcpy";
    case NodeKind::kEmpty:
      return "empty";
    case NodeKind::kHost:
      return "host";
    case NodeKind::kEventRecord:
      return "event-record";
    case NodeKind::kEventWait:
      return "event-wait";
    case NodeKind::kMemAlloc:
      return "mem-alloc";
    case NodeKind::kMemFree:
      return "mem-free";
    case NodeKind::kBatchMemOp:
      return "batch-mem-op";
    case NodeKind::kChild:
      return "child-graph";
    case NodeKind::kIf:
      return "conditional-if";
    case NodeKind::kWhile:
      return "conditional-while";
    case NodeKind::kSwitch:
      return "conditional-switch";
  }
  return "unknown";
}

int total_nodes(const GraphSpec& spec) {
  int total = spec.size();
  for (const auto& [node, bodies] : spec.bodies) {
    for (const GraphSpec& body : bodies) total += total_nodes(body);
  }
  return total;
}

std::string normalise(GraphSpec& spec) {
  std::string wrong = normalise_one(spec, 0);
  if (wrong.empty() && total_nodes(spec) > kMaxNodes)
    wrong = "more than " + std::to_string(kMaxNodes) + " nodes";
  if (wrong.empty() &&
      (spec.extra_bytes + size_t{4} * kMaxNodes + 512) * static_cast<size_t>(spec.rows) > kMaxCopyBytes)
    wrong = "copies larger than the buffers";
  return wrong;
}

bool parse_line(std::string_view line, GraphSpec& spec, std::string& error) {
  spec = GraphSpec{};
  std::vector<std::string_view> fields;
  while (!line.empty()) {
    const size_t end = std::min(line.find_first_of(" \t\r"), line.size());
    if (end > 0) fields.push_back(line.substr(0, end));
    line.remove_prefix(std::min(end + 1, line.size()));
  }
  if (fields.size() < 3) {
    error = "expected <family> <kinds> <edges>";
    return false;
  }
  spec.family = std::string(fields[0]);
  if (fields[0].find_first_of("\"\\") != std::string_view::npos) {
    error = "bad family";
    return false;
  }
  if (!parse_kinds(fields[1], spec.kinds)) {
    error = "bad kinds '" + std::string(fields[1]) + "'";
    return false;
  }
  if (!parse_edges(fields[2], spec.edges)) {
    error = "bad edges '" + std::string(fields[2]) + "'";
    return false;
  }
  for (size_t i = 3; i < fields.size(); ++i) {
    const size_t equals = fields[i].find('=');
    bool good = equals != std::string_view::npos;
    if (good) {
      const std::string_view key = fields[i].substr(0, equals);
      std::string_view value = fields[i].substr(equals + 1);
      if (key == "build") {
        good = value == "after";
        spec.edges_after = true;
      } else if (key == "prio") {
        good = parse_pairs(value, spec.priorities);
      } else if (key == "useprio") {
        good = value == "1" || value == "0";
        spec.use_node_priority = value == "1";
      } else if (key == "lprio") {
        int priority = 0;
        good = take_int(value, priority) && value.empty();
        spec.launch_priority = priority;
      } else if (key == "pdlattr") {
        good = value == "1" || value == "0";
        spec.pdl_attribute = value == "1";
      } else if (key == "attr") {
        good = parse_traits(value, spec.traits);
      } else if (key == "flags") {
        good = take_int(value, spec.flags) && value.empty() && spec.flags >= 0;
      } else if (key == "bytes") {
        int bytes = 0;
        good = take_int(value, bytes) && value.empty() && bytes >= 0 && bytes % 4 == 0;
        spec.extra_bytes = good ? static_cast<size_t>(bytes) : 0;
      } else if (key == "rows") {
        good = take_int(value, spec.rows) && value.empty() && spec.rows >= 1 && spec.rows <= 1024;
      } else if (key == "element") {
        good = take_int(value, spec.element_bytes) && value.empty() &&
               (spec.element_bytes == 1 || spec.element_bytes == 2 || spec.element_bytes == 4);
      } else if (key == "value") {
        good = take_int(value, spec.memset_value) && value.empty() && spec.memset_value >= 0;
      } else if (key == "offset") {
        int offset = 0;
        good = take_int(value, offset) && value.empty() && offset >= 0 && offset < 4096;
        spec.offset_bytes = good ? static_cast<size_t>(offset) : 0;
      } else if (key == "copykind") {
        good = value == "default";
        spec.default_copy_kind = true;
      } else if (key == "pageable") {
        good = value == "1";
        spec.pageable = true;
      } else if (key == "body") {
        good = parse_body(value, spec);
      } else if (key == "free") {
        good = parse_pairs(value, spec.frees);
      } else {
        good = false;
      }
    }
    if (!good) {
      error = "bad field '" + std::string(fields[i]) + "'";
      return false;
    }
  }
  error = normalise(spec);
  return error.empty();
}

std::string print_line(const GraphSpec& spec) {
  std::string out = spec.family + ' ' + print_kinds(spec.kinds) + ' ' + print_edges(spec.edges);
  const auto print_pairs = [&out](const char* key, const std::map<int, int>& pairs) {
    if (pairs.empty()) return;
    out += key;
    bool first = true;
    for (const auto& [a, b] : pairs) {
      if (!first) out += ',';
      first = false;
      out += std::to_string(a) + ':' + std::to_string(b);
    }
  };
  if (spec.edges_after) out += " build=after";
  print_pairs(" prio=", spec.priorities);
  if (spec.use_node_priority) out += " useprio=1";
  if (spec.launch_priority) out += " lprio=" + std::to_string(*spec.launch_priority);
  if (!spec.pdl_attribute) out += " pdlattr=0";
  print_pairs(" free=", spec.frees);
  bool first_trait = true;
  for (const auto& [node, trait] : spec.traits) {
    out += (first_trait ? " attr=" : ",") + std::to_string(node) + ':' + std::string(trait_name(trait));
    first_trait = false;
  }
  if (spec.flags != 0) out += " flags=" + std::to_string(spec.flags);
  if (spec.extra_bytes != 0) out += " bytes=" + std::to_string(spec.extra_bytes);
  if (spec.rows != 1) out += " rows=" + std::to_string(spec.rows);
  if (spec.element_bytes != 4) out += " element=" + std::to_string(spec.element_bytes);
  if (spec.memset_value != 0) out += " value=" + std::to_string(spec.memset_value);
  if (spec.offset_bytes != 0) out += " offset=" + std::to_string(spec.offset_bytes);
  if (spec.default_copy_kind) out += " copykind=default";
  if (spec.pageable) out += " pageable=1";
  for (const BodyRef& body : body_paths(spec)) {
    // The path of a body names it; the key that makes it says only which node it is appended to.
    std::string path = body.path;
    const size_t dot = path.rfind('.');
    const size_t hash = path.rfind('#');
    if (hash != std::string::npos && (dot == std::string::npos || hash > dot)) path.resize(hash);
    out += " body=" + path + ':' + print_kinds(body.spec->kinds) + '/' + print_edges(body.spec->edges);
  }
  return out;
}

std::vector<BodyRef> body_paths(const GraphSpec& spec) {
  std::vector<BodyRef> out;
  list_bodies(spec, "", out);
  return out;
}

std::string to_json(const GraphSpec& spec, const Measured& measured) {
  std::string out = "{\"family\":\"" + spec.family + "\",";  // parse_line() admits no quote in it
  append_edges(out, spec);
  if (measured.error.empty()) {
    out += ",\"streams\":";
    append_ints(out, measured.streams);
  } else {
    out += ",\"error\":\"" + measured.error + '"';
  }
  append_kinds(out, spec);
  if (!spec.priorities.empty()) {
    std::vector<int> priorities(spec.kinds.size(), 0);
    for (const auto& [node, priority] : spec.priorities) priorities[static_cast<size_t>(node)] = priority;
    out += ",\"priorities\":";
    append_ints(out, priorities);
  }
  if (!spec.frees.empty()) {
    out += ",\"frees\":[";
    bool first = true;
    for (const auto& [node, alloc] : spec.frees) {
      if (!first) out += ',';
      first = false;
      out += '[' + std::to_string(node) + ',' + std::to_string(alloc) + ']';
    }
    out += ']';
  }
  if (spec.use_node_priority) out += ",\"use_node_priority\":true";
  if (spec.launch_priority) out += ",\"launch_priority\":" + std::to_string(*spec.launch_priority);
  if (spec.edges_after) out += ",\"build\":\"after\"";
  if (!spec.pdl_attribute) out += ",\"pdl_attribute\":false";
  if (!spec.traits.empty()) {
    out += ",\"attributes\":[";
    bool first = true;
    for (const auto& [node, trait] : spec.traits) {
      if (!first) out += ',';
      first = false;
      out += '[' + std::to_string(node) + ",\"" + std::string(trait_name(trait)) + "\"]";
    }
    out += ']';
  }
  if (spec.flags != 0) out += ",\"flags\":" + std::to_string(spec.flags);
  if (spec.extra_bytes != 0) out += ",\"extra_bytes\":" + std::to_string(spec.extra_bytes);
  if (spec.rows != 1) out += ",\"rows\":" + std::to_string(spec.rows);
  if (spec.element_bytes != 4) out += ",\"element_bytes\":" + std::to_string(spec.element_bytes);
  if (spec.memset_value != 0) out += ",\"memset_value\":" + std::to_string(spec.memset_value);
  if (spec.offset_bytes != 0) out += ",\"offset_bytes\":" + std::to_string(spec.offset_bytes);
  if (spec.default_copy_kind) out += ",\"copy_kind\":\"default\"";
  if (spec.pageable) out += ",\"pageable\":true";
  const std::vector<BodyRef> bodies = body_paths(spec);
  if (!bodies.empty()) {
    out += ",\"bodies\":[";
    for (size_t i = 0; i < bodies.size(); ++i) {
      if (i > 0) out += ',';
      out += "{\"path\":\"" + bodies[i].path + "\",";
      append_edges(out, *bodies[i].spec);
      if (measured.error.empty() && i < measured.body_streams.size()) {
        out += ",\"streams\":";
        append_ints(out, measured.body_streams[i]);
      }
      append_kinds(out, *bodies[i].spec);
      out += '}';
    }
    out += ']';
  }
  out += '}';
  return out;
}

}  // namespace cglint::gpu
