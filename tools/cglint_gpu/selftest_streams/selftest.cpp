#include "selftest_streams/selftest.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>

#include "analysis/stream_model.h"

namespace cglint::gpu {
namespace {

using cglint::analysis::StreamEdge;
using cglint::analysis::StreamEdgeType;
using cglint::analysis::StreamNodeKind;

bool parse_ints(std::string_view text, std::vector<int>& values) {
  while (true) {
    int value = 0;
    const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
    if (result.ec != std::errc{}) return false;
    values.push_back(value);
    text.remove_prefix(static_cast<size_t>(result.ptr - text.data()));
    if (text.empty()) return true;
    if (text.front() != ',') return false;
    text.remove_prefix(1);
  }
}

// Of the one row, as build_graph() makes it: node i moves 4 * (i + 1) bytes and what the line adds.
uint64_t memset_bytes(const GraphSpec& spec, int index) {
  return spec.extra_bytes + 4 * static_cast<uint64_t>(index + 1);
}

StreamNodeKind model_kind(const GraphSpec& spec, int index) {
  const NodeKind kind = spec.kinds[static_cast<size_t>(index)];
  switch (kind) {
    case NodeKind::kKernel:
      return StreamNodeKind::kernel;
    case NodeKind::kMemset:
      return spec.rows == 1 && memset_bytes(spec, index) <= cglint::analysis::kSmallMemsetBytes
                 ? StreamNodeKind::memset
                 : StreamNodeKind::memset_large;
    case NodeKind::kMemcpyDtoD:
      return StreamNodeKind::memcpy_on_device;
    case NodeKind::kMemcpyHtoD:
    case NodeKind::kMemcpyDtoH:
      return StreamNodeKind::memcpy_with_host;
    case NodeKind::kEmpty:
      return StreamNodeKind::empty;
    case NodeKind::kHost:
      return StreamNodeKind::host;
    case NodeKind::kEventRecord:
      return StreamNodeKind::event_record;
    case NodeKind::kEventWait:
      return StreamNodeKind::event_wait;
    case NodeKind::kMemAlloc:
      return StreamNodeKind::mem_alloc;
    case NodeKind::kMemFree:
      return StreamNodeKind::mem_free;
    case NodeKind::kBatchMemOp:
      return StreamNodeKind::batch_mem_op;
    case NodeKind::kChild:
      return StreamNodeKind::child_graph;
    case NodeKind::kIf:
    case NodeKind::kWhile:
    case NodeKind::kSwitch:
      return StreamNodeKind::conditional;
  }
  return StreamNodeKind::other;
}

struct ModelGraph {
  std::vector<StreamNodeKind> kinds;
  std::vector<StreamEdge> edges;
  std::vector<uint32_t> owner;
  std::vector<uint32_t>
      listed;  // the model's node for each node as all_streams() has them; kNoNode: no claim
};

// Bodies of conditional nodes leave no records, and the model says nothing about them.
void append_unclaimed(const GraphSpec& spec, ModelGraph& out) {
  out.listed.insert(out.listed.end(), static_cast<size_t>(total_nodes(spec)), cglint::analysis::kNoNode);
}

// The nodes of `spec`, which is the body of `owner`, and of the bodies inside it, in the order of
// body_paths().
void append(const GraphSpec& spec, uint32_t owner, ModelGraph& out) {
  const auto base = static_cast<uint32_t>(out.kinds.size());
  for (int v = 0; v < spec.size(); ++v) {
    out.listed.push_back(base + static_cast<uint32_t>(v));
    out.kinds.push_back(model_kind(spec, v));
    out.owner.push_back(owner);
  }
  for (const Edge& edge : spec.edges) {
    const StreamEdgeType type = edge.type == EdgeType::kDefault        ? StreamEdgeType::full
                                : edge.type == EdgeType::kProgrammatic ? StreamEdgeType::programmatic
                                                                       : StreamEdgeType::launch_order;
    out.edges.push_back(
        {base + static_cast<uint32_t>(edge.from), base + static_cast<uint32_t>(edge.to), type});
  }
  for (const auto& [node, bodies] : spec.bodies) {
    const bool is_child = spec.kinds[static_cast<size_t>(node)] == NodeKind::kChild;
    for (const GraphSpec& body : bodies) {
      if (is_child)
        append(body, base + static_cast<uint32_t>(node), out);
      else
        append_unclaimed(body, out);
    }
  }
}

// The streams of a measured graph, bodies behind it.
std::vector<int> all_streams(const Measured& measured) {
  std::vector<int> out = measured.streams;
  for (const std::vector<int>& body : measured.body_streams) out.insert(out.end(), body.begin(), body.end());
  return out;
}

std::string kind_of(const GraphSpec& spec) {
  return spec.family.substr(0, spec.family.find('/'));
}

}  // namespace

std::string parse_reference(std::string_view text, std::vector<ReferenceGraph>& graphs) {
  size_t number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.empty() || line.front() == '#') continue;
    ReferenceGraph graph;
    const size_t arrow = line.find(" => ");
    std::string error;
    graph.line = std::string(line.substr(0, arrow));
    if (!parse_line(graph.line, graph.spec, error)) return "line " + std::to_string(number) + ": " + error;
    if (arrow != std::string_view::npos) {
      if (!parse_ints(line.substr(arrow + 4), graph.streams) ||
          static_cast<int>(graph.streams.size()) != total_nodes(graph.spec)) {
        return "line " + std::to_string(number) + ": bad streams";
      }
    }
    graphs.push_back(std::move(graph));
  }
  return "";
}

