#include "forebay/train/plan/plan.h"

#include <fstream>
#include <numeric>

#include "forebay/base/counter_rng.h"
#include "forebay/base/errors.h"
#include "forebay/data/packed_file.h"
#include "forebay/optimizer/held_gradients.h"
#include "forebay/swap/records/commit_record.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/tests/data/packed_bytes.h"
#include "forebay/tests/temporary_folder.h"
#include "forebay/tests/train/plan/planned_models.h"
#include "forebay/train/export/export_weights.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kGiB = int64_t{1} << 30;

// That takes nothing less than two slots.
TrainOptions DurableRun() {
  TrainOptions options = SmallRun();
  options.durability = Durability::kStep;
  return options;
}

int64_t HostBytesOf(const Plan& plan, std::string_view prefix) {
  int64_t bytes = 0;
  for (const PlanTerm& term : plan.terms) {
    if (term.name.starts_with(prefix)) bytes += term.host_bytes;
  }
  return bytes;
}

// The size that the message recommends behind "--ram=", in bytes.
int64_t RecommendedRam(const absl::Status& status) {
  const std::string message = MessageOf(status);
  const size_t at = message.rfind("--ram=");
  return at == std::string::npos ? 0 : std::stoll(message.substr(at + 6)) * kMiB;
}

TEST(Plan, SmolLm2WithEverythingOnNvmeFitsOneGibibyte) {
  const auto plan = MakePlan(SmolLm2(), SmallRun(), BigMachine());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->ram_budget_bytes, kGiB);
  EXPECT_LE(plan->host_bytes, kGiB);
  EXPECT_EQ(plan->tokens_per_step, 1024);
  EXPECT_EQ(plan->placement.host_weight_bytes, 0);
  EXPECT_EQ(plan->placement.host_state_bytes, 0);
  EXPECT_EQ(Total(plan->gradient_area_bytes), 0);
}

TEST(Plan, OpensNoFile) {
  const TemporaryFolder folder;
  TrainOptions options = SmallRun();
  options.seq = SmolLm2().max_positions + 1;
  options.data = folder.path() + "/rows.packed";
  const absl::Status without_file = MakePlan(SmolLm2(), options, BigMachine()).status();
  PackedBytes packed;
  packed.seq = static_cast<uint64_t>(options.seq);
  packed.num_rows = 1;
  packed.tokens.assign(packed.seq, 1);
  packed.flags.assign(packed.seq, 1);
  std::ofstream(options.data, std::ios::binary) << packed.Encode();
  ASSERT_EQ(PackedRowTokens(options.data), options.seq);
  const absl::Status with_file = MakePlan(SmolLm2(), options, BigMachine()).status();
  EXPECT_EQ(MessageOf(with_file), MessageOf(without_file));
  EXPECT_THAT(MessageOf(with_file), HasSubstr("rows.packed"));
}

TEST(Plan, TermsSumToTheTotals) {
  const auto plan = MakePlan(SmolLm2(), SmallRun(), BigMachine());
  ASSERT_TRUE(plan.ok()) << plan.status();
  int64_t host = 0;
  int64_t nvme = 0;
  for (const PlanTerm& term : plan->terms) {
    host += term.host_bytes;
    nvme += term.nvme_bytes;
  }
  EXPECT_EQ(host, plan->host_bytes);
  EXPECT_EQ(nvme, plan->nvme_bytes);
}

TEST(Plan, AnExportBesideTheStepsHasItsMemory) {
  const auto without = MakePlan(SmolLm2(), SmallRun(), BigMachine());
  TrainOptions options = SmallRun();
  options.save_every = 10;
  const auto with = MakePlan(SmolLm2(), options, BigMachine());
  ASSERT_TRUE(without.ok() && with.ok()) << with.status();
  EXPECT_EQ(HostBytesOf(*without, "export beside"), 0);
  EXPECT_EQ(HostBytesOf(*with, "export beside"), kExportBytes);
  // Staging takes what is left.
  const auto rest = [](const Plan& plan) {
    return plan.host_bytes - HostBytesOf(plan, "optimizer staging");
  };
  EXPECT_EQ(rest(*with), rest(*without) + kExportBytes);
}

