#include "capture/moment_log.h"

#include <time.h>

#include <algorithm>

namespace cglint::capture {

void MomentLog::add(Moment moment) {
  // Threads may come in another order than they asked the clock; a clock that was set back counts as standing still.
  const auto place = std::upper_bound(moments_.begin(), moments_.end(), moment.sequence,
                                      [](std::uint64_t sequence, const Moment& known) { return sequence < known.sequence; });
  moments_.insert(place, moment);
  if (moments_.size() <= kMost) return;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < moments_.size(); ++i)
    if (i >= kMost / 2 || i % 2 == 0) moments_[kept++] = moments_[i];
  moments_.resize(kept);
}

std::uint64_t MomentLog::before(std::int64_t us, const std::vector<Moment>& more) const {
  std::uint64_t sequence = 0;
  for (auto moment = moments_.rbegin(); moment != moments_.rend(); ++moment) {
    if (moment->us > us) continue;
    sequence = moment->sequence;
    break;
  }
  for (const Moment& moment : more)
    if (moment.us <= us) sequence = std::max(sequence, moment.sequence);
  return sequence;
}

std::int64_t wall_clock_us() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return std::int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1000;
}

}  // namespace cglint::capture
