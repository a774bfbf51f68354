// The process's device memory over time: what is mapped now, and under which id each range is known in the
// capture file. Addresses that are freed and handed out again get a new id. Not thread safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <utility>
#include <string_view>
#include <vector>

namespace cglint::capture {

struct AllocationRow {
  std::uint32_t id = 0;
  std::uint64_t base = 0, size_bytes = 0;
  const char* kind = "unknown";  // a name of the schema's allocation.kind
  std::int32_t device = -1;
  std::uint64_t alloc_sequence = 0, free_sequence = 0;  // 0: before recording, not freed
  bool is_held = false;  // a graph has its address
};

// Rows that were made and freed between two calls of take_changes(): of more than these the oldest are
// forgotten. No graph that was written names them.
inline constexpr std::size_t kMaxShortLived = 65536;

class AllocationTimeline {
 public:
  // What overlaps the new range counts as freed: its free was not seen.
  void add(std::uint64_t base, std::uint64_t size_bytes, const char* kind, std::int32_t device,
           std::uint64_t sequence);
  // The allocation that starts at `base`; false if there is none.
  bool remove(std::uint64_t base, std::uint64_t sequence);
  // A call that was to free it failed: it is live again, and not freed in the file. `row`: as find() gave it.
  void restore(const AllocationRow& row);
  // Every allocation that starts inside the range (memory that was mapped in pieces and is unmapped at once).
  void remove_range(std::uint64_t base, std::uint64_t size_bytes, std::uint64_t sequence);
  // The live allocation that contains the address, or null. Valid until the next change.
  [[nodiscard]] const AllocationRow* find(std::uint64_t address) const;
  // A graph has this address.
  void hold(std::uint64_t address);
  // Was memory freed since the last call that a graph has the address of?
  bool take_held_freed() { return std::exchange(held_freed_, false); }
  // Rows that are new or changed since the last call; freed ones that were reported are forgotten.
  std::vector<AllocationRow> take_changes();

  [[nodiscard]] std::size_t live() const { return live_.size(); }
  [[nodiscard]] std::uint64_t overlaps() const { return overlaps_; }
  [[nodiscard]] std::uint64_t forgotten() const { return forgotten_; }

 private:
  void free(std::map<std::uint64_t, AllocationRow>::iterator place, std::uint64_t sequence);

  std::map<std::uint64_t, AllocationRow> live_;      // by base
  std::set<std::uint64_t> changed_;                  // live ones not yet reported, by base
  std::vector<AllocationRow> freed_;                 // reported when they were made, but not yet that they are freed
  std::deque<AllocationRow> short_lived_;            // never reported
  std::uint32_t next_id_ = 0;
  std::uint64_t overlaps_ = 0, forgotten_ = 0;
  bool held_freed_ = false;
};

}  // namespace cglint::capture
