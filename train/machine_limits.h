// What this machine lets the process have: memory, cores, disk space. The planner's only question
// to the world, so that a test (or a plan for another machine) can answer it instead.
#pragma once

#include <cstdint>
#include <string>

#include "forebay/train/options.h"

namespace forebay {

struct MachineLimits {
  int64_t available_memory_bytes = 0;  // 0: unknown, not checked
  int num_cores = 1;
  // Free bytes on the file systems of the swap area and of OUT; -1: unknown or not asked for, not
  // checked.
  int64_t nvme_free_bytes = -1;
  int64_t out_free_bytes = -1;
  bool one_file_system = true;  // of the two
  // Of the disk of the swap area, as it was measured (disk_profile.h); 0: not known.
  double read_bytes_per_s = 0;
  double write_bytes_per_s = 0;
};

// Asks the kernel, for the folders that `options` names (or, where they do not exist yet, their
// nearest parent).
MachineLimits AskMachine(const TrainOptions& options);

}  // namespace forebay
