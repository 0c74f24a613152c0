#include "forebay/train/plan/choose_settings.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/format.h"
#include "forebay/offload/largest_term.h"

namespace forebay {
namespace {

// The least part of a step that applying gradients at once has to save, as every step is then
// committed, and written; and that saving activations has to save, as another run may use memory.
constexpr double kLeastGain = 0.02;
constexpr double kLeastGainOfASetting = 0.05;

// By this one plan is faster than another.
struct Measure {
  double StepForecast::*seconds = &StepForecast::step_s;
  double least_gain = kLeastGain;  // over the first plan

  double Of(const Plan& plan) const { return *plan.forecast.*seconds; }
};
// The number of layers whose gradients are applied at once is chosen later, and moves the disk's
// time from pass to pass, so that a step comes near its bound. What it gains is seen then.
constexpr Measure kBeforeSpeculation = {&StepForecast::bound_s, 0};

// The fastest of plans that differ in a number.
class CountSearch {
 public:
  // The plan of another number; it may fail.
  using Maker = std::function<absl::StatusOr<Plan>(int64_t count)>;

  // `plan`: the first; has a forecast.
  explicit CountSearch(Plan plan, const Measure& measure = {})
      : measure_(measure), plan_(std::move(plan)), least_s_(measure.Of(plan_)) {}

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
    const double most_s = best_count_ > 0 ? least_s_ : least_s_ * (1 - measure_.least_gain);
    if (measure_.Of(*plan) >= most_s) return;
    least_s_ = measure_.Of(*plan);
    best_count_ = count;
    plan_ = *std::move(plan);
  }

