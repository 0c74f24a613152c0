// DeepSpeed's JSON as a source of options: `forebay train --ds_config`. What a key means is what it
// means in forebay.deepspeed; layers are always streamed, and every tensor lies
// in RAM or on NVMe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/base/json.h"

namespace forebay {

struct DeepSpeedConfig {
  Json sections;                      // as --config has them: {"optim": {"lr": 0.001}}
  std::vector<std::string> notes;     // one for each key that does nothing
  std::vector<std::string> problems;  // each with the key, its value and the cure
};

// The settings of its section "autotuning" for `train --autotune`: which micro-batches are tried,
// how long a trial is, and how many there are. DeepSpeed's defaults, but that threads and tiles are
// tuned too.
struct DeepSpeedAutotuning {
  int64_t min_micro_batch = 1;
  int64_t max_micro_batch = 1024;
  int64_t first_step = 3;  // that counts
  int64_t last_step = 5;
  int64_t max_trials = 50;
  bool only_micro_batches = false;  // "fast": true
  std::vector<std::string> notes;   // one for each key that does nothing
};
// UsageError: the file cannot be read; a key is not known, or its value not allowed.
absl::StatusOr<DeepSpeedAutotuning> ReadDeepSpeedAutotuning(const std::string& file);

// UsageError: the file cannot be read. Problems: a key is not known (the nearest is named) or
// cannot be on; a value is not allowed. `num_ranks`: that train_batch_size is divided among.
absl::StatusOr<DeepSpeedConfig> ReadDeepSpeedConfig(const std::string& file, int num_ranks = 1);

}  // namespace forebay
