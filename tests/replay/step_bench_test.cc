#include "forebay/replay/step_bench.h"

#include <filesystem>
#include <string>

#include "forebay/base/errors.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;

// Untied: both ends of 1 M elements, and blocks of 2 M.
Inventory ModelInventory(int num_blocks) {
  Inventory inventory;
  const auto add = [&](const std::string& name, int64_t elems) {
    inventory.BeginLayer(name);
    inventory.Add(name, {elems}, 0, true);
  };
  add("embed", 1 << 20);
  for (int block = 0; block < num_blocks; ++block) add("layers." + std::to_string(block), 2 << 20);
  add("head", 1 << 20);
  return inventory;
}

constexpr int64_t kPlenty = int64_t{1} << 40;

int64_t StepBytes(const ReplayPlan& whole, int blocks) {
  const ReplayPlan plan = PlanReplay(WithFewerBlocks(whole.inventory, blocks), whole.options);
  return plan.transfers.read_bytes + plan.transfers.write_bytes + plan.tiles.weight_area_bytes();
}

TEST(BlocksToReplay, AreAllWhereTheTimeIsEnough) {
  const ReplayPlan whole = PlanReplay(ModelInventory(20), {});
  const auto bytes = static_cast<double>(StepBytes(whole, 20));
  EXPECT_EQ(BlocksToReplay(whole, bytes, 1, kPlenty), 20);
  EXPECT_EQ(BlocksToReplay(whole, bytes * 0.99, 1, kPlenty), 19);
}

TEST(BlocksToReplay, AreAsManyAsTheTimeAllowsAndNoFewerThanTheLeast) {
  const ReplayPlan whole = PlanReplay(ModelInventory(20), {});
  EXPECT_EQ(BlocksToReplay(whole, static_cast<double>(StepBytes(whole, 9)) / 30, 30, kPlenty), 9);
  EXPECT_EQ(BlocksToReplay(whole, 1, 1, kPlenty), kLeastSliceBlocks);
  EXPECT_EQ(BlocksToReplay(PlanReplay(ModelInventory(2), {}), 1, 1, kPlenty), 2);
}

TEST(BlocksToReplay, FitTheMemory) {
  const ReplayPlan whole = PlanReplay(ModelInventory(20), {});
  const ReplayPlan seven = PlanReplay(ModelInventory(7), {});
  EXPECT_EQ(BlocksToReplay(whole, 1e15, 1, seven.host_bytes), 7);
  EXPECT_EQ(BlocksToReplay(whole, 1e15, 1, 1 << 20), 0);
  // Gradients on NVMe take none.
  const ReplayPlan spilled = PlanReplay(ModelInventory(20), {.gradients = Tier::kNvme});
  EXPECT_EQ(BlocksToReplay(spilled, 1e15, 1, seven.host_bytes), 20);
}

class StepBenchTest : public testing::Test {
 protected:
  StepBenchTest() {
    options_.targets = {{folder_.path(), 0}};
    options_.inventory = ModelInventory(8);
    options_.replay.tile_elems = 64 << 10;
    options_.size_bytes = 32 << 20;
    options_.ram_bytes = int64_t{1} << 30;
    options_.seconds = 0.05;
  }
  bool FolderIsEmpty() const { return std::filesystem::is_empty(folder_.path()); }

  const TemporaryFolder folder_;
  StepBenchOptions options_;
};

TEST_F(StepBenchTest, MovesWhatThePlanSaysAndLeavesNothing) {
  const auto report = RunStepBench(options_, {});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_GE(report->num_steps, 1);
  const ReplayPlan slice = PlanReplay(ModelInventory(report->num_blocks), report->whole.options);
  EXPECT_EQ(report->slice_transfers.read_bytes, slice.transfers.read_bytes);
  EXPECT_EQ(report->slice_transfers.write_bytes, slice.transfers.write_bytes);
  EXPECT_TRUE(report->folded());
  EXPECT_EQ(report->file_bytes, options_.size_bytes);
  EXPECT_LE(report->peak_bytes, slice.host_bytes);
  EXPECT_GT(report->reading, 0);
  EXPECT_GT(report->writing, 0);
  EXPECT_LE(report->reading + report->writing, 1.001);
  EXPECT_TRUE(FolderIsEmpty());
}

TEST_F(StepBenchTest, ASmallStoreIsNotFolded) {
  options_.size_bytes = int64_t{4} << 30;
  options_.inventory = ModelInventory(1);
  const auto report = RunStepBench(options_, {});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_FALSE(report->folded());
  EXPECT_FALSE(report->sliced());
  EXPECT_EQ(report->step_s.median, report->slice_s.median);
}

