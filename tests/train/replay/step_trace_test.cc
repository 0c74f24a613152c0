// The replay of a step (replay/) beside the step itself: the same transfers, one for one, and the
// bytes that the plan states.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/counter_rng.h"
#include "forebay/base/errors.h"
#include "forebay/offload/create_store.h"
#include "forebay/replay/step_replay.h"
#include "forebay/tests/replay/must_plan.h"
#include "forebay/tests/temporary_folder.h"
#include "forebay/tests/train/replay/recording_engine.h"
#include "forebay/train/plan/plan.h"
#include "forebay/train/step/run_session.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

DecoderConfig TinyLlama(bool tied) {
  DecoderConfig config;
  config.architecture = "LlamaForCausalLM";
  config.vocab_size = 97;
  config.hidden_size = 32;
  config.intermediate_size = 80;
  config.num_layers = 6;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 8;
  config.max_positions = 64;
  config.tied_embeddings = tied;
  config.window.assign(6, 0);
  return config;
}

struct Variant {
  std::string name;
  bool tied;
  TierChoice gradients;
  Layout layout;
  Durability durability = Durability::kStep;
  ActivationsTier activations = ActivationsTier::kRam;
};

class StepTraceTest : public testing::TestWithParam<Variant> {
 protected:
  static constexpr int kNumSteps = 3;

  StepTraceTest() {
    options_.batch = 2;
    options_.seq = 16;
    options_.threads = 1;
    options_.tile_elems = 4096;
    options_.layout = GetParam().layout;
    options_.precision =
        options_.layout == Layout::kBf16 ? cpu::Precision::kBf16 : cpu::Precision::kFp32;
    options_.grad_dtype = WeightDType(options_.layout);
    options_.weights_tier = options_.state_tier = TierChoice::kNvme;
    options_.ram_bytes = int64_t{1} << 30;
    options_.gradients_tier = GetParam().gradients;
    options_.durability = GetParam().durability;
    options_.activations_tier = GetParam().activations;
  }

  Plan MakeTestPlan() {
    absl::StatusOr<Plan> plan = MakePlan(config_, options_, {.num_cores = 1});
    FOREBAY_CHECK(plan.ok());
    return *std::move(plan);
  }

  OffloadPlan MakeReplayPlan() {
    ReplayInputs inputs = {.inventory = BuildInventory(config_),
                           .loss_reads_first = GetParam().tied};
    inputs.offload.layout = options_.layout;
    inputs.offload.tile_elems = options_.tile_elems;
    inputs.offload.grad_dtype = options_.grad_dtype;
    inputs.offload.gradients_tier = options_.gradients_tier;
    inputs.offload.durability = options_.durability;
    inputs.offload.activations_tier = options_.activations_tier;
    // The trainer's staging has the memory that is left.
    inputs.offload.buffers->num_staging_tiles = MakeTestPlan().num_staging_tiles;
    inputs.activation_bytes = ForwardBytes(config_, options_.batch * options_.accum * options_.seq);
    return MustPlan(inputs);
  }

  std::unique_ptr<TensorStore> NewStore(const std::string& name, const OffloadPlan& plan) {
    const TensorFiller fill = [](const TensorSpec&, int64_t, std::span<float> values) {
      std::ranges::fill(values, 0.01f);
      return absl::OkStatus();
    };
    absl::StatusOr<std::unique_ptr<TensorStore>> store =
        CreateFilledStore(StoreOptionsOf(plan, {folder_.Path(name)}), BuildInventory(config_), fill,
                          {}, engine_.get(), &budget_);
    FOREBAY_CHECK(store.ok());
    return *std::move(store);
  }

