#include "capture/allocation_timeline.h"

#include <algorithm>

namespace cglint::capture {

void AllocationTimeline::free(std::map<std::uint64_t, AllocationRow>::iterator place, std::uint64_t sequence) {
  place->second.free_sequence = sequence;
  held_freed_ = held_freed_ || place->second.is_held;
  if (changed_.erase(place->first) != 0) {
    short_lived_.push_back(place->second);
    if (short_lived_.size() > kMaxShortLived) {
      short_lived_.pop_front();
      ++forgotten_;
    }
  } else {
    freed_.push_back(place->second);
  }
  live_.erase(place);
}

void AllocationTimeline::add(std::uint64_t base, std::uint64_t size_bytes, const char* kind,
                             std::int32_t device, std::uint64_t sequence) {
  if (base == 0 || size_bytes == 0) return;
  const std::uint64_t end = base + size_bytes;
  auto place = live_.upper_bound(base);
  if (place != live_.begin()) {
    const auto before = std::prev(place);
    if (before->second.base + before->second.size_bytes > base) place = before;
  }
  while (place != live_.end() && place->first < end) {
    const auto next = std::next(place);
    free(place, sequence);
    ++overlaps_;
    place = next;
  }
  live_.emplace(base, AllocationRow{next_id_++, base, size_bytes, kind, device, sequence, 0, false});
  changed_.insert(base);
}

bool AllocationTimeline::remove(std::uint64_t base, std::uint64_t sequence) {
  const auto place = live_.find(base);
  if (place == live_.end()) return false;
  free(place, sequence);
  return true;
}

void AllocationTimeline::restore(const AllocationRow& row) {
  const auto is_same = [&](const AllocationRow& each) { return each.id == row.id; };
  if (live_.contains(row.base)) return;  // somebody else's by now
  std::erase_if(freed_, is_same);
  std::erase_if(short_lived_, is_same);
  live_.emplace(row.base, row);
  changed_.insert(row.base);
}

void AllocationTimeline::remove_range(std::uint64_t base, std::uint64_t size_bytes, std::uint64_t sequence) {
  auto place = live_.lower_bound(base);
  while (place != live_.end() && place->first - base < size_bytes) {
    const auto next = std::next(place);
    free(place, sequence);
    place = next;
  }
}

void AllocationTimeline::hold(std::uint64_t address) {
  auto place = live_.upper_bound(address);
  if (address == 0 || place == live_.begin()) return;
  --place;
  if (address - place->first < place->second.size_bytes) place->second.is_held = true;
}

const AllocationRow* AllocationTimeline::find(std::uint64_t address) const {
  auto place = live_.upper_bound(address);
  if (place == live_.begin()) return nullptr;
  --place;
  return address - place->first < place->second.size_bytes ? &place->second : nullptr;
}

std::vector<AllocationRow> AllocationTimeline::take_changes() {
  std::vector<AllocationRow> rows = std::move(freed_);
  freed_.clear();
  rows.insert(rows.end(), short_lived_.begin(), short_lived_.end());
  short_lived_.clear();
  for (const std::uint64_t base : changed_) rows.push_back(live_.at(base));
  changed_.clear();
  std::sort(rows.begin(), rows.end(),
            [](const AllocationRow& a, const AllocationRow& b) { return a.id < b.id; });
  return rows;
}

}  // namespace cglint::capture
