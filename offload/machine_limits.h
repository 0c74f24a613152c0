// The limits that a machine sets the process: memory, cores, disk space. The planner's only
// question to the world, so that a test (or a plan for another machine) can answer it instead.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace forebay {

// One folder of the swap area.
struct DiskLimits {
  std::string folder;        // as the user named it; for messages
  int64_t free_bytes = -1;   // of its file system; -1: unknown or not asked for, not checked
  uint64_t file_system = 0;  // the same number, the same file system
  int64_t weight =
      1;  // its share of the store, in proportion to the others' (swap/tiles/stripes.h)
  // As they were measured (aio/io_profile.h); 0: not known.
  double read_bytes_per_s = 0;
  double write_bytes_per_s = 0;
};

// The GPU that computes.
struct GpuLimits {
  std::string name;        // empty: there is none, or nobody asked
  std::string why_none;    // an error's message
  int64_t free_bytes = 0;  // of its memory
  bool has_bf16 = true;
};

// How fast the machine is, as it was measured or said; 0: not known.
struct MachineSpeeds {
  double matmul_flops_per_s = 0;  // of the device that computes, in the precision of the run
  double memory_bytes_per_s = 0;  // of RAM, read and written together
  double bus_bytes_per_s = 0;     // between RAM and the GPU, in each direction
  std::string origin;             // who says so, for people
  double age_s = 0;               // since they were measured
};

struct MachineLimits {
  int64_t available_memory_bytes = 0;  // 0: unknown, not checked
  std::string memory_owner;  // for messages: what else than this process may have it; "": nothing
  int num_cores = 1;
  std::vector<DiskLimits> disks = {DiskLimits()};  // one or more
  // false: DiskLimits::weight is what would be best for speed; a plan takes from a disk what it has
  // no room for.
  bool shares_are_fixed = true;
  // As DiskLimits', of the folder for exports.
  int64_t out_free_bytes = -1;
  uint64_t out_file_system = 0;
  int64_t most_bytes_of_a_file = std::numeric_limits<int64_t>::max();
  int64_t exported_bytes = 0;  // that a run which goes on has of its exports
  GpuLimits gpu;
  MachineSpeeds speeds;
};

// The share of the available memory that a process takes when --ram is not given.
inline constexpr double kAutoShare = 0.8;

// The budget of a process: `ram_bytes`, or where that is 0 kAutoShare of what is available.
// DoesNotFitError where it is more than that.
absl::StatusOr<int64_t> RamBudget(int64_t ram_bytes, const MachineLimits& limits);

// DoesNotFitError that names the least --ram, where the budget is smaller than that.
absl::Status CheckModelFits(int64_t least_bytes, int64_t budget_bytes);

// The folders, by their position in `disks`, that share the space and the speed of a file system;
// by its number.
using FoldersOfDisks = std::map<uint64_t, std::vector<size_t>>;
FoldersOfDisks ByFileSystem(const std::vector<DiskLimits>& disks);

}  // namespace forebay
