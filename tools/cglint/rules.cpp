// cglint rules, cglint explain CODE, cglint --capabilities
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "commands.h"
#include "engine/rule.h"
#include "import/common/importer.h"

namespace cglint::cli {
namespace {

std::string facts_text(ir::FactSet facts) {
  std::string text;
  for (int i = 0; i < ir::kFactCount; ++i)
    if (facts.contains(static_cast<ir::Fact>(i))) text += fmt::format("{}{}", text.empty() ? "" : ", ", ir::fact_name(static_cast<ir::Fact>(i)));
  return text;
}

std::string needs_text(const engine::RuleInfo& info) {
  std::string text;
  for (const ir::FactSet& alternative : info.needs) text += (text.empty() ? "" : "; or ") + facts_text(alternative);
  return text;
}

// The block above a rule's page, generated from its RuleInfo.
std::string header_text(const engine::RuleInfo& info) {
  std::string text = fmt::format("{} {}\n\n{}\n\nSeverity {}, status {}, since {}. Needs {}.{}\n", info.code, info.slug, info.summary,
                                 severity_name(info.severity), rule_status_name(info.status), info.since, needs_text(info),
                                 info.uses.empty() ? std::string() : fmt::format(" Uses, where present: {}.", facts_text(info.uses)));
  if (info.opt_in) text += "Runs only when its limit is given on the command line.\n";
  if (!info.options.empty()) {
    text += "\nOptions (--option " + std::string(info.code) + ".NAME=VALUE):\n";
    for (const engine::RuleOption& option : info.options)
      text += fmt::format("  {} = {}\n      {}\n", option.name, option.default_value, option.help);
  }
  return text;
}

int list_rules(const std::string& format) {
  if (format == "json") {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const auto& rule : engine::all_rules()) {
      const engine::RuleInfo& info = rule->info();
      nlohmann::ordered_json needs = nlohmann::ordered_json::array();
      for (const ir::FactSet& alternative : info.needs) {
        nlohmann::ordered_json names = nlohmann::ordered_json::array();
        for (int i = 0; i < ir::kFactCount; ++i)
          if (alternative.contains(static_cast<ir::Fact>(i))) names.push_back(ir::fact_name(static_cast<ir::Fact>(i)));
        needs.push_back(std::move(names));
      }
      nlohmann::ordered_json options = nlohmann::ordered_json::array();
      for (const engine::RuleOption& option : info.options)
        options.push_back({{"name", option.name}, {"default", option.default_value}, {"help", option.help}});
      list.push_back({{"code", info.code}, {"slug", info.slug}, {"family", info.family}, {"summary", info.summary},
                      {"severity", severity_name(info.severity)}, {"status", rule_status_name(info.status)}, {"since", info.since},
                      {"opt_in", info.opt_in}, {"needs", std::move(needs)}, {"options", std::move(options)}});
    }
    return write_output("", list.dump(2) + "\n") ? kExitClean : kExitUsage;
  }
  std::string text;
  if (format == "md") {
    text = "| code | name | family | severity | status | what it reports |\n|---|---|---|---|---|---|\n";
    for (const auto& rule : engine::all_rules()) {
      const engine::RuleInfo& info = rule->info();
      text += fmt::format("| {} | {} | {} | {} | {} | {} |\n", info.code, info.slug, info.family, severity_name(info.severity), rule_status_name(info.status), info.summary);
    }
  } else {
    for (const auto& rule : engine::all_rules()) {
      const engine::RuleInfo& info = rule->info();
      text += fmt::format("{}  {:<28} {:<8} {}\n", info.code, info.slug, severity_name(info.severity), info.summary);
    }
  }
  return write_output("", text) ? kExitClean : kExitUsage;
}

int explain(const std::string& name) {
  std::string upper = name;  // "cg101"
  for (char& c : upper)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  const engine::Rule* rule = engine::find_rule(name);
  if (rule == nullptr) rule = engine::find_rule(upper);
  if (rule == nullptr) {
    std::vector<std::string_view> candidates;
    for (const auto& known : engine::all_rules()) {
      candidates.push_back(known->info().code);
      candidates.push_back(known->info().slug);
    }
    const std::string_view near = base::closest(name, candidates);
    print_error(fmt::format("no rule '{}'{}", base::printable(name), near.empty() ? std::string("; 'cglint rules' lists them") : fmt::format("; did you mean '{}'?", near)));
    return kExitUsage;
  }
  return write_output("", header_text(rule->info()) + "\n" + std::string(engine::rule_page(rule->info().code))) ? kExitClean : kExitUsage;
}

}  // namespace

int print_capabilities() {
  std::string text = fmt::format("{:<34}", "rule");
  for (const auto& importer : import::all_importers()) text += fmt::format(" {:<12}", importer->name());
  text += "\n";
  for (const auto& rule : engine::all_rules()) {
    const engine::RuleInfo& info = rule->info();
    text += fmt::format("{} {:<28}", info.code, info.slug);
    for (const auto& importer : import::all_importers()) {
      const bool possible = std::any_of(info.needs.begin(), info.needs.end(), [&](const ir::FactSet& need) {
        return importer->can_supply().contains_all(need.minus({ir::Fact::moe_config_table}));  // comes from the command line
      });
      text += fmt::format(" {:<12}", possible ? "yes" : "-");
    }
    text += "\n";
  }
  text += "\n'yes': the format can hold the facts that the rule needs; a given file may lack them, and the report then says which.\n";
  for (const auto& importer : import::all_importers())
    text += fmt::format("{:<12} {}\n             facts: {}\n", importer->name(), importer->description(), facts_text(importer->can_supply()));
  return write_output("", text) ? kExitClean : kExitUsage;
}

void add_rules(CLI::App& app, Cli& cli) {
  auto format = std::make_shared<std::string>("text");
  CLI::App* const rules = app.add_subcommand("rules", "List all rules");
  rules->add_option("--format", *format, "text, md or json")->check(CLI::IsMember({"text", "md", "json"}))->capture_default_str();
  rules->callback([format, &cli] { cli.run = [format] { return list_rules(*format); }; });
}

void add_explain(CLI::App& app, Cli& cli) {
  auto code = std::make_shared<std::string>();
  CLI::App* const command = app.add_subcommand("explain", "Show a rule's page: what it reports, why, and how to fix it");
  command->add_option("code", *code, "Rule code or name")->required();
  command->callback([code, &cli] { cli.run = [code] { return explain(*code); }; });
}

}  // namespace cglint::cli
