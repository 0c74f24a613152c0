// Files on several devices under one engine: each has a queue, and none waits for another.
#include <sys/sysmacros.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <latch>
#include <mutex>
#include <thread>
#include <vector>

#include "fmt/format.h"
#include "forebay/aio/faults/faulty_disk.h"
#include "forebay/aio/faults/limited_disk.h"
#include "forebay/aio/speed_probe.h"
#include "forebay/base/clock.h"
#include "forebay/base/errors.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

constexpr int64_t kOpOfADeviceBytes = 64 << 10;

// Transfers of files called "stuck" do not return before Release; they are on a device of their
// own.
class StuckDevice : public SystemDiskCalls {
 public:
  int64_t Transfer(IoKind kind, int fd, std::string_view path, std::span<std::byte> buffer,
                   int64_t offset_bytes) override {
    if (path.ends_with("stuck")) released_.wait();
    return SystemDiskCalls::Transfer(kind, fd, path, buffer, offset_bytes);
  }
  dev_t DeviceIdOf(std::string_view path, dev_t kernels) const override {
    return path.ends_with("stuck") ? makedev(0xfff, 0) : kernels;
  }
  void Release() { released_.count_down(); }

 private:
  std::latch released_{1};
};

class SeveralDevicesTest : public testing::Test {
 protected:
  int AddFile(Engine& engine, const std::string& path, int64_t size_bytes) {
    auto file = OpenDirectFile(path, {.create = true, .size_bytes = size_bytes, .direct = false});
    EXPECT_TRUE(file.ok()) << file.status();
    return engine.AddFile(std::move(file->fd), path);
  }
  HostBuffer Buffer(int64_t size_bytes) {
    auto buffer = HostBuffer::Create(&budget_, "test", size_bytes);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    return *std::move(buffer);
  }
  static void Submit(Engine& engine, int file, IoOp& op, int64_t offset_bytes,
                     std::span<std::byte> buffer) {
    op.kind = IoKind::kWrite;
    op.io_class = IoClass::kWriteBack;
    op.file = file;
    op.offset_bytes = offset_bytes;
    op.buffer = buffer;
    engine.Submit(op);
  }

  TemporaryFolder folder_;
  MemoryBudget budget_{0};
};

// More is queued for the one that stands still than the engine can have in flight altogether.
TEST_F(SeveralDevicesTest, OneThatStandsStillLeavesTheOthersTheirShareOfTheEngine) {
  for (const int num_threads : {1, 2, 5}) {
    StuckDevice disk;
    const auto engine = CreateThreadsEngine({.num_threads = 2 * num_threads}, &disk);
    const int stuck =
        AddFile(*engine, folder_.Path(std::to_string(num_threads) + "stuck"), 1 << 20);
    const int good = AddFile(*engine, folder_.Path(std::to_string(num_threads) + "good"), 1 << 20);
    const HostBuffer memory = Buffer(kOpOfADeviceBytes);
    std::vector<IoOp> waiting(16);
    for (size_t i = 0; i < waiting.size(); ++i) {
      Submit(*engine, stuck, waiting[i], static_cast<int64_t>(i) * kOpOfADeviceBytes,
             memory.bytes());
    }
    std::vector<IoOp> ops(16);
    for (size_t i = 0; i < ops.size(); ++i) {
      Submit(*engine, good, ops[i], static_cast<int64_t>(i) * kOpOfADeviceBytes, memory.bytes());
    }
    for (IoOp& op : ops) EXPECT_EQ(engine->Wait(op), absl::OkStatus());
    for (const IoOp& op : waiting) EXPECT_TRUE(op.pending());
    disk.Release();
    for (IoOp& op : waiting) EXPECT_EQ(engine->Wait(op), absl::OkStatus());
  }
}

// Files on a device of their own each, by the folder's last letter; transfers wait for Release, and
// how many do is known.
class HeldDevices : public SystemDiskCalls {
 public:
  int64_t Transfer(IoKind kind, int fd, std::string_view path, std::span<std::byte> buffer,
                   int64_t offset_bytes) override {
    {
      std::unique_lock lock(mutex_);
      ++num_held_;
      changed_.notify_all();
      changed_.wait(lock, [this] { return released_; });
    }
    return SystemDiskCalls::Transfer(kind, fd, path, buffer, offset_bytes);
  }
  dev_t DeviceIdOf(std::string_view path, dev_t) const override {
    return makedev(0xfff, static_cast<unsigned>(path.back()));
  }
  // True as soon as `count` transfers are under way at once.
  bool AwaitHeld(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(30), [&] { return num_held_ >= count; });
  }
  void Release() {
    const std::lock_guard lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int num_held_ = 0;
  bool released_ = false;
};

TEST_F(SeveralDevicesTest, NoThreadIsIdleWhereTheDevicesSharesLeaveSomeOver) {
  for (const int num_threads : {1, 3, 4, 5}) {
    HeldDevices disks;
    const auto engine = CreateThreadsEngine({.num_threads = num_threads}, &disks);
    std::vector<int> files;
    for (const char name : {'a', 'b', 'c'}) {
      files.push_back(
          AddFile(*engine, folder_.Path(fmt::format("{}{}", num_threads, name)), 1 << 20));
    }
    const HostBuffer memory = Buffer(kOpOfADeviceBytes);
    std::vector<IoOp> ops(12);
    for (size_t i = 0; i < ops.size(); ++i) {
      Submit(*engine, files[i % 3], ops[i], static_cast<int64_t>(i) * kOpOfADeviceBytes,
             memory.bytes());
    }
    EXPECT_TRUE(disks.AwaitHeld(num_threads)) << num_threads;
    disks.Release();
    for (IoOp& op : ops) EXPECT_EQ(engine->Wait(op), absl::OkStatus());
  }
}

