// The settings of an update as words, by which ranks find out whether theirs are the same. Pure.
#pragma once

#include <span>

#include "forebay/base/json.h"
#include "forebay/optimizer/kernels/update_rule.h"
#include "forebay/optimizer/parameter_groups.h"

namespace forebay {

// Numbers are kept bit for bit. `groups`: empty, or those that hold from this update on.
Json UpdateSettings(const UpdateScalars& scalars, std::span<const ParameterGroup> groups);

}  // namespace forebay
