#include "forebay/train/plan/choose_settings.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/format.h"

namespace forebay {
namespace {

// The least part of a step that applying gradients at once has to save, as every step is then
// committed, and written.
constexpr double kLeastGain = 0.02;
constexpr double kLeastGainOfASetting = 0.05;

class SpeculationSearch {
 public:
  SpeculationSearch(Plan plan, const TrainOptions& options, const PlanMaker& make)
      : options_(options), make_(make), plan_(std::move(plan)), step_s_(plan_.forecast->step_s) {}

  // The forecast has one valley, but for the size of whole layers: its bottom is looked for in
  // ever smaller strides.
  Plan Run() {
    const auto num_layers = static_cast<int64_t>(plan_.placement.weights.size());
    constexpr int64_t kFirstPoints = 8;
    int64_t stride = std::max<int64_t>(1, num_layers / kFirstPoints);
    for (int64_t count = stride; count <= num_layers; count += stride) Try(count);
    while (stride > 1 && best_count_ > 0) {
      stride = (stride + 1) / 2;
      const int64_t middle = best_count_;
      for (const int64_t count : {middle - stride, middle + stride}) {
        if (count >= 1 && count <= num_layers) Try(count);
      }
    }
    return std::move(plan_);
  }

 private:
  void Try(int64_t num_layers) {
    TrainOptions options = options_;
    options.speculate_layers = num_layers;
    absl::StatusOr<Plan> plan = make_(options);
    // Its gradients do not fit, or it moves bytes of a disk whose speed is not known.
    if (!plan.ok() || !plan->forecast.has_value()) return;
    const double most_s = best_count_ > 0 ? step_s_ : step_s_ * (1 - kLeastGain);
    if (plan->forecast->step_s >= most_s) return;
    step_s_ = plan->forecast->step_s;
    best_count_ = num_layers;
    plan_ = *std::move(plan);
  }

  const TrainOptions& options_;
  const PlanMaker& make_;
  Plan plan_;
  double step_s_;
  int64_t best_count_ = 0;  // 0: the plan is that which the search began with
};

struct Change {
  std::string text;
  TrainOptions options;
};

// The changes by kind, the least of each first.
std::vector<std::vector<Change>> ChangesOf(const Plan& plan, TrainOptions options) {
  options.ram_bytes = plan.ram_budget_bytes;
  std::vector<std::vector<Change>> kinds;
  if (plan.placement.NumUpdated(UpdateTime::kAfterHand) == 0 && options.delay_update_from == 0) {
    Change change = {"--gradients=speculate, for steps that are not clipped", options};
    change.options.gradients = GradientChoice::kSpeculate;
    kinds.push_back({change});
  }
  std::vector<Change>& memory = kinds.emplace_back();
  for (const double factor : {1.25, 1.5, 2.0, 3.0, 4.0}) {
    const double bytes = static_cast<double>(plan.ram_budget_bytes) * factor;
    const int64_t unit = int64_t{1} << (bytes < 8e9 ? 20 : 30);
    Change change = {"", options};
    change.options.ram_bytes = static_cast<int64_t>(bytes) / unit * unit;
    change.text = fmt::format("--ram={}", SizeText(change.options.ram_bytes));
    memory.push_back(change);
  }
  if (options.layout == Layout::kBf16) {
    Change change = {"--layout=bf16-moments, which rounds moments", options};
    change.options.layout = Layout::kBf16Moments;
    kinds.push_back({change});
  }
  Change change = {fmt::format("--accum={}: twice the tokens", 2 * options.accum), options};
  change.options.accum *= 2;
  kinds.push_back({change});
  return kinds;
}

}  // namespace

Plan WithFastestSpeculation(Plan plan, const TrainOptions& options, const PlanMaker& make) {
  const bool is_open = plan.may_speculate && options.speculate_layers == 0;
  if (!is_open || !plan.forecast.has_value()) return plan;
  return SpeculationSearch(std::move(plan), options, make).Run();
}

std::vector<BetterSetting> BetterSettings(const Plan& plan, const TrainOptions& options,
                                          const PlanMaker& make) {
  std::vector<BetterSetting> better;
  if (!plan.forecast.has_value()) return better;
  for (const std::vector<Change>& kind : ChangesOf(plan, options)) {
    for (const Change& change : kind) {
      const absl::StatusOr<Plan> other = make(change.options);
      if (!other.ok() || !other->forecast.has_value()) continue;
      const double least = plan.forecast->tokens_per_s * (1 + kLeastGainOfASetting);
      if (other->forecast->tokens_per_s < least) continue;
      better.push_back({change.text, other->forecast->step_s, other->forecast->tokens_per_s});
      break;  // more of it is not the next better setting
    }
  }
  std::ranges::stable_sort(better, std::ranges::greater{}, &BetterSetting::tokens_per_s);
  return better;
}

}  // namespace forebay
