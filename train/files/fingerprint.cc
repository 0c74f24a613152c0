#include "forebay/train/files/fingerprint.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/hash.h"
#include "forebay/base/json.h"
#include "forebay/model/files/safetensors.h"
#include "forebay/train/options/option_table.h"

namespace forebay {
namespace {

constexpr int64_t kSampledElems = 1024;  // of every tensor

// Names the contents behind the digest under `key`. "": the key is an option, which has a value.
std::string_view ContentsBehind(std::string_view key) {
  if (key == "data") return "the tokens of --data are not those that the run was started with";
  if (key == "model") return "the files in --model are not those that the run was started with";
  if (key == "tokenizer")
    return "the tokenizer in --model is not the one that the run was started with";
  return "";
}

// Calls `take_config` with config.json, and `take_tensor` with each tensor and its first values:
// none of a type that is no parameter's (masks), whose heading is enough.
absl::Status Sample(const std::string& model_directory,
                    const std::function<void(const std::string& config)>& take_config,
                    const std::function<void(const std::string& name, const SafetensorsEntry& entry,
                                             std::span<const float> values)>& take_tensor) {
  FOREBAY_ASSIGN_OR_RETURN(
      const std::string config,
      ReadWholeFile(JoinPath(model_directory, "config.json"), kMaxConfigFileBytes));
  take_config(config);
  // The source folder of a run made by `forebay init --run` has no weights: they were never outside
  // the store.
  if (!HasWeights(model_directory)) return absl::OkStatus();
  FOREBAY_ASSIGN_OR_RETURN(const std::unique_ptr<CheckpointReader> reader,
                           CheckpointReader::Open(model_directory));
  std::vector<float> sample;
  for (const auto& [name, tensor] : reader->tensors()) {
    sample.resize(std::min(kSampledElems, NumElems(tensor.entry.shape)));
    if (!reader->ReadF32(tensor, 0, sample).ok()) sample.clear();
    take_tensor(name, tensor.entry, sample);
  }
  return absl::OkStatus();
}

void HashTensor(const std::string& name, const SafetensorsEntry& entry,
                std::span<const float> values, Xxh3_128& hash) {
  hash.Update(name);
  hash.Update(entry.dtype_name);
  for (const int64_t extent : entry.shape) hash.UpdateInt(extent);
  hash.Update(std::as_bytes(values));
}

}  // namespace

bool HasWeights(const std::string& model_directory) {
  return FileExists(JoinPath(model_directory, "model.safetensors")) ||
         FileExists(JoinPath(model_directory, "model.safetensors.index.json"));
}

absl::StatusOr<std::string> SampleDigest(const std::string& model_directory) {
  Xxh3_128 hash;
  FOREBAY_RETURN_IF_ERROR(Sample(
      model_directory, [&](const std::string& config) { hash.Update(config); },
      [&](const std::string& name, const SafetensorsEntry& entry, std::span<const float> values) {
        HashTensor(name, entry, values, hash);
      }));
  return hash.Hex();
}

std::vector<std::string> SampledParts(const std::string& model_directory) {
  std::vector<std::string> parts;
  const absl::Status status = Sample(
      model_directory,
      [&](const std::string& config) {
        parts.push_back(
            fmt::format("config.json of {} bytes (digest {})", config.size(), Xxh3_128Hex(config)));
      },
      [&](const std::string& name, const SafetensorsEntry& entry, std::span<const float> values) {
        Xxh3_128 hash;
        HashTensor(name, entry, values, hash);
        parts.push_back(fmt::format("'{}' {} {} (digest of its first values {})", name,
                                    entry.dtype_name, ToString(entry.shape), hash.Hex()));
      });
  if (!status.ok()) parts.clear();
  return parts;
}

Json MakeFingerprint(const TrainOptions& options, int64_t num_steps, const PackedFileInfo& data,
                     const std::string& model_digest) {
  Json fingerprint;
  fingerprint["model"] = model_digest;
  fingerprint["tokenizer"] = data.tokenizer_digest;
  fingerprint["data"] = data.digest;
  fingerprint["steps"] = num_steps;
  for (const char* key : {"batch",
                          "accum",
                          "seq",
                          "seed",
                          "lr",
                          "warmup",
                          "schedule",
                          "schedule_args",
                          "optimizer",
                          "weight_decay",
                          "decay_all",
                          "param_groups",
                          "betas",
                          "eps",
                          "momentum",
                          "nesterov",
                          "clip",
                          "delay_update_from",
                          "precision",
                          "tf32",
                          "layout",
                          "grad_dtype",
                          "reduce_dtype",
                          "activations_dtype",
                          "loss_scaling",
                          "loss_scale",
                          "initial_scale_power",
                          "loss_scale_window",
                          "hysteresis",
                          "consecutive_hysteresis",
                          "min_loss_scale"}) {
    fingerprint[key] = OptionText(options, key);
  }
  // A commit applies the update that is delayed.
  if (options.delay_update_from > 0) {
    fingerprint["commit_every"] = OptionText(options, "commit_every");
  }
  return fingerprint;
}

std::string FingerprintDigest(const Json& fingerprint) {
  return Xxh3_128Hex(fingerprint.dump());
}

absl::Status CompareFingerprints(const Json& of_run, const Json& now) {
  std::string differences;
  for (const auto& [key, value] : now.items()) {
    // A run of an earlier version knows nothing of an option that came later, and had its default.
    const OptionSpec* const option = FindOption(key);
    const bool is_new = !of_run.contains(key) && option != nullptr;
    const Json before = of_run.contains(key) ? of_run.at(key)
                        : is_new             ? Json(OptionText(TrainOptions{}, key))
                                             : Json();
    if (before == value) continue;
    if (key == "commit_every" && is_new) {
      return UsageError(
          "the run was made by an earlier version, which applied delayed updates at other times "
          "(--delay_update_from): it cannot go on. 'forebay export' gives the model of its last "
          "step");
    }
    if (const std::string_view contents = ContentsBehind(key); !contents.empty()) {
      differences += fmt::format("\n  {} (digest {} in the run, {} now)", contents, before.dump(),
                                 value.dump());
    } else {
      differences += fmt::format("\n  {}: the run has {}, this command has {}",
                                 option == nullptr ? "--" + key : GivenAs(*option), before.dump(),
                                 value.dump());
    }
  }
  if (differences.empty()) return absl::OkStatus();
  return UsageError(fmt::format(
      "cannot go on with the run: what follows would change its result.{}\nUse the values of "
      "the run (or leave --model out, where it is the model), or start a new one with "
      "another --out and without --resume or --from",
      differences));
}

}  // namespace forebay
