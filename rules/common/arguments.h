// What rules about kernel arguments share: what an argument word can be, how it is named, and whether two launches were made at
// the same place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "analysis/kernel_identity.h"
#include "ir/graph.h"
#include "ir/recording.h"

namespace cglint::rules {

// From types alone, whatever the value: `pointer` and `scalar` are certain, `unknown` is a word of a struct or of a kernel whose
// signature is not known. Words that are not 8 bytes wide are scalars.
enum class WordType : std::uint8_t { unknown, pointer, scalar };
WordType word_type(const ir::Recording& recording, const analysis::KernelIdentity& identity, ir::FunctionId function,
                   const ir::ParamWord& word);

// "argument 2 (float const*)", "argument 0, byte 16"
std::string argument_name(const analysis::KernelIdentity& identity, std::uint16_t slot, std::uint16_t offset_bytes);

// How many frames two stacks share, from the innermost outwards. 0 where one is unknown.
std::size_t common_frames(const ir::Recording& recording, ir::StackId a, ir::StackId b);
// Whether that many shared frames reach the line in the user's source: the launches were made at the same place.
bool same_place(const ir::Recording& recording, ir::StackId stack, std::size_t common);

}  // namespace cglint::rules
