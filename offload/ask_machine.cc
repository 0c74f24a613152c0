#include "forebay/offload/ask_machine.h"

#include <sys/stat.h>

#include "forebay/base/file.h"
#include "forebay/base/file_space.h"
#include "forebay/base/process/cores.h"
#include "forebay/memory/available_memory.h"

namespace forebay {

int64_t AskFileSystem(const std::string& folder, uint64_t& file_system) {
  const std::string existing = NearestFolder(folder);
  struct stat info = {};
  if (::stat(existing.c_str(), &info) == 0) file_system = info.st_dev;
  return FreeSpace(existing).value_or(-1);
}

MachineLimits LimitsOfMachine(const std::vector<std::string>& folders) {
  MachineLimits limits;
  limits.available_memory_bytes = AvailableMemoryBytes();
  limits.num_cores = DefaultThreads();
  limits.most_bytes_of_a_file = MostBytesOfAFile();
  limits.disks.clear();
  for (const std::string& folder : folders) {
    DiskLimits& disk = limits.disks.emplace_back();
    disk.folder = folder;
    disk.free_bytes = AskFileSystem(folder, disk.file_system);
  }
  return limits;
}

}  // namespace forebay
