// Plans beside what runs of them do: the bytes that a step moves and the memory that is taken, over
// configurations that are drawn. Seconds are bench/plan_actual.py's.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/counter_rng.h"
#include "forebay/base/errors.h"
#include "forebay/offload/create_store.h"
#include "forebay/tests/temporary_folder.h"
#include "forebay/train/plan/plan.h"
#include "forebay/train/step/run_session.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kNumConfigurations = 10;
#else
constexpr int kNumConfigurations = 40;
#endif

constexpr int64_t kVocabulary = 203;
constexpr int64_t kSeq = 16;

// What a plan is held to.
constexpr double kMostByteError = 0.005;
constexpr double kMostMemoryError = 0.02;

class Draw {
 public:
  explicit Draw(uint64_t number) : random_(/*seed=*/20260101, number) {}
  int64_t Between(int64_t least, int64_t most) {
    return least +
           static_cast<int64_t>(random_.Below(next_++, static_cast<uint64_t>(most - least + 1)));
  }
  bool OneIn(int64_t count) { return Between(1, count) == 1; }
  template <typename T>
  T OneOf(std::initializer_list<T> values) {
    return *(values.begin() + Between(0, std::ssize(values) - 1));
  }

 private:
  const CounterRng random_;
  uint64_t next_ = 0;
};

DecoderConfig DrawModel(Draw& draw) {
  DecoderConfig config;
  config.architecture = "LlamaForCausalLM";
  config.vocab_size = kVocabulary;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = draw.OneOf<int64_t>({16, 24, 32});
  config.hidden_size = config.num_heads * config.head_dim;
  config.intermediate_size = config.hidden_size * draw.Between(2, 3);
  config.num_layers = draw.Between(3, 9);
  config.max_positions = 64;
  config.tied_embeddings = draw.OneIn(2);
  config.window.assign(static_cast<size_t>(config.num_layers), 0);
  return config;
}

int64_t NumStreamedLayers(const DecoderConfig& model) {
  return BuildInventory(model).num_streamed_layers();
}

TrainOptions DrawOptions(const DecoderConfig& model, Draw& draw) {
  TrainOptions options;
  options.batch = draw.Between(1, 2);
  options.accum = draw.Between(1, 2);
  options.seq = kSeq;
  options.threads = static_cast<int>(draw.Between(1, 2));
  options.tile_elems = draw.OneOf<int64_t>({2048, 4096, 16384});
  options.layout =
      draw.OneOf({Layout::kBf16, Layout::kFp32, Layout::kBf16Moments, Layout::kInt8Moments});
  options.precision =
      options.layout == Layout::kFp32 ? cpu::Precision::kFp32 : cpu::Precision::kBf16;
  options.grad_dtype = WeightDType(options.layout);
  options.optimizer = draw.OneOf(
      {OptimizerKind::kAdamW, OptimizerKind::kAdamW, OptimizerKind::kLion, OptimizerKind::kSgd});
  options.clip = draw.OneOf({0.0, 1e9});
  options.gradients =
      draw.OneOf({GradientChoice::kAuto, GradientChoice::kHold, GradientChoice::kSpeculate});
  if (draw.OneIn(2) && options.gradients == GradientChoice::kSpeculate) {
    options.speculate_layers = draw.Between(1, NumStreamedLayers(model));
  }
  if (options.gradients != GradientChoice::kSpeculate) {
    options.durability = draw.OneOf({Durability::kStep, Durability::kReplay, Durability::kNone});
    options.gradients_tier = draw.OneOf({TierChoice::kAuto, TierChoice::kAuto, TierChoice::kNvme});
  }
  const auto tier = [&] {
    return draw.OneOf({TierChoice::kAuto, TierChoice::kAuto, TierChoice::kAuto, TierChoice::kHost,
                       TierChoice::kNvme});
  };
  options.weights_tier = tier();
  options.state_tier = tier();
  options.activations_tier = draw.OneOf({ActivationsTier::kRam, ActivationsTier::kNvme});
  // Commits that go by time are in no plan.
  options.commit_every =
      options.gradients == GradientChoice::kHold && options.durability == Durability::kStep
          ? draw.Between(1, 3)
      : options.durability == Durability::kNone ? 0
                                                : 1;
  return options;
}

