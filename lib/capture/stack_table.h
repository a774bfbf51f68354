// Source stacks, each distinct frame and stack stored once: memory grows with the number of call sites, not
// of calls. Not thread safe.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace cglint::capture {

inline constexpr std::uint32_t kNone = 0xffffffff;

struct FrameText {
  std::string file;
  std::string function;
  std::uint32_t line = 0;  // 0: unknown
  bool is_native = false;  // then the file is the module's unless the line is known
  bool is_generated = false;  // the file was written by a compiler
};

class StackTable {
 public:
  // Innermost frame first; kNone for no frames.
  std::uint32_t intern(std::span<const FrameText> frames);
  // The index of a frame, and a stack of such indices.
  std::uint32_t add_frame(const FrameText& frame);
  std::uint32_t intern_indices(std::vector<std::uint32_t> indices);
  // Indices for frame(); innermost first.
  [[nodiscard]] std::span<const std::uint32_t> stack(std::uint32_t id) const { return *stacks_[id]; }
  [[nodiscard]] const FrameText& frame(std::uint32_t index) const { return frames_[index]; }
  [[nodiscard]] std::size_t size() const { return stacks_.size(); }

 private:
  std::vector<FrameText> frames_;
  std::unordered_map<std::string, std::uint32_t> frame_by_key_;
  std::map<std::vector<std::uint32_t>, std::uint32_t> stack_by_indices_;
  std::vector<const std::vector<std::uint32_t>*> stacks_;  // its keys
};

}  // namespace cglint::capture
