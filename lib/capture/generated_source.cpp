#include "capture/generated_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

namespace cglint::capture {
namespace {

constexpr std::size_t kMaxLine = 1 << 16;  // what a comment may take
constexpr std::size_t kMaxName = 4096;

// "path:line in function" or "path:line" up to a comma or the end; an empty file for anything else.
FrameText parse_place(std::string_view text) {
  FrameText frame;
  // The path may hold colons and blanks: the last ":<digits>" before " in ", a comma or the end ends it.
  const std::size_t end = std::min(text.find(", "), text.size());
  text = text.substr(0, end);
  std::string_view function;
  if (const std::size_t in = text.rfind(" in "); in != std::string_view::npos) {
    function = text.substr(in + 4);
    text = text.substr(0, in);
  }
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0 || colon > kMaxName || function.size() > kMaxName) return frame;
  const std::string_view digits = text.substr(colon + 1);
  std::uint32_t line = 0;
  const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), line);
  if (error != std::errc() || stop != digits.data() + digits.size() || line == 0) return frame;
  frame.file = text.substr(0, colon);
  frame.function = function;
  frame.line = line;
  return frame;
}

std::string read_file(const std::string& path) {
  std::string text;
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (descriptor < 0) return text;
  struct stat facts = {};
  if (fstat(descriptor, &facts) == 0 && S_ISREG(facts.st_mode) && facts.st_size > 0 &&
      static_cast<std::uint64_t>(facts.st_size) <= GeneratedSources::kMaxBytes) {
    text.resize(static_cast<std::size_t>(facts.st_size));
    std::size_t got = 0;
    while (got < text.size()) {
      const ssize_t part = read(descriptor, text.data() + got, text.size() - got);
      if (part < 0 && errno == EINTR) continue;
      if (part <= 0) break;
      got += static_cast<std::size_t>(part);
    }
    text.resize(got);
  }
  close(descriptor);
  return text;
}

}  // namespace

bool is_generated_file(std::string_view path) {
  if (path.starts_with("<eval_with_key>")) return true;
  // A hash in base 32 after a "c", in a folder named by its first two letters.
  const std::size_t slash = path.rfind('/');
  if (slash == std::string_view::npos || slash < 3 || path[slash - 3] != '/') return false;
  std::string_view name = path.substr(slash + 1);
  constexpr std::size_t kHashLetters = 20;  // 51 in fact
  if (!name.starts_with('c') || !name.ends_with(".py") || name.size() < 4 + kHashLetters) return false;
  name.remove_prefix(1);
  name.remove_suffix(3);
  return std::all_of(name.begin(), name.end(), [](char c) { return (c >= 'a' && c <= 'z') || (c >= '2' && c <= '7'); }) &&
         name.starts_with(path.substr(slash - 2, 2));
}

bool is_helper_file(std::string_view path) {
  return path.ends_with("/cglint_python_helper/sitecustomize.py");
}

SourceComments::SourceComments(std::string_view text) {
  std::uint32_t number = 0;
  for (std::size_t begin = 0; begin < text.size() && marks_.size() < kMaxComments;) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = text.substr(begin, std::min(end - begin, kMaxLine));
    begin = end + 1;
    ++number;
    line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.starts_with("def ") || line.starts_with("class ")) {
      marks_.push_back({number, {}});
    } else if (line.starts_with('#')) {
      const std::size_t file = line.find("File: ");
      if (file != std::string_view::npos) {
        marks_.push_back({number, parse_place(line.substr(file + 6))});
      } else if (line.find("Source Nodes: [") != std::string_view::npos) {
        marks_.push_back({number, {}});
      }
    }
  }
}

FrameText SourceComments::find(std::uint32_t line) const {
  const auto after = std::upper_bound(marks_.begin(), marks_.end(), line,
                                      [](std::uint32_t wanted, const Mark& mark) { return wanted < mark.line; });
  // What lies far below a comment, or where comments were left out, came from something else.
  constexpr std::uint32_t kReach = 256;
  if (after == marks_.begin() || marks_.size() >= kMaxComments || line - std::prev(after)->line > kReach) return {};
  return std::prev(after)->source;
}

void GeneratedSources::follow(std::vector<FrameText>& frames) {
  std::erase_if(frames, [](const FrameText& frame) { return is_helper_file(frame.file); });
  bool is_followed = false;
  for (std::size_t i = 0; i < frames.size(); ++i) {
    if (!is_generated_file(frames[i].file)) continue;
    frames[i].is_generated = true;
    if (is_followed) continue;
    is_followed = true;
    auto known = files_.find(frames[i].file);
    if (known == files_.end()) {
      if (files_.size() >= kMaxFiles) continue;
      known = files_.emplace(frames[i].file, SourceComments(frames[i].file[0] == '/' ? read_file(frames[i].file) : std::string())).first;
    }
    FrameText source = known->second.find(frames[i].line);
    if (!source.file.empty()) frames.insert(frames.begin() + static_cast<std::ptrdiff_t>(++i), std::move(source));
  }
}

}  // namespace cglint::capture
