// Plans beside what runs of them do: the bytes that a step moves and the memory that is taken, over
// configurations that are drawn. For seconds there is bench/plan_seconds.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/model/decoder_compute.h"
#include "forebay/tests/train/drawn_options.h"
#include "forebay/tests/train/replay/planned_run.h"
#include "forebay/train/plan/plan.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kNumConfigurations = 10;
#else
constexpr int kNumConfigurations = 40;
#endif

// The largest relative errors of a plan.
constexpr double kMostByteError = 0.005;
constexpr double kMostMemoryError = 0.02;

DecoderConfig DrawModel(Draw& draw) {
  DecoderConfig config;
  config.architecture = "LlamaForCausalLM";
  config.vocab_size = PlannedRun::kVocabulary;
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
  options.seq = PlannedRun::kSeq;
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
    options.durability = draw.OneOf({Durability::kStep, Durability::kNone});
    options.gradients_tier = draw.OneOf({TierChoice::kAuto, TierChoice::kAuto, TierChoice::kNvme});
  }
  const auto tier = [&] {
    return draw.OneOf({TierChoice::kAuto, TierChoice::kAuto, TierChoice::kAuto, TierChoice::kHost,
                       TierChoice::kNvme});
  };
  options.weights_tier = tier();
  options.state_tier = tier();
  options.activations_tier = draw.OneOf({ActivationsTier::kRam, ActivationsTier::kNvme});
  options.recompute = draw.OneOf<std::optional<Recompute>>(
      {std::nullopt, Recompute::kAll, Recompute::kAttention, Recompute::kNone});
  if (options.recompute.value_or(Recompute::kNone) != Recompute::kNone) {
    options.recompute_layers = draw.Between(0, model.num_layers);
  }
  if (MayHaveSegments(options)) options.number_checkpoints = draw.Between(0, model.num_layers);
  // Commits that go by time are in no plan.
  options.commit_every =
      options.gradients == GradientChoice::kHold && options.durability == Durability::kStep
          ? draw.Between(1, 3)
      : options.durability == Durability::kNone ? 0
                                                : 1;
  options.activations_dtype = draw.OneOf({DType::kF32, DType::kBF16});
  return options;
}

std::string Describe(const TrainOptions& options, const Plan& plan) {
  return fmt::format(
      "ram {} layout {} optimizer {} tiers {} {} {} {} gradients {} of {} durability {} "
      "commits {}: {} speculative, {} of {} blocks compute again, in segments of {}, {} / {} / {} "
      "bytes in RAM",
      plan.ram_budget_bytes, NameOf(options.layout), NameOf(options.optimizer),
      static_cast<int>(options.weights_tier), static_cast<int>(options.state_tier),
      NameOf(options.activations_tier), NameOf(options.activations_dtype),
      static_cast<int>(options.gradients), options.speculate_layers, NameOf(options.durability),
      options.commit_every, plan.placement.NumUpdated(UpdateTime::kAfterHand),
      NameOf(plan.recompute.recompute), plan.recompute.num_blocks, plan.recompute.segment_blocks,
      plan.placement.host_gradient_bytes, plan.placement.host_weight_bytes,
      plan.placement.host_state_bytes);
}

// Within the least memory, or some of which more is drawn. The first budget that works is in what
// refuses another.
absl::StatusOr<Plan> PlanWithin(const DecoderConfig& model, TrainOptions& options,
                                const MachineLimits& limits, bool takes_least, Draw& draw) {
  options.ram_bytes = int64_t{1} << 20;
  const std::string refused = MessageOf(MakePlan(model, options, limits).status());
  const size_t at = refused.rfind("--ram=");
  FOREBAY_CHECK(at != std::string::npos);
  const int64_t least_bytes = std::stoll(refused.substr(at + 6)) << 20;
  const int64_t all_bytes = 14 * BuildInventory(model).num_padded_elems();
  const int64_t more_bytes = draw.OneIn(4) ? 0 : draw.Between(0, all_bytes);
  options.ram_bytes = least_bytes + (takes_least ? 0 : more_bytes);
  return MakePlan(model, options, limits);
}

int64_t PlannedFor(const Plan& plan, const std::string& name) {
  const auto term = std::ranges::find(plan.terms, name, &PlanTerm::name);
  FOREBAY_CHECK(term != plan.terms.end());
  return term->host_bytes;
}

