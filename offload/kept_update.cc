#include "forebay/offload/kept_update.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/swap/store/store_folders.h"

namespace forebay {

namespace {

Json ToJson(const ParameterGroup& group) {
  Json json = {{"lr_scale", group.lr_scale}, {"weight_decay", group.weight_decay}};
  if (group.beta1.has_value()) json["beta1"] = *group.beta1;
  if (group.beta2.has_value()) json["beta2"] = *group.beta2;
  if (group.eps.has_value()) json["eps"] = *group.eps;
  if (group.frozen) json["frozen"] = true;
  return json;
}

bool IsNumber(const Json& object, const char* name) {
  return object.contains(name) && object[name].is_number();
}
bool IsNumberIfAny(const Json& object, const char* name) {
  return !object.contains(name) || object[name].is_number();
}
std::optional<double> NumberIfAny(const Json& object, const char* name) {
  if (!object.contains(name)) return std::nullopt;
  return object[name].get<double>();
}

bool IsGroup(const Json& json) {
  return json.is_object() && IsNumber(json, "lr_scale") && IsNumber(json, "weight_decay") &&
         IsNumberIfAny(json, "beta1") && IsNumberIfAny(json, "beta2") &&
         IsNumberIfAny(json, "eps") && (!json.contains("frozen") || json["frozen"].is_boolean());
}

ParameterGroup GroupOf(const Json& json) {
  return {.lr_scale = json["lr_scale"].get<double>(),
          .weight_decay = json["weight_decay"].get<double>(),
          .beta1 = NumberIfAny(json, "beta1"),
          .beta2 = NumberIfAny(json, "beta2"),
          .eps = NumberIfAny(json, "eps"),
          .frozen = json.value("frozen", false)};
}

}  // namespace

Json EncodeUpdate(const KeptUpdate& update) {
  const UpdateScalars& scalars = update.scalars;
  Json json = {{"update", scalars.step},
               {"lr", scalars.lr},
               {"gradient_scale", scalars.gradient_scale},
               {"rounding_seed", scalars.rounding_seed}};
  if (scalars.beta1.has_value()) json["beta1"] = *scalars.beta1;
  if (scalars.beta2.has_value()) json["beta2"] = *scalars.beta2;
  if (scalars.eps.has_value()) json["eps"] = *scalars.eps;
  for (const ParameterGroup& group : update.groups) json["groups"].push_back(ToJson(group));
  json["metrics"] = update.kept;
  return json;
}

absl::StatusOr<KeptUpdate> DecodeUpdate(const StepIntent& intent, int64_t step) {
  const Json& trainer = intent.trainer;
  const auto is_whole_number = [&](const char* name) {
    return trainer.contains(name) && trainer[name].is_number_unsigned();
  };
  const auto is_update_number = [&](const char* name) {
    return is_whole_number(name) && IntegerOf(trainer[name]).has_value() && trainer[name] > 0;
  };
  const auto are_metrics = [&](const char* name) {
    return trainer.contains(name) && (trainer[name].is_object() || trainer[name].is_null());
  };
  const auto are_groups = [&](const char* name) {
    return !trainer.contains(name) ||
           (trainer[name].is_array() && std::ranges::all_of(trainer[name], IsGroup));
  };
  const bool is_whole = intent.step == step && trainer.is_object() && IsNumber(trainer, "lr") &&
                        IsNumber(trainer, "gradient_scale") && is_update_number("update") &&
                        is_whole_number("rounding_seed") && IsNumberIfAny(trainer, "beta1") &&
                        IsNumberIfAny(trainer, "beta2") && IsNumberIfAny(trainer, "eps") &&
                        are_groups("groups") && are_metrics("metrics");
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
  update.scalars.beta1 = NumberIfAny(trainer, "beta1");
  update.scalars.beta2 = NumberIfAny(trainer, "beta2");
  update.scalars.eps = NumberIfAny(trainer, "eps");
  if (trainer.contains("groups")) {
    std::ranges::transform(trainer["groups"], std::back_inserter(update.groups), GroupOf);
  }
  update.kept = trainer["metrics"];
  return update;
}

}  // namespace forebay
