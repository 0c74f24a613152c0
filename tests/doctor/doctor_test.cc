// Whole machines, from the files of /proc and /sys to the words that people and programs read.
#include <cstdlib>
#include <fstream>
#include <string>

#include "forebay/base/errors.h"
#include "forebay/doctor/examine.h"
#include "forebay/doctor/report.h"
#include "forebay/tests/doctor/fake_root.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

constexpr char kNvme[] = "/sys/devices/pci0000:00/0000:01:00.0/nvme/nvme0/nvme0n1";
constexpr char kPciDevice[] = "/sys/devices/pci0000:00/0000:01:00.0/";

// The facts that no file tells, the same on every machine.
void AddWhatIsTried(MachineFacts& facts) {
  facts.host.num_cores = 16;
  facts.cpu.matrix_products = "onednn 2.6.3 avx512_core_bf16 bf16-2";
  facts.cpu.multiplies_bf16 = true;
  facts.memory.lockable = {.none = true, .kib = std::nullopt};
  facts.gpu.cuda.is_built_in = true;
  facts.gpu.cuda.runtime_version = 13000;
}
// A folder that is there, on a disk that is not.
DiskFacts DiskAt(const std::string& folder, const FakeRoot& root) {
  DiskFacts disk = AskDisk(folder, root.path());
  EXPECT_EQ(disk.why_unusable, "");
  disk.folder = "/data";
  disk.storage.total_bytes = 2'000'000'000'000;
  disk.storage.free_bytes = 1'200'000'000'000;
  disk.storage.direct = {.off_align = 512};
  disk.engine = "io_uring";
  disk.engine_line = "io_uring, direct I/O";
  return disk;
}

void WriteProcessor(FakeRoot& root, const std::string& flags) {
  root.Write("/proc/sys/kernel/osrelease", "6.12.9-amd64\n");
  root.Write("/proc/sys/kernel/hostname", "tower\n");
  root.Write("/proc/cpuinfo", "processor\t: 0\nmodel name\t: Some CPU 9000\nflags\t\t: " + flags +
                                  "\n\nprocessor\t: 1\nmodel name\t: Some CPU 9000\n");
}

