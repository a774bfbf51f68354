// Python source frames of the calling thread, in a process whose Python (3.9 or later) is found among the
// loaded libraries at run time. Safe from inside a driver call, with or without the interpreter lock:
//   - a thread that holds the lock walks its own frames;
//   - for a thread that gave it up for the call, a helper thread takes the lock and walks; the caller waits
//   at most
//     `timeout_ms` for it to get the lock, so that a thread that keeps the lock while it waits for us cannot
//     block the process;
//   - a thread without a Python thread state has no frames; nor has, in a free-threaded Python, one that is
//     not attached: there is no lock that a helper could take.
#pragma once

#include <cstdint>
#include <vector>

#include "capture/stack_table.h"

namespace cglint::capture {

enum class FramesResult : std::uint8_t {
  ok,
  no_python,  // not a Python process, or a thread that Python does not know
  timed_out,  // the interpreter lock was not free in time
};

inline constexpr int kFramesTimeoutMs = 20;
inline constexpr int kMaxFrames = 32;

// Innermost first, at most kMaxFrames.
FramesResult python_frames(std::vector<FrameText>& frames, int timeout_ms = kFramesTimeoutMs);

}  // namespace cglint::capture
