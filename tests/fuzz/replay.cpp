// Runs fuzz targets over files, without a fuzzer: cglint_fuzz_replay TARGET FILE_OR_FOLDER...
// A target that breaks one of its promises aborts. Exit code 1 where there was no file: a test of nothing is none.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#define CGLINT_FUZZ_TARGET(name) extern "C" int cglint_fuzz_##name(const std::uint8_t* data, std::size_t size);
#include "fuzz_targets.def"
#undef CGLINT_FUZZ_TARGET

namespace {

struct Target {
  std::string_view name;
  int (*run)(const std::uint8_t*, std::size_t);
};
constexpr Target kTargets[] = {
#define CGLINT_FUZZ_TARGET(name) {#name, cglint_fuzz_##name},
#include "fuzz_targets.def"
#undef CGLINT_FUZZ_TARGET
};

std::size_t replay(const Target& target, const std::filesystem::path& path) {
  std::size_t files = 0;
  if (std::filesystem::is_directory(path)) {
    for (const auto& entry : std::filesystem::directory_iterator(path)) files += replay(target, entry.path());
    return files;
  }
  std::ifstream in(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  std::fprintf(stderr, "%s\n", path.c_str());  // the last line before an abort
  target.run(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::size_t files = 0;
  for (const Target& target : kTargets)
    if (argc > 2 && target.name == argv[1])
      for (int i = 2; i < argc; ++i) files += replay(target, argv[i]);
  std::printf("%zu files\n", files);
  return files == 0 ? 1 : 0;
}
