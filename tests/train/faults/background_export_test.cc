#include "forebay/train/background_export.h"

#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>
#include <system_error>
#include <thread>

#include "forebay/base/file.h"
#include "forebay/tests/train/faults/fault_suite.h"
#include "forebay/tests/train/faults/toy_run.h"
#include "forebay/train/run_folder.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

constexpr int kNobody = 65534;

// Makes the calling thread one of a user who has as many processes as he may; of this thread alone,
// so that the test goes on as before.
void ForbidThreads() {
  if (::geteuid() == 0) {
    // No limit is one for root, nor for who may exceed limits. Files stay accessible.
    __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct capabilities[_LINUX_CAPABILITY_U32S_3] = {};
    ASSERT_EQ(::syscall(SYS_capget, &header, capabilities), 0);
    for (const int capability : {CAP_SYS_RESOURCE, CAP_SYS_ADMIN}) {
      capabilities[0].effective &= ~(1U << capability);
    }
    ASSERT_EQ(::syscall(SYS_setresuid, kNobody, 0, 0), 0);
    ASSERT_EQ(::syscall(SYS_capset, &header, capabilities), 0);
  }
}

bool AThreadCanBeHad() {
  try {
    std::thread([] {}).join();
    return true;
  } catch (const std::system_error&) {
    return false;
  }
}

TEST(BackgroundExport, IsMadeAtOnceWhereNoThreadCanBeHad) {
  const TemporaryFolder folder{FolderInRam()};
  const ToyTask task(folder.path());
  const TrainOptions options = task.TightRun(folder.Path("run"));
  ASSERT_EQ(TrainToy(options), absl::OkStatus());
  const std::unique_ptr<Engine> engine = CreateThreadsEngine({.num_threads = 1});
  const auto store = OpenRunStore(options.out, engine.get());
  ASSERT_TRUE(store.ok()) << store.status();

  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_NPROC, &before), 0);
  const std::string destination = folder.Path("exported");
  bool is_forbidden = false;
  bool was_done = false;
  absl::Status status;
  std::thread confined([&] {
    ASSERT_NO_FATAL_FAILURE(ForbidThreads());
    const rlimit none = {0, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NPROC, &none), 0);
    is_forbidden = !AThreadCanBeHad();
    BackgroundExport exported(store->get(), options.model, destination);
    was_done = exported.is_done();
    status = exported.Await();
  });
  confined.join();
  ASSERT_EQ(::setrlimit(RLIMIT_NPROC, &before), 0);
  if (!is_forbidden) GTEST_SKIP() << "threads cannot be forbidden here (a user namespace?)";
  EXPECT_TRUE(was_done);
  EXPECT_EQ(status, absl::OkStatus());
  EXPECT_EQ(*ModelDigest(destination), *ModelDigest(JoinPath(options.out, "model")));
}

}  // namespace
}  // namespace forebay
