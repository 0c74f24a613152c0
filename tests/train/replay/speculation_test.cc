// A decoder whose updates are speculative, of all layers or some, which live in RAM or not: hopes
// that fail leave nothing of themselves. The files of runs are tests/e2e/training's.
#include <algorithm>
#include <string>
#include <vector>

#include "forebay/base/check.h"
#include "forebay/tests/train/replay/planned_run.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

constexpr int kNumSteps = 5;

DecoderConfig SmallModel(bool is_tied) {
  DecoderConfig config;
  config.architecture = "LlamaForCausalLM";
  config.vocab_size = PlannedRun::kVocabulary;
  config.hidden_size = 64;
  config.intermediate_size = 128;
  config.num_layers = 5;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.max_positions = 64;
  config.tied_embeddings = is_tied;
  config.window.assign(5, 0);
  return config;
}

TrainOptions HeldOptions() {
  TrainOptions options;
  options.batch = 1;
  options.seq = PlannedRun::kSeq;
  options.threads = 2;
  options.tile_elems = 4096;
  options.durability = Durability::kStep;
  options.ram_bytes = int64_t{1} << 30;
  options.gradients = GradientChoice::kHold;
  return options;
}

class Outcome {
 public:
  Outcome(const DecoderConfig& model, const TrainOptions& options) {
    const absl::StatusOr<Plan> plan = MakePlan(model, options, {.num_cores = 2});
    FOREBAY_CHECK(plan.ok());
    num_speculative = plan->placement.NumUpdated(UpdateTime::kAfterHand);
    num_weights_in_ram = std::ranges::count(plan->placement.weights, Tier::kHost);
    PlannedRun run(model, options, *plan);
    run.Train(kNumSteps, [&](double norm) { norms.push_back(norm); });
    digest = run.Settle();
  }

  int64_t num_speculative = 0, num_weights_in_ram = 0;
  std::vector<double> norms;
  std::string digest;
};

TEST(SpeculationOfADecoder, EndsAsHeldGradientsDoWhatEverIsClippedAndWhereverItLives) {
  const DecoderConfig model = SmallModel(/*is_tied=*/true);
  TrainOptions held = HeldOptions();
  held.clip = 1e9;
  std::vector<double> norms = Outcome(model, held).norms;
  // The first steps' hopes come true, or fail, and others' do not.
  std::ranges::sort(norms);
  held.clip = (norms[1] + norms[2]) / 2;
  const Outcome expected(model, held);
  const auto num_clipped =
      std::ranges::count_if(expected.norms, [&](double norm) { return norm > held.clip; });
  ASSERT_GT(num_clipped, 0);
  ASSERT_LT(num_clipped, kNumSteps);
  for (const TierChoice weights : {TierChoice::kHost, TierChoice::kNvme}) {
    for (const TierChoice state : {TierChoice::kHost, TierChoice::kNvme}) {
      for (const int num_layers : {1, 3, 7}) {
        TrainOptions options = held;
        options.gradients = GradientChoice::kSpeculate;
        options.speculate_layers = num_layers;
        options.weights_tier = weights;
        options.state_tier = state;
        const Outcome outcome(model, options);
        EXPECT_EQ(outcome.num_speculative, num_layers);
        EXPECT_EQ(outcome.num_weights_in_ram, weights == TierChoice::kHost ? 7 : 0);
        EXPECT_EQ(outcome.norms, expected.norms);
        EXPECT_EQ(outcome.digest, expected.digest)
            << num_layers << " layers, weights in RAM: " << (weights == TierChoice::kHost)
            << ", state: " << (state == TierChoice::kHost);
      }
    }
  }
}

}  // namespace
}  // namespace forebay
