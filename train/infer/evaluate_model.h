// `forebay eval`: the loss of a model folder on text, with the weights streamed under a memory
// budget where they do not fit.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "forebay/model/cpu/ops.h"
#include "forebay/train/infer/evaluate.h"

namespace forebay {

struct EvaluateModelOptions {
  std::string model;  // Hugging Face folder
  std::string data;   // .txt, .jsonl or packed file
  // Tokens per row, at most the model's positions; nullopt: as data is packed already, else 1024
  // or the model's positions.
  std::optional<int64_t> seq;
  int64_t batch = 4;      // rows per micro-batch
  bool truncate = false;  // cut over-long prompts and chats instead of refusing them
  int64_t ram_bytes = 0;  // budget of the process; 0: a share of what is available
  cpu::Precision precision = cpu::Precision::kBf16;
  int threads = 0;  // 0: one per core
};

// `progress(what, fraction)`: may be empty. BadInputError (model, data), UsageError (seq),
// DoesNotFitError with the least --ram, NumericalError where the loss is not finite.
absl::StatusOr<EvaluationResult> EvaluateModel(
    const EvaluateModelOptions& options,
    const std::function<void(const std::string&, double)>& progress);

}  // namespace forebay
