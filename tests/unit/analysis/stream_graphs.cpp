#include "unit/analysis/stream_graphs.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <map>
#include <string_view>

namespace cglint::test_support {
namespace {

using analysis::StreamEdge;
using analysis::StreamEdgeType;
using analysis::StreamNodeKind;

std::string read_gzip(const std::string& path) {
  std::string text;
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) return text;
  std::string buffer(1 << 20, '\0');
  int got = 0;
  while ((got = gzread(file, buffer.data(), static_cast<unsigned>(buffer.size()))) > 0) {
    text.append(buffer, 0, static_cast<std::size_t>(got));
  }
  if (gzclose(file) != Z_OK || got < 0) text.clear();
  return text;
}

bool kind_of(char letter, StreamNodeKind& kind) {
  switch (letter) {
    case 'K':
      kind = StreamNodeKind::kernel;
      return true;
    case 'D':
      kind = StreamNodeKind::memcpy_on_device;
      return true;
    case 'C':
      kind = StreamNodeKind::memcpy_with_host;
      return true;
    case 'N':
      kind = StreamNodeKind::memset_large;
      return true;
    case 'M':
      kind = StreamNodeKind::memset;
      return true;
    case 'H':
      kind = StreamNodeKind::host;
      return true;
    case 'R':
      kind = StreamNodeKind::event_record;
      return true;
    case 'W':
      kind = StreamNodeKind::event_wait;
      return true;
    case 'B':
      kind = StreamNodeKind::batch_mem_op;
      return true;
    case 'E':
      kind = StreamNodeKind::empty;
      return true;
    case 'A':
      kind = StreamNodeKind::mem_alloc;
      return true;
    case 'F':
      kind = StreamNodeKind::mem_free;
      return true;
    case 'G':
      kind = StreamNodeKind::child_graph;
      return true;
    case 'I':
    case 'L':
    case 'S':
      kind = StreamNodeKind::conditional;
      return true;
    default:
      return false;
  }
}

// One number: a digit in base 62, or ~decimal; for 62 and more.
bool take_number(std::string_view& text, std::uint32_t& value) {
  if (text.empty()) return false;
  const char c = text.front();
  text.remove_prefix(1);
  if (c >= '0' && c <= '9') {
    value = static_cast<std::uint32_t>(c - '0');
  } else if (c >= 'a' && c <= 'z') {
    value = static_cast<std::uint32_t>(c - 'a') + 10;
  } else if (c >= 'A' && c <= 'Z') {
    value = static_cast<std::uint32_t>(c - 'A') + 36;
  } else if (c == '~') {
    value = 0;
    while (!text.empty() && text.front() != ';') {
      value = value * 10 + static_cast<std::uint32_t>(text.front() - '0');
      text.remove_prefix(1);
    }
    if (text.empty()) return false;
    text.remove_prefix(1);
  } else {
    return false;
  }
  return true;
}

std::string_view take_field(std::string_view& text) {
  const std::size_t end = std::min(text.find(' '), text.size());
  const std::string_view field = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return field;
}

// Three fields, whose nodes are appended to the graph's.
bool parse_nodes(std::string_view& text, MeasuredGraph& graph) {
  const auto base = static_cast<std::uint32_t>(graph.kinds.size());
  const std::string_view kinds = take_field(text);
  std::string_view edges = take_field(text), streams = take_field(text);
  if (kinds.empty()) return false;
  if (kinds.front() >= '0' && kinds.front() <= '9') {
    graph.kinds.resize(base + static_cast<std::size_t>(std::stoul(std::string(kinds))),
                       StreamNodeKind::kernel);
  } else {
    for (const char letter : kinds) {
      if (!kind_of(letter, graph.kinds.emplace_back())) return false;
    }
  }
  std::uint32_t node = base;
  while (!edges.empty()) {
    if (edges.front() == '.') {
      ++node;
      edges.remove_prefix(1);
      continue;
    }
    const bool later = edges.front() == '-';  // the parent has the larger index
    if (later) edges.remove_prefix(1);
    std::uint32_t distance = 0;
    if (!take_number(edges, distance)) return false;
    StreamEdge edge;
    edge.to = node;
    edge.from = later ? node + distance + 1 : node - distance - 1;
    while (!edges.empty() && (edges.front() == '\'' || edges.front() == '"')) {
      edge.type = edges.front() == '\'' ? StreamEdgeType::programmatic : StreamEdgeType::launch_order;
      edges.remove_prefix(1);
    }
    graph.edges.push_back(edge);
  }
  while (!streams.empty()) {
    if (streams.front() == '_') {
      graph.streams.push_back(-1);
      streams.remove_prefix(1);
      continue;
    }
    std::uint32_t stream = 0;
    if (!take_number(streams, stream)) return false;
    graph.streams.push_back(static_cast<std::int32_t>(stream));
  }
  return graph.streams.size() == graph.kinds.size();
}

bool parse(std::string_view line, MeasuredGraph& graph) {
  if (!parse_nodes(line, graph)) return false;
  std::map<std::string, std::uint32_t, std::less<>> first_of_body{{"", 0U}};
  while (!line.empty()) {
    std::string_view path = take_field(line);
    if (path.empty() || path.front() != '@') return false;
    path.remove_prefix(1);
    const std::size_t dot = path.rfind('.');
    const std::string_view outer = dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
    const auto found = first_of_body.find(outer);
    if (found == first_of_body.end()) return false;
    const auto node = static_cast<std::uint32_t>(
        std::stoul(std::string(dot == std::string_view::npos ? path : path.substr(dot + 1))));
    graph.owner.resize(graph.kinds.size(), analysis::kNoNode);
    first_of_body.emplace(path, static_cast<std::uint32_t>(graph.kinds.size()));
    if (!parse_nodes(line, graph)) return false;
    graph.owner.resize(graph.kinds.size(), found->second + node);
  }
  return true;
}

}  // namespace

