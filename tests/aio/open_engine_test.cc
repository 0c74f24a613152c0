// The ladder, on the machines that it is for: each test makes the machine in a child process.
#include "forebay/aio/open_engine.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/tests/aio/engine_fixture.h"
#include "forebay/tests/aio/scratch_mount.h"
#include "forebay/tests/child_process.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr int64_t kFileBytes = int64_t{16} << 20;

// Writes and reads a store's file through `engine`, the way a store does; "" or what went wrong.
std::string UseEngine(Engine& engine, const std::string& folder, bool registered = false) {
  MemoryBudget budget(0);
  auto memory = HostBuffer::Create(&budget, "test", 2 * kFileBytes);
  if (!memory.ok()) return MessageOf(memory.status());
  std::string note;
  if (registered) note = MessageOf(engine.RegisterBuffers(memory->bytes()));
  const std::string path = JoinPath(folder, "file");
  auto file =
      OpenDirectFile(path, {.create = true, .size_bytes = kFileBytes, .direct = engine.direct()});
  if (!file.ok()) return MessageOf(file.status());
  const int number = engine.AddFile(std::move(file->fd), path);
  const auto written = memory->bytes().first(kFileBytes);
  const auto read = memory->bytes().last(kFileBytes);
  for (size_t i = 0; i < written.size(); i += 512) written[i] = static_cast<std::byte>(i >> 9);
  for (const IoKind kind : {IoKind::kWrite, IoKind::kFlush, IoKind::kRead}) {
    IoOp op;
    op.kind = kind;
    op.file = number;
    if (kind != IoKind::kFlush) op.buffer = kind == IoKind::kWrite ? written : read;
    engine.Submit(op);
    const absl::Status status = engine.Wait(op);
    if (!status.ok()) return MessageOf(status);
  }
  if (!SameBytes(read, written)) return "other bytes came back";
  if (registered) engine.UnregisterBuffers(memory->bytes());
  engine.RemoveFile(number);
  return note;
}

// Opens an engine and uses it: "KIND|LINE|what went wrong", or "error|MESSAGE".
std::string OpenAndUse(const EngineOptions& options, const std::string& folder,
                       bool registered = false) {
  absl::StatusOr<OpenedEngine> opened = OpenEngine(options, {folder});
  if (!opened.ok()) {
    return fmt::format("error {}|{}", static_cast<int>(ExitCodeOf(opened.status())),
                       MessageOf(opened.status()));
  }
  return fmt::format("{}|{}|{}", NameOf(opened->kind), opened->line,
                     UseEngine(*opened->engine, folder, registered));
}

bool HasDirectIo(const std::string& folder) {
  const auto file =
      OpenDirectFile(JoinPath(folder, "direct"), {.create = true, .size_bytes = 4096});
  std::filesystem::remove(JoinPath(folder, "direct"));
  return file.ok() && file->direct;
}

// From here on the kernel answers these system calls with `error_number`, as container runtimes
// make it do; "" or why it does not.
std::string ForbidCalls(const std::vector<uint32_t>& calls, int error_number) {
  std::vector<sock_filter> filter;
  filter.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
  for (size_t i = 0; i < calls.size(); ++i) {
    const auto to_refusal = static_cast<uint8_t>(calls.size() - i);
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i], to_refusal, 0));
  }
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  filter.push_back(
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error_number)));
  const sock_fprog program = {static_cast<unsigned short>(filter.size()), filter.data()};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    return "skip: no seccomp filters here: " + ErrnoText(errno);
  }
  return "";
}

const std::vector<uint32_t> kIoUringCalls = {SYS_io_uring_setup, SYS_io_uring_enter,
                                             SYS_io_uring_register};

class OpenEngineTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!HasDirectIo(folder_.path())) {
      GTEST_SKIP() << "the temporary folder (TMPDIR) has no direct I/O";
    }
  }

  std::string WithForbidden(const std::vector<uint32_t>& calls, int error_number,
                            const EngineOptions& options) {
    return InChild([&] {
      const std::string why_not = ForbidCalls(calls, error_number);
      return why_not.empty() ? OpenAndUse(options, folder_.path()) : why_not;
    });
  }

  const TemporaryFolder folder_;
};

#define SKIP_IF_TOLD(result) \
  if (result.starts_with("skip: ")) GTEST_SKIP() << result.substr(6)

// Says why there is no io_uring. The engine is gone at once: what follows may fork.
absl::Status IoUringStatus() {
  return CreateIoUringEngine({}).status();
}

TEST_F(OpenEngineTest, TakesIoUringWhereTheMachineHasIt) {
  if (const absl::Status status = IoUringStatus(); !status.ok()) GTEST_SKIP() << status;
  const std::string result = OpenAndUse({}, folder_.path(), /*registered=*/true);
  EXPECT_THAT(result, AllOf(StartsWith("io_uring|io_uring"), HasSubstr("direct I/O|")));
}

