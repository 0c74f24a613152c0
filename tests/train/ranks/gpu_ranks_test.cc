// Ranks that each compute on a GPU of its own, which is emulated.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "forebay/aio/engine.h"
#include "forebay/base/errors.h"
#include "forebay/base/json.h"
#include "forebay/data/micro_batch.h"
#include "forebay/device/emulation/counters.h"
#include "forebay/device/emulation/options.h"
#include "forebay/model/decoder_compute.h"
#include "forebay/step/step_schedule.h"
#include "forebay/tests/temporary_folder.h"
#include "forebay/tests/train/ranks/rank_runs.h"
#include "forebay/train/files/rank_folder.h"
#include "forebay/train/files/run_folder.h"
#include "forebay/train/plan/plan.h"
#include "forebay/train/start/agree_on_run.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using emulation::CountersNow;
using emulation::TheOptions;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

constexpr int kNumRanks = 2;

class GpuRanks : public testing::Test {
 protected:
  explicit GpuRanks(int num_blocks = 2) : task_(folder_.path(), num_blocks) {
    TheOptions().num_gpus = kNumRanks;
  }
  ~GpuRanks() override { TheOptions() = before_; }

  // In bf16, clipped, with an evaluation on the way.
  TrainOptions Options(int stage, const std::string& name) const {
    TrainOptions options = task_.TightRun(folder_.Path(name + std::to_string(stage)));
    options.ram_bytes = int64_t{256} << 20;
    options.batch = 2;
    options.clip = 0.5;
    options.zero_stage = stage;
    options.device = ComputeDevice::kCuda;
    options.eval_data = options.data;
    options.eval_every = 2;
    return options;
  }
  static std::string Digest(const TrainOptions& options, const RankRuns& runs = {}) {
    EXPECT_THAT(TrainRanks(options, runs), Each(absl::OkStatus()));
    return DigestOfRanks(options.out, kNumRanks);
  }
  std::string DigestOf(int stage, const std::string& name,
                       const std::function<void(TrainOptions&)>& change) const {
    TrainOptions options = Options(stage, name);
    change(options);
    return Digest(options);
  }
  // The plan of one rank.
  static Plan PlanOf(TrainOptions options) {
    EXPECT_EQ(TakePartOfRank(/*rank=*/0, kNumRanks, options), absl::OkStatus());
    MachineLimits limits;
    limits.gpu = {.name = "a GPU", .free_bytes = int64_t{1} << 30};
    const auto plan = MakePlan(*ReadDecoderConfig(options.model), options, limits);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return *plan;
  }

  const emulation::Options before_ = TheOptions();
  const TemporaryFolder folder_;
  const ToyTask task_;
};

TEST_F(GpuRanks, ComeToTheSameBitsInEveryStage) {
  const TrainOptions whole = Options(0, "run");
  const std::string expected = Digest(whole);
  ASSERT_NE(expected, "");
  for (const int stage : {1, 2, 3}) {
    SCOPED_TRACE(stage);
    const TrainOptions divided = Options(stage, "run");
    EXPECT_EQ(Digest(divided), expected);
    for (int rank = 0; rank < kNumRanks; ++rank) {
      const std::string of_rank = RunFolderOfRank(divided.out, rank);
      for (const char* field : {"loss", "grad_norm", "eval_loss"}) {
        EXPECT_EQ(FieldOf(of_rank, field), FieldOf(whole.out, field)) << field;
      }
    }
  }
  TrainOptions other = Options(3, "other");
  other.seed = 10;
  EXPECT_NE(Digest(other), expected);
}

TEST_F(GpuRanks, ComputeWhatOneGpuComputesWithAllTheData) {
  const auto fp32 = [&](TrainOptions options) {
    const TrainOptions of_type = task_.RoomyRun("");
    options.precision = of_type.precision;
    options.layout = of_type.layout;
    options.grad_dtype = of_type.grad_dtype;
    options.export_dtype = of_type.export_dtype;
    return options;
  };
  const TrainOptions alone = fp32(Options(0, "alone"));
  ASSERT_EQ(TrainToy(alone), absl::OkStatus());
  const TrainOptions together = fp32(Options(3, "together"));
  ASSERT_NE(Digest(together), "");
  const std::vector<double> losses = LossesOf(together.out), expected = LossesOf(alone.out);
  ASSERT_EQ(losses.size(), expected.size());
  for (size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i], expected[i], 1e-5 * std::abs(expected[i])) << "step " << i + 1;
  }
}

