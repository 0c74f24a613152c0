// What every engine does on a disk that fails.
#include <array>
#include <cerrno>
#include <cstring>
#include <string>

#include "forebay/aio/block_device.h"
#include "forebay/base/errors.h"
#include "forebay/tests/aio/engine_fixture.h"
#include "gmock/gmock.h"

#include <sys/stat.h>

namespace forebay {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class EngineFaultTest : public EngineFixture {
 protected:
  std::string DeviceOfFile() const {
    struct stat info = {};
    EXPECT_EQ(::stat(path_.c_str(), &info), 0);
    return DeviceName(info.st_dev);
  }
};

struct ErrorCase {
  int number;
  const char* name;
  const char* advice;
};
constexpr ErrorCase kErrors[] = {{EIO, "EIO", "smartctl"},
                                 {ENOSPC, "ENOSPC", "free space"},
                                 {EDQUOT, "EDQUOT", "quota"},
                                 {EINVAL, "EINVAL", "ext4 or XFS"},
                                 {ENODEV, "ENODEV", "device is gone"},
                                 {ENXIO, "ENXIO", "device is gone"},
                                 {EROFS, "EROFS", "read-only"},
                                 {ETIMEDOUT, "ETIMEDOUT", "dmesg"}};

TEST_P(EngineFaultTest, AnErrorNamesFileDeviceOffsetLengthErrnoAndTheFix) {
  const HostBuffer buffer = Buffer(8192);
  for (const ErrorCase& error : kErrors) {
    Start({.fail_call = 0, .error_number = error.number});
    const absl::Status status = Run(IoKind::kWrite, 4096, buffer.bytes());
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage) << status;
    EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("write of 8192 bytes at 4096 of '" + path_ +
                                                   "' on " + DeviceOfFile()),
                                         HasSubstr(error.name), HasSubstr(error.advice)));
    EXPECT_TRUE(Run(IoKind::kWrite, 4096, buffer.bytes()).ok()) << "no other op is concerned";
  }
}

TEST_P(EngineFaultTest, AFailedFlushNamesFileAndDevice) {
  Start({.fail_call = 0, .error_number = ENOSPC});
  const absl::Status status = engine().Flush(file_);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage);
  EXPECT_THAT(MessageOf(status),
              AllOf(HasSubstr(path_), HasSubstr(DeviceOfFile()), HasSubstr("ENOSPC")));
}

TEST_P(EngineFaultTest, OneBadPieceFailsItsOpAndTheOthersAreDone) {
  EngineCase small = GetParam();
  small.options.block_bytes = 16384;
  constexpr int kNumOps = 4;
  for (int64_t fail_call : {0, 5, 15}) {
    Start(small, {.fail_call = fail_call});
    const HostBuffer buffer = Buffer(kNumOps * 65536);
    FillRandom(buffer.bytes(), 11);
    std::array<IoOp, kNumOps> ops;
    for (int i = 0; i < kNumOps; ++i) {
      Prepare(ops[i], IoKind::kWrite, i * 65536, buffer.bytes().subspan(i * 65536, 65536));
      engine().Submit(ops[i]);
    }
    int num_failed = 0;
    for (IoOp& op : ops) num_failed += engine().Wait(op).ok() ? 0 : 1;
    EXPECT_EQ(num_failed, 1) << "call " << fail_call;
    EXPECT_EQ(engine().stats().write_ops, kNumOps - 1);
  }
}

TEST_P(EngineFaultTest, ADeadDeviceFailsEverythingAndNothingHangs) {
  Start({.fail_call = 3, .fail_all_after = true, .error_number = ENODEV});
  const HostBuffer buffer = Buffer(kFileBytes);
  std::array<IoOp, 32> ops;
  for (size_t i = 0; i < ops.size(); ++i) {
    Prepare(ops[i], i % 2 == 0 ? IoKind::kRead : IoKind::kWrite, i * 32768,
            buffer.bytes().subspan(i * 32768, 32768));
    engine().Submit(ops[i]);
  }
  int num_failed = 0;
  for (IoOp& op : ops) num_failed += engine().Wait(op).ok() ? 0 : 1;
  EXPECT_EQ(num_failed, 29);
  EXPECT_FALSE(engine().Flush(file_).ok());
}

TEST_P(EngineFaultTest, ADeviceThatIsBusyForeverIsGivenUpWithinABound) {
  Start({.fail_call = 0, .fail_all_after = true, .error_number = EAGAIN});
  const HostBuffer buffer = Buffer(4096);
  const absl::Status status = Run(IoKind::kRead, 0, buffer.bytes());
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage);
  EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("made no progress"), HasSubstr("EAGAIN")));
}

TEST_P(EngineFaultTest, ACallCanBeNamedByWhatItDoes) {
  const HostBuffer buffer = Buffer(4096);
  const CallName second = {IoKind::kWrite, "file", 8192, 1};
  for (const bool for_ever : {false, true}) {
    Start({.fail_named = second, .fail_all_after = for_ever});
    std::string outcomes;
    for (const int64_t offset_bytes : {8192, 4096, 8192, 4096, 8192}) {
      outcomes += Run(IoKind::kWrite, offset_bytes, buffer.bytes()).ok() ? '+' : '-';
      EXPECT_TRUE(Run(IoKind::kRead, offset_bytes, buffer.bytes()).ok());
    }
    EXPECT_EQ(outcomes, for_ever ? "++-+-" : "++-++");
    EXPECT_THAT(script().calls(), testing::Contains(second));
  }
}

