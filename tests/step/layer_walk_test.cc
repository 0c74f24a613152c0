#include "forebay/step/layer_walk.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/step/step_schedule.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::ElementsAre;

class ReachedEvent : public Event {
 public:
  absl::Status Await() override { return absl::OkStatus(); }
  absl::StatusOr<bool> IsReached() override { return true; }
  absl::StatusOr<double> SecondsSince(Event& /*first*/) override { return 0.0; }
};

// Writes down what it is asked for; the layer's number is in its weights.
class Recorder : public ParamSource, public LayerCompute {
 public:
  void Expect(std::span<const int> layers) override {
    expected.insert(expected.end(), layers.begin(), layers.end());
  }
  absl::StatusOr<WeightsLease> Acquire(int layer) override {
    FOREBAY_RETURN_IF_ERROR(Note("acquire", layer));
    bytes_[layer] = static_cast<std::byte>(layer);
    return WeightsLease(this, layer, {.data = std::span(&bytes_[layer], 1)});
  }
  absl::Status BeginPass(std::span<const MicroBatch>, double) override { return absl::OkStatus(); }
  size_t num_micro_batches() const override { return 2; }
  absl::Status Forward(int layer, const HeldWeights& weights, size_t batch) override {
    return Compute("forward", layer, weights, batch);
  }
  absl::Status Loss(int layer, const HeldWeights& weights, size_t batch) override {
    return Compute("loss", layer, weights, batch);
  }
  absl::Status LossAndGradient(int layer, const HeldWeights& weights, size_t batch) override {
    return Compute("loss", layer, weights, batch);
  }
  absl::Status Recompute(int layer, const HeldWeights& weights, size_t batch) override {
    return Compute("recompute", layer, weights, batch);
  }
  absl::Status Backward(int layer, const HeldWeights& weights, size_t batch) override {
    if (layer > 0) return Compute("backward", layer, weights, batch);
    return Note("backward", layer);
  }
  void Save(int layer) override { Note("save", layer).IgnoreError(); }
  void Keep(int layer) override { Note("keep", layer).IgnoreError(); }
  void Drop(int layer) override { Note("drop", layer).IgnoreError(); }
  absl::StatusOr<std::optional<LayerGradient>> GradientFrom(int layer, const HeldWeights& weights,
                                                            int64_t first_elem) override {
    if (layer != layer_in_parts) {
      return LayerGradient{.layer = layer, .ready = layer == 1 ? &event : nullptr};
    }
    if (first_elem == std::ssize(gradient_)) return std::nullopt;
    Compute("part", layer, weights, static_cast<size_t>(first_elem)).IgnoreError();
    return Fp32Gradient(layer, std::span(gradient_).subspan(first_elem, first_elem == 0 ? 3 : 2),
                        first_elem);
  }
  Event* WeightsAreUsed(int layer) override { return layer == 2 ? &event : nullptr; }
  absl::StatusOr<double> LossSumOf(size_t) override { return 0.0; }

  // The newest call returns this.
  absl::Status Result() const {
    return calls.back() == fails_at ? StorageError("as asked") : absl::OkStatus();
  }

  ReachedEvent event;
  std::vector<int> expected;
  std::vector<std::string> calls;
  std::string fails_at;
  int layer_in_parts = -1;

 protected:
  void Release(int layer, Event* done) override {
    calls.push_back(fmt::format("release {}{}", layer, done == &event ? " after its event" : ""));
  }

 private:
  absl::Status Note(const std::string& what, int layer) {
    calls.push_back(fmt::format("{} {}", what, layer));
    return Result();
  }
  absl::Status Compute(const std::string& what, int layer, const HeldWeights& weights,
                       size_t batch) {
    EXPECT_EQ(weights.Of(layer).data[0], static_cast<std::byte>(layer));
    return Note(fmt::format("{}.{}", what, batch), layer);
  }
  std::byte bytes_[8] = {};
  std::vector<float> gradient_ = std::vector<float>(5);
};

// Writes down into the same list what is under way, and what is waited for of it.
class RecordingStorage : public ActivationStorage {
 public:
  explicit RecordingStorage(Recorder* recorder) : recorder_(*recorder) {}
  std::span<std::byte> buffers() const override { return {}; }
  int num_buffers() const override { return 3; }
  void StartWrite(int layer) override { Start("spill", layer); }
  void StartRead(int layer) override { Start("fetch", layer); }
  absl::Status Await(int layer) override {
    if (std::erase(under_way, layer) == 0) return absl::OkStatus();
    recorder_.calls.push_back(fmt::format("await {}", layer));
    return recorder_.Result();
  }
  void Abandon() override {
    recorder_.calls.push_back("abandon");
    under_way.clear();
  }

  std::vector<int> under_way;

