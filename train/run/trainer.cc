#include "forebay/train/run/trainer.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/clock.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/format.h"
#include "forebay/base/trace.h"
#include "forebay/collective/communicator.h"
#include "forebay/collective/gather_values.h"
#include "forebay/data/packed_file.h"
#include "forebay/offload/layer_session.h"
#include "forebay/train/export/export_weights.h"
#include "forebay/train/export/rank_weights.h"
#include "forebay/train/files/run_folder.h"
#include "forebay/train/infer/evaluate.h"
#include "forebay/train/run/drive_watch.h"
#include "forebay/train/run/logged_observer.h"
#include "forebay/train/run/metrics.h"
#include "forebay/train/run/open_run_session.h"
#include "forebay/train/run/run_exports.h"
#include "forebay/train/run/run_notes.h"
#include "forebay/train/run/run_report.h"
#include "forebay/train/run/run_trace.h"
#include "forebay/train/run/saving_progress.h"
#include "forebay/train/run/step_batches.h"
#include "forebay/train/run/write_limit.h"
#include "forebay/train/start/prepare_run.h"
#include "forebay/train/step/not_finite.h"
#include "forebay/train/step/run_progress.h"
#include "forebay/train/step/run_session.h"
#include "forebay/train/step/update_scalars.h"

namespace forebay {
namespace {

class TrainingRun {
 public:
  TrainingRun(const ResolvedOptions& resolved, const std::function<bool()>& stop,
              TrainObserver& observer, const TrainEnvironment& environment)
      : resolved_(resolved),
        options_(resolved.options),
        stop_(stop),
        observer_(observer),
        environment_(environment),
        progress_(resolved.options) {}

  absl::Status Run() {
    FOREBAY_ASSIGN_OR_RETURN(prepared_, PrepareRun(resolved_, stop_, observer_, environment_));
    run_lock_ = std::move(prepared_.lock);
    trace_ = RunTrace(options_.trace, prepared_.traced,
                      {.rank = environment_.rank(), .num_ranks = environment_.num_ranks()});
    if (options_.dry_run) {
      Note("dry run: model, data, memory and disk space are in order; nothing was begun");
      return absl::OkStatus();
    }
    FOREBAY_RETURN_IF_ERROR(observer_.OpenLog(prepared_.paths.events));
    FOREBAY_RETURN_IF_ERROR(OpenSession());
    absl::Status status = OpenMetrics();
    if (status.ok()) status = TrainAndExport();
    status = exports_->End(status);
    NoteWritten(status);
    if (!status.ok()) observer_.Log(MessageOf(status));
    if (session_ != nullptr) trace_.End(session_->store().inventory(), observer_);
    trace_.Join(observer_);
    return status;
  }
  bool HasBegunToTrain() const { return session_ != nullptr; }

