// Engines where no thread can be had.
#include <fcntl.h>

#include <array>
#include <memory>

#include "forebay/aio/engine.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/tests/temporary_folder.h"
#include "forebay/tests/without_threads.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using testing::HasSubstr;

TEST(EnginesWithoutThreads, TheThreadsEngineSaysSoWithItsFirstOperation) {
  const TemporaryFolder folder;
  alignas(kIoAlignBytes) static std::array<std::byte, kIoAlignBytes> bytes;
  absl::Status wrote, flushed;
  const bool is_forbidden = RunWithoutThreads([&] {
    const std::unique_ptr<Engine> engine = CreateThreadsEngine({.num_threads = 2});
    auto file = OpenFile(folder.Path("file"), O_RDWR | O_CREAT);
    ASSERT_TRUE(file.ok()) << file.status();
    const int number = engine->AddFile(*std::move(file), folder.Path("file"));
    IoOp op;
    op.kind = IoKind::kWrite;
    op.file = number;
    op.buffer = bytes;
    engine->Submit(op);
    wrote = engine->Wait(op);
    flushed = engine->Flush(number);
  });
  if (!is_forbidden) GTEST_SKIP() << kThreadsCannotBeForbidden;
  for (const absl::Status& status : {wrote, flushed}) {
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kEnvironment) << status;
    EXPECT_THAT(MessageOf(status), HasSubstr("no thread could be started for reading and writing"));
  }
}

TEST(EnginesWithoutThreads, ADrivingThreadThatCannotBeHadIsAnError) {
  absl::Status status;
  const bool is_forbidden = RunWithoutThreads(
      [&] { status = CreateIoUringEngine({.drive = RingDrive::kOwnThread}).status(); });
  if (!is_forbidden) GTEST_SKIP() << kThreadsCannotBeForbidden;
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kEnvironment) << status;
  EXPECT_THAT(MessageOf(status), HasSubstr("no thread could be started"));
}

}  // namespace
}  // namespace forebay
