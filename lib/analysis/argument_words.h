// What the argument words of each kernel are in the launches of one graph, counted once for all rules that ask: graphs of one recording
// have millions of words, of a few hundred places.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/graph.h"

namespace cglint::analysis {

inline constexpr std::uint64_t kLowestAddress = std::uint64_t{1} << 32, kHighestAddress = std::uint64_t{1} << 57;  // words outside are numbers
// Stacks, shared libraries and, unless it is placed elsewhere, memory of the GPU share a region of this size.
inline constexpr unsigned kRegionBits = 40;

// One word of a function's arguments.
struct ArgumentWord {
  static constexpr std::size_t kMostValues = 64;
  std::uint64_t inside = 0, elsewhere = 0;  // launches in which it pointed into known memory, and in which it did not
  std::uint64_t numbers = 0;                // of the latter: too small or too large for an address
  std::uint64_t first = 0;                  // the first address
  bool several = false;                     // more than one was seen
  bool in_struct = false;                   // in the last launch
  bool many = false;                        // more addresses than are kept
  std::vector<std::uint64_t> values;        // of words in structs: the addresses, each once
  std::vector<std::uint32_t> regions;       // of words in structs: of values in no known memory that could be addresses, each once
  ir::ParamWord word;                       // of the last launch
};

struct FunctionWords {
  ir::FunctionId function;
  std::vector<ArgumentWord> words;
};

// Adds one that is not there yet, as long as there are few.
void add_region(std::vector<std::uint32_t>& regions, std::uint32_t region);

// By first launch. Disabled nodes do not count.
std::vector<FunctionWords> argument_words(const ir::Graph& graph);

}  // namespace cglint::analysis
