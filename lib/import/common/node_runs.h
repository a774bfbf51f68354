// When two operations of one node cannot both be true.
#pragma once

#include <cstdint>

#include "ir/replay_ops.h"

namespace cglint::import {

// Clocks of one timeline may be so far apart, and writers round to microseconds.
inline constexpr std::uint64_t kClockErrorNs = 1000;

// Whether `op` begins before `before`, an operation of the same node in the same launch that began no later, has ended.
// A node of a loop's body may run again in a launch, but not twice at a time.
inline bool runs_into(const ir::ReplayOp& before, const ir::ReplayOp& op) {
  if (before.start_ns == op.start_ns && before.end_ns == op.end_ns) return true;
  return before.end_ns > op.start_ns &&
         static_cast<std::uint64_t>(before.end_ns) - static_cast<std::uint64_t>(op.start_ns) > kClockErrorNs;
}

}  // namespace cglint::import
