// Runs fuzz targets over files, without a fuzzer: cglint_fuzz_replay TARGET [--mutate N] FILE_OR_FOLDER...
// A target that breaks one of its promises aborts. Exit code 1 where there was no file: a test of nothing is
// none.
// --mutate: N inputs more, made from the files by the changes of text_mutator.h, each from the one before,
// begun anew every few. They are the same every time. The input that ended the program is left in the working
// directory as TARGET.crash.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "text_mutator.h"

#define CGLINT_FUZZ_TARGET(name, text_from) \
  extern "C" int cglint_fuzz_##name(const std::uint8_t* data, std::size_t size);
#include "fuzz_targets.def"
#undef CGLINT_FUZZ_TARGET

// Sanitizers say what was wrong and then call back.
extern "C" [[gnu::weak]] void __sanitizer_set_death_callback(
    void (*callback)());  // NOLINT(bugprone-reserved-identifier): theirs

namespace {

struct Target {
  std::string_view name;
  int (*run)(const std::uint8_t*, std::size_t);
  int text_from;  // where the text of an input begins; -1: it is none
};
constexpr Target kTargets[] = {
#define CGLINT_FUZZ_TARGET(name, text_from) {#name, cglint_fuzz_##name, text_from},
#include "fuzz_targets.def"
#undef CGLINT_FUZZ_TARGET
};

std::string running;  // the input
std::string crash_file;

// Only what may be called in a signal handler.
void keep_input() {
  const int file = open(crash_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (file < 0) return;
  [[maybe_unused]] const ssize_t written = write(file, running.data(), running.size());
  close(file);
}

void on_signal(int signal) {
  keep_input();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void run(const Target& target, std::string_view bytes) {
  running = bytes;
  target.run(reinterpret_cast<const std::uint8_t*>(running.data()), running.size());
}

void collect(const std::filesystem::path& path, std::vector<std::filesystem::path>& out) {
  if (!std::filesystem::is_directory(path)) {
    out.push_back(path);
    return;
  }
  for (const auto& entry : std::filesystem::directory_iterator(path)) collect(entry.path(), out);
}

void run_mutated(const Target& target, const std::vector<std::string>& inputs, std::size_t count) {
  constexpr std::size_t kMaxSize = std::size_t{64} << 10;
  constexpr std::size_t kChain = 12;  // changes in a row, on average a few parts each
  const auto prefix = static_cast<std::size_t>(target.text_from);
  std::minstd_rand random(1);  // the same everywhere
  std::string input;
  for (std::size_t i = 0; i < count; ++i) {
    if (i % kChain == 0) input = inputs[random() % inputs.size()];
    const std::string_view other = inputs[random() % inputs.size()];
    if (input.size() <= prefix || input.size() > kMaxSize) continue;
    const std::string text = cglint::fuzz::mutate_text(std::string_view(input).substr(prefix),
                                                       i % 2 == 0 ? other : std::string_view(), kMaxSize,
                                                       static_cast<std::uint32_t>(random()));
    input.replace(prefix, std::string::npos, text);
    if (prefix > 0 && i % 4 == 0) input[random() % prefix] = static_cast<char>(random() % 256);
    run(target, input);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const Target* target = nullptr;
  for (const Target& one : kTargets)
    if (argc > 2 && one.name == argv[1]) target = &one;
  if (target == nullptr) {
    std::fprintf(stderr, "usage: cglint_fuzz_replay TARGET [--mutate N] FILE_OR_FOLDER...\n");
    return 1;
  }
  int first = 2;
  std::size_t mutations = 0;
  if (argc > 3 && std::string_view(argv[2]) == "--mutate") {
    std::from_chars(argv[3], argv[3] + std::strlen(argv[3]), mutations);
    if (mutations == 0 || target->text_from < 0) {
      std::fprintf(stderr, "--mutate: not a number of inputs, or the target's inputs are no text\n");
      return 1;
    }
    first = 4;
  }
  crash_file = std::string(target->name) + ".crash";
  if (__sanitizer_set_death_callback != nullptr) {
    __sanitizer_set_death_callback(keep_input);
    std::signal(SIGABRT, on_signal);
  } else {
    for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) std::signal(signal, on_signal);
  }
  std::vector<std::filesystem::path> paths;
  for (int i = first; i < argc; ++i) collect(argv[i], paths);
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> inputs;
  for (const std::filesystem::path& path : paths) {
    std::ifstream in(path, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    if (mutations == 0) std::fprintf(stderr, "%s\n", path.c_str());  // the last line before an abort
    run(*target, inputs.back());
  }
  if (!inputs.empty()) run_mutated(*target, inputs, mutations);
  std::printf("%zu files, %zu inputs made from them\n", inputs.size(), mutations);
  return inputs.empty() ? 1 : 0;
}
