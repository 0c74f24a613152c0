#include "forebay/offload/update_settings.h"

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

}  // namespace

Json UpdateSettings(const UpdateScalars& scalars, std::span<const ParameterGroup> groups) {
  Json json = {{"update", scalars.step},
               {"lr", scalars.lr},
               {"gradient_scale", scalars.gradient_scale},
               {"rounding_seed", scalars.rounding_seed}};
  if (scalars.beta1.has_value()) json["beta1"] = *scalars.beta1;
  if (scalars.beta2.has_value()) json["beta2"] = *scalars.beta2;
  if (scalars.eps.has_value()) json["eps"] = *scalars.eps;
  for (const ParameterGroup& group : groups) json["groups"].push_back(ToJson(group));
  return json;
}

}  // namespace forebay
