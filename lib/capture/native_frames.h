// Native source frames of the calling thread: module, function and offset; the line where the module has a line
// table that is quickly read (elf_lines.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "capture/stack_table.h"

namespace cglint::capture {

inline constexpr int kMaxNativeFrames = 32;
inline constexpr int kMaxNativeFramesBesidePython = 20;

// Return addresses, innermost first; returns how many there are. Stops where a module has no unwind
// information. The first `skip` frames are left out.
std::size_t native_addresses(std::span<std::uintptr_t> addresses, int skip);

struct NativeFrame {
  std::uintptr_t address = 0;
  // out. Without a line `file` is the module, and `function` the demangled symbol with the offset in it, or the
  // offset in the module (for addr2line) where neither of its symbol tables has one.
  FrameText text;
  std::string symbol;  // as the linker knows it; empty: unknown
  // Where a kernel's launch was put into this frame: the line that launches; without a line where it is not known.
  FrameText launch;
  // Not the user's code: the driver, the CUDA runtime (often linked into the program), CUPTI, this recorder.
  bool is_cuda = false;
  // What the compiler puts between a kernel launch and the runtime; the next frame is its wrapper, or what that was put into.
  bool is_launch_stub = false;
  // A function of the CUDA runtime by its name, perhaps linked into the program: left out at the inner end.
  bool is_runtime = false;
};
// Takes the loader's lock.
void describe_frames(std::span<NativeFrame> frames);

// Is `symbol` the function under a kernel's name that calls its launch stub?
bool is_launch_wrapper(std::string_view stub, std::string_view symbol);

bool is_cuda_module(std::string_view path);

}  // namespace cglint::capture
