// A machine that a plan is for and that is not this one: a file that says what it has, or one of a
// few common ones by name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "forebay/offload/machine_limits.h"
#include "forebay/train/options/options.h"

namespace forebay {

struct Machine {
  std::string name;
  int64_t ram_bytes = 0;  // that a process may have
  int num_cores = 0;
  double memory_bytes_per_s = 0;      // of RAM, read and written together
  double cpu_matmul_flops_per_s = 0;  // achieved; 0: not known
  std::string gpu_name;               // empty: it has none
  int64_t gpu_memory_bytes = 0;       // that a process may have
  double gpu_matmul_flops_per_s = 0;  // achieved
  double bus_bytes_per_s = 0;         // between RAM and the GPU, in each direction
  double disk_read_bytes_per_s = 0;   // sustained
  double disk_write_bytes_per_s = 0;  // the same
  int64_t disk_free_bytes = 0;
  double disk_rated_tbw = 0;  // 0: not known
};

// "4090-64g", ...
std::vector<std::string> MachinePresets();
// A preset's name, or the path of a JSON file (docs/cli.md, "plan"). BadInputError that names the
// key, what was read and what was expected; UsageError for what is neither.
absl::StatusOr<Machine> ReadMachine(const std::string& name_or_path);
absl::StatusOr<Machine> ParseMachine(std::string_view text, std::string_view source);

// What `plan` asks of this machine otherwise. `options` say what computes, and get the disk's rated
// TBW where they have the default.
MachineLimits LimitsOf(const Machine& machine, TrainOptions& options);

}  // namespace forebay
