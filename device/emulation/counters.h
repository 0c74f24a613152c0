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
  // Calls that wait for all work on a GPU: cudaDeviceSynchronize, and cudaFree, which does so too.
  int64_t num_device_waits = 0;
  // Copied bytes from and to memory that is not pinned: such a call waits for its stream.
  int64_t unpinned_copy_bytes = 0;
  // Counts how often the library of products was asked for its first guess and no other.
  int64_t num_guesses = 0;
  // By the emulated clock: what the operations that were done took, and the last point that the
  // program has waited for. Less than the first: some were made side by side.
  double busy_s = 0;
  double awaited_s = 0;
};
// Since the process began.
Counters CountersNow();
void CountGuess();

}  // namespace forebay::emulation