// The plan of the configuration, once its steps have done what it says; nothing where they have
// not.
std::optional<Plan> RunsAsPlanned(const DecoderConfig& model, int number, bool takes_least,
                                  Draw& draw) {
  TrainOptions options = DrawOptions(model, draw);
  MachineLimits limits = {.num_cores = options.threads};
  limits.disks.resize(static_cast<size_t>(draw.Between(1, 3)));
  for (size_t i = 0; i < limits.disks.size(); ++i) {
    limits.disks[i].weight = draw.Between(1, 3);
    limits.disks[i].file_system = i;
  }
  const absl::StatusOr<Plan> plan = PlanWithin(model, options, limits, takes_least, draw);
  EXPECT_TRUE(plan.ok()) << plan.status();
  if (!plan.ok()) return std::nullopt;
  SCOPED_TRACE(fmt::format("configuration {}: {}", number, Describe(options, *plan)));
  PlannedRun run(model, options, *plan);
  const auto steps = static_cast<int>(std::max<int64_t>(1, StepsPerCommit(plan->commit_pace)));
  // The first steps find a window that is empty, and nothing to update.
  TransferBytes moved;  // until the norm of the last step was known
  int num_left = 4 * steps;
  run.Train(4 * steps, [&](double /*norm*/) {
    if (--num_left == 2 * steps || num_left == 0) moved = run.TakeMoved();
  });
  const auto per_step = [&](int64_t bytes) { return static_cast<double>(bytes) / (2 * steps); };
  const auto read = static_cast<double>(plan->read_bytes_per_step);
  const auto write = static_cast<double>(plan->write_bytes_per_step);
  EXPECT_NEAR(per_step(moved.read), read, kMostByteError * read);
  EXPECT_NEAR(per_step(moved.write), write, kMostByteError * write);
  // Without what is the same however things are placed: the program, and what kernels need.
  EXPECT_LE(run.memory_bytes(), plan->host_bytes) << run.Memory();
  const int64_t fixed = kRuntimeBytes + PlannedFor(*plan, "decoder workspace");
  const auto planned = static_cast<double>(plan->host_bytes - fixed);
  EXPECT_NEAR(static_cast<double>(run.memory_bytes() - fixed), planned, kMostMemoryError * planned)
      << run.Memory();
  run.Settle();
  return *plan;
}

TEST(PlanActual, StepsMoveTheBytesAndTakeTheMemoryThatTheirPlanSays) {
  int num_speculative = 0, num_in_part = 0, num_saving = 0, num_in_segments = 0;
  for (int number = 0; number < kNumConfigurations; ++number) {
    Draw draw(/*seed=*/20260101, static_cast<uint64_t>(number));
    const DecoderConfig model = DrawModel(draw);
    const std::optional<Plan> plan = RunsAsPlanned(model, number, /*takes_least=*/false, draw);
    ASSERT_TRUE(plan.has_value() && !HasFailure());
    const int64_t speculative = plan->placement.NumUpdated(UpdateTime::kAfterHand);
    num_speculative += speculative > 0 ? 1 : 0;
    num_saving += PlannedFor(*plan, kSavedPurpose) > 0 ? 1 : 0;
    num_in_segments += plan->recompute.segment_blocks > 1 ? 1 : 0;
    num_in_part += speculative > 0 && speculative < NumStreamedLayers(model) ? 1 : 0;
  }
  // The drawn configurations are of all kinds.
  EXPECT_GE(num_speculative, kNumConfigurations / 5);
  EXPECT_GE(num_in_part, 1);
  EXPECT_GE(num_saving, kNumConfigurations / 5);
  EXPECT_GE(num_in_segments, 1);
}

TEST(PlanActual, SoDoThoseOfALargeVocabulary) {
  int num_in_parts = 0, num_in_pieces = 0;
  for (int number = 0; number < std::max(2, kNumConfigurations / 16); ++number) {
    Draw draw(/*seed=*/20260102, static_cast<uint64_t>(number));
    DecoderConfig model = DrawModel(draw);
    model.vocab_size = draw.OneOf<int64_t>({65'537, 70'000, 81'920});
    const std::optional<Plan> plan = RunsAsPlanned(model, number, number % 2 == 0, draw);
    ASSERT_TRUE(plan.has_value() && !HasFailure());
    num_in_parts += plan->recompute.vocabulary_in_parts ? 1 : 0;
    num_in_pieces += plan->recompute.vocabulary_in_pieces ? 1 : 0;
  }
  EXPECT_GE(num_in_parts, 1);
  EXPECT_GE(num_in_pieces, 1);
}

}  // namespace
}  // namespace forebay
