// Everything that changes the bits of a run's result, as an object of named values: written to
// run.json at the start, compared on --resume. Threads, tiers, tiles and folders are not in it,
// since they change nothing.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "forebay/base/json.h"
#include "forebay/data/packed_file.h"
#include "forebay/train/options/options.h"

namespace forebay {

// Hashes a sample of the model's files (config, tensor names and the first bytes of every tensor),
// so it takes milliseconds for any size. BadInputError, StorageError.
absl::StatusOr<std::string> SampleDigest(const std::string& model_directory);
// The sampled parts, as one line for config.json and one for each tensor: name, size or shape, and
// digest. Empty if the folder cannot be read.
std::vector<std::string> SampledParts(const std::string& model_directory);
bool HasWeights(const std::string& model_directory);

// `num_steps`: the length of the schedule. `model_digest`: SampleDigest.
Json MakeFingerprint(const TrainOptions& options, int64_t num_steps, const PackedFileInfo& data,
                     const std::string& model_digest);

// What a commit carries of it: 32 hexadecimal digits.
std::string FingerprintDigest(const Json& fingerprint);

// UsageError that lists every difference with both values.
absl::Status CompareFingerprints(const Json& of_run, const Json& now);

}  // namespace forebay
