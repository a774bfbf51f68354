#include "report/json.h"

#include <nlohmann/json.hpp>

#include "engine/rule.h"

namespace cglint::report {
namespace {

using Json = nlohmann::ordered_json;

Json facts_json(ir::FactSet facts) {
  Json list = Json::array();
  for (int i = 0; i < ir::kFactCount; ++i)
    if (facts.contains(static_cast<ir::Fact>(i))) list.push_back(ir::fact_name(static_cast<ir::Fact>(i)));
  return list;
}

std::string_view entity_kind(engine::Entity::Kind kind) {
  switch (kind) {
    case engine::Entity::Kind::node: return "node";
    case engine::Entity::Kind::edge: return "edge";
    case engine::Entity::Kind::sync_op: return "sync_op";
    case engine::Entity::Kind::stream: return "stream";
  }
  return "node";
}

Json entity_json(const engine::Entity& entity) {
  Json json = {{"kind", entity_kind(entity.kind)}, {"id", entity.id}, {"source_id", entity.source_id}, {"label", entity.label}};
  if (!entity.role.empty()) json["role"] = entity.role;
  if (entity.layer >= 0) json["layer"] = entity.layer;
  return json;
}

Json entities_json(const std::vector<engine::Entity>& entities) {
  Json list = Json::array();
  for (const engine::Entity& entity : entities) list.push_back(entity_json(entity));
  return list;
}

Json histogram_json(const std::map<std::int64_t, std::int64_t>& histogram) {
  Json json = Json::object();
  for (const auto& [key, count] : histogram) json[std::to_string(key)] = count;
  return json;
}

Json evidence_json(const engine::Evidence& evidence) {
  struct Visitor {
    Json operator()(const std::map<std::int64_t, std::int64_t>& value) const { return histogram_json(value); }
    Json operator()(const std::vector<std::string>& value) const { return value; }
    Json operator()(const std::string& value) const { return value; }
    Json operator()(std::int64_t value) const { return value; }
    Json operator()(double value) const { return value; }
    Json operator()(bool value) const { return value; }
  };
  Json json = Json::object();
  for (const auto& [name, value] : evidence) json[name] = std::visit(Visitor(), value);
  return json;
}

Json finding_json(const engine::Finding& finding) {
  Json json;
  json["code"] = finding.code;
  json["slug"] = finding.slug;
  json["severity"] = severity_name(finding.severity);
  json["confidence"] = confidence_name(finding.confidence);
  json["rests_on"] = facts_json(finding.rests_on);
  json["message"] = finding.message;
  json["file"] = finding.file;
  json["graph"] = finding.graph_name;
  json["graph_instances"] = finding.graph_instances;
  if (!finding.also_in.empty()) json["also_in"] = finding.also_in;
  json["evidence"] = evidence_json(finding.evidence);
  json["primary"] = entities_json(finding.primary);
  json["related"] = entities_json(finding.related);
  json["occurrence_count"] = finding.occurrence_count;
  Json occurrences = Json::array();
  for (const engine::Occurrence& occurrence : finding.occurrences) {
    Json item;
    if (occurrence.layer >= 0) item["layer"] = occurrence.layer;
    item["entities"] = entities_json(occurrence.entities);
    occurrences.push_back(std::move(item));
  }
  json["occurrences"] = std::move(occurrences);
  Json sources = Json::array();
  for (const engine::SourceLocation& source : finding.sources) {
    Json item = {{"file", source.file}};
    if (source.line != 0) item["line"] = source.line;
    if (!source.function.empty()) item["function"] = source.function;
    if (!source.role.empty()) item["role"] = source.role;
    if (source.generated) item["generated"] = true;
    sources.push_back(std::move(item));
  }
  json["sources"] = std::move(sources);
  json["cost"] = {{"basis", cost_basis_name(finding.cost.basis)}};
  if (finding.cost.basis != engine::Cost::Basis::none) {
    json["cost"]["us"] = finding.cost.us;
    json["cost"]["of_us"] = finding.cost.of_us;
    json["cost"]["spread_us"] = finding.cost.spread_us;
  }
  Json edits = Json::array();
  for (const engine::Edit& edit : finding.fix.edits) {
    Json item = {{"kind", edit_kind_name(edit.kind)}, {"nodes", edit.nodes}};
    if (edit.before != ~0U) item["before"] = edit.before;
    if (!edit.attribute.empty()) item["attribute"] = edit.attribute;
    edits.push_back(std::move(item));
  }
  json["fix"] = {{"text", finding.fix.text}, {"edits", std::move(edits)}, {"side_effects", finding.fix.side_effects}};
  json["verification"] = verification_name(finding.verification);
  json["causes"] = finding.causes;
  json["fingerprint"] = finding.fingerprint;
  json["suppressed"] = finding.suppressed;
  if (finding.suppressed) json["suppression_reason"] = finding.suppression_reason;
  if (!finding.threads.empty()) json["threads"] = finding.threads;
  return json;
}

Json input_json(const engine::InputSummary& input) {
  Json json;
  json["file"] = input.file;
  json["format"] = input.format;
  json["graph_launches"] = input.graph_launches;
  json["kernels_outside_graphs"] = input.loose_kernels;
  json["nothing_to_check"] = input.nothing_to_check;
  if (input.nothing_to_check) json["reason"] = input.nothing_reason;
  Json graphs = Json::array();
  for (const engine::GraphSummary& graph : input.graph_summaries) {
    Json item;
    item["name"] = graph.name;
    item["instances"] = graph.instances;
    item["nodes"] = graph.nodes;
    if (graph.has_edges) item["edges"] = graph.edges;
    item["launches"] = graph.replays;
    if (graph.streams_measured) {
      item["streams_measured"] = *graph.streams_measured;
      item["streams_kernels_only"] = *graph.streams_kernels_only;
      item["stream_histogram"] = histogram_json(graph.stream_histogram);
    }
    if (graph.streams_predicted) item["streams_predicted"] = *graph.streams_predicted;
    if (!graph.prediction_note.empty()) item["prediction_note"] = graph.prediction_note;
    if (graph.layers) item["layers"] = *graph.layers;
    graphs.push_back(std::move(item));
  }
  json["graphs"] = std::move(graphs);
  if (!input.joins.empty()) {
    Json joins = Json::array();
    for (const auto& join : input.joins) {
      joins.push_back({{"graph", join.graph}, {"timeline_file", join.timeline_file}, {"timeline_graph", join.timeline_graph}, {"by_id", join.by_id},
                       {"launches", join.replays}, {"operations", join.operations}, {"matched", join.matched}, {"ambiguous", join.ambiguous},
                       {"out_of_order", join.out_of_order}});
      if (!join.doubt.empty()) joins.back()["doubt"] = join.doubt;
    }
    json["joins"] = std::move(joins);
  }
  if (!input.join_problem.empty()) json["join_problem"] = input.join_problem;
  Json losses = Json::array();
  for (const auto& loss : input.losses) {
    Json item = {{"severity", loss.severity}, {"what", loss.what}, {"count", loss.count}};
    if (loss.offset_bytes != ~std::uint64_t{0}) item["offset_bytes"] = loss.offset_bytes;
    item["spoils"] = facts_json(loss.facts);
    losses.push_back(std::move(item));
  }
  json["losses"] = std::move(losses);
  return json;
}

std::string_view error_code_name(base::ErrorCode code) {
  switch (code) {
    case base::ErrorCode::usage: return "usage";
    case base::ErrorCode::not_found: return "not_found";
    case base::ErrorCode::io: return "io";
    case base::ErrorCode::unknown_format: return "unknown_format";
    case base::ErrorCode::foreign_format: return "foreign_format";
    case base::ErrorCode::malformed: return "malformed";
    case base::ErrorCode::unsupported: return "unsupported";
    case base::ErrorCode::limit: return "limit";
    case base::ErrorCode::internal: return "internal";
  }
  return "internal";
}

}  // namespace

std::string render_json(const engine::Report& report, const engine::Config& config, std::string_view tool_version) {
  Json json;
  json["format"] = "cglint-report";
  json["format_version"] = "1.0";
  json["tool"] = {{"name", "cglint"}, {"version", tool_version}};
  json["exit_code"] = report.exit_code(config);
  json["rules_run"] = report.rules_run;
  json["rules_checked"] = report.rules_checked;
  Json inputs = Json::array();
  for (const engine::InputSummary& input : report.inputs) inputs.push_back(input_json(input));
  json["inputs"] = std::move(inputs);
  Json findings = Json::array();
  for (const engine::Finding& finding : report.findings) findings.push_back(finding_json(finding));
  json["findings"] = std::move(findings);
  Json unchecked = Json::array();
  for (const engine::NotChecked& entry : report.not_checked) {
    Json item = {{"code", entry.code}, {"slug", entry.slug}, {"file", entry.file}, {"graph", entry.graph_name}};
    item["graph_count"] = entry.graph_count;
    item["missing"] = facts_json(entry.missing);
    item["reason"] = entry.reason();
    item["requested"] = entry.requested;
    unchecked.push_back(std::move(item));
  }
  json["not_checked"] = std::move(unchecked);
  json["hidden_below_confidence"] = report.hidden_possible;
  Json errors = Json::array();
  for (const base::Error& error : report.errors) {
    Json item = {{"code", error_code_name(error.code)}, {"message", error.message}, {"file", error.file}};
    if (error.offset_bytes != base::Error::kNoOffset) item["offset_bytes"] = error.offset_bytes;
    errors.push_back(std::move(item));
  }
  json["errors"] = std::move(errors);
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace cglint::report
