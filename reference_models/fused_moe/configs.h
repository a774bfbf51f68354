// The tables of configs/, compiled in: what the variant "tuned" takes without --moe-config.
#pragma once

#include <string_view>

namespace cglint::models {

// The text of the table named `file_name` (see tables/moe_config.h); empty if there is none.
std::string_view built_in_moe_config(std::string_view file_name);

}  // namespace cglint::models
