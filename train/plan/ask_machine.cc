#include "forebay/train/plan/ask_machine.h"

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

std::vector<std::string> SwapFoldersOf(const TrainOptions& options) {
  if (!options.nvme.empty()) return options.nvme;
  return {options.out.empty() ? "." : options.out};
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