TEST_P(EngineFaultTest, ACallThatMovesLittleOrNothingGoesOnOrIsTheEndOfTheFile) {
  const HostBuffer written = Buffer(16384);
  const HostBuffer read = Buffer(16384);
  FillRandom(written.bytes(), 14);
  for (const FaultEffect effect : {FaultEffect::kShort, FaultEffect::kNothing}) {
    Start({.fail_call = 0, .effect = effect});
    EXPECT_EQ(Run(IoKind::kWrite, 0, written.bytes()), absl::OkStatus());
    Start({.fail_call = 0, .effect = effect});
    const absl::Status status = Run(IoKind::kRead, 0, read.bytes());
    if (effect == FaultEffect::kNothing) {
      EXPECT_EQ(ExitCodeOf(status), ExitCode::kCorrupt) << status;
    } else {
      EXPECT_TRUE(SameBytes(read.bytes(), written.bytes())) << status;
    }
  }
}

TEST_P(EngineFaultTest, AFlippedBitIsTheOnlyDifference) {
  const HostBuffer written = Buffer(65536);
  const HostBuffer read = Buffer(65536);
  FillRandom(written.bytes(), 12);
  for (const int64_t flip_call : {0, 1}) {  // on the way there, on the way back
    Start({.flip_call = flip_call});
    ASSERT_TRUE(Run(IoKind::kWrite, 0, written.bytes()).ok());
    ASSERT_TRUE(Run(IoKind::kRead, 0, read.bytes()).ok());
    int num_bits = 0;
    for (size_t i = 0; i < read.bytes().size(); ++i) {
      num_bits += __builtin_popcount(static_cast<unsigned>(read.bytes()[i] ^ written.bytes()[i]));
    }
    EXPECT_EQ(num_bits, 1);
  }
}

// Not of threads, whose cap is their number.
class CappedEngineTest : public EngineFaultTest {};

TEST_P(CappedEngineTest, KeepsToItsCapOfBytesAndToOneDirectionAtATime) {
  EngineCase capped = GetParam();
  capped.options.block_bytes = 8192;
  capped.options.max_in_flight_bytes = 65536;
  capped.options.burst_bytes = 32768;
  Start(capped, {});
  const HostBuffer buffer = Buffer(kFileBytes);
  std::array<IoOp, 16> ops;
  for (size_t i = 0; i < ops.size(); ++i) {
    Prepare(ops[i], i % 2 == 0 ? IoKind::kRead : IoKind::kWrite, i * 65536,
            buffer.bytes().subspan(i * 65536, 65536));
    ops[i].io_class = i % 2 == 0 ? IoClass::kPrefetch : IoClass::kWriteBack;
    engine().Submit(ops[i]);
  }
  for (IoOp& op : ops) EXPECT_TRUE(engine().Wait(op).ok());
  const DiskLoad load = script().peak_load();
  EXPECT_LE(load.in_flight_bytes, 65536);
  EXPECT_GT(load.in_flight_bytes, 16384) << "and it makes use of it";
  EXPECT_LE(load.opposing_bytes, 8192) << "one block of the direction that runs dry";
}

TEST_P(CappedEngineTest, WritesCanHaveACapOfTheirOwn) {
  EngineCase capped = GetParam();
  capped.options.block_bytes = 8192;
  capped.options.max_in_flight_bytes = 65536;
  capped.options.max_writing_bytes = 16384;
  const auto peak_of = [&](IoKind kind) {
    Start(capped, {});
    const HostBuffer buffer = Buffer(kFileBytes);
    std::array<IoOp, 8> ops;
    for (size_t i = 0; i < ops.size(); ++i) {
      Prepare(ops[i], kind, i * 65536, buffer.bytes().subspan(i * 65536, 65536));
      engine().Submit(ops[i]);
    }
    for (IoOp& op : ops) EXPECT_TRUE(engine().Wait(op).ok());
    return script().peak_load().in_flight_bytes;
  };
  EXPECT_LE(peak_of(IoKind::kWrite), 16384);
  EXPECT_GT(peak_of(IoKind::kRead), 16384);
}

TEST_P(EngineFaultTest, RecordsWhatReachedTheDisk) {
  Start({.record = true});
  const HostBuffer buffer = Buffer(8192);
  FillRandom(buffer.bytes(), 13);
  ASSERT_TRUE(Run(IoKind::kWrite, 4096, buffer.bytes()).ok());
  ASSERT_TRUE(engine().Flush(file_).ok());
  const std::vector<DiskEvent> events = script().events();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].path, path_);
  EXPECT_EQ(events[0].offset_bytes, 4096);
  EXPECT_TRUE(SameBytes(events[0].data, buffer.bytes()));
  EXPECT_TRUE(events[1].is_flush);
}

INSTANTIATE_TEST_SUITE_P(Engines, EngineFaultTest, testing::ValuesIn(PlainCases()),
                         [](const auto& c) { return c.param.name; });
INSTANTIATE_TEST_SUITE_P(Engines, CappedEngineTest,
                         testing::ValuesIn(Without(Under::kThreads, PlainCases())),
                         [](const auto& c) { return c.param.name; });

}  // namespace
}  // namespace forebay
