// The end of a step: updates and commits. The rest of the class is in
// layer_session.cc.
#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/hash.h"
#include "forebay/collective/gather_values.h"
#include "forebay/offload/layer_session.h"
#include "forebay/offload/missed_updates.h"
#include "forebay/offload/ranks/agreement.h"
#include "forebay/offload/update_settings.h"
#include "forebay/optimizer/update_modes.h"
#include "forebay/swap/records/commit_record.h"

namespace forebay {
namespace {

absl::Status CheckKept(const Json& kept, std::string_view call) {
  if (!kept.is_object() && !kept.is_null()) {
    return UsageError(fmt::format("{}: what goes with a step is a JSON object, and not {}", call,
                                  kept.type_name()));
  }
  if (!kept.contains(kMissedUpdatesKey)) return absl::OkStatus();
  return UsageError(fmt::format("{}: '{}' is the session's own word. Call it something else", call,
                                kMissedUpdatesKey));
}

// A rank gives it before a step counts.
struct StepVote {
  uint64_t commits = 0;  // 1: the step is to be committed
  uint64_t settings_hash = 0;
};

}  // namespace

// ---- The end of a step -------------------------------------------------------------------------

absl::Status LayerSession::Update(Json kept, CommitWhen when) {
  FOREBAY_RETURN_IF_ERROR(CheckState(State::kDone, "Update"));
  FOREBAY_RETURN_IF_ERROR(CheckKept(kept, "Update"));
  FOREBAY_RETURN_IF_ERROR(CheckNothingIsAnnounced("Update"));
  if (gradients_.first_nonfinite_layer >= 0) {
    return UsageError(
        fmt::format("Update: the gradient of '{}' is not finite. Skip the step, or abandon it",
                    store_->inventory().layers()[gradients_.first_nonfinite_layer].name));
  }
  FOREBAY_RETURN_IF_ERROR(CheckCommitFits(kept));
  const int64_t step = released_step_ + 1;
  FOREBAY_ASSIGN_OR_RETURN(const bool commits, CommitIsDueAfter(step, when));
  FOREBAY_RETURN_IF_ERROR(BeginUpdate(step, commits));
  if (commits) RestartCommitClock();
  EndStep(step, std::move(kept), /*was_update=*/true);
  // Otherwise it is applied while the next step's forward pass goes by, and committed there.
  const bool commits_now = when == CommitWhen::kNow || (commits && !optimizer_->AnyUpdateIsDue());
  if (commits_now) FOREBAY_RETURN_IF_ERROR(FinishAndCommit());
  last_step_s_ = step_watch_.Seconds() - waited_in_step_s_;
  return absl::OkStatus();
}

// Makes the update of every layer due. All that can refuse it comes before anything is begun.
absl::Status LayerSession::BeginUpdate(int64_t step, bool commits) {
  UpdateModes& modes = optimizer_->modes();
  // A speculative one is written already.
  const auto resident =
      commits || modes.speculates() ? ResidentWrites::kNow : ResidentWrites::kDeferred;
  // A commit has all updates in it.
  const bool delays = Delays(step + 1) && !commits;
  FOREBAY_RETURN_IF_ERROR(delays ? modes.CheckBeginDelayedUpdate(scalars_, resident)
                                 : optimizer_->CheckBeginUpdate(scalars_, resident));
  // A speculative pass has begun its writes. Where an update that is not for a commit writes
  // nothing, the one copy of --durability=none stays what it is.
  const bool writes = commits || !plan_.placement.AllInMemory();
  if (writes && !optimizer_->modes().speculates()) FOREBAY_RETURN_IF_ERROR(BeginWriting());
  FOREBAY_RETURN_IF_ERROR(delays ? modes.BeginDelayedUpdate(scalars_, resident)
                                 : optimizer_->BeginUpdate(scalars_, resident));
  update_is_open_ = true;
  open_update_commits_ = commits;
  open_update_writes_ = writes;
  open_update_defers_ = resident == ResidentWrites::kDeferred;
  if (optimizer_->modes().speculates()) swapper_->ForgetUpdatedOutside();
  return absl::OkStatus();
}

void LayerSession::EndStep(int64_t step, Json kept, bool was_update) {
  released_step_ = step;
  released_kept_ = std::move(kept);
  raw_->Release();
  if (was_update && gathered_ != nullptr) gathered_->Forget();
  state_ = State::kBetween;
}

absl::Status LayerSession::Skip(Json kept, CommitWhen when) {
  if (state_ != State::kMustRepeat) {
    FOREBAY_RETURN_IF_ERROR(CheckState(State::kDone, "Skip"));
  }
  FOREBAY_RETURN_IF_ERROR(CheckKept(kept, "Skip"));
  FOREBAY_RETURN_IF_ERROR(CheckNothingIsAnnounced("Skip"));
  FOREBAY_RETURN_IF_ERROR(CheckCommitFits(kept));
  failure_.Update(AbandonGradients());
  FOREBAY_RETURN_IF_ERROR(failure_);
  const int64_t step = released_step_ + 1;
  FOREBAY_ASSIGN_OR_RETURN(const bool commits, CommitIsDueAfter(step, when));
  if (commits) RestartCommitClock();
  EndStep(step, std::move(kept), /*was_update=*/false);
  if (commits) FOREBAY_RETURN_IF_ERROR(Commit());
  last_step_s_ = step_watch_.Seconds() - waited_in_step_s_;
  return absl::OkStatus();
}

// Layers that live in RAM lose what speculation made of them there too.
absl::Status LayerSession::AbandonGradients() {
  const std::span<const int> speculated = optimizer_->modes().Speculated();
  optimizer_->AbandonStep();
  absl::Status status;
  for (const int layer : speculated) {
    status.Update(optimizer_->modes().RestoreState(layer));
    if (plan_.placement.weights[static_cast<size_t>(layer)] == Tier::kNvme) continue;
    status.Update(swapper_->RestoreResident(layer));
  }
  undo_failure_.Update(status);
  return status;
}

void LayerSession::Abandon() {
  CancelAnnounced();
  if (sum_ != nullptr) sum_->Drop();
  failure_.Update(AbandonGradients());
  open_layers_->Clear();
  raw_->Abandon();
  is_abandoned_ = true;
  state_ = State::kBetween;
}

// ---- Commits -----------------------------------------------------------------------------------

bool LayerSession::CommitIsDueHere(int64_t step, CommitWhen when) const {
  if (when == CommitWhen::kNow) return true;
  // The result depends on it, and so on nothing that another run would do at another time.
  if (plan_.delay_update_from > 0 && !plan_.commit_pace.only_on_demand) {
    return step % plan_.commit_pace.every_steps == 0;
  }
  SinceCommit since;
  since.steps = step - committed_step_;
  since.seconds = since_commit_.Seconds() - waited_since_commit_s_;
  since.step_s = last_step_s_;
  const IoStats io = store_->engine().stats();
  if (io.write_us > 0) {
    // The time is a sum over disks, which write side by side.
    const double write_s = static_cast<double>(io.write_us) * 1e-6 / options_.num_disks;
    since.write_bytes_per_s = static_cast<double>(io.write_bytes) / write_s;
  }
  return CommitIsDue(plan_.commit_pace, since);
}

absl::StatusOr<bool> LayerSession::CommitIsDueAfter(int64_t step, CommitWhen when) {
  // Each rank has a clock and a disk of its own.
  const bool is_due = CommitIsDueHere(step, when);
  if (options_.ranks == nullptr) return is_due;
  const Stopwatch watch;
  const TraceScope trace(Activity::kRanks);
  const Json settings = UpdateSettings(scalars_, groups_);
  const std::string text = settings.dump();
  const absl::StatusOr<std::vector<StepVote>> votes =
      GatherValues(*options_.ranks, StepVote{is_due, Xxh3_64(std::as_bytes(std::span(text)))});
  own_waits_[Activity::kRanks] += watch.Seconds();
  FOREBAY_RETURN_IF_ERROR(votes.status());
  const auto other = std::ranges::find_if(*votes, [&](const StepVote& vote) {
    return vote.settings_hash != votes->front().settings_hash;
  });
  if (other == votes->end()) {
    return std::ranges::any_of(*votes, [](const StepVote& vote) { return vote.commits != 0; });
  }
  std::vector<Setting> named;
  const Json flat = settings.flatten();
  for (const auto& [path, value] : flat.items()) {
    named.push_back({.name = path.substr(1), .value = value});  // "groups/1/weight_decay"
  }
  FOREBAY_ASSIGN_OR_RETURN(const std::string difference,
                           DifferenceOfSettings(named, *options_.ranks));
  const auto rank = static_cast<int>(other - votes->begin());
  return UsageError(fmt::format(
      "step {}: rank {} ({}) has another rate, clip, loss scale or setting of a group than rank 0 "
      "({}), and their weights would part: {}. Abandon the step, and give all ranks the same",
      step, rank, options_.ranks->host(rank), options_.ranks->host(0), difference));
}

void LayerSession::RestartCommitClock() {
  since_commit_.Restart();
  waited_since_commit_s_ = 0;
}

// Whether the commit of the step in progress has room for what it would carry. What commit_state
// will say is not known yet.
absl::Status LayerSession::CheckCommitFits(const Json& kept) const {
  if (options_.commit_state) return absl::OkStatus();
  Json text = kept;
  AddMissedUpdates(optimizer_->MissedUpdatesAfter(), text);
  return TrainerText(text).status();
}

// The same of the released step.
absl::Status LayerSession::CheckReleasedFits(Json kept) const {
  AddMissedUpdates(optimizer_->missed_updates(), kept);
  return TrainerText(kept).status();
}

absl::Status LayerSession::CheckRawTensors(std::string_view call) const {
  if (!raw_->HaveChanged()) return absl::OkStatus();
  return UsageError(fmt::format(
      "{}: raw tensors were changed between steps, and belong to none. Abandon what was "
      "changed, and change them between BeginStep and Update, or before the step's Commit",
      call));
}

// Has the open update take writes to the store where it has left that alone so far.
absl::Status LayerSession::MakeOpenUpdateWrite() {
  if (!update_is_open_ || open_update_writes_) return absl::OkStatus();
  FOREBAY_RETURN_IF_ERROR(BeginWriting());
  open_update_writes_ = true;
  return absl::OkStatus();
}

absl::Status LayerSession::BeginWriting() {
  if (options_.before_writing) {
    const Stopwatch watch;
    FOREBAY_RETURN_IF_ERROR(options_.before_writing());
    waited_in_step_s_ += watch.Seconds();
    waited_since_commit_s_ += watch.Seconds();
  }
  if (store_->AwaitsSnapshot()) {
    return UsageError(
        "what is committed is still being read (a snapshot), and a step would write over it. Let "
        "the reader end before");
  }
  return store_->BeginWriting();
}

absl::Status LayerSession::FinishDelayed(absl::FunctionRef<void()> meanwhile) {
  if (!optimizer_->modes().DelayedUpdateIsPending()) return absl::OkStatus();
  FOREBAY_RETURN_IF_ERROR(optimizer_->modes().FinishDelayedUpdate(meanwhile));
  swapper_->ForgetUpdatedOutside();
  return absl::OkStatus();
}

// Applies every released update and waits until all of it is written: the store may then commit.
absl::Status LayerSession::FinishUpdates() {
  const int64_t bytes = store_->UnwrittenBytes();
  const int64_t written_before = store_->engine().stats().write_bytes;
  const auto tell = [&] {
    if (!options_.on_saving || bytes == 0) return;
    const int64_t written = store_->engine().stats().write_bytes - written_before;
    // Bytes that were under way before are in part in `bytes` alone.
    options_.on_saving(std::min(1.0, static_cast<double>(written) / static_cast<double>(bytes)));
  };
  tell();
  FOREBAY_RETURN_IF_ERROR(FinishDelayed(tell));
  FOREBAY_RETURN_IF_ERROR(swapper_->ApplyAllUpdates(tell));
  const Stopwatch watch;
  const TraceScope trace(Activity::kWrite);
  FOREBAY_RETURN_IF_ERROR(optimizer_->WriteDeferredState(tell));
  const absl::Status status = optimizer_->AwaitAllWrites(tell);
  own_waits_[Activity::kWrite] += watch.Seconds();
  return status;
}

// Requires: where an update is open, the store takes writes.
absl::Status LayerSession::FinishAndCommit() {
  FOREBAY_RETURN_IF_ERROR(CheckNothingIsLent("a commit"));
  FOREBAY_RETURN_IF_ERROR(failure_);
  if (update_is_open_) failure_ = FinishUpdates();
  FOREBAY_RETURN_IF_ERROR(failure_);
  return CommitReleased();
}

// Requires: all of it is applied and written. An error is final: tiles may be half written.
absl::Status LayerSession::CommitReleased() {
  FOREBAY_RETURN_IF_ERROR(failure_);
  if (committed_step_ == released_step_) return absl::OkStatus();
  FOREBAY_ASSIGN_OR_RETURN(const bool only_raw, OnlyRawHaveChanged());
  if (only_raw) FOREBAY_RETURN_IF_ERROR(BeginWriting());
  const Stopwatch watch;
  {
    const TraceScope trace(Activity::kCommit);
    failure_ = WriteCommit(only_raw);
  }
  own_waits_[Activity::kCommit] += watch.Seconds();
  FOREBAY_RETURN_IF_ERROR(failure_);
  update_is_open_ = commit_is_said_ = false;
  committed_step_ = released_step_;
  if (options_.after_commit) options_.after_commit();
  return absl::OkStatus();
}

// The commits of all ranks are of one kind: what a crash leaves is told apart by it.
absl::StatusOr<bool> LayerSession::OnlyRawHaveChanged() {
  if (update_is_open_) return false;
  return AnyRank(options_.ranks, raw_->ReleasedHaveChanged());
}

absl::Status LayerSession::WriteCommit(bool only_raw) {
  CommitInfo info;
  info.step = released_step_;
  info.trainer = options_.commit_state ? options_.commit_state() : released_kept_;
  AddMissedUpdates(optimizer_->missed_updates(), info.trainer);
  // A rank publishes what all have prepared.
  std::function<absl::Status()> before_record;
  if (options_.ranks != nullptr) before_record = [this] { return options_.ranks->Barrier(); };
  if (!update_is_open_ && !only_raw) return store_->CommitSkipped(info, before_record);
  if (only_raw) FOREBAY_RETURN_IF_ERROR(raw_->CopyForward());
  FOREBAY_RETURN_IF_ERROR(raw_->Write());
  return store_->Commit(info, before_record);
}

absl::Status LayerSession::Commit() {
  FOREBAY_RETURN_IF_ERROR(CheckState(State::kBetween, "Commit"));
  FOREBAY_RETURN_IF_ERROR(CheckNothingIsAnnounced("Commit"));
  if (committed_step_ == released_step_) return absl::OkStatus();
  FOREBAY_RETURN_IF_ERROR(failure_);
  if (commit_is_said_) FOREBAY_RETURN_IF_ERROR(CheckRawTensors("Commit"));
  FOREBAY_RETURN_IF_ERROR(MakeOpenUpdateWrite());
  raw_->Release();
  return FinishAndCommit();
}

absl::Status LayerSession::Commit(Json kept) {
  FOREBAY_RETURN_IF_ERROR(CheckState(State::kBetween, "Commit"));
  FOREBAY_RETURN_IF_ERROR(CheckKept(kept, "Commit"));
  if (committed_step_ == released_step_ || commit_is_said_) {
    FOREBAY_RETURN_IF_ERROR(CheckSameCommit(kept));
    return Commit();
  }
  FOREBAY_RETURN_IF_ERROR(CheckReleasedFits(kept));
  std::swap(released_kept_, kept);
  const absl::Status status = Commit();
  if (!status.ok() && committed_step_ != released_step_) released_kept_ = std::move(kept);
  return status;
}

absl::Status LayerSession::CheckSameCommit(const Json& kept) const {
  Json carried = commit_is_said_ ? released_kept_ : store_->committed().trainer;
  carried.erase(std::string(kMissedUpdatesKey));
  if (carried == kept) return absl::OkStatus();
  return UsageError(fmt::format("Commit: step {} {} already, with something else", released_step_,
                                commit_is_said_ ? "is to be committed" : "is committed"));
}

absl::Status LayerSession::CommitOnceApplied(Json kept) {
  FOREBAY_RETURN_IF_ERROR(CheckState(State::kBetween, "CommitOnceApplied"));
  FOREBAY_RETURN_IF_ERROR(CheckKept(kept, "CommitOnceApplied"));
  if (commit_is_said_) return CheckSameCommit(kept);
  const bool is_applied_later = update_is_open_ && optimizer_->AnyUpdateIsDue() &&
                                !optimizer_->modes().DelayedUpdateIsPending();
  if (!is_applied_later) return Commit(std::move(kept));
  FOREBAY_RETURN_IF_ERROR(failure_);
  FOREBAY_RETURN_IF_ERROR(CheckReleasedFits(kept));
  FOREBAY_RETURN_IF_ERROR(MakeOpenUpdateWrite());
  raw_->Release();
  released_kept_ = std::move(kept);
  open_update_commits_ = commit_is_said_ = true;
  RestartCommitClock();
  return absl::OkStatus();
}

absl::Status LayerSession::CommitOnceApplied() {
  FOREBAY_RETURN_IF_ERROR(CheckState(State::kBetween, "CommitOnceApplied"));
  if (commit_is_said_ || committed_step_ == released_step_) return absl::OkStatus();
  return CommitOnceApplied(released_kept_);
}

}  // namespace forebay
