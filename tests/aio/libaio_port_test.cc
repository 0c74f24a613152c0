// What io_submit and io_getevents may answer, and real kernels rarely do.
#include "forebay/aio/libaio_port.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/tests/aio/engine_fixture.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;

// The kernel, with one habit.
class Habit : public LibaioCalls {
 public:
  int Submit(io_context_t context, long count, iocb** calls) override {
    ++num_submits;
    if (one_at_a_time) count = std::min(count, 1L);
    if (again_every > 0 && num_submits > 1 && num_submits % again_every == 0) return -EAGAIN;
    if (refuse_flushes && count > 0 && calls[0]->aio_lio_opcode == IO_CMD_FDSYNC) return -EINVAL;
    return LibaioCalls::Submit(context, count, calls);
  }
  int GetEvents(io_context_t context, long least, long most, io_event* events,
                timespec* timeout) override {
    if (interrupt_every > 0 && ++num_gets % interrupt_every == 0) return -EINTR;
    if (one_at_a_time) most = 1;
    const int count = LibaioCalls::GetEvents(context, least, most, events, timeout);
    for (int i = 0; i < count; ++i) {
      if (events[i].obj->aio_lio_opcode != IO_CMD_POLL) events[i].res2 += second_result;
    }
    return count;
  }

  bool one_at_a_time = false;
  int again_every = 0;
  int interrupt_every = 0;
  bool refuse_flushes = false;
  unsigned long second_result = 0;

 private:
  int num_submits = 0;
  int num_gets = 0;
};

class LibaioPortTest : public testing::Test {
 protected:
  // Writes a file in many ops and reads it back; the first error.
  absl::Status UseWith(const Habit& habit) {
    auto engine = CreateRingEngine({.block_bytes = 8192}, RingDrive::kOwnThread,
                                   [&] { return OpenLibaioPort(std::make_unique<Habit>(habit)); });
    if (!engine.ok()) return engine.status();
    const std::string path = folder_.Path("file");
    auto file = OpenDirectFile(path, {.create = true, .size_bytes = 1 << 20});
    EXPECT_TRUE(file.ok()) << file.status();
    const int number = (*engine)->AddFile(std::move(file->fd), path);
    auto written = HostBuffer::Create(&budget_, "test", 1 << 20);
    auto read = HostBuffer::Create(&budget_, "test", 1 << 20);
    FillRandom(written->bytes(), 21);
    absl::Status status;
    std::array<IoOp, 16> ops;
    for (const IoKind kind : {IoKind::kWrite, IoKind::kRead}) {
      for (size_t i = 0; i < ops.size(); ++i) {
        const auto bytes = (kind == IoKind::kWrite ? written : read)->bytes();
        ops[i].kind = kind;
        ops[i].file = number;
        ops[i].offset_bytes = static_cast<int64_t>(i) * 65536;
        ops[i].buffer = bytes.subspan(i * 65536, 65536);
        (*engine)->Submit(ops[i]);
      }
      for (IoOp& op : ops) status.Update((*engine)->Wait(op));
    }
    status.Update((*engine)->Flush(number));
    if (status.ok()) {
      EXPECT_TRUE(SameBytes(written->bytes(), read->bytes()));
    }
    return status;
  }

  const TemporaryFolder folder_;
  MemoryBudget budget_{0};
};

#define SKIP_WITHOUT_LIBAIO() \
  if (const auto port = OpenLibaioPort(); !port.ok()) GTEST_SKIP() << port.status()

TEST_F(LibaioPortTest, AKernelThatTakesAndGivesOneAtATimeIsServed) {
  SKIP_WITHOUT_LIBAIO();
  Habit habit;
  habit.one_at_a_time = true;
  EXPECT_EQ(UseWith(habit), absl::OkStatus());
}

TEST_F(LibaioPortTest, EagainOnSubmissionIsTriedAgain) {
  SKIP_WITHOUT_LIBAIO();
  Habit habit;
  habit.one_at_a_time = true;
  habit.again_every = 3;
  EXPECT_EQ(UseWith(habit), absl::OkStatus());
}

TEST_F(LibaioPortTest, AnInterruptedWaitLosesNothing) {
  SKIP_WITHOUT_LIBAIO();
  Habit habit;
  habit.interrupt_every = 2;
  EXPECT_EQ(UseWith(habit), absl::OkStatus());
}

TEST_F(LibaioPortTest, AFileSystemWithoutAsynchronousFlushIsFlushedAllTheSame) {
  SKIP_WITHOUT_LIBAIO();
  Habit habit;
  habit.refuse_flushes = true;
  EXPECT_EQ(UseWith(habit), absl::OkStatus());
}

TEST_F(LibaioPortTest, TheSecondResultOfAnEventIsAnErrorToo) {
  SKIP_WITHOUT_LIBAIO();
  Habit habit;
  habit.second_result = static_cast<unsigned long>(-EIO);
  const absl::Status status = UseWith(habit);
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kStorage);
  EXPECT_THAT(MessageOf(status), HasSubstr("EIO"));
}

class FullSystem : public LibaioCalls {
 public:
  int Setup(int, io_context_t*) override { return -EAGAIN; }
};

TEST_F(LibaioPortTest, ASystemWithoutFreeRequestsNamesTheSetting) {
  const auto port = OpenLibaioPort(std::make_unique<FullSystem>());
  EXPECT_EQ(ExitCodeOf(port.status()), ExitCode::kEnvironment);
  EXPECT_THAT(MessageOf(port.status()), HasSubstr("fs.aio-max-nr"));
}

}  // namespace
}  // namespace forebay
