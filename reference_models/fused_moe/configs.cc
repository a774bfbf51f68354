#include "fused_moe/configs.h"

#include <utility>

namespace cglint::models {

std::string_view built_in_moe_config(std::string_view file_name) {
  // Generated from configs/: {name, text}, ... and an empty entry.
  static constexpr std::pair<std::string_view, std::string_view> kTables[] = {
#include "moe_configs.inc"
      {},
  };
  for (const auto& [name, text] : kTables)
    if (name == file_name) return text;
  return {};
}

}  // namespace cglint::models