TEST_F(SeveralDevicesTest, ALimitedDiskIsNeverFasterThanItsLimitAndItsBytesArrive) {
  for (const char* name : {"a", "b"}) ASSERT_TRUE(MakeDirectories(folder_.Path(name)).ok());
  constexpr double kBytesPerS = 50e6;
  LimitedDiskCalls disks({{folder_.Path("a"), kBytesPerS}, {folder_.Path("b"), kBytesPerS}});
  const auto engine = CreateThreadsEngine({.num_threads = 4}, &disks);
  const int files[] = {AddFile(*engine, folder_.Path("a/file"), 1 << 20),
                       AddFile(*engine, folder_.Path("b/file"), 1 << 20)};
  const HostBuffer memory = Buffer(1 << 20);
  std::ranges::fill(memory.bytes(), std::byte{7});
  const Stopwatch watch;
  std::vector<IoOp> ops(8);
  for (size_t i = 0; i < ops.size(); ++i) {
    Submit(*engine, files[i % 2], ops[i], 0, memory.bytes());
  }
  for (IoOp& op : ops) EXPECT_EQ(engine->Wait(op), absl::OkStatus());
  EXPECT_GE(watch.Seconds(), 4 * (1 << 20) / kBytesPerS);
  for (const char* name : {"a/file", "b/file"}) {
    EXPECT_EQ(*ReadWholeFile(folder_.Path(name), 1 << 20), std::string(1 << 20, 7));
  }
}

const std::function<bool()> kGoOn = [] { return false; };

TEST_F(SeveralDevicesTest, ASpeedProbeFindsNoMoreThanTheDiskHasAndLeavesNothing) {
  ASSERT_TRUE(MakeDirectories(folder_.Path("slow")).ok());
  LimitedDiskCalls disks({{folder_.Path("slow"), 400e6}});
  const auto engine = CreateThreadsEngine({.num_threads = 2}, &disks);
  const auto speed = ProbeSpeed(*engine, folder_.Path("slow/not/there/yet"), kGoOn);
  ASSERT_TRUE(speed.ok()) << speed.status();
  EXPECT_GT(speed->read_bytes_per_s, 0);
  EXPECT_LE(speed->read_bytes_per_s, 400e6 * 1.01);
  EXPECT_GT(speed->write_bytes_per_s, 0);
  EXPECT_LE(speed->write_bytes_per_s, 400e6 * 1.01);
  EXPECT_TRUE(std::filesystem::is_empty(folder_.Path("slow")));
}

// The whole file would take it more than three seconds.
TEST_F(SeveralDevicesTest, ASpeedProbeDoesNotFillADiskThatIsSlow) {
  ASSERT_TRUE(MakeDirectories(folder_.Path("slow")).ok());
  LimitedDiskCalls disks({{folder_.Path("slow"), 20e6}});
  const auto engine = CreateThreadsEngine({.num_threads = 2}, &disks);
  const auto speed = ProbeSpeed(*engine, folder_.Path("slow"), kGoOn);
  ASSERT_TRUE(speed.ok()) << speed.status();
  EXPECT_LE(speed->write_bytes_per_s, 20e6 * 1.01);
  EXPECT_LT(engine->stats().write_bytes, kSpeedProbeBytes);
  EXPECT_GT(engine->stats().read_bytes, 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder_.Path("slow")));
}

// Answers everything that it was asked for at about the same time, after a while.
class LateDisk : public SystemDiskCalls {
 public:
  int64_t Transfer(IoKind kind, int fd, std::string_view path, std::span<std::byte> buffer,
                   int64_t offset_bytes) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    return SystemDiskCalls::Transfer(kind, fd, path, buffer, offset_bytes);
  }
};

// Its speed is that of all that is in flight, and not of the first answer.
TEST_F(SeveralDevicesTest, ASpeedProbeCountsAllThatItStarted) {
  LateDisk disk;
  const auto engine = CreateThreadsEngine({.num_threads = 16}, &disk);
  const auto speed = ProbeSpeed(*engine, folder_.path(), kGoOn);
  ASSERT_TRUE(speed.ok()) << speed.status();
  constexpr double kOneAnswerPerS = (1 << 20) / 0.1;
  EXPECT_GT(speed->read_bytes_per_s, 3 * kOneAnswerPerS) << "16 at best, on an idle machine";
  EXPECT_LE(speed->read_bytes_per_s, 16 * kOneAnswerPerS);
}

TEST_F(SeveralDevicesTest, ASpeedProbeOnAFailingDiskIsAnError) {
  for (const int64_t fail_call : {0, 20, 70, 100}) {
    FaultyDisk disk({.fail_call = fail_call, .fail_all_after = true});
    const auto engine = CreateThreadsEngine({.num_threads = 2}, &disk);
    const auto speed = ProbeSpeed(*engine, folder_.path(), kGoOn);
    EXPECT_EQ(ExitCodeOf(speed.status()), ExitCode::kStorage) << fail_call;
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

}  // namespace
}  // namespace forebay
