// `forebay eval`: the loss of a model folder on text, with the weights streamed under a memory
// budget where they do not fit, on the CPU or on a GPU.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "forebay/train/infer/evaluate.h"
#include "forebay/train/infer/infer_options.h"

namespace forebay {

struct EvaluateModelOptions {
  InferOptions infer;
  std::string data;  // files and folders with weights, or one packed file
  // Tokens per row, at most the model's positions; nullopt: as data is packed already, else 1024
  // or the model's positions.
  std::optional<int64_t> seq;
  int64_t batch = 4;      // rows per micro-batch
  bool truncate = false;  // cut over-long prompts and chats instead of refusing them
};

// `progress(what, fraction)`: may be empty. `on_note` is told what became of the data that whoever
// gave it may not expect. BadInputError (model, data), UsageError (seq), DoesNotFitError with the
// least --ram or --gpu_mem, EnvironmentError (no GPU, or it fails), NumericalError if the loss
// is not finite.
absl::StatusOr<EvaluationResult> EvaluateModel(
    const EvaluateModelOptions& options,
    const std::function<void(const std::string&, double)>& progress,
    const std::function<void(const std::string&)>& on_note);

}  // namespace forebay
