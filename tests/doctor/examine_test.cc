// Single judgements, on both sides of their limits.
#include "forebay/doctor/examine.h"

#include <algorithm>
#include <string>

#include "forebay/doctor/report.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::HasSubstr;

// The one with that id.
Check Of(const std::vector<Check>& checks, const std::string& id) {
  const auto found = std::ranges::find(checks, id, &Check::id);
  EXPECT_NE(found, checks.end()) << id << " is not in\n" << FormatChecks(checks);
  return found == checks.end() ? Check() : *found;
}

MachineFacts GoodHost() {
  MachineFacts facts;
  facts.host.kernel = "6.1.0";
  facts.host.num_cores = 4;
  facts.host.transparent_huge_pages = "always";
  facts.memory.available_bytes = int64_t{16} << 30;
  facts.memory.lockable.none = true;
  facts.cpu.multiplies_bf16 = true;
  return facts;
}

TEST(Examine, LibrariesOfCudaAreALine) {
  EXPECT_EQ(DescribeLibraries({}), "without CUDA");
  EXPECT_EQ(DescribeLibraries({.cuda = {.is_built_in = true, .runtime_version = 13000}}),
            "CUDA 13.0, no driver, no cuBLASLt, no NCCL");
  EXPECT_EQ(DescribeLibraries({.cuda = {.is_built_in = true,
                                        .runtime_version = 13000,
                                        .driver_version = 12080,
                                        .cublaslt_file = "/lib/libcublasLt.so.12"},
                               .nccl_file = "/lib/libnccl.so.2"}),
            "CUDA 13.0, a driver for CUDA 12.8, cuBLASLt /lib/libcublasLt.so.12, NCCL "
            "/lib/libnccl.so.2");
}

TEST(ExamineHost, FindsNothingWrongWithAGoodOne) {
  EXPECT_EQ(WorstOf(ExamineHost(GoodHost())), Verdict::kOk);
}

TEST(ExamineHost, ComparesKernelsByNumber) {
  MachineFacts facts = GoodHost();
  const auto verdict = [&](const char* kernel) {
    facts.host.kernel = kernel;
    return Of(ExamineHost(facts), "kernel").verdict;
  };
  EXPECT_EQ(verdict("6.1.0-13-amd64"), Verdict::kOk);
  EXPECT_EQ(verdict("10.0"), Verdict::kOk);
  EXPECT_EQ(verdict("6.0.9"), Verdict::kWarn);
  EXPECT_EQ(verdict("5.15.0"), Verdict::kWarn);
  EXPECT_EQ(verdict(""), Verdict::kWarn);
}

TEST(ExamineHost, MemlockHasToHoldWhatABudgetWouldTake) {
  MachineFacts facts = GoodHost();
  facts.memory.lockable = {.none = false, .kib = int64_t{13} << 20};
  EXPECT_EQ(Of(ExamineHost(facts), "memlock").verdict, Verdict::kOk);
  facts.memory.lockable.kib = int64_t{12} << 20;
  EXPECT_EQ(Of(ExamineHost(facts), "memlock").verdict, Verdict::kWarn);
}

TEST(ExamineHost, AQuotaBelowTheCoresNamesTheThreadsThatFit) {
  MachineFacts facts = GoodHost();
  facts.cpu.quota = 4.0;
  EXPECT_EQ(Of(ExamineHost(facts), "cpu_quota").verdict, Verdict::kOk);
  facts.cpu.quota = 3.9;
  EXPECT_THAT(Of(ExamineHost(facts), "cpu_quota").value, HasSubstr("--threads is 3 "));
  facts.cpu.quota = 0.5;
  EXPECT_THAT(Of(ExamineHost(facts), "cpu_quota").value, HasSubstr("--threads is 1 "));
}

DiskFacts GoodDisk() {
  DiskFacts disk = {.folder = "/data"};
  disk.storage.fs = "xfs";
  disk.storage.device = "nvme0n1p1";
  disk.storage.free_bytes = disk.storage.total_bytes = 1'000'000'000'000;
  disk.storage.direct.off_align = 4096;
  disk.engine = "io_uring";
  disk.engine_line = "io_uring, direct I/O";
  disk.drives = {{.name = "nvme0n1"}};
  return disk;
}

TEST(ExamineDisk, FindsNothingWrongWithAGoodOne) {
  EXPECT_EQ(WorstOf(ExamineDisk(GoodDisk())), Verdict::kOk);
}

TEST(ExamineDisk, BlocksLargerThanTransfersAreFatal) {
  DiskFacts disk = GoodDisk();
  disk.storage.direct.off_align = 8192;
  EXPECT_EQ(Of(ExamineDisk(disk), "direct_io").verdict, Verdict::kFail);
  disk = GoodDisk();
  disk.storage.queue["logical_block_size"] = "16384";
  EXPECT_EQ(Of(ExamineDisk(disk), "direct_io").verdict, Verdict::kFail);
}

TEST(ExamineDisk, AdvisesAgainstFileSystemsThatAreNoDisk) {
  DiskFacts disk = GoodDisk();
  for (const char* fs : {"tmpfs", "nfs4", "btrfs", "zfs"}) {
    disk.storage.fs = fs;
    EXPECT_EQ(Of(ExamineDisk(disk), "file_system").verdict, Verdict::kWarn) << fs;
  }
  disk.storage.fs = "ext4";
  disk.storage.mount_options = "rw,nobarrier";
  EXPECT_THAT(Of(ExamineDisk(disk), "file_system").fix, HasSubstr("barriers"));
}

