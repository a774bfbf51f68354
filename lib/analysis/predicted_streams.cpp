#include "analysis/predicted_streams.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>

#include "analysis/stream_graph.h"

namespace cglint::analysis {
namespace {

void add_note(std::string& note, std::string_view text) {
  if (!note.empty()) note += "; ";
  note += text;
}

// Why the model knows nothing about some nodes of the graph.
std::set<std::string> uncovered(const ir::Graph& graph, const StreamGraphColumns& columns) {
  std::set<std::string> reasons;
  for (std::uint32_t v = 0; v < columns.kinds.size(); ++v) {
    if (columns.kinds[v] != StreamNodeKind::other) continue;
    const ir::NodeKind kind = v < graph.node_count() ? graph.kind[ir::NodeId(v)] : ir::NodeKind::unknown;
    if (kind == ir::NodeKind::child_graph) {
      reasons.insert("a child graph whose body is not in the input");
    } else if (v < graph.node_count()) {
      reasons.insert(
          fmt::format("{} nodes were never measured for the stream model", ir::node_kind_name(kind)));
    } else {
      reasons.insert("a node in a child graph was never measured for the stream model");
    }
  }
  return reasons;
}

}  // namespace

std::optional<StreamRun> run_stream_model(const ir::Recording& recording, const ir::Graph& graph) {
  if (!graph.facts.contains_all({ir::Fact::nodes, ir::Fact::edges, ir::Fact::creation_order})) return std::nullopt;
  StreamRun run;
  run.columns = stream_graph(recording, graph);
  run.prediction = predict_streams(run.columns.view(), driver_major(recording, graph));
  return run;
}

PredictedStreams predict_streams(const ir::Recording& recording, const ir::Graph& graph) {
  return predicted_streams(recording, graph, run_stream_model(recording, graph));
}

PredictedStreams predicted_streams(const ir::Recording& recording, const ir::Graph& graph, const std::optional<StreamRun>& run) {
  PredictedStreams result;
  result.stream.assign(graph.node_count(), -1);
  if (!run) {
    result.note = "a prediction needs the nodes, their dependency edges and their creation order";
    return result;
  }
  const StreamGraphColumns& columns = run->columns;
  const std::uint32_t driver = driver_major(recording, graph);
  const StreamPrediction& prediction = run->prediction;
  if (!prediction.valid) {
    result.note = graph.child_graphs.empty() ? "the dependency edges form a cycle"
                                             : fmt::format("child graphs expand to more than {} dependencies",
                                                           kMaxInlinedDependencies);
    return result;
  }
  for (const StreamNodeKind kind : prediction.weak_kinds) {
    if (kind == StreamNodeKind::other) {
      for (const std::string& name : uncovered(graph, columns)) add_note(result.note, name);
    } else {
      add_note(result.note,
               fmt::format("{} nodes are not covered well by the stream model", stream_node_kind_name(kind)));
    }
  }
  result.confidence = prediction.confidence;
  if (prediction.confidence == 0) return result;
  if (driver == 0) {
    add_note(result.note, fmt::format("driver unknown; the stream model was measured on {}", kModel580.name));
  } else if (!prediction.driver_tested) {
    add_note(result.note,
             fmt::format("driver {} untested; the stream model was measured on {}", driver, kModel580.name));
  }
  if (!graph.facts.contains(ir::Fact::edge_data) && graph.edge_count() > 0)
    add_note(result.note, "edge types unknown, taken as full dependencies");
  if (std::find(columns.kinds.begin(), columns.kinds.end(), StreamNodeKind::conditional) !=
      columns.kinds.end())
    add_note(result.note, "streams of the bodies of conditional nodes are not known and not counted");
  if (columns.assumed_copies > 0) {
    add_note(result.note,
             fmt::format("{} {} of unknown direction taken as copies on the device", columns.assumed_copies,
                         columns.assumed_copies == 1 ? "copy" : "copies"));
  }
  if (columns.assumed_memsets > 0) {
    add_note(result.note, fmt::format("{} {} of unknown size taken as small", columns.assumed_memsets,
                                      columns.assumed_memsets == 1 ? "memset" : "memsets"));
  }
  result.available = true;
  result.count = prediction.count;
  for (const ir::NodeId node : graph.nodes()) result.stream[node] = prediction.nodes[node.index()].stream;
  return result;
}

}  // namespace cglint::analysis
