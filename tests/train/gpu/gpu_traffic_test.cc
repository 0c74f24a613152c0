// The bus and the runtime in a training step on a GPU, as the emulation counts their use.
#include <algorithm>
#include <string>
#include <vector>

#include "forebay/base/tensor_spec.h"
#include "forebay/data/micro_batch.h"
#include "forebay/device/emulation/counters.h"
#include "forebay/model/decoder_compute.h"
#include "forebay/model/decoder_config.h"
#include "forebay/optimizer/kernels/gradient_norm.h"
#include "forebay/step/step_schedule.h"
#include "forebay/tests/temporary_folder.h"
#include "forebay/tests/train/faults/toy_run.h"
#include "forebay/train/plan/plan.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

// The counters at the end of each step.
class CountingObserver : public SilentObserver {
 public:
  void OnStep(const Json&) override { after.push_back(emulation::CountersNow()); }
  std::vector<emulation::Counters> after;
};

struct Case {
  std::string name;
  GradientChoice gradients = GradientChoice::kHold;
  TierChoice tier = TierChoice::kNvme;
  bool spills_activation = false;  // one, that does not fit on the GPU
  ActivationsTier activations_tier = ActivationsTier::kRam;
  bool has_state = false;  // of the optimizer, on the GPU
  int num_blocks = 3;
  int number_checkpoints = 0;
};

class GpuTraffic : public testing::TestWithParam<Case> {
 protected:
  GpuTraffic() {
    options_ = task_.TightRun(folder_.Path("run"));
    options_.ram_bytes = int64_t{256} << 20;
    options_.device = ComputeDevice::kCuda;
    options_.clip = 0;
    options_.gradients = GetParam().gradients;
    options_.weights_tier = options_.state_tier = GetParam().tier;
    options_.activations_tier = GetParam().activations_tier;
    options_.number_checkpoints = GetParam().number_checkpoints;
    if (GetParam().has_state) {
      options_.state_tier = TierChoice::kDevice;
      options_.commit_every = 1;
    }
    if (GetParam().spills_activation) options_.gpu_mem_bytes = PlanOf(options_).gpu.bytes - 1;
  }
  static Plan PlanOf(const TrainOptions& options) {
    MachineLimits limits;
    limits.gpu = {.name = "a GPU", .free_bytes = int64_t{1} << 30};
    return *MakePlan(*ReadDecoderConfig(options.model), options, limits);
  }
  // Between the ends of neighbouring steps.
  std::vector<emulation::Counters> Steps() {
    CountingObserver observer;
    const absl::Status status = TrainToy(options_, {}, observer);
    EXPECT_TRUE(status.ok()) << status;
    return observer.after;
  }

  const TemporaryFolder folder_;
  const ToyTask task_{folder_.path(), GetParam().num_blocks};
  TrainOptions options_;
};

// Each read of the schedule brings a layer's bf16 weights, once; beside them go the tokens.
int64_t WeightBytes(const Inventory& inventory, const StepSchedule& schedule) {
  int64_t elems = 0;
  for (const int layer : schedule.Reads()) {
    elems += inventory.layers()[static_cast<size_t>(layer)].num_elems;
  }
  return elems * 2;
}
// The rounded gradient of each layer, and the sums of its squares.
int64_t GradientBytes(const Inventory& inventory) {
  int64_t bytes = 0;
  for (const LayerSpec& layer : inventory.layers()) {
    bytes += layer.num_elems * 2 + layer.num_elems / kNormBlockElems * int64_t{sizeof(double)};
  }
  return bytes;
}
// The numbers of a micro-batch of `tokens`, a multiple of four: tokens, targets, positions and both
// ends of segments; order and runs of tokens and positions, the runs with one entry more, in fours.
int64_t BatchBytes(int64_t tokens) {
  return (5 * tokens + 2 * (tokens + tokens + 4)) * int64_t{sizeof(int32_t)};
}

