#include "forebay/train/report/report_events.h"

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "forebay/train/report/event_file.h"

namespace forebay {
namespace {

constexpr char kWaits[] = "waits.";

struct ScalarColumn {
  std::string tag;
  std::vector<double> values;
};

std::vector<ScalarColumn> ColumnsOf(const MetricsTable& metrics) {
  std::vector<ScalarColumn> scalars;
  for (const char* name : {"loss", "eval_loss", "lr", "grad_norm", "tokens_per_s", "step_s"}) {
    scalars.push_back({name, metrics.Values(name)});
  }
  for (const std::string& name : metrics.names()) {
    if (!name.starts_with(kWaits)) continue;
    // TensorBoard groups tags by what is before the slash.
    scalars.push_back({"waits/" + name.substr(sizeof(kWaits) - 1), metrics.Values(name)});
  }
  return scalars;
}

bool FitsFloat(double value) {
  return std::abs(value) <= std::numeric_limits<float>::max();
}

double SecondsOf(double value) {
  return std::isfinite(value) ? value : 0;
}

}  // namespace

std::string RunEvents(const MetricsTable& metrics, double end_time_s) {
  const std::vector<ScalarColumn> scalars = ColumnsOf(metrics);
  const std::vector<double> step_s = metrics.Values("step_s");
  double time_s = end_time_s;
  for (const double seconds : step_s) time_s -= SecondsOf(seconds);
  EventFile file(time_s);
  for (size_t row = 0; row < metrics.steps().size(); ++row) {
    time_s += SecondsOf(step_s[row]);
    std::vector<std::pair<std::string, double>> present;
    for (const ScalarColumn& scalar : scalars) {
      if (FitsFloat(scalar.values[row])) present.emplace_back(scalar.tag, scalar.values[row]);
    }
    if (!present.empty()) file.Add(time_s, metrics.steps()[row], present);
  }
  return file.contents();
}

}  // namespace forebay
