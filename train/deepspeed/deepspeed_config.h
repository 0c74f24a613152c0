// DeepSpeed's JSON as a source of options: `forebay train --ds_config`. What a key means is what it
// means in forebay.deepspeed; layers are always streamed, and every tensor lies
// in RAM or on NVMe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/base/json.h"

namespace forebay {

struct DeepSpeedConfig {
  Json sections;                   // as --config has them: {"optim": {"lr": 0.001}}
  std::vector<std::string> notes;  // one for each key that does nothing
};

// UsageError: the file cannot be read; a key is not known (the nearest is named) or cannot be on; a
// value is not allowed. `num_ranks`: that train_batch_size is divided among.
absl::StatusOr<DeepSpeedConfig> ReadDeepSpeedConfig(const std::string& file, int num_ranks = 1);

}  // namespace forebay
