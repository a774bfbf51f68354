// What the user asked for: selection, thresholds and limits. Filled by the command line (and later by cglint.toml).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "engine/finding.h"

namespace cglint::tables {
class MoeConfigDirectory;
}

namespace cglint::engine {

enum class StreamsFrom : std::uint8_t { best, measured, predicted };

struct RuleInfo;

struct Config {
  // Codes, slugs, or code prefixes ("CG1"); "ALL" selects everything. Empty select: all stable and preview rules.
  std::vector<std::string> select, ignore;
  std::map<std::string, Severity> severity;              // per code
  std::map<std::string, std::string> options;            // "CG101.min_layers" -> "3"
  std::optional<std::uint32_t> max_streams;              // CG103
  StreamsFrom streams_from = StreamsFrom::best;
  std::shared_ptr<const tables::MoeConfigDirectory> moe_configs;  // CG605; null: none given
  std::optional<Severity> fail_on = Severity::warning;   // nullopt: findings never fail the run
  bool fail_on_unchecked = false;
  Confidence min_confidence = Confidence::likely;        // findings below are counted but not shown and never fail

  // True if `select` names the rule by its full code or slug (not by prefix or ALL).
  [[nodiscard]] bool requested_by_name(const RuleInfo& rule) const;
  [[nodiscard]] bool selected(const RuleInfo& rule) const;
  // Option values: the user's, else the rule's default. The name must be one of the rule's options.
  [[nodiscard]] std::int64_t integer(const RuleInfo& rule, std::string_view option) const;
  [[nodiscard]] double number(const RuleInfo& rule, std::string_view option) const;
  [[nodiscard]] bool boolean(const RuleInfo& rule, std::string_view option) const;
  [[nodiscard]] std::string text(const RuleInfo& rule, std::string_view option) const;
};

// Checks that every name in select, ignore, severity and options exists and that option values parse. The error
// carries a "did you mean" where a name is close.
base::Result<void> validate(const Config& config);

}  // namespace cglint::engine
