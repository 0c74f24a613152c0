#include "forebay/optimizer/decay_runs.h"

#include "gtest/gtest.h"

namespace forebay {
namespace {

TEST(DecayRuns, NeighboursOfOneSettingShareARunAndPaddingJoinsTheRunBefore) {
  Inventory inventory;
  inventory.BeginLayer("first");
  inventory.Add("a", {100}, 0, true);
  inventory.Add("b", {10, 10}, 0, true);
  inventory.Add("c", {3}, 0, false);
  inventory.Add("d", {5}, 0, true);
  inventory.BeginLayer("second");
  inventory.Add("e", {7}, 0, false);

  const std::vector<DecayRun> runs = DecayRunsOf(inventory, 0);
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_EQ(runs[0].first_elem, 0);
  EXPECT_EQ(runs[0].end_elem, 256);
  EXPECT_TRUE(runs[0].decay);
  EXPECT_EQ(runs[1].first_elem, 256);
  EXPECT_EQ(runs[1].end_elem, 320);
  EXPECT_FALSE(runs[1].decay);
  EXPECT_EQ(runs[2].first_elem, 320);
  EXPECT_EQ(runs[2].end_elem, kLayerAlignElems);
  EXPECT_TRUE(runs[2].decay);

  const std::vector<DecayRun> second = DecayRunsOf(inventory, 1);
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(second[0].end_elem, kLayerAlignElems);
  EXPECT_FALSE(second[0].decay);
}

TEST(DecayRuns, PaddingLiesBetweenAndBehindTheTensors) {
  Inventory inventory;
  inventory.BeginLayer("layer");
  inventory.Add("a", {100}, 0, true);
  inventory.Add("b", {64}, 0, true);
  inventory.Add("c", {3}, 0, false);

  const std::vector<Padding> paddings = PaddingOf(inventory, 0);
  ASSERT_EQ(paddings.size(), 2u);
  EXPECT_EQ(paddings[0].first_elem, 100);
  EXPECT_EQ(paddings[0].end_elem, 128);
  EXPECT_EQ(paddings[1].first_elem, 195);
  EXPECT_EQ(paddings[1].end_elem, kLayerAlignElems);
}

}  // namespace
}  // namespace forebay
