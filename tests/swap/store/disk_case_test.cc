// The tools of the crash tests, which would otherwise find nothing and say nothing.
#include "forebay/tests/swap/store/disk_case.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

DiskEvent WriteOf(const std::string& file, int64_t offset_bytes, size_t num_sectors, char byte) {
  return {false, "/somewhere/" + file, offset_bytes,
          std::vector(num_sectors * kSectorBytes, static_cast<std::byte>(byte))};
}
DiskEvent FlushOf(const std::string& file) {
  return {true, "/elsewhere/" + file, 0, {}};
}

TEST(DiskCaseTest, EachFateIsDoneToTheBytes) {
  const std::vector<DiskEvent> events = {WriteOf("0/a", 512, 2, 'x')};
  const Image start = {{"0/a", std::string(2048, '.')}, {"0/b", std::string(2048, '.')}};
  const auto a_after = [&](const Fate& fate) {
    return ImageOf(start, events, {1, {{0, fate}}}).at("0/a");
  };
  const std::string dots(512, '.');
  const std::string xs(512, 'x');
  EXPECT_EQ(ImageOf(start, events, {0, {}}), start);
  EXPECT_EQ(ImageOf(start, events, {1, {}}).at("0/a"), dots + xs + xs + dots);
  EXPECT_EQ(a_after(Lost()), start.at("0/a"));
  EXPECT_EQ(a_after(Torn(1)), dots + xs + dots + dots);
  EXPECT_EQ(a_after(Fate{.kept_sectors = 2}), dots + dots + xs + dots);
  EXPECT_EQ(a_after(Misdirected("0/a", 1024)), dots + dots + xs + xs);
  EXPECT_EQ(a_after(Misdirected("0/b", 0)), start.at("0/a"));
  EXPECT_EQ(ImageOf(start, events, {1, {{0, Misdirected("0/b", 0)}}}).at("0/b"),
            xs + xs + dots + dots);
  EXPECT_EQ(ImageOf(start, events, {1, {{0, Misdirected("0/b", 1536)}}}), start);
  std::string flipped = dots + xs + xs + dots;
  flipped[513] = 'x' ^ 4;
  EXPECT_EQ(a_after(Flipped(10)), flipped);
}

TEST(DiskCaseTest, AFlushKeepsTheWritesOfItsFileThatCameBefore) {
  const std::vector<DiskEvent> events = {WriteOf("0/a", 0, 1, 'x'), WriteOf("0/b", 0, 1, 'x'),
                                         FlushOf("0/a"), WriteOf("0/a", 0, 1, 'y')};
  EXPECT_THAT(UnflushedWrites(events), ElementsAre(1, 3));
}

TEST(DiskCaseTest, OfFewWritesEverySubsetIsLost) {
  const std::vector<DiskEvent> events = {WriteOf("0/a", 0, 1, 'x'), WriteOf("0/b", 0, 1, 'x'),
                                         WriteOf("0/c", 0, 8, 'x')};
  // And the last is torn at each of its sectors; a write of one sector cannot be torn.
  const CrashChoice choice = {.writes_for_all_subsets = 3, .tear_last = true, .num_random = 0};
  EXPECT_EQ(CrashesAfter(events, 3, CounterRng(1), choice).size(), 8u + 7u + 1u);
  EXPECT_EQ(CrashesAfter(events, 0, CounterRng(1), choice).size(), 1u);
}

TEST(DiskCaseTest, ShrinkingLeavesTheCauseAlone) {
  const std::vector<DiskEvent> events(12, WriteOf("0/a", 0, 1, 'x'));
  DiskCase crash{12, {}};
  for (size_t i = 0; i < 12; ++i) crash.fates[i] = i % 2 == 0 ? Lost() : Flipped(3);
  int num_tries = 0;
  const DiskCase least = Shrink(crash, [&](const DiskCase& tried) {
    ++num_tries;
    return tried.num_events > 8 && tried.fates.contains(2) && tried.fates.contains(5);
  });
  EXPECT_EQ(least.num_events, 9u);
  ASSERT_EQ(least.fates.size(), 2u);
  EXPECT_TRUE(least.fates.contains(2) && least.fates.contains(5));
  EXPECT_LT(num_tries, 40);
  EXPECT_THAT(Describe(events, least),
              HasSubstr("event 2: write 0/a at 0, 512 bytes: lost; not flushed\n"
                        "  event 5: write 0/a at 0, 512 bytes: bit 3 flipped; not flushed\n"
                        "  crash behind event 8: write 0/a at 0, 512 bytes\n"));
}

}  // namespace
}  // namespace forebay
