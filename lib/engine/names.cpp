#include "engine/finding.h"
#include "engine/rule.h"

namespace cglint::engine {

std::string_view severity_name(Severity severity) {
  switch (severity) {
    case Severity::info: return "info";
    case Severity::warning: return "warning";
    case Severity::error: return "error";
  }
  return "warning";
}

std::optional<Severity> severity_from_name(std::string_view name) {
  for (const Severity severity : {Severity::info, Severity::warning, Severity::error})
    if (severity_name(severity) == name) return severity;
  return std::nullopt;
}

std::string_view confidence_name(Confidence confidence) {
  switch (confidence) {
    case Confidence::possible: return "possible";
    case Confidence::likely: return "likely";
    case Confidence::certain: return "certain";
  }
  return "possible";
}

std::optional<Confidence> confidence_from_name(std::string_view name) {
  for (const Confidence confidence : {Confidence::possible, Confidence::likely, Confidence::certain})
    if (confidence_name(confidence) == name) return confidence;
  return std::nullopt;
}

std::string_view cost_basis_name(Cost::Basis basis) {
  switch (basis) {
    case Cost::Basis::none: return "none";
    case Cost::Basis::estimate: return "estimate";
    case Cost::Basis::measured: return "measured";
  }
  return "none";
}

std::string_view edit_kind_name(Edit::Kind kind) {
  switch (kind) {
    case Edit::Kind::move_later: return "move_later";
    case Edit::Kind::drop_node: return "drop_node";
    case Edit::Kind::drop_edge: return "drop_edge";
    case Edit::Kind::add_edge: return "add_edge";
    case Edit::Kind::set_attribute: return "set_attribute";
  }
  return "move_later";
}

std::string_view verification_name(Verification verification) {
  switch (verification) {
    case Verification::not_tried: return "not_tried";
    case Verification::verified: return "verified";
    case Verification::no_gain: return "no_gain";
    case Verification::wrong: return "wrong";
    case Verification::refused: return "refused";
  }
  return "not_tried";
}

std::string_view rule_status_name(RuleStatus status) {
  switch (status) {
    case RuleStatus::preview: return "preview";
    case RuleStatus::stable: return "stable";
    case RuleStatus::deprecated: return "deprecated";
    case RuleStatus::removed: return "removed";
  }
  return "stable";
}

}  // namespace cglint::engine
