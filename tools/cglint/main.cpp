// cglint: a linter for CUDA graphs. This program never links CUDA.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "base/text.h"
#include "commands.h"
#include "common/empty_value.h"
#include "export/part_file.h"
#include "external.h"

namespace {

// A signal that ends the program leaves no half written file behind.
extern "C" void end_by_signal(int signal) {
  cglint::exporter::remove_unfinished_file();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void prepare_signals() {
  std::signal(SIGPIPE, SIG_IGN);  // writes fail instead, and say so
  std::signal(SIGXFSZ, SIG_IGN);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP})
    if (std::signal(signal, SIG_IGN) != SIG_IGN) std::signal(signal, end_by_signal);  // nohup's choice stays
}

constexpr const char* kFooter = R"(examples:
  cglint lint decode.dot                       check a cudaGraphDebugDotPrint / debug_dump file
  cglint lint trace.json.gz --max-streams 3    gate a PyTorch profiler trace on its stream count
  cglint lint decode.dot trace.json.gz         the graph and its replay together: more rules can be checked
  cglint inspect trace.json.gz                 streams, layers, overlap and gaps, without a verdict
  cglint explain CG101                         what a finding means and how to fix it

exit codes:
  0 clean   1 findings at or above --fail-on   2 bad usage, unreadable input or unwritable output   3 internal failure
  4 nothing to check, a rule or limit that was asked for could not be checked, or part of the input was lost
  (where several apply, the first of 3, 2, 1, 4))";

// The subcommand or option closest to a word that was not understood, as " did you mean ...?", or "".
std::string suggestion(const CLI::App& app, const std::string& word) {
  std::vector<std::string> names;
  if (word.starts_with("--")) {
    const CLI::App* const used = app.get_subcommands().empty() ? &app : app.get_subcommands().front();
    for (const CLI::Option* option : used->get_options())
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  } else {
    for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) names.push_back(command->get_name());
  }
  const std::vector<std::string_view> candidates(names.begin(), names.end());
  const std::string_view near = cglint::base::closest(word.substr(0, word.find('=')), candidates);
  return near.empty() ? std::string() : fmt::format("; did you mean '{}'?", near);
}

// A first word that is no subcommand gets an error of its own: CLI11 would complain about the words behind it as well.
bool has_unknown_subcommand(const CLI::App& app, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return false;
  const std::string word = argv[1];
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    if (command->check_name(word)) return false;
  const std::string near = suggestion(app, word);
  std::error_code ignored;
  cglint::cli::print_error(fmt::format(
      "no subcommand '{}'{}; see 'cglint --help'", word,
      near.empty() && std::filesystem::exists(word, ignored) ? fmt::format("; to check the file: cglint lint {}", word) : near));
  return true;
}

// "; see 'cglint lint --help'".
std::string see_help(const CLI::App& app) {
  const auto used = app.get_subcommands();
  return fmt::format("; see 'cglint {}--help'", used.empty() ? "" : used.front()->get_name() + " ");
}

}  // namespace

int main(int argc, char** argv) {
  using namespace cglint::cli;
  // Before anything else: the words after the command are its own ("--" too), and what it starts inherits our signals.
  if (const std::optional<int> code = run_if_external(argc, argv)) return *code;
  prepare_signals();
  Cli cli;
  CLI::App app("cglint: a linter for CUDA graphs", "cglint");
  app.footer(kFooter);
  app.set_version_flag("--version", "cglint " + version_text());
  bool capabilities = false;
  app.add_flag("--capabilities", capabilities, "Show which rules each input format allows");
  app.require_subcommand(0, 1);
  add_lint(app, cli);
  add_inspect(app, cli);
  add_rules(app, cli);
  add_explain(app, cli);
  add_convert(app, cli);
  add_external(app, cli);
  try {
    if (has_unknown_subcommand(app, argc, argv)) return kExitUsage;
    app.parse(argc, argv);
    if (const std::string option = cglint::option_with_empty_value(app); !option.empty()) {
      print_error(fmt::format("{}: a value is empty", option) + see_help(app));
      return kExitUsage;
    }
    if (capabilities && !app.get_subcommands().empty()) {
      print_error(fmt::format("--capabilities takes no subcommand ('{}'); see 'cglint --help'", app.get_subcommands().front()->get_name()));
      return kExitUsage;
    }
    if (capabilities) return print_capabilities();
    if (!cli.run) {
      print_stderr(app.help());
      return kExitUsage;
    }
    return cli.run();
  } catch (const CLI::Success& e) {  // --help, --version
    std::ostringstream out, err;
    const int code = app.exit(e, out, err);
    return write_output("", out.str()) ? code : kExitUsage;
  } catch (const CLI::ExtrasError& e) {
    const std::vector<std::string> extras = app.remaining(true);
    const auto option = std::find_if(extras.begin(), extras.end(), [](const std::string& word) { return word.starts_with("--"); });
    print_error(fmt::format("{}{}{}", e.what(), option == extras.end() ? std::string() : suggestion(app, *option), see_help(app)));
    return kExitUsage;
  } catch (const CLI::ParseError& e) {
    print_error(e.what() + see_help(app));
    return kExitUsage;
  } catch (const std::bad_alloc&) {
    print_error("out of memory");
    return kExitInternal;
  } catch (const std::exception& e) {
    print_error(fmt::format("internal error: {}", e.what()));
    return kExitInternal;
  }
}