TEST(Plan, TwoSlotsOfTheExactLayoutTakeTwentyFourBytesPerParameter) {
  TrainOptions options = SmallRun();
  options.export_format = ExportFormat::kNone;
  const auto plan = MakePlan(SmolLm2(), options, BigMachine());
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto params = static_cast<double>(BuildInventory(SmolLm2()).num_params());
  EXPECT_NEAR(static_cast<double>(plan->nvme_bytes) / params, 24.0, 0.1);
}

TEST(Plan, OneSlotTakesTwelveBytesPerParameterAndCommitsOnDemand) {
  TrainOptions options = SmallRun();
  options.export_format = ExportFormat::kNone;
  const auto two = MakePlan(SmolLm2(), options, BigMachine());
  options.durability = Durability::kNone;
  const auto plan = MakePlan(SmolLm2(), options, BigMachine());
  ASSERT_TRUE(two.ok() && plan.ok()) << plan.status();
  const auto params = static_cast<double>(BuildInventory(SmolLm2()).num_params());
  EXPECT_NEAR(static_cast<double>(plan->nvme_bytes) / params, 12.0, 0.1);
  EXPECT_EQ(plan->num_slots, 1);
  EXPECT_FALSE(plan->lacks_room_for_two);
  EXPECT_TRUE(plan->commit_pace.only_on_demand);
  EXPECT_EQ(plan->read_bytes_per_step, two->read_bytes_per_step);
  EXPECT_EQ(plan->write_bytes_per_step, two->write_bytes_per_step - plan->commit_bytes);
  EXPECT_LT(plan->host_bytes, two->host_bytes) << "half of the checksums";
}

TEST(Plan, WhereThereIsNoRoomForTwoSlotsThereIsOneUnlessTwoWereAskedFor) {
  TrainOptions options = SmallRun();
  options.export_format = ExportFormat::kNone;
  MachineLimits limits = BigMachine();
  limits.disks[0].free_bytes = 2'000'000'000;  // for 134.5 M parameters
  const auto plan = MakePlan(SmolLm2(), options, limits);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->num_slots, 1);
  EXPECT_TRUE(plan->lacks_room_for_two);
  EXPECT_THAT(FormatPlan(*plan, SmolLm2(), options), HasSubstr("no room for two"));
  for (const bool by_pace : {false, true}) {
    TrainOptions asks = options;
    if (by_pace) asks.commit_every = 2;
    if (!by_pace) asks.durability = Durability::kStep;
    const absl::Status refused = MakePlan(SmolLm2(), asks, limits).status();
    EXPECT_EQ(ExitCodeOf(refused), ExitCode::kDoesNotFit);
    EXPECT_THAT(MessageOf(refused), HasSubstr("--durability=none"));
  }
  limits.disks[0].free_bytes = 1'000'000'000;
  const absl::Status refused = MakePlan(SmolLm2(), options, limits).status();
  EXPECT_EQ(ExitCodeOf(refused), ExitCode::kDoesNotFit);
}

TEST(Plan, StepsThatShareACommitShareItsBytes) {
  TrainOptions options = SmallRun();
  options.state_tier = TierChoice::kHost;
  options.ram_bytes = 4 * kGiB;
  const int64_t all = BuildInventory(SmolLm2()).num_padded_elems();
  const auto by_time = MakePlan(SmolLm2(), options, BigMachine());
  ASSERT_TRUE(by_time.ok()) << by_time.status();
  EXPECT_EQ(by_time->commit_pace.resident_bytes, 10 * all);
  EXPECT_EQ(by_time->write_bytes_per_step, 2 * all) << "the weights";
  EXPECT_GT(by_time->commit_bytes, 10 * all);
  EXPECT_THAT(FormatPlan(*by_time, SmolLm2(), options), HasSubstr("but for commits"));
  // One for delayed updates is the same.
  TrainOptions delayed = options;
  delayed.delay_update_from = 2;
  delayed.commit_every = 4;
  const auto of_delayed = MakePlan(SmolLm2(), delayed, BigMachine());
  ASSERT_TRUE(of_delayed.ok()) << of_delayed.status();
  EXPECT_EQ(of_delayed->commit_bytes, by_time->commit_bytes);
  // With all of it in RAM a step writes nothing.
  TrainOptions in_ram = options;
  in_ram.weights_tier = TierChoice::kHost;
  const auto nothing = MakePlan(SmolLm2(), in_ram, BigMachine());
  ASSERT_TRUE(nothing.ok()) << nothing.status();
  EXPECT_EQ(nothing->write_bytes_per_step, 0);
  EXPECT_TRUE(ToJson(*nothing)["steps_until_tbw"].is_null());
  EXPECT_THAT(FormatPlan(*nothing, SmolLm2(), in_ram), HasSubstr("steps write nothing, and each"));
  options.commit_every = 4;
  const auto plan = MakePlan(SmolLm2(), options, BigMachine());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->write_bytes_per_step, 2 * all + plan->commit_bytes / 4);
}

