#include "forebay/step/module_schedule.h"

#include <utility>

#include "forebay/base/check.h"

namespace forebay {
namespace {

using enum OperationKind;

class Builder {
 public:
  explicit Builder(std::span<const UpdateTime> update_times) : update_times_(update_times) {
    FOREBAY_CHECK(!update_times.empty());
  }

  int last() const { return static_cast<int>(update_times_.size()) - 1; }
  void Add(OperationKind kind, int layer) { schedule_.operations.push_back({kind, layer}); }
  void ReadUpToDate(int layer) {
    Add(kRead, layer);
    if (TimeOf(layer) == UpdateTime::kOnRead) Update(layer);
  }
  void Hand(int layer) {
    Add(kHand, layer);
    if (TimeOf(layer) != UpdateTime::kOnRead) Update(layer);
  }
  StepSchedule Take() { return std::move(schedule_); }

 private:
  UpdateTime TimeOf(int layer) const { return update_times_[static_cast<size_t>(layer)]; }
  void Update(int layer) {
    Add(kUpdate, layer);
    Add(kWrite, layer);
  }

  const std::span<const UpdateTime> update_times_;
  StepSchedule schedule_;
};

}  // namespace

StepSchedule ModuleSchedule(std::span<const UpdateTime> update_times) {
  Builder builder(update_times);
  for (int layer = 0; layer <= builder.last(); ++layer) {
    builder.ReadUpToDate(layer);
    builder.Add(kForward, layer);
    builder.Add(kRelease, layer);
  }
  builder.Add(kCommit, -1);
  for (int layer = builder.last(); layer >= 0; --layer) {
    builder.Add(kRead, layer);
    builder.Add(kBackward, layer);
    builder.Add(kRelease, layer);
    builder.Hand(layer);
  }
  return builder.Take();
}

StepSchedule UpdateOnlySchedule(std::span<const UpdateTime> update_times) {
  Builder builder(update_times);
  for (int layer = 0; layer <= builder.last(); ++layer) {
    builder.ReadUpToDate(layer);
    builder.Add(kRelease, layer);
  }
  builder.Add(kCommit, -1);
  for (int layer = builder.last(); layer >= 0; --layer) builder.Hand(layer);
  return builder.Take();
}

}  // namespace forebay
