#include "forebay/train/run/run_report.h"

#include "forebay/memory/process_memory.h"
#include "forebay/train/files/committed_trainer.h"

namespace forebay {
namespace {

int64_t StoreBytes(const TensorStore& store) {
  return Total(TensorStore::DiskBytes(store.tiles(), store.num_slots(), store.scratch_bytes(),
                                      store.files()));
}

}  // namespace

Counters ReadCounters(const PreparedRun& run, RunSession& session) {
  return {run.engine->stats(), session.layers().update_s()};
}

Json TrainerOfStep(const PreparedRun& run, RunSession& session, const Json& metrics) {
  Json trainer = TrainerOf({run.num_steps, run.fingerprint_digest, DigestOf(run.files)});
  trainer["rows_per_step"] = run.rows_per_step;
  if (run.ranks != nullptr) trainer["num_ranks"] = run.ranks->size();
  trainer["seed"] = run.options.seed;
  trainer["kernel"] = session.compute().kernel_identity();
  trainer["metrics"] = metrics;
  return trainer;
}

Json StepLine(Json line, const StepCost& cost, const PreparedRun& run) {
  const Counters& before = cost.before;
  const Counters& after = cost.after;
  const ProcessMemory memory = ReadProcessMemory();
  line["step_s"] = cost.step_s;
  line["tokens_per_s"] = static_cast<double>(cost.num_tokens) / cost.step_s;
  line["compute_s"] = cost.step_s - cost.waits.Total();
  line["io_wait_s"] = cost.waits.Total();
  Json& by_cause = line["waits"] = Json::object();
  for (size_t i = 0; i < kNumActivities; ++i) {
    by_cause[NameOf(static_cast<Activity>(i))] = cost.waits.seconds[i];
  }
  line["optimizer_s"] = after.update_s - before.update_s;
  line["read_bytes"] = after.io.submitted_read_bytes - before.io.submitted_read_bytes;
  line["write_bytes"] = after.io.write_bytes - before.io.write_bytes;
  line["host_peak_bytes"] = run.budget->peak_bytes();
  line["rss_bytes"] = memory.peak_bytes;
  return line;
}

void SessionTotals::Add(const StepCost& cost) {
  ++num_steps;
  seconds += cost.step_s;
  num_tokens += cost.num_tokens;
  ++read_bytes_[cost.after.io.submitted_read_bytes - cost.before.io.submitted_read_bytes];
  ++write_bytes_[cost.after.io.write_bytes - cost.before.io.write_bytes];
}

int64_t SessionTotals::Median(const StepsByBytes& steps) {
  int64_t num_steps = 0;
  for (const auto& [bytes, count] : steps) num_steps += count;
  int64_t behind = (num_steps - 1) / 2;  // of two in the middle the smaller one
  for (const auto& [bytes, count] : steps) {
    if (behind < count) return bytes;
    behind -= count;
  }
  return 0;
}

Json RunSummary(const SessionTotals& totals, int64_t num_skipped, const PreparedRun& run,
                RunSession& session) {
  const int64_t steps = totals.num_steps;
  const TensorStore& store = session.store();
  const int64_t params = store.inventory().num_params();
  const int64_t read = totals.median_read_bytes();
  const int64_t write = totals.median_write_bytes();
  Json summary;
  summary["steps"] = steps;
  summary["num_steps"] = run.num_steps;
  if (num_skipped >= 0) summary["skipped_steps"] = num_skipped;
  summary["loss"] = totals.last_loss;
  if (!std::isnan(totals.first_eval_loss)) summary["eval_loss_before"] = totals.first_eval_loss;
  if (!std::isnan(totals.last_eval_loss)) summary["eval_loss"] = totals.last_eval_loss;
  summary["tokens_per_s"] =
      totals.seconds > 0 ? static_cast<double>(totals.num_tokens) / totals.seconds : 0.0;
  summary["seconds"] = totals.seconds;
  summary["params"] = params;
  summary["read_bytes_per_step"] = read;
  summary["write_bytes_per_step"] = write;
  summary["read_bytes_per_param"] = static_cast<double>(read) / static_cast<double>(params);
  summary["write_bytes_per_param"] = static_cast<double>(write) / static_cast<double>(params);
  summary["rss_bytes"] = ReadProcessMemory().peak_bytes;
  summary["ram_budget_bytes"] = run.plan.ram_budget_bytes;
  summary["engine"] = run.engine->name();
  summary["stores"] = store.directories();
  summary["store_bytes"] = StoreBytes(store);
  summary["host_weight_bytes"] = run.plan.placement.host_weight_bytes;
  summary["host_state_bytes"] = run.plan.placement.host_state_bytes;
  summary["gpu_state_bytes"] = run.plan.placement.device_state_bytes;
  summary["run"] = run.paths.out;
  summary["model"] = run.options.export_format == ExportFormat::kNone ? "" : run.paths.model;
  return summary;
}

}  // namespace forebay
