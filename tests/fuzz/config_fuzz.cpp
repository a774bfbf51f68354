// libFuzzer entry for the configuration. The input is read as lines, each one setting as a user could give it:
//   select WORD   ignore WORD   option KEY=VALUE   severity CODE   max-streams N
// Any of it must be refused with a message or be usable: a configuration that validates answers every question about every rule.
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "engine/config.h"
#include "engine/rule.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cglint;
  using engine::RuleOption;
  std::string_view text(reinterpret_cast<const char*>(data), size);
  engine::Config config;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos) continue;
    const std::string_view name = line.substr(0, space);
    const std::string value(line.substr(space + 1));
    if (name == "select") config.select.push_back(value);
    if (name == "ignore") config.ignore.push_back(value);
    if (name == "severity") config.severity[value] = engine::Severity::error;
    if (name == "max-streams") {
      std::uint32_t limit = 0;
      std::from_chars(value.data(), value.data() + value.size(), limit);
      config.max_streams = limit;
    }
    if (const std::size_t equals = value.find('='); name == "option" && equals != std::string::npos)
      config.options[value.substr(0, equals)] = value.substr(equals + 1);
  }
  const auto valid = engine::validate(config);
  if (!valid) {
    CGLINT_CHECK(!valid.error().message.empty());
    return 0;
  }
  for (const auto& rule : engine::all_rules()) {
    const engine::RuleInfo& info = rule->info();
    (void)config.selected(info);
    for (const RuleOption& option : info.options) switch (option.type) {
        case RuleOption::Type::integer: {
          const auto number = static_cast<double>(config.integer(info, option.name));
          CGLINT_CHECK(number >= option.min && number <= option.max);
          break;
        }
        case RuleOption::Type::number: {
          const double number = config.number(info, option.name);
          CGLINT_CHECK(number >= option.min && number <= option.max);
          break;
        }
        case RuleOption::Type::boolean: (void)config.boolean(info, option.name); break;
        case RuleOption::Type::text: (void)config.text(info, option.name); break;
      }
  }
  return 0;
}