  const Measure measure_;
  Plan plan_;
  double least_s_;
  int64_t best_count_ = 0;
};

// All blocks compute `recompute` again, but for the last `num_others`, which compute nothing.
TrainOptions WithRecompute(TrainOptions options, Recompute recompute, int64_t num_blocks,
                           int64_t num_others) {
  options.recompute = num_others == num_blocks ? Recompute::kNone : recompute;
  options.recompute_layers = num_others == num_blocks ? 0 : num_blocks - num_others;
  return options;
}

// In segments of two layers and more, for what else their memory can hold. `options`: with what is
// chosen.
Plan WithFastestSegments(Plan plan, int64_t num_blocks, const PlanMaker& make,
                         const Measure& measure, TrainOptions& options) {
  const TrainOptions given = options;
  // Ranks that gather weights would have to choose the same reads, each by its own speeds.
  if (given.num_ranks > 1) return plan;
  const auto in_segments = [&](int64_t count) {
    TrainOptions other = given;
    other.number_checkpoints = (num_blocks + count) / (count + 1);
    return other;
  };
  // Longer segments have more activations at one time again, and compute more.
  const auto longest = static_cast<int64_t>(std::ceil(std::sqrt(num_blocks)));
  CountSearch search(std::move(plan), measure);
  const int64_t best =
      search.Run(longest - 1, [&](int64_t count) { return make(in_segments(count)); });
  if (best > 0) options = in_segments(best);
  return search.Take();
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
  TrainOptions in_segments = given;
  Plan fastest = WithFastestSegments(search.Take(), num_blocks, make, Measure(), in_segments);
  if (in_segments.number_checkpoints > 0) options = in_segments;
  return fastest;
}

// But for staging, which takes what the rest leaves.
bool DifferInActivationsAlone(const Plan& one, const Plan& other) {
  const auto rest = [](const Plan& plan) {
    return std::tuple(plan.read_bytes_per_step, plan.write_bytes_per_step,
                      plan.placement.host_weight_bytes, plan.placement.host_state_bytes,
                      plan.placement.host_gradient_bytes, plan.num_gradient_tiles,
                      plan.window.num_block_buffers, plan.window.num_large_buffers);
  };
  return rest(one) == rest(other);
}

// For machines whose speeds are not known: as many blocks compute nothing again as memory has room
// for that nothing else takes. `plan` computes all again.
Plan WithSpareMemoryTaken(Plan plan, const TrainOptions& options, int64_t num_blocks,
                          const PlanMaker& make) {
  int64_t most = 0, too_many = num_blocks + 1;
  while (too_many - most > 1) {
    const int64_t count = (most + too_many) / 2;
    absl::StatusOr<Plan> other = make(WithRecompute(options, Recompute::kAll, num_blocks, count));
    if (other.ok() && DifferInActivationsAlone(*other, plan)) {
      most = count;
      plan = *std::move(other);
    } else {
      too_many = count;
    }
  }
  return plan;
}

// The first plan does not fit for want of memory: the second is taken if it fits or lacks less.
absl::StatusOr<Plan> OneThatFits(absl::StatusOr<Plan> first, absl::StatusOr<Plan> second) {
  if (second.ok()) return second;
  const bool lacks_memory = LeastBytesOf(second.status()) > 0;
  return lacks_memory && LacksLess(second.status(), first.status()) ? second : first;
}

bool LeavesSpeculationOpen(const Plan& plan, const TrainOptions& options) {
  return plan.may_speculate && options.speculate_layers == 0;
}

Plan WithFastestSpeculation(Plan plan, const TrainOptions& options, const PlanMaker& make) {
  if (!LeavesSpeculationOpen(plan, options)) return plan;
  const auto num_layers = static_cast<int64_t>(plan.placement.weights.size());
  CountSearch search(std::move(plan));
  search.Run(num_layers, [&](int64_t count) {
    TrainOptions other = options;
    other.speculate_layers = count;
    return make(other);
  });
  return search.Take();
}

// A GPU computes all of a layer again, and may do so in segments.
Plan WithFastestSettingsOfGpu(Plan plan, const TrainOptions& options, int64_t num_blocks,
                              const PlanMaker& make) {
  TrainOptions chosen = options;
  const Measure measure = LeavesSpeculationOpen(plan, options) ? kBeforeSpeculation : Measure();
  Plan in_segments = WithFastestSegments(plan, num_blocks, make, measure, chosen);
  plan = WithFastestSpeculation(std::move(plan), options, make);
  if (chosen.number_checkpoints == 0) return plan;
  in_segments = WithFastestSpeculation(std::move(in_segments), chosen, make);
  const double most_s = plan.forecast->step_s * (1 - kLeastGain);
  return in_segments.forecast->step_s < most_s ? in_segments : plan;
}

struct Change {
  std::string text;
  TrainOptions options;
};

// The changes by kind, the least of each first.
std::vector<std::vector<Change>> ChangesOf(const Plan& plan, TrainOptions options,
                                           int64_t available_bytes) {
  options.ram_bytes = plan.ram_budget_bytes;
  std::vector<std::vector<Change>> kinds;
  if (plan.placement.NumUpdated(UpdateTime::kAfterHand) == 0 && options.delay_update_from == 0) {
    Change change = {"--gradients=speculate, for steps that are not clipped", options};
    change.options.gradients = GradientChoice::kSpeculate;
    kinds.push_back({change});
  }
  const bool says_segments = options.number_checkpoints > 0;
  if (options.recompute.has_value() || says_segments) {
    Change change = {!says_segments                  ? "--recompute=auto"
                     : options.recompute.has_value() ? "--recompute=auto --set=number_checkpoints=0"
                                                     : "--set=number_checkpoints=0",
                     options};
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
    const bool is_there = available_bytes == 0 || change.options.ram_bytes <= available_bytes;
    change.text = fmt::format("--ram={}{}", SizeText(change.options.ram_bytes),
                              is_there ? "" : ", which is more memory than there is");
    memory.push_back(change);
  }
  if (options.layout == Layout::kBf16) {
    Change change = {"--layout=bf16-moments, which rounds moments", options};
    change.options.layout = Layout::kBf16Moments;
    kinds.push_back({change});
  }
  if (options.activations_dtype == DType::kF32 && !plan.on_gpu()) {
    Change change = {"--set=activations_dtype=bf16, which rounds activations", options};
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
  const bool is_open = !options.recompute.has_value() && options.number_checkpoints == 0;
  if (!plan.forecast.has_value()) {
    if (!is_open || plan.on_gpu()) return plan;
    return WithSpareMemoryTaken(std::move(plan), options, num_blocks, make);
  }
  TrainOptions chosen = options;
  if (is_open && plan.on_gpu()) {
    return WithFastestSettingsOfGpu(std::move(plan), options, num_blocks, make);
  }
  if (is_open) plan = WithFastestRecompute(std::move(plan), num_blocks, make, chosen);
  return WithFastestSpeculation(std::move(plan), chosen, make);
}

absl::StatusOr<Plan> WithActivationsThatFit(const TrainOptions& options, const PlanMaker& make) {
  absl::StatusOr<Plan> in_ram = make(options);
  // Ranks would have to choose the same.
  const bool is_open = options.activations_tier == ActivationsTier::kAuto &&
                       options.number_checkpoints == 0 && options.num_ranks == 1 &&
                       options.data_parallel == 1;
  const int64_t least_in_ram = LeastBytesOf(in_ram.status());
  if (!is_open || least_in_ram == 0) return in_ram;  // 0: something else than memory lacks
  TrainOptions spilling = options;
  spilling.activations_tier = ActivationsTier::kNvme;
  // Small activations take more memory as whole blocks.
  return OneThatFits(std::move(in_ram), make(spilling));
}

absl::StatusOr<Plan> WithVocabularyThatFits(
    VocabularyParts most, const std::function<absl::StatusOr<Plan>(VocabularyParts parts)>& make) {
  absl::StatusOr<Plan> whole = make(VocabularyParts::kNone);
  if (most == VocabularyParts::kNone) return whole;
  if (!whole.ok()) {
    // Weights in pieces are read more often.
    absl::StatusOr<Plan> fits = std::move(whole);
    for (const auto parts : {VocabularyParts::kGradients, VocabularyParts::kWeightsToo}) {
      if (LeastBytesOf(fits.status()) == 0 || parts > most) break;
      fits = OneThatFits(std::move(fits), make(parts));
    }
    return fits;
  }
  if (!whole->forecast.has_value()) return whole;
  absl::StatusOr<Plan> in_parts = make(VocabularyParts::kGradients);
  const bool is_faster = in_parts.ok() && in_parts->forecast.has_value() &&
                         in_parts->forecast->step_s < whole->forecast->step_s * (1 - kLeastGain);
  return is_faster ? in_parts : whole;
}

std::vector<BetterSetting> BetterSettings(const Plan& plan, const TrainOptions& options,
                                          int64_t available_bytes, const PlanMaker& make) {
  std::vector<BetterSetting> better;
  if (!plan.forecast.has_value()) return better;
  for (const std::vector<Change>& kind : ChangesOf(plan, options, available_bytes)) {
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
