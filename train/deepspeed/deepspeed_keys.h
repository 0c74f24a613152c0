// What each key of a DeepSpeed configuration does: the table of forebay.deepspeed (Python),
// compiled in. Its form: python/forebay/deepspeed/_table.py.
#pragma once

#include "forebay/base/json.h"

namespace forebay {

// {"keys": ..., "optimizers": ..., "schedules": ...}
const Json& DeepSpeedTable();

}  // namespace forebay