std::vector<int> predict(const GraphSpec& spec, unsigned driver_major) {
  ModelGraph graph;
  append(spec, cglint::analysis::kNoNode, graph);
  const cglint::analysis::StreamPrediction prediction =
      cglint::analysis::predict_streams({graph.kinds, graph.edges, graph.owner}, driver_major);
  if (!prediction.valid) return {};
  std::vector<int> out;
  for (const uint32_t node : graph.listed)
    out.push_back(node == cglint::analysis::kNoNode ? -1 : prediction.nodes[node].stream);
  return out;
}

bool same_partition(const std::vector<int>& measured, const std::vector<int>& other) {
  if (measured.size() != other.size()) return false;
  std::map<int, int> there;
  std::map<int, int> back;
  for (size_t i = 0; i < measured.size(); ++i) {
    if (measured[i] < 0) continue;  // no record: nothing known about this node
    if (other[i] < 0) return false;
    if (there.emplace(measured[i], other[i]).first->second != other[i]) return false;
    if (back.emplace(other[i], measured[i]).first->second != measured[i]) return false;
  }
  return true;
}

bool SelftestResult::holds() const {
  return measured * 2 > graphs && new_mismatches() == 0;
}

int SelftestResult::new_mismatches() const {
  int count = 0;
  for (const KindResult& kind : kinds) count += kind.new_mismatches;
  return count;
}

SelftestResult judge(const std::vector<ReferenceGraph>& graphs, const std::vector<Measured>& measured,
                     unsigned driver_major) {
  SelftestResult out;
  std::map<std::string, KindResult> kinds;
  out.graphs = static_cast<int>(graphs.size());
  for (size_t i = 0; i < graphs.size(); ++i) {
    const ReferenceGraph& graph = graphs[i];
    KindResult& kind = kinds[kind_of(graph.spec)];
    ++kind.graphs;
    if (i >= measured.size() || !measured[i].error.empty()) {
      out.refused.push_back(graph.line + ": " + (i < measured.size() ? measured[i].error : "not measured"));
      continue;
    }
    ++kind.measured;
    ++out.measured;
    const std::vector<int> streams = all_streams(measured[i]);
    if (!graph.streams.empty()) {
      ++kind.with_reference;
      if (same_partition(streams, graph.streams)) ++kind.as_reference;
    }
    const std::vector<int> predicted = predict(graph.spec, driver_major);
    if (predicted.empty()) continue;
    ++kind.covered;
    if (same_partition(streams, predicted)) {
      ++kind.agree;
      continue;
    }
    const bool known = !graph.streams.empty() && !same_partition(graph.streams, predicted);
    ++(known ? kind.known_gaps : kind.new_mismatches);
    out.mismatches.push_back({graph.line, streams, predicted, graph.streams, known});
  }
  for (auto& [name, kind] : kinds) {
    kind.kind = name;
    out.kinds.push_back(std::move(kind));
  }
  std::stable_sort(out.mismatches.begin(), out.mismatches.end(), [](const Mismatch& a, const Mismatch& b) {
    return std::pair(a.known_gap, a.measured.size()) < std::pair(b.known_gap, b.measured.size());
  });
  return out;
}

}  // namespace cglint::gpu