 private:
  void Start(const char* what, int layer) {
    recorder_.calls.push_back(fmt::format("{} {}", what, layer));
    under_way.push_back(layer);
  }
  Recorder& recorder_;
};

class LayerWalkTest : public testing::Test {
 protected:
  absl::Status Run(std::vector<Operation> operations) {
    LayerWalk walk(std::move(operations));
    walk.Announce(recorder_);
    WalkHooks hooks;
    hooks.progress = [&](double fraction) {
      fractions_.push_back(fraction);
      return stop_at_ == fraction ? StorageError("as asked") : absl::OkStatus();
    };
    hooks.hand = [&](const LayerGradient& gradient) {
      std::string& call = recorder_.calls.emplace_back(fmt::format("hand {}", gradient.layer));
      if (gradient.ready != nullptr) call += " after its event";
      if (gradient.num_elems() > 0) {
        call += fmt::format(" from {}: {}", gradient.first_elem, gradient.num_elems());
      }
      return recorder_.Result();
    };
    hooks.commit = [&] {
      recorder_.calls.push_back("commit");
      return recorder_.Result();
    };
    hooks.activations = &storage_;
    return walk.Run(recorder_, recorder_, hooks);
  }

  Recorder recorder_;
  RecordingStorage storage_{&recorder_};
  std::vector<double> fractions_;
  double stop_at_ = -1;
};

TEST_F(LayerWalkTest, RunsEachOperationForEveryMicroBatch) {
  ASSERT_TRUE(Run(ChainSchedule({.num_layers = 3}).operations).ok());
  EXPECT_THAT(recorder_.expected, ElementsAre(0, 1, 2, 1));
  EXPECT_THAT(
      recorder_.calls,
      ElementsAre("acquire 0", "forward.0 0", "forward.1 0", "keep 0", "release 0", "acquire 1",
                  "forward.0 1", "forward.1 1", "release 1", "acquire 2", "loss.0 2", "loss.1 2",
                  "release 2 after its event", "commit", "hand 2", "acquire 1", "recompute.0 1",
                  "backward.0 1", "recompute.1 1", "backward.1 1", "drop 0", "release 1",
                  "hand 1 after its event", "backward 0", "backward 0", "hand 0"));
  EXPECT_THAT(fractions_, ElementsAre(0.0, 0.1, 0.2, 0.5));
}

TEST_F(LayerWalkTest, HandsEachPartOverBeforeTheNextIsMade) {
  const std::vector<Operation> operations =
      ChainSchedule({.num_layers = 3, .ends_in_parts = true}).operations;
  recorder_.layer_in_parts = 2;
  ASSERT_TRUE(Run(operations).ok());
  const auto loss = std::ranges::find(recorder_.calls, "loss.1 2");
  EXPECT_THAT(std::vector<std::string>(std::next(loss), recorder_.calls.end()),
              ElementsAre("commit", "part.0 2", "hand 2 from 0: 3", "part.3 2", "hand 2 from 3: 2",
                          "release 2 after its event", "acquire 1", "recompute.0 1", "backward.0 1",
                          "recompute.1 1", "backward.1 1", "drop 0", "release 1",
                          "hand 1 after its event", "backward 0", "backward 0", "hand 0"));
  recorder_.calls.clear();
  recorder_.fails_at = "hand 2 from 0: 3";
  EXPECT_FALSE(Run(operations).ok());
  EXPECT_EQ(recorder_.calls[recorder_.calls.size() - 3], "hand 2 from 0: 3");
  EXPECT_EQ(recorder_.calls[recorder_.calls.size() - 2], "release 2 after its event");
}

TEST_F(LayerWalkTest, ALayerIsToldToSaveOnceBeforeItGoesForward) {
  ASSERT_TRUE(Run(ChainSchedule({.num_layers = 3, .num_saving = 1}).operations).ok());
  const auto save = std::ranges::find(recorder_.calls, "save 1");
  ASSERT_NE(save, recorder_.calls.end());
  EXPECT_EQ(*std::next(save), "forward.0 1");
  EXPECT_EQ(std::ranges::count(recorder_.calls, "save 1"), 1);
}

