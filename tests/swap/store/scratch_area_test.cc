// The scratch area: made and grown at any time, and never at the cost of what is committed.
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <string>

#include "forebay/aio/faults/faulty_disk.h"
#include "forebay/base/errors.h"
#include "forebay/swap/store/tensor_store.h"
#include "forebay/tests/sample.h"
#include "forebay/tests/swap/store/store_fixture.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

constexpr int64_t kAreaBytes = 5 * 4096;

class ScratchAreaTest : public testing::Test {
 protected:
  // One committed step in a store without an area.
  void SetUp() override {
    const auto store =
        TensorStore::Create({.directories = {directory_}, .tile_elems = kSmallTileElems},
                            SmallInventory(), engine_.get());
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_EQ((*store)->scratch_bytes()[0], 0);
    ASSERT_EQ(WriteStep(**store, 1), absl::OkStatus());
  }

  std::unique_ptr<TensorStore> MustOpen() {
    auto store = TensorStore::Open({directory_}, engine_.get());
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  std::string File(const std::string& name) const { return JoinPath(directory_, name); }
  std::string area_path() const { return File("gradients.fbs"); }

  // Whether the last block of an area of `area_bytes` keeps what is written to it.
  static absl::Status UseArea(TensorStore& store, int64_t area_bytes) {
    Scratch written(4096);
    Scratch read(4096);
    IoOp op;
    FillPattern(written.first(4096), 1, static_cast<int>(area_bytes % 1000), true);
    store.StartWriteScratch(0, area_bytes - 4096, written.first(4096), op);
    FOREBAY_RETURN_IF_ERROR(store.engine().Wait(op));
    store.StartReadScratch(0, area_bytes - 4096, read.first(4096), op);
    FOREBAY_RETURN_IF_ERROR(store.engine().Wait(op));
    if (std::memcmp(written.first(4096).data(), read.first(4096).data(), 4096) == 0) {
      return absl::OkStatus();
    }
    return CorruptError("the area gave back other bytes");
  }

  // Everything in the folder but the area and the lock, which holds a PID.
  std::map<std::string, std::string> OtherFiles() const {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_)) {
      if (entry.is_directory()) continue;
      const std::string name = std::filesystem::relative(entry.path(), directory_);
      if (name == "gradients.fbs" || name == "lock") continue;
      files[name] = *ReadWholeFile(entry.path(), 1 << 24);
    }
    return files;
  }

  // The area of another life of the store, or what a crash made of it.
  void LeaveArea(int64_t size_bytes) {
    const auto fd = OpenFile(area_path(), O_WRONLY | O_CREAT | O_TRUNC);
    ASSERT_TRUE(fd.ok()) << fd.status();
    ASSERT_EQ(::ftruncate(fd->get(), size_bytes), 0);
  }

  TemporaryFolder folder_;
  std::string directory_ = folder_.Path("swap");
  std::unique_ptr<Engine> engine_ = CreateThreadsEngine({.num_threads = 1});
};

TEST_F(ScratchAreaTest, IsMadeWithItsSpaceReservedAndForTheUserAlone) {
  const auto store = MustOpen();
  const bool direct = store->direct_io();
  ASSERT_EQ(store->EnsureScratchArea({kAreaBytes - 1}), absl::OkStatus());
  EXPECT_EQ(store->scratch_bytes()[0], kAreaBytes) << "whole blocks";
  EXPECT_EQ(UseArea(*store, kAreaBytes), absl::OkStatus());
  struct stat info = {};
  ASSERT_EQ(::stat(area_path().c_str(), &info), 0);
  EXPECT_EQ(info.st_size, kAreaBytes);
  EXPECT_GE(info.st_blocks * 512, kAreaBytes);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(store->direct_io(), direct);
}

TEST_F(ScratchAreaTest, GrowsAndNeverShrinks) {
  const auto store = MustOpen();
  for (const int64_t area_bytes : {int64_t{4096}, kAreaBytes, 3 * kAreaBytes}) {
    ASSERT_EQ(store->EnsureScratchArea({area_bytes}), absl::OkStatus());
    EXPECT_EQ(store->scratch_bytes()[0], area_bytes);
    EXPECT_EQ(UseArea(*store, area_bytes), absl::OkStatus());
  }
  ASSERT_EQ(store->EnsureScratchArea({4096}), absl::OkStatus());
  EXPECT_EQ(store->scratch_bytes()[0], 3 * kAreaBytes);
  EXPECT_EQ(*FileSize(area_path()), 3 * kAreaBytes);
}

TEST_F(ScratchAreaTest, IsNotThereUntilItIsAskedForAfterOpening) {
  ASSERT_EQ(MustOpen()->EnsureScratchArea({kAreaBytes}), absl::OkStatus());
  const auto store = MustOpen();
  EXPECT_EQ(store->scratch_bytes()[0], 0);
  ASSERT_EQ(store->EnsureScratchArea({kAreaBytes}), absl::OkStatus());
  EXPECT_EQ(UseArea(*store, kAreaBytes), absl::OkStatus());
}

