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

inline constexpr char kConfigName[] = "config.json";
inline constexpr char kTokenizerName[] = "tokenizer.json";
inline constexpr char kGenerationConfig[] = "generation_config.json";

// A file that belongs to a model whatever its weights: config.json, the tokenizer's files,
// generation_config.json or a chat template. All of them are some 20 MB with a large vocabulary.
struct ModelFile {
  std::string name;
  std::string contents;
};
// BadInputError when config.json is missing; StorageError.
absl::StatusOr<std::vector<ModelFile>> ReadModelFiles(const std::string& model_directory);
// The names of those that are in the folder; none where there is no folder.
absl::StatusOr<std::vector<std::string>> NamesOfModelFiles(const std::string& model_directory);

// generation_config.json's `eos_token_id`; none where there is no file or it does not say.
// BadInputError when the file is malformed.
absl::StatusOr<std::vector<int64_t>> ReadGenerationStopTokens(const std::string& model_directory);
// Tokens after which generation stops: generation_config.json's `eos_token_id` where it has one,
// else config.json's. Empty when neither says. Errors of ReadGenerationStopTokens.
absl::StatusOr<std::vector<int64_t>> ReadStopTokens(const std::string& model_directory,
                                                    const DecoderConfig& config);

// Writes `config` as config.json into `directory`, with `dtype` as that of the weights, and with
// the `model_type` that transformers needs where only `architectures` says it. StorageError.
absl::Status WriteConfig(Json config, DType dtype, const std::string& directory);

// Copies a model's files, config.json with `dtype` as that of the weights. Overwrites them in `to`,
// which must exist. BadInputError when config.json is missing or not
// valid, StorageError.
absl::Status CopySidecarFiles(const std::string& from, const std::string& to, DType dtype);
// What they take at most, in whole blocks, with the small things that an export adds to them.
absl::StatusOr<int64_t> BytesOfSidecarFiles(const std::string& from);

}  // namespace forebay