TEST_F(OpenEngineTest, LeavesNothingBehindAndNeedsNoFolderThatExists) {
  const std::string deep = folder_.Path("not/there/yet");
  const auto opened = OpenEngine({}, {deep});
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(OpenEngineTest, UnderASeccompProfileThatForbidsIoUringItTakesLibaioAndSaysTheFix) {
  const std::string result = WithForbidden(kIoUringCalls, EPERM, {});
  SKIP_IF_TOLD(result);
  EXPECT_THAT(result, StartsWith("libaio|libaio, direct I/O: io_uring was refused with EPERM"));
  EXPECT_THAT(result, AllOf(HasSubstr("seccomp profile"), HasSubstr("--security-opt seccomp=")));
  EXPECT_THAT(result, testing::EndsWith("|")) << "and it works";
}

TEST_F(OpenEngineTest, AProfileThatForbidsOnlyTheUseOfARingIsNoticedAtOnce) {
  const std::string result = WithForbidden({SYS_io_uring_enter}, EPERM, {});
  SKIP_IF_TOLD(result);
  EXPECT_THAT(result, StartsWith("libaio|"));
  EXPECT_THAT(result, testing::EndsWith("|"));
}

TEST_F(OpenEngineTest, AProfileThatForbidsRegistrationCostsOnlyRegistration) {
  const std::string result = WithForbidden({SYS_io_uring_register}, EPERM, {});
  SKIP_IF_TOLD(result);
  EXPECT_THAT(result, testing::EndsWith("|"));
}

TEST_F(OpenEngineTest, WithoutIoUringAndLibaioItTakesThreads) {
  std::vector<uint32_t> calls = kIoUringCalls;
  calls.push_back(SYS_io_setup);
  const std::string result = WithForbidden(calls, EPERM, {});
  SKIP_IF_TOLD(result);
  EXPECT_THAT(result, AllOf(StartsWith("threads|threads (2), direct I/O: "), HasSubstr("io_uring"),
                            HasSubstr("libaio was refused")));
  EXPECT_THAT(result, testing::EndsWith("|"));
}

TEST_F(OpenEngineTest, AKernelWithoutIoUringIsToldApartFromAProfile) {
  const std::string result = WithForbidden(kIoUringCalls, ENOSYS, {});
  SKIP_IF_TOLD(result);
  EXPECT_THAT(result, AllOf(StartsWith("libaio|"), HasSubstr("ENOSYS"), HasSubstr("older than 5.1"),
                            Not(HasSubstr("seccomp"))));
}

TEST_F(OpenEngineTest, StrictRefusesToStepDown) {
  for (const EngineKind kind : {EngineKind::kAuto, EngineKind::kIoUring}) {
    const std::string result =
        WithForbidden(kIoUringCalls, EPERM, {.engine = kind, .strict = true});
    SKIP_IF_TOLD(result);
    EXPECT_THAT(result, AllOf(StartsWith("error 9|"), HasSubstr("--engine_strict"),
                              HasSubstr("seccomp profile")));
  }
}

TEST_F(OpenEngineTest, TakesTheEngineThatWasAskedForAndNoBetterOne) {
  EXPECT_THAT(OpenAndUse({.engine = EngineKind::kThreads, .strict = true}, folder_.path()),
              AllOf(StartsWith("threads|threads (2), direct I/O|"), testing::EndsWith("|")));
  std::filesystem::remove(folder_.Path("file"));
  EXPECT_THAT(OpenAndUse({.engine = EngineKind::kBuffered, .strict = true}, folder_.path()),
              AllOf(StartsWith("buffered|buffered threads (2), through the page cache|"),
                    testing::EndsWith("|")));
}

TEST_F(OpenEngineTest, AUserWithLittleLockedMemoryGetsTheRingAndTheFixForTheRest) {
  if (const absl::Status status = IoUringStatus(); !status.ok()) GTEST_SKIP() << status;
  ASSERT_EQ(::chmod(folder_.path().c_str(), 0777), 0);
  const std::string result = InChild([&]() -> std::string {
    const struct rlimit limit = {int64_t{8} << 20, int64_t{8} << 20};
    if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "skip: the limit cannot be set";
    // Root is exempt, so this has to be somebody else.
    constexpr uid_t kNobody = 65534;
    if (::geteuid() == 0 && (::setgid(kNobody) != 0 || ::setuid(kNobody) != 0)) {
      return "skip: root cannot become nobody here: " + ErrnoText(errno);
    }
    return OpenAndUse({}, folder_.path(), /*registered=*/true);
  });
  SKIP_IF_TOLD(result);
  EXPECT_THAT(result, StartsWith("io_uring|"));
  EXPECT_THAT(result, AllOf(HasSubstr("32 MiB of buffers were not registered"),
                            HasSubstr("(ulimit -l) is 8192 KiB"), HasSubstr("40960 KiB or more")));
}

TEST(OpenEngineOnTmpfs, TakesBufferedThreads) {
  struct statfs info = {};
  if (::statfs("/dev/shm", &info) != 0 || info.f_type != 0x01021994) {
    GTEST_SKIP() << "/dev/shm is no tmpfs here";
  }
  const TemporaryFolder folder("/dev/shm");
  EXPECT_THAT(OpenAndUse({}, folder.path()),
              AllOf(StartsWith("buffered|"), HasSubstr("tmpfs keeps its files in RAM"),
                    HasSubstr("--nvme"), testing::EndsWith("|")));
}

TEST(OpenEngineOnTmpfs, OneFolderWithoutDirectIoDecidesForAllAndIsNamed) {
  struct statfs info = {};
  const TemporaryFolder direct;
  if (::statfs("/dev/shm", &info) != 0 || info.f_type != 0x01021994 ||
      !HasDirectIo(direct.path())) {
    GTEST_SKIP() << "/dev/shm is no tmpfs here, or nothing else has direct I/O";
  }
  const TemporaryFolder tmpfs("/dev/shm");
  const auto opened = OpenEngine({}, {direct.path(), tmpfs.path()});
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->kind, EngineKind::kBuffered);
  EXPECT_THAT(opened->line, HasSubstr("'" + tmpfs.path() + "' has no direct I/O"));
  EXPECT_EQ(UseEngine(*opened->engine, direct.path(), false), "");
  EXPECT_EQ(UseEngine(*opened->engine, tmpfs.path(), false), "");
}

