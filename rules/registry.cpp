// All rules, from rules.def. Explicit on purpose: linkers drop static initialisers from static libraries.
#include <array>

#include "engine/rule.h"

namespace cglint::rules {
#define CGLINT_RULE(code, family, slug) std::unique_ptr<engine::Rule> make_##slug();
#include "rules/rules.def"
#undef CGLINT_RULE
}  // namespace cglint::rules

namespace cglint::engine {

std::span<const std::unique_ptr<Rule>> all_rules() {
  static const auto rules = [] {
    std::vector<std::unique_ptr<Rule>> list;
#define CGLINT_RULE(code, family, slug) list.push_back(rules::make_##slug());
#include "rules/rules.def"
#undef CGLINT_RULE
    return list;
  }();
  return rules;
}

const Rule* find_rule(std::string_view code_or_slug) {
  for (const auto& rule : all_rules())
    if (rule->info().code == code_or_slug || rule->info().slug == code_or_slug) return rule.get();
  return nullptr;
}

}  // namespace cglint::engine
