// All that is looked at on a machine, before anybody judges it. `root` stands for "/" in tests:
// what is read from /proc and /sys is read below it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "forebay/aio/kernel_limits.h"
#include "forebay/device/cuda_info.h"
#include "forebay/measure/host/drive_health.h"
#include "forebay/measure/host/host_info.h"

namespace forebay {

struct CpuFacts {
  bool has_avx2 = false;
  bool has_avx512 = false;
  bool has_avx512_bf16 = false;
  bool has_amx_bf16 = false;
  std::optional<double> quota;   // CPUs' time that the cgroups allow
  std::string matrix_products;   // Context::kernel_identity of bf16
  bool multiplies_bf16 = false;  // in hardware, by that library
};
CpuFacts AskCpu(const std::string& root = "");

struct MemoryFacts {
  int64_t available_bytes = 0;  // all that the process may have
  std::optional<int64_t> cgroup_room_bytes;
  int64_t reserved_huge_bytes = 0;
  MemlockLimit lockable;
};
MemoryFacts AskMemory(const std::string& root = "");

// A drive that a folder's file system lies on.
struct DriveFacts {
  std::string name;  // "nvme0n1"
  PcieLink pcie;
  std::optional<DriveHeat> heat;
  std::optional<DriveHealth> health;
};
struct DiskFacts {
  std::string folder;
  std::string why_unusable;  // an error's message; all below is empty then
  StorageInfo storage;
  std::vector<DriveFacts> drives;
  std::string engine;       // "io_uring": the best that works there
  std::string engine_line;  // OpenedEngine::line
};
DiskFacts AskDisk(const std::string& folder, const std::string& root = "");

struct GpuFacts {
  CudaInfo cuda;
  std::string nccl_file;       // what was opened; ""
  std::string why_no_nccl;     // else ""
  bool is_on_the_bus = false;  // an NVIDIA card, whether or not there is a driver
  std::string driver;          // "580.82.07"; "": its module is not loaded
};
// All but what is of CUDA and NCCL.
GpuFacts AskBus(const std::string& root = "");
// Only those, without the cards.
GpuFacts AskGpuLibraries();

struct MachineFacts {
  HostInfo host;
  std::string why_no_io_uring;  // ""; it works
  CpuFacts cpu;
  MemoryFacts memory;
  std::vector<DiskFacts> disks;
  GpuFacts gpu;
};
// Asks this machine. Tries transfers in each folder, and makes contexts on GPUs (AskCuda).
MachineFacts AskMachineFacts(const std::vector<std::string>& folders);

}  // namespace forebay
