#include "rules/common/arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "rules/common/describe.h"

namespace cglint::rules {
namespace {

constexpr std::uint32_t kTopOf47Bits = 0x7f, kTopOf48Bits = 0xff;  // regions where Linux puts stacks and libraries on x86-64 and on 64-bit Arm

// Elements of "std::array<char*, 3ul>" and its like, whose elements are all pointers; 0 for other types.
std::uint32_t pointers_in_array(std::string_view type) {
  const std::size_t open = type.find('<');
  if (open == std::string_view::npos || !type.ends_with('>')) return 0;
  const std::string_view name = type.substr(0, open);
  if (!name.ends_with("::array") && !name.ends_with("::Array") && name != "Array" && name != "array") return 0;
  const std::string_view inner = type.substr(open + 1, type.size() - open - 2);
  const std::size_t comma = inner.rfind(',');
  if (comma == std::string_view::npos || comma == 0 || inner[comma - 1] != '*') return 0;
  const std::size_t digits = inner.find_first_not_of(' ', comma + 1);
  if (digits == std::string_view::npos) return 0;
  std::uint32_t count = 0;
  const auto [end, error] = std::from_chars(inner.data() + digits, inner.data() + inner.size(), count);
  const std::string_view suffix = inner.substr(static_cast<std::size_t>(end - inner.data()));
  return error == std::errc() && suffix.find_first_not_of("ulUL") == std::string_view::npos ? count : 0;
}

}  // namespace

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
    if (word.offset_bytes / 8 < pointers_in_array(identity.params[word.slot].type) && word.offset_bytes % 8 == 0) return WordType::pointer;
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

void WordHistory::see(const ir::Graph& graph, const std::vector<analysis::FunctionWords>& functions) {
  const bool is_eager = graph.info.role == ir::GraphRole::eager;
  if (!graph.facts.contains(ir::Fact::kernel_params)) return;
  for (const analysis::FunctionWords& function : functions) {
    if (words_.size() <= function.function.index()) words_.resize(std::size_t{function.function.index()} + 1);
    std::vector<Word>& words = words_[function.function.index()];
    if (words.size() < function.words.size()) words.resize(function.words.size());
    for (std::size_t i = 0; i < function.words.size(); ++i) {
      const analysis::ArgumentWord& here = function.words[i];
      Word& word = words[i];
      word.word = here.word;
      word.in_struct = here.in_struct;
      word.elsewhere += here.elsewhere;
      word.numbers += here.numbers;
      for (const std::uint32_t region : here.regions) analysis::add_region(word.regions, region);
      if (here.inside == 0) continue;
      if (word.inside == 0) word.first = here.first;
      word.inside += here.inside;
      word.several = word.several || here.several || word.first != here.first;
      std::vector<std::uint64_t>& values = is_eager ? word.outside_capture : word.in_graphs;
      for (const std::uint64_t value : here.values) {
        if (word.many) break;
        if (std::find(values.begin(), values.end(), value) != values.end()) continue;
        if (values.size() < analysis::ArgumentWord::kMostValues) values.push_back(value);
        else word.many = true;
      }
      word.many = word.many || here.many;
    }
  }
}

bool WordHistory::holds_leftovers(const ir::Recording& recording, ir::FunctionId function, std::size_t index) const {
  if (!function.is_valid() || function.index() >= words_.size() || index >= words_[function.index()].size()) return false;
  const auto& words = words_[function.index()];
  if (!words[index].in_struct) return false;
  const auto is_of_host = [&](std::uint32_t region) {
    if (region == kTopOf47Bits || region == kTopOf48Bits) return true;
    const auto ids = recording.allocations.ids();
    return std::any_of(ids.begin(), ids.end(), [&](ir::AllocationId id) { return recording.allocations[id].base >> analysis::kRegionBits == region; });
  };
  return std::any_of(words.begin(), words.end(), [&](const Word& word) {
    return word.word.slot == words[index].word.slot && std::any_of(word.regions.begin(), word.regions.end(), is_of_host);
  });
}

bool WordHistory::can_be_no_padding(const std::vector<Word>& words, std::size_t index) {
  constexpr std::size_t kSmall = 64, kLargestAlignment = 16;
  const auto is_address = [](const Word& word) { return word.inside > 0 && word.numbers == 0 && word.elsewhere <= word.inside; };
  const ir::ParamWord& word = words[index].word;
  if (!is_address(words[index])) return false;
  std::size_t bytes = 0;
  for (const Word& other : words)
    if (other.word.slot == word.slot) bytes = std::max(bytes, std::size_t{other.word.offset_bytes} + other.word.size_bytes);
  if (bytes > kSmall) return false;
  if (bytes % kLargestAlignment != 0 || word.offset_bytes % kLargestAlignment == 0) return true;
  // Behind it stands an address, which needs no such alignment.
  return index + 1 < words.size() && words[index + 1].word.slot == word.slot && is_address(words[index + 1]);
}

bool WordHistory::is_pointer(const ir::Recording& recording, const analysis::KernelIdentity& identity, ir::FunctionId function, std::size_t index) const {
  constexpr std::uint64_t kFew = 8;
  if (!function.is_valid() || function.index() >= words_.size() || index >= words_[function.index()].size()) return false;
  const Word& seen = words_[function.index()][index];
  const WordType type = word_type(recording, identity, function, seen.word);
  if (type != WordType::unknown) return type == WordType::pointer;
  if (!seen.in_struct) return true;
  if (identity.known != nullptr)
    for (const analysis::KnownAccess& access : identity.known->accesses)
      if (access.slot == seen.word.slot && access.offset_bytes == seen.word.offset_bytes) return access.mode != analysis::AccessMode::none;
  // Nothing but addresses, always: an array of pointers. Padding would stand beside a number.
  const auto& words = words_[function.index()];
  const bool only_addresses = std::all_of(words.begin(), words.end(), [&](const Word& word) {
    return word.word.slot != seen.word.slot || (word.numbers == 0 && word.inside > 0 && word.elsewhere <= word.inside);
  });
  if (only_addresses || can_be_no_padding(words, index)) return true;
  if (!seen.many && seen.elsewhere == 0 && !seen.in_graphs.empty() &&
      std::all_of(seen.in_graphs.begin(), seen.in_graphs.end(), [&](std::uint64_t value) {
        return std::find(seen.outside_capture.begin(), seen.outside_capture.end(), value) != seen.outside_capture.end();
      }))
    return true;
  return seen.several && seen.inside >= kFew && seen.elsewhere * kFew <= seen.inside;
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

bool same_native_function(const ir::Recording& recording, ir::StackId a, ir::StackId b) {
  const auto left = recording.frames(a), right = recording.frames(b);
  if (left.empty() || right.empty()) return false;
  const ir::Frame& x = left[user_frame(recording, a)];
  const ir::Frame& y = right[user_frame(recording, b)];
  return x.kind == ir::Frame::Kind::native && x.kind == y.kind && x.file == y.file && x.function == y.function && x.function != ir::kEmptyString;
}

}  // namespace cglint::rules
