// Counts of a program's use of the emulated GPU, for tests that compare it with a plan.
#pragma once

#include <cstdint>

namespace forebay::emulation {

struct Counters {
  int64_t num_calls = 0;  // of functions that fail where a GPU is lost
  int64_t num_launches = 0;
  int64_t to_device_bytes = 0;
  int64_t to_host_bytes = 0;
  int64_t allocated_bytes = 0;  // now
  int64_t peak_allocated_bytes = 0;
  int64_t pinned_bytes = 0;  // now
};
// Since the process began.
Counters CountersNow();

}  // namespace forebay::emulation
