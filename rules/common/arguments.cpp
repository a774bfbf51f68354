#include "rules/common/arguments.h"

#include <fmt/format.h>

#include "rules/common/describe.h"

namespace cglint::rules {

WordType word_type(const ir::Recording& recording, const analysis::KernelIdentity& identity, ir::FunctionId function,
                   const ir::ParamWord& word) {
  using Type = ir::ParamWord::Type;
  if (word.size_bytes != 8 || word.type == Type::scalar) return WordType::scalar;
  if (word.type == Type::pointer || word.type == Type::const_pointer) {
    // A recorder also calls a word a pointer because of its value: then the type says nothing about the slot.
    if (!word.allocation.is_valid()) return WordType::pointer;
  }
  if (identity.params_known && word.slot < identity.params.size()) {
    if (identity.params[word.slot].is_scalar) return WordType::scalar;
    if (identity.params[word.slot].is_pointer && word.offset_bytes == 0) return WordType::pointer;
  }
  if (recording.functions.contains(function) && word.offset_bytes == 0) {
    const auto& params = recording.functions[function].params;
    if (word.slot < params.size()) {
      if (params[word.slot].type == Type::scalar) return WordType::scalar;
      if (params[word.slot].type != Type::unknown) return WordType::pointer;
    }
  }
  return WordType::unknown;
}

std::string argument_name(const analysis::KernelIdentity& identity, std::uint16_t slot, std::uint16_t offset_bytes) {
  if (offset_bytes != 0) return fmt::format("argument {}, byte {}", slot, offset_bytes);
  if (identity.params_known && slot < identity.params.size() && identity.params[slot].is_pointer)
    return fmt::format("argument {} ({})", slot, identity.params[slot].type);
  return fmt::format("argument {}", slot);
}

std::size_t common_frames(const ir::Recording& recording, ir::StackId a, ir::StackId b) {
  const auto left = recording.frames(a), right = recording.frames(b);
  if (a == b) return left.size();
  std::size_t count = 0;
  while (count < left.size() && count < right.size()) {
    const ir::Frame& x = left[count];
    const ir::Frame& y = right[count];
    if (x.kind != y.kind || x.line != y.line || x.file != y.file || x.function != y.function) break;
    ++count;
  }
  return count;
}

bool same_place(const ir::Recording& recording, ir::StackId stack, std::size_t common) {
  return common > 0 && common > user_frame(recording, stack);
}

}  // namespace cglint::rules