class OpenEngineOnAMount : public testing::Test {
 protected:
  std::string OpenOn(const ScratchMount& mount, const EngineOptions& options) {
    return InChild([&] {
      const std::string why_not = MountScratch(mount);
      return why_not.empty() ? OpenAndUse(options, mount.directory) : "skip: " + why_not;
    });
  }
  void SetUp() override { ASSERT_TRUE(MakeDirectories(mount_.directory).ok()); }

  const TemporaryFolder folder_;
  ScratchMount mount_ = {.image = folder_.Path("image"), .directory = folder_.Path("mount")};
};

TEST_F(OpenEngineOnAMount, EveryDirectEngineWorksOnSectorsOf4096Bytes) {
  mount_.sector_bytes = 4096;
  for (const EngineKind kind : {EngineKind::kIoUring, EngineKind::kLibaio, EngineKind::kThreads}) {
    std::filesystem::remove(mount_.image);
    const std::string result = OpenOn(mount_, {.engine = kind, .strict = true});
    SKIP_IF_TOLD(result);
    EXPECT_THAT(result, AllOf(StartsWith(std::string(NameOf(kind)) + "|"), HasSubstr("direct I/O|"),
                              testing::EndsWith("|")));
  }
}

TEST_F(OpenEngineOnAMount, AFileSystemWithoutDirectIoGetsBufferedThreadsAndNeverLibaio) {
  mount_.mount_options = "data=journal";  // for which ext4 has no direct I/O
  for (const EngineKind kind : {EngineKind::kAuto, EngineKind::kLibaio}) {
    std::filesystem::remove(mount_.image);
    const std::string result = OpenOn(mount_, {.engine = kind});
    SKIP_IF_TOLD(result);
    EXPECT_THAT(result, AllOf(StartsWith("buffered|"), HasSubstr("has no direct I/O"),
                              HasSubstr("ext4 or XFS"), testing::EndsWith("|")));
  }
}

// Pages of `path` that the page cache holds.
int64_t CachedPages(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const auto size = static_cast<size_t>(*FileSize(path));
  void* const mapped = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
  std::vector<unsigned char> resident(size / 4096);
  EXPECT_EQ(::mincore(mapped, size, resident.data()), 0);
  ::munmap(mapped, size);
  return std::ranges::count_if(resident, [](unsigned char page) { return (page & 1) != 0; });
}

TEST_F(OpenEngineTest, BufferedTransfersLeaveThePageCacheAsItWas) {
  const auto opened = OpenEngine({.engine = EngineKind::kBuffered}, {folder_.path()});
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(UseEngine(*opened->engine, folder_.path()), "");
  // A page that was in use elsewhere when it was to be dropped may be left.
  EXPECT_LE(CachedPages(folder_.Path("file")), kFileBytes / 4096 / 16);
}

