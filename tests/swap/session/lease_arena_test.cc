#include "forebay/swap/session/lease_arena.h"

#include <map>

#include "forebay/base/counter_rng.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

TEST(LeaseArena, GivesTheFirstHoleThatIsLargeEnough) {
  LeaseArena arena(640 + 63);  // whole multiples of 64
  EXPECT_EQ(arena.size_bytes(), 640);
  EXPECT_EQ(arena.Take(128), 0);
  EXPECT_EQ(arena.Take(64), 128);
  EXPECT_EQ(arena.Take(256), 192);
  EXPECT_EQ(arena.Take(256), std::nullopt);
  arena.GiveBack(0, 128);
  EXPECT_EQ(arena.Take(192), 448);
  EXPECT_EQ(arena.Take(64), 0);
  EXPECT_EQ(arena.used_bytes(), 64 + 64 + 256 + 192);
  EXPECT_EQ(arena.peak_bytes(), 64 + 64 + 256 + 192);
}

TEST(LeaseArena, GivesPartsBackAndJoinsThem) {
  LeaseArena arena(256);
  EXPECT_EQ(arena.Take(256), 0);
  arena.GiveBack(64, 64);
  arena.GiveBack(192, 64);
  EXPECT_EQ(arena.Take(128), std::nullopt);
  arena.GiveBack(128, 64);
  EXPECT_EQ(arena.Take(192), 64);
}

TEST(LeaseArena, NeverGivesABytesTwiceAndIsWholeInTheEnd) {
  LeaseArena arena(64 * 50);
  const CounterRng rng(1);
  std::map<int64_t, int64_t> taken;  // begin: bytes
  uint64_t draw = 0;
  for (int i = 0; i < 2000; ++i) {
    if (rng.Below(draw++, 2) == 0 || taken.empty()) {
      const auto bytes = static_cast<int64_t>(64 * (1 + rng.Below(draw++, 9)));
      const std::optional<int64_t> begin = arena.Take(bytes);
      if (!begin.has_value()) continue;
      const auto next = taken.lower_bound(*begin);
      ASSERT_TRUE(next == taken.end() || *begin + bytes <= next->first);
      ASSERT_TRUE(next == taken.begin() ||
                  std::prev(next)->first + std::prev(next)->second <= *begin);
      taken[*begin] = bytes;
    } else {
      const auto given =
          std::next(taken.begin(), static_cast<int64_t>(rng.Below(draw++, taken.size())));
      arena.GiveBack(given->first, given->second);
      taken.erase(given);
    }
  }
  for (const auto& [begin, bytes] : taken) arena.GiveBack(begin, bytes);
  EXPECT_EQ(arena.used_bytes(), 0);
  EXPECT_EQ(arena.Take(64 * 50), 0);
}

TEST(LeaseArena, GivingBackWhatIsFreeIsABug) {
  LeaseArena arena(256);
  EXPECT_EQ(arena.Take(128), 0);
  EXPECT_DEATH(arena.GiveBack(128, 64), "lease_arena.cc");
}

}  // namespace
}  // namespace forebay
