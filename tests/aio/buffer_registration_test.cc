#include "forebay/aio/buffer_registration.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "forebay/aio/faults/simulated_disk.h"
#include "forebay/aio/kernel_limits.h"
#include "forebay/base/clock.h"
#include "forebay/base/errors.h"
#include "forebay/tests/aio/engine_fixture.h"
#include "forebay/tests/aio/registering_port.h"
#include "forebay/tests/child_process.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kMib = int64_t{1} << 20;

TEST(WhyNotRegistered, TheLimitThatItAdvisesIsEnoughWhateverIsLockedAlready) {
  const MemlockLimit limit = {.none = false, .kib = 8192};
  EXPECT_THAT(WhyNotRegistered(ENOMEM, 8 * kMib, 8 * kMib, limit),
              AllOf(HasSubstr("is 8192 KiB"), HasSubstr("Raise it to 16384 KiB or more")));
  EXPECT_THAT(WhyNotRegistered(ENOMEM, 3 * kMib, 20 * kMib, limit),
              HasSubstr("Raise it to 20480 KiB or more"));
}

TEST(WhyNotRegistered, WithoutALimitTheKernelItselfIsShortOfMemory) {
  EXPECT_THAT(WhyNotRegistered(ENOMEM, 8 * kMib, 8 * kMib, {.none = true, .kib = std::nullopt}),
              AllOf(HasSubstr("no limit of locked memory is set"),
                    HasSubstr("kernel itself is short of memory"), Not(HasSubstr("Raise"))));
}

TEST(WhyNotRegistered, ALimitThatTheSystemDoesNotTellIsSaidToBeNotKnown) {
  EXPECT_THAT(WhyNotRegistered(ENOMEM, 8 * kMib, 8 * kMib, MemlockLimit{}),
              AllOf(HasSubstr("is not known"), HasSubstr("Raise it to 8192 KiB or more")));
}

// Root is not bound by it.
TEST(MemlockLimit, IsThatOfAUserWithoutPrivileges) {
  const std::string kib = InChild([]() -> std::string {
    if (::geteuid() == 0 && ::setuid(65534) != 0) return "root's rights could not be given up";
    struct rlimit limit = {};
    if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "no limit";
    limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 64 << 10);
    if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "the limit could not be lowered";
    const MemlockLimit asked = MemlockLimit::Ask();
    return asked.kib == static_cast<int64_t>(limit.rlim_cur >> 10) && !asked.none ? "as set" : "";
  });
  EXPECT_EQ(kib, "as set");
}

TEST(WhyNotRegistered, NamesTheLimitAndTheFixOfEveryRefusal) {
  EXPECT_THAT(WhyNotRegistered(E2BIG, kMib, kMib),
              AllOf(HasSubstr("room for 4096 buffers"), HasSubstr("Fewer and longer")));
  EXPECT_THAT(WhyNotRegistered(ETIMEDOUT, kMib, kMib),
              AllOf(HasSubstr("a device that stalls"), HasSubstr("dmesg")));
}

HostBuffer MakeBuffer(MemoryBudget* budget, int64_t size_bytes) {
  auto buffer = HostBuffer::Create(budget, "test", size_bytes);
  EXPECT_TRUE(buffer.ok()) << buffer.status();
  return *std::move(buffer);
}

// What a registration does to an engine, seen from the kernel's side.
class BufferRegistrationTest : public testing::Test {
 protected:
  std::unique_ptr<Engine> MakeEngine() {
    return CreateRegisteringEngine({.drive = RingDrive::kWaiter}, log_, [] {
      return absl::StatusOr<std::unique_ptr<IoPort>>(MakeSimulatedDisk({}));
    });
  }

  MemoryBudget budget_{0};
  const std::shared_ptr<RegistrationLog> log_ = std::make_shared<RegistrationLog>();
};

