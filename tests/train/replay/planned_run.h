// Training steps of a plan, with an engine and a budget that tests look at.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/counter_rng.h"
#include "forebay/offload/create_store.h"
#include "forebay/tests/temporary_folder.h"
#include "forebay/tests/train/replay/recording_engine.h"
#include "forebay/train/files/run_folder.h"
#include "forebay/train/plan/plan.h"
#include "forebay/train/step/clip.h"
#include "forebay/train/step/run_session.h"
#include "gtest/gtest.h"

namespace forebay {

// A run of a plan, without a run folder: a model of kVocabulary tokens, rows of kSeq.
class PlannedRun {
 public:
  static constexpr int64_t kVocabulary = 203;
  static constexpr int64_t kSeq = 16;

  // `options` and `plan` outlive it.
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
    int64_t num_filled = 0;
    const TensorFiller fill = [&](const TensorSpec&, int64_t, std::span<float> values) {
      const CounterRng random(/*seed=*/2);
      for (float& value : values) value = 0.1f * static_cast<float>(random.Normal(num_filled++));
      return absl::OkStatus();
    };
    MemoryBudget of_filling(0);
    auto store = CreateFilledStore(StoreOptionsOf(plan, folders), BuildInventory(model), fill, {},
                                   &engine_, &of_filling);
    FOREBAY_CHECK(store.ok());
    auto session = RunSession::Create(plan, options, model, *std::move(store), &budget_, {});
    FOREBAY_CHECK(session.ok());
    session_ = *std::move(session);
  }

  // `after_step`, with its norm: when that is known, where the steps of plans end.
  void Train(int num_steps, const std::function<void(double norm)>& after_step) {
    LayerSession& layers = session_->layers();
    const StepInputs inputs = {
        .batches = batches_, .clip = options_.clip, .scalars_of = [&](double norm) {
          return UpdateScalars{.step = layers.released_step() + 1,
                               .lr = 1e-3,
                               .gradient_scale = ClipScale(options_.clip, norm)};
        }};
    for (int step = 0; step < num_steps; ++step) {
      const absl::StatusOr<StepResult> result = session_->step().Run(inputs);
      ASSERT_TRUE(result.ok()) << result.status();
      after_step(result->gradient_norm);
      ASSERT_EQ(layers.Update(Json::object()), absl::OkStatus());
    }
  }
  // All that was begun has ended. Returns the digest of weights and moments.
  std::string Settle() {
    EXPECT_EQ(session_->layers().Commit(), absl::OkStatus());
    const absl::StatusOr<std::string> digest = StateDigest(session_->store());
    EXPECT_TRUE(digest.ok()) << digest.status();
    return digest.value_or("");
  }

  // The bytes whose transfer began since the last call.
  TransferBytes TakeMoved() { return BytesOf(engine_.Take()); }
  int64_t memory_bytes() const { return budget_.peak_bytes(); }
  // For whoever looks for a difference: what was planned, and what is there.
  std::string Memory() const {
    std::string text;
    for (const PlanTerm& term : plan_.terms) {
      if (term.host_bytes > 0)
        text += fmt::format("\nplanned {:>10} {}", term.host_bytes, term.name);
    }
    for (const auto& [purpose, bytes] : budget_.by_purpose()) {
      if (bytes > 0) text += fmt::format("\ntaken   {:>10} {}", bytes, purpose);
    }
    return text;
  }

 private:
  static MicroBatch TokensOf(int64_t num_rows) {
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

  const TemporaryFolder folder_;
  const TrainOptions& options_;
  const Plan& plan_;
  RecordingEngine engine_;
  MemoryBudget budget_;
  const std::vector<MicroBatch> batches_;
  std::unique_ptr<RunSession> session_;
};

}  // namespace forebay
