#include "forebay/measure/runs/cell_result.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kGb = 1'000'000'000;

// A second at `gbps`, all of it accounted for.
PassResult Pass(double gbps, int64_t read_bytes, int64_t write_bytes) {
  PassResult pass;
  pass.seconds = static_cast<double>(read_bytes + write_bytes) / gbps / 1e9;
  pass.read_bytes = pass.all_read_bytes = read_bytes;
  pass.write_bytes = pass.all_write_bytes = write_bytes;
  pass.all_ops = 1000;
  pass.all_seconds = 1;
  pass.cpu_s = 0.005;
  pass.process_io = IoAccount{read_bytes, write_bytes};
  pass.disk = DiskAccount{.read_ios = 1000, .read_bytes = read_bytes, .write_bytes = write_bytes};
  pass.punted_bytes = 0;
  pass.submit_ns = 4'000'000;
  pass.submitted_calls = 1000;
  pass.interval_s = 0.1;
  pass.latency.Record(1'000'000);
  return pass;
}

TEST(Summarize, TakesTheMedianOfTheRepeats) {
  const std::vector<PassResult> passes = {Pass(1, kGb, 0), Pass(3, kGb, 0), Pass(2, kGb, 0)};
  const CellResult cell = Summarize(passes);
  EXPECT_DOUBLE_EQ(cell.gbps.median, 2);
  EXPECT_DOUBLE_EQ(cell.gbps.min, 1);
  EXPECT_DOUBLE_EQ(cell.gbps.max, 3);
  EXPECT_EQ(cell.bytes, 3 * kGb);
  EXPECT_EQ(cell.latency.count(), 3);
  EXPECT_FALSE(cell.flushed_gbps.has_value());
}

TEST(Summarize, AddsUpAllThatWasWritten) {
  std::vector<PassResult> passes = {Pass(1, kGb, 10), Pass(1, kGb, 20)};
  passes[0].all_write_bytes = 15;  // in the warm-up too
  EXPECT_EQ(Summarize(passes).written_bytes, 35);
}

TEST(Summarize, CostsAreOverAllThatWasMoved) {
  const CellResult cell = Summarize(std::vector{Pass(1, kGb, 0), Pass(1, kGb, 0)});
  EXPECT_DOUBLE_EQ(cell.cpu_ms_per_gb, 5);
  EXPECT_DOUBLE_EQ(cell.cpu_cores, 0.005);
  EXPECT_DOUBLE_EQ(*cell.submit_us, 4);
  EXPECT_DOUBLE_EQ(*cell.punted, 0);
  EXPECT_DOUBLE_EQ(*cell.splits, 0);
  EXPECT_DOUBLE_EQ(*cell.process_ratio, 1);
  EXPECT_DOUBLE_EQ(*cell.disk_ratio, 1);
}

TEST(Summarize, RequestsBeyondOneForEachOperationAreSplits) {
  PassResult pass = Pass(1, kGb, 0);
  pass.disk->read_ios = 1200;
  pass.disk->read_merges = 300;  // pieces that found together again
  EXPECT_DOUBLE_EQ(*Summarize(std::vector{pass}).splits, 0.5);
}

TEST(Summarize, WhatIsNotKnownStaysUnknown) {
  PassResult pass = Pass(1, kGb, 0);
  pass.punted_bytes = -1;
  pass.process_io.reset();
  pass.disk.reset();
  pass.submitted_calls = 0;
  const CellResult cell = Summarize(std::vector{Pass(1, kGb, 0), pass});
  EXPECT_FALSE(cell.punted.has_value());
  EXPECT_FALSE(cell.process_ratio.has_value());
  EXPECT_FALSE(cell.disk_ratio.has_value());
  EXPECT_FALSE(cell.splits.has_value());
}

