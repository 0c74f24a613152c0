// What an engine asks of the kernel once it runs: to take transfers and to hand them back, and to
// put threads to sleep and wake them, nothing else.
#include <sys/syscall.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "forebay/aio/buffer_registration.h"
#include "forebay/aio/engine.h"
#include "forebay/base/errors.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/tests/allowed_calls.h"
#include "forebay/tests/temporary_folder.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using EngineMaker = absl::StatusOr<std::unique_ptr<Engine>> (*)(const EngineOptions&);

// Everything that transfers need. Made in the child that is watched, and never freed.
struct Rig {
  explicit Rig(const TemporaryFolder& folder) : path(folder.Path("file")) {}

  std::string Open(EngineMaker make, const EngineOptions& options) {
    absl::StatusOr<std::unique_ptr<Engine>> made = make(options);
    if (!made.ok()) return "skip: " + MessageOf(made.status());
    engine = *std::move(made);
    auto buffer = HostBuffer::Create(&budget, "test", kOps * kOpBytes);
    auto opened = OpenDirectFile(path, {.create = true, .size_bytes = kOps * kOpBytes});
    if (!buffer.ok() || !opened.ok()) return "no buffer or no file";
    memory = *std::move(buffer);
    registration = BufferRegistration(engine.get(), memory.IoPieces(kOpBytes));
    file = engine->AddFile(std::move(opened->fd), path);
    return Round();
  }

  // Writes, flushes and reads everything, cut into many pieces.
  std::string Round() {
    for (const IoKind kind : {IoKind::kWrite, IoKind::kRead}) {
      for (size_t i = 0; i < kOps; ++i) {
        ops[i].kind = kind;
        ops[i].io_class = kind == IoKind::kRead ? IoClass::kPrefetch : IoClass::kWriteBack;
        ops[i].file = file;
        ops[i].offset_bytes = static_cast<int64_t>(i) * kOpBytes;
        ops[i].buffer = memory.bytes().subspan(i * kOpBytes, kOpBytes);
        engine->Submit(ops[i]);
      }
      for (IoOp& op : ops) {
        if (!engine->Wait(op).ok()) return "a transfer failed";
      }
      if (!engine->Flush(file).ok()) return "a flush failed";
    }
    return "";
  }

  static constexpr int64_t kOps = 8;
  static constexpr int64_t kOpBytes = int64_t{1} << 20;
  const std::string path;
  MemoryBudget budget{0};
  HostBuffer memory;
  std::unique_ptr<Engine> engine;
  BufferRegistration registration;
  int file = -1;
  IoOp ops[kOps];
};

std::string CallsOf(EngineMaker make, RingDrive drive, const std::vector<uint32_t>& allowed) {
  const TemporaryFolder folder;
  return WatchCalls(allowed, [&]() -> std::function<std::string()> {
    auto* const rig = new Rig(folder);
    const std::string opened = rig->Open(make, {.block_bytes = 65536, .drive = drive});
    if (!opened.empty()) return [opened] { return opened; };
    // A thread that has just begun makes other calls, and lets no signal report them.
    for (int round = 0; round < 20; ++round) {
      const std::string problem = rig->Round();
      if (!problem.empty()) return [problem] { return problem; };
    }
    return [rig]() -> std::string {
      for (int round = 0; round < 20; ++round) {
        const std::string problem = rig->Round();
        if (!problem.empty()) return problem;
      }
      return "";
    };
  });
}

#define EXPECT_NO_OTHER_CALL(result)                              \
  const std::string told = result;                                \
  if (told.starts_with("skip: ")) GTEST_SKIP() << told.substr(6); \
  EXPECT_EQ(told, "") << "see 'ausyscall NUMBER' or asm/unistd_64.h"

TEST(EngineSystemCalls, IoUringDrivenByItsWaiterSubmitsAndReapsWithOneCall) {
  EXPECT_NO_OTHER_CALL(CallsOf(CreateIoUringEngine, RingDrive::kWaiter, {SYS_io_uring_enter}));
}

TEST(EngineSystemCalls, IoUringOnItsThreadSleepsAndWakesBesides) {
  EXPECT_NO_OTHER_CALL(CallsOf(CreateIoUringEngine, RingDrive::kOwnThread,
                               {SYS_io_uring_enter, SYS_futex, SYS_write}));
}

TEST(EngineSystemCalls, LibaioOnItsThreadSubmitsReapsSleepsAndWakes) {
  EXPECT_NO_OTHER_CALL(CallsOf(
      CreateLibaioEngine, RingDrive::kOwnThread,
      // io_pgetevents: how some builds of libaio wait (Ubuntu 24.04).
      {SYS_io_submit, SYS_io_getevents, SYS_io_pgetevents, SYS_futex, SYS_write, SYS_read}));
}

absl::StatusOr<std::unique_ptr<Engine>> MakeThreads(const EngineOptions& options) {
  return CreateThreadsEngine(options);
}

TEST(EngineSystemCalls, ThreadsReadWriteAndSleep) {
  const std::vector<uint32_t> calls = {SYS_pread64, SYS_pwrite64, SYS_fdatasync, SYS_futex};
  EXPECT_NO_OTHER_CALL(
      CallsOf(MakeThreads, RingDrive::kOwnThread, WithPageCacheCalls(calls, TemporaryFolder())));
}

TEST(EngineSystemCalls, TheWatchNamesACallThatIsNotAllowed) {
  const std::string told = WatchCalls({SYS_futex}, []() -> std::function<std::string()> {
    return [] { return std::to_string(::getppid()); };
  });
  if (told.starts_with("skip: ")) GTEST_SKIP() << told.substr(6);
  EXPECT_EQ(told, fmt::format("system call{:>7}", SYS_getppid));
}

TEST(EngineSystemCalls, TheWatchNamesTheCallWhoseNumberIsZero) {
  const std::string told = WatchCalls({SYS_futex}, []() -> std::function<std::string()> {
    return [] { return std::to_string(::read(-1, nullptr, 0)); };
  });
  if (told.starts_with("skip: ")) GTEST_SKIP() << told.substr(6);
  EXPECT_EQ(told, fmt::format("system call{:>7}", SYS_read));
}

TEST(EngineSystemCalls, AChildThatEndsWithoutAReportDoesNotPass) {
  const std::string told = WatchCalls({SYS_futex}, []() -> std::function<std::string()> {
    return []() -> std::string { ::_exit(3); };
  });
  if (told.starts_with("skip: ")) GTEST_SKIP() << told.substr(6);
  EXPECT_EQ(told, "exit code 3");
}

}  // namespace
}  // namespace forebay
