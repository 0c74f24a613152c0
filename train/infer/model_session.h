// A model folder opened for use on the CPU without training, inside a memory budget: decoder, and
// weights that stay in RAM as far as they fit and stream from the folder's files otherwise. Shared
// by evaluation and generation.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "forebay/memory/memory_budget.h"
#include "forebay/model/decoder.h"
#include "forebay/model/files/checkpoint_source.h"
#include "forebay/offload/machine_limits.h"
#include "forebay/train/infer/infer_options.h"

namespace forebay {

struct ModelSessionOptions {
  InferOptions infer;
  int64_t max_tokens = 1;  // DecoderOptions::max_tokens
  // What the caller will charge to budget() at least, and what it could put to use when weights
  // have to stream anyway; each as HostBuffer::ChargedBytes says.
  int64_t other_bytes = 0;
  int64_t other_bytes_at_most = 0;
};

// Owned by one thread.
class ModelSession {
 public:
  // DoesNotFitError names the least --ram that works; errors of the model folder.
  static absl::StatusOr<std::unique_ptr<ModelSession>> Open(const ModelSessionOptions& options,
                                                            const MachineLimits& limits,
                                                            const DecoderConfig& config);
  MemoryBudget& budget() { return budget_; }
  Decoder& decoder() { return *decoder_; }
  CheckpointSource& source() { return *source_; }
  // In [other_bytes, max(other_bytes, other_bytes_at_most)]: what is left for the caller.
  int64_t other_bytes() const { return other_bytes_; }

 private:
  explicit ModelSession(int64_t budget_bytes) : budget_(budget_bytes) {}

  MemoryBudget budget_;
  std::unique_ptr<Decoder> decoder_;
  std::unique_ptr<CheckpointSource> source_;
  int64_t other_bytes_ = 0;
};

}  // namespace forebay