TEST(Plan, AllOnNvmeReadsWeightsTwiceAndStateOnceButWhatTheWindowStillHolds) {
  const Inventory inventory = BuildInventory(SmolLm2());
  const int64_t block = inventory.layers()[BlockLayer(0)].num_elems;
  const int64_t head = inventory.layers()[HeadLayer(SmolLm2())].num_elems;
  const int64_t all = inventory.num_padded_elems();
  const auto plan = MakePlan(SmolLm2(), SmallRun(), BigMachine());
  ASSERT_TRUE(plan.ok()) << plan.status();
  // Of 30 blocks, the forward pass finds three in the window and the backward pass two (the final
  // norm took the place of the third). The tied embedding stays in its buffer.
  EXPECT_EQ(plan->read_bytes_per_step, 10 * all + 2 * (55 * block + head));
  EXPECT_EQ(plan->write_bytes_per_step,
            12 * all + TensorStore::SealBytes(plan->tiles, kMostSlots) + 2 * kCommitRecordBytes);
}

TEST(Plan, ThirteenBillionParametersFitSixtyFourGibibytes) {
  TrainOptions options;
  options.batch = 1;
  options.seq = 2048;
  options.ram_bytes = 64 * kGiB;
  const auto plan = MakePlan(Llama13B(), options, BigMachine());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_LE(plan->host_bytes, 64 * kGiB);
  EXPECT_EQ(Total(plan->gradient_area_bytes), 0);
  // 13.016 G parameters: 26 GB of gradients held, and twice 156 GB of state beside the exported
  // model.
  EXPECT_NEAR(static_cast<double>(HostBytesOf(*plan, "gradients held")), 26.03e9, 0.1e9);
  EXPECT_NEAR(static_cast<double>(plan->nvme_bytes), 312.4e9 + 26.03e9, 1e9);
}

TEST(Plan, GradientsGoToNvmeWhenMemoryIsShort) {
  TrainOptions options;
  options.batch = 1;
  options.seq = 1024;
  options.ram_bytes = 16 * kGiB;
  const auto plan = MakePlan(Llama13B(), options, BigMachine());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_LE(plan->host_bytes, 16 * kGiB);
  EXPECT_GT(Total(plan->gradient_area_bytes), 10 * kGiB);
  // What is left is less than the gradient of one more layer (317 M elements).
  EXPECT_LT(plan->placement.host_weight_bytes + plan->placement.host_state_bytes,
            int64_t{640'000'000});
}

// What the store is asked for is what the optimizer will write to, whatever the shapes and however
// little memory is left over.
TEST(Plan, TheGradientAreaCoversEveryOffsetThatHeldGradientsUse) {
  int num_spilling = 0;
  const CounterRng rng(/*seed=*/5);
  for (uint64_t i = 0; i < 300; ++i) {
    SCOPED_TRACE(i);
    const auto draw = [&](uint64_t place, uint64_t bound) {
      return static_cast<int64_t>(rng.Below(8 * i + place, bound));
    };
    const int64_t heads = 1 + draw(0, 5);
    DecoderConfig config = TinyDecoder();
    config.vocab_size = 301 + draw(1, 9000);
    config.num_heads = config.num_kv_heads = heads;
    config.head_dim = 2 * (3 + draw(2, 40));
    config.hidden_size = heads * config.head_dim;
    config.intermediate_size = 17 + draw(3, 900);
    config.num_layers = static_cast<int>(1 + draw(4, 7));
    config.window.assign(static_cast<size_t>(config.num_layers), 0);
    config.tied_embeddings = i % 2 == 0;
    TrainOptions options;
    options.out = "out";
    options.batch = 1;
    options.seq = 32;
    options.tile_elems = kLayerAlignElems * (1 + draw(5, 9));
    options.grad_dtype = i % 3 == 0 ? DType::kF32 : DType::kBF16;
    options.ram_bytes = kMiB;
    options.ram_bytes = RecommendedRam(MakePlan(config, options, BigMachine()).status());
    options.ram_bytes += draw(6, 2 * kMiB);
    const auto plan = MakePlan(config, options, BigMachine());
    ASSERT_TRUE(plan.ok()) << plan.status();
    const GradientPlaces places =
        PlaceGradients(plan->placement, plan->tiles, SizeOf(options.grad_dtype));
    ASSERT_EQ(plan->gradient_area_bytes, places.area_bytes);
    ASSERT_EQ(plan->placement.host_gradient_bytes, places.host_bytes);
    ASSERT_LE(plan->host_bytes, plan->ram_budget_bytes);
    num_spilling += Total(places.area_bytes) > 0 ? 1 : 0;
  }
  EXPECT_GT(num_spilling, 30);
}