TEST_F(ScratchAreaTest, TouchesNoOtherFile) {
  const auto before = OtherFiles();
  {
    const auto store = MustOpen();
    ASSERT_EQ(store->EnsureScratchArea({kAreaBytes}), absl::OkStatus());
    ASSERT_EQ(store->EnsureScratchArea({2 * kAreaBytes}), absl::OkStatus());
    ASSERT_EQ(UseArea(*store, 2 * kAreaBytes), absl::OkStatus());
  }
  EXPECT_EQ(OtherFiles(), before);
  EXPECT_TRUE(HoldsStep(*MustOpen(), 1));
}

// A crash while the file was made or grown leaves it with any size, or none at all, since nothing
// of it is flushed.
TEST_F(ScratchAreaTest, WhateverACrashLeftOfItIsMadeGood) {
  int64_t step = 1;
  for (const int64_t left_bytes : {-1, 0, 512, 4096, 5000, 3 * 4096, 5 * 4096, 9 * 4096}) {
    SCOPED_TRACE(left_bytes);
    std::filesystem::remove(area_path());
    if (left_bytes >= 0) {
      ASSERT_NO_FATAL_FAILURE(LeaveArea(left_bytes));
    }
    const auto store = MustOpen();
    ASSERT_TRUE(HoldsStep(*store, step));
    ASSERT_EQ(store->EnsureScratchArea({kAreaBytes}), absl::OkStatus());
    EXPECT_EQ(UseArea(*store, kAreaBytes), absl::OkStatus());
    struct stat info = {};
    ASSERT_EQ(::stat(area_path().c_str(), &info), 0);
    EXPECT_GE(info.st_blocks * 512, kAreaBytes) << "a file of the right size may have holes";
    ASSERT_EQ(WriteStep(*store, ++step), absl::OkStatus());
  }
}

TEST_F(ScratchAreaTest, AFailureAtAnyCallIsACleanErrorAndTheCommittedStepStaysWhole) {
  int64_t committed = 1;
  const Sample sample(1, 8);
  for (int64_t fail_call = sample.first();; fail_call += sample.step()) {
    SCOPED_TRACE(fail_call);
    std::filesystem::remove(area_path());
    int64_t num_calls = 0;
    absl::Status status;
    {
      FaultyDisk disk({.fail_call = fail_call});
      const auto faulty = CreateThreadsEngine({.num_threads = 1}, &disk);
      auto store = TensorStore::Open({directory_}, faulty.get());
      status = store.status();
      for (const int64_t area_bytes : {int64_t{4096}, kAreaBytes}) {
        if (status.ok()) status = (*store)->EnsureScratchArea({area_bytes});
        if (status.ok()) status = UseArea(**store, area_bytes);
      }
      if (status.ok()) status = WriteStep(**store, committed + 1);
      num_calls = disk.num_calls();
    }
    if (!status.ok()) {
      ASSERT_EQ(ExitCodeOf(status), ExitCode::kStorage) << status;
      ASSERT_THAT(MessageOf(status), HasSubstr("EIO"));
    }
    const auto store = MustOpen();
    const int64_t step = store->committed().step;
    ASSERT_THAT(step, AnyOf(committed, committed + 1));
    ASSERT_TRUE(HoldsStep(*store, step));
    committed = step;
    ASSERT_EQ(store->EnsureScratchArea({kAreaBytes}), absl::OkStatus());
    ASSERT_EQ(UseArea(*store, kAreaBytes), absl::OkStatus());
    if (status.ok() && num_calls <= fail_call) return;  // every call had its turn
  }
}

TEST_F(ScratchAreaTest, AFullDiskIsAnErrorThatCostsNothing) {
  // The store on a file system of its own that has room for a small area alone.
  const std::string small = folder_.Path("small");
  ASSERT_TRUE(MakeDirectories(small).ok());
  int64_t store_bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_)) {
    if (entry.is_directory()) continue;
    store_bytes += static_cast<int64_t>((entry.file_size() + 4095) / 4096 * 4096);
  }
  const std::string options = "size=" + std::to_string(store_bytes + 4 * kAreaBytes);
  if (::mount("tmpfs", small.c_str(), "tmpfs", 0, options.c_str()) != 0) {
    GTEST_SKIP() << "mounting a small file system needs root";
  }
  std::filesystem::copy(directory_, small, std::filesystem::copy_options::recursive);
  {
    auto store = TensorStore::Open({small}, engine_.get());
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_EQ((*store)->EnsureScratchArea({kAreaBytes}), absl::OkStatus());
    for (const int64_t too_much : {64 * kAreaBytes, int64_t{1} << 50}) {
      const absl::Status status = (*store)->EnsureScratchArea({too_much});
      EXPECT_EQ(ExitCodeOf(status), ExitCode::kDoesNotFit);
      EXPECT_THAT(MessageOf(status), HasSubstr(std::to_string(too_much - kAreaBytes) + " bytes"));
      EXPECT_THAT(MessageOf(status), HasSubstr(small));
      EXPECT_THAT(MessageOf(status), HasSubstr("--ram"));
      EXPECT_EQ((*store)->CheckScratchArea({too_much}), status);
      EXPECT_EQ(*FileSize(JoinPath(small, "gradients.fbs")), kAreaBytes);
    }
    // Long enough, but with holes that nothing is left for.
    ASSERT_EQ(::truncate(JoinPath(small, "gradients.fbs").c_str(), 64 * kAreaBytes), 0);
    EXPECT_EQ(ExitCodeOf((*store)->EnsureScratchArea({64 * kAreaBytes})), ExitCode::kDoesNotFit);
    EXPECT_EQ((*store)->scratch_bytes()[0], kAreaBytes);
    EXPECT_EQ(UseArea(**store, kAreaBytes), absl::OkStatus());
    EXPECT_EQ(WriteStep(**store, 2), absl::OkStatus());
    EXPECT_TRUE(HoldsStep(**store, 2));
  }
  EXPECT_EQ(::umount(small.c_str()), 0);
}

