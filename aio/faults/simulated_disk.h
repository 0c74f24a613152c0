// A disk whose calls complete out of order and at simulated times, the same ones in every run: what
// a race or a stall of minutes would be on a real one becomes a test of milliseconds. Its bytes are
// those of the files, moved by the system when a call completes. For tests only.
#pragma once

#include <memory>

#include "forebay/aio/faults/fault_script.h"
#include "forebay/aio/io_port.h"

namespace forebay {

struct SimulatedDiskOptions {
  uint64_t seed = 1;
  // Each call takes a time between these; what ends first is reported first.
  int64_t least_latency_us = 50;
  int64_t most_latency_us = 5000;
  int depth = 32;
  // Once, the clock jumps by this while the disk has nothing to do, as if the process had stood
  // still.
  int64_t pause_us = 0;
};

// Faults go on top of it: MakeFaultyPort(MakeSimulatedDisk(...), script).
std::unique_ptr<IoPort> MakeSimulatedDisk(const SimulatedDiskOptions& options);

// An engine over a simulated disk with faults, driven by whoever waits. `script` may be shared with
// the test; nullptr: no faults.
std::unique_ptr<Engine> CreateSimulatedEngine(const EngineOptions& options,
                                              const SimulatedDiskOptions& disk,
                                              std::shared_ptr<FaultScript> script);

}  // namespace forebay
