#include "forebay/train/kept_update.h"

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/swap/store_folders.h"

namespace forebay {

Json EncodeUpdate(const AdamWStep& scalars, const Json& metrics) {
  return {{"lr", scalars.lr}, {"gradient_scale", scalars.gradient_scale}, {"metrics", metrics}};
}

absl::StatusOr<KeptUpdate> DecodeUpdate(const StepIntent& intent, int64_t step) {
  const Json& trainer = intent.trainer;
  const auto is_number = [&](const char* name) {
    return trainer.contains(name) && trainer[name].is_number();
  };
  const bool is_whole = intent.step == step && trainer.is_object() && is_number("lr") &&
                        is_number("gradient_scale") && trainer.contains("metrics");
  if (!is_whole) {
    return CorruptError(
        fmt::format("'{}' of the store is for step {} and says '{}'; an intent for step {} was "
                    "expected. Another program wrote it",
                    kIntentName, intent.step, trainer.dump(), step));
  }
  KeptUpdate update;
  update.scalars = {step, trainer["lr"].get<double>(), trainer["gradient_scale"].get<double>()};
  update.metrics = trainer["metrics"];
  return update;
}

}  // namespace forebay
