// Which sequence number belongs to a time of the wall clock: for events that another library dated itself. Not thread
// safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cglint::capture {

struct Moment {
  std::int64_t us = 0;  // since 1970
  std::uint64_t sequence = 0;
};

class MomentLog {
 public:
  // The most that are kept; beyond, every second of the older half goes.
  static constexpr std::size_t kMost = 65536;
  void add(Moment moment);
  // The sequence number of the last moment that is not after `us`, among those kept and `more`; 0: none is.
  [[nodiscard]] std::uint64_t before(std::int64_t us, const std::vector<Moment>& more = {}) const;

 private:
  std::vector<Moment> moments_;  // in the order of their sequence numbers
};

// The wall clock, in microseconds since 1970.
std::int64_t wall_clock_us();

}  // namespace cglint::capture
