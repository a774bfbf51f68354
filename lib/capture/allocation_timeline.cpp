#include "capture/allocation_timeline.h"

#include <algorithm>

namespace cglint::capture {

void AllocationTimeline::free(std::map<std::uint64_t, Entry>::iterator place, std::uint64_t sequence) {
  place->second.row.free_sequence = sequence;
  freed_.push_back(place->second.row);
  live_.erase(place);
}

void AllocationTimeline::add(std::uint64_t base, std::uint64_t size_bytes, const char* kind,
                             std::int32_t device, std::uint64_t sequence) {
  if (base == 0 || size_bytes == 0) return;
  const std::uint64_t end = base + size_bytes;
  auto place = live_.upper_bound(base);
  if (place != live_.begin()) {
    const auto before = std::prev(place);
    if (before->second.row.base + before->second.row.size_bytes > base) place = before;
  }
  while (place != live_.end() && place->first < end) {
    const auto next = std::next(place);
    free(place, sequence);
    ++overlaps_;
    place = next;
  }
  Entry entry;
  entry.row = {next_id_++, base, size_bytes, kind, device, sequence, 0};
  live_.emplace(base, entry);
  changed_.push_back(base);
}

bool AllocationTimeline::remove(std::uint64_t base, std::uint64_t sequence) {
  const auto place = live_.find(base);
  if (place == live_.end()) return false;
  free(place, sequence);
  return true;
}

void AllocationTimeline::remove_range(std::uint64_t base, std::uint64_t size_bytes, std::uint64_t sequence) {
  auto place = live_.lower_bound(base);
  while (place != live_.end() && place->first - base < size_bytes) {
    const auto next = std::next(place);
    free(place, sequence);
    place = next;
  }
}

const AllocationRow* AllocationTimeline::find(std::uint64_t address) const {
  auto place = live_.upper_bound(address);
  if (place == live_.begin()) return nullptr;
  --place;
  return address - place->first < place->second.row.size_bytes ? &place->second.row : nullptr;
}

std::vector<AllocationRow> AllocationTimeline::take_changes() {
  std::vector<AllocationRow> rows = std::move(freed_);
  freed_.clear();
  for (const std::uint64_t base : changed_) {
    const auto place = live_.find(base);
    if (place == live_.end() || !place->second.changed) continue;
    place->second.changed = false;
    rows.push_back(place->second.row);
  }
  changed_.clear();
  std::sort(rows.begin(), rows.end(),
            [](const AllocationRow& a, const AllocationRow& b) { return a.id < b.id; });
  return rows;
}

}  // namespace cglint::capture
