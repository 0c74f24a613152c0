// Random weights for a model that exists only as a config.json: as a model folder, or straight into
// a run's store. Values are made chunk by chunk, so that a model of any size needs the memory of
// one chunk (folder) or one tile (run).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/base/json.h"
#include "forebay/base/process/parallel.h"
#include "forebay/model/decoder_config.h"

namespace forebay {

// Elements [first_elem, first_elem + out.size()) of a tensor as transformers initialises its kind:
// linears and embeddings normal(0, initializer_range), GPT-2's projections back into the residual
// stream divided by sqrt(2 * layers), norm weights 1, biases 0. A value depends on (seed, name of
// the tensor, index of the element) alone. Source: `_init_weights` of each family in transformers;
// Radford et al. 2019, section 2.3.
void FillInitialValues(const DecoderConfig& config, const TensorSpec& tensor, uint64_t seed,
                       int64_t first_elem, std::span<float> out, ThreadPool& pool);

struct InitOptions {
  std::string
      config;  // a config.json, or a folder that holds one (its tokenizer files are copied too)
  std::string out;      // folder to make; must not hold anything
  bool as_run = false;  // make a run of step 0 for `train --resume`, not a model folder
  uint64_t seed = 0;
  std::string dtype = "";  // "bf16", "fp16" or "fp32"; empty: the config's
  int num_threads = 1;
  int64_t ram_bytes = 0;  // of the process; 0: no limit
};

struct InitResult {
  std::string architecture;
  int64_t num_params = 0;
  std::string
      model;  // the model folder, or the folder in the run that stands for it (config, tokenizer)
  std::string store;      // of a run; empty for a model folder
  std::string precision;  // of a run: the --precision that goes with its state
};

// UsageError when `out` is occupied; BadInputError when the configuration is not one of a supported
// model; DoesNotFitError when the disk or `ram_bytes` is too small. What was made before an error
// is removed. `progress(fraction)`: may be empty.
absl::StatusOr<InitResult> InitModel(const InitOptions& options,
                                     const std::function<void(double)>& progress);

// {"architecture", "params", "model"}, and of a run also "store" and "precision".
Json ToJson(const InitResult& result);

}  // namespace forebay
