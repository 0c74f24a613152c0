// Counts of the kernel, so that a benchmark need not believe itself: what the disk did, CPU time.
// base/process/io_account.h has the bytes of this process.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string_view>

#include "forebay/base/process/io_account.h"

namespace forebay {

// /sys/dev/block/*/stat: what the block device did, for everybody.
struct DiskAccount {
  int64_t read_ios = 0;  // requests that completed
  int64_t read_merges = 0;
  int64_t read_bytes = 0;
  int64_t write_ios = 0;
  int64_t write_merges = 0;
  int64_t write_bytes = 0;
};
std::optional<DiskAccount> ParseDiskAccount(std::string_view text);
// nullopt where no block device stands behind `device` (tmpfs, overlay, network).
std::optional<DiskAccount> DiskAccountOf(dev_t device);

// User and system time of this process, all threads (io_uring's workers too).
double ProcessCpuSeconds();

}  // namespace forebay
