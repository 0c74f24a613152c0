#include "forebay/train/step/loss_scaler.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/json_fields.h"

namespace forebay {
namespace {

constexpr double kFactor = 2.0;

}  // namespace

LossScaler::LossScaler(const LossScalerOptions& options)
    : options_(options),
      scale_(options.static_scale > 0 ? options.static_scale
                                      : std::ldexp(1.0, options.initial_scale_power)),
      hysteresis_left_(options.hysteresis) {
  FOREBAY_CHECK(std::isfinite(scale_) && scale_ > 0);
  FOREBAY_CHECK(options.window >= 1 && options.hysteresis >= 1 && options.min_scale > 0);
}

absl::Status LossScaler::Shrink() {
  const bool has_least = options_.rules != LossScaling::kTorch;
  const double least = has_least ? options_.min_scale : 0.0;
  const bool is_error = options_.rules == LossScaling::kZero
                            ? scale_ == least
                            : static_cast<float>(scale_ / kFactor) == 0.0F;
  if (is_error) {
    return NumericalError(
        fmt::format("the gradients overflow fp16 even at the least loss scale, {}", scale_));
  }
  scale_ = std::max(scale_ / kFactor, least);
  return absl::OkStatus();
}

void LossScaler::Grow() {
  const double grown = scale_ * kFactor;
  // PyTorch keeps its scale in fp32.
  const bool fits =
      options_.rules != LossScaling::kTorch || std::isfinite(static_cast<float>(grown));
  if (fits) scale_ = grown;
}

absl::Status LossScaler::Update(bool overflowed) {
  const bool moves = options_.static_scale <= 0;
  const bool waits = options_.rules == LossScaling::kZero && hysteresis_left_ > 1;
  if (overflowed) {
    if (moves && !waits) FOREBAY_RETURN_IF_ERROR(Shrink());
    if (waits) --hysteresis_left_;
    last_overflow_ = num_steps_;
  } else {
    const int64_t num_good = num_steps_ - last_overflow_ - 1;
    // PyTorch counts the step itself and begins anew after each growth; DeepSpeed's first growth
    // takes one step more, as it counts those before.
    const int64_t counted = options_.rules == LossScaling::kTorch ? num_good + 1 : num_good;
    const bool grows = counted > 0 && counted % options_.window == 0;
    if (options_.consecutive_hysteresis || grows) hysteresis_left_ = options_.hysteresis;
    if (grows && moves) Grow();
  }
  ++num_steps_;
  return absl::OkStatus();
}

Json LossScaler::state() const {
  return {{"scale", scale_},
          {"steps", num_steps_},
          {"last_overflow", last_overflow_},
          {"hysteresis_left", hysteresis_left_}};
}

absl::Status LossScaler::Restore(const Json& state) {
  const auto integer = [&](const char* key, int64_t& value) {
    const auto found =
        state.is_object() && state.contains(key) ? IntegerOf(state[key]) : std::nullopt;
    if (found.has_value()) value = *found;
    return found.has_value();
  };
  int64_t steps = 0, last = 0, left = 0;
  const bool has_steps = integer("steps", steps) && steps >= 0 && steps <= kMostSteps;
  const bool has_last = integer("last_overflow", last) && last >= -1 && last < steps;
  const bool has_left = integer("hysteresis_left", left) && left >= 0 && left <= kMostSteps;
  const char* wrong = !has_steps  ? "steps"
                      : !has_last ? "last_overflow"
                      : !has_left ? "hysteresis_left"
                                  : nullptr;
  const bool has_scale = state.is_object() && state.contains("scale") &&
                         state["scale"].is_number() && state["scale"].get<double>() > 0 &&
                         std::isfinite(state["scale"].get<double>());
  if (wrong == nullptr && !has_scale) wrong = "scale";
  if (wrong != nullptr) {
    return BadInputError(
        fmt::format("the loss scaler's state {} has no usable '{}'", state.dump(), wrong));
  }
  scale_ = state["scale"].get<double>();
  num_steps_ = steps;
  last_overflow_ = last;
  hysteresis_left_ = left;
  return absl::OkStatus();
}

}  // namespace forebay