// Each call in turn: what was lent before is given back, and nothing is asked for after it.
TEST_F(LayerWalkTest, AFailureEndsItAndGivesEveryLeaseBack) {
  const std::vector<Operation> operations =
      ChainSchedule({.num_layers = 3, .loss_reads_first = true}).operations;
  ASSERT_TRUE(Run(operations).ok());
  const std::vector<std::string> all = recorder_.calls;
  int num_failures = 0;
  for (const std::string& call : all) {
    if (call.starts_with("release") || call.starts_with("keep") || call.starts_with("drop"))
      continue;
    recorder_.calls.clear();
    recorder_.fails_at = call;
    EXPECT_EQ(Run(operations), StorageError("as asked")) << call;
    const auto failed = std::ranges::find(recorder_.calls, call);
    for (auto after = std::next(failed); after != recorder_.calls.end(); ++after) {
      EXPECT_TRUE(after->starts_with("release") || *after == "abandon")
          << *after << " after " << call;
    }
    const auto count = [&](const std::string& what) {
      return std::ranges::count_if(recorder_.calls, [&](const std::string& line) {
        return line.starts_with(what) && line != recorder_.fails_at;
      });
    };
    EXPECT_EQ(count("acquire"), count("release")) << call;
    ++num_failures;
  }
  EXPECT_GT(num_failures, 20);
}

TEST_F(LayerWalkTest, WaitsForAWriteBeforeItsBufferIsUsedAndForAReadBeforeItsBackward) {
  ASSERT_TRUE(Run(ChainSchedule({.num_layers = 5, .num_spilled_activations = 1}).operations).ok());
  const auto at = [&](const std::string& call) {
    return std::ranges::find(recorder_.calls, call) - recorder_.calls.begin();
  };
  EXPECT_LT(at("keep 0"), at("spill 0"));
  EXPECT_LT(at("forward.1 2"), at("await 0"));
  EXPECT_EQ(at("await 0") + 1, at("forward.0 3"));
  EXPECT_LT(at("loss.1 4"), at("fetch 0"));
  const auto waits = std::ranges::count(recorder_.calls, "await 0");
  EXPECT_EQ(waits, 2);
  const auto second =
      std::find(recorder_.calls.begin() + at("fetch 0"), recorder_.calls.end(), "await 0");
  ASSERT_NE(second, recorder_.calls.end());
  EXPECT_EQ(*std::next(second), "recompute.0 1");
  EXPECT_TRUE(storage_.under_way.empty());
}

// The inputs of segments, layers 0 and 2, are at the places 0 and 1.
TEST_F(LayerWalkTest, ASegmentGoesForwardAgainWhenItsInputHasComeBack) {
  ASSERT_TRUE(
      Run(ChainSchedule({.num_layers = 8, .num_spilled_activations = 2, .segment_layers = 2})
              .operations)
          .ok());
  const std::vector<std::string>& calls = recorder_.calls;
  const auto first = [&](const std::string& call) { return std::ranges::find(calls, call); };
  const auto second = [&](const std::string& call) {
    return std::find(std::next(first(call)), calls.end(), call);
  };
  EXPECT_EQ(*std::next(first("keep 2")), "spill 1");
  // The next layers read it while it is written.
  EXPECT_LT(first("forward.1 4"), first("await 0"));
  EXPECT_EQ(*std::prev(first("forward.0 5")), "await 0");
  EXPECT_EQ(*std::prev(first("forward.0 6")), "await 1");
  EXPECT_LT(first("loss.1 7"), first("fetch 1"));
  ASSERT_NE(second("forward.0 3"), calls.end());
  EXPECT_EQ(*std::prev(second("forward.0 3")), "await 1");
  ASSERT_NE(second("forward.0 1"), calls.end());
  EXPECT_EQ(*std::prev(second("forward.0 1")), "await 0");
  EXPECT_TRUE(storage_.under_way.empty());
}

TEST_F(LayerWalkTest, AFailureLeavesNoActivationUnderWay) {
  const std::vector<Operation> operations =
      ChainSchedule({.num_layers = 5, .num_spilled_activations = 1}).operations;
  for (const char* const call : {"forward.0 2", "await 0", "loss.0 4", "backward.1 2"}) {
    recorder_.calls.clear();
    recorder_.fails_at = call;
    EXPECT_EQ(Run(operations), StorageError("as asked")) << call;
    EXPECT_EQ(recorder_.calls.back(), "abandon");
    EXPECT_TRUE(storage_.under_way.empty());
  }
}

// Between two layers that the loss holds together too.
TEST_F(LayerWalkTest, AStopBeforeAnyReadGivesEveryLeaseBack) {
  const std::vector<Operation> operations =
      ChainSchedule({.num_layers = 3, .loss_reads_first = true}).operations;
  ASSERT_TRUE(Run(operations).ok());
  const std::vector<double> fractions = fractions_;
  ASSERT_EQ(fractions.size(), 5);
  for (const double fraction : fractions) {
    recorder_.calls.clear();
    stop_at_ = fraction;
    EXPECT_EQ(Run(operations), StorageError("as asked")) << fraction;
    const auto count = [&](const std::string& what) {
      return std::ranges::count_if(recorder_.calls,
                                   [&](const std::string& line) { return line.starts_with(what); });
    };
    EXPECT_EQ(count("acquire"), count("release")) << fraction;
  }
}

}  // namespace
}  // namespace forebay
