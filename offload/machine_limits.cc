#include "forebay/offload/machine_limits.h"

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"

namespace forebay {

FoldersOfDisks ByFileSystem(const std::vector<DiskLimits>& disks) {
  FoldersOfDisks folders;
  for (size_t i = 0; i < disks.size(); ++i) folders[disks[i].file_system].push_back(i);
  return folders;
}

absl::StatusOr<int64_t> RamBudget(int64_t ram_bytes, const MachineLimits& limits) {
  const int64_t available = limits.available_memory_bytes;
  if (ram_bytes == 0) return static_cast<int64_t>(static_cast<double>(available) * kAutoShare);
  if (available > 0 && ram_bytes > available && !limits.memory_owner.empty()) {
    return DoesNotFitError(
        fmt::format("--ram={} is more than {} can have, {}. Use --ram={}MiB or less",
                    FormatBinaryBytes(ram_bytes), limits.memory_owner, FormatBinaryBytes(available),
                    available >> 20));
  }
  if (available > 0 && ram_bytes > available) {
    return DoesNotFitError(fmt::format(
        "--ram={} is more than this process can have: {} is available now "
        "(/proc/meminfo and cgroup limits). Use --ram={}MiB or less, or free memory",
        FormatBinaryBytes(ram_bytes), FormatBinaryBytesDown(available), available >> 20));
  }
  return ram_bytes;
}

absl::Status CheckModelFits(int64_t least_bytes, int64_t budget_bytes) {
  if (least_bytes <= budget_bytes) return absl::OkStatus();
  return DoesNotFitError(
      fmt::format("this model needs at least {0} MiB of memory here, but the budget is {1}. Use "
                  "--ram={0}MiB or more",
                  MebibytesUp(least_bytes), FormatBinaryBytesDown(budget_bytes)));
}

}  // namespace forebay
