// cglint: a linter for CUDA graphs. This program never links CUDA.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <exception>

#include "commands.h"

namespace {

constexpr const char* kFooter = R"(examples:
  cglint lint decode.dot                       check a cudaGraphDebugDotPrint / debug_dump file
  cglint lint trace.json.gz --max-streams 3    gate a PyTorch profiler trace on its stream count
  cglint lint decode.dot trace.json.gz         the graph and its replay together: more rules can be checked
  cglint inspect trace.json.gz                 streams, layers, overlap and gaps, without a verdict
  cglint explain CG101                         what a finding means and how to fix it

exit codes:
  0 clean   1 findings at or above --fail-on   2 bad usage or unreadable input   3 internal failure
  4 nothing to check, a rule or limit that was asked for could not be checked, or part of the input was lost
  (where several apply, the first of 3, 2, 1, 4))";

}  // namespace

int main(int argc, char** argv) {
  using namespace cglint::cli;
  std::signal(SIGPIPE, SIG_IGN);
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
    app.parse(argc, argv);
    if (capabilities) return print_capabilities();
    if (!cli.run) {
      print_stderr(app.help());
      return kExitUsage;
    }
    return cli.run();
  } catch (const CLI::Success& e) {  // --help, --version
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    print_error(fmt::format("{}; see 'cglint --help'", e.what()));
    return kExitUsage;
  } catch (const std::bad_alloc&) {
    print_error("out of memory");
    return kExitInternal;
  } catch (const std::exception& e) {
    print_error(fmt::format("internal error: {}", e.what()));
    return kExitInternal;
  }
}