TEST_F(GpuRanks, ComeToTheSameBitsWhereverTheStateLies) {
  const std::string expected = Digest(Options(0, "run"));
  const auto in_ram = [](TrainOptions& options) {
    options.weights_tier = options.state_tier = TierChoice::kHost;
  };
  const auto on_gpu = [](TrainOptions& options) { options.state_tier = TierChoice::kDevice; };
  const auto spilled = [](TrainOptions& options) {
    options.gradients_tier = TierChoice::kNvme;
    options.tile_elems = 2048;
  };
  EXPECT_EQ(DigestOf(3, "in_ram", in_ram), expected);
  EXPECT_EQ(DigestOf(0, "on_gpu", on_gpu), expected);
  EXPECT_EQ(DigestOf(3, "on_gpu", on_gpu), expected);
  EXPECT_EQ(DigestOf(2, "spilled", spilled), expected);
}

TEST_F(GpuRanks, SpeculateTogether) {
  const std::string expected = Digest(Options(0, "run"));
  for (const TierChoice state : {TierChoice::kNvme, TierChoice::kDevice}) {
    const std::string name = state == TierChoice::kNvme ? "on_disk" : "on_gpu";
    EXPECT_EQ(DigestOf(3, name,
                       [&](TrainOptions& options) {
                         options.gradients = GradientChoice::kSpeculate;
                         options.state_tier = state;
                       }),
              expected);
  }
}

TEST_F(GpuRanks, EachHasAGpuOfItsOwn) {
  const TrainOptions options = Options(3, "run");
  ASSERT_NE(Digest(options), "");
  const std::unique_ptr<Engine> engine = CreateThreadsEngine({.num_threads = 1});
  for (int rank = 0; rank < kNumRanks; ++rank) {
    const auto store =
        OpenRunStore(RunFolderOfRank(options.out, rank), engine.get(), StoreAccess::kReadOnly);
    ASSERT_TRUE(store.ok()) << store.status();
    EXPECT_THAT((*store)->committed().trainer.value("kernel", ""),
                HasSubstr("(CUDA device " + std::to_string(rank) + ")"));
  }
}

class DeepGpuRanks : public GpuRanks {
 protected:
  DeepGpuRanks() : GpuRanks(/*num_blocks=*/6) {}
  TrainOptions Deep(int stage, const std::string& name) const {
    TrainOptions options = Options(stage, name);
    options.eval_data = "";
    options.eval_every = 0;
    return options;
  }
};

TEST_F(DeepGpuRanks, GoThroughSegments) {
  const std::string expected = Digest(Deep(0, "run"));
  for (const int stage : {1, 3}) {
    TrainOptions options = Deep(stage, "segments");
    options.number_checkpoints = 3;
    EXPECT_EQ(Digest(options), expected);
  }
}

TEST_F(DeepGpuRanks, SpillActivations) {
  const std::string expected = Digest(Deep(0, "run"));
  for (const ActivationsTier tier : {ActivationsTier::kRam, ActivationsTier::kNvme}) {
    TrainOptions options = Deep(3, std::string(NameOf(tier)));
    options.gpu_mem_bytes = PlanOf(options).gpu.bytes - 1;
    options.activations_tier = tier;
    EXPECT_GT(PlanOf(options).gpu.num_spilled_activations, 0);
    EXPECT_EQ(Digest(options), expected);
  }
}

// ---- The bus, and what goes between ranks ------------------------------------------------------

struct RunCounters {
  emulation::Counters gpus;  // what the run added, of both
  std::vector<CollectiveTraffic> ranks;
};

RunCounters CountersOf(const TrainOptions& options) {
  RunCounters counters;
  const emulation::Counters before = CountersNow();
  EXPECT_THAT(TrainRanks(options, {.traffic = &counters.ranks}), Each(absl::OkStatus()));
  const emulation::Counters now = CountersNow();
  counters.gpus.to_device_bytes = now.to_device_bytes - before.to_device_bytes;
  counters.gpus.to_host_bytes = now.to_host_bytes - before.to_host_bytes;
  counters.gpus.unpinned_copy_bytes = now.unpinned_copy_bytes - before.unpinned_copy_bytes;
  counters.gpus.num_device_waits = now.num_device_waits - before.num_device_waits;
  return counters;
}

