#include "report/text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/text.h"
#include "engine/rule.h"

namespace cglint::report {
namespace {

using base::printable;
using engine::Finding;
using engine::Severity;

constexpr std::size_t kMaxLayerRanges = 8;  // shown in "repeats"; the JSON report lists all layers

class Painter {
 public:
  explicit Painter(bool on) : on_(on) {}
  [[nodiscard]] std::string bold(std::string_view text) const { return paint("1", text); }
  [[nodiscard]] std::string dim(std::string_view text) const { return paint("2", text); }
  [[nodiscard]] std::string code(Severity severity, std::string_view text) const {
    return paint(severity == Severity::error ? "1;31" : severity == Severity::warning ? "1;33" : "1;36", text);
  }
  [[nodiscard]] std::string good(std::string_view text) const { return paint("32", text); }

 private:
  [[nodiscard]] std::string paint(std::string_view sequence, std::string_view text) const {
    return on_ ? fmt::format("\x1b[{}m{}\x1b[0m", sequence, text) : std::string(text);
  }
  bool on_;
};

std::string source_text(const engine::SourceLocation& source) {
  std::string text = printable(source.file);
  if (source.line != 0) text += fmt::format(":{}", source.line);
  if (!source.function.empty()) text += fmt::format(" ({})", printable(source.function));
  if (source.generated) text += " [generated code]";
  return text;
}

std::string evidence_text(const engine::EvidenceValue& value) {
  struct Visitor {
    std::string operator()(std::int64_t v) const { return fmt::format("{}", v); }
    std::string operator()(double v) const { return fmt::format("{:.6g}", v); }
    std::string operator()(bool v) const { return v ? "yes" : "no"; }
    std::string operator()(const std::string& v) const { return printable(v); }
    std::string operator()(const std::vector<std::string>& v) const {
      std::string text;
      for (const std::string& item : v) text += (text.empty() ? "" : ", ") + printable(item);
      return text;
    }
    std::string operator()(const std::map<std::int64_t, std::int64_t>& v) const {
      std::string text = "{";
      for (const auto& [key, count] : v) text += fmt::format("{}{}: {}", text.size() > 1 ? ", " : "", key, count);
      return text + "}";
    }
  };
  return std::visit(Visitor(), value);
}

std::string entity_text(const engine::Entity& entity) {
  std::string text = entity.role.empty() ? std::string() : printable(entity.role) + " ";
  text += printable(entity.label, 80);
  if (entity.kind == engine::Entity::Kind::node) text += fmt::format(" (node {}", entity.source_id);
  else if (entity.kind == engine::Entity::Kind::edge) text += fmt::format(" (edge {}", entity.id);
  else if (entity.kind == engine::Entity::Kind::sync_op) text += fmt::format(" (sync {}", entity.id);
  else return text;
  if (entity.layer >= 0) text += fmt::format(", layer {}", entity.layer);
  return text + ")";
}

void render_finding(std::string& out, const Finding& finding, const Painter& paint, bool quiet) {
  const std::string place = finding.sources.empty() ? printable(finding.file) : source_text(finding.sources.front());
  out += fmt::format("{}: {} {}{}\n", paint.bold(place), paint.code(finding.severity, finding.code),
                     printable(finding.message, 2000),
                     finding.suppressed ? paint.dim(fmt::format(" [suppressed: {}]", printable(finding.suppression_reason))) : "");
  if (quiet) return;
  std::string where = fmt::format("{} {}", finding.slug, severity_name(finding.severity));
  if (finding.confidence != engine::Confidence::certain) where += fmt::format(" ({})", confidence_name(finding.confidence));
  if (!finding.graph_name.empty()) where += fmt::format(", graph {}", printable(finding.graph_name));
  if (!finding.sources.empty()) where += fmt::format(", {}", printable(finding.file));
  if (finding.graph_instances > 1) {
    where += fmt::format(", the same in {} graphs", finding.graph_instances);
    if (!finding.also_in.empty()) {
      where += ": ";
      for (std::size_t i = 0; i < finding.also_in.size(); ++i) where += (i == 0 ? "" : ", ") + printable(finding.also_in[i]);
      if (finding.also_in.size() + 1 < finding.graph_instances) where += ", ...";
    }
  }
  out += "    " + paint.dim(where) + "\n";
  const auto line = [&](std::string_view label, const std::string& text) {
    out += fmt::format("    {} {}\n", paint.dim(fmt::format("{:<9}", fmt::format("{}:", label))), text);
  };
  for (const auto& [name, value] : finding.evidence) {
    std::string label = name;
    std::replace(label.begin(), label.end(), '_', ' ');
    line("evidence", fmt::format("{}: {}", label, evidence_text(value)));
  }
  for (const engine::Entity& entity : finding.primary) line("at", entity_text(entity));
  for (const engine::Entity& entity : finding.related) line("with", entity_text(entity));
  for (std::size_t i = 1; i < finding.sources.size(); ++i)
    line("source", source_text(finding.sources[i]) + (finding.sources[i].role.empty() ? "" : ": " + printable(finding.sources[i].role)));
  if (finding.occurrence_count > 1) {
    std::string layers;
    int first = -2, previous = -2;
    std::size_t ranges = 0;
    const auto flush = [&] {
      if (first < 0 || ranges > kMaxLayerRanges) return;
      if (ranges++ == kMaxLayerRanges) {  // every other layer of a deep model would fill the screen
        layers += ", ...";
        return;
      }
      layers += fmt::format("{}{}", layers.empty() ? "" : ", ", first);
      if (previous != first) layers += fmt::format("-{}", previous);
    };
    // Where only the first occurrences were kept, their layers are not those of all.
    const bool all_kept = finding.occurrences.size() >= finding.occurrence_count;
    for (const engine::Occurrence& occurrence : finding.occurrences) {
      if (!all_kept || occurrence.layer < 0 || occurrence.layer == previous) continue;
      if (occurrence.layer != previous + 1) {
        flush();
        first = occurrence.layer;
      }
      previous = occurrence.layer;
    }
    flush();
    line("repeats", fmt::format("{} times{}", finding.occurrence_count, layers.empty() ? "" : ", in layers " + layers));
  }
  switch (finding.cost.basis) {
    case engine::Cost::Basis::none: break;
    case engine::Cost::Basis::measured:
    case engine::Cost::Basis::estimate:
      line("cost", fmt::format("{:.1f} of {:.1f} us per replay ({}{})", finding.cost.us, finding.cost.of_us,
                               cost_basis_name(finding.cost.basis),
                               finding.cost.spread_us > 0 ? fmt::format(", +/- {:.1f} us", finding.cost.spread_us) : ""));
  }
  if (!finding.fix.text.empty()) line("fix", printable(finding.fix.text, 4000));
  for (const std::string& effect : finding.fix.side_effects) line("beware", printable(effect, 1000));
  if (finding.verification != engine::Verification::not_tried) line("verified", std::string(verification_name(finding.verification)));
}

std::string statistics_table(const engine::Report& report) {
  std::map<std::string, std::pair<std::size_t, std::size_t>> counts;
  for (const Finding& finding : report.findings) {
    auto& [findings, occurrences] = counts[finding.code + " " + finding.slug];
    ++findings;
    occurrences += finding.occurrence_count;
  }
  std::string out;
  for (const auto& [rule, count] : counts)
    out += fmt::format("{:>6}  {:>8}  {}\n", count.first, count.second, rule);
  return out.empty() ? out : fmt::format("{:>6}  {:>8}  rule\n", "count", "repeats") + out;
}

// What was lost, joined or empty, per input.
void append_inputs(std::string& out, const engine::Report& report) {
  for (const engine::InputSummary& input : report.inputs) {
    for (const auto& loss : input.losses) {
      std::string facts;
      for (int i = 0; i < ir::kFactCount; ++i)
        if (loss.facts.contains(static_cast<ir::Fact>(i)))
          facts += fmt::format("{}{}", facts.empty() ? "; spoils " : ", ", ir::fact_name(static_cast<ir::Fact>(i)));
      out += fmt::format("{}: {}: {}{}{}{}\n", printable(input.file), loss.severity == "data_loss" ? "data loss" : loss.severity, printable(loss.what, 1000),
                         loss.count > 1 ? fmt::format(" ({} times)", loss.count) : "",
                         loss.offset_bytes != ~std::uint64_t{0} ? fmt::format(" (first at byte {})", loss.offset_bytes) : "", facts);
    }
    for (const auto& join : input.joins)
      out += fmt::format("{}: graph {} joined with {} of {} by {}: {} of {} operations in {} matched{}{}{}\n", printable(input.file), printable(join.graph),
                         printable(join.timeline_graph), printable(join.timeline_file), join.by_id ? "node id" : "kernel sequence", join.matched,
                         join.operations, base::count_of(join.replays, "launch", "launches"),
                         join.ambiguous > 0 ? fmt::format(", {} ambiguous", join.ambiguous) : "",
                         join.out_of_order > 0 ? fmt::format(", {} out of order", join.out_of_order) : "",
                         join.doubt.empty() ? "" : fmt::format("; doubtful: {}", printable(join.doubt, 1000)));
    if (!input.join_problem.empty()) out += fmt::format("{}: {}\n", printable(input.file), printable(input.join_problem, 1000));
    if (input.nothing_to_check)
      out += fmt::format("{}: nothing to check: {}\n", printable(input.file), printable(input.nothing_reason, 1000));
  }
}

// One line for each thing that is missing, with the rules that need it; what most rules need comes first. A rule that misses several
// things is in several lines.
void append_not_checked(std::string& out, const engine::Report& report, const Painter& paint) {
  std::map<std::pair<std::string, bool>, std::map<std::string, std::set<std::string>>> inputs;  // (file, asked for) -> reason -> codes
  for (const engine::NotChecked& entry : report.not_checked)
    for (const std::string& reason : entry.reasons) inputs[{entry.file, entry.requested}][reason].insert(entry.code);
  for (const auto& [key, codes_by_reason] : inputs) {
    const auto& [file, requested] = key;
    std::vector<std::pair<std::string, std::set<std::string>>> lines(codes_by_reason.begin(), codes_by_reason.end());
    std::stable_sort(lines.begin(), lines.end(), [](const auto& a, const auto& b) { return a.second.size() > b.second.size(); });
    for (const auto& [reason, codes] : lines)
      out += fmt::format("{}: {}{} ({}): {}\n", printable(file), paint.bold("not checked"), requested ? " although asked for" : "", printable(reason, 1000),
                         fmt::join(codes, ", "));
  }
}

// The same in numbers, for --statistics: what could not be checked is never left out, but its reasons are.
void append_unchecked_counts(std::string& out, const engine::Report& report) {
  std::map<std::pair<bool, std::string>, std::set<std::string>> inputs_by_code;  // asked for, code
  for (const engine::NotChecked& entry : report.not_checked) inputs_by_code[{entry.requested, entry.code}].insert(entry.file);
  std::map<std::pair<bool, std::size_t>, std::string> codes_by_count;
  for (const auto& [key, files] : inputs_by_code) {
    std::string& codes = codes_by_count[{key.first, files.size()}];
    codes += (codes.empty() ? "" : ", ") + key.second;
  }
  for (const auto& [key, codes] : codes_by_count)
    out += fmt::format("not checked{} in {}: {}\n", key.first ? " although asked for" : "", base::count_of(key.second, "input"), codes);
  std::size_t lossy = 0, empty = 0;
  for (const engine::InputSummary& input : report.inputs) {
    if (input.has_data_loss || input.has_error_loss) ++lossy;
    if (input.nothing_to_check) ++empty;
  }
  if (lossy > 0) out += fmt::format("{} lost data\n", base::count_of(lossy, "input"));
  if (empty > 0) out += fmt::format("{} with nothing to check\n", base::count_of(empty, "input"));
}

}  // namespace

std::string render_text(const engine::Report& report, const engine::Config& config, const TextOptions& options) {
  const Painter paint(options.colour);
  std::string out;
  if (options.statistics) {
    out += statistics_table(report);
  } else {
    std::map<std::string, const Finding*> by_fingerprint;
    for (const Finding& finding : report.findings) by_fingerprint.emplace(finding.fingerprint, &finding);
    const auto is_consequence = [&](const Finding& finding) {
      return std::any_of(finding.causes.begin(), finding.causes.end(), [&](const std::string& cause) { return by_fingerprint.contains(cause); });
    };
    for (const Finding& finding : report.findings) {
      if (is_consequence(finding)) continue;
      render_finding(out, finding, paint, options.quiet);
      if (options.quiet) continue;
      for (const Finding& consequence : report.findings)
        if (std::find(consequence.causes.begin(), consequence.causes.end(), finding.fingerprint) != consequence.causes.end() &&
            consequence.graph == finding.graph && consequence.file == finding.file)
          out += fmt::format("    {} {} {}\n", paint.dim("causes:  "), paint.code(consequence.severity, consequence.code),
                             printable(consequence.message, 2000));
      out += "\n";
    }
  }
  if (options.quiet) return out;

  if (options.statistics) {
    append_unchecked_counts(out, report);
  } else {
    append_inputs(out, report);
    append_not_checked(out, report, paint);
  }

  std::size_t counts[3] = {0, 0, 0};
  std::size_t suppressed = 0;
  for (const Finding& finding : report.findings) {
    if (finding.suppressed) ++suppressed;
    else ++counts[static_cast<int>(finding.severity)];
  }
  std::size_t graphs = 0, launches = 0;
  for (const engine::InputSummary& input : report.inputs) {
    for (const engine::GraphSummary& graph : input.graph_summaries) graphs += graph.instances;
    launches += input.graph_launches;
  }
  std::string summary;
  if (counts[0] + counts[1] + counts[2] == 0) {
    summary = "no findings";
  } else {
    for (const auto& [index, word] : {std::pair{2, "error"}, std::pair{1, "warning"}, std::pair{0, "note"}})
      if (counts[index] > 0) summary += (summary.empty() ? "" : ", ") + base::count_of(counts[index], word);
  }
  if (suppressed > 0) summary += fmt::format(", {} suppressed", suppressed);
  if (report.hidden_possible > 0) summary += fmt::format(", {} below the shown confidence (--confidence possible shows them)", report.hidden_possible);
  const bool clean = report.exit_code(config) == 0 && counts[0] + counts[1] + counts[2] == 0;
  out += fmt::format("{} in {}{}; {} of {} checked\n", clean && report.not_checked.empty() ? paint.good(summary) : summary, base::count_of(graphs, "graph"),
                     launches > 0 ? fmt::format(" ({})", base::count_of(launches, "launch", "launches")) : "",
                     report.rules_checked.size(), base::count_of(report.rules_run.size(), "rule"));
  return out;
}

}  // namespace cglint::report
