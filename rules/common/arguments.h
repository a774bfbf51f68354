// What rules about kernel arguments share: what an argument word can be, how it is named, and whether two launches were made at
// the same place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "analysis/argument_words.h"
#include "analysis/kernel_identity.h"
#include "ir/graph.h"
#include "ir/recording.h"

namespace cglint::rules {

// From types alone, whatever the value: `pointer` and `scalar` are certain, `unknown` is a word of a struct or of a kernel whose
// signature is not known. Words that are not 8 bytes wide are scalars.
enum class WordType : std::uint8_t { unknown, pointer, scalar };
WordType word_type(const ir::Recording& recording, const analysis::KernelIdentity& identity, ir::FunctionId function,
                   const ir::ParamWord& word);

// What the words of kernels were in all launches of a recording, in graphs and outside capture. Padding of structs that are passed
// by value and the unused tails of their arrays hold whatever the caller's stack held before, which is often an address, also of
// memory that was given back: such a word proves nothing about what the kernel reads.
class WordHistory {
 public:
  void see(const ir::Graph& graph, const std::vector<analysis::FunctionWords>& words);

  // Whether word `index` of a launch of `function` is known to be a pointer that the kernel was given:
  // - its type says so, or it is a parameter of its own, of 8 bytes, that is no number by type;
  // - a known-kernel table names its offset;
  // - all words of its struct always look like addresses, and at least half of each word's lie in memory of the recording: an
  //   array of pointers (memory that was made and freed outside capture is not always on record);
  // - its struct is small, all that was passed there looks like an address, and it can be no padding: that takes whole words only before
  //   or behind a member that is aligned to 16 bytes;
  // - all that graphs pass there was passed outside capture too: memory that lives longer than a step, which what the stack happened to
  //   hold would not be (temporaries of a capture come from its own pool);
  // - nearly all launches pass memory of the recording there (one in eight may not, at least eight do).
  [[nodiscard]] bool is_pointer(const ir::Recording& recording, const analysis::KernelIdentity& identity, ir::FunctionId function,
                                std::size_t index) const;

  // Whether the struct that word `index` belongs to was seen with an address of the host's stack or libraries in one of its words: what
  // nobody wrote is passed along with it, and an address in one of its other words may be such a leftover too.
  [[nodiscard]] bool holds_leftovers(const ir::Recording& recording, ir::FunctionId function, std::size_t index) const;

 private:
  struct Word {
    std::uint64_t inside = 0, elsewhere = 0;  // launches in which it pointed into known memory, and in which it did not
    std::uint64_t numbers = 0;                // of the latter: too small or too large for an address
    std::uint64_t first = 0;                  // the first address
    bool several = false;                     // more than one was seen
    bool in_struct = false;
    bool many = false;                        // more addresses than are kept
    std::vector<std::uint32_t> regions;       // of values in no known memory that could be addresses, each once
    std::vector<std::uint64_t> in_graphs, outside_capture;  // the addresses, each once
    ir::ParamWord word;                       // an example
  };
  static bool can_be_no_padding(const std::vector<Word>& words, std::size_t index);
  std::vector<std::vector<Word>> words_;      // by function, by word
};

// "argument 2 (float const*)", "argument 0, byte 16"
std::string argument_name(const analysis::KernelIdentity& identity, std::uint16_t slot, std::uint16_t offset_bytes);

// How many frames two stacks share, from the innermost outwards. 0 where one is unknown.
std::size_t common_frames(const ir::Recording& recording, ir::StackId a, ir::StackId b);
// Whether that many shared frames reach the line in the user's source: the launches were made at the same place.
bool same_place(const ir::Recording& recording, ir::StackId stack, std::size_t common);
// Whether both launches were made in one native function, perhaps at different lines.
bool same_native_function(const ir::Recording& recording, ir::StackId a, ir::StackId b);

}  // namespace cglint::rules
