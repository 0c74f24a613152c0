#include "forebay/tools/swap_bench/step_text.h"

#include "fmt/format.h"
#include "forebay/aio/open_engine.h"
#include "forebay/base/format.h"
#include "forebay/tools/swap_bench/bench_table.h"

namespace forebay {
namespace {

std::string SecondsText(const Spread& seconds, int num_steps) {
  std::string text = fmt::format("{:.3g} s", seconds.median);
  if (num_steps > 1) text += fmt::format(" ({:.3g}..{:.3g})", seconds.min, seconds.max);
  return text;
}

std::string Percent(double share) {
  return fmt::format("{:.0f} %", share * 100);
}

std::string RateText(const Spread& gbps) {
  std::string text = fmt::format("{:.2f} GB/s", gbps.median);
  if (gbps.max > gbps.min) text += fmt::format(" ({:.2f}..{:.2f})", gbps.min, gbps.max);
  return text;
}

int64_t StepsUntil(double rated_tbw, const OffloadPlan& plan) {
  return static_cast<int64_t>(rated_tbw * 1e12 / static_cast<double>(plan.write_bytes_per_step));
}

// How several folders share the store.
std::string StripesText(const StepBenchReport& report) {
  const StripeWeights& weights = report.options.replay.stripe_weights;
  if (weights.size() < 2) return "";
  std::string text;
  for (size_t i = 0; i < weights.size(); ++i) {
    text +=
        fmt::format("{}{} {}", i == 0 ? "" : ", ", report.options.targets[i].directory,
                    Percent(static_cast<double>(weights[i]) / static_cast<double>(Total(weights))));
  }
  return fmt::format("striped    {} ({})\n", text, report.weights_origin);
}

// What was really done, where it is not a step of the whole model on a whole store.
std::string MethodText(const StepBenchReport& report) {
  std::string text = fmt::format(
      "replayed   {} step{} of {}{} {}\n", report.num_steps, report.num_steps == 1 ? "" : "s",
      report.sliced() ? fmt::format("a slice of {} of the {} blocks", report.num_blocks,
                                    report.options.replay.num_blocks())
                      : std::string("the whole model"),
      report.num_steps == 1 ? " in" : ", each in", SecondsText(report.slice_s, report.num_steps));
  if (report.sliced()) {
    text += fmt::format(
        "           the step above is EXTRAPOLATED from it, in proportion to the bytes ({} of "
        "{})\n",
        FormatBytes(report.slice_transfers.read_bytes + report.slice_transfers.write_bytes),
        FormatBytes(report.whole.read_bytes_per_step + report.whole.write_bytes_per_step));
  }
  if (report.folded()) {
    text += fmt::format("           a file of {}{} stood for the store of {}\n",
                        FormatBinaryBytes(report.file_bytes),
                        report.options.targets.size() > 1 ? " in each folder" : "",
                        FormatBytes(report.whole.nvme_bytes));
  }
  return text;
}

}  // namespace

std::string StepText(const StepBenchReport& report, const std::string& model, double rated_tbw,
                     const std::string& version) {
  const ReplayInputs& inputs = report.options.replay;
  const int64_t read_bytes = report.whole.read_bytes_per_step;
  const int64_t write_bytes = report.whole.write_bytes_per_step;
  const auto params = static_cast<double>(inputs.inventory.num_params());
  const auto total = static_cast<double>(read_bytes + write_bytes);
  std::string text = MachineText(report.bench, version);
  text += fmt::format("\nmodel      {}   {} params   {} blocks   layout {}   durability {}\n",
                      model, FormatCount(inputs.inventory.num_params()), inputs.num_blocks(),
                      NameOf(inputs.offload.layout), NameOf(inputs.offload.durability));
  text += fmt::format(
      "placement  weights and state{} on NVMe, gradients {}; {}\n",
      report.whole.activations.num_spilled > 0
          ? fmt::format(" (and {} activations of {})", report.whole.activations.num_spilled,
                        FormatBytes(report.whole.activations.activation_bytes))
          : "",
      inputs.offload.gradients_tier == TierChoice::kHost ? "in RAM" : "on NVMe",
      report.options.compute == ReplayCompute::kNone ? "I/O alone" : "with the AdamW update");
  text += StripesText(report);
  text +=
      fmt::format("step       {}{} at {:.2f} GB/s\n", SecondsText(report.step_s, report.num_steps),
                  report.sliced() ? ", extrapolated," : "", total / report.step_s.median / 1e9);
  text += fmt::format("per step   {} read + {} written ({:.1f} + {:.1f} B/param)\n",
                      FormatBytes(read_bytes), FormatBytes(write_bytes),
                      static_cast<double>(read_bytes) / params,
                      static_cast<double>(write_bytes) / params);
  text += fmt::format("time       {} reading, {} writing; {} waiting to commit",
                      Percent(report.reading), Percent(report.writing), Percent(report.committing));
  if (report.options.compute == ReplayCompute::kAdamW) {
    text += fmt::format(", {} in the update", Percent(report.updating));
  }
  text += fmt::format("\nwear       {} TBW = {} steps\n", rated_tbw,
                      StepsUntil(rated_tbw, report.whole));
  text += MethodText(report);
  text += fmt::format("engine     {}\nmemory     {} of buffers\n", report.engine_line,
                      FormatBinaryBytes(report.peak_bytes));
  return text + NotesText(report.bench.warnings);
}

std::string StepCsv(const StepBenchReport& report, double rated_tbw) {
  const ReplayInputs& inputs = report.options.replay;
  const OffloadPlan& whole = report.whole;
  return fmt::format(
      "params,blocks,layout,gradients,compute,engine,seconds_median,seconds_min,seconds_max,"
      "read_bytes,write_bytes,reading,writing,committing,steps_until_tbw,extrapolated,"
      "replayed_blocks,replayed_steps,durability\n"
      "{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n",
      inputs.inventory.num_params(), inputs.num_blocks(), NameOf(inputs.offload.layout),
      inputs.offload.gradients_tier == TierChoice::kHost ? "ram" : "nvme",
      report.options.compute == ReplayCompute::kNone ? "none" : "adamw", report.engine,
      report.step_s.median, report.step_s.min, report.step_s.max, whole.read_bytes_per_step,
      whole.write_bytes_per_step, report.reading, report.writing, report.committing,
      StepsUntil(rated_tbw, whole), report.sliced(), report.num_blocks, report.num_steps,
      NameOf(inputs.offload.durability));
}

std::string TuneText(const TuneReport& tuned, const std::string& version) {
  std::string text = RunsText(tuned.report, version);
  for (size_t i = 0; i < tuned.profile.devices.size(); ++i) {
    const DeviceProfile& device = tuned.profile.devices[i];
    const TunedRates& rates = tuned.rates[i];
    text += fmt::format(
        "tuned {}: engine {}, blocks of {}, in flight {} reading and {} writing, turns of {}\n"
        "  reads {}, writes {}, mixed {}{}, flush {:.1f} ms\n",
        device.directory, NameOf(device.engine), SizeText(device.block_bytes),
        SizeText(device.inflight_read_bytes), SizeText(device.inflight_write_bytes),
        SizeText(device.burst_bytes), RateText(rates.reads), RateText(rates.writes),
        RateText(rates.mixed),
        rates.num_turns > 0 ? fmt::format(" of {} turns", rates.num_turns) : "", device.flush_ms);
    text += fmt::format("  for DeepSpeed: {}\n", DeepSpeedAio(device).dump());
  }
  return text + NotesText(tuned.report.warnings);
}

}  // namespace forebay
