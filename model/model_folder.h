// The small files of a model folder beside config and weights: which tokens end a text, and what an
// exported model takes along.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/base/dtype.h"
#include "forebay/base/json.h"
#include "forebay/model/decoder_config.h"

namespace forebay {

// Tokens after which generation stops: generation_config.json's `eos_token_id` where it has one,
// else config.json's. Empty when neither says. BadInputError when the file is malformed.
absl::StatusOr<std::vector<int64_t>> ReadStopTokens(const std::string& model_directory,
                                                    const DecoderConfig& config);

// Writes `config` as config.json into `directory`, with `dtype` as that of the weights, and with
// the `model_type` that transformers needs where only `architectures` says it. StorageError.
absl::Status WriteConfig(Json config, DType dtype, const std::string& directory);

// Copies what belongs to a model whatever its weights: config.json (with `dtype` as that of the
// weights), the tokenizer's files, generation_config.json and chat templates, as far as they exist.
// Overwrites them in `to`, which must exist. BadInputError when config.json is missing or not
// valid, StorageError.
absl::Status CopySidecarFiles(const std::string& from, const std::string& to, DType dtype);
// What they take at most, in whole blocks, with the small things that an export adds to them.
absl::StatusOr<int64_t> BytesOfSidecarFiles(const std::string& from);

}  // namespace forebay
