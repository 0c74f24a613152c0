#include "forebay/train/plan/ask_machine.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/device/device.h"
#include "forebay/memory/process_memory.h"
#include "forebay/offload/ask_machine.h"
#include "forebay/train/files/run_folder.h"

namespace forebay {
namespace {

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

GpuLimits AskOneGpu(int index) {
  const absl::StatusOr<std::unique_ptr<Device>> device = CreateCudaDevice(index);
  if (!device.ok()) return {.why_none = MessageOf(device.status())};
  const absl::StatusOr<DeviceMemory> memory = (*device)->Memory();
  if (!memory.ok()) return {.why_none = MessageOf(memory.status())};
  return {.name = (*device)->name(),
          .free_bytes = memory->free_bytes,
          .has_bf16 = (*device)->HasBf16()};
}

// Tells what every one of them has.
GpuLimits AskGpus(const TrainOptions& options) {
  GpuLimits limits = AskOneGpu(options.gpu_index);
  for (int part = 1; part < options.data_parallel && !limits.name.empty(); ++part) {
    const GpuLimits other = AskOneGpu(options.gpu_index + part);
    if (other.name.empty()) {
      return {.why_none = fmt::format("--data_parallel={} asks for as many GPUs: {}",
                                      options.data_parallel, other.why_none)};
    }
    limits.free_bytes = std::min(limits.free_bytes, other.free_bytes);
    limits.has_bf16 = limits.has_bf16 && other.has_bf16;
  }
  return limits;
}

}  // namespace

std::vector<std::string> SwapFoldersOf(const TrainOptions& options) {
  if (!options.nvme.empty()) return options.nvme;
  return {options.out.empty() ? "." : options.out};
}

MachineLimits AskMachine(const TrainOptions& options) {
  const std::vector<std::string> folders = SwapFoldersOf(options);
  MachineLimits limits = LimitsOfMachine(folders);
  // A budget is for the whole process, and what that has already is not available any more.
  limits.available_memory_bytes += ReadProcessMemory().resident_bytes;
  if (options.device != ComputeDevice::kCpu) limits.gpu = AskGpus(options);
  if (options.nvme.empty()) {
    DiskLimits& disk = limits.disks.front();
    // Nobody has said where: a plan alone.
    if (options.out.empty()) disk = DiskLimits();
    disk.folder = JoinPath(options.out, "swap");
  }
  if (!options.out.empty()) {
    limits.out_free_bytes = AskFileSystem(options.out, limits.out_file_system);
    if (options.resume) {
      const RunPaths paths(options.out);
      limits.exported_bytes = BytesBelow(paths.model) + BytesBelow(paths.exports);
    }
  }
  return limits;
}

}  // namespace forebay
