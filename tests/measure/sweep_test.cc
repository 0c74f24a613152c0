#include "forebay/measure/sweep.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"

namespace forebay {
namespace {

SweepPoint Point(int64_t block, int64_t inflight, std::vector<double> gbps,
                 EngineKind engine = EngineKind::kIoUring) {
  return {block, inflight, engine, std::move(gbps)};
}

TEST(SweepPoint, AStarvedLoadMakesABadScore) {
  EXPECT_DOUBLE_EQ(Point(1, 1, {2, 2}).score(), 2);
  EXPECT_LT(Point(1, 1, {4, 0.5}).score(), 2);
  EXPECT_EQ(Point(1, 1, {}).score(), 0);
}

TEST(KneePoint, IsTheFewestBytesInFlightThatReachNearlyTheBest) {
  const std::vector<SweepPoint> points = {
      Point(1, 64, {2.0}), Point(1, 4, {1.95}), Point(1, 2, {1.8}),
      Point(1, 8, {1.99}), Point(2, 2, {1.99}), Point(1, 1, {2.0}, EngineKind::kLibaio)};
  EXPECT_EQ(BestPoint(points).inflight_bytes, 64);
  EXPECT_EQ(KneePoint(points).inflight_bytes, 4);
  EXPECT_EQ(KneePoint(points, 1.0).inflight_bytes, 64);
}

TEST(StripeOrder, GivesEveryFileItsShareEvenlySpread) {
  const std::vector<double> weights = {3, 1};
  const std::vector<int> order = StripeOrder(weights);
  EXPECT_EQ(std::ranges::count(order, 0), 3 * std::ranges::count(order, 1));
  int run = 0;
  for (const int file : order) {
    run = file == 0 ? run + 1 : 0;
    EXPECT_LE(run, 3);
  }
}

TEST(StripeOrder, OfOneFileIsThatFile) {
  const std::vector<double> weights = {0.7};
  EXPECT_EQ(StripeOrder(weights), std::vector<int>{0});
}

TEST(StorageWarnings, AreSilentAboutAGoodDisk) {
  EXPECT_TRUE(
      StorageWarnings({.path = "/x", .fs = "ext4", .mount_options = "rw,relatime"}).empty());
}

TEST(StorageWarnings, NameWhatIsWrong) {
  EXPECT_EQ(StorageWarnings({.path = "/x", .fs = "tmpfs"}).size(), 1u);
  EXPECT_EQ(StorageWarnings({.path = "/x", .fs = "btrfs"}).size(), 1u);
  EXPECT_EQ(StorageWarnings({.path = "/x", .fs = "ext4", .mount_options = "rw,nobarrier"}).size(),
            1u);
  EXPECT_EQ(StorageWarnings({.path = "/x", .fs = "ext4", .mount_options = "rw,nodiscard"}).size(),
            0u);
  StorageInfo narrow = {.path = "/x", .fs = "ext4"};
  narrow.pcie = {"8.0 GT/s PCIe", 2, "8.0 GT/s PCIe", 4};
  EXPECT_EQ(StorageWarnings(narrow).size(), 1u);
}

}  // namespace
}  // namespace forebay
