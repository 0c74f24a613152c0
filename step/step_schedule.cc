#include "forebay/step/step_schedule.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/check.h"

namespace forebay {
namespace {

using enum OperationKind;

int LastSegment(const Chain& chain) {
  return (chain.num_layers - 3) / chain.segment_layers * chain.segment_layers;
}

class ChainBuilder {
 public:
  explicit ChainBuilder(const Chain& chain)
      : chain_(chain), num_away_(chain.num_spilled_activations) {
    FOREBAY_CHECK(chain.num_layers >= 3);
    FOREBAY_CHECK(chain.update_times.empty() ||
                  static_cast<int>(chain.update_times.size()) == chain.num_layers);
    FOREBAY_CHECK(chain.num_spilled_activations >= 0 &&
                  chain.num_spilled_activations <= MostSpilledActivations(chain));
    FOREBAY_CHECK(chain.segment_layers >= 1);
    FOREBAY_CHECK(chain.num_saving >= 0 && chain.num_saving <= chain.num_layers - 2);
  }

  std::vector<Operation> Take() { return std::move(operations_); }

  void Step() {
    for (int layer = 0; layer < last(); ++layer) {
      ReadUpToDate(layer);
      if (layer >= last() - chain_.num_saving) Add(kSave, layer);
      Add(kForward, layer);
      if (IsKeptFromForward(layer)) KeepFromForward(layer);
      Add(kRelease, layer);
    }
    ReadUpToDate(last());
    const bool holds_last = chain_.ends_in_parts && !chain_.loss_reads_first;
    WithLoss(kLossAndGradient, /*releases_last=*/!holds_last);
    FetchBehind(last());
    Add(kCommit, -1);
    Hand(last());
    if (holds_last) Add(kRelease, last());
    for (int layer = last() - 1; layer > 0; --layer) {
      if (EndsSegmentBeforeLast(layer)) GoForwardAgain(layer - chain_.segment_layers, layer);
      Add(kRead, layer);
      Add(kRecompute, layer);
      Add(kBackward, layer);
      Drop(layer - 1);
      FetchBehind(layer);
      Add(kRelease, layer);
      Hand(layer);
    }
    const bool reads_first = chain_.ends_in_parts && chain_.loss_reads_first;
    if (reads_first) Add(kRead, 0);
    Add(kBackward, 0);
    Hand(0);
    if (reads_first) Add(kRelease, 0);
  }

  void Forward() {
    for (int layer = 0; layer < last(); ++layer) {
      Add(kRead, layer);
      Add(kForward, layer);
      Add(kRelease, layer);
    }
  }

  void Loss() {
    Add(kRead, last());
    WithLoss(kLoss, /*releases_last=*/true);
  }

 private:
  int last() const { return chain_.num_layers - 1; }
  // The layer whose activation is the input of the last segment.
  int last_segment() const { return LastSegment(chain_); }
  bool EndsSegmentBeforeLast(int layer) const {
    return chain_.segment_layers > 1 && layer % chain_.segment_layers == 0 &&
           layer <= last_segment();
  }
  bool IsKeptFromForward(int layer) const {
    // The input of the last layer is used up with the loss.
    return layer + 1 < last() && (layer % chain_.segment_layers == 0 || layer > last_segment());
  }
  // The layers between the two, from the activation of the first of them.
  void GoForwardAgain(int input, int end) {
    for (int layer = input + 1; layer < end; ++layer) {
      Add(kRead, layer);
      Add(kForward, layer);
      Keep(layer);
      Add(kRelease, layer);
    }
  }
  UpdateTime UpdateTimeOf(int layer) const {
    return chain_.update_times.empty() ? UpdateTime::kOnRead
                                       : chain_.update_times[static_cast<size_t>(layer)];
  }
  void Add(OperationKind kind, int layer) { operations_.push_back({kind, layer}); }

  void Update(int layer) {
    Add(kUpdate, layer);
    Add(kWrite, layer);
  }

  void ReadUpToDate(int layer) {
    Add(kRead, layer);
    if (UpdateTimeOf(layer) == UpdateTime::kOnRead) Update(layer);
  }

  void Hand(int layer) {
    Add(kHand, layer);
    if (UpdateTimeOf(layer) != UpdateTime::kOnRead) Update(layer);
  }

  void Keep(int layer) {
    Add(kKeep, layer);
    kept_.push_back(layer);
  }
  void KeepFromForward(int layer) {
    Keep(layer);
    if (std::ssize(kept_) <= chain_.num_spilled_activations) Add(kSpill, layer);
  }
  void Drop(int layer) {
    FOREBAY_CHECK(kept_.back() == layer);
    Add(kDrop, layer);
    kept_.pop_back();
  }