 private:
  absl::Status OpenSession();
  absl::Status OpenMetrics();
  absl::Status TrainAndExport();
  absl::Status EvaluateWhatIsDue();
  absl::Status RunSteps();
  absl::Status RunStep(int64_t step);
  absl::Status EndStep(int64_t step, bool is_update);
  absl::StatusOr<bool> Advance(int64_t step, const StepResult& result);
  absl::Status AfterOverflow(int64_t step, const std::string& where);
  std::string WhereNotFinite(const StepResult& result);
  UpdateScalars ScalarsOf(double gradient_norm) const {
    return NextUpdate(options_, prepared_.lr_schedule, progress_, gradient_norm);
  }
  // Where ranks go on or end together: the first InterruptedError of any, in their order.
  absl::Status AgreeToGoOn(const absl::Status& own);
  // A stop of one rank alone would leave the others waiting: between these it is agreed upon.
  bool StopsAlone() const { return environment_.ranks == nullptr && stop_(); }
  bool Exports() const { return prepared_.options.export_format != ExportFormat::kNone; }
  Json CommitState();
  void AfterCommit();
  void NoteWritten(const absl::Status& status);
  absl::Status SaveWhatIsDone();
  absl::Status AfterError(const absl::Status& error);
  // `go_on_with`: what the command that continues has beside.
  absl::Status StopInMidStep(const absl::Status& reason, std::string_view go_on_with = "--resume");
  absl::Status StopForWriteLimit(const absl::Status& reason);
  absl::Status AfterStep(int64_t step, Json& line);
  absl::StatusOr<double> EvaluateHeldOut();
  absl::Status BeforeWriting();
  absl::Status ExportResult();
  absl::Status MakeUpExport();
  absl::Status ExportCommitted(bool is_wanted);
  absl::Status ExportOfAllRanks(bool is_wanted,
                                const std::function<absl::Status(const RankWeights&)>& write);
  Counters ReadCounters() const { return forebay::ReadCounters(prepared_, *session_); }
  LayerSession& layers() const { return session_->layers(); }
  ActivityTimes Waits() const {
    ActivityTimes waits = layers().waits();
    waits[Activity::kExport] += export_wait_s_;
    return waits;
  }
  int64_t committed_step() const { return layers().committed_step(); }
  int64_t kept_step() const { return session_->store().files().records ? committed_step() : -1; }
  void Note(const std::string& line) { observer_.OnNote(line); }

  const ResolvedOptions& resolved_;
  const TrainOptions& options_;
  const std::function<bool()>& stop_;
  UniqueFd run_lock_;        // longer than anything writes to the run folder
  LoggedObserver observer_;  // before the engine, whose warnings it takes
  SavingProgress saving_{&observer_};
  const TrainEnvironment& environment_;

