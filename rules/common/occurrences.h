// One cause is one finding with its occurrences. A finding lists the first ones and counts all.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "engine/finding.h"

namespace cglint::rules {

inline constexpr std::size_t kMaxOccurrences = 256;

// Whether one more would be listed.
inline bool lists_more(const engine::Finding& finding) { return finding.occurrences.size() < kMaxOccurrences; }

// Sets the count to the size of `places` (at least 1) and lists `describe(place)`, an engine::Occurrence, for the first
// kMaxOccurrences of them.
template <typename Places, typename Describe>
void set_occurrences(engine::Finding& finding, const Places& places, const Describe& describe) {
  finding.occurrences.clear();
  std::size_t count = 0;
  for (const auto& place : places)
    if (++count <= kMaxOccurrences) finding.occurrences.push_back(describe(place));
  finding.occurrence_count =
      static_cast<std::uint32_t>(std::clamp<std::size_t>(count, 1, std::numeric_limits<std::uint32_t>::max()));
}

}  // namespace cglint::rules
