// A ParamSource over a checkpoint folder: generation and evaluation read weights straight from
// safetensors files. Layers that fit the budget stay in memory; the rest stream through a window
// (step/layer_window.h), read ahead by its thread.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/model/decoder_config.h"
#include "forebay/model/files/safetensors.h"
#include "forebay/step/param_source.h"

namespace forebay {

// Owned by one thread, beside its own reading thread.
class CheckpointSource : public ParamSource {
 public:
  // `dtype`: what the weights are converted to. `max_bytes`: for resident layers
  // and the window together; 0: all resident. Reads the resident layers. `budget` must outlive it.
  // BadInputError for checkpoints that are no such model, DoesNotFitError naming the least that
  // works, OutOfMemoryError when `budget` refuses. `device`: pins the memory for its copies, and
  // outlives this too. `elsewhere`: layers that are not asked for, and take no memory.
  static absl::StatusOr<std::unique_ptr<CheckpointSource>> Create(
      const std::string& model_directory, const DecoderConfig& config, DType dtype,
      int64_t max_bytes, MemoryBudget* budget, Device* device = nullptr,
      std::span<const int> elsewhere = {});
  // The smallest `max_bytes` for files of any type: two buffers for blocks, one for the larger of
  // embedding and output layer (tied models have the embedding only, which stays), the final norm,
  // and what is read ahead. A large vocabulary has room for two pieces of these layers instead,
  // which are lent in pieces then (WeightPieces).
  static int64_t LeastBytes(const DecoderConfig& config, DType dtype);
  // The same where no layer is lent in pieces, which are read more often.
  static int64_t LeastBytesOfWholeLayers(const DecoderConfig& config, DType dtype);
  ~CheckpointSource() override;
  void Expect(std::span<const int> layers) override;
  // After an error every later call returns the same one.
  absl::StatusOr<WeightsLease> Acquire(int layer) override;
  int num_resident_layers() const;
  // The bytes read of layers that stream, as they lie in the files. Any thread.
  int64_t read_bytes() const;

 protected:
  void Release(int layer, Event* done) override;

 private:
  struct Impl;
  explicit CheckpointSource(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace forebay
