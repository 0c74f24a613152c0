// Steps of the optimizer under the swapper with nothing made anew from step to step, for tests of
// what the step path asks of the system.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/swap/window/swapper.h"
#include "forebay/tests/optimizer/offloaded_fixture.h"

namespace forebay {

// Owned by one thread.
class WindowedRun {
 public:
  // Some of everything in RAM, some of it on disk.
  static absl::StatusOr<std::unique_ptr<WindowedRun>> Start(bool io_uring,
                                                            const std::string& folder) {
    OffloadedRun::Options options;
    options.weights = options.state = options.gradients = Tiers::kMixed;
    options.num_threads = options.num_io_threads = 2;
    options.io_uring = io_uring;
    auto run = std::make_unique<WindowedRun>();
    FOREBAY_ASSIGN_OR_RETURN(run->run_, OffloadedRun::Start(options, folder));
    FOREBAY_ASSIGN_OR_RETURN(run->swapper_, run->run_->MakeSwapper());
    for (int layer = 0; layer < run->run_->num_layers(); ++layer) {
      run->gradients_.push_back(GradientOf(run->run_->store().inventory(), layer, 1));
      run->forward_.push_back(layer);
      run->backward_.insert(run->backward_.begin(), layer);
    }
    return run;
  }

  // Forward with the updates of the step before, backward, and the release of its own updates. All
  // but the commit, which is not on the way of any layer.
  bool Step(int64_t step) {
    swapper_->Expect(forward_);
    swapper_->Expect(backward_);
    bool ok = true;
    for (const int layer : forward_) {
      ok = ok && swapper_->Acquire(layer).ok();
      if (ok) swapper_->Release(layer);
    }
    ok = ok && run_->optimizer().AwaitAllWrites().ok();
    for (const int layer : backward_) {
      ok = ok && swapper_->Acquire(layer).ok();
      ok = ok && run_->optimizer().Hand(Fp32Gradient(layer, gradients_[layer]), run_->pool()).ok();
      if (ok) swapper_->Release(layer);
    }
    const auto stats = run_->optimizer().FinishBackward();
    ok = ok && stats.ok();
    ok = ok && run_->optimizer().BeginUpdate(ScalarsOfStep(step, stats->norm)).ok();
    return ok;
  }
  // Ends the step so that the next may be made.
  bool Commit(int64_t step) {
    return swapper_->ApplyAllUpdates().ok() && run_->optimizer().AwaitAllWrites().ok() &&
           run_->store().Commit({step, Json::object()}).ok();
  }

 private:
  std::unique_ptr<OffloadedRun> run_;
  std::unique_ptr<Swapper> swapper_;
  std::vector<std::vector<float>> gradients_;
  std::vector<int> forward_;
  std::vector<int> backward_;
};

}  // namespace forebay
