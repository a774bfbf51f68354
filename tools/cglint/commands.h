// The subcommands of cglint. Each adds itself to the command line and stores what to run in `Cli::run`.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/config.h"

namespace CLI {
class App;
}

namespace cglint::cli {

inline constexpr int kExitClean = 0;
inline constexpr int kExitFindings = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitInternal = 3;
inline constexpr int kExitNothingToCheck = 4;

struct Cli {
  std::function<int()> run;   // set by the chosen subcommand
};

void add_lint(CLI::App& app, Cli& cli);
void add_inspect(CLI::App& app, Cli& cli);
void add_rules(CLI::App& app, Cli& cli);
void add_explain(CLI::App& app, Cli& cli);
void add_convert(CLI::App& app, Cli& cli);
// Subcommands that are programs of their own beside this one (they need CUDA; this program never links it).
void add_external(CLI::App& app, Cli& cli);

// Prints what each input format allows each rule to check.
int print_capabilities();

std::string version_text();        // "0.1.0"

// The files that arguments stand for (files, directories, globs, "-"), each once, in order. A name that leads nowhere is an error of
// its own; the others are still read.
struct InputPath {
  std::string path;
  std::optional<base::Error> error;
};
std::vector<InputPath> input_paths(std::span<const std::string> arguments);

// Where a file is written: "-" or "" is standard output. The file appears whole or not at all (export/part_file.h). Returns false
// after printing one line to stderr.
bool write_output(const std::string& path, const std::string& text);
// True, after one line on stderr, if `output` is one of the files that are read: writing would destroy it. Names need not be equal.
bool overwrites_input(const std::string& output, std::span<const InputPath> inputs);
void print_stderr(const std::string& text);  // as it is; failures are ignored
void print_error(const std::string& line);   // "cglint: error: ..." on stderr, control characters escaped

// 3 for our own failure, 2 for an input that cannot be read.
int exit_code_of(const base::Error& error);

enum class ColourWhen : std::uint8_t { automatic, always, never };
bool use_colour(ColourWhen when, int file_descriptor);   // honours NO_COLOR and FORCE_COLOR

// A progress line on stderr, only on a terminal and only after half a second. Thread safe.
class Progress {
 public:
  explicit Progress(bool enabled);
  ~Progress();
  void update(const std::string& file, std::uint64_t done_bytes, std::uint64_t total_bytes);
  void clear();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace cglint::cli
