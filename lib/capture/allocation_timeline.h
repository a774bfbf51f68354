// The process's device memory over time: what is mapped now, and under which id each range is known in the
// capture file. Addresses that are freed and handed out again get a new id. Not thread safe.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

namespace cglint::capture {

struct AllocationRow {
  std::uint32_t id = 0;
  std::uint64_t base = 0, size_bytes = 0;
  const char* kind = "unknown";  // a name of the schema's allocation.kind
  std::int32_t device = -1;
  std::uint64_t alloc_sequence = 0, free_sequence = 0;  // 0: before recording, not freed
};

class AllocationTimeline {
 public:
  // What overlaps the new range counts as freed: its free was not seen.
  void add(std::uint64_t base, std::uint64_t size_bytes, const char* kind, std::int32_t device,
           std::uint64_t sequence);
  // The allocation that starts at `base`; false if there is none.
  bool remove(std::uint64_t base, std::uint64_t sequence);
  // Every allocation that starts inside the range (memory that was mapped in pieces and is unmapped at once).
  void remove_range(std::uint64_t base, std::uint64_t size_bytes, std::uint64_t sequence);
  // The live allocation that contains the address, or null. Valid until the next change.
  [[nodiscard]] const AllocationRow* find(std::uint64_t address) const;
  // Rows that are new or changed since the last call; freed ones that were reported are forgotten.
  std::vector<AllocationRow> take_changes();

  [[nodiscard]] std::size_t live() const { return live_.size(); }
  [[nodiscard]] std::uint64_t overlaps() const { return overlaps_; }

 private:
  struct Entry {
    AllocationRow row;
    bool changed = true;
  };
  void free(std::map<std::uint64_t, Entry>::iterator place, std::uint64_t sequence);

  std::map<std::uint64_t, Entry> live_;  // by base
  std::vector<AllocationRow> freed_;     // not yet reported
  std::vector<std::uint64_t> changed_;   // bases, possibly freed meanwhile
  std::uint32_t next_id_ = 0;
  std::uint64_t overlaps_ = 0;
};

}  // namespace cglint::capture
