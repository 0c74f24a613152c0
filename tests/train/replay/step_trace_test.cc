// The replay of a step (replay/) beside the step itself: the same transfers, one for one, and the
// bytes that the plan states.
#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/base/counter_rng.h"
#include "forebay/base/errors.h"
#include "forebay/optimizer/held_gradients.h"
#include "forebay/replay/step_replay.h"
#include "forebay/tests/temporary_folder.h"
#include "forebay/train/plan/plan.h"
#include "forebay/train/start/create_store.h"
#include "forebay/train/step/run_session.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

// kind, file, offset, length.
using Transfer = std::tuple<IoKind, int, int64_t, int64_t>;

// Remembers what was submitted. The order is that of two threads, so only what matters is kept.
class RecordingEngine : public Engine {
 public:
  explicit RecordingEngine(std::unique_ptr<Engine> inner) : inner_(std::move(inner)) {}
  int AddFile(UniqueFd fd, std::string path) override {
    return inner_->AddFile(std::move(fd), std::move(path));
  }
  void RemoveFile(int file) override { inner_->RemoveFile(file); }
  absl::Status RegisterBuffers(std::span<std::byte> memory) override {
    return inner_->RegisterBuffers(memory);
  }
  void UnregisterBuffers(std::span<std::byte> memory) override {
    inner_->UnregisterBuffers(memory);
  }
  std::string RegistrationNote() const override { return inner_->RegistrationNote(); }
  void Submit(IoOp& op) override {
    {
      const std::lock_guard lock(mutex_);
      transfers_.emplace_back(op.kind, op.file, op.offset_bytes,
                              static_cast<int64_t>(op.buffer.size()));
    }
    inner_->Submit(op);
  }
  absl::Status Wait(IoOp& op) override { return inner_->Wait(op); }
  void WaitAny(std::span<IoOp* const> ops) override { inner_->WaitAny(ops); }
  void Cancel(IoOp& op) override { inner_->Cancel(op); }
  absl::Status Flush(int file) override { return inner_->Flush(file); }
  IoStats stats() const override { return inner_->stats(); }
  std::string name() const override { return inner_->name(); }
  bool direct() const override { return inner_->direct(); }

  // Those since the last call, sorted.
  std::vector<Transfer> Take() {
    const std::lock_guard lock(mutex_);
    std::vector<Transfer> taken;
    taken.swap(transfers_);
    std::ranges::sort(taken);
    return taken;
  }

 private:
  const std::unique_ptr<Engine> inner_;
  std::mutex mutex_;
  std::vector<Transfer> transfers_;
};

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
  Tier gradients;
  Layout layout;
  Durability durability = Durability::kStep;
};

ReplayDurability Replayed(Durability durability) {
  return durability == Durability::kNone     ? ReplayDurability::kNone
         : durability == Durability::kReplay ? ReplayDurability::kReplay
                                             : ReplayDurability::kStep;
}

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
    options_.durability = GetParam().durability;
    replay_options_ = {.layout = options_.layout,
                       .tile_elems = options_.tile_elems,
                       .gradient_dtype = options_.grad_dtype,
                       .gradients = GetParam().gradients,
                       .loss_reads_first = GetParam().tied,
                       .durability = Replayed(GetParam().durability)};
  }

  // The plan of a run, with gradients where the variant wants them: by its budget, they would stay
  // in RAM.
  Plan MakeTestPlan() {
    absl::StatusOr<Plan> plan = MakePlan(config_, options_, {.num_cores = 1});
    FOREBAY_CHECK(plan.ok());
    plan->placement.gradients.assign(plan->placement.gradients.size(), GetParam().gradients);
    plan->gradient_area_bytes = PlaceGradients(plan->placement, plan->tiles,
                                               SizeOf(options_.grad_dtype), plan->gradient_area)
                                    .area_bytes;
    return *std::move(plan);
  }

  std::unique_ptr<TensorStore> NewStore(const std::string& name,
                                        const StripeBytes& gradient_area_bytes) {
    const TensorFiller fill = [](const TensorSpec&, std::span<float> values) {
      std::ranges::fill(values, 0.01f);
      return absl::OkStatus();
    };
    absl::StatusOr<std::unique_ptr<TensorStore>> store =
        CreateFilledStore({.directories = {folder_.Path(name)},
                           .layout = options_.layout,
                           .tile_elems = options_.tile_elems,
                           .num_slots = GetParam().durability == Durability::kNone ? 1 : 2,
                           .gradient_area_bytes = gradient_area_bytes,
                           .has_intents = keeps_gradients_},
                          BuildInventory(config_), fill, {}, engine_.get(), &budget_);
    FOREBAY_CHECK(store.ok());
    return *std::move(store);
  }

  std::vector<Transfer> TraceOfTheTrainer() {
    const Plan plan = MakeTestPlan();
    auto session = RunSession::Create(plan, options_, config_,
                                      NewStore("run", plan.gradient_area_bytes), &budget_);
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
    std::vector<Transfer> trace;
    for (int step = 1; step <= kNumSteps; ++step) {
      TrainingStep::Hooks hooks;
      hooks.progress = [](double) { return absl::OkStatus(); };
      hooks.previous_step_applied = [&]() -> absl::Status {
        if (step == 1 || GetParam().durability == Durability::kNone) return absl::OkStatus();
        FOREBAY_RETURN_IF_ERROR(run.optimizer().AwaitAllWrites());
        return run.store().Commit({.step = step - 1, .trainer = Json::object()});
      };
      const auto result = run.step().Run({&batch, 1}, 1.0, hooks);
      EXPECT_TRUE(result.ok()) << result.status();
      if (keeps_gradients_ && step > 1) {
        EXPECT_EQ(run.optimizer().PublishIntent(step, Json::object()), absl::OkStatus());
      }
      trace = engine_->Take();
      EXPECT_EQ(run.store().BeginWriting(), absl::OkStatus());
      EXPECT_EQ(run.optimizer().BeginUpdate({.step = step, .lr = 1e-3}), absl::OkStatus());
    }
    EXPECT_TRUE(run.FinishUpdates().ok());
    return trace;
  }

  std::vector<Transfer> TraceOfTheReplay(const ReplayPlan& plan) {
    const auto store = NewStore("replay", plan.gradient_area_bytes);
    auto replay = StepReplay::Create(plan, ReplayCompute::kNone, 1, store.get(), &budget_);
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
  ReplayOptions replay_options_;
  const bool keeps_gradients_ = GetParam().durability == Durability::kReplay;
  MemoryBudget budget_{0};
  const std::unique_ptr<RecordingEngine> engine_ =
      std::make_unique<RecordingEngine>(CreateThreadsEngine({.num_threads = 2}));
};