std::vector<MeasuredGraph> read_stream_graphs(const std::string& path) {
  const std::string text = read_gzip(path);
  if (text.empty()) ADD_FAILURE() << path << " cannot be read";
  std::vector<MeasuredGraph> graphs;
  std::string family;
  std::string_view rest = text;
  std::size_t line_number = 0;
  while (!rest.empty()) {
    const std::size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    ++line_number;
    if (line.empty()) continue;
    if (line.front() == '=') {
      family = line.substr(1);
      continue;
    }
    MeasuredGraph graph;
    graph.family = family;
    graph.line = line_number;
    if (!parse(line, graph)) {
      ADD_FAILURE() << path << ':' << line_number << " cannot be read";
      return {};
    }
    graphs.push_back(std::move(graph));
  }
  return graphs;
}

bool same_partition(const MeasuredGraph& graph, const analysis::StreamPrediction& prediction) {
  std::map<std::int32_t, std::int32_t> to_predicted, to_measured;
  for (std::size_t v = 0; v < graph.streams.size(); ++v) {
    const std::int32_t measured = graph.streams[v], predicted = prediction.nodes[v].stream;
    if (measured < 0) continue;
    if (to_predicted.emplace(measured, predicted).first->second != predicted) return false;
    if (to_measured.emplace(predicted, measured).first->second != measured) return false;
  }
  return true;
}

bool same_numbers(const MeasuredGraph& graph, const analysis::StreamPrediction& prediction) {
  std::int32_t first_measured = 0, first_predicted = 0;
  for (std::size_t v = 0; v < graph.streams.size(); ++v) {
    if (graph.streams[v] < 0) continue;
    const std::int32_t measured = graph.streams[v], predicted = prediction.nodes[v].stream;
    if (measured > 0 && (first_measured == 0 || measured < first_measured)) first_measured = measured;
    if (predicted > 0 && (first_predicted == 0 || predicted < first_predicted)) first_predicted = predicted;
  }
  for (std::size_t v = 0; v < graph.streams.size(); ++v) {
    if (graph.streams[v] < 0) continue;
    const std::int32_t measured = graph.streams[v], predicted = prediction.nodes[v].stream;
    if ((measured == 0) != (predicted == 0)) return false;
    if (measured != 0 && measured - first_measured != predicted - first_predicted) return false;
  }
  return true;
}

}  // namespace cglint::test_support
