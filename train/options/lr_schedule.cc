#include "forebay/train/options/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "forebay/base/check.h"

namespace forebay {
namespace {

double ArgOr(const LrScheduleOptions& options, std::string_view name, double otherwise) {
  const auto found = options.args.find(name);
  return found == options.args.end() ? otherwise : found->second;
}

// From 1 at progress 0 to 0 at progress 1.
double CosineFall(double progress) {
  return (1.0 + std::cos(std::numbers::pi * progress)) / 2.0;
}

double Warming(const LrScheduleOptions& options, int64_t update) {
  return options.lr * (static_cast<double>(update) / static_cast<double>(options.warmup));
}

double Polynomial(const LrScheduleOptions& options, double progress) {
  const double end_lr = ArgOr(options, "end_lr", 0.0);
  return end_lr + (options.lr - end_lr) * std::pow(1.0 - progress, ArgOr(options, "power", 1.0));
}

double InverseSqrt(const LrScheduleOptions& options, int64_t update) {
  const double timescale = ArgOr(
      options, "timescale", options.warmup > 0 ? static_cast<double>(options.warmup) : 10000.0);
  const double past_warmup = static_cast<double>(update - 1 - options.warmup);
  return options.lr / std::sqrt((past_warmup + timescale) / timescale);
}

// Requires: the update is after the warm-up.
double AfterWarmup(const LrScheduleOptions& options, int64_t update) {
  const double progress = static_cast<double>(update - 1 - options.warmup) /
                          static_cast<double>(options.num_steps - options.warmup);
  switch (options.schedule) {
    case LrSchedule::kConstant:
      return options.lr;
    case LrSchedule::kLinear:
      return options.lr * (1.0 - progress);
    case LrSchedule::kCosine:
      return options.lr * CosineFall(progress);
    case LrSchedule::kPolynomial:
      return Polynomial(options, progress);
    case LrSchedule::kInverseSqrt:
      return InverseSqrt(options, update);
    default:
      FOREBAY_CHECK(false);
  }
}

// PyTorch's: up in the first `pct_start` of the steps, down to the initial rate's
// `final_div_factor`th in the rest; beta1 moves against the rate.
ScheduledRates OneCycle(const LrScheduleOptions& options, int64_t update) {
  const double initial_lr = options.lr / ArgOr(options, "div_factor", 25.0);
  const double final_lr = initial_lr / ArgOr(options, "final_div_factor", 1e4);
  const double least_beta1 = ArgOr(options, "base_momentum", 0.85);
  const double most_beta1 = ArgOr(options, "max_momentum", 0.95);
  const double last = static_cast<double>(options.num_steps) - 1.0;
  const double turn =
      ArgOr(options, "pct_start", 0.3) * static_cast<double>(options.num_steps) - 1.0;
  const double at = static_cast<double>(update - 1);
  const bool rises = at <= turn;
  // A run of one step has nothing to fall through; PyTorch divides by zero there.
  const double span = std::max(rises ? turn : last - turn, 0.0);
  const double progress = span > 0.0 ? (rises ? at : at - turn) / span : 0.0;
  const bool is_linear = ArgOr(options, "anneal_strategy", 0.0) != 0.0;
  const auto between = [&](double from, double to) {
    return is_linear ? (to - from) * progress + from : to + (from - to) * CosineFall(progress);
  };
  ScheduledRates rates;
  rates.lr = rises ? between(initial_lr, options.lr) : between(options.lr, final_lr);
  if (ArgOr(options, "cycle_momentum", 1.0) != 0.0) {
    rates.beta1 = rises ? between(most_beta1, least_beta1) : between(least_beta1, most_beta1);
  }
  return rates;
}

// ---- DeepSpeed's. Before update s its scheduler was stepped s - 1 times, so its
// `last_batch_iteration` is s - 2.

// How far the warm-up is, from 0 to 1; nullopt: it is over.
std::optional<double> DeepSpeedWarmup(const LrScheduleOptions& options, double iteration) {
  const double num_steps = std::max(2.0, ArgOr(options, "warmup_num_steps", 1000.0));
  if (iteration >= num_steps) return std::nullopt;
  const bool is_linear = ArgOr(options, "warmup_type", 0.0) != 0.0;
  return is_linear ? iteration / num_steps : 1.0 / std::log(num_steps) * std::log(iteration + 1.0);
}

double WarmupLr(const LrScheduleOptions& options, double iteration, bool decays) {
  const double least = ArgOr(options, "warmup_min_lr", 0.0);
  const double most = ArgOr(options, "warmup_max_lr", decays ? 0.001 : options.lr);
  if (iteration < 0) return least;
  double gamma = 1.0;
  if (const auto warming = DeepSpeedWarmup(options, iteration); warming.has_value()) {
    gamma = *warming;
  } else if (decays) {
    const double total = ArgOr(options, "total_num_steps", static_cast<double>(options.num_steps));
    const double warmup = std::max(2.0, ArgOr(options, "warmup_num_steps", 1000.0));
    gamma = std::max(0.0, (total - iteration) / std::max(1.0, total - warmup));
  }
  return least + (most - least) * gamma;
}

double WarmupCosineLr(const LrScheduleOptions& options, double iteration) {
  if (iteration < 0) return 0.0;
  if (const auto warming = DeepSpeedWarmup(options, iteration); warming.has_value()) {
    const double least = ArgOr(options, "warmup_min_ratio", 0.0);
    return options.lr * (least + *warming * (1.0 - least));
  }
  const double total = ArgOr(options, "total_num_steps", static_cast<double>(options.num_steps));
  const double warmup = std::max(2.0, ArgOr(options, "warmup_num_steps", 1000.0));
  const double progress = std::min(1.0, (iteration - warmup + 1.0) / std::max(1.0, total - warmup));
  const double least = ArgOr(options, "cos_min_ratio", 0.0001);
  return options.lr * std::max(0.0, least + (1.0 - least) * CosineFall(progress));
}

// From 0 at the ends of DeepSpeed's cycle to 1 where its halves meet.
double CycleHeight(const LrScheduleOptions& options, double iteration, double first,
                   double second) {
  const double total = first + second;
  const double batch = iteration + 1.0;
  const double x = 1.0 + batch / total - std::floor(1.0 + batch / total);
  const double turn = first / total;
  const double first_stairs = ArgOr(options, "cycle_first_stair_count", 0.0);
  const bool rises = x <= turn;
  const double stairs =
      rises ? first_stairs : ArgOr(options, "cycle_second_stair_count", first_stairs);
  if (stairs <= 0.0) return rises ? x / turn : (x - 1.0) / (turn - 1.0);
  const double in_cycle = std::fmod(batch, total);
  const double position =
      in_cycle <= first ? in_cycle * stairs / first : (total - in_cycle) * stairs / second;
  return std::floor(position) / stairs;
}

ScheduledRates DeepSpeedOneCycle(const LrScheduleOptions& options, double iteration) {
  const double least_lr = ArgOr(options, "cycle_min_lr", 0.0);
  const double most_lr = ArgOr(options, "cycle_max_lr", 0.0);
  const double least_beta1 = ArgOr(options, "cycle_min_mom", 0.8);
  const double most_beta1 = ArgOr(options, "cycle_max_mom", 0.9);
  const double first = ArgOr(options, "cycle_first_step_size", 2000.0);
  const double second = ArgOr(options, "cycle_second_step_size", first);
  ScheduledRates rates;
  double beta1 = least_beta1;  // what it starts with, where the cycle itself has the most
  if (iteration < 0) {
    rates.lr = least_lr;
  } else if (iteration < first + second) {
    const double height = CycleHeight(options, iteration, first, second);
    rates.lr = least_lr + (most_lr - least_lr) * height;
    beta1 = most_beta1 - (most_beta1 - least_beta1) * height;
  } else {
    const double decay_steps = ArgOr(options, "decay_step_size", 0.0);
    const double intervals =
        decay_steps > 0.0 ? (iteration - (first + second) + 1.0) / decay_steps : 0.0;
    rates.lr = least_lr / (1.0 + ArgOr(options, "decay_lr_rate", 0.0) * intervals);
    beta1 = most_beta1 * (1.0 + ArgOr(options, "decay_mom_rate", 0.0) * intervals);
  }
  if (ArgOr(options, "cycle_momentum", 1.0) != 0.0) {
    rates.beta1 = beta1;
    rates.beta2 = 0.99;
  }
  return rates;
}

double LrRangeTest(const LrScheduleOptions& options, double iteration) {
  double intervals = (iteration + 1.0) / ArgOr(options, "lr_range_test_step_size", 2000.0);
  if (ArgOr(options, "lr_range_test_staircase", 0.0) != 0.0) intervals = std::floor(intervals);
  return ArgOr(options, "lr_range_test_min_lr", 1e-3) *
         (1.0 + ArgOr(options, "lr_range_test_step_rate", 1.0) * intervals);
}

}  // namespace

ScheduledRates RatesOf(const LrScheduleOptions& options, int64_t update) {
  FOREBAY_CHECK(update >= 1 && update <= options.num_steps);
  const double iteration = static_cast<double>(update - 2);
  switch (options.schedule) {
    case LrSchedule::kOneCycle:
      return OneCycle(options, update);
    case LrSchedule::kWarmupLr:
      return {.lr = WarmupLr(options, iteration, /*decays=*/false)};
    case LrSchedule::kWarmupDecayLr:
      return {.lr = WarmupLr(options, iteration, /*decays=*/true)};
    case LrSchedule::kWarmupCosineLr:
      return {.lr = WarmupCosineLr(options, iteration)};
    case LrSchedule::kDeepSpeedOneCycle:
      return DeepSpeedOneCycle(options, iteration);
    case LrSchedule::kLrRangeTest:
      return {.lr = LrRangeTest(options, iteration)};
    default:
      return {.lr = update <= options.warmup ? Warming(options, update)
                                             : AfterWarmup(options, update)};
  }
}

}  // namespace forebay