// A workstation on which nothing is wrong: the disk is a partition under LVM.
MachineFacts Tower(FakeRoot& root, const std::string& folder) {
  WriteProcessor(root, "fpu sse2 avx2 avx512f avx512_bf16 amx_bf16 amx_tile");
  root.Write("/proc/meminfo", "MemTotal: 67108864 kB\nMemAvailable: 62914560 kB\n");
  root.Write("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
  root.Write(std::string(kPciDevice) + "current_link_speed", "16.0 GT/s PCIe\n");
  root.Write(std::string(kPciDevice) + "current_link_width", "4\n");
  root.Write(std::string(kPciDevice) + "max_link_speed", "16.0 GT/s PCIe\n");
  root.Write(std::string(kPciDevice) + "max_link_width", "4\n");
  root.Write(std::string(kNvme) + "/queue/logical_block_size", "512\n");
  root.Write(std::string(kNvme) + "/nvme0n1p2/partition", "2\n");
  root.Write(std::string(kPciDevice) + "nvme/nvme0/hwmon1/temp1_input", "41850\n");
  root.Write(std::string(kPciDevice) + "nvme/nvme0/hwmon1/temp1_max", "83850\n");
  const std::string volume = "/sys/devices/virtual/block/dm-0";
  root.Write(volume + "/queue/logical_block_size", "512\n");
  root.Link(volume + "/slaves/nvme0n1p2", std::string(kNvme) + "/nvme0n1p2");
  root.PutOnDevice(folder, volume, "ext4", "rw,relatime");
  root.Write("/sys/bus/pci/devices/0000:02:00.0/vendor", "0x10de\n");
  root.Write("/sys/bus/pci/devices/0000:02:00.0/class", "0x030000\n");
  root.Write(
      "/proc/driver/nvidia/version",
      "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.82.07  Wed Aug 27 17:55:57 UTC\n");

  MachineFacts facts;
  facts.host = AskHost(root.path());
  facts.cpu = AskCpu(root.path());
  facts.memory = AskMemory(root.path());
  facts.gpu = AskBus(root.path());
  AddWhatIsTried(facts);
  facts.disks = {DiskAt(folder, root)};
  facts.disks[0].drives.at(0).health = {.used_percent = 3, .written_bytes = 12'300'000'000'000};
  facts.gpu.cuda.driver_version = 13000;
  facts.gpu.cuda.gpus = {{.name = "Some GPU",
                          .capability_major = 12,
                          .capability_minor = 0,
                          .free_bytes = int64_t{23} << 30,
                          .total_bytes = int64_t{24} << 30}};
  facts.gpu.cuda.cublaslt_file = "/usr/local/cuda/lib64/libcublasLt.so.13";
  facts.gpu.nccl_file = "/usr/lib/libnccl.so.2";
  return facts;
}

// A small container on an old host, in which nearly everything is.
MachineFacts Container(FakeRoot& root, const std::string& folder) {
  WriteProcessor(root, "fpu sse2 avx2");
  root.Write("/proc/sys/kernel/osrelease", "5.4.0-100-generic\n");
  root.Write("/proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n");
  root.Write("/proc/self/cgroup", "4:cpu,cpuacct:/job\n3:memory:/job\n0::/\n");
  root.Write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "805306368\n");
  root.Write("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "268435456\n");
  root.Write("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "250000\n");
  root.Write("/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  root.Write("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
  const std::string disk = "/sys/devices/virtual/block/sda";
  root.Write(disk + "/queue/rotational", "1\n");
  root.PutOnDevice(folder, disk, "overlay", "rw");
  root.Write("/sys/bus/pci/devices/0000:02:00.0/vendor", "0x10de\n");
  root.Write("/sys/bus/pci/devices/0000:02:00.0/class", "0x030200\n");

  MachineFacts facts;
  facts.host = AskHost(root.path());
  facts.cpu = AskCpu(root.path());
  facts.memory = AskMemory(root.path());
  facts.gpu = AskBus(root.path());
  AddWhatIsTried(facts);
  facts.why_no_io_uring = "io_uring was refused. Allow it with 'sysctl'";
  facts.cpu.matrix_products = "onednn 2.6.3 avx2 fp32-widened";
  facts.cpu.multiplies_bf16 = false;
  facts.memory.lockable = {.none = false, .kib = 64};
  facts.disks = {DiskAt(folder, root)};
  facts.disks[0].storage.direct = {.why_not = "EINVAL"};
  facts.disks[0].storage.free_bytes = 1'000'000'000;
  facts.disks[0].engine = "buffered";
  facts.disks[0].engine_line = "threads through the page cache, as O_DIRECT is refused";
  facts.disks.push_back(AskDisk("/gone", root.path()));
  return facts;
}

// Compares with a file in golden/, or with FOREBAY_UPDATE_GOLDEN set writes it anew.
void ExpectGoldenText(const std::string& actual, const std::string& name) {
  const std::string path = std::string(FOREBAY_SOURCE_DIR "/tests/doctor/golden/") + name;
  if (std::getenv("FOREBAY_UPDATE_GOLDEN") != nullptr) std::ofstream(path) << actual;
  EXPECT_EQ(actual, ReadWholeFile(path, 1 << 20).value_or("")) << path;
}

void ExpectGolden(const MachineFacts& facts, const std::string& name) {
  const std::vector<Check> checks = Examine(facts);
  ExpectGoldenText(FormatChecks(checks), name + ".txt");
  ExpectGoldenText(ChecksToJson(checks, "1.2.3").dump(2) + "\n", name + ".json");
}

class Doctor : public testing::Test {
 protected:
  FakeRoot root_;
  const TemporaryFolder folder_;
};

TEST_F(Doctor, FindsNothingWrongWithAWorkstation) {
  const MachineFacts facts = Tower(root_, folder_.path());
  EXPECT_EQ(WorstOf(Examine(facts)), Verdict::kOk);
  ExpectGolden(facts, "tower");
}

TEST_F(Doctor, NamesEveryFixOfAContainer) {
  const MachineFacts facts = Container(root_, folder_.path());
  EXPECT_EQ(WorstOf(Examine(facts)), Verdict::kFail);
  ExpectGolden(facts, "container");
}

TEST_F(Doctor, SaysEverythingOfTheMachineThatItRunsOn) {
  const std::vector<Check> checks = Examine(AskMachineFacts({folder_.path(), "/there/is/none"}));
  EXPECT_GE(checks.size(), 12u) << FormatChecks(checks);
  for (const Check& check : checks) {
    EXPECT_NE(check.value, "") << check.id;
    EXPECT_EQ(check.fix.empty(), check.verdict == Verdict::kOk) << check.id << ": " << check.fix;
  }
  EXPECT_EQ(WorstOf(checks), Verdict::kFail) << "a folder is missing";
}

}  // namespace
}  // namespace forebay