TEST_F(BufferRegistrationTest, LastsAsLongAsItsOwner) {
  const auto engine = MakeEngine();
  const HostBuffer buffer = MakeBuffer(&budget_, kMib);
  {
    const BufferRegistration registration(engine.get(), buffer.IoPieces());
    EXPECT_TRUE(registration.status().ok());
    EXPECT_EQ(log_->registered_bytes(), kMib);
  }
  EXPECT_EQ(log_->registered_bytes(), 0);
  EXPECT_EQ(log_->problem(), "");
}

TEST_F(BufferRegistrationTest, MovesWithItsOwnerAndEndsWhatItReplaces) {
  const auto engine = MakeEngine();
  const HostBuffer small = MakeBuffer(&budget_, kMib);
  const HostBuffer large = MakeBuffer(&budget_, 2 * kMib);
  BufferRegistration first(engine.get(), small.IoPieces());
  BufferRegistration second(engine.get(), large.IoPieces());
  first = std::move(second);
  EXPECT_EQ(log_->registered_bytes(), 2 * kMib);
  const BufferRegistration third = std::move(first);
  EXPECT_EQ(log_->registered_bytes(), 2 * kMib);
  first.Reset();
  EXPECT_EQ(log_->registered_bytes(), 2 * kMib);
}

TEST_F(BufferRegistrationTest, OfSeveralPiecesKeepsThoseThatTheKernelTakes) {
  log_->refuse = [](std::span<std::byte> memory) { return memory.size() > 4096 ? ENOMEM : 0; };
  const auto engine = MakeEngine();
  const HostBuffer buffer = MakeBuffer(&budget_, kMib);
  {
    const BufferRegistration registration(
        engine.get(), {buffer.bytes().subspan(4096), buffer.bytes().first(4096)});
    EXPECT_EQ(ExitCodeOf(registration.status()), ExitCode::kEnvironment);
    EXPECT_EQ(log_->registered_bytes(), 4096);
  }
  EXPECT_EQ(log_->registered_bytes(), 0);
}

TEST_F(BufferRegistrationTest, TheEngineSaysInOneLineHowMuchOfAllItLacks) {
  log_->refuse = [](std::span<std::byte> memory) {
    return static_cast<int64_t>(memory.size()) > kMib ? ENOMEM : 0;
  };
  const auto engine = MakeEngine();
  EXPECT_EQ(engine->RegistrationNote(), "");
  const HostBuffer one = MakeBuffer(&budget_, kMib);
  const HostBuffer two = MakeBuffer(&budget_, 2 * kMib);
  const HostBuffer three = MakeBuffer(&budget_, 3 * kMib);
  const BufferRegistration taken(engine.get(), {one.bytes()});
  EXPECT_EQ(engine->RegistrationNote(), "");
  {
    const BufferRegistration refused(engine.get(), {two.bytes()});
    const BufferRegistration refused_too(engine.get(), {three.bytes()});
    EXPECT_THAT(engine->RegistrationNote(),
                AllOf(HasSubstr("5 of 6 MiB of buffers were not registered (ENOMEM"),
                      AnyOf(HasSubstr("KiB or more"), HasSubstr("no limit of locked memory"))));
    RegistrationGap of_two = engine->registration_gap();
    of_two.Add(engine->registration_gap());
    EXPECT_THAT(of_two.Note(), HasSubstr("10 of 12 MiB of buffers were not registered (ENOMEM"));
  }
  EXPECT_EQ(engine->RegistrationNote(), "") << "nothing is missing any more";
}

// Two reads under way, of which one has ended when the registration does.
void EndUnderATransfer(Engine& engine, const TemporaryFolder& folder, const HostBuffer& buffer) {
  auto file = OpenDirectFile(folder.Path("file"), {.create = true, .size_bytes = 8192});
  const int number = engine.AddFile(std::move(file->fd), folder.Path("file"));
  IoOp ops[2];
  IoOp* const any[] = {&ops[0], &ops[1]};
  BufferRegistration registration(&engine, {buffer.bytes()});
  for (size_t i = 0; i < 2; ++i) {
    ops[i].file = number;
    ops[i].buffer = buffer.bytes().subspan(i * 4096, 4096);
    engine.Submit(ops[i]);
  }
  engine.WaitAny(any);
  registration.Reset();
}

