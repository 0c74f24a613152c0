// Folders that hold an adapter (PEFT's LoRA and others) where a model is expected.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace forebay {

// BadInputError where the folder has an adapter_config.json. Ask it where the model itself is
// missing.
absl::Status RefuseAdapter(const std::string& directory);

}  // namespace forebay
