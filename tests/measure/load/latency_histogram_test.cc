#include "forebay/measure/load/latency_histogram.h"

#include "gtest/gtest.h"

namespace forebay {
namespace {

TEST(LatencyHistogram, AnEmptyOneHasNothing) {
  const LatencyHistogram histogram;
  EXPECT_EQ(histogram.count(), 0);
  EXPECT_EQ(histogram.PercentileNs(50), 0);
  EXPECT_TRUE(histogram.buckets().empty());
}

TEST(LatencyHistogram, ShortTimesAreExact) {
  LatencyHistogram histogram;
  for (int64_t ns = 1; ns <= 63; ++ns) histogram.Record(ns);
  EXPECT_EQ(histogram.PercentileNs(100.0 / 63), 1);
  EXPECT_EQ(histogram.PercentileNs(50), 32);
  EXPECT_EQ(histogram.PercentileNs(100), 63);
  EXPECT_EQ(histogram.buckets().size(), 63u);
}

TEST(LatencyHistogram, EveryTimeIsFoundWithinAThirtySecondAndNeverBelow) {
  for (int64_t ns = 1; ns < int64_t{1} << 41; ns = ns * 11 / 10 + 1) {
    LatencyHistogram histogram;
    histogram.Record(ns);
    histogram.Record(int64_t{1} << 41);  // so that the largest time does not bound the answer
    const int64_t found = histogram.PercentileNs(50);
    EXPECT_GE(found, ns);
    EXPECT_LE(static_cast<double>(found), static_cast<double>(ns) * (1 + 1.0 / 32)) << ns;
  }
}

TEST(LatencyHistogram, BucketsAreInOrderAndHoldEverything) {
  LatencyHistogram histogram;
  int64_t recorded = 0;
  for (int64_t ns = 0; ns < 1'000'000'000; ns = ns * 3 / 2 + 1) {
    histogram.Record(ns);
    ++recorded;
  }
  int64_t before_ns = -1;
  int64_t sum = 0;
  for (const LatencyHistogram::Bucket& bucket : histogram.buckets()) {
    EXPECT_GT(bucket.le_ns, before_ns);
    EXPECT_GT(bucket.count, 0);
    before_ns = bucket.le_ns;
    sum += bucket.count;
  }
  EXPECT_EQ(sum, recorded);
  EXPECT_EQ(histogram.count(), recorded);
}

TEST(LatencyHistogram, ARareSlowOneShowsInThePercentilesAboveItsShareAlone) {
  LatencyHistogram histogram;
  for (int i = 0; i < 999; ++i) histogram.Record(1000);
  histogram.Record(50'000'000);
  EXPECT_LE(histogram.PercentileNs(99.9), 1032);
  EXPECT_EQ(histogram.PercentileNs(99.95), 50'000'000);
  EXPECT_EQ(histogram.max_ns(), 50'000'000);
}

TEST(LatencyHistogram, WhatLastsLongerThanTheRangeKeepsItsMaximum) {
  LatencyHistogram histogram;
  histogram.Record(INT64_MAX);
  histogram.Record(-5);  // a clock that went backwards
  EXPECT_EQ(histogram.count(), 2);
  EXPECT_EQ(histogram.max_ns(), INT64_MAX);
  EXPECT_EQ(histogram.PercentileNs(50), 0);
}

TEST(LatencyHistogram, AddingIsLikeRecordingInOne) {
  LatencyHistogram one;
  LatencyHistogram other;
  LatencyHistogram both;
  for (int64_t ns = 100; ns < 100'000; ns += 77) {
    (ns % 2 == 0 ? one : other).Record(ns);
    both.Record(ns);
  }
  one.Add(other);
  EXPECT_EQ(one.buckets(), both.buckets());
  EXPECT_EQ(one.max_ns(), both.max_ns());
}

}  // namespace
}  // namespace forebay