TEST_F(BufferRegistrationTest, EndingUnderATransferIsABug) {
  const TemporaryFolder folder;
  const HostBuffer buffer = MakeBuffer(&budget_, 8192);
  EXPECT_DEATH(EndUnderATransfer(*MakeEngine(), folder, buffer), "slot.op == nullptr");
}

// One that has not begun yet counts as well.
void EndBeforeATransfer(Engine& engine, const TemporaryFolder& folder, const HostBuffer& buffer) {
  auto file = OpenDirectFile(folder.Path("file"), {.create = true, .size_bytes = 4096});
  IoOp op;
  op.file = engine.AddFile(std::move(file->fd), folder.Path("file"));
  op.buffer = buffer.bytes();
  BufferRegistration registration(&engine, {buffer.bytes()});
  engine.Submit(op);
  registration.Reset();
}

TEST_F(BufferRegistrationTest, EndingBeforeATransferThatWaitsIsABug) {
  const TemporaryFolder folder;
  const HostBuffer buffer = MakeBuffer(&budget_, 4096);
  EXPECT_DEATH(EndBeforeATransfer(*MakeEngine(), folder, buffer), "HasUserOf");
}

// The kernel's own view, which needs a real io_uring.
class RegisteredBuffersTest : public testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<Engine>> engine = CreateIoUringEngine({});
    if (!engine.ok()) GTEST_SKIP() << engine.status();
    engine_ = *std::move(engine);
    const HostBuffer probe = MakeBuffer(&budget_, 4096);
    const BufferRegistration registration(engine_.get(), {probe.bytes()});
    if (!registration.status().ok()) GTEST_SKIP() << registration.status();
    const std::string path = folder_.Path("file");
    auto file = OpenDirectFile(path, {.create = true, .size_bytes = 4 * kMib});
    ASSERT_TRUE(file.ok()) << file.status();
    file_ = engine_->AddFile(std::move(file->fd), path);
    contents_ = MakeBuffer(&budget_, 4 * kMib);
    FillRandom(contents_.bytes(), 1);
    ASSERT_TRUE(Run(IoKind::kWrite, 0, contents_.bytes()).ok());
  }

  absl::Status Run(IoKind kind, int64_t offset_bytes, std::span<std::byte> buffer) {
    IoOp op;
    op.kind = kind;
    op.file = file_;
    op.offset_bytes = offset_bytes;
    op.buffer = buffer;
    engine_->Submit(op);
    return engine_->Wait(op);
  }

  bool Holds(std::span<const std::byte> memory, int64_t offset_bytes) const {
    return SameBytes(memory, contents_.bytes().subspan(offset_bytes, memory.size()));
  }

  MemoryBudget budget_{0};
  const TemporaryFolder folder_;
  HostBuffer contents_;
  std::unique_ptr<Engine> engine_;
  int file_ = -1;
};

// Memory that is taken away from under its registration shows whether the registration was used:
// the kernel then writes to the pages that were there.
TEST_F(RegisteredBuffersTest, AreWhereTheKernelPutsTheBytes) {
  const HostBuffer buffer = MakeBuffer(&budget_, 65536);
  const BufferRegistration registration(engine_.get(), {buffer.bytes()});
  ASSERT_EQ(::madvise(buffer.data(), 65536, MADV_DONTNEED), 0);
  ASSERT_TRUE(Run(IoKind::kRead, 0, buffer.bytes().first(32768)).ok());
  EXPECT_TRUE(std::ranges::all_of(buffer.bytes(), [](std::byte b) { return b == std::byte{0}; }))
      << "the transfer did not use the registered buffer";
}

TEST_F(RegisteredBuffersTest, AreForgottenBeforeTheirAddressMeansSomethingElse) {
  const HostBuffer buffer = MakeBuffer(&budget_, 65536);
  { const BufferRegistration registration(engine_.get(), {buffer.bytes()}); }
  ASSERT_EQ(::madvise(buffer.data(), 65536, MADV_DONTNEED), 0);
  ASSERT_TRUE(Run(IoKind::kRead, 0, buffer.bytes()).ok());
  EXPECT_TRUE(Holds(buffer.bytes(), 0));
}