TEST_P(GpuTraffic, OfEveryStepIsWhatItsOperationsNeed) {
  const auto config = ReadDecoderConfig(options_.model);
  ASSERT_TRUE(config.ok()) << config.status();
  const Inventory inventory = BuildInventory(*config);
  // The layers of a segment that go forward again have their weights brought once more.
  const StepSchedule schedule = ChainSchedule(ChainOf(*config, PlanOf(options_).recompute));
  const int num_again = GetParam().number_checkpoints > 0 ? 2 : 0;
  EXPECT_EQ(std::ranges::count(schedule.operations, OperationKind::kForward, &Operation::kind),
            GetParam().num_blocks + 1 + num_again);
  const int64_t weights = WeightBytes(inventory, schedule);
  const int64_t batches = options_.accum * BatchBytes(options_.batch * options_.seq);
  // Each micro-batch's leave in the forward pass, and come back.
  const int num_spilled = PlanOf(options_).gpu.num_spilled_activations;
  EXPECT_EQ(num_spilled, GetParam().spills_activation ? 1 : 0);
  const int64_t activations =
      num_spilled * options_.accum * options_.batch * options_.seq * config->hidden_size * 2;
  const int64_t losses = options_.accum * int64_t{sizeof(double)};
  // An update there has weights and gradients in bf16, and gives weights and what is committed.
  const int64_t elems = GetParam().has_state ? inventory.num_padded_elems() : 0;
  const int64_t state = GetParam().has_state ? PlanOf(options_).tiles.state_area_bytes() : 0;
  const std::vector<emulation::Counters> after = Steps();
  ASSERT_EQ(after.size(), static_cast<size_t>(kToySteps));
  const bool is_lazy = GetParam().gradients == GradientChoice::kHold;
  for (size_t i = 1; i < after.size(); ++i) {
    const emulation::Counters &now = after[i], &before = after[i - 1];
    // The last step is followed by its own update.
    const bool has_two = GetParam().has_state && is_lazy && i + 1 == after.size();
    const int64_t num_updates = has_two ? 2 : 1;
    EXPECT_EQ(now.to_device_bytes - before.to_device_bytes,
              weights + batches + activations + num_updates * 4 * elems)
        << i;
    EXPECT_EQ(now.to_host_bytes - before.to_host_bytes,
              GradientBytes(inventory) + losses + activations + num_updates * (2 * elems + state))
        << i;
    if (has_two) continue;
    EXPECT_EQ(now.num_launches - before.num_launches, after[1].num_launches - after[0].num_launches)
        << i;
  }
}

TEST_P(GpuTraffic, NoStepWaitsForTheWholeDeviceOrTakesMemoryBesideThePlans) {
  const int64_t before = emulation::CountersNow().allocated_bytes;
  const std::vector<emulation::Counters> after = Steps();
  ASSERT_EQ(after.size(), static_cast<size_t>(kToySteps));
  EXPECT_GT(after[0].num_launches, 0);
  EXPECT_EQ(after[0].allocated_bytes - before, PlanOf(options_).gpu.bytes);
  for (size_t i = 1; i < after.size(); ++i) {
    EXPECT_EQ(after[i].num_device_waits, after[0].num_device_waits) << i;
    EXPECT_EQ(after[i].unpinned_copy_bytes, after[0].unpinned_copy_bytes) << i;
    EXPECT_EQ(after[i].allocated_bytes, after[0].allocated_bytes) << i;
    EXPECT_EQ(after[i].pinned_bytes, after[0].pinned_bytes) << i;
  }
}

// docs/performance.md says why they are not worth a CUDA graph.
int64_t LaunchesOfAStep(int num_blocks, int64_t num_batches) {
  const TemporaryFolder folder;
  TrainOptions options = ToyTask(folder.path(), num_blocks).TightRun(folder.Path("run"));
  options.ram_bytes = int64_t{256} << 20;
  options.device = ComputeDevice::kCuda;
  options.accum = num_batches;
  CountingObserver observer;
  EXPECT_TRUE(TrainToy(options, {}, observer).ok());
  return observer.after[1].num_launches - observer.after[0].num_launches;
}

TEST(GpuLaunches, OfABlockAreAsManyAsDocumented) {
  const int64_t once = LaunchesOfAStep(3, 1) - LaunchesOfAStep(2, 1);
  const int64_t twice = LaunchesOfAStep(3, 2) - LaunchesOfAStep(2, 2);
  EXPECT_EQ(twice - once, 50);          // of a micro-batch
  EXPECT_EQ(once - (twice - once), 1);  // beside them: its gradient is rounded
}

INSTANTIATE_TEST_SUITE_P(
    Runs, GpuTraffic,
    testing::Values(Case{.name = "OnDisk"}, Case{.name = "InRam", .tier = TierChoice::kHost},
                    Case{.name = "Speculative", .gradients = GradientChoice::kSpeculate},
                    Case{.name = "StateOnTheGpu", .has_state = true},
                    Case{.name = "SpeculativeStateOnTheGpu",
                         .gradients = GradientChoice::kSpeculate,
                         .has_state = true},
                    Case{.name = "ActivationsInRam", .spills_activation = true},
                    Case{.name = "ActivationsOnDisk",
                         .spills_activation = true,
                         .activations_tier = ActivationsTier::kNvme},
                    Case{.name = "InSegments", .num_blocks = 6, .number_checkpoints = 3},
                    Case{.name = "InputsOfSegmentsInRam",
                         .spills_activation = true,
                         .num_blocks = 6,
                         .number_checkpoints = 3}),
    [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace forebay