TEST(Plan, TooLittleMemoryIsRefusedWithTheLeastThatWorks) {
  TrainOptions options = SmallRun();
  options.ram_bytes = 200 * kMiB;
  options.activations_tier = ActivationsTier::kRam;
  const auto refused = MakePlan(SmolLm2(), options, BigMachine());
  ASSERT_EQ(ExitCodeOf(refused.status()), ExitCode::kDoesNotFit);
  EXPECT_THAT(MessageOf(refused.status()), HasSubstr("activation checkpoints"));
  EXPECT_THAT(
      MessageOf(refused.status()),
      HasSubstr(
          "--batch, --seq, --accum, --set=activations_tier=nvme, --set=activations_dtype=bf16 or "
          "--set=number_checkpoints"));
  options.ram_bytes = RecommendedRam(refused.status());
  EXPECT_TRUE(MakePlan(SmolLm2(), options, BigMachine()).ok());
  options.ram_bytes -= kMiB;
  EXPECT_FALSE(MakePlan(SmolLm2(), options, BigMachine()).ok());
}

TEST(Plan, ActivationsOnNvmeLeaveThreeOfThemInRamAndThoseInBf16TakeHalf) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const ActivationsTier tier : {ActivationsTier::kRam, ActivationsTier::kNvme}) {
      TrainOptions options = SmallRun();
      options.activations_dtype = dtype;
      options.activations_tier = tier;
      const auto plan = MakePlan(SmolLm2(), options, BigMachine());
      ASSERT_TRUE(plan.ok()) << plan.status();
      const int64_t activation = 4 * 256 * 576 * SizeOf(dtype);  // of 31
      const int64_t in_ram = tier == ActivationsTier::kRam ? 31 : 3;
      EXPECT_EQ(HostBytesOf(*plan, "activation checkpoints"), in_ram * activation);
      EXPECT_EQ(ToJson(*plan)["activation_area_bytes"], (31 - in_ram) * activation);
      EXPECT_EQ(HostBytesOf(*plan, "activation of one micro-batch (fp32)"),
                dtype == DType::kF32 ? 0 : 4 * 256 * 576 * 4);
    }
  }
}

TEST(Plan, TheLeastThatWorksCountsWhatMustStayInRam) {
  TrainOptions options = SmallRun();
  options.state_tier = TierChoice::kHost;
  const auto refused = MakePlan(SmolLm2(), options, BigMachine());
  ASSERT_EQ(ExitCodeOf(refused.status()), ExitCode::kDoesNotFit);
  EXPECT_THAT(MessageOf(refused.status()), HasSubstr("--state_tier=auto"));
  options.ram_bytes = RecommendedRam(refused.status());
  const auto plan = MakePlan(SmolLm2(), options, BigMachine());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->placement.host_state_bytes, plan->tiles.state_area_bytes());
}

TEST(Plan, BuffersShrinkBeforeARunIsRefused) {
  TrainOptions options = SmallRun();
  options.ram_bytes = 1;
  options.ram_bytes = RecommendedRam(MakePlan(SmolLm2(), options, BigMachine()).status());
  const auto plan = MakePlan(SmolLm2(), options, BigMachine());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->num_staging_tiles, 2);
  EXPECT_EQ(plan->window.num_block_buffers, 2);
}

