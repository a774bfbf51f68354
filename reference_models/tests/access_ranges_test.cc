// Byte ranges of measured accesses; the device's part is checked on a GPU (tools/gpu_checks).
#include <gtest/gtest.h>

#include "runner/access_ranges.h"

namespace cglint::models {
namespace {

ChangedGranule granule(std::uint64_t number, std::initializer_list<int> bytes) {
  ChangedGranule granule;
  granule.number = number;
  for (const int byte : bytes) granule.mask[byte / 8] = static_cast<std::uint8_t>(granule.mask[byte / 8] | 1U << (byte % 8));
  return granule;
}

TEST(ChangedRanges, FollowBytesAcrossGranulesInAnyOrder) {
  using Ranges = std::vector<ByteRange>;
  EXPECT_EQ(changed_ranges({granule(1, {0, 1}), granule(0, {254, 255})}, 0x1000, 0), (Ranges{{0x10FE, 0x1102}}));
  EXPECT_EQ(changed_ranges({granule(0, {0, 9})}, 0, 0), (Ranges{{0, 1}, {9, 10}}));
  EXPECT_EQ(changed_ranges({granule(0, {0, 9})}, 0, 8), (Ranges{{0, 10}}));
  EXPECT_EQ(changed_ranges({}, 0, 8), Ranges{});
}

TEST(Merged, DropsEmptyOnesAndJoinsWhatTouches) {
  EXPECT_EQ(merged({{8, 12}, {0, 4}, {4, 8}, {20, 20}, {30, 31}}, 0), (std::vector<ByteRange>{{0, 12}, {30, 31}}));
  EXPECT_EQ(merged({{0, 100}, {10, 20}}, 0), (std::vector<ByteRange>{{0, 100}}));
}

TEST(CutAtBorders, EveryCellIsInOrOutsideOfEachSet) {
  const std::vector<std::vector<ByteRange>> sets = {{{0, 10}, {20, 30}}, {{5, 25}}, {{40, 50}}};
  const std::vector<ByteRange> cells = cut_at_borders(sets);
  EXPECT_EQ(cells, (std::vector<ByteRange>{{0, 5}, {5, 10}, {10, 20}, {20, 25}, {25, 30}, {40, 50}}));
  for (const std::vector<ByteRange>& set : sets)
    for (const ByteRange& cell : cells)
      for (const ByteRange& range : set) {
        const bool overlaps = cell.begin < range.end && range.begin < cell.end;
        const bool inside = range.begin <= cell.begin && cell.end <= range.end;
        EXPECT_EQ(overlaps, inside);
      }
}

}  // namespace
}  // namespace cglint::models