TEST_F(RegisteredBuffersTest, OfManyTheRightOneIsFound) {
  // More than any table of old had room for, in any order, neighbours among them, some given back.
  constexpr int kNumPieces = 300;
  constexpr size_t kPieceBytes = 8192;
  const HostBuffer buffer = MakeBuffer(&budget_, kNumPieces * kPieceBytes);
  std::vector<BufferRegistration> registrations(kNumPieces);
  for (int i = 0; i < kNumPieces; ++i) {
    const size_t piece = static_cast<size_t>(i) * 7 % kNumPieces;
    registrations[piece] = BufferRegistration(
        engine_.get(), {buffer.bytes().subspan(piece * kPieceBytes, kPieceBytes)});
    ASSERT_TRUE(registrations[piece].status().ok()) << registrations[piece].status();
  }
  for (int i = 0; i < kNumPieces; i += 3) registrations[i].Reset();
  // Transfers within a piece, across two, and in those that were given back.
  for (int64_t at = 0; at + 12288 <= std::ssize(buffer.bytes()); at += 12288) {
    const auto memory =
        buffer.bytes().subspan(static_cast<size_t>(at), at % 8192 == 0 ? 4096 : 12288);
    ASSERT_TRUE(Run(IoKind::kRead, at, memory).ok());
    ASSERT_TRUE(Holds(memory, at)) << at;
  }
}

TEST_F(RegisteredBuffersTest, BytesBesideATransferAreLeftAlone) {
  // Odd sizes at odd places, in huge pages and behind them.
  const HostBuffer buffer = MakeBuffer(&budget_, 4 * kMib + 3 * 4096);
  const BufferRegistration registration(engine_.get(), buffer.IoPieces(5 * 4096));
  for (const int64_t at : {int64_t{0}, int64_t{4096}, 2 * kMib - 4096, 4 * kMib - 3 * 4096}) {
    for (const int64_t bytes : {int64_t{4096}, int64_t{5 * 4096}}) {
      std::ranges::fill(buffer.bytes(), std::byte{0xa5});
      const auto memory =
          buffer.bytes().subspan(static_cast<size_t>(at), static_cast<size_t>(bytes));
      ASSERT_TRUE(Run(IoKind::kRead, 4096, memory).ok());
      EXPECT_TRUE(Holds(memory, 4096));
      const auto untouched = [](std::byte b) { return b == std::byte{0xa5}; };
      EXPECT_TRUE(std::ranges::all_of(buffer.bytes().first(static_cast<size_t>(at)), untouched));
      EXPECT_TRUE(
          std::ranges::all_of(buffer.bytes().subspan(static_cast<size_t>(at + bytes)), untouched));
    }
  }
}

void RegisterTwice(Engine& engine, std::span<std::byte> memory) {
  const BufferRegistration first(&engine, {memory.first(32768)});
  const BufferRegistration second(&engine, {memory.subspan(28672)});
}

TEST_F(RegisteredBuffersTest, MemoryThatIsRegisteredAgainIsABug) {
  const HostBuffer buffer = MakeBuffer(&budget_, 65536);
  EXPECT_DEATH(RegisterTwice(*engine_, buffer.bytes()), "EndOf");
}

