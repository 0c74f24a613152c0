// The effect of each key of a DeepSpeed configuration: the table of forebay.deepspeed (Python),
// compiled in.
#pragma once

#include "forebay/base/json.h"

namespace forebay {

// By section: null: used; a text: ignored for that reason; a list of one text: may be there and
// off, and cannot be on for that reason; an object has keys of its own, any where it has "*".
const Json& DeepSpeedKeys();

}  // namespace forebay
