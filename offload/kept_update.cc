#include "forebay/offload/kept_update.h"

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/swap/store/store_folders.h"

namespace forebay {

Json EncodeUpdate(const UpdateScalars& scalars, const Json& metrics) {
  Json update = {{"update", scalars.step},
                 {"lr", scalars.lr},
                 {"gradient_scale", scalars.gradient_scale},
                 {"rounding_seed", scalars.rounding_seed}};
  if (scalars.beta1.has_value()) update["beta1"] = *scalars.beta1;
  if (scalars.beta2.has_value()) update["beta2"] = *scalars.beta2;
  update["metrics"] = metrics;
  return update;
}

absl::StatusOr<KeptUpdate> DecodeUpdate(const StepIntent& intent, int64_t step) {
  const Json& trainer = intent.trainer;
  const auto is_number = [&](const char* name) {
    return trainer.contains(name) && trainer[name].is_number();
  };
  const auto is_whole_number = [&](const char* name) {
    return trainer.contains(name) && trainer[name].is_number_unsigned();
  };
  const auto is_update_number = [&](const char* name) {
    return is_whole_number(name) && IntegerOf(trainer[name]).has_value() && trainer[name] > 0;
  };
  const auto are_metrics = [&](const char* name) {
    return trainer.contains(name) && (trainer[name].is_object() || trainer[name].is_null());
  };
  const auto is_number_if_any = [&](const char* name) {
    return !trainer.contains(name) || trainer[name].is_number();
  };
  const bool is_whole = intent.step == step && trainer.is_object() && is_number("lr") &&
                        is_number("gradient_scale") && is_update_number("update") &&
                        is_whole_number("rounding_seed") && is_number_if_any("beta1") &&
                        is_number_if_any("beta2") && are_metrics("metrics");
  if (!is_whole) {
    return CorruptError(
        fmt::format("'{}' of the store is for step {} and says '{}'; an intent for step {} was "
                    "expected. Another program wrote it",
                    kIntentName, intent.step, trainer.dump(), step));
  }
  KeptUpdate update;
  update.scalars.step = trainer["update"].get<int64_t>();
  update.scalars.rounding_seed = trainer["rounding_seed"].get<uint64_t>();
  update.scalars.lr = trainer["lr"].get<double>();
  update.scalars.gradient_scale = trainer["gradient_scale"].get<double>();
  if (trainer.contains("beta1")) update.scalars.beta1 = trainer["beta1"].get<double>();
  if (trainer.contains("beta2")) update.scalars.beta2 = trainer["beta2"].get<double>();
  update.metrics = trainer["metrics"];
  return update;
}

}  // namespace forebay
