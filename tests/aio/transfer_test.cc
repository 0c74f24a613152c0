#include "forebay/aio/transfer.h"

#include <cerrno>
#include <vector>

#include "forebay/base/errors.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;

class TransferTest : public testing::Test {
 protected:
  Transfer Make(IoKind kind = IoKind::kRead) {
    return Transfer(kind, 40960, std::span(bytes_), {"/nvme/state.fbs", "nvme0n1"});
  }
  std::vector<std::byte> bytes_{16384};
};

TEST_F(TransferTest, IsDoneWhenEverythingMovedAtOnce) {
  Transfer transfer = Make();
  EXPECT_EQ(transfer.Apply(16384), Transfer::Next::kDone);
}

TEST_F(TransferTest, GoesOnBehindTheBlocksThatMoved) {
  Transfer transfer = Make();
  EXPECT_EQ(transfer.Apply(8192), Transfer::Next::kCall);
  EXPECT_EQ(transfer.rest_offset_bytes(), 40960 + 8192);
  EXPECT_EQ(transfer.rest().size(), 8192u);
  EXPECT_EQ(transfer.rest().data(), bytes_.data() + 8192);
  EXPECT_EQ(transfer.Apply(8192), Transfer::Next::kDone);
}

TEST_F(TransferTest, MovesTheOddEndOfAShortTransferAgain) {
  Transfer transfer = Make();
  EXPECT_EQ(transfer.Apply(6144), Transfer::Next::kCall);
  EXPECT_EQ(transfer.rest_offset_bytes(), 40960 + 4096);
  EXPECT_EQ(transfer.rest().size(), 12288u);
}

TEST_F(TransferTest, AReadOfNothingIsTheEndOfTheFile) {
  Transfer transfer = Make();
  EXPECT_EQ(transfer.Apply(4096), Transfer::Next::kCall);
  EXPECT_EQ(transfer.Apply(0), Transfer::Next::kFailed);
  EXPECT_EQ(ExitCodeOf(transfer.status()), ExitCode::kCorrupt);
  EXPECT_THAT(MessageOf(transfer.status()), HasSubstr("end of the file at 45056"));
  EXPECT_THAT(MessageOf(transfer.status()), HasSubstr("'/nvme/state.fbs'"));
}

TEST_F(TransferTest, AReadThatNeverGetsPastAnOddEndHasMetTheEndOfTheFile) {
  Transfer transfer = Make();
  Transfer::Next next = Transfer::Next::kCall;
  for (int i = 0; i < 100 && next == Transfer::Next::kCall; ++i) next = transfer.Apply(512);
  EXPECT_EQ(next, Transfer::Next::kFailed);
  EXPECT_EQ(ExitCodeOf(transfer.status()), ExitCode::kCorrupt);
  EXPECT_THAT(MessageOf(transfer.status()), HasSubstr("end of the file at 41472"));
}

TEST_F(TransferTest, AReadThatIsCutInsideItsFirstBlockIsMadeAgain) {
  Transfer transfer = Make();
  EXPECT_EQ(transfer.Apply(512), Transfer::Next::kCall);
  EXPECT_EQ(transfer.Apply(512), Transfer::Next::kCall);
  EXPECT_EQ(transfer.rest_offset_bytes(), 40960);
  EXPECT_EQ(transfer.Apply(16384), Transfer::Next::kDone);
}

TEST_F(TransferTest, EagainBacksOffLongerEachTimeAndThenGivesUp) {
  Transfer transfer = Make();
  int64_t total_us = 0;
  int64_t last_us = 0;
  Transfer::Next next = transfer.Apply(-EAGAIN);
  for (; next == Transfer::Next::kCall; next = transfer.Apply(-EAGAIN)) {
    EXPECT_GE(transfer.backoff_us(), last_us);
    last_us = transfer.backoff_us();
    total_us += last_us;
  }
  EXPECT_EQ(next, Transfer::Next::kFailed);
  EXPECT_GT(total_us, 500'000);
  EXPECT_LT(total_us, 2'000'000);
  EXPECT_EQ(ExitCodeOf(transfer.status()), ExitCode::kStorage);
  EXPECT_THAT(MessageOf(transfer.status()), HasSubstr("made no progress"));
  EXPECT_THAT(MessageOf(transfer.status()), HasSubstr("EAGAIN"));
}

TEST_F(TransferTest, ProgressResetsTheRetries) {
  Transfer transfer = Make(IoKind::kWrite);
  for (int block = 0; block < 3; ++block) {
    for (int i = 0; i < 10; ++i) ASSERT_EQ(transfer.Apply(-EAGAIN), Transfer::Next::kCall);
    ASSERT_EQ(transfer.Apply(4096), Transfer::Next::kCall);
    EXPECT_EQ(transfer.backoff_us(), 0);
  }
  EXPECT_EQ(transfer.Apply(4096), Transfer::Next::kDone);
}

TEST_F(TransferTest, AnInterruptedCallIsMadeAgainAtOnce) {
  Transfer transfer = Make();
  EXPECT_EQ(transfer.Apply(-EINTR), Transfer::Next::kCall);
  EXPECT_EQ(transfer.backoff_us(), 0);
  EXPECT_EQ(transfer.rest_offset_bytes(), 40960);
}

TEST_F(TransferTest, AWriteOfNothingIsRetriedAndThenAnError) {
  Transfer transfer = Make(IoKind::kWrite);
  Transfer::Next next = Transfer::Next::kCall;
  for (int i = 0; i < 100 && next == Transfer::Next::kCall; ++i) next = transfer.Apply(0);
  EXPECT_EQ(next, Transfer::Next::kFailed);
  EXPECT_EQ(ExitCodeOf(transfer.status()), ExitCode::kStorage);
}

TEST_F(TransferTest, OtherErrorsAreFinalAndSayWhatWhereWhyAndWhatToDo) {
  Transfer transfer = Make(IoKind::kWrite);
  EXPECT_EQ(transfer.Apply(4096), Transfer::Next::kCall);
  EXPECT_EQ(transfer.Apply(-EIO), Transfer::Next::kFailed);
  EXPECT_EQ(ExitCodeOf(transfer.status()), ExitCode::kStorage);
  EXPECT_THAT(MessageOf(transfer.status()),
              HasSubstr("write of 16384 bytes at 40960 of '/nvme/state.fbs' on nvme0n1 failed "
                        "after 4096"));
  EXPECT_THAT(MessageOf(transfer.status()), HasSubstr("EIO"));
  EXPECT_THAT(MessageOf(transfer.status()), HasSubstr("smartctl"));
}

TEST_F(TransferTest, AVanishedDeviceIsNamedAsSuch) {
  for (const int error : {ENODEV, ENXIO}) {
    Transfer transfer = Make();
    EXPECT_EQ(transfer.Apply(-error), Transfer::Next::kFailed);
    EXPECT_EQ(ExitCodeOf(transfer.status()), ExitCode::kStorage);
    EXPECT_THAT(MessageOf(transfer.status()), HasSubstr("The device is gone"));
  }
}

}  // namespace
}  // namespace forebay