std::string Describe(const TrainOptions& options, const Plan& plan) {
  return fmt::format(
      "ram {} layout {} optimizer {} tiers {} {} {} gradients {} of {} durability {} commits {}: "
      "{} "
      "speculative, {} / {} / {} bytes in RAM",
      plan.ram_budget_bytes, NameOf(options.layout), NameOf(options.optimizer),
      static_cast<int>(options.weights_tier), static_cast<int>(options.state_tier),
      NameOf(options.activations_tier), static_cast<int>(options.gradients),
      options.speculate_layers, NameOf(options.durability), options.commit_every,
      plan.placement.NumUpdated(UpdateTime::kAfterHand), plan.placement.host_gradient_bytes,
      plan.placement.host_weight_bytes, plan.placement.host_state_bytes);
}

// The first budget that works is in what refuses another.
absl::StatusOr<Plan> PlanWithin(const DecoderConfig& model, TrainOptions& options,
                                const MachineLimits& limits, Draw& draw) {
  options.ram_bytes = int64_t{1} << 20;
  const std::string refused = MessageOf(MakePlan(model, options, limits).status());
  const size_t at = refused.rfind("--ram=");
  FOREBAY_CHECK(at != std::string::npos);
  const int64_t least_bytes = std::stoll(refused.substr(at + 6)) << 20;
  const int64_t all_bytes = 14 * BuildInventory(model).num_padded_elems();
  options.ram_bytes = least_bytes + (draw.OneIn(4) ? 0 : draw.Between(0, all_bytes));
  return MakePlan(model, options, limits);
}

MicroBatch TokensOf(int64_t num_rows) {
  MicroBatch batch;
  const CounterRng random(1);
  for (int64_t i = 0; i < num_rows * kSeq; ++i) {
    batch.tokens.push_back(static_cast<int32_t>(random.Below(i, kVocabulary)));
    batch.targets.push_back(static_cast<int32_t>(random.Below(1000 + i, kVocabulary)));
    batch.positions.push_back(static_cast<int32_t>(i % kSeq));
  }
  for (int64_t row = 0; row < num_rows; ++row) batch.segments.push_back({row * kSeq, kSeq});
  batch.num_tokens = batch.num_trained = num_rows * kSeq;
  return batch;
}

class PlannedRun {
 public:
  PlannedRun(const DecoderConfig& model, const TrainOptions& options, const Plan& plan)
      : options_(options),
        plan_(plan),
        engine_(CreateThreadsEngine({.num_threads = 2})),
        budget_(plan.ram_budget_bytes),
        batches_(static_cast<size_t>(options.accum), TokensOf(options.batch)) {
    // As a run charges what has no buffer.
    FOREBAY_CHECK(budget_.Charge("program", kRuntimeBytes).ok());
    FOREBAY_CHECK(
        budget_.Charge("checksums", TensorStore::SealBytes(plan.tiles, plan.num_slots)).ok());
    std::vector<std::string> folders;
    for (size_t i = 0; i < plan.stripes.size(); ++i) {
      folders.push_back(folder_.Path(fmt::format("store{}", i)));
    }
    const TensorFiller fill = [](const TensorSpec&, std::span<float> values) {
      std::ranges::fill(values, 0.01f);
      return absl::OkStatus();
    };
    MemoryBudget of_filling(0);
    auto store = CreateFilledStore(StoreOptionsOf(plan, folders), BuildInventory(model), fill, {},
                                   engine_.get(), &of_filling);
    FOREBAY_CHECK(store.ok());
    auto session = RunSession::Create(plan, options, model, *std::move(store), &budget_, {});
    FOREBAY_CHECK(session.ok());
    session_ = *std::move(session);
  }

