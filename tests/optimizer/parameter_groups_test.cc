#include "forebay/optimizer/parameter_groups.h"

#include "gtest/gtest.h"

namespace forebay {
namespace {

TEST(ParameterGroups, NeighboursOfOneGroupShareARunAndPaddingJoinsTheRunBefore) {
  Inventory inventory;
  inventory.BeginLayer("first");
  inventory.Add("small", {5}, 0, true);
  inventory.Add("a", {1, 100}, 0, true);
  inventory.Add("b", {10, 10}, 0, true);
  inventory.Add("c", {1, 3}, 0, false);
  inventory.Add("d", {1, 5}, 0, true);
  inventory.BeginLayer("second");
  inventory.Add("e", {7}, 0, false);

  const ParameterGroups groups = DecayGroups(inventory, 0.1);
  EXPECT_EQ(groups.groups[0].weight_decay, 0.1);
  EXPECT_EQ(groups.groups[1].weight_decay, 0);
  const std::vector<GroupRun> runs = GroupRunsOf(inventory, 0, groups.of_tensor);
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_EQ(runs[0].first_elem, 0);
  EXPECT_EQ(runs[0].end_elem, 256);
  EXPECT_EQ(runs[0].group, 0);
  EXPECT_EQ(runs[1].first_elem, 256);
  EXPECT_EQ(runs[1].end_elem, 320);
  EXPECT_EQ(runs[1].group, 1);
  EXPECT_EQ(runs[2].first_elem, 320);
  EXPECT_EQ(runs[2].end_elem, 2 * kLayerAlignElems);  // "small" lies behind the others
  EXPECT_EQ(runs[2].group, 0);

  const std::vector<GroupRun> second = GroupRunsOf(inventory, 1, groups.of_tensor);
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(second[0].end_elem, kLayerAlignElems);
  EXPECT_EQ(second[0].group, 1);
}

TEST(ParameterGroups, PaddingLiesBetweenAndBehindTheTensors) {
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
