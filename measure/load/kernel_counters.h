// What the kernel counts, so that a benchmark need not believe itself: bytes that this process
// moved to and from storage, what the disk did, CPU time.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace forebay {

// /proc/PID/io: bytes that really went to or came from storage, page cache hits left out.
struct IoAccount {
  int64_t read_bytes = 0;
  int64_t write_bytes = 0;
};
std::optional<IoAccount> ParseIoAccount(std::string_view text);
std::optional<IoAccount> IoAccountOfProcess();
// The account of the calling thread alone. Work that io_uring hands to its workers counts as
// theirs.
std::optional<IoAccount> IoAccountOfThread();

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
