// A rank has, reads, writes, sends and receives what its plan says of its share of the state, and
// of the traffic with the others.
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "forebay/aio/disk_calls.h"
#include "forebay/aio/engine.h"
#include "forebay/base/file.h"
#include "forebay/tests/temporary_folder.h"
#include "forebay/tests/train/faults/breaking_disk.h"
#include "forebay/tests/train/ranks/rank_runs.h"
#include "forebay/train/files/rank_folder.h"
#include "forebay/train/files/run_folder.h"
#include "forebay/train/options/option_table.h"
#include "forebay/train/plan/plan.h"
#include "forebay/train/start/agree_on_run.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::AllOf;
using testing::Each;
using testing::Ge;
using testing::Le;

constexpr char kLargeConfig[] = R"({"architectures": ["LlamaForCausalLM"], "vocab_size": 1024,
  "hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8,
  "num_key_value_heads": 4, "max_position_embeddings": 32, "tie_word_embeddings": false,
  "num_hidden_layers": 5})";

// To 1 %.
testing::Matcher<int64_t> IsAbout(int64_t expected) {
  return AllOf(Ge(expected - expected / 100), Le(expected + expected / 100));
}

MachineLimits OneLargeDisk() {
  MachineLimits limits;
  limits.disks.resize(1);
  return limits;
}

class CountingDisk : public SystemDiskCalls {
 public:
  int64_t Transfer(IoKind kind, int fd, std::string_view path, std::span<std::byte> buffer,
                   int64_t offset_bytes) override {
    const int64_t done = SystemDiskCalls::Transfer(kind, fd, path, buffer, offset_bytes);
    if (kind == IoKind::kRead) read_bytes += std::max<int64_t>(done, 0);
    return done;
  }
  std::atomic<int64_t> read_bytes = 0;
};

// Of a whole run, by rank.
struct RunBytes {
  std::vector<CollectiveTraffic> traffic;
  std::vector<int64_t> read;
};

RunBytes BytesOf(const TrainOptions& options, int num_ranks) {
  std::vector<CountingDisk> disks(static_cast<size_t>(num_ranks));
  RunBytes bytes;
  RankRuns runs;
  runs.traffic = &bytes.traffic;
  runs.world = [&](int rank) { return OnDisk(&disks[static_cast<size_t>(rank)]); };
  EXPECT_THAT(TrainRanks(options, runs), Each(absl::OkStatus()));
  for (const CountingDisk& disk : disks) bytes.read.push_back(disk.read_bytes);
  return bytes;
}

class ZeroPlanTest : public testing::Test {
 protected:
  // Of stage 1 gradients are of 16 bits on their way.
  TrainOptions Options(int stage, int64_t steps) const {
    TrainOptions options =
        task_.RoomyRun(folder_.Path("run" + std::to_string(stage) + "_" + std::to_string(steps)));
    options.batch = 4;
    options.accum = 1;
    options.steps = steps;
    options.zero_stage = stage;
    if (stage == 1) options.reduce_dtype = DType::kBF16;
    options.export_format = ExportFormat::kNone;
    options.weights_tier = options.state_tier = TierChoice::kNvme;
    return options;
  }
  static Plan PlanOf(TrainOptions options, int rank, int num_ranks) {
    EXPECT_EQ(TakePartOfRank(rank, num_ranks, options), absl::OkStatus());
    const auto plan = MakePlan(*ReadDecoderConfig(options.model), options, OneLargeDisk());
    EXPECT_TRUE(plan.ok()) << plan.status();
    return *plan;
  }

  const TemporaryFolder folder_;
  const ToyTask task_{folder_.path(), /*num_blocks=*/4};
};

TEST_F(ZeroPlanTest, IsWhatAStepTransfersAndAStoreTakes) {
  constexpr int kNumRanks = 2;
  constexpr int kNumSteps = 22;
  for (const int stage : {0, 1, 3}) {
    SCOPED_TRACE(stage);
    // Both have what a start and an end exchange and read beside: the difference is the steps'.
    const RunBytes of_two = BytesOf(Options(stage, 2), kNumRanks);
    const TrainOptions options = Options(stage, kNumSteps);
    const RunBytes of_many = BytesOf(options, kNumRanks);
    for (int rank = 0; rank < kNumRanks; ++rank) {
      const Plan plan = PlanOf(options, rank, kNumRanks);
      const auto per_step = [&](int64_t many, int64_t two) {
        return (many - two) / (kNumSteps - 2);
      };
      const CollectiveTraffic &many = of_many.traffic[rank], &two = of_two.traffic[rank];
      EXPECT_THAT(per_step(many.sent_bytes, two.sent_bytes), IsAbout(plan.traffic.sent_bytes));
      EXPECT_THAT(per_step(many.received_bytes, two.received_bytes),
                  IsAbout(plan.traffic.received_bytes));
      EXPECT_THAT(per_step(of_many.read[rank], of_two.read[rank]),
                  IsAbout(plan.read_bytes_per_step));
      const std::string folder = RunFolderOfRank(options.out, rank);
      EXPECT_EQ(FieldOf(folder, "write_bytes")[3], plan.write_bytes_per_step);
      const std::unique_ptr<Engine> engine = CreateThreadsEngine({.num_threads = 1});
      const auto store = OpenRunStore(folder, engine.get(), StoreAccess::kReadOnly);
      ASSERT_TRUE(store.ok()) << store.status();
      EXPECT_THAT(Total(TensorStore::DiskBytes((*store)->tiles(), (*store)->num_slots(),
                                               (*store)->scratch_bytes())),
                  IsAbout(plan.stripes.front().nvme_bytes));
    }
  }
}

