// Native source frames of the calling thread: module, nearest symbol and offset. Lines are not looked up.
#pragma once

#include <cstdint>
#include <span>

#include "capture/stack_table.h"

namespace cglint::capture {

inline constexpr int kMaxNativeFrames = 32;

// Return addresses, innermost first; returns how many there are. Stops where a module has no unwind
// information. The first `skip` frames are left out.
std::size_t native_addresses(std::span<std::uintptr_t> addresses, int skip);

// `function` is the demangled symbol and the offset in it, or the offset in the module (for addr2line) where
// neither of the module's symbol tables has one; `file` is the module. Takes the loader's lock.
FrameText describe_address(std::uintptr_t address);

// The CUDA driver, its runtime library, CUPTI: what lies between the caller's code and us.
bool is_cuda_module(std::string_view path);
bool is_cuda_frame(const FrameText& frame);

}  // namespace cglint::capture
