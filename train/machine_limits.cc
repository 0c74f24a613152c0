#include "forebay/train/machine_limits.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "forebay/base/file.h"
#include "forebay/memory/available_memory.h"

namespace forebay {
namespace {

// The nearest folder of `path` that exists, itself included.
std::string NearestExisting(const std::string& path) {
  std::error_code error;
  std::filesystem::path at = std::filesystem::absolute(path, error);
  while (!error && !std::filesystem::exists(at, error) && at.has_parent_path() &&
         at != at.parent_path()) {
    error.clear();
    at = at.parent_path();
  }
  return at.string();
}

}  // namespace

MachineLimits AskMachine(const TrainOptions& options) {
  MachineLimits limits;
  limits.available_memory_bytes = AvailableMemoryBytes();
  limits.num_cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const std::string& swap = options.nvme.empty() ? options.out : options.nvme;
  struct stat swap_stat {
  }, out_stat{};
  if (!swap.empty()) {
    const std::string existing = NearestExisting(swap);
    limits.nvme_free_bytes = FreeSpace(existing).value_or(-1);
    ::stat(existing.c_str(), &swap_stat);
  }
  if (!options.out.empty()) {
    const std::string existing = NearestExisting(options.out);
    limits.out_free_bytes = FreeSpace(existing).value_or(-1);
    ::stat(existing.c_str(), &out_stat);
  }
  limits.one_file_system = swap_stat.st_dev == out_stat.st_dev;
  return limits;
}

}  // namespace forebay
