// Faults between a ring engine and its port: the same as faulty_disk.h has for the threads engine.
// For tests only.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "forebay/aio/faults/fault_script.h"
#include "forebay/aio/io_port.h"

namespace forebay {

// A port that does to `inner`'s calls what `script` says (delays are the inner port's). Owned by
// one thread, as every port; the script may be asked by others.
std::unique_ptr<IoPort> MakeFaultyPort(std::unique_ptr<IoPort> inner,
                                       std::shared_ptr<FaultScript> script);

}  // namespace forebay