TEST(Plan, SpareMemoryHoldsStateAndWeights) {
  TrainOptions options = SmallRun();
  options.weights_tier = options.state_tier = TierChoice::kAuto;
  options.ram_bytes = 8 * kGiB;
  const auto plan = MakePlan(SmolLm2(), options, BigMachine());
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->placement.host_weight_bytes, plan->tiles.weight_area_bytes());
  EXPECT_EQ(plan->placement.host_state_bytes, plan->tiles.state_area_bytes());
  EXPECT_EQ(plan->read_bytes_per_step, 0);
}

TEST(Plan, WithoutRamAShareOfWhatIsAvailableIsTaken) {
  TrainOptions options = SmallRun();
  options.ram_bytes = 0;
  MachineLimits limits = BigMachine();
  limits.available_memory_bytes = 10 * kGiB;
  const auto plan = MakePlan(SmolLm2(), options, limits);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->ram_budget_bytes, 8 * kGiB);
}

TEST(Plan, MoreMemoryThanTheMachineHasIsRefused) {
  TrainOptions options = SmallRun();
  options.ram_bytes = 256 * kGiB;
  const auto refused = MakePlan(SmolLm2(), options, BigMachine());
  ASSERT_EQ(ExitCodeOf(refused.status()), ExitCode::kDoesNotFit);
  EXPECT_THAT(MessageOf(refused.status()),
              HasSubstr("--ram=256 GiB is more than this process can have: 128 GiB"));
}

TEST(Plan, RowsLongerThanTheModelsPositionsAreRefused) {
  TrainOptions options = SmallRun();
  options.seq = 4097;
  const auto refused = MakePlan(SmolLm2(), options, BigMachine());
  ASSERT_EQ(ExitCodeOf(refused.status()), ExitCode::kUsage);
  EXPECT_THAT(MessageOf(refused.status()), HasSubstr("use --seq=4096 or less"));
}

TEST(Plan, AFullDiskIsFoundBeforeTheStart) {
  MachineLimits limits = BigMachine();
  limits.disks[0].free_bytes = limits.out_free_bytes = 1000 * 1000 * 1000;
  const auto refused = MakePlan(SmolLm2(), SmallRun(), limits);
  ASSERT_EQ(ExitCodeOf(refused.status()), ExitCode::kDoesNotFit);
  EXPECT_THAT(MessageOf(refused.status()),
              HasSubstr("on the file system of 'out/swap', which has 1.00 GB free"));
}

TEST(Plan, FilesThatMayNotBeAsLargeAreFoundBeforeTheStart) {
  MachineLimits limits = BigMachine();
  TrainOptions options = SmallRun();
  options.export_format = ExportFormat::kNone;
  const auto plan = MakePlan(SmolLm2(), options, limits);
  ASSERT_TRUE(plan.ok()) << plan.status();
  limits.most_bytes_of_a_file = 2 * plan->tiles.state_area_bytes();  // two slots of it
  EXPECT_TRUE(MakePlan(SmolLm2(), options, limits).ok());
  --limits.most_bytes_of_a_file;
  const auto refused = MakePlan(SmolLm2(), options, limits);
  ASSERT_EQ(ExitCodeOf(refused.status()), ExitCode::kDoesNotFit);
  EXPECT_THAT(MessageOf(refused.status()), HasSubstr("in one file"));
}

TEST(Plan, AFullDiskForTheExportIsFoundOnItsOwnFileSystem) {
  MachineLimits limits = BigMachine();
  limits.out_file_system = 1;
  limits.out_free_bytes = 100 * 1000 * 1000;
  const auto refused = MakePlan(SmolLm2(), SmallRun(), limits);
  ASSERT_EQ(ExitCodeOf(refused.status()), ExitCode::kDoesNotFit);
  EXPECT_THAT(MessageOf(refused.status()), HasSubstr("the exported model needs 269 MB"));
}

// Three folders, of which the first two are on one file system.
MachineLimits ThreeFolders(const std::vector<int64_t>& weights) {
  MachineLimits limits = BigMachine();
  limits.out_file_system = 9;
  limits.disks.clear();
  const uint64_t file_systems[] = {1, 1, 2};
  for (size_t i = 0; i < weights.size(); ++i) {
    DiskLimits& disk = limits.disks.emplace_back();
    disk.folder = "/disk" + std::to_string(i);
    disk.free_bytes = 100 * kGiB;
    disk.file_system = file_systems[i];
    disk.weight = weights[i];
  }
  return limits;
}

