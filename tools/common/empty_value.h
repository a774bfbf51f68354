// What the command lines of several programs refuse alike.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>

namespace cglint {

// The first option that was given an empty value, as a variable that is not set gives it, or "". What is empty would else count as not
// given, and a check that was asked for would silently not be made.
inline std::string option_with_empty_value(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options())
    if (const auto& values = option->results(); !option->get_positional() && std::find(values.begin(), values.end(), "") != values.end())
      return option->get_name();
  for (const CLI::App* used : app.get_subcommands())
    if (std::string name = option_with_empty_value(*used); !name.empty()) return name;
  return "";
}

}  // namespace cglint
