#include "capture/stack_table.h"

namespace cglint::capture {

std::uint32_t StackTable::add_frame(const FrameText& frame) {
  std::string key = frame.file;
  key += '\0';
  key += frame.function;
  key += '\0';
  key += std::to_string(frame.line);
  if (frame.is_native) key += 'n';
  if (frame.is_generated) key += 'g';
  const auto [place, is_new] =
      frame_by_key_.try_emplace(std::move(key), static_cast<std::uint32_t>(frames_.size()));
  if (is_new) frames_.push_back(frame);
  return place->second;
}

std::uint32_t StackTable::intern_indices(std::vector<std::uint32_t> indices) {
  if (indices.empty()) return kNone;
  const auto [place, is_new] =
      stack_by_indices_.try_emplace(std::move(indices), static_cast<std::uint32_t>(stacks_.size()));
  if (is_new) stacks_.push_back(&place->first);
  return place->second;
}

std::uint32_t StackTable::intern(std::span<const FrameText> frames) {
  std::vector<std::uint32_t> indices;
  for (const FrameText& frame : frames) indices.push_back(add_frame(frame));
  return intern_indices(std::move(indices));
}

}  // namespace cglint::capture
