// Subcommands that are programs beside this one.
#pragma once

#include <optional>

namespace cglint::cli {

// Becomes the program that the first argument names; nothing if it names none.
std::optional<int> run_if_external(int argc, char** argv);

}  // namespace cglint::cli