  std::vector<Transfer> TraceOfTheTrainer() {
    const Plan plan = MakeTestPlan();
    std::vector<Transfer> trace;
    LayerSessionOptions session_options;
    // A step ends where the next one's writes begin.
    session_options.before_writing = [&] {
      trace = engine_->Take();
      return absl::OkStatus();
    };
    auto session = RunSession::Create(plan, options_, config_, NewStore("run", plan), &budget_,
                                      std::move(session_options));
    FOREBAY_CHECK(session.ok());
    RunSession& run = **session;
    MicroBatch batch;
    const CounterRng random(1);
    for (int i = 0; i < 32; ++i) {
      batch.tokens.push_back(static_cast<int32_t>(random.Below(i, 97)));
      batch.targets.push_back(static_cast<int32_t>(random.Below(100 + i, 97)));
      batch.positions.push_back(i % 16);
    }
    batch.segments = {{0, 16}, {16, 16}};
    batch.num_tokens = batch.num_trained = 32;
    const StepInputs inputs = {.batches = {&batch, 1}, .scalars_of = [&](double /*norm*/) {
                                 return UpdateScalars{.step = run.layers().released_step() + 1,
                                                      .lr = 1e-3};
                               }};
    for (int step = 1; step <= kNumSteps; ++step) {
      const auto result = run.step().Run(inputs);
      EXPECT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(run.layers().Update(Json::object()), absl::OkStatus());
    }
    const std::vector<Transfer> of_last_step = trace;
    EXPECT_EQ(run.layers().Commit(), absl::OkStatus());
    return of_last_step;
  }

  std::vector<Transfer> TraceOfTheReplay() {
    const OffloadPlan plan = MakeReplayPlan();
    auto replay =
        StepReplay::Create(plan, {.offload = options_}, NewStore("replay", plan), &budget_);
    FOREBAY_CHECK(replay.ok());
    const auto never = [] { return false; };
    EXPECT_EQ((*replay)->Start(never), absl::OkStatus());
    std::vector<Transfer> trace;
    // The trainer's first step applies no update.
    for (int step = 1; step < kNumSteps; ++step) {
      engine_->Take();
      EXPECT_TRUE((*replay)->RunStep(never).ok());
      trace = engine_->Take();
    }
    return trace;
  }

  const TemporaryFolder folder_;
  const DecoderConfig config_ = TinyLlama(GetParam().tied);
  TrainOptions options_;
  MemoryBudget budget_{0};
  const std::unique_ptr<RecordingEngine> engine_ =
      std::make_unique<RecordingEngine>(CreateThreadsEngine({.num_threads = 2}));
};

TEST_P(StepTraceTest, TheReplayMakesTheTrainersTransfersOneForOne) {
  const std::vector<Transfer> trainer = TraceOfTheTrainer();
  const std::vector<Transfer> replay = TraceOfTheReplay();
  EXPECT_GT(trainer.size(), 40u);
  EXPECT_EQ(trainer, replay);
}

TEST_P(StepTraceTest, PlanTrainerAndReplayStateTheSameBytes) {
  const OffloadPlan replay = MakeReplayPlan();
  const Plan plan = MakeTestPlan();
  EXPECT_EQ(plan.read_bytes_per_step, replay.read_bytes_per_step);
  EXPECT_EQ(plan.write_bytes_per_step, replay.write_bytes_per_step);
  const TransferBytes moved = BytesOf(TraceOfTheTrainer());
  EXPECT_EQ(moved.read, replay.read_bytes_per_step);
  EXPECT_EQ(moved.write, replay.write_bytes_per_step);
}

INSTANTIATE_TEST_SUITE_P(
    Variants, StepTraceTest,
    testing::ValuesIn(std::vector<Variant>{
        {"Tied", true, TierChoice::kHost, Layout::kBf16},
        {"TiedSpilled", true, TierChoice::kNvme, Layout::kBf16},
        {"Untied", false, TierChoice::kHost, Layout::kBf16},
        {"UntiedFp32Spilled", false, TierChoice::kNvme, Layout::kFp32},
        {"NoCommits", true, TierChoice::kHost, Layout::kBf16, Durability::kNone},
        {"Activations", true, TierChoice::kHost, Layout::kBf16, Durability::kStep,
         ActivationsTier::kNvme},
        {"ActivationsAndGradients", false, TierChoice::kNvme, Layout::kBf16, Durability::kStep,
         ActivationsTier::kNvme}}),
    [](const testing::TestParamInfo<Variant>& variant) { return variant.param.name; });

}  // namespace
}  // namespace forebay
