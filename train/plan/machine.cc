#include "forebay/train/plan/machine.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/json.h"
#include "forebay/train/plan/ask_machine.h"

namespace forebay {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

// A process may have less than all of 64 GB or 24 GB; speeds are what is reached, not what is
// printed on the box.
const Machine kPresets[] = {
    {.name = "4060-32g",
     .ram_bytes = 29 * kGiB,
     .num_cores = 8,
     .memory_bytes_per_s = 45e9,
     .gpu_name = "GeForce RTX 4060",
     .gpu_memory_bytes = 15 * kGiB / 2,
     .gpu_matmul_flops_per_s = 27e12,
     .bus_bytes_per_s = 12.5e9,
     .disk_read_bytes_per_s = 5e9,
     .disk_write_bytes_per_s = 4e9,
     .disk_free_bytes = 900'000'000'000,
     .disk_rated_tbw = 600},
    {.name = "4090-64g",
     .ram_bytes = 58 * kGiB,
     .num_cores = 16,
     .memory_bytes_per_s = 60e9,
     .gpu_name = "GeForce RTX 4090",
     .gpu_memory_bytes = 23 * kGiB,
     .gpu_matmul_flops_per_s = 149e12,
     .bus_bytes_per_s = 25e9,
     .disk_read_bytes_per_s = 7e9,
     .disk_write_bytes_per_s = 6e9,
     .disk_free_bytes = 1'800'000'000'000,
     .disk_rated_tbw = 1200},
    {.name = "4090-128g",
     .ram_bytes = 120 * kGiB,
     .num_cores = 16,
     .memory_bytes_per_s = 60e9,
     .gpu_name = "GeForce RTX 4090",
     .gpu_memory_bytes = 23 * kGiB,
     .gpu_matmul_flops_per_s = 149e12,
     .bus_bytes_per_s = 25e9,
     .disk_read_bytes_per_s = 7e9,
     .disk_write_bytes_per_s = 6e9,
     .disk_free_bytes = 3'600'000'000'000,
     .disk_rated_tbw = 2400},
    {.name = "h100-256g",
     .ram_bytes = 240 * kGiB,
     .num_cores = 32,
     .memory_bytes_per_s = 200e9,
     .gpu_name = "H100 80GB",
     .gpu_memory_bytes = 76 * kGiB,
     .gpu_matmul_flops_per_s = 545e12,
     .bus_bytes_per_s = 50e9,
     .disk_read_bytes_per_s = 7e9,
     .disk_write_bytes_per_s = 4e9,
     .disk_free_bytes = 3'500'000'000'000,
     .disk_rated_tbw = 7000},
};

// Reads the numbers of one object, each of which is known.
class Fields {
 public:
  Fields(const Json& json, std::string where) : json_(json), where_(std::move(where)) {}

  template <typename T>
  void Number(const char* key, bool is_needed, T& to) {
    known_.emplace_back(key);
    if (!json_.contains(key)) {
      if (is_needed) Problem(fmt::format("{}{} is missing: a number above 0", where_, key));
      return;
    }
    const Json& value = json_[key];
    const double number = value.is_number() ? value.get<double>() : 0;
    if (number > 0 && number < 9e18) {
      to = static_cast<T>(number);
    } else {
      Problem(
          fmt::format("{}{} is {}, and a number above 0 was expected", where_, key, value.dump()));
    }
  }
  void Text(const char* key, std::string& to) {
    known_.emplace_back(key);
    if (json_.contains(key) && json_[key].is_string() && !json_[key].get<std::string>().empty()) {
      to = json_[key];
    } else {
      Problem(fmt::format("{}{} is {}, and a text was expected", where_, key,
                          json_.value(key, Json()).dump()));
    }
  }
  // nullptr: there is none, or it is no object.
  const Json* Object(const char* key, bool is_needed) {
    known_.emplace_back(key);
    if (!json_.contains(key)) {
      if (is_needed) Problem(fmt::format("{}{} is missing: an object", where_, key));
      return nullptr;
    }
    if (json_[key].is_object()) return &json_[key];
    Problem(fmt::format("{}{} is {}, and an object was expected", where_, key, json_[key].dump()));
    return nullptr;
  }
  // The first problem; "" where there is none.
  std::string End() {
    for (const auto& [key, value] : json_.items()) {
      if (std::ranges::find(known_, key) == known_.end()) {
        Problem(
            fmt::format("unknown key '{}{}'; known are {}", where_, key, fmt::join(known_, ", ")));
      }
    }
    return problem_;
  }

 private:
  void Problem(std::string text) {
    if (problem_.empty()) problem_ = std::move(text);
  }