TEST(Summarize, OtherTrafficOnTheDiskMakesSplitsUnknown) {
  PassResult pass = Pass(1, kGb, 0);
  // A tenth of a percent more, but it may be in many small requests.
  pass.disk->read_bytes = kGb + kGb / 1000;
  pass.disk->read_ios = 1244;
  EXPECT_FALSE(Summarize(std::vector{pass}).splits.has_value());
}

TEST(Summarize, TrafficInTheOtherDirectionIsNoSplit) {
  PassResult pass = Pass(1, kGb, 0);
  pass.disk->write_bytes = kGb / 100;
  pass.disk->write_ios = 500;
  EXPECT_DOUBLE_EQ(*Summarize(std::vector{pass}).splits, 0);
}

TEST(Summarize, WritesAreTimedWithAndWithoutTheFlush) {
  PassResult pass = Pass(2, 0, 2 * kGb);
  pass.flush_s = 1;
  const CellResult cell = Summarize(std::vector{pass});
  EXPECT_DOUBLE_EQ(cell.gbps.median, 2);
  EXPECT_DOUBLE_EQ(cell.flushed_gbps->median, 1);
  EXPECT_DOUBLE_EQ(*cell.flush_ms, 1000);
}

TEST(Summarize, LongWritesShowTheirFirstAndLastTenSeconds) {
  PassResult pass = Pass(1, 0, 30 * kGb);
  pass.interval_s = 1;
  pass.series.assign(30, kGb);
  std::fill(pass.series.begin() + 15, pass.series.end(), kGb / 4);
  const CellResult cell = Summarize(std::vector{pass});
  EXPECT_DOUBLE_EQ(*cell.first10_gbps, 1);
  EXPECT_DOUBLE_EQ(*cell.last10_gbps, 0.25);
  ASSERT_EQ(cell.series.size(), 30u);
  EXPECT_EQ(cell.series.back(), std::pair(30.0, kGb / 4));
}

TEST(Summarize, ShortOrReadingPassesHaveNoEnds) {
  PassResult reading = Pass(1, 30 * kGb, 0);
  reading.interval_s = 1;
  reading.series.assign(30, kGb);
  EXPECT_FALSE(Summarize(std::vector{reading}).first10_gbps.has_value());
  PassResult brief = Pass(1, 0, 3 * kGb);
  brief.series.assign(30, kGb / 10);
  EXPECT_FALSE(Summarize(std::vector{brief}).first10_gbps.has_value());
}

class VerdictTest : public testing::Test {
 protected:
  VerdictTest() : cell_(Summarize(std::vector{Pass(1, kGb, 0)})) { cell_.key.engine = "io_uring"; }
  std::vector<std::string> Verdict() const { return VerdictOf(cell_, 2); }
  CellResult cell_;
};

TEST_F(VerdictTest, LittleCpuMeansThatTheDeviceIsTheBound) {
  EXPECT_THAT(Verdict(), ElementsAre("device-bound (CPU 0.5 % of one core)"));
}

TEST_F(VerdictTest, HasItsReasonsEvenWhereNothingWasCompleted) {
  cell_.bytes = 0;
  cell_.reasons = {"buffers are not registered"};
  EXPECT_THAT(Verdict(), ElementsAre(HasSubstr("nothing was completed"), HasSubstr("registered")));
}

TEST_F(VerdictTest, WhatWasAskedForMayHoldItBack) {
  cell_.held_back_by = "--flush=every=1";
  EXPECT_THAT(Verdict(), ElementsAre(HasSubstr("not device-bound: held back by --flush=every=1")));
}

TEST_F(VerdictTest, ABusyThreadIsTheBound) {
  cell_.cpu_cores = 0.97;
  EXPECT_THAT(Verdict(), ElementsAre(HasSubstr("CPU-bound: 97 % of one core")));
  cell_.key.engine = "threads";  // which has both cores
  EXPECT_THAT(Verdict(), ElementsAre(HasSubstr("device-bound")));
  cell_.key.engine = "buffered";  // and a page cache that may be the bound
  EXPECT_THAT(Verdict(), ElementsAre(HasSubstr("not CPU-bound")));
}

