// An export that takes the place of an earlier one, on file systems with and without an exchange of
// two folders, and what is left of it when it is disturbed.
#include <sys/mount.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/tests/train/faults/failing_calls.h"
#include "forebay/tests/train/faults/fault_suite.h"
#include "forebay/train/export/export.h"
#include "forebay/train/export/export_manifest.h"
#include "forebay/train/files/run_folder.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::ElementsAre;

class ReplacedExportTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(TrainToy(options_), absl::OkStatus());
    auto store = OpenRunStore(options_.out, engine_.get());
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    ASSERT_EQ(Export(), absl::OkStatus());
  }

  absl::Status Export() {
    return ExportModel(StoreSnapshot(store_.get()), model_,
                       [](double) { return absl::OkStatus(); });
  }
  static bool IsWhole(const std::string& folder) {
    const auto check = CheckExport(folder, {});
    return check.ok() && check->damaged.empty() && check->bytes > 0;
  }
  std::vector<std::string> Folders() const { return *ListFolder(parent_); }

  const TemporaryFolder folder_{FolderInRam()};
  const ToyTask task_{folder_.path()};
  const TrainOptions options_ = task_.TightRun(folder_.Path("run"));
  const std::string parent_ = folder_.Path("exports");
  const std::string destination_ = JoinPath(parent_, "model");
  const ExportedModel model_{options_.model, destination_, options_.export_dtype};
  const std::string aside_ = destination_ + ".removed.tmp";
  const std::unique_ptr<Engine> engine_ = CreateThreadsEngine({.num_threads = 1});
  std::unique_ptr<TensorStore> store_;
};

TEST_F(ReplacedExportTest, ThatIsStoppedLeavesTheOneBeforeAndNothingElse) {
  const std::vector<std::string> before = Folders();
  const absl::Status stopped = ExportModel(StoreSnapshot(store_.get()), model_, [](double) {
    return InterruptedError("stopped on request");
  });
  EXPECT_EQ(ExitCodeOf(stopped), ExitCode::kInterrupted);
  EXPECT_EQ(Folders(), before);
  EXPECT_TRUE(IsWhole(destination_));
}

TEST_F(ReplacedExportTest, WithoutAnExchangeTheOneBeforeStepsAside) {
  std::vector<FileCall> calls;
  {
    const FailingCalls watch(parent_, {}, 0, /*exchanges=*/false);
    ASSERT_EQ(Export(), absl::OkStatus());
    calls = watch.calls();
  }
  std::vector<std::string> order;
  for (const FileCall& call : calls) {
    // What is inside the folders is not what this is about.
    const bool is_theirs = call.function == "rename"
                               ? call.file.rfind('/') == 0
                               : call.function == "fsync" && call.file.empty();
    if (is_theirs) order.push_back(call.function + " " + call.file);
  }
  EXPECT_THAT(order, ElementsAre("rename /model.removed.tmp", "rename /model", "fsync "));
  EXPECT_TRUE(IsWhole(destination_));
  EXPECT_THAT(Folders(), ElementsAre("model"));
}

// Until the new one is durable, the one before may be all that a power cut leaves.
TEST_F(ReplacedExportTest, WithoutAnExchangeTheOneBeforeGoesWhenTheNewOneIsDurable) {
  {
    const FailingCalls watch(parent_, FileCall{"fsync", "", 0}, EIO, /*exchanges=*/false);
    const absl::Status status = Export();
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage) << status;
  }
  EXPECT_TRUE(IsWhole(destination_));
  EXPECT_TRUE(IsWhole(aside_));
  ASSERT_EQ(Export(), absl::OkStatus());
  EXPECT_THAT(Folders(), ElementsAre("model"));
}

TEST_F(ReplacedExportTest, WithoutAnExchangeTheOneBeforeComesBackWhereTheNewOneCannotCome) {
  {
    const FailingCalls watch(parent_, FileCall{"rename", "/model", 0}, EIO, /*exchanges=*/false);
    const absl::Status status = Export();
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage) << status;
  }
  EXPECT_TRUE(IsWhole(destination_));
  EXPECT_FALSE(FileExists(aside_));
}

TEST_F(ReplacedExportTest, WhatAKillLeftIsRemovedFirst) {
  std::filesystem::create_directories(aside_ + "/deep");
  std::filesystem::create_directories(destination_ + ".tmp/deep");
  ASSERT_EQ(Export(), absl::OkStatus());
  EXPECT_TRUE(IsWhole(destination_));
  EXPECT_THAT(Folders(), ElementsAre("model"));
}

// It is in nobody's way: the new export stands.
TEST_F(ReplacedExportTest, AnOldOneThatCannotBeRemovedIsLeftToTheNext) {
  const std::string held = JoinPath(destination_, "held");
  std::filesystem::create_directory(held);
  if (::mount("tmpfs", held.c_str(), "tmpfs", 0, "size=64k") != 0) {
    GTEST_SKIP() << "holding a folder with a mount needs root";
  }
  EXPECT_EQ(Export(), absl::OkStatus());
  EXPECT_TRUE(IsWhole(destination_));
  EXPECT_FALSE(FileExists(held));
  ASSERT_EQ(::umount(JoinPath(destination_ + ".tmp", "held").c_str()), 0);
  ASSERT_EQ(Export(), absl::OkStatus());
  EXPECT_THAT(Folders(), ElementsAre("model"));
}

}  // namespace
}  // namespace forebay
