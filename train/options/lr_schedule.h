// The learning rate of each update, and the betas where the schedule cycles them too.
//
// Not for: names, arguments and their checks (lr_schedule_table.h).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace forebay {

enum class LrSchedule : uint8_t {
  kConstant,
  kLinear,
  kCosine,
  kPolynomial,
  kInverseSqrt,
  kOneCycle,           // as torch.optim.lr_scheduler.OneCycleLR
  kWarmupLr,           // this one and the rest: DeepSpeed's classes of these names
  kWarmupDecayLr,      //
  kWarmupCosineLr,     //
  kDeepSpeedOneCycle,  //
  kLrRangeTest,        //
};

// Arguments of one schedule by name; a switch is 0 or 1. What is not given has a default of its
// own.
using LrScheduleArgs = std::map<std::string, double, std::less<>>;

struct LrScheduleOptions {
  LrSchedule schedule = LrSchedule::kLinear;
  double lr = 0;          // the peak of forebay's own schedules and of one_cycle
  int64_t warmup = 0;     // steps, W; of forebay's own schedules
  int64_t num_steps = 1;  // of the whole schedule, N; --stop_after does not change it
  LrScheduleArgs args;    // of lr_schedule_table.h
};

struct ScheduledRates {
  double lr = 0;
  // In place of those of the option betas.
  std::optional<double> beta1;
  std::optional<double> beta2;
};

// Of update s, from 1. (Steps that were skipped update nothing and are not counted.)
//
// forebay's own: updates 1..W have lr * s / W. After them, with p = (s - 1 - W) / (N - W):
//   constant      lr
//   linear        lr * (1 - p)
//   cosine        lr * (1 + cos(pi p)) / 2
//   polynomial    end_lr + (lr - end_lr) * (1 - p)^power
//   inverse_sqrt  lr / sqrt((s - 1 - W + timescale) / timescale), timescale: W unless given
// So update W+1 has the peak, and 0 (or end_lr) is reached only after update N. When W >= N, all is
// warm-up. The last two are those of transformers.
//
// one_cycle is PyTorch's (Smith & Topin 2018), and the others are DeepSpeed's
// (runtime/lr_schedules.py), with what their schedulers have set when update s is made: before the
// first call of step(), DeepSpeed's warm-ups stand at their least rate, and their second update
// repeats it (WarmupLR, WarmupDecayLR) or starts from there (WarmupCosineLR, which begins at 0).
//
// Requires: 1 <= s <= num_steps, and arguments that ParseLrScheduleArgs made. Pure; allocates
// nothing.
ScheduledRates RatesOf(const LrScheduleOptions& options, int64_t update);

}  // namespace forebay
