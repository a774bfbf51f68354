#include "import/common/op_store.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <random>

namespace cglint::import {
namespace {

struct Op {
  std::uint64_t key = 0, payload = 0;
};

// Pages of this process that are in memory.
std::size_t resident_bytes() {
  std::FILE* const file = std::fopen("/proc/self/statm", "r");
  EXPECT_NE(file, nullptr);
  unsigned long size = 0, resident = 0;
  EXPECT_EQ(std::fscanf(file, "%lu %lu", &size, &resident), 2);
  std::fclose(file);
  return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

TEST(OpStore, KeepsAndSortsInPlace) {
  std::mt19937_64 random(3);
  OpStore<Op> store;
  EXPECT_TRUE(store.empty());
  constexpr std::uint32_t kCount = 100'003;  // several chunks and a part of one
  for (std::uint32_t i = 0; i < kCount; ++i) store.push_back({random() % 5000, i});
  ASSERT_EQ(store.size(), kCount);
  std::vector<std::uint32_t> order(kCount);
  for (std::uint32_t i = 0; i < kCount; ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return store[a].key != store[b].key ? store[a].key < store[b].key : a < b;
  });
  std::vector<std::uint64_t> expected;
  for (const std::uint32_t i : order) expected.push_back(store[i].payload);
  store.permute(0, order);
  for (std::uint32_t i = 0; i < kCount; ++i) ASSERT_EQ(store[i].payload, expected[i]) << i;
}

TEST(OpStore, MovesRuns) {
  std::mt19937_64 random(4);
  for (int round = 0; round < 50; ++round) {
    OpStore<Op> store;
    std::vector<OpStore<Op>::Run> runs;
    std::uint32_t count = 0;
    for (std::uint64_t n = random() % 300; n > 0; --n) {
      const auto length = static_cast<std::uint32_t>(1 + random() % (round % 2 == 0 ? 3 : 400));
      runs.push_back({count, length});
      for (std::uint32_t i = 0; i < length; ++i, ++count) store.push_back({0, count});
    }
    if (round % 3 != 0) std::shuffle(runs.begin(), runs.end(), random);
    else if (runs.size() > 1) std::swap(runs.front(), runs.back());
    store.permute_runs(runs);
    std::size_t at = 0;
    for (const auto& run : runs)
      for (std::uint32_t i = 0; i < run.count; ++i, ++at) ASSERT_EQ(store[at].payload, run.first + i);
  }
}

TEST(OpStore, GivesMemoryBackWhileItIsUsedUp) {
  constexpr std::size_t kCount = 4'000'000;  // 64 MB
  OpStore<Op> store;
  for (std::size_t i = 0; i < kCount; ++i) store.push_back({i, ~i});
  const std::size_t full = resident_bytes();
  store.release(0, 1'000'001);
  store.release(1'000'001, 2'000'000);
  EXPECT_LT(resident_bytes() + 40'000'000, full);
  for (std::size_t i = 3'000'001; i < kCount; ++i) ASSERT_EQ(store[i].payload, ~i);
  for (std::size_t i = kCount; i-- > 3'000'001;) store.release(i, 1);  // in any order
  EXPECT_LT(resident_bytes() + 56'000'000, full);
}

}  // namespace
}  // namespace cglint::import