  // `io`: what was moved until the norm of the last step was known, where the plan's steps end.
  void Train(int num_steps, IoStats& io) {
    LayerSession& layers = session_->layers();
    const StepInputs inputs = {
        .batches = batches_, .clip = options_.clip, .scalars_of = [&](double /*norm*/) {
          return UpdateScalars{.step = layers.released_step() + 1, .lr = 1e-4};
        }};
    for (int step = 0; step < num_steps; ++step) {
      ASSERT_TRUE(session_->step().Run(inputs).ok());
      io = engine_->stats();
      ASSERT_EQ(layers.Update(Json::object()), absl::OkStatus());
    }
  }
  // All that was begun has ended.
  void Settle() { ASSERT_EQ(session_->layers().Commit(), absl::OkStatus()); }

  int64_t memory_bytes() const { return budget_.peak_bytes(); }

 private:
  const TemporaryFolder folder_;
  const TrainOptions& options_;
  const Plan& plan_;
  const std::unique_ptr<Engine> engine_;
  MemoryBudget budget_;
  const std::vector<MicroBatch> batches_;
  std::unique_ptr<RunSession> session_;
};

TEST(PlanActual, StepsMoveTheBytesAndTakeTheMemoryThatTheirPlanSays) {
  int num_speculative = 0, num_in_part = 0;
  for (int number = 0; number < kNumConfigurations; ++number) {
    Draw draw(static_cast<uint64_t>(number));
    const DecoderConfig model = DrawModel(draw);
    TrainOptions options = DrawOptions(model, draw);
    MachineLimits limits = {.num_cores = options.threads};
    limits.disks.resize(static_cast<size_t>(draw.Between(1, 3)));
    for (size_t i = 0; i < limits.disks.size(); ++i) {
      limits.disks[i].weight = draw.Between(1, 3);
      limits.disks[i].file_system = i;
    }
    const absl::StatusOr<Plan> plan = PlanWithin(model, options, limits, draw);
    ASSERT_TRUE(plan.ok()) << plan.status();
    SCOPED_TRACE(fmt::format("configuration {}: {}", number, Describe(options, *plan)));
    const int64_t speculative = plan->placement.NumUpdated(UpdateTime::kAfterHand);
    num_speculative += speculative > 0 ? 1 : 0;
    num_in_part += speculative > 0 && speculative < NumStreamedLayers(model) ? 1 : 0;

    PlannedRun run(model, options, *plan);
    const auto steps = static_cast<int>(std::max<int64_t>(1, StepsPerCommit(plan->commit_pace)));
    // The first steps find a window that is empty, and nothing to update.
    IoStats before, after;
    ASSERT_NO_FATAL_FAILURE(run.Train(2 * steps, before));
    ASSERT_NO_FATAL_FAILURE(run.Train(2 * steps, after));
    const auto per_step = [&](int64_t bytes) { return static_cast<double>(bytes) / (2 * steps); };
    const auto read = static_cast<double>(plan->read_bytes_per_step);
    const auto write = static_cast<double>(plan->write_bytes_per_step);
    EXPECT_NEAR(per_step(after.read_bytes - before.read_bytes), read, kMostByteError * read);
    EXPECT_NEAR(per_step(after.write_bytes - before.write_bytes), write, kMostByteError * write);
    // Without the program itself, of which the plan has the same constant as the budget.
    EXPECT_LE(run.memory_bytes(), plan->host_bytes);
    const auto planned = static_cast<double>(plan->host_bytes - kRuntimeBytes);
    EXPECT_NEAR(static_cast<double>(run.memory_bytes() - kRuntimeBytes), planned,
                kMostMemoryError * planned);
    ASSERT_NO_FATAL_FAILURE(run.Settle());
  }
  // What was drawn has all kinds.
  EXPECT_GE(num_speculative, kNumConfigurations / 5);
  EXPECT_GE(num_in_part, 1);
}

}  // namespace
}  // namespace forebay
