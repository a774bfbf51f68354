#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <new>
#include <system_error>

#include "import/capture/capture_importer.h"
#include "import/common/importer.h"
#include "import/dot/dot_importer.h"
#include "import/kineto/kineto_importer.h"
#include "import/nsys/nsys_importer.h"

namespace cglint::import {
namespace {

using base::ErrorCode;
using base::make_error;
namespace fs = std::filesystem;

// What recognised a file: an importer, or the name of a foreign format.
struct Recognised {
  const Importer* importer = nullptr;
  std::string foreign_name;
};

Recognised recognise(std::string_view prefix) {
  Recognised result;
  for (const auto& importer : all_importers()) {
    SniffResult sniffed = importer->sniff(prefix);
    if (sniffed.match == SniffResult::Match::yes) return {importer.get(), {}};
    if (sniffed.match == SniffResult::Match::foreign && result.foreign_name.empty())
      result.foreign_name = std::move(sniffed.foreign_name);
  }
  return result;
}

bool is_database(std::string_view prefix) { return prefix.starts_with(std::string_view("SQLite format 3\0", 16)); }

std::string known_formats() {
  std::string names;
  for (const auto& importer : all_importers()) {
    if (!names.empty()) names += ", ";
    names += importer->name();
  }
  return names;
}

bool has_glob_characters(std::string_view text) { return text.find_first_of("*?[") != std::string_view::npos; }

std::string without_compression(const fs::path& path) {
  std::string name = path.filename().string();
  for (const std::string_view compressed : {".gz", ".zst"})
    if (name.ends_with(compressed)) name.resize(name.size() - compressed.size());
  return name;
}

// Names that make a file one of ours even if its bytes cannot be recognised (unreadable, empty, torn): it is listed, so that
// reading it gives its error. Other files of a directory are passed over.
bool has_own_suffix(const fs::path& path) {
  const std::string name = without_compression(path);
  for (const std::string_view suffix : {".dot", ".cgl.jsonl", ".json", ".sqlite"})
    if (name.ends_with(suffix)) return true;
  return false;
}

void expand_directory(const std::string& directory, std::vector<std::string>& out) {
  std::error_code error;
  fs::directory_iterator it(directory, fs::directory_options::none, error), end;
  if (error) {
    out.push_back(directory);  // reading it gives the error
    return;
  }
  const Limits limits;
  std::vector<fs::path> folders;
  for (; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (it->is_directory(ignored) && !it->is_symlink(ignored)) {
      folders.push_back(it->path());
      continue;
    }
    if (!it->is_regular_file(ignored)) continue;
    auto source = Source::open(it->path().string(), limits);
    if (!source) {
      if (has_own_suffix(it->path())) out.push_back(it->path().string());
      continue;
    }
    auto prefix = (*source)->peek();
    bool known = prefix && recognise(*prefix).importer != nullptr;
    // An export whose tables are still in the log beside it: reading it gives the error.
    if (prefix && !known && has_own_suffix(it->path()) && is_database(*prefix)) known = !check_database_is_whole(it->path().string());
    // Nobody else's files are called so: one that begins with something else is damaged.
    const bool capture = without_compression(it->path()).ends_with(".cgl.jsonl");
    if (known || capture || ((!prefix || prefix->empty()) && has_own_suffix(it->path()))) out.push_back(it->path().string());
  }
  for (const fs::path& folder : folders) expand_directory(folder.string(), out);
}

}  // namespace

std::span<const std::unique_ptr<Importer>> all_importers() {
  static const std::array<std::unique_ptr<Importer>, 4> importers = {
      make_capture_importer(),
      make_kineto_importer(),
      make_dot_importer(),
      make_nsys_importer(),
  };
  return importers;
}

std::string recognise_file(const std::string& path) {
  if (path == "-") return {};
  auto source = Source::open(path, Limits());
  if (!source) return {};
  auto prefix = (*source)->peek();
  const Importer* const importer = prefix ? recognise(*prefix).importer : nullptr;
  return importer != nullptr ? std::string(importer->name()) : std::string();
}

base::Error out_of_memory(const std::string& path) {
  return make_error(ErrorCode::internal, "out of memory while reading and checking this file").with_file(path);
}

namespace {

base::Result<ir::Recording> open_and_read(const std::string& path, const ReadOptions& options) {
  auto opened = Source::open(path, options.limits);
  if (!opened) return std::move(opened).error();
  Source& source = **opened;
  auto prefix = source.peek();
  if (!prefix) return std::move(prefix).error().with_file(path);
  if (prefix->empty()) return make_error(ErrorCode::unknown_format, "the file is empty").with_file(path);
  const Recognised recognised = recognise(*prefix);
  if (recognised.importer == nullptr) {
    // Its tables may not have been written into it yet.
    if (is_database(*prefix) && !source.plain_path().empty())
      if (auto whole = check_database_is_whole(source.plain_path()); !whole) return std::move(whole).error().with_file(path);
    if (!recognised.foreign_name.empty())
      return make_error(ErrorCode::foreign_format,
                        fmt::format("this is {}, which cglint does not read", recognised.foreign_name))
          .with_file(path);
    return make_error(ErrorCode::unknown_format,
                      fmt::format("not a format that cglint reads (known: {})", known_formats()))
        .with_file(path);
  }
  auto recording = recognised.importer->read(source, options);
  if (!recording) return std::move(recording).error().with_file(path);
  recording->file = path;
  recording->format = recognised.importer->name();
  return recording;
}

}  // namespace

base::Result<ir::Recording> read_file(const std::string& path, const ReadOptions& options) {
  try {
    return open_and_read(path, options);
  } catch (const std::bad_alloc&) {
    return out_of_memory(path);
  }
}

base::Result<std::vector<std::string>> expand_paths(std::span<const std::string> arguments) {
  std::vector<std::string> paths;
  for (const std::string& argument : arguments) {
    std::error_code ignored, failure;
    const fs::file_status status = argument == "-" ? fs::file_status() : fs::status(argument, failure);
    if (argument == "-" || (fs::exists(status) && !fs::is_directory(status))) {
      paths.push_back(argument);
    } else if (fs::is_directory(status)) {
      const std::size_t before = paths.size();
      expand_directory(argument, paths);
      if (paths.size() == before)
        return make_error(ErrorCode::not_found,
                          fmt::format("no file in this directory has a format that cglint reads (known: {})",
                                      known_formats()))
            .with_file(argument);
    } else if (has_glob_characters(argument)) {
      glob_t matches;
      const int code = ::glob(argument.c_str(), GLOB_NOSORT, nullptr, &matches);
      std::vector<std::string> found;
      if (code == 0) found.assign(matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
      ::globfree(&matches);
      if (found.empty()) return make_error(ErrorCode::not_found, "no file matches").with_file(argument);
      for (const std::string& path : found) {
        if (fs::is_directory(path, ignored)) {
          expand_directory(path, paths);
        } else {
          paths.push_back(path);
        }
      }
    } else {
      return path_error(argument, failure ? failure.value() : ENOENT);
    }
  }
  std::sort(paths.begin(), paths.end());
  paths.erase(std::unique(paths.begin(), paths.end()), paths.end());
  return paths;
}

}  // namespace cglint::import
