#include "forebay/tools/train_output.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <limits>

#include "fmt/format.h"
#include "forebay/base/format.h"
#include "forebay/tools/print.h"

namespace forebay {
namespace {

// A number of `json`, 0 when it is missing or null.
double Number(const Json& json, const char* key) {
  return json.contains(key) && json.at(key).is_number() ? json.at(key).get<double>() : 0.0;
}

std::string LossText(const Json& json, const char* key) {
  const double loss = json.contains(key) && json.at(key).is_number()
                          ? json.at(key).get<double>()
                          : std::numeric_limits<double>::quiet_NaN();
  return std::isfinite(loss) ? fmt::format("{:.4f}", loss) : "not finite";
}

int64_t Bytes(const Json& json, const char* key) {
  return static_cast<int64_t>(Number(json, key));
}

std::string InUnits(double bytes, double unit_bytes) {
  const double units = bytes / unit_bytes;
  return fmt::format("{:.{}f}", units, units < 0.1 ? 3 : 1);
}

std::string Gigabytes(double bytes) {
  return InUnits(bytes, 1e9);
}

std::string Gibibytes(double bytes) {
  return InUnits(bytes, int64_t{1} << 30);
}

std::string LossLine(const Json& summary) {
  std::string line = fmt::format("loss       {} in the last step", LossText(summary, "loss"));
  if (summary.contains("eval_loss_before") && summary.contains("eval_loss")) {
    line += fmt::format("; held-out {} before, {} after", LossText(summary, "eval_loss_before"),
                        LossText(summary, "eval_loss"));
  } else if (summary.contains("eval_loss")) {
    line += fmt::format("; held-out {}", LossText(summary, "eval_loss"));
  }
  return line + "\n";
}

std::string NextCommands(const std::string& run, const std::string& model) {
  if (model.empty()) {
    return fmt::format(
        "next       forebay inspect {0}\n           forebay inspect {0} --hash\n           forebay "
        "clean {0}\n",
        ShellQuoted(run));
  }
  return fmt::format(
      "next       forebay generate --model={0} --prompt='Once upon a time'\n"
      "           forebay eval --model={0} --data=FILE\n"
      "           forebay inspect {0} --tensors\n",
      ShellQuoted(model));
}

}  // namespace

std::string FormatStep(const Json& metrics, int64_t ram_budget_bytes) {
  const double step_s = Number(metrics, "step_s");
  std::string line = fmt::format(
      "step {}/{} | loss {} | gnorm {}{} | lr {:.2g} | {} | {:.0f} tok/s | nvme r{} w{} GB | "
      "io wait {:.0f}%",
      Bytes(metrics, "step"), Bytes(metrics, "num_steps"), LossText(metrics, "loss"),
      metrics.value("skipped", false) ? "overflow"
                                      : fmt::format("{:.3g}", Number(metrics, "grad_norm")),
      metrics.contains("loss_scale")
          ? fmt::format(" | scale {:.10g}", Number(metrics, "loss_scale"))
          : "",
      Number(metrics, "lr"), FormatDuration(step_s), Number(metrics, "tokens_per_s"),
      Gigabytes(Number(metrics, "read_bytes")), Gigabytes(Number(metrics, "write_bytes")),
      step_s > 0 ? 100 * Number(metrics, "io_wait_s") / step_s : 0.0);
  line += fmt::format(" | ram {}/{} GiB", Gibibytes(Number(metrics, "rss_bytes")),
                      Gibibytes(static_cast<double>(ram_budget_bytes)));
  line += fmt::format(" | eta {}", FormatDuration(Number(metrics, "eta_s")));
  if (metrics.contains("eval_loss"))
    line += fmt::format(" | held-out {}", LossText(metrics, "eval_loss"));
  return line;
}

std::string FormatSummary(const Json& summary) {
  const std::string run = summary.value("run", "");
  const std::string model = summary.value("model", "");
  const bool any_steps = Bytes(summary, "steps") > 0;
  std::string text =
      any_steps
          ? fmt::format("\ndone       {} steps in {}, {:.0f} tokens/s\n", Bytes(summary, "steps"),
                        FormatDuration(Number(summary, "seconds")), Number(summary, "tokens_per_s"))
          : fmt::format("\ndone       nothing was left to train: all {} steps are committed\n",
                        Bytes(summary, "num_steps"));
  text += LossLine(summary);
  if (Bytes(summary, "skipped_steps") > 0) {
    text += fmt::format("skipped    {} of the run's {} steps, as their gradients overflowed fp16\n",
                        Bytes(summary, "skipped_steps"), Bytes(summary, "num_steps"));
  }
  if (any_steps) {
    text += fmt::format(
        "disk       {} read + {} written per step ({:.1f} + {:.1f} bytes per parameter, {} "
        "parameters)\n",
        FormatBytes(Bytes(summary, "read_bytes_per_step")),
        FormatBytes(Bytes(summary, "write_bytes_per_step")),
        Number(summary, "read_bytes_per_param"), Number(summary, "write_bytes_per_param"),
        FormatCount(Bytes(summary, "params")));
  }
  text += fmt::format("memory     {} at the peak, of a budget of {}\n",
                      FormatBinaryBytes(Bytes(summary, "rss_bytes")),
                      FormatBinaryBytes(Bytes(summary, "ram_budget_bytes")));
  const int64_t in_ram = Bytes(summary, "host_weight_bytes") + Bytes(summary, "host_state_bytes");
  const int64_t on_gpu = Bytes(summary, "gpu_state_bytes");
  std::string in_memory = in_ram > 0 ? fmt::format("{} of it in RAM", FormatBytes(in_ram)) : "";
  if (on_gpu > 0) {
    in_memory +=
        fmt::format("{}{} of it on the GPU", in_ram > 0 ? " and " : "", FormatBytes(on_gpu));
  }
  const auto stores = summary.value("stores", std::vector<std::string>());
  text += fmt::format("state      {} in {}{}\n", FormatBytes(Bytes(summary, "store_bytes")),
                      fmt::join(stores, " and "),
                      in_memory.empty() ? std::string(", none of it in RAM")
                                        : fmt::format(", and {} while training", in_memory));
  text += fmt::format("           give that space back with: forebay clean {}\n", ShellQuoted(run));
  if (!model.empty()) text += fmt::format("model      {}\n", model);
  return text + NextCommands(run, model);
}

void TrainOutput::OnPlan(const std::string& table, const Json& plan) {
  ram_budget_bytes_ = Bytes(plan, "ram_budget_bytes");
  options_.json ? PrintEvent("plan", {{"plan", plan}}) : PrintResult(table);
}

void TrainOutput::OnPhase(const std::string& phase, double fraction) {
  if (options_.live) return live_.Show(phase, fraction);
  // Without a terminal a phase is announced once.
  if (phase != phase_) PrintTo(options_.progress, "{}\n", phase);
  phase_ = phase;
  live_.Show(phase, fraction);
}

void TrainOutput::OnProgress(int64_t step, int64_t num_steps, double fraction) {
  phase_.clear();
  if (options_.live) live_.Show(fmt::format("step {}/{}", step, num_steps), fraction);
}

void TrainOutput::OnStep(const Json& metrics) {
  phase_.clear();
  options_.json ? PrintEvent("step", metrics)
                : PrintResult(FormatStep(metrics, ram_budget_bytes_) + "\n");
}

void TrainOutput::OnNote(const std::string& line) {
  if (options_.json) return PrintEvent("note", {{"text", line}});
  live_.Clear();
  PrintTo(options_.progress, "{}\n", line);
}

// Other threads may be in the middle of a line, so this one is a write of its own, on a new one.
void TrainOutput::OnWarning(const std::string& line) {
  PrintTo(options_.progress, "\nforebay: warning: {}\n", line);
}

void TrainOutput::OnDone(const Json& summary) {
  options_.json ? PrintEvent("done", summary) : PrintResult(FormatSummary(summary));
}

// Results and the live line may share a terminal; and whoever reads a pipe or a log sees a step
// when it happened.
void TrainOutput::PrintResult(const std::string& text) {
  live_.Clear();
  PrintTo(options_.results, "{}", text);
  std::fflush(options_.results);
}

void TrainOutput::PrintEvent(const char* event, const Json& fields) {
  Json line = {{"event", event}};
  line.update(fields);
  PrintResult(line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace forebay