// ZeRO-R's buffers of constant size.
TEST_F(ZeroPlanTest, SumsGradientsInMemoryThatDoesNotGrowWithTheModel) {
  const auto sum_bytes = [&](int width, const char* bucket) {
    const std::string folder = folder_.Path("width" + std::to_string(width));
    std::filesystem::create_directories(folder);
    Json config = Json::parse(kLargeConfig);
    config["intermediate_size"] = width;
    EXPECT_EQ(WriteFileAtomically(folder + "/config.json", config.dump()), absl::OkStatus());
    TrainOptions options = Options(3, 1);
    options.ram_bytes = int64_t{16} << 30;
    EXPECT_TRUE(FindOption("reduce_bucket")->set(Json(bucket), options));
    EXPECT_EQ(TakePartOfRank(0, 4, options), absl::OkStatus());
    const auto plan = MakePlan(*ReadDecoderConfig(folder), options, OneLargeDisk());
    EXPECT_TRUE(plan.ok()) << plan.status();
    const auto sum =
        std::ranges::find(plan->terms, "sum of gradients over ranks (fp32)", &PlanTerm::name);
    return sum == plan->terms.end() ? -1 : sum->host_bytes;
  };
  EXPECT_GT(sum_bytes(16384, "auto"), 3 * sum_bytes(4096, "auto"));
  EXPECT_EQ(sum_bytes(4096, "4MiB"), int64_t{4} << 20);
  EXPECT_EQ(sum_bytes(16384, "4MiB"), int64_t{4} << 20);
}

// With 20 million parameters, where blocks that cannot be divided do not count.
TEST_F(ZeroPlanTest, DividesTheStateByTheNumberOfRanks) {
  const std::string large = folder_.Path("large");
  std::filesystem::create_directory(large);
  ASSERT_EQ(WriteFileAtomically(large + "/config.json", kLargeConfig), absl::OkStatus());
  const DecoderConfig model = *ReadDecoderConfig(large);
  const auto plan_for = [&](int stage, int num_ranks) {
    TrainOptions options = Options(stage, 1);
    options.batch = 8;
    options.ram_bytes = int64_t{4} << 30;
    EXPECT_EQ(TakePartOfRank(0, num_ranks, options), absl::OkStatus());
    const auto plan = MakePlan(model, options, OneLargeDisk());
    EXPECT_TRUE(plan.ok()) << plan.status();
    return *plan;
  };
  const Plan alone = plan_for(0, 1);
  const auto params = static_cast<double>(alone.tiles.weight_area_bytes()) / 4;  // fp32, padded
  for (const int num_ranks : {2, 4, 8}) {
    SCOPED_TRACE(num_ranks);
    const double others = static_cast<double>(num_ranks - 1) / num_ranks;
    EXPECT_EQ(plan_for(0, num_ranks).nvme_bytes, alone.nvme_bytes);
    EXPECT_THAT(plan_for(0, num_ranks).traffic.sent_bytes,
                IsAbout(std::llround(2 * 4 * params * others)));
    for (const int stage : {1, 2, 3}) {
      const Plan plan = plan_for(stage, num_ranks);
      EXPECT_THAT(plan.nvme_bytes, IsAbout(alone.nvme_bytes / num_ranks));
      if (stage < 3) {
        const int on_the_way = stage == 1 ? 2 : 4;
        EXPECT_THAT(plan.traffic.sent_bytes,
                    IsAbout(std::llround((4 + on_the_way) * params * others)));
      }
    }
    // Weights twice, gradients once; but for the embedding and the head, which are read once.
    const double read_once = 2 * 512 * 1024;
    EXPECT_THAT(plan_for(3, num_ranks).traffic.sent_bytes,
                IsAbout(std::llround(4 * (3 * params - read_once) * others)));
  }
}

}  // namespace
}  // namespace forebay
