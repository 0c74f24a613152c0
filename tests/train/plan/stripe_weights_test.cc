#include "forebay/train/plan/stripe_weights.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>

#include "forebay/aio/faults/limited_disk.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::function<bool()> kGoOn = [] { return false; };

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

TEST(WeightsOfDisks, AreInProportionToTheirSpeed) {
  EXPECT_THAT(WeightsOf({2e9, 1e9}, On({1, 2})), ElementsAre(2, 1));
  EXPECT_THAT(WeightsOf({1e9, 3e9, 1.5e9}, On({1, 2, 3})), ElementsAre(7, 20, 10));
}

TEST(WeightsOfDisks, DoNotShowTheNoiseOfAMeasurement) {
  EXPECT_THAT(WeightsOf({1.00e9, 1.02e9}, On({1, 2})), ElementsAre(1, 1));
  EXPECT_THAT(WeightsOf({0.51e9, 1.01e9}, On({1, 2})), ElementsAre(1, 2));
}

TEST(WeightsOfDisks, OfFoldersOnOneFileSystemEachHasAPartOfItsSpeed) {
  EXPECT_THAT(WeightsOf({2e9, 2e9, 1e9}, On({1, 1, 2})), ElementsAre(1, 1, 1));
}

TEST(WeightsOfDisks, ASlowDiskStillHasAShare) {
  EXPECT_THAT(WeightsOf({5e9, 1e6}, On({1, 2})), ElementsAre(100, 1));
}

TEST(StepSpeed, CountsReadsAndWritesInTurns) {
  EXPECT_DOUBLE_EQ(StepBytesPerSecond({1e9, 1e9}), 1e9);
  // 14 bytes at 2 GB/s and 12 at 1 GB/s take 19 ns.
  EXPECT_DOUBLE_EQ(StepBytesPerSecond({2e9, 1e9}), 26.0 / 19 * 1e9);
}

DiskProfile Profiled(const std::vector<double>& weights) {
  DiskProfile profile;
  for (const double weight : weights) profile.devices.emplace_back().weight = weight;
  return profile;
}

TEST(KnownShares, WhatTheUserSaysComesFirst) {
  TrainOptions options;
  options.nvme_weights = {1, 3};
  const StripeShares shares = KnownShares(options, Profiled({5, 1}), On({1, 2}));
  EXPECT_THAT(shares.weights, ElementsAre(1, 3));
  EXPECT_EQ(shares.origin, "--set=nvme_weights");
  EXPECT_TRUE(shares.is_fixed);
}

TEST(KnownShares, ThenWhatWasMeasuredBefore) {
  const StripeShares shares = KnownShares({}, Profiled({1.5, 0.75}), On({1, 2}));
  EXPECT_THAT(shares.weights, ElementsAre(2, 1));
  EXPECT_EQ(shares.origin, "--bench");
  EXPECT_FALSE(shares.is_fixed);
}

TEST(KnownShares, ElseTheyAreEqualAndStillToBeMeasured) {
  const StripeShares shares = KnownShares({}, {}, On({1, 2, 3}));
  EXPECT_THAT(shares.weights, ElementsAre(1, 1, 1));
  EXPECT_EQ(shares.origin, "");
  EXPECT_THAT(KnownShares({}, Profiled({7}), On({1})).weights, ElementsAre(1));
}

TEST(MeasuredShares, NothingIsWrittenWhereItWouldSayNothingOrHasNoRoom) {
  const auto engine = CreateThreadsEngine({});
  const auto same = MeasuredShares(*engine, On({1, 1}), kGoOn);
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_THAT(same->weights, ElementsAre(1, 1));
  EXPECT_THAT(same->origin, HasSubstr("one file system"));
  MachineLimits full = On({1, 2});
  full.disks[1].free_bytes = 1 << 20;
  const auto no_room = MeasuredShares(*engine, full, kGoOn);
  ASSERT_TRUE(no_room.ok()) << no_room.status();
  EXPECT_THAT(no_room->origin, HasSubstr("too little is free"));
  EXPECT_EQ(engine->stats().write_bytes, 0);
}

// Two disks, one twice as fast as the other, with a folder more on the fast one.
class MeasuredDisks : public testing::Test {
 protected:
  MeasuredDisks() {
    limits_.disks[0].folder = folder_.Path("fast/a");
    limits_.disks[1].folder = folder_.Path("slow/b");
    limits_.disks[2].folder = folder_.Path("fast/c");
    for (const char* disk : {"fast", "slow"}) {
      EXPECT_TRUE(MakeDirectories(folder_.Path(disk)).ok());
    }
  }

  TemporaryFolder folder_;
  MachineLimits limits_ = On({1, 2, 1});
  LimitedDiskCalls disks_{{{folder_.Path("fast"), 400e6}, {folder_.Path("slow"), 200e6}}};
  std::unique_ptr<Engine> engine_ = CreateThreadsEngine({.num_threads = 2}, &disks_);
};

TEST_F(MeasuredDisks, ShareByTheirSpeedAndEachIsTriedOnce) {
  const auto shares = MeasuredShares(*engine_, limits_, kGoOn);
  ASSERT_TRUE(shares.ok()) << shares.status();
  ASSERT_EQ(shares->weights.size(), 3u);
  EXPECT_EQ(shares->weights[0], shares->weights[2]);
  // Whatever else this machine does makes a disk slower than its limit, and never faster.
  double fast = 0, slow = 0, fast_again = 0;
  ASSERT_EQ(std::sscanf(shares->origin.c_str(), "measured: %lf and %lf and %lf GB/s", &fast, &slow,
                        &fast_again),
            3)
      << shares->origin;
  EXPECT_THAT(shares->origin, testing::EndsWith(" GB/s"));
  EXPECT_EQ(fast, fast_again);
  EXPECT_LT(fast, 0.45);
  EXPECT_LT(slow, 0.25);
  // Each folder on the fast disk has half of it. The text is rounded, and so are weights.
  constexpr double kRounded = 0.005;
  const double ratio =
      static_cast<double>(shares->weights[0]) / static_cast<double>(shares->weights[1]);
  EXPECT_GT(ratio, 0.9 * (fast - kRounded) / 2 / (slow + kRounded));
  EXPECT_LT(ratio, 1.1 * (fast + kRounded) / 2 / std::max(slow - kRounded, 1e-3));
  EXPECT_FALSE(shares->is_fixed);
  // Two disks for three folders: a third time would be one for a folder. Each time writes the file
  // and, to measure, at least what is in flight.
  constexpr int64_t kInFlightBytes = 16 << 20;
  EXPECT_LT(engine_->stats().write_bytes, 3 * (kSpeedProbeBytes + kInFlightBytes));
  for (const char* disk : {"fast", "slow"}) {
    EXPECT_TRUE(std::filesystem::is_empty(folder_.Path(disk)));
  }
}

TEST_F(MeasuredDisks, AreLeftAloneOnRequest) {
  int num_asked = 0;
  const auto stopped = MeasuredShares(*engine_, limits_, [&] { return ++num_asked == 3; });
  EXPECT_EQ(ExitCodeOf(stopped.status()), ExitCode::kInterrupted);
  EXPECT_EQ(num_asked, 3);
  EXPECT_LT(engine_->stats().write_bytes, kSpeedProbeBytes);
  EXPECT_TRUE(std::filesystem::is_empty(folder_.Path("fast")));
}

TEST(SharesText, NamesEveryFolderWithItsShare) {
  EXPECT_EQ(SharesText({"/a", "/b"}, {2, 1}, "--bench"), "'/a' 67 %, '/b' 33 % (--bench)");
}

}  // namespace
}  // namespace forebay