// The engine's thread looks for cancellations and for registrations, and opens its lock in between.
TEST_F(BufferRegistrationTest, IsServedRightBehindACancellation) {
  const auto script = std::make_shared<FaultScript>(FaultPlan{.again_every = 1});
  auto made = CreateRingEngine(
      {.stall_limit_s = 30}, RingDrive::kOwnThread,
      [&]() -> absl::StatusOr<std::unique_ptr<IoPort>> {
        auto port = OpenLibaioPort();
        if (!port.ok()) return port.status();
        return MakeFaultyPort(std::make_unique<RegisteringPort>(*std::move(port), log_), script);
      });
  if (!made.ok()) GTEST_SKIP() << made.status();
  Engine& engine = **made;
  const TemporaryFolder folder;
  auto file = OpenDirectFile(folder.Path("file"), {.create = true, .size_bytes = 4096});
  ASSERT_TRUE(file.ok()) << file.status();
  const int number = engine.AddFile(std::move(file->fd), folder.Path("file"));
  const HostBuffer busy = MakeBuffer(&budget_, 4096);
  const HostBuffer idle = MakeBuffer(&budget_, 4096);
  const Stopwatch watch;
  for (int i = 0; i < 20000 && watch.Seconds() < 0.5 && !HasFailure(); ++i) {
    IoOp op;
    op.file = number;
    op.buffer = busy.bytes();
    engine.Submit(op);
    // It is told to come again, and waits for that moment when it is cancelled.
    while (script->num_calls() <= i) std::this_thread::yield();
    engine.Cancel(op);
    engine.Wait(op).IgnoreError();
    // Which this thread may know before the engine's has its lock again.
    const BufferRegistration registration(&engine, {idle.bytes()});
    EXPECT_TRUE(registration.status().ok()) << registration.status();
  }
}

// ---- With a device that holds the engine's thread

// Holds the thread in the Run behind the first call, until the script says so.
class HeldPort : public RegisteringPort {
 public:
  HeldPort(std::unique_ptr<IoPort> inner, std::shared_ptr<RegistrationLog> log,
           std::shared_ptr<FaultScript> script)
      : RegisteringPort(std::move(inner), std::move(log)), script_(std::move(script)) {}
  int Run(std::span<Result> results, int64_t timeout_us) override {
    if (held_) script_->AwaitRelease();
    held_ = false;
    return RegisteringPort::Run(results, timeout_us);
  }
  void Queue(const Call& call) override {
    held_ = held_ || !script_->released();
    RegisteringPort::Queue(call);
  }

 private:
  const std::shared_ptr<FaultScript> script_;
  bool held_ = false;
};

