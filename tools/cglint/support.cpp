#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <set>

#include "base/text.h"
#include "commands.h"
#include "common/standard_output.h"
#include "export/part_file.h"
#include "import/common/importer.h"

namespace cglint::cli {

std::string version_text() { return CGLINT_VERSION; }

// std::fputs, not fmt::print: a closed or full stderr must not throw.
void print_stderr(const std::string& text) { std::fputs(text.c_str(), stderr); }
void print_error(const std::string& line) { print_stderr("cglint: error: " + base::printable(line, 4000) + "\n"); }

int exit_code_of(const base::Error& error) {
  return error.code == base::ErrorCode::internal ? kExitInternal : kExitUsage;
}

std::vector<InputPath> input_paths(std::span<const std::string> arguments) {
  std::vector<InputPath> paths;
  std::set<std::string> seen;
  const auto add = [&](std::string path) {
    std::error_code ignored;
    const std::filesystem::path real = std::filesystem::canonical(path, ignored);
    if (seen.insert(real.empty() ? path : real.string()).second) paths.push_back({std::move(path), std::nullopt});
  };
  for (const std::string& argument : arguments) {
    auto expanded = argument.empty() ? base::make_error(base::ErrorCode::not_found, "a file name is empty")
                                     : import::expand_paths(std::span(&argument, 1));
    if (!expanded) {
      paths.push_back({argument, std::move(expanded).error()});
      continue;
    }
    for (std::string& path : *expanded) add(std::move(path));
  }
  return paths;
}

bool overwrites_input(const std::string& output, std::span<const InputPath> inputs) {
  if (output.empty() || output == "-") return false;
  for (const InputPath& each : inputs) {
    const std::string& input = each.path;
    std::error_code ignored;
    // A device may be both: only regular files lose what they hold.
    if (input == "-" || !std::filesystem::is_regular_file(input, ignored) || !std::filesystem::equivalent(input, output, ignored)) continue;
    print_error(fmt::format("input and output are the same file: {}", base::printable(output)));
    return true;
  }
  return false;
}

bool write_output(const std::string& path, const std::string& text) {
  if (path.empty() || path == "-") {
    const std::string problem = cglint::write_standard_output(text);
    if (!problem.empty()) print_error(problem);
    return problem.empty();
  }
  exporter::PartFile part(path);
  std::FILE* const file = std::fopen(part.name().c_str(), "wb");
  bool good = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  int saved_errno = errno;
  if (file != nullptr && std::fclose(file) != 0 && good) {
    good = false;
    saved_errno = errno;
  }
  if (!good) {
    print_error(fmt::format("{}: cannot write: {}", base::printable(path), std::strerror(saved_errno)));
    return false;
  }
  const base::Result<void> finished = part.finish();
  if (!finished) print_error(finished.error().to_string());
  return finished.has_value();
}

bool use_colour(ColourWhen when, int file_descriptor) {
  if (when != ColourWhen::automatic) return when == ColourWhen::always;
  const char* const no_colour = std::getenv("NO_COLOR");
  if (no_colour != nullptr && *no_colour != '\0') return false;
  const char* const force = std::getenv("FORCE_COLOR");
  if (force != nullptr && *force != '\0') return true;
  const char* const term = std::getenv("TERM");
  return isatty(file_descriptor) == 1 && (term == nullptr || std::strcmp(term, "dumb") != 0);
}

struct Progress::State {
  bool enabled = false;
  bool shown = false;
  std::mutex mutex;
  std::chrono::steady_clock::time_point next = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
};

Progress::Progress(bool enabled) : state_(std::make_unique<State>()) {
  state_->enabled = enabled && isatty(STDERR_FILENO) == 1;
}

Progress::~Progress() { clear(); }

void Progress::update(const std::string& file, std::uint64_t done_bytes, std::uint64_t total_bytes) {
  if (!state_->enabled) return;
  const std::lock_guard lock(state_->mutex);
  const auto now = std::chrono::steady_clock::now();
  if (now < state_->next) return;
  state_->next = now + std::chrono::milliseconds(200);
  state_->shown = true;
  const double mib = static_cast<double>(done_bytes) / (1024.0 * 1024.0);
  if (total_bytes > 0)
    print_stderr(fmt::format("\r\x1b[K{}: {:.0f} % ({:.0f} MiB)", base::printable(file, 60),
                             100.0 * static_cast<double>(done_bytes) / static_cast<double>(total_bytes), mib));
  else
    print_stderr(fmt::format("\r\x1b[K{}: {:.0f} MiB", base::printable(file, 60), mib));
  std::fflush(stderr);
}

void Progress::clear() {
  const std::lock_guard lock(state_->mutex);
  if (!state_->shown) return;
  print_stderr("\r\x1b[K");
  std::fflush(stderr);
  state_->shown = false;
}

}  // namespace cglint::cli
