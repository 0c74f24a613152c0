// One process that computes on several GPUs, which are emulated, with one state.
#include <cstdlib>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/device/emulation/counters.h"
#include "forebay/device/emulation/options.h"
#include "forebay/model/decoder_compute.h"
#include "forebay/step/step_schedule.h"
#include "forebay/tests/temporary_folder.h"
#include "forebay/tests/train/ranks/rank_runs.h"
#include "forebay/tests/train/trace/trace_rows.h"
#include "forebay/train/plan/plan.h"
#include "forebay/train/start/agree_on_run.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using emulation::CountersNow;
using emulation::TheOptions;
using testing::Each;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

class GpuDataParallel : public testing::Test {
 protected:
  explicit GpuDataParallel(int num_blocks = 2) : task_(folder_.path(), num_blocks) {
    TheOptions().num_gpus = 3;
    // No run measures its products, as none could keep what it measured: all make the same calls.
    ::setenv("XDG_CACHE_HOME", "/proc/nothing", 1);
  }
  ~GpuDataParallel() override { TheOptions() = before_; }

  // In bf16, clipped, with an evaluation on the way.
  TrainOptions Options(const std::string& name, int num_parts) const {
    TrainOptions options = task_.TightRun(folder_.Path(name));
    options.ram_bytes = int64_t{256} << 20;
    options.batch = 6;
    options.clip = 0.5;
    options.device = ComputeDevice::kCuda;
    options.eval_data = options.data;
    options.eval_every = 2;
    options.data_parallel = num_parts;
    return options;
  }
  static std::string Digest(const TrainOptions& options) {
    EXPECT_EQ(TrainToy(options), absl::OkStatus());
    const auto result = ResultOf(options.out);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? result->state : "";
  }
  static Plan PlanOf(TrainOptions options) {
    EXPECT_EQ(TakePartOfRank(/*rank=*/0, /*num_ranks=*/1, options), absl::OkStatus());
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

TEST_F(GpuDataParallel, HasTheBitsOfAsManyRanks) {
  constexpr int kNum = 3;
  const TrainOptions ranks = Options("ranks", 1);
  EXPECT_THAT(TrainRanks(ranks, {.ranks = {.num_ranks = kNum}}), Each(absl::OkStatus()));
  const TrainOptions parts = Options("parts", kNum);
  EXPECT_EQ(Digest(parts), DigestOfRanks(ranks.out, kNum));
  for (const char* field : {"loss", "grad_norm", "eval_loss"}) {
    EXPECT_EQ(FieldOf(parts.out, field), FieldOf(ranks.out, field)) << field;
  }
}

TEST_F(GpuDataParallel, HasTheSameBitsWhateverTheSettings) {
  const std::string expected = Digest(Options("run", 2));
  TrainOptions on_gpu = Options("on_gpu", 2);
  on_gpu.state_tier = TierChoice::kDevice;
  on_gpu.gradients = GradientChoice::kSpeculate;
  EXPECT_EQ(Digest(on_gpu), expected);
}

TEST_F(GpuDataParallel, TakesWhatIsPlanned) {
  TrainOptions options = Options("run", 3);
  const std::string expected = Digest(options);
  const Plan plan = PlanOf(options);
  options.out = folder_.Path("tight");
  options.gpu_mem_bytes = plan.gpu.bytes;
  EXPECT_EQ(Digest(options), expected);
}

TEST_F(GpuDataParallel, ATraceHasTheRowsOfEachGpuAndChangesNothing) {
  TrainOptions options = Options("run", 3);
  const std::string expected = Digest(options);
  options.out = folder_.Path("traced");
  options.trace = folder_.Path("trace.json");
  EXPECT_EQ(Digest(options), expected);
  const TraceRows rows = ReadTrace(options.trace);
  EXPECT_EQ(rows.num_dropped, 0);
  std::vector<std::string> gpu_rows;
  for (const auto& [row, name] : rows.names) {
    if (name.starts_with("GPU")) gpu_rows.push_back(name);
  }
  EXPECT_THAT(
      gpu_rows,
      UnorderedElementsAre("GPU 0: compute", "GPU 0: weights to the GPU",
                           "GPU 0: sums of gradients", "GPU 0: gradients to RAM", "GPU 1: compute",
                           "GPU 1: weights to the GPU", "GPU 1: gradients to RAM", "GPU 2: compute",
                           "GPU 2: weights to the GPU", "GPU 2: gradients to RAM"));
  const auto layers_of = [&](const std::string& row, const std::string& work) {
    std::set<std::string> layers;
    for (const Span& span : rows.Named(row)) {
      if (span.name.starts_with(work)) layers.insert(span.args["layer"]);
    }
    return layers;
  };
  const std::set<std::string> forward = layers_of("GPU 0: compute", "forward");
  const std::set<std::string> backward = layers_of("GPU 0: compute", "backward");
  EXPECT_EQ(forward.size(), 3u);  // the embedding and two blocks
  EXPECT_EQ(backward, forward);
  for (const std::string gpu : {"GPU 1", "GPU 2"}) {
    EXPECT_EQ(layers_of(gpu + ": compute", "forward"), forward);
    EXPECT_EQ(layers_of(gpu + ": compute", "backward"), backward);
    EXPECT_EQ(layers_of(gpu + ": gradients to RAM", "gradient").size(), 4u);
  }
}

class DeepGpuDataParallel : public GpuDataParallel {
 protected:
  DeepGpuDataParallel() : GpuDataParallel(/*num_blocks=*/6) {}
};

TEST_F(DeepGpuDataParallel, KeepsActivationsInRam) {
  const std::string expected = Digest(Options("run", 2));
  TrainOptions options = Options("spilled", 2);
  options.gpu_mem_bytes = PlanOf(options).gpu.bytes - 1;
  EXPECT_GT(PlanOf(options).gpu.num_spilled_activations, 0);
  EXPECT_EQ(Digest(options), expected);
}

// Weights leave the one window for each GPU, and gradients of all come to the first.
TEST_F(GpuDataParallel, CopiesWhatItsOperationsNeed) {
  const auto run = [&](int64_t steps) {
    TrainOptions options = Options("steps" + std::to_string(steps), 3);
    options.batch = 3;
    options.steps = steps;
    options.accum = 1;
    options.clip = 0;
    options.eval_data = "";
    options.eval_every = 0;
    options.export_format = ExportFormat::kNone;
    const emulation::Counters before = CountersNow();
    EXPECT_EQ(TrainToy(options), absl::OkStatus());
    emulation::Counters after = CountersNow();
    after.to_host_bytes -= before.to_host_bytes;
    after.to_device_bytes -= before.to_device_bytes;
    after.unpinned_copy_bytes -= before.unpinned_copy_bytes;
    after.num_device_waits -= before.num_device_waits;
    return after;
  };
  constexpr int64_t kFew = 2, kMany = 5, kSteps = kMany - kFew, kParts = 3;
  const emulation::Counters few = run(kFew), many = run(kMany);
  const TrainOptions options = Options("planned", kParts);
  const DecoderConfig config = *ReadDecoderConfig(options.model);
  const Inventory inventory = BuildInventory(config);
  int64_t weights = 0;
  for (const int layer : ChainSchedule(ChainOf(config, PlanOf(options).recompute)).Reads()) {
    weights += 2 * inventory.layers()[static_cast<size_t>(layer)].num_elems;
  }
  const int64_t summed = inventory.num_padded_elems() * int64_t{sizeof(float)};
  const int64_t rounded = inventory.num_padded_elems() * SizeOf(options.grad_dtype);
  const int64_t to_device = many.to_device_bytes - few.to_device_bytes;
  const int64_t to_host = many.to_host_bytes - few.to_host_bytes;
  // Tokens, losses and sums of squares are little beside.
  const auto copied = static_cast<double>(kSteps * (kParts * weights + (kParts - 1) * summed));
  EXPECT_NEAR(static_cast<double>(to_device), copied, 0.1 * copied);
  const auto landed = static_cast<double>(kSteps * ((kParts - 1) * summed + rounded));
  EXPECT_NEAR(static_cast<double>(to_host), landed, 0.1 * landed);
  EXPECT_EQ(many.unpinned_copy_bytes, few.unpinned_copy_bytes);
  EXPECT_EQ(many.num_device_waits, few.num_device_waits);
}

TEST_F(GpuDataParallel, AGpuThatIsNotThereIsNamed) {
  TrainOptions options = Options("run", 6);
  options.batch = 6;
  const absl::Status status = TrainToy(options);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kEnvironment) << status;
  EXPECT_THAT(MessageOf(status), HasSubstr("--data_parallel=6 asks for as many GPUs"));
}

TEST_F(GpuDataParallel, GpusOfTwoKindsAreRefused) {
  TheOptions().other_gpu = 1;
  const absl::Status status = TrainToy(Options("run", 2));
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kEnvironment) << status;
  EXPECT_THAT(MessageOf(status), HasSubstr("takes GPUs of one kind"));
  EXPECT_THAT(MessageOf(status), HasSubstr("another emulated GPU (CUDA device 1)"));
}

TEST_F(GpuDataParallel, GoesOnWhenOneOfItsGpusIsLost) {
  const int64_t first = CountersNow().num_calls;
  const std::string expected = Digest(Options("undisturbed", 2));
  const int64_t num_calls = CountersNow().num_calls - first;
  const TrainOptions options = Options("lost", 2);
  TheOptions().lost_gpu = 1;
  TheOptions().lost_after = static_cast<uint64_t>(CountersNow().num_calls + num_calls / 2);
  const absl::Status status = TrainToy(options);
  TheOptions().lost_after = UINT64_MAX;
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kEnvironment) << status;
  EXPECT_THAT(MessageOf(status), HasSubstr("cudaErrorDevicesUnavailable"));
  EXPECT_EQ(TrainToyOn(options), absl::OkStatus());
  EXPECT_EQ(ResultOf(options.out)->state, expected);
}

}  // namespace
}  // namespace forebay
