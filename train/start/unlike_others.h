// What a run does otherwise than transformers' Trainer would with the same model and flags, which
// most people know: one line at its start, so that nobody finds out by comparing losses.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "forebay/train/options/options.h"

namespace forebay {

// `model`: the folder whose config.json counts.
absl::StatusOr<std::string> UnlikeOtherTrainers(const std::string& model,
                                                const ResolvedOptions& resolved);

}  // namespace forebay