  RunTrace trace_;  // before the threads that it records
  PreparedRun prepared_;
  LineLog metrics_;
  std::unique_ptr<RunSession> session_;
  std::unique_ptr<RunExports> exports_;  // of --save_every
  std::optional<StepBatches> batches_;
  int64_t first_step_ = 0;                 // of this process
  RunProgress progress_;                   // after the released step
  std::optional<WriteLimit> write_limit_;  // from OpenSession on
  std::optional<DriveWatch> drive_watch_;  // the same
  double export_wait_s_ = 0;               // of BeforeWriting
  Counters counted_;                       // up to what the lines of metrics.jsonl count
  SessionTotals totals_;
  Json committed_line_;  // of metrics.jsonl, when the run is resumed; null: it has none
  Json released_line_;   // metrics of the released step that do not depend on the clock
};

absl::Status TrainingRun::OpenSession() {
  FOREBAY_RETURN_IF_ERROR(progress_.Restore(prepared_.store->committed()));
  write_limit_ = WriteLimit::Create(prepared_);
  drive_watch_.emplace(environment_.disks_of(prepared_.store->directories()));
  LayerSessionOptions session_options;
  session_options.num_disks = prepared_.num_disks;
  session_options.ranks = environment_.ranks;
  session_options.parts = prepared_.parts;
  session_options.gathered_for = GatheredForStage(options_.zero_stage);
  session_options.commit_state = [this] { return CommitState(); };
  session_options.after_commit = [this] { AfterCommit(); };
  session_options.on_saving = [this](double fraction) { saving_.Show(fraction); };
  session_options.before_writing = [this] { return BeforeWriting(); };
  FOREBAY_ASSIGN_OR_RETURN(session_,
                           OpenRunSession(prepared_, std::move(session_options), observer_));
  trace_.AddStreams(session_->compute().stream_traces());
  exports_ = std::make_unique<RunExports>(
      RunExports::Options{prepared_.model_directory, prepared_.paths.exports, options_.export_dtype,
                          options_.keep, prepared_.files,
                          // Where it takes all ranks, none of them leaves the others alone.
                          prepared_.parts == nullptr ? stop_ : [] { return false; }},
      &session_->store(), &observer_);
  const Inventory& whole =
      prepared_.parts == nullptr ? session_->store().inventory() : prepared_.parts->whole();
  FOREBAY_RETURN_IF_ERROR(exports_->HoldSpace(whole, prepared_.plan.exports_to_come));
  batches_.emplace(
      prepared_.data.get(),
      StepBatches::Options{.seed = options_.seed,
                           .batch = options_.batch,
                           .accum = options_.accum,
                           .num_parts = environment_.num_ranks() * options_.data_parallel,
                           .first_part = environment_.rank(),
                           .num_own_parts = options_.data_parallel});
  NoteMachine(prepared_, *session_, observer_);
  return write_limit_->Begin(committed_step());
}

// With the line of the committed step as its last.
absl::Status TrainingRun::OpenMetrics() {
  first_step_ = committed_step() + 1;
  if (prepared_.resumed) {
    const Json& trainer = session_->store().committed().trainer;
    FOREBAY_ASSIGN_OR_RETURN(
        AlignedMetrics aligned,
        AlignMetrics(prepared_.paths.metrics, committed_step(),
                     trainer.contains("metrics") ? trainer["metrics"] : Json()));
    committed_line_ = std::move(aligned.line);
    if (!aligned.note.empty()) Note(aligned.note);
  }
  if (committed_line_.contains("loss") && committed_line_["loss"].is_number()) {
    totals_.last_loss = committed_line_["loss"].get<double>();
  }
  FOREBAY_ASSIGN_OR_RETURN(metrics_, LineLog::Open(prepared_.paths.metrics));
  const int64_t lines = std::min(prepared_.num_steps - committed_step(), kMostReservedLines);
  return metrics_.Reserve(lines * kMetricsLineBytes);
}

absl::Status TrainingRun::TrainAndExport() {
  if (prepared_.resumed) {
    Note(fmt::format("resuming after step {} of {}", committed_step(), prepared_.num_steps));
  }
  const absl::Status evaluated = EvaluateWhatIsDue();
  if (ExitCodeOf(evaluated) == ExitCode::kInterrupted) return StopInMidStep(evaluated);
  FOREBAY_RETURN_IF_ERROR(evaluated);
  absl::Status exported = prepared_.resumed ? MakeUpExport() : absl::OkStatus();
  if (exported.ok()) {
    FOREBAY_RETURN_IF_ERROR(RunSteps());
    exported = ExportResult();
  }
  if (ExitCodeOf(exported) == ExitCode::kInterrupted) return StopInMidStep(exported);
  FOREBAY_RETURN_IF_ERROR(exported);
  const int64_t num_skipped =
      progress_.scales_loss() ? prepared_.num_steps - progress_.num_updates() : -1;
  observer_.OnDone(RunSummary(totals_, num_skipped, prepared_, *session_));
  return absl::OkStatus();
}

// Before the first step, and after a committed one whose evaluation was interrupted. A rank that
// has the result already evaluates with those that have not.
absl::Status TrainingRun::EvaluateWhatIsDue() {
  Json& line = committed_line_;
  const bool is_first = committed_step() == 0;
  const bool comes_behind = prepared_.EvaluatesAfter(committed_step()) && line.is_object();
  const bool is_due = is_first ? prepared_.eval_data != nullptr && !line.is_object()
                               : comes_behind && !line.contains("eval_loss");
  FOREBAY_ASSIGN_OR_RETURN(const bool any_is_due, AnyRank(environment_.ranks, is_due));
  if (!any_is_due) return absl::OkStatus();
  FOREBAY_ASSIGN_OR_RETURN(const double loss, EvaluateHeldOut());
  if (!is_due) return absl::OkStatus();
  (is_first ? totals_.first_eval_loss : totals_.last_eval_loss) = loss;
  Note(is_first ? fmt::format("held-out loss before the first step: {:.4f}", loss)
                : fmt::format("held-out loss after step {}: {:.4f}", committed_step(), loss));
  if (is_first) line = Json({{"step", 0}});
  line["eval_loss"] = loss;
  return is_first ? metrics_.Append(line.dump()) : metrics_.ReplaceLast(line.dump());
}

absl::Status TrainingRun::RunSteps() {
  trace_.BeforeCounting(first_step_);
  counted_ = ReadCounters();
  for (int64_t step = first_step_; step <= prepared_.num_steps; ++step) {
    const absl::Status may_write = write_limit_->CheckNextStep();
    absl::Status status =
        AgreeToGoOn(may_write.ok() && stop_() ? InterruptedError("stopped on request") : may_write);
    if (!may_write.ok()) return StopForWriteLimit(may_write);
    if (status.ok()) status = RunStep(step);
    if (ExitCodeOf(status) == ExitCode::kInterrupted) return StopInMidStep(status);
    if (!status.ok()) return AfterError(status);
    if (options_.stop_after > 0 && step - first_step_ + 1 >= options_.stop_after &&
        step < prepared_.num_steps) {
      return StopInMidStep(
          InterruptedError(fmt::format("stopped, as --stop_after={} asks,", options_.stop_after)));
    }
  }
  return absl::OkStatus();
}

// The step before is applied and committed; the one in progress leaves no trace. If the update of
// the step before is delayed, a commit that is none of --commit_every's would change the result.
absl::Status TrainingRun::SaveWhatIsDone() {
  layers().Abandon();
  const int64_t released = layers().released_step();
  if (!prepared_.IsKept() || committed_step() == released) return absl::OkStatus();
  const Plan& plan = prepared_.plan;
  const bool is_delayed = plan.delay_update_from > 0 && released + 1 >= plan.delay_update_from;
  if (is_delayed && released % plan.commit_pace.every_steps != 0) return absl::OkStatus();
  saving_.Begin();  // what lives in RAM may take a while
  return layers().Commit();
}

// `error`, after saving what it has left whole. The run's disk is left alone when it has failed,
// unless there is nothing on it to go back to.
absl::Status TrainingRun::AfterError(const absl::Status& error) {
  // Ranks commit together, and one of them is gone.
  const bool is_alone = environment_.ranks == nullptr;
  if (!prepared_.IsKept() || committed_step() == layers().released_step()) return error;
  const bool one_copy = session_->store().num_slots() == 1;
  const bool is_of_an_export = error == exports_->error() && !exports_->store_failed();
  const bool tries =
      is_alone && (ExitCodeOf(error) != ExitCode::kStorage || one_copy || is_of_an_export);
  const absl::Status saved = tries ? SaveWhatIsDone() : error;
  const bool is_all = committed_step() == layers().released_step();
  if (saved.ok() && is_all) {
    Note(fmt::format("the run is saved after step {}", committed_step()));
  } else if (one_copy) {
    Note(
        fmt::format("the steps after step {} could not be saved, and the run's one copy "
                    "(--durability=none) may be lost with them: {}",
                    committed_step(), MessageOf(saved)));
  } else {
    Note(fmt::format("the steps after step {} are not saved; the run goes on from there{}",
                     committed_step(), tries && !saved.ok() ? ": " + MessageOf(saved) : ""));
  }
  return error;
}

absl::Status TrainingRun::StopInMidStep(const absl::Status& reason, std::string_view go_on_with) {
  FOREBAY_RETURN_IF_ERROR(SaveWhatIsDone());
  FOREBAY_RETURN_IF_ERROR(session_->store().CheckFiles());
  const bool is_all = committed_step() == layers().released_step();
  const std::string saved =
      !prepared_.IsKept()
          ? "Nothing of it is, as --durability=none --export=none ask"
          : fmt::format("{}; continue with the same command and {}",
                        is_all ? "All of it is saved"
                               : fmt::format("What is saved is step {}, of the last "
                                             "commit (--commit_every)",
                                             committed_step()),
                        go_on_with);
  return InterruptedError(fmt::format("{} after step {} of {}. {}", MessageOf(reason),
                                      layers().released_step(), prepared_.num_steps, saved));
}

// How much is written is known when all is saved.
absl::Status TrainingRun::StopForWriteLimit(const absl::Status& reason) {
  const absl::Status stopped = StopInMidStep(reason, "--resume and a larger --max_tbw");
  if (ExitCodeOf(stopped) != ExitCode::kInterrupted) return stopped;
  return InterruptedError(fmt::format("{}. {}", MessageOf(stopped), write_limit_->WhyNoMore()));
}

// A session that an error ended may have writes under way, so that its record stays one that was
// cut off. The count of a run without a record is larger, and never too small.
void TrainingRun::NoteWritten(const absl::Status& status) {
  if (!status.ok() && ExitCodeOf(status) != ExitCode::kInterrupted) return;
  const absl::Status noted = write_limit_->End(committed_step());
  if (!noted.ok()) Note(MessageOf(noted));
}

absl::Status TrainingRun::RunStep(int64_t step) {
  const Stopwatch watch;
  trace_.BeginStep();
  const ActivityTimes waits_before = Waits();
  FOREBAY_ASSIGN_OR_RETURN(const std::span<const MicroBatch> batches, batches_->Read(step));
  const double loss_scale = progress_.loss_scale();
  const auto agree = [&] {
    return AgreeToGoOn(stop_() ? InterruptedError("stopped on request") : absl::OkStatus());
  };
  const auto progress = [&](double fraction) -> absl::Status {
    if (StopsAlone()) return InterruptedError("stopped on request");
    observer_.OnProgress(step, prepared_.num_steps, fraction);
    return absl::OkStatus();
  };
  FOREBAY_ASSIGN_OR_RETURN(
      const StepResult result,
      session_->step().Run({.batches = batches,
                            .loss_scale = loss_scale,
                            .clip = options_.clip,
                            .scalars_of = [this](double norm) { return ScalarsOf(norm); },
                            .before_backward = agree,
                            .progress = progress}));
  const double lr = ScalarsOf(result.gradient_norm).lr;
  FOREBAY_ASSIGN_OR_RETURN(const bool is_update, Advance(step, result));
  Json line_of_step = {{"step", step},
                       {"loss", result.loss},
                       {"grad_norm", result.gradient_norm},
                       {"lr", lr},
                       {"tokens", result.num_tokens}};
  if (progress_.scales_loss()) {
    line_of_step["loss_scale"] = loss_scale;
    line_of_step["skipped"] = !is_update;
  }
  released_line_ = std::move(line_of_step);
  // Here nothing is in flight but what an update that is not committed still writes. So every byte
  // is counted with one step: with that which reads it, or applies its update; or, of those writes,
  // with the next. (What an export reads beside, with the step that it was read beside.)
  trace_.BeforeCounting(step + 1);
  Counters after = ReadCounters();
  FOREBAY_RETURN_IF_ERROR(EndStep(step, is_update));
  if (committed_step() == step) after = ReadCounters();
  const StepCost cost = {.step_s = watch.Seconds(),
                         .waits = Waits() - waits_before,
                         .num_tokens = result.num_tokens,
                         .before = std::exchange(counted_, after),
                         .after = after};
  trace_.EndStep(step, cost, session_->store().inventory(), observer_);
  totals_.Add(cost);
  write_limit_->AfterStep(cost.after.io.write_bytes - cost.before.io.write_bytes);
  const std::string more = options_.save_every == 0 ? write_limit_->CompareWithKernel() : "";
  if (!more.empty()) observer_.OnWarning(more);
  drive_watch_->AfterStep([this](const std::string& line) { Note(line); });
  totals_.last_loss = result.loss;
  Json line = StepLine(released_line_, cost, prepared_);
  if (layers().speculates()) line["recomputed"] = layers().step_was_repeated();
  return AfterStep(step, line);
}

absl::Status TrainingRun::EndStep(int64_t step, bool is_update) {
  const TraceScope trace("end the step");
  const CommitWhen when = prepared_.CommitsAfter(step) ? CommitWhen::kNow : CommitWhen::kByPace;
  return is_update ? layers().Update(released_line_, when) : layers().Skip(released_line_, when);
}

std::string TrainingRun::WhereNotFinite(const StepResult& result) {
  if (result.first_nonfinite_layer < 0) return "the loss";
  return fmt::format("the gradient of '{}'",
                     session_->store().inventory().layers()[result.first_nonfinite_layer].name);
}

absl::Status TrainingRun::AgreeToGoOn(const absl::Status& own) {
  if (environment_.ranks == nullptr) return own;
  FOREBAY_ASSIGN_OR_RETURN(const std::vector<std::string> reasons,
                           environment_.ranks->GatherRecords(MessageOf(own)));
  const auto first = std::ranges::find_if_not(reasons, &std::string::empty);
  return first == reasons.end() ? absl::OkStatus() : InterruptedError(*first);
}

// Whether the step is an update. A loss scale moves; without one every step has to be.
absl::StatusOr<bool> TrainingRun::Advance(int64_t step, const StepResult& result) {
  const bool is_finite = result.first_nonfinite_layer < 0 && std::isfinite(result.loss);
  if (!is_finite && progress_.scales_loss()) {
    FOREBAY_RETURN_IF_ERROR(AfterOverflow(step, WhereNotFinite(result)));
    return false;
  }
  if (!is_finite) {
    // Where that fails, AfterError says what is lost; this error stays the one to report.
    SaveWhatIsDone().IgnoreError();
    return NotFiniteError({step, WhereNotFinite(result), kept_step()}, result.loss);
  }
  FOREBAY_RETURN_IF_ERROR(progress_.Advance(/*overflowed=*/false));
  return true;
}

absl::Status TrainingRun::AfterOverflow(int64_t step, const std::string& where) {
  const double loss_scale = progress_.loss_scale();
  const absl::Status advanced = progress_.Advance(/*overflowed=*/true);
  if (advanced.ok()) {
    Note(fmt::format("step {} is skipped: {} overflowed at loss scale {:.10g}; the next is {:.10g}",
                     step, where, loss_scale, progress_.loss_scale()));
    return absl::OkStatus();
  }
  SaveWhatIsDone().IgnoreError();
  return NotFiniteError({step, where, kept_step()}, advanced, loss_scale);
}

// The words that the commit of the released step carries.
Json TrainingRun::CommitState() {
  Json trainer = TrainerOfStep(prepared_, *session_, released_line_);
  progress_.AddTo(trainer);
  write_limit_->AddTo(trainer);
  return trainer;
}

void TrainingRun::AfterCommit() {
  NoteStore(session_->store(), observer_);
}

absl::Status TrainingRun::AfterStep(int64_t step, Json& line) {
  absl::Status evaluated;
  if (prepared_.EvaluatesAfter(step)) {
    const absl::StatusOr<double> loss = EvaluateHeldOut();
    evaluated = loss.status();
    if (loss.ok()) line["eval_loss"] = totals_.last_eval_loss = *loss;
    counted_ = ReadCounters();  // evaluation is no part of the next step
  }
  // The step itself is done and committed even when its evaluation was interrupted.
  FOREBAY_RETURN_IF_ERROR(metrics_.Append(line.dump()));
  FOREBAY_RETURN_IF_ERROR(evaluated);
  const int64_t done = step - first_step_ + 1;
  line["num_steps"] = prepared_.num_steps;
  line["eta_s"] =
      totals_.seconds / static_cast<double>(done) * static_cast<double>(prepared_.num_steps - step);
  observer_.OnStep(line);
  exports_->Poll();
  FOREBAY_RETURN_IF_ERROR(exports_->error());
  if (!prepared_.SavesAfter(step)) return absl::OkStatus();
  const absl::Status exported = ExportCommitted(Exports());
  if (prepared_.parts != nullptr) counted_ = ReadCounters();  // nor is an export that blocks
  return exported;
}

absl::Status TrainingRun::MakeUpExport() {
  FOREBAY_ASSIGN_OR_RETURN(const bool is_there, exports_->TidyUp());
  const bool is_due = committed_step() > 0 && prepared_.SavesAfter(committed_step());
  return is_due ? ExportCommitted(Exports() && !is_there) : absl::OkStatus();
}

// To OUT/exports: beside the steps that follow, or where ranks divide the state before they go on.
absl::Status TrainingRun::ExportCommitted(bool is_wanted) {
  if (prepared_.parts == nullptr) return is_wanted ? exports_->Start() : absl::OkStatus();
  if (is_wanted) {
    FOREBAY_ASSIGN_OR_RETURN(is_wanted, exports_->HasRoom());
  }
  return ExportOfAllRanks(
      is_wanted, [&](const RankWeights& weights) { return exports_->ExportStep(weights); });
}

// Of the run's end.
absl::Status TrainingRun::ExportResult() {
  exports_->Await();
  FOREBAY_RETURN_IF_ERROR(exports_->error());
  if (prepared_.parts != nullptr) {
    return ExportOfAllRanks(Exports(), [&](const RankWeights& weights) {
      return exports_->ExportResult(weights, prepared_.paths.model);
    });
  }
  if (!Exports()) return absl::OkStatus();
  const StoreSnapshot snapshot(&session_->store());
  return exports_->ExportResult(SnapshotSource(&snapshot), prepared_.paths.model);
}

// Ranks for which none is wanted give their parts.
absl::Status TrainingRun::ExportOfAllRanks(
    bool is_wanted, const std::function<absl::Status(const RankWeights&)>& write) {
  FOREBAY_ASSIGN_OR_RETURN(const bool any_wants, AnyRank(environment_.ranks, is_wanted));
  if (!any_wants) return absl::OkStatus();
  const StoreSnapshot own(&session_->store());
  const RankWeights weights(prepared_.parts.get(), &own, environment_.ranks, [this] {
    return AgreeToGoOn(stop_() ? InterruptedError("stopped on request") : absl::OkStatus());
  });
  return is_wanted ? write(weights) : ReadAllWeights(weights, options_.export_dtype);
}

// An export reads the slot that the step after the next commit writes to (of one slot: that the
// next step does).
absl::Status TrainingRun::BeforeWriting() {
  if (!session_->store().AwaitsSnapshot()) return absl::OkStatus();
  const Stopwatch watch;
  const TraceScope trace(Activity::kExport);
  exports_->Await();
  export_wait_s_ += watch.Seconds();
  return absl::OkStatus();
}

absl::StatusOr<double> TrainingRun::EvaluateHeldOut() {
  FOREBAY_RETURN_IF_ERROR(layers().ShowNewest());
  RunCompute& compute = session_->compute();
  EvaluateOptions evaluate;
  evaluate.rows_per_micro_batch = prepared_.options.batch;
  evaluate.progress = [&](double fraction) -> absl::Status {
    if (StopsAlone()) return InterruptedError("stopped on request");
    observer_.OnPhase("evaluating", fraction);
    return absl::OkStatus();
  };
  FOREBAY_ASSIGN_OR_RETURN(const EvaluationResult result,
                           Evaluate({prepared_.config, compute.compute(), compute.source(),
                                     compute.most_forward_tokens()},
                                    *prepared_.eval_data, evaluate));
  return result.loss;
}

}  // namespace

absl::Status Train(const ResolvedOptions& resolved, const std::function<bool()>& stop,
                   TrainObserver& observer, const TrainEnvironment& environment) {
  TrainingRun run(resolved, stop, observer, environment);
  absl::Status status = run.Run();
  // Before the run ends what it has under way with the others, which wait for this rank. Once they
  // train they stop together.
  const bool stops = ExitCodeOf(status) == ExitCode::kInterrupted && run.HasBegunToTrain();
  if (environment.ranks != nullptr && !status.ok() && !stops) {
    environment.ranks->Abort(status);
  }
  return status;
}

}  // namespace forebay