// Each of many transfers drops what it read, whatever its neighbours do at the time.
TEST_F(OpenEngineTest, ManyReadsOneAfterAnotherLeaveThePageCacheAsItWas) {
  constexpr int64_t kOpBytes = 1 << 20;
  constexpr int64_t kLongFileBytes = 256 * kOpBytes;
  constexpr int kNumInFlight = 32;
  const auto opened =
      OpenEngine({.engine = EngineKind::kBuffered, .num_threads = 32}, {folder_.path()});
  ASSERT_TRUE(opened.ok()) << opened.status();
  Engine& engine = *opened->engine;
  const std::string path = folder_.Path("long");
  auto file = OpenDirectFile(path, {.create = true, .size_bytes = kLongFileBytes, .direct = false});
  ASSERT_TRUE(file.ok()) << file.status();
  const int number = engine.AddFile(std::move(file->fd), path);
  MemoryBudget budget{0};
  const auto memory = HostBuffer::Create(&budget, "test", kNumInFlight * kOpBytes);
  ASSERT_TRUE(memory.ok()) << memory.status();
  for (const IoKind kind : {IoKind::kWrite, IoKind::kRead, IoKind::kRead}) {
    std::vector<IoOp> ops(kNumInFlight);
    for (int64_t i = 0; i < kLongFileBytes / kOpBytes + kNumInFlight; ++i) {
      IoOp& op = ops[static_cast<size_t>(i % kNumInFlight)];
      if (i >= kNumInFlight) {
        ASSERT_EQ(engine.Wait(op), absl::OkStatus());
      }
      if (i >= kLongFileBytes / kOpBytes) continue;
      op.kind = kind;
      op.file = number;
      op.offset_bytes = i * kOpBytes;
      op.buffer = memory->bytes().subspan(static_cast<size_t>(i % kNumInFlight * kOpBytes),
                                          static_cast<size_t>(kOpBytes));
      engine.Submit(op);
    }
  }
  EXPECT_LE(CachedPages(path), kLongFileBytes / 4096 / 16);
}

TEST_F(OpenEngineOnAMount, WhereAFileLiesItIsReadAndNothingIsWritten) {
  for (const EngineKind kind :
       {EngineKind::kIoUring, EngineKind::kLibaio, EngineKind::kThreads, EngineKind::kBuffered}) {
    std::filesystem::remove(mount_.image);
    const std::string result = InChild([&]() -> std::string {
      const std::string why_not = MountScratch(mount_);
      if (!why_not.empty()) return "skip: " + why_not;
      const std::string path = JoinPath(mount_.directory, "here.fbs");
      const absl::Status written = WriteFileAtomically(path, std::string(8192, 'x'));
      if (!written.ok()) return MessageOf(written);
      if (::mount("", mount_.directory.c_str(), "", MS_REMOUNT | MS_RDONLY, "") != 0) {
        return "skip: it cannot be mounted read-only: " + ErrnoText(errno);
      }
      const EngineOptions options = {
          .engine = kind, .strict = true, .file_to_read = "here.fbs", .offset_to_read_bytes = 4096};
      const auto opened = OpenEngine(options, {mount_.directory});
      return opened.ok() ? opened->line : MessageOf(opened.status());
    });
    SKIP_IF_TOLD(result);
    EXPECT_THAT(result, testing::ContainsRegex("(, direct I/O|, through the page cache)$"));
  }
}

TEST_F(OpenEngineOnAMount, AFullDiskDoesNotFitAndIsNoReasonAgainstAnEngine) {
  const std::string result = InChild([&]() -> std::string {
    const std::string why_not = MountScratch(mount_);
    if (!why_not.empty()) return "skip: " + why_not;
    const UniqueFd fd(::open(JoinPath(mount_.directory, "full").c_str(), O_RDWR | O_CREAT, 0600));
    const std::vector<char> bytes(int64_t{1} << 20);
    while (::write(fd.get(), bytes.data(), bytes.size()) > 0) continue;
    return OpenAndUse({}, mount_.directory);
  });
  SKIP_IF_TOLD(result);
  EXPECT_THAT(result, AllOf(StartsWith("error 4|"), HasSubstr("no room for a small file"),
                            HasSubstr("ENOSPC"), Not(HasSubstr("engine"))));
}

// Reading at the start of this process's memory, where nothing is, is such an error.
TEST(OpenEngine, ABlockThatNobodyCanReadIsNoReasonAgainstAnEngine) {
  const auto opened = OpenEngine({.file_to_read = "mem"}, {"/proc/self"});
  EXPECT_TRUE(opened.ok()) << opened.status();
}

TEST(OpenEngine, AFolderThatCannotBeWrittenToIsNamed) {
  const auto opened = OpenEngine({}, {"/proc"});
  EXPECT_EQ(ExitCodeOf(opened.status()), ExitCode::kStorage);
  EXPECT_THAT(MessageOf(opened.status()), HasSubstr("'/proc'"));
}

}  // namespace
}  // namespace forebay
