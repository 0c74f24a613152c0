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
// committed, and written; and that saving activations has to save, as another run may use memory.
constexpr double kLeastGain = 0.02;
constexpr double kLeastGainOfASetting = 0.05;

// The fastest of plans that differ in a number.
class CountSearch {
 public:
  // The plan of another number; it may fail.
  using Maker = std::function<absl::StatusOr<Plan>(int64_t count)>;

  // `plan`: the first; has a forecast.
  explicit CountSearch(Plan plan) : plan_(std::move(plan)), step_s_(plan_.forecast->step_s) {}

  // Numbers from 1 to `most`. The forecast has one valley, but for the size of whole layers: its
  // bottom is looked for in ever smaller strides. Returns its number; 0: no plan is faster than
  // what was known before.
  int64_t Run(int64_t most, const Maker& make) {
    best_count_ = 0;
    constexpr int64_t kFirstPoints = 8;
    int64_t stride = std::max<int64_t>(1, most / kFirstPoints);
    for (int64_t count = stride; count <= most; count += stride) Try(count, make);
    while (stride > 1 && best_count_ > 0) {
      stride = (stride + 1) / 2;
      const int64_t middle = best_count_;
      for (const int64_t count : {middle - stride, middle + stride}) {
        if (count >= 1 && count <= most) Try(count, make);
      }
    }
    return best_count_;
  }

  Plan Take() { return std::move(plan_); }

 private:
  void Try(int64_t count, const Maker& make) {
    absl::StatusOr<Plan> plan = make(count);
    // It does not fit, or moves bytes of a disk whose speed is not known.
    if (!plan.ok() || !plan->forecast.has_value()) return;
    const double most_s = best_count_ > 0 ? step_s_ : step_s_ * (1 - kLeastGain);
    if (plan->forecast->step_s >= most_s) return;
    step_s_ = plan->forecast->step_s;
    best_count_ = count;
    plan_ = *std::move(plan);
  }

  Plan plan_;
  double step_s_;
  int64_t best_count_ = 0;
};

// All blocks compute `recompute` again, but for the last `num_others`, which compute nothing.
TrainOptions WithRecompute(TrainOptions options, Recompute recompute, int64_t num_blocks,
                           int64_t num_others) {
  options.recompute = num_others == num_blocks ? Recompute::kNone : recompute;
  options.recompute_layers = num_others == num_blocks ? 0 : num_blocks - num_others;
  return options;
}

// `options`: with what is chosen.
Plan WithFastestRecompute(Plan plan, int64_t num_blocks, const PlanMaker& make,
                          TrainOptions& options) {
  const TrainOptions given = options;
  CountSearch search(std::move(plan));
  for (const Recompute recompute : {Recompute::kAll, Recompute::kAttention}) {
    // The number of blocks that save more than the first choice has them.
    const auto options_of = [&](int64_t count) {
      const int64_t num_others = recompute == Recompute::kAll ? count : count - 1;
      return WithRecompute(given, recompute, num_blocks, num_others);
    };
    const int64_t best =
        search.Run(num_blocks, [&](int64_t count) { return make(options_of(count)); });
    if (best > 0) options = options_of(best);
  }
  // Ranks that gather weights would have to choose the same reads, each by its own speeds.
  if (given.num_ranks > 1) return search.Take();
  // Segments of two layers and more, for what else their memory can hold.
  const auto in_segments = [&](int64_t count) {
    TrainOptions other = given;
    other.number_checkpoints = (num_blocks + count) / (count + 1);
    return other;
  };
  const int64_t best =
      search.Run(num_blocks / 2, [&](int64_t count) { return make(in_segments(count)); });
  if (best > 0) options = in_segments(best);
  return search.Take();
}

Plan WithFastestSpeculation(Plan plan, const TrainOptions& options, const PlanMaker& make) {
  const auto num_layers = static_cast<int64_t>(plan.placement.weights.size());
  CountSearch search(std::move(plan));
  search.Run(num_layers, [&](int64_t count) {
    TrainOptions other = options;
    other.speculate_layers = count;
    return make(other);
  });
  return search.Take();
}

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
  if ((options.recompute.has_value() || options.number_checkpoints > 0) && !plan.on_gpu()) {
    Change change = {"--recompute=auto", options};
    change.options.recompute = std::nullopt;
    change.options.recompute_layers = change.options.number_checkpoints = 0;
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
  if (options.activations_dtype == DType::kF32 && !plan.on_gpu()) {
    Change change = {"--activations_dtype=bf16, which rounds activations", options};
    change.options.activations_dtype = DType::kBF16;
    kinds.push_back({change});
  }
  Change change = {fmt::format("--accum={}: twice the tokens", 2 * options.accum), options};
  change.options.accum *= 2;
  kinds.push_back({change});
  return kinds;
}

}  // namespace

Plan WithFastestSettings(Plan plan, const TrainOptions& options, int num_blocks,
                         const PlanMaker& make) {
  TrainOptions chosen = options;
  const bool is_open = !options.recompute.has_value() && options.number_checkpoints == 0;
  if (is_open && !plan.on_gpu() && plan.forecast.has_value()) {
    plan = WithFastestRecompute(std::move(plan), num_blocks, make, chosen);
  }
  if (plan.may_speculate && options.speculate_layers == 0 && plan.forecast.has_value()) {
    plan = WithFastestSpeculation(std::move(plan), chosen, make);
  }
  return plan;
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
