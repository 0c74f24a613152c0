// Sessions and swappers where no thread can be had: an error, and nothing is left behind.
#include <filesystem>

#include "forebay/swap/window/swapper.h"
#include "forebay/tests/swap/session/session_fixture.h"
#include "forebay/tests/without_threads.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;

using NoThreadTest = SessionFixture;

TEST_F(NoThreadTest, ANewSessionIsAnErrorAndLeavesNothingBehind) {
  StoreOptions options = Store();
  options.directories = {folder_.Path("above/store")};
  absl::Status status;
  const bool is_forbidden = RunWithoutThreads([&] {
    status = TensorSession::Create(kPlenty, options, inventory_, engine_.get()).status();
  });
  if (!is_forbidden) GTEST_SKIP() << kThreadsCannotBeForbidden;
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kEnvironment) << status;
  EXPECT_THAT(MessageOf(status), HasSubstr("the writes of a session"));
  EXPECT_FALSE(std::filesystem::exists(folder_.Path("above")));
  EXPECT_TRUE(TensorSession::Create(kPlenty, options, inventory_, engine_.get()).ok());
}

TEST_F(NoThreadTest, AFolderThatWasThereStays) {
  std::filesystem::create_directory(folder_.Path("store"));
  const bool is_forbidden = RunWithoutThreads([&] {
    EXPECT_FALSE(TensorSession::Create(kPlenty, Store(), inventory_, engine_.get()).ok());
  });
  if (!is_forbidden) GTEST_SKIP() << kThreadsCannotBeForbidden;
  EXPECT_TRUE(std::filesystem::is_empty(folder_.Path("store")));
}

TEST_F(NoThreadTest, AStoreThatCannotBeOpenedStaysWhatItIs) {
  {
    const auto session = MustCreate();
    ASSERT_EQ(SetEverything(*session, expected_, 1), absl::OkStatus());
    ASSERT_EQ(session->Commit(1), absl::OkStatus());
  }
  absl::Status status;
  const bool is_forbidden = RunWithoutThreads([&] {
    status = TensorSession::Open(kPlenty, {folder_.Path("store")}, engine_.get()).status();
  });
  if (!is_forbidden) GTEST_SKIP() << kThreadsCannotBeForbidden;
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kEnvironment) << status;
  EXPECT_EQ(SeesTensors(*MustOpen(), expected_), absl::OkStatus());
}

TEST_F(NoThreadTest, ASwapperIsAnErrorAndGivesItsMemoryBack) {
  auto store = TensorStore::Create(Store(), inventory_, engine_.get());
  ASSERT_TRUE(store.ok()) << store.status();
  ASSERT_EQ(WriteStep(**store, 1), absl::OkStatus());
  Placement placement;
  placement.weights.assign(static_cast<size_t>((*store)->tiles().num_layers()), Tier::kNvme);
  placement.weights[1] = Tier::kHost;
  MemoryBudget budget(0);
  absl::Status status;
  const bool is_forbidden = RunWithoutThreads(
      [&] { status = Swapper::Create({}, placement, store->get(), nullptr, &budget).status(); });
  if (!is_forbidden) GTEST_SKIP() << kThreadsCannotBeForbidden;
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kEnvironment) << status;
  EXPECT_THAT(MessageOf(status), HasSubstr("reading weights ahead"));
  EXPECT_EQ(budget.used_bytes(), 0);
  EXPECT_TRUE(Swapper::Create({}, placement, store->get(), nullptr, &budget).ok());
}

}  // namespace
}  // namespace forebay