TEST_F(VerdictTest, FewerBytesAtTheStorageThanAskedForAreCached) {
  cell_.process_ratio = 0.4;
  cell_.disk_ratio = 0.4;
  EXPECT_THAT(Verdict(), Contains(HasSubstr("page cache suspected: the kernel counted only 40 %")));
  cell_.process_ratio = 1;
  EXPECT_THAT(Verdict(), Contains(HasSubstr("below the file system is suspected")));
}

TEST_F(VerdictTest, TwoPercentEitherWayAreNothing) {
  cell_.process_ratio = 0.985;
  cell_.disk_ratio = 1.015;
  EXPECT_EQ(Verdict().size(), 1u);
  EXPECT_TRUE(CountersMatch(cell_));
}

TEST_F(VerdictTest, WhereAnythingElseTookPartTheDeviceIsNotCalledTheBound) {
  for (const auto& [process, disk] :
       {std::pair(1.0, 2.877), std::pair(0.67, 0.683), std::pair(1.0, 0.5), std::pair(1.5, 1.5)}) {
    cell_.process_ratio = process;
    cell_.disk_ratio = disk;
    EXPECT_THAT(Verdict(), Contains("not CPU-bound (CPU 0.5 % of one core)")) << disk;
    EXPECT_FALSE(CountersMatch(cell_)) << disk;
  }
}

TEST_F(VerdictTest, AFileInMemoryIsBoundByMemoryAndHasNoCountersToJudge) {
  cell_.num_files_in_memory = 1;
  cell_.process_ratio = 0;
  cell_.disk_ratio.reset();
  EXPECT_THAT(Verdict(), ElementsAre("bound by memory (CPU 0.5 % of one core)"));
}

TEST_F(VerdictTest, OfAStripeThatIsPartlyInMemoryNoBoundIsTold) {
  cell_.num_files = 3;
  cell_.num_files_in_memory = 2;
  cell_.process_ratio = 0.33;
  EXPECT_THAT(Verdict(), ElementsAre("not CPU-bound, and partly memory: 2 of 3 folders keep their "
                                     "files in RAM (CPU 0.5 % of one core)"));
  cell_.num_files_in_memory = 3;
  EXPECT_THAT(Verdict(), ElementsAre(HasSubstr("bound by memory")));
}

TEST_F(VerdictTest, WithoutCountersNothingMatchesAndTheDeviceIsNotCalledTheBound) {
  cell_.process_ratio.reset();
  EXPECT_THAT(Verdict(), ElementsAre(HasSubstr("device-bound"))) << "the disk's own counter tells";
  cell_.disk_ratio.reset();
  EXPECT_FALSE(CountersMatch(cell_));
  EXPECT_THAT(Verdict(), ElementsAre("not CPU-bound (CPU 0.5 % of one core)"));
}

TEST_F(VerdictTest, MoreBytesAtTheDiskWereNotOurs) {
  cell_.disk_ratio = 1.5;
  EXPECT_THAT(Verdict(), Contains(HasSubstr("was not idle")));
  cell_.process_ratio = 1.5;
  EXPECT_THAT(Verdict(), Contains(HasSubstr("copy on write")));
}

TEST_F(VerdictTest, ReasonsAndWrongBlocksAreSaid) {
  cell_.reasons = {"fell back to libaio"};
  cell_.verified = PatternTally{.num_blocks = 5, .num_stale = 1};
  EXPECT_THAT(Verdict(), Contains(HasSubstr("other bytes")));
  EXPECT_THAT(Verdict(), Contains("fell back to libaio"));
}

TEST_F(VerdictTest, WithoutAnyBytesThereIsNothingToJudge) {
  cell_.bytes = 0;
  EXPECT_THAT(Verdict(), ElementsAre(HasSubstr("longer --time")));
}

}  // namespace
}  // namespace forebay
