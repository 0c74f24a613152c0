// Tiny random models of every family, batches for them, and a whole pass through the decoder.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "forebay/memory/host_buffer.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/model/decoder.h"
#include "forebay/step/param_source.h"
#include "forebay/tests/model/decoder/reference_decoder.h"

namespace forebay::testing {

// A flat vector per layer, in memory; counts what a ParamSource is promised.
class MemorySource : public ParamSource {
 public:
  // `weights` are rounded to `dtype`.
  MemorySource(const Inventory& inventory, const reference::NamedTensors& weights, DType dtype);
  void Expect(std::span<const int> layers) override;
  absl::StatusOr<WeightsLease> Acquire(int layer) override;

  LayerWeights Layer(int layer) const;
  // From now on the vectors begin so many bytes behind a multiple of kBasePageBytes.
  void ShiftTo(int64_t shift_bytes);
  // Acquire fails from now on, once `successes` more have been given.
  void FailAfter(int successes) { successes_left_ = successes; }
  int most_leases_held() const { return most_held_; }
  // Layers that were announced and not acquired.
  size_t num_still_expected() const { return expected_.size(); }
  size_t most_expected() const { return most_expected_; }
  void ForgetExpected() { expected_.clear(); }

 protected:
  void Release(int layer, Event* done) override;

 private:
  DType dtype_;
  MemoryBudget budget_{0};
  std::vector<HostBuffer> layers_;  // with a page behind the vector
  int64_t shift_bytes_ = 0;
  std::vector<int> expected_;
  size_t most_expected_ = 0;
  int held_ = 0;
  int most_held_ = 0;
  int successes_left_ = -1;
};

struct TinyModel {
  std::string name;
  DecoderConfig config;
  Inventory inventory;
  reference::NamedTensors weights;  // exactly representable in the dtype they were made for
};

// Every family and every feature that a config can ask for.
std::vector<std::string> TinyModelNames();
TinyModel MakeTinyModel(const std::string& name, DType dtype = DType::kF32, uint64_t seed = 1);
// The model of any config.json.
TinyModel MakeModel(const std::string& name, const std::string& config_json, DType dtype,
                    uint64_t seed);

// Two narrow layers of a vocabulary that is cut (VocabularyCut): its last part is shorter, and
// padded.
TinyModel MakeLargeVocabularyModel(bool tied, DType dtype);

// One row after another; each inner list holds the lengths of a row's segments, the rest of `seq`
// is padding. Tokens are random, and the first third of every segment is not trained.
MicroBatch MakeBatch(const TinyModel& model, const std::vector<std::vector<int64_t>>& rows,
                     int64_t seq, uint64_t seed = 7);

// A decoder and everything that one pass needs.
class Runner {
 public:
  Runner(const TinyModel& model, DecoderOptions options, DType dtype = DType::kF32);

  double Loss(const MicroBatch& batch);
  // Adds to gradients(); returns the sum of losses.
  double LossAndGradients(const MicroBatch& batch, double scale);
  std::vector<float> HeadInput(const MicroBatch& batch);
  // Gradient of one tensor.
  std::span<float> Gradient(const TensorSpec& tensor);
  void ZeroGradients();
  // From now on, what each layer gives to the next: kF32 or kBF16.
  void RoundActivationsTo(DType dtype) { activations_ = dtype; }

  Decoder& decoder() { return *decoder_; }
  MemorySource& source() { return source_; }
  MemoryBudget& budget() { return budget_; }
  const std::vector<std::vector<float>>& gradients() const { return gradients_; }

 private:
  // checkpoints_[b] is the input of block b; the last is the head's.
  void Forward(const MicroBatch& batch);

  const TinyModel& model_;
  DType activations_ = DType::kF32;
  MemoryBudget budget_{0};
  MemorySource source_;
  std::unique_ptr<Decoder> decoder_;
  std::vector<std::vector<float>> checkpoints_;
  std::vector<float> dx_;
  std::vector<std::vector<float>> gradients_;  // per layer
};

}  // namespace forebay::testing