TEST_F(StepBenchTest, SeveralFoldersShareTheStoreByTheirWeights) {
  const TemporaryFolder other;
  options_.targets = {{folder_.path(), 3}, {other.path(), 1}};
  const auto report = RunStepBench(options_, {});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->weights_origin, "as asked for");
  const ReplayPlan& whole = report->whole;
  EXPECT_EQ(whole.options.stripe_weights, (StripeWeights{3, 1}));
  ASSERT_EQ(whole.folder_bytes.size(), 2u);
  EXPECT_NEAR(static_cast<double>(whole.folder_bytes[0]) / static_cast<double>(whole.store_bytes),
              0.75, 0.02);
  const ReplayPlan slice = PlanReplay(ModelInventory(report->num_blocks), whole.options);
  EXPECT_EQ(report->slice_transfers.read_bytes, slice.transfers.read_bytes);
  EXPECT_EQ(report->slice_transfers.write_bytes, slice.transfers.write_bytes);
  EXPECT_TRUE(report->folded());
  EXPECT_TRUE(FolderIsEmpty());
  EXPECT_TRUE(std::filesystem::is_empty(other.path()));
  const Json stripes = StepToJson(*report, 600)["stripes"];
  ASSERT_EQ(stripes.size(), 2u);
  EXPECT_EQ(stripes[0]["weight"], 3);
  EXPECT_EQ(stripes[1]["folder"], other.path());
}

TEST_F(StepBenchTest, FoldersWithoutWeightsOnOneFileSystemShareItsSpeed) {
  const TemporaryFolder other;
  options_.targets.push_back({other.path(), 0});
  const auto report = RunStepBench(options_, {});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->weights_origin, HasSubstr("measured: "));
  EXPECT_GT(report->whole.options.stripe_weights[1], 0);
  EXPECT_TRUE(FolderIsEmpty());
  EXPECT_TRUE(std::filesystem::is_empty(other.path()));
}

TEST_F(StepBenchTest, AStopLeavesNothing) {
  for (const int stop_at : {0, 3, 200, 400}) {
    int asked = 0;
    options_.seconds = 3600;
    const auto report = RunStepBench(options_, {.stop = [&] { return ++asked > stop_at; }});
    EXPECT_EQ(ExitCodeOf(report.status()), ExitCode::kInterrupted) << report.status();
    EXPECT_TRUE(FolderIsEmpty());
  }
}

TEST_F(StepBenchTest, AFileWithoutRoomForTheTransfersIsRefused) {
  options_.size_bytes = 1 << 20;
  const absl::Status status = RunStepBench(options_, {}).status();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage);
  EXPECT_THAT(MessageOf(status), HasSubstr("--size=10MiB"));
}

TEST_F(StepBenchTest, TooLittleMemorySaysHowMuchIsNeeded) {
  options_.ram_bytes = 1 << 20;
  absl::Status status = RunStepBench(options_, {}).status();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kDoesNotFit);
  EXPECT_THAT(MessageOf(status), HasSubstr("--gradients=nvme"));
  const std::string message = MessageOf(status);
  options_.ram_bytes = std::stoll(message.substr(message.rfind("--ram=") + 6)) << 20;
  EXPECT_TRUE(RunStepBench(options_, {}).ok());
  EXPECT_TRUE(FolderIsEmpty());
}

TEST_F(StepBenchTest, TheJsonStatesWhatWasDone) {
  const auto report = RunStepBench(options_, {});
  ASSERT_TRUE(report.ok()) << report.status();
  const Json json = StepToJson(*report, 600);
  EXPECT_EQ(json["params"], 18 << 20);
  EXPECT_EQ(json["blocks"], 8);
  EXPECT_EQ(json["durability"], "step");
  EXPECT_EQ(json["extrapolated"], report->sliced());
  EXPECT_EQ(json["replayed"]["blocks"], report->num_blocks);
  EXPECT_EQ(json["steps_until_tbw"],
            static_cast<int64_t>(600e12 / static_cast<double>(json["write_bytes"].get<int64_t>())));
}

TEST_F(StepBenchTest, EveryDurabilityIsReplayedAndLeavesNothing) {
  std::vector<int64_t> written, stored;
  for (const ReplayDurability durability :
       {ReplayDurability::kNone, ReplayDurability::kStep, ReplayDurability::kReplay}) {
    options_.replay.durability = durability;
    const auto report = RunStepBench(options_, {});
    ASSERT_TRUE(report.ok()) << report.status();
    const Json json = StepToJson(*report, 600);
    EXPECT_EQ(json["durability"], NameOf(durability));
    written.push_back(json["write_bytes"]);
    stored.push_back(json["store_bytes"]);
    EXPECT_TRUE(FolderIsEmpty());
  }
  // Seals and records are small; kept gradients are two bytes for each parameter.
  EXPECT_LT(written[1] - written[0], written[0] / 100);
  EXPECT_NEAR(static_cast<double>(written[2] - written[1]), 2.0 * (18 << 20), 1e6);
  EXPECT_GT(stored[1], stored[0] + 12 * (18 << 20) - 1'000'000);
  EXPECT_NEAR(static_cast<double>(stored[2] - stored[1]), 2.0 * (18 << 20), 1e6);
}

}  // namespace
}  // namespace forebay