TEST_F(ScratchAreaTest, CheckingChangesNothing) {
  const auto store = MustOpen();
  EXPECT_EQ(store->CheckScratchArea({kAreaBytes}), absl::OkStatus());
  EXPECT_FALSE(FileExists(area_path()));
}

TEST_F(ScratchAreaTest, SomethingElseInItsPlaceIsNamedAndTheStoreStaysUsable) {
  ASSERT_TRUE(WriteFileAtomically(folder_.Path("thesis"), "precious").ok());
  ASSERT_EQ(::symlink(folder_.Path("thesis").c_str(), area_path().c_str()), 0);
  {
    const auto store = MustOpen();
    const absl::Status status = store->EnsureScratchArea({kAreaBytes});
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage);
    EXPECT_THAT(MessageOf(status), HasSubstr("symbolic link"));
    EXPECT_THAT(MessageOf(status), HasSubstr(area_path()));
    EXPECT_EQ(store->scratch_bytes()[0], 0);
    EXPECT_EQ(WriteStep(*store, 2), absl::OkStatus());
  }
  EXPECT_EQ(*ReadWholeFile(folder_.Path("thesis"), 100), "precious");
  ASSERT_EQ(::unlink(area_path().c_str()), 0);
  ASSERT_TRUE(MakeDirectories(area_path()).ok());
  const auto store = MustOpen();
  EXPECT_EQ(ExitCodeOf(store->EnsureScratchArea({kAreaBytes})), ExitCode::kStorage);
  EXPECT_TRUE(HoldsStep(*store, 2));
}

TEST_F(ScratchAreaTest, AFailureInTheSecondFolderLeavesThatOfTheFirstAsItWas) {
  const std::vector<std::string> folders = {folder_.Path("a"), folder_.Path("b")};
  const auto store = TensorStore::Create({.directories = folders, .tile_elems = kSmallTileElems},
                                         SmallInventory(), engine_.get());
  ASSERT_TRUE(store.ok()) << store.status();
  const std::string in_second = JoinPath(folders[1], "gradients.fbs");
  ASSERT_TRUE(MakeDirectories(in_second).ok());
  for (const int64_t first_bytes : {int64_t{0}, kAreaBytes}) {
    ASSERT_EQ((*store)->EnsureScratchArea({first_bytes, 0}), absl::OkStatus());
    const absl::Status status = (*store)->EnsureScratchArea({2 * kAreaBytes, 4096});
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage) << status;
    EXPECT_THAT(MessageOf(status), HasSubstr(in_second));
    EXPECT_THAT((*store)->scratch_bytes(), testing::ElementsAre(first_bytes, 0));
    if (first_bytes > 0) {
      EXPECT_EQ(UseArea(**store, first_bytes), absl::OkStatus());
    }
    EXPECT_EQ(WriteStep(**store, first_bytes + 1), absl::OkStatus());
  }
  std::filesystem::remove(in_second);
  ASSERT_EQ((*store)->EnsureScratchArea({2 * kAreaBytes, 4096}), absl::OkStatus());
  EXPECT_THAT((*store)->scratch_bytes(), testing::ElementsAre(2 * kAreaBytes, 4096));
  EXPECT_EQ(UseArea(**store, 2 * kAreaBytes), absl::OkStatus());
}

using ScratchAreaDeathTest = ScratchAreaTest;

TEST_F(ScratchAreaDeathTest, TransfersBeyondItAreABug) {
  const auto store = MustOpen();
  ASSERT_EQ(store->EnsureScratchArea({kAreaBytes}), absl::OkStatus());
  Scratch scratch(4096);
  IoOp op;
  EXPECT_DEATH(store->StartWriteScratch(0, kAreaBytes, scratch.first(4096), op), "internal error");
  EXPECT_DEATH(store->StartReadScratch(0, kAreaBytes, scratch.first(4096), op), "internal error");
}

}  // namespace
}  // namespace forebay