  // The backward pass of `layer`, or the loss, has used its input up. Activations come back into
  // buffers that no other needs any more: neither one that is kept, nor one of a segment that goes
  // forward again.
  void FetchBehind(int layer) {
    const int segment = std::min(layer - 1, last_segment()) / chain_.segment_layers;
    // The input of the segment before, and behind it its layers'.
    const int last_again = segment > 0 ? segment - 1 + chain_.segment_layers - 1 : -1;
    const int last_needed = std::max(static_cast<int>(std::ssize(kept_)) - 1, last_again);
    while (num_away_ > 0 && num_away_ - 1 + NumActivationBuffers(chain_) > last_needed) {
      Add(kFetch, kept_[static_cast<size_t>(--num_away_)]);
    }
  }

  // Requires: the last layer was read.
  void WithLoss(OperationKind loss, bool releases_last) {
    if (chain_.loss_reads_first) Add(kRead, 0);
    Add(loss, last());
    if (chain_.loss_reads_first) Add(kRelease, 0);
    if (releases_last) Add(kRelease, last());
  }

  const Chain& chain_;
  std::vector<Operation> operations_;
  std::vector<int> kept_;  // the layers whose activations are, in the order of the buffers
  int num_away_;           // the first so many of them are not in a buffer
};

std::vector<int> LayersOf(std::span<const Operation> operations, OperationKind kind) {
  std::vector<int> layers;
  for (const Operation& operation : operations) {
    if (operation.kind == kind) layers.push_back(operation.layer);
  }
  return layers;
}

}  // namespace

std::vector<int> ReadsOf(std::span<const Operation> operations) {
  return LayersOf(operations, kRead);
}

std::vector<int> StepSchedule::Reads() const {
  return ReadsOf(operations);
}

std::vector<int> StepSchedule::Handed() const {
  return LayersOf(operations, kHand);
}

std::span<const Operation> StepSchedule::FromLossOn() const {
  const auto loss = std::ranges::find(operations, kLossAndGradient, &Operation::kind);
  FOREBAY_CHECK(loss != operations.end());
  auto first = loss;
  // The layers that are held then are read behind the release of the layer before.
  while (first != operations.begin() && std::prev(first)->kind != kRelease) --first;
  return {first, operations.end()};
}

// All layers' but the last one's, which makes no activation. In segments: the inputs of all and all
// of the last one, or, when the backward pass comes to the one before, its own in their place.
int NumActivationBuffers(const Chain& chain) {
  const int inputs = LastSegment(chain) / chain.segment_layers + 1;
  const int in_last_segment = chain.num_layers - 2 - LastSegment(chain);
  return std::max(inputs + in_last_segment, inputs - 2 + chain.segment_layers) -
         chain.num_spilled_activations;
}

int MostSpilledActivations(const Chain& chain) {
  constexpr int kLeastBuffers = 3;
  Chain all = chain;
  all.num_spilled_activations = 0;
  return std::max(0, NumActivationBuffers(all) - std::max(kLeastBuffers, chain.segment_layers));
}

StepSchedule ChainSchedule(const Chain& chain) {
  ChainBuilder builder(chain);
  builder.Step();
  return {builder.Take()};
}

std::vector<Operation> ForwardOperations(const Chain& chain) {
  ChainBuilder builder(chain);
  builder.Forward();
  builder.Loss();
  return builder.Take();
}

std::vector<Operation> ForwardOperationsWithoutLoss(const Chain& chain) {
  ChainBuilder builder(chain);
  builder.Forward();
  return builder.Take();
}

std::string Describe(std::span<const Operation> operations) {
  std::string text;
  for (const auto& [kind, layer] : operations) {
    if (!text.empty()) text += ", ";
    text += NameOf(kind);
    if (layer >= 0) text += fmt::format(" {}", layer);
  }
  return text;
}

StepSchedule ReadingOnce(const StepSchedule& schedule) {
  StepSchedule once;
  std::vector<int> read;
  // By the layers that are held: whether the read is left out.
  std::vector<std::pair<int, bool>> held;
  for (const Operation& operation : schedule.operations) {
    bool is_left_out = false;
    if (operation.kind == kRead) {
      is_left_out = std::ranges::count(read, operation.layer) > 0;
      read.push_back(operation.layer);
      held.emplace_back(operation.layer, is_left_out);
    } else if (operation.kind == kRelease) {
      const auto it = std::ranges::find(held, operation.layer, &std::pair<int, bool>::first);
      FOREBAY_CHECK(it != held.end());
      is_left_out = it->second;
      held.erase(it);
    }
    if (!is_left_out) once.operations.push_back(operation);
  }
  return once;
}

}  // namespace forebay
