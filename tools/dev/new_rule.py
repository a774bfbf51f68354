#!/usr/bin/env python3
"""Writes the folder of a new rule and its line in rules/rules.def.

usage: new_rule.py CODE FAMILY slug-of-the-pattern "One sentence that says what it reports."
"""
import pathlib
import re
import sys

RULE = '''// {summary}
#include <array>

#include "rules/common/describe.h"

namespace cglint::rules {{
namespace {{

using ir::Fact;

constexpr std::array<ir::FactSet, 1> kNeeds = {{ir::FactSet{{Fact::nodes, Fact::edges}}}};
constexpr engine::RuleInfo kInfo = {{
    .code = "{code}",
    .slug = "{slug}",
    .family = "{family}",
    .summary = "{summary}",
    .severity = engine::Severity::warning,
    .status = engine::RuleStatus::preview,
    .since = "{version}",
    .needs = kNeeds,
}};

class {type} final : public engine::Rule {{
 public:
  [[nodiscard]] const engine::RuleInfo& info() const override {{ return kInfo; }}
  void check(const engine::GraphContext& context, engine::FindingSink& sink) const override {{
    // TODO({code}): the condition. Remove this line together with the next.
    (void)context, (void)sink;
  }}
}};

}}  // namespace

std::unique_ptr<engine::Rule> make_{folder}() {{ return std::make_unique<{type}>(); }}

}}  // namespace cglint::rules
'''
PAGE = "{summary}\n\n## What it does\n\n## Why is this bad\n\n## Example\n\n## Good\n\n## How to fix\n\n## When not to apply\n\n## References\n"


def main() -> int:
    if len(sys.argv) != 5:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    code, family, slug, summary = sys.argv[1:]
    if not re.fullmatch(r"CG\d{3}", code) or not re.fullmatch(r"[a-z]+(-[a-z0-9]+)*", slug) or not re.fullmatch(r"[a-z]+", family):
        print("new_rule.py: CODE is CGnnn, FAMILY lower case letters, the slug words-with-dashes", file=sys.stderr)
        return 2
    root = pathlib.Path(__file__).resolve().parents[2]
    folder = slug.replace("-", "_")
    target = root / "rules" / family / folder
    table = root / "rules" / "rules.def"
    lines = table.read_text().splitlines()
    if any(f"({code}," in line or f", {folder})" in line for line in lines) or target.exists():
        print(f"new_rule.py: {code} or {slug} is already taken", file=sys.stderr)
        return 1
    version = re.search(r"VERSION (\d+\.\d+\.\d+)", (root / "CMakeLists.txt").read_text()).group(1)
    fields = {"code": code, "family": family, "slug": slug, "summary": summary, "folder": folder, "version": version,
              "type": "".join(word.capitalize() for word in slug.split("-"))}
    target.mkdir(parents=True)
    (target / "rule.cpp").write_text(RULE.format(**fields))
    (target / "rule.md").write_text(PAGE.format(**fields))
    comments = [line for line in lines if not line.startswith("CGLINT_RULE")]
    rules = sorted([line for line in lines if line.startswith("CGLINT_RULE")] + [f"CGLINT_RULE({code}, {family}, {folder})"])
    table.write_text("\n".join(comments + rules) + "\n")
    print(f"wrote {target.relative_to(root)} and a line in rules/rules.def; next: the condition, the page, tests/golden/rules/{code}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
