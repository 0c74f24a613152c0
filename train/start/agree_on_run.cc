#include "forebay/train/start/agree_on_run.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/json.h"
#include "forebay/offload/ranks/agreement.h"
#include "forebay/swap/store/rank_commits.h"
#include "forebay/train/files/committed_trainer.h"
#include "forebay/train/files/fingerprint.h"

namespace forebay {
namespace {

// "'data.fbd' (10 rows, digest 01ab...)".
std::string Describe(const std::string& path, const PackedFile* file) {
  if (file == nullptr) return "missing";
  return fmt::format("'{}' ({} rows, digest {})", path, file->info().num_rows, file->info().digest);
}

// All settings that change the result, each with its flag or its files.
std::vector<Setting> SettingsOfResult(const PreparedRun& run, const Json& fingerprint) {
  std::vector<Setting> settings;
  for (const auto& [key, value] : fingerprint.items()) {
    const std::string digest = value.is_string() ? value.get<std::string>() : value.dump();
    Setting& setting = settings.emplace_back(Setting{.name = "--" + key, .value = value});
    if (key == "steps") {
      setting.name = "the number of steps";
    } else if (key == "data") {
      setting.name = "what is in --data";
      setting.shown = Describe(run.options.data, run.data.get());
    } else if (key == "tokenizer") {
      setting.name = "the tokenizer of --data";
      setting.shown = fmt::format("that of '{}' (digest {})", run.options.data, digest);
    } else if (key == "model") {
      setting.name = "the model";
      setting.shown = fmt::format("'{}' (digest of a sample {})", run.options.model, digest);
      setting.parts = [&run] { return SampledParts(run.options.model); };
    }
  }
  return settings;
}

std::vector<Setting> SettingsOfRank(const PreparedRun& run, const Json& fingerprint) {
  const Plan& plan = run.plan;
  // Where weights are gathered, these decide what a pass and an evaluation read in which order.
  const bool gathers = run.options.zero_stage > 0;
  const bool speculates = plan.placement.NumUpdated(UpdateTime::kAfterHand) > 0;
  std::vector<Setting> settings = {{"--resume", run.resumed}, {"--dry_run", run.options.dry_run}};
  std::ranges::move(SettingsOfResult(run, fingerprint), std::back_inserter(settings));
  std::ranges::move(
      std::vector<Setting>{
          {"--gradients", speculates ? "speculate" : "hold"},
          {"when each layer is updated (--set=speculate_layers)", UpdateTimesOf(plan.placement)},
          {"--durability", plan.num_slots == 1 ? "none" : "step"},
          {"--eval_every", run.options.eval_every},
          {"--save_every", run.options.save_every},
          {"--stop_after", run.options.stop_after},
          {"what is in --eval_data", run.eval_data == nullptr ? "" : run.eval_data->info().digest,
           Describe(run.options.eval_data, run.eval_data.get())},
          {"--zero_stage", run.options.zero_stage},
          {"--set=reduce_bucket", run.options.reduce_bucket_bytes},
          // They read as much of each other's parts at the end as the one that exports.
          {"--export_dtype", gathers ? NameOf(run.options.export_dtype) : ""},
          {"layers of a segment (--set=number_checkpoints)",
           gathers ? plan.recompute.segment_blocks : 1},
          {"activations that are spilled (--set=activations_tier)",
           gathers ? plan.activations.num_spilled : 0}},
      std::back_inserter(settings));
  return settings;
}

// Among the parts of one process.
absl::Status DivideRows(int num_ranks, TrainOptions& options) {
  const int num_parts = options.data_parallel;
  if (num_ranks > 1) {
    return UsageError(fmt::format(
        "--data_parallel={} divides the rows in one process, and {} ranks divide them already. "
        "Leave it out and start a rank for each GPU, or start one process alone",
        num_parts, num_ranks));
  }
  if (options.batch % num_parts != 0) {
    return UsageError(fmt::format(
        "--batch={} rows of a micro-batch cannot be divided among --data_parallel={} parts. Give a "
        "multiple of {}",
        options.batch, num_parts, num_parts));
  }
  if (options.activations_tier == ActivationsTier::kNvme) {
    return UsageError(fmt::format(
        "--set=activations_tier=nvme is not there with --data_parallel={}. Leave it out; "
        "--set=number_checkpoints keeps fewer activations, and ranks with --zero_stage=1 divide "
        "the "
        "state",
        num_parts));
  }
  options.batch /= num_parts;
  return absl::OkStatus();
}

// The state at `step`, as this rank has it committed or prepared; null: it changed no tile.
Json TrainerAt(int64_t step, TensorStore& store) {
  if (store.committed().step == step) return store.committed().trainer;
  const std::optional<CommitInfo> prepared = store.Prepared();
  return prepared.has_value() && prepared->step == step ? prepared->trainer : Json();
}

// Ranks that went on apart may be at one step, and have other weights.
absl::Status CheckHistory(int64_t step, size_t newest, const Json& trainer, PreparedRun& run) {
  const Json own = TrainerAt(step, *run.store);
  if (own.is_null() || HistoryOf(own) == HistoryOf(trainer)) return absl::OkStatus();
  const bool is_divided = run.options.zero_stage > 0;
  return CorruptError(fmt::format(
      "the stores of the ranks do not belong together: step {} is {} in that of rank {}, and {} in "
      "that of rank {}: they went on apart. Put back the stores that belong together{}",
      step, HistoryOf(own).dump(), run.ranks->rank(), HistoryOf(trainer).dump(), newest,
      is_divided ? "" : ", or give each other rank a copy of rank 0's folder"));
}

}  // namespace

absl::Status TakePartOfRank(int rank, int num_ranks, TrainOptions& options) {
  if (options.data_parallel > 1) return DivideRows(num_ranks, options);
  if (num_ranks == 1) return absl::OkStatus();
  if (options.batch % num_ranks != 0) {
    return UsageError(fmt::format(
        "--batch={} rows of a micro-batch cannot be divided among {} ranks. Give a multiple of {}",
        options.batch, num_ranks, num_ranks));
  }
  if (options.delay_update_from > 0) {
    return UsageError(
        fmt::format("--delay_update_from={} is not there for several ranks (here {}). Leave it out",
                    options.delay_update_from, num_ranks));
  }
  options.batch /= num_ranks;
  options.rank = rank;
  options.num_ranks = num_ranks;
  if (rank > 0) options.export_format = ExportFormat::kNone;
  return absl::OkStatus();
}

absl::Status AgreeOnSettings(const PreparedRun& run, const Json& fingerprint) {
  if (run.ranks == nullptr) return absl::OkStatus();
  return AgreeOnSettings(SettingsOfRank(run, fingerprint), *run.ranks);
}

absl::Status AgreeOnCommit(PreparedRun& run, TrainObserver& observer) {
  if (run.ranks == nullptr) return absl::OkStatus();
  TensorStore& store = *run.store;
  FOREBAY_ASSIGN_OR_RETURN(const NewestCommit newest, FindNewestCommit(store, *run.ranks));
  FOREBAY_RETURN_IF_ERROR(CheckHistory(newest.standing.step, newest.rank, newest.trainer, run));
  if (run.options.dry_run) return absl::OkStatus();
  const int64_t own_step = store.committed().step;
  FOREBAY_RETURN_IF_ERROR(BringToStep(newest.standing, newest.trainer, store));
  if (store.committed().step != own_step) {
    observer.OnNote(fmt::format(
        "step {} was prepared here and published by rank {} ({}) alone: it is published here too",
        store.committed().step, newest.rank, run.ranks->host(static_cast<int>(newest.rank))));
  }
  return absl::OkStatus();
}

}  // namespace forebay
