#include "forebay/train/files/committed_trainer.h"

#include <optional>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/json_fields.h"
#include "forebay/train/files/fingerprint.h"
#include "forebay/train/files/run_folder.h"

namespace forebay {
namespace {

constexpr int64_t kMostRows = int64_t{1} << 32;  // --batch times --accum

// nlohmann has no integer below 0 as an unsigned one.
bool IsTrainerSeed(const Json& value) {
  return value.is_number_unsigned();
}

bool IsNumSteps(const Json& value) {
  return IsIntegerIn(value, 1, kMostSteps);
}

bool IsNumRows(const Json& value) {
  return IsIntegerIn(value, 1, kMostRows);
}

bool IsNumRanks(const Json& value) {
  return IsIntegerIn(value, 2, kMostRows);
}

bool IsTrainerText(const Json& value) {
  return value.is_string();
}

bool IsTrainerBool(const Json& value) {
  return value.is_boolean();
}

bool IsNumUpdates(const Json& value) {
  return IsIntegerIn(value, 0, kMostSteps);
}

bool IsScalerState(const Json& value) {
  return value.is_object();  // what is in it: LossScaler::Restore
}

bool IsByteCount(const Json& value) {
  return IsIntegerIn(value, 0, int64_t{1} << 62);
}

// A line of metrics.jsonl.
bool IsMetricsLine(const Json& value) {
  if (value.is_null()) return true;
  if (!value.is_object() || !value.contains("step") || !IsIntegerIn(value["step"], 0, kMostSteps)) {
    return false;
  }
  for (const auto& [name, entry] : value.items()) {
    if (!entry.is_number() && !entry.is_null() && !entry.is_boolean()) return false;
  }
  return true;
}

// All of them may be missing.
constexpr JsonField kTrainerFields[] = {
    {"num_steps", IsNumSteps, "a whole number from 1 to 2^62"},
    {"rows_per_step", IsNumRows, "a whole number from 1 to 2^32"},
    {"num_ranks", IsNumRanks, "a whole number from 2 to 2^32"},
    {"seed", IsTrainerSeed, "a whole number from 0 to 2^64 - 1"},
    {"settings", IsHexDigest, "a text of 32 hexadecimal digits"},
    {"files", IsHexDigest, "a text of 32 hexadecimal digits"},
    {"kernel", IsTrainerText, "a text"},
    {kWrittenBytesKey, IsByteCount, "a whole number from 0 to 2^62"},
    {"metrics", IsMetricsLine, "an object of numbers with a step"},
    {"updates", IsNumUpdates, "a whole number from 0 to 2^62"},
    {"loss_scaler", IsScalerState, "an object"},
    {"skipped", IsTrainerBool, "true or false"},
};

absl::Status TrainerFieldError(const std::string& where, int64_t step, const std::string& name,
                               const std::string& value, const std::string& expected) {
  return CorruptError(
      fmt::format("the commit of step {} in {} is damaged: '{}' is {}, and {} was expected. Go "
                  "back to the step before ('forebay inspect RUN --repair'), or put back a copy of "
                  "the swap area",
                  step, where, name, value, expected));
}

std::string ShownValue(const Json& value) {
  constexpr size_t kLongest = 80;
  std::string text = value.dump();
  return text.size() > kLongest ? text.substr(0, kLongest) + "..." : text;
}

}  // namespace

Json TrainerOf(const CommittedRun& run) {
  return {{"num_steps", run.num_steps}, {"settings", run.settings}, {"files", run.files}};
}

Json HistoryOf(const Json& trainer) {
  Json history = Json::object();
  const auto take = [&](const Json& from, const char* name) {
    if (from.is_object() && from.contains(name)) history[name] = from[name];
  };
  for (const char* name : {"num_ranks", "settings"}) take(trainer, name);
  if (!trainer.is_object() || !trainer.contains("metrics")) return history;
  for (const char* name : {"loss", "grad_norm"}) take(trainer["metrics"], name);
  return history;
}

absl::Status CheckTrainer(const CommitInfo& committed, const std::string& where) {
  const Json& trainer = committed.trainer;
  const int64_t step = committed.step;
  if (step < 0 || step > kMostSteps) {
    return TrainerFieldError(where, step, "step", fmt::format("{}", step), "one from 0 to 2^62");
  }
  if (!trainer.is_object()) {
    return TrainerFieldError(where, step, "the trainer's state", ShownValue(trainer), "an object");
  }
  for (const JsonField& field : kTrainerFields) {
    if (!trainer.contains(field.name) || field.is_valid(trainer[field.name])) continue;
    return TrainerFieldError(where, step, field.name, ShownValue(trainer[field.name]),
                             field.expected);
  }
  const auto is_at_least = [&](const char* name, int64_t least) {
    return !trainer.contains(name) || trainer[name].get<int64_t>() >= least;
  };
  if (!is_at_least("num_steps", step)) {
    return TrainerFieldError(where, step, "num_steps", trainer["num_steps"].dump(),
                             "no less than the step");
  }
  if (trainer.contains("updates") && is_at_least("updates", step + 1)) {
    return TrainerFieldError(where, step, "updates", trainer["updates"].dump(),
                             "no more than the step");
  }
  return absl::OkStatus();
}

absl::Status CheckIsOfCommit(const Json& run_json, const std::string& path,
                             const CommitInfo& committed) {
  const Json& trainer = committed.trainer;
  const auto check = [&](const char* in_commit, const char* in_run, const std::string& digest,
                         const char* what) -> absl::Status {
    if (!trainer.contains(in_commit) || trainer[in_commit] == digest) return absl::OkStatus();
    return CorruptError(fmt::format(
        "'{}' has other {} than the steps in the run's store were made with ('{}' is {}). Put back "
        "the file that belongs to it, or have 'forebay inspect RUN --repair' take its copy",
        path, what, in_run, digest.empty() ? "missing" : "another"));
  };
  const Json fingerprint = run_json.contains("fingerprint") ? run_json["fingerprint"] : Json();
  FOREBAY_RETURN_IF_ERROR(check("settings", "fingerprint",
                                fingerprint.is_object() ? FingerprintDigest(fingerprint) : "",
                                "settings"));
  const RunFiles files = RunFilesOf(run_json);
  return check("files", "files", files.empty() ? "" : DigestOf(files), "files");
}

}  // namespace forebay
