#include "forebay/doctor/machine_facts.h"

#include <filesystem>
#include <memory>
#include <sstream>
#include <utility>

#include "fmt/format.h"
#include "forebay/aio/engine.h"
#include "forebay/aio/open_engine.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/process/cgroups.h"
#include "forebay/collective/nccl/nccl.h"
#include "forebay/measure/host/physical_disks.h"
#include "forebay/memory/available_memory.h"
#include "forebay/model/cpu/ops.h"

namespace forebay {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{4} << 20;

std::string TextAt(const std::string& path) {
  return ReadWholeFile(path, kMaxFileBytes).value_or("");
}

// The words behind "flags" (Arm: "Features") of the first CPU, between blanks.
std::string CpuFlags(const std::string& root) {
  std::istringstream lines(TextAt(root + "/proc/cpuinfo"));
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("flags") && !line.starts_with("Features")) continue;
    const size_t colon = line.find(':');
    return colon == std::string::npos ? "" : line.substr(colon + 1) + " ";
  }
  return "";
}

std::string WhyNoIoUringHere() {
  EngineOptions options;
  options.drive = RingDrive::kWaiter;
  return MessageOf(CreateIoUringEngine(options).status());
}

std::vector<DriveFacts> AskDrives(const std::string& device_folder, const std::string& root) {
  std::vector<DriveFacts> drives;
  for (const std::string& folder : PhysicalDisks(device_folder)) {
    const std::string name = std::filesystem::path(folder).filename();
    drives.push_back({name, LinkOf(folder), HeatOf(folder), AskDriveHealth(root + "/dev/" + name)});
  }
  return drives;
}

bool IsNvidiaCard(const std::string& folder) {
  return TextAt(JoinPath(folder, "vendor")).starts_with("0x10de") &&
         TextAt(JoinPath(folder, "class")).starts_with("0x03");  // display controllers
}

// "580.82.07" of "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.82.07  Wed Aug 27 ...".
std::string DriverVersion(const std::string& root) {
  std::istringstream words(TextAt(root + "/proc/driver/nvidia/version"));
  for (std::string word; words >> word;) {
    const bool is_number = word.find_first_not_of("0123456789.") == std::string::npos;
    if (is_number && word.find('.') != std::string::npos) return word;
  }
  return "";
}

}  // namespace

CpuFacts AskCpu(const std::string& root) {
  const std::string flags = CpuFlags(root);
  const auto has = [&flags](const char* name) {
    return flags.find(fmt::format(" {} ", name)) != std::string::npos;
  };
  CpuFacts cpu;
  cpu.has_avx2 = has("avx2");
  cpu.has_avx512 = has("avx512f");
  cpu.has_avx512_bf16 = has("avx512_bf16");
  cpu.has_amx_bf16 = has("amx_bf16");
  cpu.quota = CpuQuota(root);
  const cpu::Context context(1, cpu::Precision::kBf16);
  cpu.matrix_products = context.kernel_identity();
  cpu.multiplies_bf16 = context.native_bf16();
  return cpu;
}

MemoryFacts AskMemory(const std::string& root) {
  return {.available_bytes = AvailableMemoryBytes(root),
          .cgroup_room_bytes = CgroupRoomBytes(root),
          .reserved_huge_bytes = FreeReservedHugeBytes(root),
          .lockable = MemlockLimit::Ask()};
}

DiskFacts AskDisk(const std::string& folder, const std::string& root) {
  DiskFacts disk = {.folder = folder};
  if (!IsDirectory(folder)) {
    disk.why_unusable = "It is no folder: make it, or name another one";
    return disk;
  }
  absl::StatusOr<StorageInfo> storage = AskStorage(folder, root);
  if (!storage.ok()) {
    disk.why_unusable = MessageOf(storage.status());
    return disk;
  }
  const absl::StatusOr<OpenedEngine> opened = OpenEngine(EngineOptions(), {folder});
  if (!opened.ok()) {
    disk.why_unusable = MessageOf(opened.status());
    return disk;
  }
  disk.storage = *std::move(storage);
  disk.drives = AskDrives(disk.storage.device_folder, root);
  disk.engine = NameOf(opened->kind);
  disk.engine_line = opened->line;
  return disk;
}

GpuFacts AskBus(const std::string& root) {
  GpuFacts gpu;
  const std::string devices = root + "/sys/bus/pci/devices";
  for (const std::string& device : ListFolder(devices).value_or(std::vector<std::string>())) {
    gpu.is_on_the_bus |= IsNvidiaCard(JoinPath(devices, device));
  }
  gpu.driver = DriverVersion(root);
  return gpu;
}

namespace {

void AskNccl(GpuFacts& gpu) {
  if (!gpu.cuda.is_built_in) return;
  const absl::StatusOr<std::string> file = NcclFile();
  (file.ok() ? gpu.nccl_file : gpu.why_no_nccl) = file.ok() ? *file : MessageOf(file.status());
}

}  // namespace

GpuFacts AskGpuLibraries() {
  GpuFacts gpu;
  gpu.cuda = AskCudaLibraries();
  AskNccl(gpu);
  return gpu;
}

MachineFacts AskMachineFacts(const std::vector<std::string>& folders) {
  MachineFacts facts;
  facts.host = AskHost();
  facts.why_no_io_uring = WhyNoIoUringHere();
  facts.cpu = AskCpu();
  facts.memory = AskMemory();
  for (const std::string& folder : folders) facts.disks.push_back(AskDisk(folder));
  facts.gpu = AskBus();
  facts.gpu.cuda = AskCuda();
  AskNccl(facts.gpu);
  return facts;
}

}  // namespace forebay
