// The algorithms that a run's matrix products are computed by on a GPU, as its folder has them: a
// resume computes with the same ones, so that it has the same bits.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "forebay/device/matmul_algorithms.h"

namespace forebay {

// None where `path` has none. One that cannot be used is none, and `note` says why; they are chosen
// anew then. `note` is left alone otherwise.
MatmulAlgorithms ReadAlgorithms(const std::string& path, std::string& note);
// Durable when it returns. StorageError.
absl::Status WriteAlgorithms(const std::string& path, const MatmulAlgorithms& algorithms);

}  // namespace forebay