// A micro-batch of `tokens`, a multiple of four, as gpu_traffic_test has it.
int64_t MicroBatchBytes(int64_t tokens) {
  return (5 * tokens + 2 * (tokens + tokens + 4)) * int64_t{sizeof(int32_t)};
}

class GpuRanksTraffic : public GpuRanks, public testing::WithParamInterface<int> {
 protected:
  // No run measures its products, as none could keep what it measured: all make the same calls.
  GpuRanksTraffic() { ::setenv("XDG_CACHE_HOME", "/proc/nothing", 1); }
  TrainOptions WithSteps(int64_t steps) const {
    TrainOptions options = Options(GetParam(), "steps" + std::to_string(steps) + "_");
    options.steps = steps;
    options.accum = 1;  // so that all steps have as many rows
    options.clip = 0;
    options.eval_data = "";
    options.eval_every = 0;
    options.export_format = ExportFormat::kNone;
    return options;
  }
};

TEST_P(GpuRanksTraffic, OfEveryStepIsWhatItsOperationsNeed) {
  // Both have what a start and an end copy beside: the difference is the steps'.
  constexpr int64_t kFew = 2, kMany = 7;
  const RunCounters few = CountersOf(WithSteps(kFew)), many = CountersOf(WithSteps(kMany));
  const TrainOptions options = WithSteps(kMany);
  const DecoderConfig config = *ReadDecoderConfig(options.model);
  const Inventory inventory = BuildInventory(config);
  const Plan plan = PlanOf(options);
  // Each rank has whole layers there, and half of the rows.
  int64_t weights = 0;
  for (const int layer : ChainSchedule(ChainOf(config, plan.recompute)).Reads()) {
    weights += 2 * inventory.layers()[static_cast<size_t>(layer)].num_elems;
  }
  const int64_t batches = options.accum * MicroBatchBytes(options.batch / kNumRanks * options.seq);
  const int64_t gradients = inventory.num_padded_elems() * int64_t{sizeof(float)};
  const int64_t losses = options.accum * int64_t{sizeof(double)};
  constexpr int64_t kSteps = kNumRanks * (kMany - kFew);
  EXPECT_EQ(many.gpus.to_device_bytes - few.gpus.to_device_bytes, kSteps * (weights + batches));
  EXPECT_EQ(many.gpus.to_host_bytes - few.gpus.to_host_bytes, kSteps * (gradients + losses));
  EXPECT_EQ(many.gpus.unpinned_copy_bytes, few.gpus.unpinned_copy_bytes);
  EXPECT_EQ(many.gpus.num_device_waits, few.gpus.num_device_waits);
  // Words that ranks agree by are more than nothing beside so small a model.
  const auto sent = static_cast<double>(many.ranks[0].sent_bytes - few.ranks[0].sent_bytes);
  const auto planned = static_cast<double>((kMany - kFew) * plan.traffic.sent_bytes);
  EXPECT_NEAR(sent, planned, 0.02 * planned);
}

INSTANTIATE_TEST_SUITE_P(Stages, GpuRanksTraffic, testing::Values(0, 1, 3));

// A store of less, and the same GPU: the weights that are gathered are whole layers.
TEST_F(GpuRanks, PlanWhatTheyTake) {
  const auto bytes_of = [](const Plan& plan, const std::string& name) {
    const auto term = std::ranges::find(plan.terms, name, &PlanTerm::name);
    return term == plan.terms.end() ? -1 : term->host_bytes;
  };
  const Plan whole = PlanOf(Options(0, "plan")), divided = PlanOf(Options(3, "plan"));
  EXPECT_EQ(divided.gpu.bytes, whole.gpu.bytes);
  EXPECT_GT(bytes_of(divided, "weights of all ranks"), 0);
  for (const Plan* const plan : {&whole, &divided}) {
    EXPECT_GT(bytes_of(*plan, "sum of gradients over ranks (fp32)"), 0);
    EXPECT_GT(bytes_of(*plan, "micro-batches for the GPU"), 0);
    EXPECT_EQ(bytes_of(*plan, "gradients from the GPU"), -1);
  }
}

// ---- Which GPU ---------------------------------------------------------------------------------

