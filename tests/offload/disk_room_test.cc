#include "forebay/offload/disk_room.h"

#include <cstdint>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/offload/machine_limits.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::ElementsAre;

// Folders on file systems of these numbers.
MachineLimits On(const std::vector<uint64_t>& file_systems) {
  MachineLimits limits;
  limits.disks.clear();
  for (const uint64_t file_system : file_systems) {
    DiskLimits& disk = limits.disks.emplace_back();
    disk.folder = "disk" + std::to_string(limits.disks.size());
    disk.file_system = file_system;
  }
  return limits;
}

// Shares in parts of a thousand.
std::vector<int64_t> RoomShares(MachineLimits limits, const std::vector<int64_t>& weights,
                                const std::vector<int64_t>& free_bytes, const SpaceNeeds& needs) {
  for (size_t i = 0; i < weights.size(); ++i) {
    limits.disks[i].weight = weights[i];
    limits.disks[i].free_bytes = free_bytes[i];
  }
  limits.out_file_system = 9;
  std::vector<int64_t> shares = WithinRoom(limits, needs);
  const int64_t total = Total(shares);
  for (int64_t& share : shares) share = (1000 * share + total / 2) / total;
  return shares;
}

TEST(WithinRoom, ADiskGetsWhatItHasRoomForAndTheOthersTheRest) {
  const SpaceNeeds needs = {.total_bytes = 1'000'000};
  EXPECT_THAT(RoomShares(On({1, 2}), {1, 1}, {900'000, 300'000}, needs), ElementsAre(700, 300));
  EXPECT_THAT(RoomShares(On({1, 2}), {9, 1}, {600'000, 900'000}, needs), ElementsAre(600, 400));
  EXPECT_THAT(RoomShares(On({1, 2, 3}), {2, 2, 1}, {-1, 100'000, -1}, needs),
              ElementsAre(600, 100, 300));
  // The rest that a full disk leaves may fill the next one.
  EXPECT_THAT(RoomShares(On({1, 2, 3}), {4, 4, 1}, {500'000, 100'000, 900'000}, needs),
              ElementsAre(500, 100, 400));
  EXPECT_THAT(RoomShares(On({1, 2}), {1, 1}, {0, -1}, needs), ElementsAre(0, 1000));
}

TEST(WithinRoom, FoldersOnOneFileSystemHaveItsRoomTogether) {
  const SpaceNeeds needs = {.total_bytes = 1'000'000};
  EXPECT_THAT(RoomShares(On({1, 1, 2}), {1, 3, 4}, {400'000, 400'000, 900'000}, needs),
              ElementsAre(100, 300, 600));
}

TEST(WithinRoom, CountsTheExportsAndTheSlack) {
  SpaceNeeds needs = {.total_bytes = 1'000'000, .beside_exports_bytes = 200'000};
  MachineLimits limits = On({9, 2});
  EXPECT_THAT(RoomShares(limits, {1, 1}, {400'000, -1}, needs), ElementsAre(200, 800));
  needs.slack_bytes = 50'000;
  EXPECT_THAT(RoomShares(limits, {1, 1}, {400'000, -1}, needs), ElementsAre(150, 850));
}

TEST(WithinRoom, ThereIsNoneWhereTheDisksTogetherAreTooSmall) {
  EXPECT_TRUE(
      RoomShares(On({1, 2}), {1, 1}, {600'000, 300'000}, {.total_bytes = 1'000'000}).empty());
  EXPECT_TRUE(RoomShares(On({1}), {1}, {600'000}, {.total_bytes = 1'000'000}).empty());
}

TEST(RamBudget, IsWhatWasAskedForOrAShareOfWhatThereIs) {
  MachineLimits limits;
  limits.available_memory_bytes = 1000;
  EXPECT_EQ(*RamBudget(0, limits), 800);
  EXPECT_EQ(*RamBudget(1000, limits), 1000);
  EXPECT_EQ(ExitCodeOf(RamBudget(1001, limits).status()), ExitCode::kDoesNotFit);
  limits.available_memory_bytes = 0;  // not known
  EXPECT_EQ(*RamBudget(1001, limits), 1001);
}

}  // namespace
}  // namespace forebay
