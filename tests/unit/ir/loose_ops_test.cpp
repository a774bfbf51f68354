#include "ir/loose_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

namespace cglint::ir {
namespace {

std::vector<LooseOp> all_of(const LooseOpStore& store) { return {store.begin(), store.end()}; }

TEST(LooseOps, EveryValueComesBack) {
  constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min(), kMost = std::numeric_limits<std::int64_t>::max();
  std::vector<LooseOp> ops;
  for (const std::int64_t start : {std::int64_t{0}, std::int64_t{1'700'000'000'000'000'000}, kLeast, kMost})
    for (const std::int64_t end : {start, start < kMost - 5'000'000'000 ? start + 5'000'000'000 : kMost, kLeast})
      for (const std::uint64_t correlation : {std::uint64_t{0}, std::uint64_t{7}, std::uint64_t{0xffffffff}, std::uint64_t{0x100000007}, ~std::uint64_t{0}})
        for (const std::int32_t device : {0, -1, std::numeric_limits<std::int32_t>::min()})
          ops.push_back({StringId(static_cast<std::uint32_t>(ops.size() % 5)), start, end, ops.size() % 3 == 0 ? ~std::uint64_t{0} : 7,
                         correlation, device, ops.size() % 2 == 0 ? NodeKind::memcpy : NodeKind::kernel});
  LooseOpStore store;
  EXPECT_TRUE(store.empty());
  store.reserve(ops.size());
  for (const LooseOp& op : ops) store.push_back(op);
  EXPECT_EQ(store.size(), ops.size());
  EXPECT_EQ(all_of(store), ops);
}

TEST(LooseOps, SortedByStartAndWhatStartsTogetherKeepsItsOrder) {
  for (const std::int64_t range : {1, 50, 100'000}) {
    std::mt19937_64 random(static_cast<std::uint64_t>(range));
    std::vector<LooseOp> ops;
    LooseOpStore store;
    for (std::uint64_t i = 0; i < 3000; ++i) {
      LooseOp op;
      op.start_ns = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(range));
      op.end_ns = op.start_ns + 10;
      op.correlation = i;
      op.stream = random() % 4;
      if (i % 500 == 0) op.start_ns -= std::numeric_limits<std::int64_t>::max();  // kept in the list beside the others
      ops.push_back(op);
      store.push_back(op);
    }
    std::stable_sort(ops.begin(), ops.end(), [](const LooseOp& a, const LooseOp& b) { return a.start_ns < b.start_ns; });
    store.sort_by_start();
    EXPECT_EQ(all_of(store), ops) << range;
    store.sort_by_start();
    EXPECT_EQ(all_of(store), ops) << range;
  }
  LooseOpStore none;
  none.sort_by_start();
  EXPECT_TRUE(none.empty());
}

}  // namespace
}  // namespace cglint::ir
