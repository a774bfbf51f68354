// Frames in files that a compiler wrote (torch.compile: Inductor's output, FX graphs), followed to the line of the program that they were
// made from: Inductor writes a comment above each kernel call, to which the start-up hook of `cglint record`, and Inductor's
// readable graphs, add "File: model.py:812 in forward". Files are read once and taken for hostile: bounded, regular files only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "capture/stack_table.h"

namespace cglint::capture {

// By its name: a file of Inductor's cache ("xy/cxy....py"), or code that FX made in memory.
bool is_generated_file(std::string_view path);

// The start-up hook of `cglint record`, whose wrappers stand between torch and the program: nobody's source.
bool is_helper_file(std::string_view path);

// The comments of a generated file that tell where its lines come from.
class SourceComments {
 public:
  // At most kMaxComments; later ones are left out, and their lines are not followed.
  explicit SourceComments(std::string_view text);
  // The program's line above `line`; an empty file: not told. Comments of another function do not count.
  [[nodiscard]] FrameText find(std::uint32_t line) const;

  static constexpr std::size_t kMaxComments = 1 << 16;

 private:
  struct Mark {
    std::uint32_t line = 0;
    FrameText source;  // empty file: a comment that does not tell, or the begin of a function
  };
  std::vector<Mark> marks_;  // ascending
};

// Not thread safe. Does file I/O: never with a lock held that a callback of the driver takes.
class GeneratedSources {
 public:
  // Innermost first. Drops frames of the start-up hook, marks frames of generated files, and puts the program's line behind the
  // innermost one if it is known.
  void follow(std::vector<FrameText>& frames);

  static constexpr std::size_t kMaxFiles = 1024;               // later ones are not read
  static constexpr std::size_t kMaxBytes = std::size_t{32} << 20;  // of a file

 private:
  std::unordered_map<std::string, SourceComments> files_;
};

}  // namespace cglint::capture