TEST_F(GpuRanks, DoNotShareOne) {
  TheOptions().num_gpus = 1;
  const TrainOptions options = Options(3, "shared");
  for (const absl::Status& status : TrainRanks(options)) {
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage) << status;
    EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("rank 0 (thread0) and rank 1 (thread1)"),
                                         HasSubstr("CUDA_VISIBLE_DEVICES")));
  }
  EXPECT_FALSE(IsRunFolder(options.out));
}

TEST_F(GpuRanks, AllComputeOnOneOrNoneDoes) {
  RankRuns runs;
  runs.change = [](int rank, TrainOptions& options) {
    options.device = rank == 0 ? ComputeDevice::kAuto : ComputeDevice::kCpu;
  };
  for (const absl::Status& status : TrainRanks(Options(0, "mixed"), runs)) {
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage) << status;
    EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("rank 0 (thread0) would compute on a GPU"),
                                         HasSubstr("rank 1 (thread1) on the CPU: --device=cpu")));
  }
  TheOptions().driver = emulation::Options::Driver::kNone;
  for (const absl::Status& status : TrainRanks(Options(0, "without"))) {
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kEnvironment) << status;
    EXPECT_THAT(MessageOf(status), HasSubstr("--device=cuda: no usable GPU"));
  }
  TrainOptions options = Options(0, "auto");
  options.device = ComputeDevice::kAuto;
  EXPECT_NE(Digest(options), "");  // on CPUs
}

// ---- What goes wrong ---------------------------------------------------------------------------

class FailingGpuRanks : public GpuRanks, public testing::WithParamInterface<int> {
 protected:
  void SetUp() override {
    expected_ = Digest(Options(GetParam(), "undisturbed"));
    ASSERT_NE(expected_, "");
  }
  // Goes on with a run on both ranks, or begins it where it never was.
  void ExpectToGoOn(TrainOptions options) const {
    const auto json = ReadRunJson(options.out);
    options.resume = json.ok() && (*json)["state"] == kRunReady;
    EXPECT_EQ(Digest(options), expected_);
  }

  std::string expected_;
};

TEST_P(FailingGpuRanks, LoseTheGpuOfOne) {
  const int64_t first = CountersNow().num_calls;
  Digest(Options(GetParam(), "counted"));
  const int64_t num_calls = CountersNow().num_calls - first;
  int num_lost = 0;
  for (const int64_t part : {1, 3, 5}) {
    SCOPED_TRACE(part);
    const TrainOptions options = Options(GetParam(), "lost" + std::to_string(part) + "_");
    TheOptions().lost_gpu = 1;
    TheOptions().lost_after = static_cast<uint64_t>(CountersNow().num_calls + part * num_calls / 8);
    const std::vector<absl::Status> statuses = TrainRanks(options);
    TheOptions().lost_after = UINT64_MAX;
    // Calls that only ask may be fewer than they were.
    if (statuses[0].ok() && statuses[1].ok()) continue;
    ++num_lost;
    for (const absl::Status& status : statuses) {
      EXPECT_EQ(ExitCodeOf(status), ExitCode::kEnvironment) << status;
      EXPECT_THAT(MessageOf(status), HasSubstr("cudaErrorDevicesUnavailable"));
    }
    EXPECT_THAT(MessageOf(statuses[0]), HasSubstr("rank 1 of 2 on thread1"));
    ExpectToGoOn(options);
  }
  EXPECT_GT(num_lost, 1);
}

TEST_P(FailingGpuRanks, DieBeforeSomeExchanges) {
  for (const int64_t exchange : {40, 75}) {
    SCOPED_TRACE(exchange);
    const TrainOptions options = Options(GetParam(), "died" + std::to_string(exchange) + "_");
    RankRuns runs;
    runs.ranks.num_ranks = kNumRanks;
    runs.ranks.faults = {{ThreadFaultKind::kDies, /*rank=*/1, exchange}};
    const std::vector<absl::Status> statuses = TrainRanks(options, runs);
    if (statuses[0].ok() && statuses[1].ok()) return;  // it does not come so far
    EXPECT_EQ(ExitCodeOf(statuses[0]), ExitCode::kEnvironment) << statuses[0];
    EXPECT_THAT(MessageOf(statuses[0]), HasSubstr("rank 1"));
    ExpectToGoOn(options);
  }
}

INSTANTIATE_TEST_SUITE_P(Stages, FailingGpuRanks, testing::Values(0, 3));

}  // namespace
}  // namespace forebay