class HeldThreadTest : public RegisteredBuffersTest {
 protected:
  // Replaces the engine by one that stalls at its first transfer.
  void Hold(double stall_limit_s) {
    auto made =
        CreateRingEngine({.stall_report_s = stall_limit_s / 4, .stall_limit_s = stall_limit_s},
                         RingDrive::kOwnThread, [&]() -> absl::StatusOr<std::unique_ptr<IoPort>> {
                           absl::StatusOr<std::unique_ptr<IoPort>> port = OpenIoUringPort();
                           if (!port.ok()) return port.status();
                           return std::make_unique<HeldPort>(*std::move(port), log_, script_);
                         });
    ASSERT_TRUE(made.ok()) << made.status();
    engine_ = *std::move(made);
    auto file = OpenDirectFile(folder_.Path("file"), {});
    ASSERT_TRUE(file.ok()) << file.status();
    file_ = engine_->AddFile(std::move(file->fd), folder_.Path("file"));
  }
  // Begins the transfer that holds the thread.
  void SubmitHeld() {
    op_.file = file_;
    op_.buffer = busy_.bytes();
    engine_->Submit(op_);
    while (log_->num_outside() == 0) std::this_thread::yield();
  }
  void TearDown() override {
    script_->ReleaseStalled();
    if (engine_ != nullptr) engine_->Wait(op_).IgnoreError();
  }
  // False when it does not come true in a time that no machine needs.
  static bool Await(const std::function<bool()>& condition) {
    const Stopwatch watch;
    while (!condition()) {
      if (watch.Seconds() > 30) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

  const std::shared_ptr<RegistrationLog> log_ = std::make_shared<RegistrationLog>();
  const std::shared_ptr<FaultScript> script_ = std::make_shared<FaultScript>(FaultPlan{});
  const HostBuffer busy_ = MakeBuffer(&budget_, 4096);
  IoOp op_;
};

TEST_F(HeldThreadTest, ForgetsWhatWasUnregisteredBeforeItMovesAnythingElse) {
  ASSERT_NO_FATAL_FAILURE(Hold(/*stall_limit_s=*/0.2));
  const HostBuffer idle = MakeBuffer(&budget_, 4096);
  const HostBuffer late = MakeBuffer(&budget_, 4096);
  BufferRegistration registration(engine_.get(), {idle.bytes()});
  SubmitHeld();
  EXPECT_FALSE(engine_->Wait(op_).ok()) << "it is given up";
  EXPECT_THAT(MessageOf(BufferRegistration(engine_.get(), {late.bytes()}).status()),
              AllOf(HasSubstr("ETIMEDOUT"), HasSubstr("a device that stalls holds the thread"),
                    HasSubstr("dmesg")));
  registration.Reset();
  EXPECT_EQ(log_->registered_bytes(), 4096) << "so far";
  ASSERT_EQ(::madvise(idle.data(), 4096, MADV_DONTNEED), 0);
  script_->ReleaseStalled();
  EXPECT_TRUE(Await([&] {
    registration = BufferRegistration(engine_.get(), {idle.bytes()});
    return registration.status().ok();
  })) << registration.status();
  EXPECT_TRUE(Await([&] { return Run(IoKind::kRead, 8192, idle.bytes()).ok(); }));
  EXPECT_TRUE(Holds(idle.bytes(), 8192));
  registration.Reset();
  EXPECT_EQ(log_->registered_bytes(), 0);
  EXPECT_EQ(log_->problem(), "");
}

TEST_F(HeldThreadTest, IsWaitedForOnceAndNotForEveryBuffer) {
  constexpr int kNumBuffers = 60;
  constexpr double kLimitS = 0.5;
  ASSERT_NO_FATAL_FAILURE(Hold(kLimitS));
  const HostBuffer memory = MakeBuffer(&budget_, kNumBuffers * 4096);
  std::vector<BufferRegistration> registrations;
  for (size_t i = 0; i < kNumBuffers; ++i) {
    registrations.emplace_back(engine_.get(), std::vector{memory.bytes().subspan(i * 4096, 4096)});
  }
  SubmitHeld();
  const Stopwatch watch;
  registrations.clear();
  EXPECT_LT(watch.Seconds(), kLimitS * kNumBuffers / 2);
  EXPECT_EQ(log_->registered_bytes(), kNumBuffers * 4096) << "so far";
  script_->ReleaseStalled();
  EXPECT_TRUE(Await([&] { return log_->registered_bytes() == 0; }));
  EXPECT_EQ(log_->problem(), "");
}

// What the kernel does not know it need not forget.
TEST_F(HeldThreadTest, IsNotWaitedForWhereTheKernelRefusedTheBuffer) {
  constexpr double kLimitS = 20;
  log_->refuse = [](std::span<std::byte>) { return ENOMEM; };
  ASSERT_NO_FATAL_FAILURE(Hold(kLimitS));
  const HostBuffer memory = MakeBuffer(&budget_, 4096);
  BufferRegistration registration(engine_.get(), {memory.bytes()});
  EXPECT_FALSE(registration.status().ok());
  SubmitHeld();
  const Stopwatch watch;
  registration.Reset();
  EXPECT_LT(watch.Seconds(), kLimitS / 2);
}

TEST_F(HeldThreadTest, IsNotWaitedForByAnEngineThatRegistersNothing) {
  constexpr double kLimitS = 20;
  log_->registers_buffers = false;
  ASSERT_NO_FATAL_FAILURE(Hold(kLimitS));
  const HostBuffer memory = MakeBuffer(&budget_, 4096);
  SubmitHeld();
  const Stopwatch watch;
  {
    const BufferRegistration registration(engine_.get(), {memory.bytes()});
    EXPECT_EQ(registration.status(), absl::OkStatus());
  }
  EXPECT_EQ(engine_->RegistrationNote(), "");
  EXPECT_LT(watch.Seconds(), kLimitS / 2);
}

}  // namespace
}  // namespace forebay