  const Json& json_;
  const std::string where_;
  std::vector<std::string> known_;
  std::string problem_;
};

std::string ReadGpu(const Json& json, Machine& machine) {
  Fields fields(json, "gpu.");
  fields.Text("name", machine.gpu_name);
  fields.Number("memory_bytes", true, machine.gpu_memory_bytes);
  fields.Number("matmul_flops_per_s", true, machine.gpu_matmul_flops_per_s);
  fields.Number("bus_bytes_per_s", true, machine.bus_bytes_per_s);
  return fields.End();
}

std::string ReadDisk(const Json& json, Machine& machine) {
  Fields fields(json, "disk.");
  fields.Number("read_bytes_per_s", true, machine.disk_read_bytes_per_s);
  fields.Number("write_bytes_per_s", true, machine.disk_write_bytes_per_s);
  fields.Number("free_bytes", true, machine.disk_free_bytes);
  fields.Number("rated_tbw", false, machine.disk_rated_tbw);
  return fields.End();
}

std::string ReadAll(const Json& json, Machine& machine) {
  if (!json.is_object()) return "it is no JSON object";
  Fields fields(json, "");
  fields.Text("name", machine.name);
  fields.Number("ram_bytes", true, machine.ram_bytes);
  fields.Number("num_cores", true, machine.num_cores);
  fields.Number("memory_bytes_per_s", true, machine.memory_bytes_per_s);
  fields.Number("cpu_matmul_flops_per_s", false, machine.cpu_matmul_flops_per_s);
  const Json* const gpu = fields.Object("gpu", false);
  const Json* const disk = fields.Object("disk", true);
  std::string problem = fields.End();
  if (problem.empty() && gpu != nullptr) problem = ReadGpu(*gpu, machine);
  if (problem.empty()) problem = ReadDisk(*disk, machine);
  return problem;
}

}  // namespace

std::vector<std::string> MachinePresets() {
  std::vector<std::string> names;
  for (const Machine& machine : kPresets) names.push_back(machine.name);
  return names;
}

absl::StatusOr<Machine> ParseMachine(std::string_view text, std::string_view source) {
  FOREBAY_ASSIGN_OR_RETURN(const Json json, ParseJson(text, source));
  Machine machine;
  const std::string problem = ReadAll(json, machine);
  if (problem.empty()) return machine;
  return BadInputError(
      fmt::format("'{}' describes no machine: {} (docs/cli.md, \"plan\")", source, problem));
}

absl::StatusOr<Machine> ReadMachine(const std::string& name_or_path) {
  const auto preset = std::ranges::find(kPresets, name_or_path, &Machine::name);
  if (preset != std::end(kPresets)) return *preset;
  if (!FileExists(name_or_path)) {
    return UsageError(fmt::format("--machine={}: no such file, and none of {}", name_or_path,
                                  fmt::join(MachinePresets(), ", ")));
  }
  FOREBAY_ASSIGN_OR_RETURN(const std::string text,
                           ReadWholeFile(name_or_path, kMaxConfigFileBytes));
  return ParseMachine(text, name_or_path);
}

MachineLimits LimitsOf(const Machine& machine, TrainOptions& options) {
  MachineLimits limits;
  limits.available_memory_bytes = machine.ram_bytes;
  limits.memory_owner = fmt::format("a process on the machine '{}'", machine.name);
  limits.num_cores = machine.num_cores;
  limits.disks.clear();
  for (const std::string& folder : SwapFoldersOf(options)) {
    limits.disks.push_back({.folder = folder,
                            .free_bytes = machine.disk_free_bytes,
                            .file_system = limits.disks.size() + 1,
                            .read_bytes_per_s = machine.disk_read_bytes_per_s,
                            .write_bytes_per_s = machine.disk_write_bytes_per_s});
  }
  // A run exports to the first disk where nothing else is said.
  limits.out_file_system = limits.disks.front().file_system;
  limits.out_free_bytes = machine.disk_free_bytes;
  const bool is_default = options.rated_tbw == OffloadOptions().rated_tbw;
  if (is_default && machine.disk_rated_tbw > 0) options.rated_tbw = machine.disk_rated_tbw;
  limits.gpu = {.name = machine.gpu_name,
                .why_none = fmt::format("the machine '{}' has none", machine.name),
                .free_bytes = machine.gpu_memory_bytes};
  const bool on_gpu = options.device == ComputeDevice::kCuda ||
                      (options.device == ComputeDevice::kAuto && !machine.gpu_name.empty());
  limits.speeds = {.matmul_flops_per_s =
                       on_gpu ? machine.gpu_matmul_flops_per_s : machine.cpu_matmul_flops_per_s,
                   .memory_bytes_per_s = machine.memory_bytes_per_s,
                   .bus_bytes_per_s = machine.bus_bytes_per_s,
                   .origin = fmt::format("of the machine '{}'", machine.name)};
  return limits;
}

}  // namespace forebay