TEST(Plan, SeveralFoldersShareTheStore) {
  const auto one = MakePlan(SmolLm2(), SmallRun(), BigMachine());
  const auto plan = MakePlan(SmolLm2(), SmallRun(), ThreeFolders({1, 2, 1}));
  ASSERT_TRUE(one.ok() && plan.ok()) << plan.status();
  ASSERT_EQ(plan->stripes.size(), 3u);
  int64_t store_bytes = 0;
  for (const PlanStripe& stripe : plan->stripes) store_bytes += stripe.nvme_bytes;
  // Two more folders with commit records, and with tables of checksums that end in whole blocks.
  const int64_t more_bytes = store_bytes - one->stripes[0].nvme_bytes;
  EXPECT_GE(more_bytes, 2 * 2 * kCommitRecordBytes);
  EXPECT_LE(more_bytes, 2 * (2 + 2 * 2 * 2) * kCommitRecordBytes);
  const auto share = [&](int i) {
    return static_cast<double>(plan->stripes[i].nvme_bytes) / static_cast<double>(store_bytes);
  };
  EXPECT_NEAR(share(0), 0.25, 0.01);
  EXPECT_NEAR(share(1), 0.5, 0.01);
  EXPECT_EQ(plan->read_bytes_per_step, one->read_bytes_per_step);
  EXPECT_EQ(plan->write_bytes_per_step - one->write_bytes_per_step,
            TensorStore::SealBytes(plan->tiles, kMostSlots) -
                TensorStore::SealBytes(one->tiles, kMostSlots) + 2 * 2 * kCommitRecordBytes);
  EXPECT_EQ(ToJson(*plan)["stripes"][1]["folder"], "/disk1");
  EXPECT_THAT(FormatPlan(*plan, SmolLm2(), SmallRun()), HasSubstr("in /disk1 (50 %)"));
}

TEST(Plan, FoldersOnOneFileSystemNeedItsSpaceTogether) {
  MachineLimits limits = ThreeFolders({1, 1, 1});
  // A third of the store is 1.08 GB.
  limits.disks[2].free_bytes = 1'500'000'000;
  limits.disks[0].free_bytes = limits.disks[1].free_bytes = 2'500'000'000;
  EXPECT_TRUE(MakePlan(SmolLm2(), DurableRun(), limits).ok());
  limits.disks[0].free_bytes = limits.disks[1].free_bytes = 1'500'000'000;
  const auto refused = MakePlan(SmolLm2(), DurableRun(), limits);
  ASSERT_EQ(ExitCodeOf(refused.status()), ExitCode::kDoesNotFit);
  EXPECT_THAT(MessageOf(refused.status()),
              testing::AllOf(HasSubstr("of '/disk0' and '/disk1', which has 1.50 GB free"),
                             HasSubstr("are missing")));
}

// A third of the store is 1.08 GB.
TEST(Plan, ADiskWithoutRoomForItsShareGetsWhatItHasRoomFor) {
  MachineLimits limits = ThreeFolders({1, 1, 1});
  limits.shares_are_fixed = false;
  limits.disks[2].free_bytes = 500'000'000;
  const auto plan = MakePlan(SmolLm2(), SmallRun(), limits);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_LE(plan->stripes[2].nvme_bytes, 500'000'000);
  EXPECT_GE(plan->stripes[2].nvme_bytes, 350'000'000);
  EXPECT_NEAR(static_cast<double>(plan->stripes[0].nvme_bytes),
              static_cast<double>(plan->stripes[1].nvme_bytes), 1e8);
  const StripeWeights& weights = plan->tiles.stripe_weights();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(plan->stripes[i].weight, weights[i]);
  EXPECT_EQ(MakePlan(SmolLm2(), SmallRun(), limits)->tiles.stripe_weights(), weights);
  // Room for more than its share changes nothing.
  limits.disks[2].free_bytes = 1'500'000'000;
  EXPECT_THAT(MakePlan(SmolLm2(), SmallRun(), limits)->tiles.stripe_weights(),
              testing::ElementsAre(1, 1, 1));
}

