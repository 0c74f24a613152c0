// The limit of address space ('ulimit -v', RLIMIT_AS), which counts what a process maps, whether it
// uses it or not. Where it is reached, libraries that we call go on with a null pointer (oneDNN's
// generated code) or end the process (OpenMP's threads), and nothing can be caught. So what is
// needed is compared with it before it is asked for.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace forebay {

bool AddressSpaceIsLimited();
// OutOfMemoryError when the limit leaves no room for `buffer_bytes` more and for `num_threads` more
// threads, beside what libraries map for themselves. OK where there is no limit.
absl::Status CheckAddressSpace(int64_t buffer_bytes, int num_threads);

}  // namespace forebay
