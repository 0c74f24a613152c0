#include "forebay/optimizer/background_updates.h"

#include <span>

#include "forebay/base/errors.h"
#include "forebay/tests/without_threads.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

TEST(BackgroundUpdates, WithoutAThreadThatIsAnError) {
  const auto update = [](int, const StagingBuffer&, std::span<const std::byte>) {
    return absl::OkStatus();
  };
  absl::Status status;
  const bool is_forbidden = RunWithoutThreads([&] {
    status = BackgroundUpdates::Create({0, 1}, {}, nullptr, update).status();
  });
  if (!is_forbidden) GTEST_SKIP() << kThreadsCannotBeForbidden;
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kEnvironment) << status;
  EXPECT_THAT(MessageOf(status), testing::HasSubstr("updating beside the passes"));
}

}  // namespace
}  // namespace forebay