TEST(Plan, SharesThatTheUserGaveAreNotChangedAndTheMessageNamesThem) {
  MachineLimits limits = ThreeFolders({1, 1, 1});
  limits.disks[2].free_bytes = 500'000'000;
  const auto refused = MakePlan(SmolLm2(), DurableRun(), limits);
  ASSERT_EQ(ExitCodeOf(refused.status()), ExitCode::kDoesNotFit);
  EXPECT_THAT(MessageOf(refused.status()),
              testing::AllOf(HasSubstr("of '/disk2', which has 500 MB free"),
                             HasSubstr("or give it a smaller share with --set=nvme_weights")));
  // Other shares are no help where all disks together are too small.
  limits.disks[0].free_bytes = limits.disks[1].free_bytes = 1'500'000'000;
  for (const bool fixed : {true, false}) {
    limits.shares_are_fixed = fixed;
    const auto full = MakePlan(SmolLm2(), DurableRun(), limits);
    ASSERT_EQ(ExitCodeOf(full.status()), ExitCode::kDoesNotFit);
    EXPECT_THAT(MessageOf(full.status()), testing::Not(HasSubstr("--set=nvme_weights")));
  }
}

TEST(Plan, TheDisksWorkSideBySide) {
  MachineLimits limits = ThreeFolders({1, 1, 2});
  for (DiskLimits& disk : limits.disks) disk.read_bytes_per_s = disk.write_bytes_per_s = 1e9;
  const auto even = MakePlan(SmolLm2(), SmallRun(), limits);
  ASSERT_TRUE(even.ok()) << even.status();
  const double one_disk_s =
      static_cast<double>(even->read_bytes_per_step + even->write_bytes_per_step) / 1e9;
  EXPECT_NEAR(even->io_s_per_step, one_disk_s / 2, 0.01 * one_disk_s);
  limits.disks[2].read_bytes_per_s = limits.disks[2].write_bytes_per_s = 0.5e9;
  EXPECT_NEAR(MakePlan(SmolLm2(), SmallRun(), limits)->io_s_per_step, one_disk_s,
              0.01 * one_disk_s);
  limits.disks[1].read_bytes_per_s = 0;
  EXPECT_EQ(MakePlan(SmolLm2(), SmallRun(), limits)->io_s_per_step, 0);
}

TEST(Plan, AResumedRunNeedsNoNewDiskSpace) {
  MachineLimits limits = BigMachine();
  limits.disks[0].free_bytes = 0;
  TrainOptions options = SmallRun();
  options.resume = true;
  EXPECT_TRUE(MakePlan(SmolLm2(), options, limits).ok());
}

TEST(Plan, AResumedRunNeedsRoomForTheExportsThatAreMissing) {
  MachineLimits limits = BigMachine();
  TrainOptions options = SmallRun();
  options.resume = true;
  options.steps = 100;
  options.save_every = 10;
  options.keep = 2;  // and one more while it is written, and the model: four of 269 MB
  const int64_t one_bytes = BuildInventory(SmolLm2()).num_params() * 2;
  limits.exported_bytes = limits.out_free_bytes = 2 * one_bytes;
  const auto fits = MakePlan(SmolLm2(), options, limits);
  EXPECT_TRUE(fits.ok()) << fits.status();
  --limits.out_free_bytes;
  const auto refused = MakePlan(SmolLm2(), options, limits);
  ASSERT_EQ(ExitCodeOf(refused.status()), ExitCode::kDoesNotFit);
  EXPECT_THAT(MessageOf(refused.status()), HasSubstr("the exported model needs 538 MB more on"));
  options.steps = 10;  // one export, and the model, which are there: a new one comes beside the old
  limits.out_free_bytes = one_bytes;
  EXPECT_TRUE(MakePlan(SmolLm2(), options, limits).ok());
  --limits.out_free_bytes;
  EXPECT_EQ(ExitCodeOf(MakePlan(SmolLm2(), options, limits).status()), ExitCode::kDoesNotFit);
  options.steps = 100;
  options.keep = 1;  // less than it had kept: the oldest goes when the next is there
  limits.exported_bytes = 5 * one_bytes;
  EXPECT_EQ(ExitCodeOf(MakePlan(SmolLm2(), options, limits).status()), ExitCode::kDoesNotFit);
  options.export_format = ExportFormat::kNone;
  options.save_every = 0;
  limits.out_free_bytes = 0;
  EXPECT_TRUE(MakePlan(SmolLm2(), options, limits).ok());
}

}  // namespace
}  // namespace forebay
