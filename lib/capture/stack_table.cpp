#include "capture/stack_table.h"

namespace cglint::capture {

std::uint32_t StackTable::intern(std::span<const FrameText> frames) {
  if (frames.empty()) return kNone;
  std::vector<std::uint32_t> indices;
  std::string stack_key;
  for (const FrameText& frame : frames) {
    std::string key = frame.file;
    key += '\0';
    key += frame.function;
    key += '\0';
    key += std::to_string(frame.line);
    const auto [place, is_new] =
        frame_by_key_.try_emplace(std::move(key), static_cast<std::uint32_t>(frames_.size()));
    if (is_new) frames_.push_back(frame);
    indices.push_back(place->second);
    stack_key += std::to_string(place->second);
    stack_key += ',';
  }
  const auto [place, is_new] =
      stack_by_key_.try_emplace(std::move(stack_key), static_cast<std::uint32_t>(stacks_.size()));
  if (is_new) stacks_.push_back(std::move(indices));
  return place->second;
}

}  // namespace cglint::capture
