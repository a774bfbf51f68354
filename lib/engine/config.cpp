#include "engine/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/text.h"
#include "engine/rule.h"

namespace cglint::engine {
namespace {

using base::ErrorCode;
using base::make_error;

bool is_prefix_selector(std::string_view selector) { return selector.starts_with("CG"); }

bool matches(std::string_view selector, const RuleInfo& rule) {
  if (selector == "ALL") return true;
  if (selector == rule.code || selector == rule.slug || selector == rule.family) return true;
  return is_prefix_selector(selector) && rule.code.starts_with(selector);
}

// How exactly a selector names the rule; the most exact of select and ignore wins, ignore on a tie (as in ruff).
int exactness(std::string_view selector, const RuleInfo& rule) {
  if (!matches(selector, rule)) return -1;
  if (selector == rule.code || selector == rule.slug) return 1000;
  if (selector == "ALL") return 0;
  if (selector == rule.family) return 500;
  return static_cast<int>(selector.size());
}

int best(const std::vector<std::string>& selectors, const RuleInfo& rule) {
  int value = -1;
  for (const std::string& selector : selectors) value = std::max(value, exactness(selector, rule));
  return value;
}

bool parses(const RuleOption& option, const std::string& value) {
  const char* const end = value.data() + value.size();
  const auto in_range = [&](double number) { return number >= option.min && number <= option.max; };  // false for NaN
  switch (option.type) {
    case RuleOption::Type::integer: {
      std::int64_t parsed = 0;
      const auto result = std::from_chars(value.data(), end, parsed);
      return result.ec == std::errc() && result.ptr == end && in_range(static_cast<double>(parsed));
    }
    case RuleOption::Type::number: {
      double parsed = 0;
      const auto result = std::from_chars(value.data(), end, parsed);
      return result.ec == std::errc() && result.ptr == end && in_range(static_cast<double>(parsed));
    }
    case RuleOption::Type::boolean: return value == "true" || value == "false";
    case RuleOption::Type::text: return true;
  }
  return false;
}

std::string option_value(const Config& config, const RuleInfo& rule, std::string_view option, RuleOption::Type type) {
  const auto it = std::find_if(rule.options.begin(), rule.options.end(),
                               [&](const RuleOption& candidate) { return candidate.name == option; });
  CGLINT_CHECK(it != rule.options.end() && it->type == type);
  const auto user = config.options.find(fmt::format("{}.{}", rule.code, option));
  return user != config.options.end() ? user->second : std::string(it->default_value);
}

base::Result<void> check_selectors(const std::vector<std::string>& selectors, std::string_view flag) {
  for (const std::string& selector : selectors) {
    const bool known = std::any_of(all_rules().begin(), all_rules().end(),
                                   [&](const auto& rule) { return matches(selector, rule->info()); });
    if (known) continue;
    std::vector<std::string_view> candidates{"ALL"};
    for (const auto& rule : all_rules()) {
      candidates.push_back(rule->info().code);
      candidates.push_back(rule->info().slug);
      candidates.push_back(rule->info().family);
    }
    std::string message = fmt::format("{}: no rule matches '{}'", flag, base::printable(selector));
    // "cg102", "cg1", "all": selectors tell capitals from small letters.
    std::string upper = selector;
    for (char& c : upper)
      if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
    const bool upper_known = std::any_of(all_rules().begin(), all_rules().end(), [&](const auto& rule) { return matches(upper, rule->info()); });
    if (const std::string_view near = upper_known ? std::string_view(upper) : base::closest(selector, candidates); !near.empty())
      message += fmt::format("; did you mean '{}'?", near);
    return make_error(ErrorCode::usage, message);
  }
  return {};
}

}  // namespace

bool Config::requested_by_name(const RuleInfo& rule) const {
  return std::any_of(select.begin(), select.end(), [&](const std::string& selector) {
    return selector == rule.code || selector == rule.slug;
  });
}

bool Config::selected(const RuleInfo& rule) const {
  if (rule.status == RuleStatus::removed) return false;
  // Giving the limit is asking for its rule.
  if (rule.opt_in) {
    const Rule* const known = find_rule(rule.code);
    return known != nullptr && known->active(*this);
  }
  const int chosen = select.empty() ? 0 : best(select, rule);
  return chosen >= 0 && chosen > best(ignore, rule);
}

std::int64_t Config::integer(const RuleInfo& rule, std::string_view option) const {
  const std::string value = option_value(*this, rule, option, RuleOption::Type::integer);
  std::int64_t parsed = 0;
  std::from_chars(value.data(), value.data() + value.size(), parsed);
  return parsed;
}

double Config::number(const RuleInfo& rule, std::string_view option) const {
  const std::string value = option_value(*this, rule, option, RuleOption::Type::number);
  double parsed = 0;
  std::from_chars(value.data(), value.data() + value.size(), parsed);
  return parsed;
}

bool Config::boolean(const RuleInfo& rule, std::string_view option) const {
  return option_value(*this, rule, option, RuleOption::Type::boolean) == "true";
}

std::string Config::text(const RuleInfo& rule, std::string_view option) const {
  return option_value(*this, rule, option, RuleOption::Type::text);
}

base::Result<void> validate(const Config& config) {
  CGLINT_TRY(check_selectors(config.select, "--select"));
  CGLINT_TRY(check_selectors(config.ignore, "--ignore"));
  bool any_selected = false;
  for (const auto& rule : all_rules()) {
    const RuleInfo& info = rule->info();
    any_selected = any_selected || config.selected(info);
    if (!info.opt_in) continue;
    const bool active = rule->active(config);
    if (!active && config.requested_by_name(info))
      return make_error(ErrorCode::usage, fmt::format("--select {}: {} runs only with its limit; see 'cglint explain {}'", info.code, info.slug, info.code));
    const auto ignored = std::find_if(config.ignore.begin(), config.ignore.end(), [&](const std::string& s) { return s == info.code || s == info.slug; });
    if (active && ignored != config.ignore.end())
      return make_error(ErrorCode::usage, fmt::format("--ignore {} contradicts the limit given for it", *ignored));
  }
  if (!any_selected) return make_error(ErrorCode::usage, "no rule is left to run; see --select and --ignore");
  for (const auto& [code, severity] : config.severity)
    if (find_rule(code) == nullptr) return make_error(ErrorCode::usage, fmt::format("no rule '{}'", base::printable(code)));
  for (const auto& [key, value] : config.options) {
    const std::size_t dot = key.find('.');
    const Rule* const rule = dot == std::string::npos ? nullptr : find_rule(std::string_view(key).substr(0, dot));
    if (rule == nullptr)
      return make_error(ErrorCode::usage,
                        fmt::format("--option {}: expected CODE.OPTION=VALUE with a known rule code", base::printable(key)));
    const std::string_view name = std::string_view(key).substr(dot + 1);
    const auto& options = rule->info().options;
    const auto it = std::find_if(options.begin(), options.end(), [&](const RuleOption& o) { return o.name == name; });
    if (it == options.end()) {
      std::vector<std::string_view> candidates;
      for (const RuleOption& option : options) candidates.push_back(option.name);
      std::string message = fmt::format("--option {}: {} has no option '{}'", base::printable(key), rule->info().code, base::printable(name));
      if (const std::string_view near = base::closest(name, candidates); !near.empty())
        message += fmt::format("; did you mean '{}'?", near);
      return make_error(ErrorCode::usage, message);
    }
    if (!parses(*it, value))
      return make_error(ErrorCode::usage, fmt::format("--option {}: '{}' is no {} in its range; see 'cglint explain {}'", base::printable(key), base::printable(value),
                                                      it->type == RuleOption::Type::integer ? "integer" : it->type == RuleOption::Type::number ? "number" : "value (true or false)",
                                                      rule->info().code));
  }
  return {};
}

}  // namespace cglint::engine