TEST(ExamineDisk, ADriveInANarrowSlotOrAHotOneIsSlow) {
  DiskFacts disk = GoodDisk();
  disk.drives[0].pcie = {"16.0 GT/s PCIe", 2, "16.0 GT/s PCIe", 4};
  EXPECT_EQ(Of(ExamineDisk(disk), "pcie").verdict, Verdict::kWarn);
  EXPECT_THAT(Of(ExamineDisk(disk), "pcie").value, HasSubstr("x2, of 16.0 GT/s PCIe x4"));
  disk.drives[0].heat = {84, 83};
  EXPECT_EQ(Of(ExamineDisk(disk), "heat").verdict, Verdict::kWarn);
  disk.drives[0].heat = {82, 83};
  EXPECT_EQ(Of(ExamineDisk(disk), "heat").verdict, Verdict::kOk);
}

TEST(ExamineDisk, AWornDriveIsToBeReplacedAndABrokenOneAtOnce) {
  DiskFacts disk = GoodDisk();
  disk.drives[0].health = {.used_percent = 89, .spare_percent = 10, .least_spare_percent = 10};
  EXPECT_EQ(Of(ExamineDisk(disk), "wear").verdict, Verdict::kOk);
  disk.drives[0].health->used_percent = 90;
  EXPECT_EQ(Of(ExamineDisk(disk), "wear").verdict, Verdict::kWarn);
  disk.drives[0].health->spare_percent = 9;
  EXPECT_EQ(Of(ExamineDisk(disk), "wear").verdict, Verdict::kFail);
  disk.drives[0].health = {.reports_trouble = true};
  EXPECT_EQ(Of(ExamineDisk(disk), "wear").verdict, Verdict::kFail);
}

GpuFacts GoodGpu() {
  GpuFacts gpu = {.is_on_the_bus = true, .driver = "580.82.07"};
  gpu.cuda = {.is_built_in = true, .runtime_version = 13000, .driver_version = 13010};
  gpu.cuda.gpus = {{.name = "Some GPU", .capability_major = 8, .capability_minor = 0}};
  gpu.cuda.cublaslt_file = "libcublasLt.so.13";
  return gpu;
}

TEST(ExamineGpu, FindsNothingWrongWithAGoodOneAndWithNone) {
  EXPECT_EQ(WorstOf(ExamineGpu(GoodGpu())), Verdict::kOk);
  EXPECT_EQ(WorstOf(ExamineGpu({})), Verdict::kOk);
  EXPECT_EQ(WorstOf(ExamineGpu({.cuda = {.is_built_in = true}})), Verdict::kOk);
}

TEST(ExamineGpu, OldCardsGetTheAdviceThatWorksForThem) {
  GpuFacts gpu = GoodGpu();
  gpu.cuda.gpus[0].capability_major = 7;
  gpu.cuda.gpus[0].capability_minor = 5;
  EXPECT_THAT(Of(ExamineGpu(gpu), "card").fix, HasSubstr("--precision=fp16"));
  gpu.cuda.gpus[0].capability_minor = 0;
  EXPECT_THAT(Of(ExamineGpu(gpu), "card").fix, HasSubstr("--device=cpu"));
}

TEST(ExamineGpu, ACardThatCannotBeUsedFails) {
  GpuFacts gpu = GoodGpu();
  gpu.cuda.gpus[0].why_no_memory = "asking for free GPU memory failed";
  EXPECT_EQ(Of(ExamineGpu(gpu), "card").verdict, Verdict::kFail);
  gpu = GoodGpu();
  gpu.cuda.cublaslt_file = "";
  gpu.cuda.why_no_cublaslt = "cuBLASLt was not found";
  EXPECT_EQ(Of(ExamineGpu(gpu), "cublaslt").fix, "cuBLASLt was not found");
  EXPECT_EQ(WorstOf(ExamineGpu({.cuda = {.is_built_in = true}, .is_on_the_bus = true})),
            Verdict::kFail);
}

TEST(ExamineGpu, NcclIsMissedWhereThereAreSeveralCards) {
  GpuFacts gpu = GoodGpu();
  gpu.why_no_nccl = "NCCL was not found";
  EXPECT_EQ(Of(ExamineGpu(gpu), "nccl").verdict, Verdict::kOk);
  gpu.cuda.gpus.push_back(gpu.cuda.gpus[0]);
  EXPECT_EQ(Of(ExamineGpu(gpu), "nccl").verdict, Verdict::kWarn);
  EXPECT_EQ(Of(ExamineGpu(gpu), "nccl").fix, "NCCL was not found");
  gpu.nccl_file = "libnccl.so.2";
  EXPECT_EQ(Of(ExamineGpu(gpu), "nccl").verdict, Verdict::kOk);
}

TEST(ExamineGpu, TheDriverHasToServeTheMajorVersionThatForebayWasBuiltWith) {
  GpuFacts gpu = GoodGpu();
  gpu.cuda.driver_version = 12040;
  EXPECT_EQ(Of(ExamineGpu(gpu), "driver").verdict, Verdict::kFail);
  EXPECT_THAT(Of(ExamineGpu(gpu), "driver").fix, HasSubstr("Install driver 580 or newer"));
  gpu.cuda.driver_version = 0;
  EXPECT_THAT(Of(ExamineGpu(gpu), "driver").fix, HasSubstr("driver 580 or newer"));
  gpu.cuda = {.is_built_in = true, .runtime_version = 12080, .driver_version = 12040};
  gpu.cuda.why_no_gpu = "no CUDA-capable device is detected";
  EXPECT_EQ(Of(ExamineGpu(gpu), "driver").verdict, Verdict::kWarn);
}

TEST(ExamineGpu, ABuildWithoutCudaMattersWhereThereIsACard) {
  EXPECT_EQ(Of(ExamineGpu({.is_on_the_bus = true}), "driver").verdict, Verdict::kWarn);
}

}  // namespace
}  // namespace forebay
