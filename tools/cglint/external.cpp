// Subcommands that are programs beside this one: they need CUDA, which this program never links.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "commands.h"
#include "external.h"

namespace cglint::cli {
namespace {

struct External {
  const char* command;
  const char* program;
  const char* targets;  // of the build, for all that the command needs
  const char* summary;
};
constexpr std::array<External, 3> kExternals = {{
    {"capture", "cglint-capture", "cglint-capture cglint-record cglint-model-runner", "Run a reference model on this GPU: record, replay, measure and lint its variants."},
    {"record", "cglint-record", "cglint-record", "Run a command and record the CUDA graphs of its processes, with source lines."},
    {"selftest-streams", "cglint-selftest-streams", "cglint-selftest-streams", "Measure designed graphs on this GPU: does the stream model hold for its driver?"},
}};

int run_external(const External& external, const std::vector<std::string>& arguments) {
  std::error_code ignored;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", ignored);
  const std::string program = (self.parent_path() / external.program).string();
  if (self.empty() || access(program.c_str(), X_OK) != 0) {
    print_error(fmt::format("'{}' needs {}, which is not in {}, beside this program: a build without the CUDA toolkit has no CUDA parts; with the toolkit it is built by "
                            "'cmake --build BUILD --target {}'",
                            external.command, external.program, self.parent_path().string(), external.targets));
    return kExitUsage;
  }
  std::vector<char*> argv{const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());
  print_error(fmt::format("cannot start {}: {}", program, std::strerror(errno)));
  return kExitUsage;
}

}  // namespace

std::optional<int> run_if_external(int argc, char** argv) {
  for (const External& external : kExternals)
    if (argc > 1 && std::strcmp(argv[1], external.command) == 0) return run_external(external, {argv + 2, argv + argc});
  return std::nullopt;
}

void add_external(CLI::App& app, Cli& cli) {
  for (const External& external : kExternals) {
    CLI::App* const command = app.add_subcommand(external.command, external.summary);
    command->allow_extras();
    command->prefix_command();
    command->set_help_flag();
    command->callback([command, &external, &cli] {
      cli.run = [&external, arguments = command->remaining()] { return run_external(external, arguments); };
    });
  }
}

}  // namespace cglint::cli
