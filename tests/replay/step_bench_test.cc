#include "forebay/replay/step_bench.h"

#include <filesystem>
#include <string>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/tests/replay/must_plan.h"
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

ReplayInputs InputsOf(int num_blocks) {
  return {.inventory = ModelInventory(num_blocks)};
}

// The bytes of a step and of the pass before it.
double BytesOf(int blocks) {
  const OffloadPlan plan = MustPlan(InputsOf(blocks));
  return static_cast<double>(plan.read_bytes_per_step + plan.write_bytes_per_step +
                             plan.tiles.weight_area_bytes());
}

int MustChoose(const ReplayInputs& whole, double bytes_per_s, double seconds, int64_t ram_bytes) {
  const absl::StatusOr<int> blocks = BlocksToReplay(whole, bytes_per_s, seconds, ram_bytes);
  FOREBAY_CHECK(blocks.ok());
  return *blocks;
}

TEST(BlocksToReplay, AreAllWhereTheTimeIsEnough) {
  const double bytes = BytesOf(20);
  EXPECT_EQ(MustChoose(InputsOf(20), bytes, 1, kPlenty), 20);
  EXPECT_EQ(MustChoose(InputsOf(20), bytes * 0.99, 1, kPlenty), 19);
}

TEST(BlocksToReplay, AreAsManyAsTheTimeAllowsAndNoFewerThanTheLeast) {
  EXPECT_EQ(MustChoose(InputsOf(20), BytesOf(9) / 30, 30, kPlenty), 9);
  EXPECT_EQ(MustChoose(InputsOf(20), 1, 1, kPlenty), kLeastSliceBlocks);
  EXPECT_EQ(MustChoose(InputsOf(2), 1, 1, kPlenty), 2);
}

TEST(BlocksToReplay, FitTheMemory) {
  ReplayInputs whole = InputsOf(20);
  const int64_t seven_bytes = BufferBytes(MustPlan(InputsOf(7)));
  EXPECT_EQ(MustChoose(whole, 1e15, 1, seven_bytes), 7);
  EXPECT_EQ(MustChoose(whole, 1e15, 1, 1 << 20), 0);
  // Gradients on NVMe take none.
  whole.offload.gradients_tier = TierChoice::kNvme;
  EXPECT_EQ(MustChoose(whole, 1e15, 1, seven_bytes), 20);
}

class StepBenchTest : public testing::Test {
 protected:
  StepBenchTest() {
    options_.targets = {{folder_.path(), 0}};
    options_.replay.inventory = ModelInventory(8);
    options_.replay.offload.tile_elems = 64 << 10;
    options_.size_bytes = 32 << 20;
    options_.ram_bytes = int64_t{1} << 30;
    options_.seconds = 0.05;
  }
  static OffloadPlan SliceOf(const StepBenchReport& report) {
    return MustPlan(WithFewerBlocks(report.options.replay, report.num_blocks));
  }
  bool FolderIsEmpty() const { return std::filesystem::is_empty(folder_.path()); }

  const TemporaryFolder folder_;
  StepBenchOptions options_;
};

TEST_F(StepBenchTest, MovesWhatThePlanSaysAndLeavesNothing) {
  const auto report = RunStepBench(options_, {});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_GE(report->num_steps, 1);
  const OffloadPlan slice = SliceOf(*report);
  EXPECT_EQ(report->slice_transfers.read_bytes, slice.read_bytes_per_step);
  EXPECT_EQ(report->slice_transfers.write_bytes, slice.write_bytes_per_step);
  EXPECT_TRUE(report->folded());
  EXPECT_EQ(report->file_bytes, options_.size_bytes);
  EXPECT_LE(report->peak_bytes, BufferBytes(slice));
  EXPECT_GT(report->reading, 0);
  EXPECT_GT(report->writing, 0);
  EXPECT_LE(report->reading + report->writing, 1.001);
  EXPECT_TRUE(FolderIsEmpty());
}

TEST_F(StepBenchTest, MovesActivationsTooWhereTheyAreOnNvme) {
  options_.size_bytes = 128 << 20;
  options_.replay.offload.activations_tier = ActivationsTier::kNvme;
  options_.replay.activation_bytes = 5 << 20;
  const auto report = RunStepBench(options_, {});
  ASSERT_TRUE(report.ok()) << report.status();
  // All ten layers have one but the last, and three stay.
  EXPECT_EQ(report->whole.activations.num_spilled, 6);
  const OffloadPlan slice = SliceOf(*report);
  EXPECT_EQ(report->slice_transfers.read_bytes, slice.read_bytes_per_step);
  EXPECT_EQ(report->slice_transfers.write_bytes, slice.write_bytes_per_step);
  EXPECT_LE(report->peak_bytes, BufferBytes(slice));
  EXPECT_EQ(StepToJson(*report, 600)["activations"], "nvme");
  EXPECT_TRUE(FolderIsEmpty());
}

TEST_F(StepBenchTest, ASmallStoreIsNotFolded) {
  options_.size_bytes = int64_t{4} << 30;
  options_.replay.inventory = ModelInventory(1);
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
  const OffloadPlan& whole = report->whole;
  EXPECT_EQ(whole.tiles.stripe_weights(), (StripeWeights{3, 1}));
  ASSERT_EQ(whole.stripes.size(), 2u);
  EXPECT_NEAR(
      static_cast<double>(whole.stripes[0].nvme_bytes) / static_cast<double>(whole.nvme_bytes),
      0.75, 0.02);
  const OffloadPlan slice = SliceOf(*report);
  EXPECT_EQ(report->slice_transfers.read_bytes, slice.read_bytes_per_step);
  EXPECT_EQ(report->slice_transfers.write_bytes, slice.write_bytes_per_step);
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
  EXPECT_GT(report->whole.stripes[1].weight, 0);
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
  const auto report = RunStepBench(options_, {});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->whole.num_staging_tiles, StepBufferChoices(1).back().num_staging_tiles);
  EXPECT_EQ(report->whole.window.num_block_buffers, StepBufferChoices(1).back().num_block_buffers);
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
  for (const Durability durability : {Durability::kNone, Durability::kStep}) {
    options_.replay.offload.durability = durability;
    const auto report = RunStepBench(options_, {});
    ASSERT_TRUE(report.ok()) << report.status();
    const Json json = StepToJson(*report, 600);
    EXPECT_EQ(json["durability"], NameOf(durability));
    written.push_back(json["write_bytes"]);
    stored.push_back(json["store_bytes"]);
    EXPECT_TRUE(FolderIsEmpty());
  }
  // Seals and records are small.
  EXPECT_LT(written[1] - written[0], written[0] / 100);
  EXPECT_GT(stored[1], stored[0] + 12 * (18 << 20) - 1'000'000);
}

}  // namespace
}  // namespace forebay
