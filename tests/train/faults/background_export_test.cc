#include "forebay/train/run/background_export.h"

#include <string>

#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/tests/train/faults/fault_suite.h"
#include "forebay/tests/train/faults/toy_run.h"
#include "forebay/tests/without_threads.h"
#include "forebay/train/files/run_folder.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

TEST(BackgroundExport, IsMadeAtOnceWhereNoThreadCanBeHad) {
  const TemporaryFolder folder{FolderInRam()};
  const ToyTask task(folder.path());
  const TrainOptions options = task.TightRun(folder.Path("run"));
  ASSERT_EQ(TrainToy(options), absl::OkStatus());
  const std::unique_ptr<Engine> engine = CreateThreadsEngine({.num_threads = 1});
  const auto store = OpenRunStore(options.out, engine.get());
  ASSERT_TRUE(store.ok()) << store.status();

  const std::string destination = folder.Path("exported");
  bool was_done = false;
  absl::Status status;
  const bool is_forbidden = RunWithoutThreads([&] {
    BackgroundExport exported(store->get(), {options.model, destination, options.export_dtype},
                              [] { return false; });
    was_done = exported.is_done();
    status = exported.Await();
  });
  const std::string given_up = folder.Path("given_up");
  absl::Status stopped;
  RunWithoutThreads([&] {
    stopped = BackgroundExport(store->get(), {options.model, given_up, options.export_dtype}, [] {
                return true;
              }).Await();
  });
  if (!is_forbidden) GTEST_SKIP() << kThreadsCannotBeForbidden;
  EXPECT_EQ(ExitCodeOf(stopped), ExitCode::kInterrupted);
  EXPECT_FALSE(FileExists(given_up));
  EXPECT_TRUE(was_done);
  EXPECT_EQ(status, absl::OkStatus());
  EXPECT_EQ(*ModelDigest(destination), *ModelDigest(JoinPath(options.out, "model")));
}

}  // namespace
}  // namespace forebay
