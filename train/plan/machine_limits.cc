#include "forebay/train/plan/machine_limits.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <thread>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/file_space.h"
#include "forebay/base/format.h"
#include "forebay/memory/available_memory.h"
#include "forebay/train/files/run_folder.h"

namespace forebay {
namespace {

void AskFileSystem(const std::string& folder, int64_t& free_bytes, uint64_t& file_system) {
  const std::string existing = NearestFolder(folder);
  struct stat info = {};
  free_bytes = FreeSpace(existing).value_or(-1);
  if (::stat(existing.c_str(), &info) == 0) file_system = info.st_dev;
}

// Of the files below `folder`; what cannot be looked at, and what is not there, counts nothing.
int64_t BytesBelow(const std::string& folder) {
  namespace fs = std::filesystem;
  int64_t bytes = 0;
  std::error_code error;
  const auto options = fs::directory_options::skip_permission_denied;
  for (fs::recursive_directory_iterator entry(folder, options, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code no_file;
    if (!entry->is_regular_file(no_file)) continue;
    const std::uintmax_t size = entry->file_size(no_file);
    if (!no_file) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

}  // namespace

FoldersOfDisks ByFileSystem(const std::vector<DiskLimits>& disks) {
  FoldersOfDisks folders;
  for (size_t i = 0; i < disks.size(); ++i) folders[disks[i].file_system].push_back(i);
  return folders;
}

std::vector<std::string> SwapFoldersOf(const TrainOptions& options) {
  if (!options.nvme.empty()) return options.nvme;
  return {options.out.empty() ? "." : options.out};
}

absl::StatusOr<int64_t> RamBudget(int64_t ram_bytes, const MachineLimits& limits) {
  const int64_t available = limits.available_memory_bytes;
  if (ram_bytes == 0) return static_cast<int64_t>(static_cast<double>(available) * kAutoShare);
  if (available > 0 && ram_bytes > available) {
    return DoesNotFitError(
        fmt::format("--ram={} is more than this process can have: {} is available now "
                    "(/proc/meminfo and cgroup limits). Use --ram={}MiB or less, or free memory",
                    FormatBinaryBytes(ram_bytes), FormatBinaryBytes(available), available >> 20));
  }
  return ram_bytes;
}

MachineLimits AskMachine(const TrainOptions& options) {
  MachineLimits limits;
  limits.available_memory_bytes = AvailableMemoryBytes();
  limits.num_cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  limits.most_bytes_of_a_file = MostBytesOfAFile();
  limits.disks.clear();
  for (const std::string& folder : SwapFoldersOf(options)) {
    DiskLimits& disk = limits.disks.emplace_back();
    disk.folder = options.nvme.empty() ? JoinPath(options.out, "swap") : folder;
    if (options.nvme.empty() && options.out.empty()) continue;
    AskFileSystem(folder, disk.free_bytes, disk.file_system);
  }
  if (!options.out.empty()) {
    AskFileSystem(options.out, limits.out_free_bytes, limits.out_file_system);
    if (options.resume) {
      const RunPaths paths(options.out);
      limits.exported_bytes = BytesBelow(paths.model) + BytesBelow(paths.exports);
    }
  }
  return limits;
}

}  // namespace forebay