TEST_P(StepTraceTest, TheReplayMakesTheTrainersTransfersOneForOne) {
  std::vector<Transfer> trainer = TraceOfTheTrainer();
  std::vector<Transfer> replay =
      TraceOfTheReplay(PlanReplay(BuildInventory(config_), replay_options_));
  EXPECT_GT(trainer.size(), 40u);
  // Files are numbered in the order in which they are opened: the second store's come behind the
  // first's.
  const auto by_own_numbers = [](std::vector<Transfer>& trace) {
    int least = std::get<1>(trace.front());
    for (const Transfer& transfer : trace) least = std::min(least, std::get<1>(transfer));
    for (Transfer& transfer : trace) std::get<1>(transfer) -= least;
    std::ranges::sort(trace);
  };
  by_own_numbers(trainer);
  by_own_numbers(replay);
  EXPECT_EQ(trainer, replay);
}

TEST_P(StepTraceTest, PlanTrainerAndReplayStateTheSameBytes) {
  const ReplayPlan replay = PlanReplay(BuildInventory(config_), replay_options_);
  const Plan plan = MakeTestPlan();
  if (GetParam().gradients == Tier::kHost) {
    EXPECT_EQ(plan.read_bytes_per_step, replay.transfers.read_bytes);
    EXPECT_EQ(plan.write_bytes_per_step, replay.transfers.write_bytes);
  }
  StepTransfers moved;
  for (const Transfer& transfer : TraceOfTheTrainer()) {
    (std::get<0>(transfer) == IoKind::kRead ? moved.read_bytes : moved.write_bytes) +=
        std::get<3>(transfer);
  }
  EXPECT_EQ(moved.read_bytes, replay.transfers.read_bytes);
  EXPECT_EQ(moved.write_bytes, replay.transfers.write_bytes);
}

INSTANTIATE_TEST_SUITE_P(
    Variants, StepTraceTest,
    testing::ValuesIn(std::vector<Variant>{
        {"Tied", true, Tier::kHost, Layout::kBf16},
        {"TiedSpilled", true, Tier::kNvme, Layout::kBf16},
        {"Untied", false, Tier::kHost, Layout::kBf16},
        {"UntiedFp32Spilled", false, Tier::kNvme, Layout::kFp32},
        {"NoCommits", true, Tier::kHost, Layout::kBf16, Durability::kNone},
        {"Kept", true, Tier::kHost, Layout::kBf16, Durability::kReplay},
        {"KeptAndSpilled", false, Tier::kNvme, Layout::kBf16, Durability::kReplay}}),
    [](const testing::TestParamInfo<Variant>& variant) { return variant.param.name; });

}  // namespace
}  // namespace forebay
