#include "forebay/memory/numa.h"

#include <linux/filter.h>
#include <linux/mempolicy.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <fstream>

#include "forebay/memory/host_buffer.h"
#include "forebay/tests/child_process.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

// Just enough of /sys.
class FakeSysfs {
 public:
  FakeSysfs() { fs::create_directories(fs::path(folder_.path()) / "dev/block"); }
  const std::string& path() const { return folder_.path(); }
  void AddDevice(const std::string& numbers, const std::string& folder) {
    fs::create_directories(fs::path(path()) / folder);
    fs::create_symlink(fs::path("../..") / folder, fs::path(path()) / "dev/block" / numbers);
  }
  void AddPart(const std::string& device, const std::string& part) {
    fs::create_directories(fs::path(path()) / device / "slaves");
    fs::create_symlink(fs::path(path()) / part,
                       fs::path(path()) / device / "slaves" / fs::path(part).filename());
  }
  void SetNode(const std::string& folder, int node) {
    std::ofstream(fs::path(path()) / folder / "numa_node") << node << "\n";
  }

 private:
  TemporaryFolder folder_;
};

TEST(Numa, FindsTheNodeOfTheHardwareUnderAPartition) {
  FakeSysfs sysfs;
  sysfs.AddDevice("259:1", "devices/pci0/nvme/nvme0/nvme0n1/nvme0n1p1");
  sysfs.SetNode("devices/pci0", 1);
  EXPECT_EQ(NumaNodeOfDevice(259, 1, sysfs.path()), 1);
}

TEST(Numa, MinusOneIsNormal) {
  FakeSysfs sysfs;
  sysfs.AddDevice("259:0", "devices/pci0/nvme0n1");
  sysfs.AddDevice("7:0", "devices/virtual/block/loop0");
  sysfs.SetNode("devices/pci0", -1);
  EXPECT_EQ(NumaNodeOfDevice(259, 0, sysfs.path()), -1) << "the firmware does not say";
  EXPECT_EQ(NumaNodeOfDevice(7, 0, sysfs.path()), -1) << "no hardware";
  EXPECT_EQ(NumaNodeOfDevice(0, 42, sysfs.path()), -1) << "no block device: tmpfs, NFS";
  EXPECT_EQ(NumaNodeOfPath("/no/such/folder"), -1);
}

TEST(Numa, OfARaidIsThatOfItsDisksWhereTheyAgree) {
  FakeSysfs sysfs;
  sysfs.AddDevice("259:0", "devices/pci0/nvme0n1");
  sysfs.AddDevice("259:1", "devices/pci1/nvme1n1");
  sysfs.AddDevice("9:0", "devices/virtual/block/md0");
  sysfs.AddDevice("259:9", "devices/virtual/block/md0/md0p1");
  sysfs.AddPart("devices/virtual/block/md0", "devices/pci0/nvme0n1");
  sysfs.AddPart("devices/virtual/block/md0", "devices/pci1/nvme1n1");
  sysfs.SetNode("devices/pci0", 1);
  sysfs.SetNode("devices/pci1", 1);
  EXPECT_EQ(NumaNodeOfDevice(9, 0, sysfs.path()), 1);
  EXPECT_EQ(NumaNodeOfDevice(259, 9, sysfs.path()), 1) << "a partition of it";
  sysfs.SetNode("devices/pci1", 0);
  EXPECT_EQ(NumaNodeOfDevice(9, 0, sysfs.path()), -1);
}

TEST(Numa, ANodeThatTheMachineLacksIsANoteAndTheBufferWorks) {
  MemoryBudget budget(0);
  const auto buffer = HostBuffer::Create(&budget, "test", 8192, {.numa_node = 1000});
  ASSERT_TRUE(buffer.ok());
  EXPECT_THAT(buffer->pages().note, HasSubstr("NUMA node 1000"));
  EXPECT_THAT(DescribePages(budget.pages()), HasSubstr("NUMA node 1000"));
  buffer->bytes().back() = std::byte{1};
}

TEST(Numa, NodeZeroIsThereUnlessTheKernelKnowsNoNodes) {
  MemoryBudget budget(0);
  const auto buffer = HostBuffer::Create(&budget, "test", 8192, {.numa_node = 0});
  ASSERT_TRUE(buffer.ok());
  if (buffer->pages().note.find("ENOSYS") != std::string::npos ||
      buffer->pages().note.find("EPERM") != std::string::npos) {
    GTEST_SKIP() << buffer->pages().note;
  }
  EXPECT_EQ(buffer->pages().note, "");
}

TEST(Numa, ABufferIsBoundToTheNodeThatItIsGiven) {
  MemoryBudget budget(0);
  const auto bound = HostBuffer::Create(&budget, "test", 8192, {.numa_node = 0});
  const auto anywhere = HostBuffer::Create(&budget, "test", 8192);
  ASSERT_TRUE(bound.ok() && anywhere.ok());
  if (!bound->pages().note.empty()) GTEST_SKIP() << bound->pages().note;
  // The preferred nodes of the memory at `data`; 0: it may be anywhere.
  const auto preferred = [](std::byte* data) -> unsigned long {
    int mode = -1;
    unsigned long nodes[16] = {};
    EXPECT_EQ(::syscall(SYS_get_mempolicy, &mode, nodes, 1024ul, data, MPOL_F_ADDR), 0);
    return mode == MPOL_PREFERRED || mode == MPOL_PREFERRED_MANY ? nodes[0] : 0;
  };
  EXPECT_EQ(preferred(bound->data()), 1ul) << "the bit of node 0";
  EXPECT_EQ(preferred(anywhere->data()), 0ul);
}

// As containers do it.
bool ForbidMbind() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mbind, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter = {static_cast<unsigned short>(std::size(program)), program};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

TEST(Numa, InAContainerThatForbidsItIsANoteAndTheBufferWorks) {
  const std::string said = InChild([]() -> std::string {
    if (!ForbidMbind()) return "skip";
    MemoryBudget budget(0);
    const auto buffer = HostBuffer::Create(&budget, "test", 8192, {.numa_node = 0});
    if (!buffer.ok()) return "no buffer";
    buffer->bytes().back() = std::byte{1};
    return buffer->pages().note;
  });
  if (said == "skip") GTEST_SKIP() << "no seccomp filter can be set here";
  EXPECT_THAT(said, HasSubstr("EPERM"));
}

}  // namespace
}  // namespace forebay
