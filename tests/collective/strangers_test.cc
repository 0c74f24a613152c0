// Ranks that meet while programs that are no ranks reach the same ports. Those that say nothing
// would hold up whoever waited for them one after the other for longer than the meeting may last.
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/collective/sockets/handshake.h"
#include "forebay/collective/sockets/rendezvous.h"
#include "forebay/collective/sockets/socket.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kNumStrangers = 100;
constexpr double kTimeoutS = 60;
constexpr const char* kSecret = "the secret of the ranks";
constexpr const char* kOtherSecret = "the secret of someone else";

// The ports of this process and of its children.
const int kFirstPort = 10000 + ::getpid() % 600 * kNumRankPorts;

Launch RankOf(int rank, int size, const std::string& secret = "") {
  return {.transport = RankTransport::kSockets,
          .launcher = "this test",
          .rank = rank,
          .size = size,
          .master_address = "127.0.0.1",
          .first_port = kFirstPort,
          .job = "a job",
          .secret = secret};
}

SocketAddress At(const std::string& host, int port) {
  return ResolveHost(host, port).value().at(0);
}
SocketAddress FirstPort() {
  return At("127.0.0.1", kFirstPort);
}

// Connected, or ECONNREFUSED.
int Connect(const SocketAddress& address, UniqueFd& fd) {
  const int error = StartToConnect(address, fd);
  if (error != 0) return error;
  pollfd polled = {fd.get(), POLLOUT, 0};
  while (::poll(&polled, 1, -1) < 0) continue;
  return ErrorOfConnecting(fd.get());
}
// When somebody listens there.
UniqueFd ConnectInTheEnd(const SocketAddress& address) {
  for (;;) {
    UniqueFd fd;
    if (Connect(address, fd) == 0) return fd;
    ::usleep(1000);
  }
}

void HangUpHard(UniqueFd& fd) {
  const linger at_once = {1, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  fd.Reset();
}

// The first bytes that a rank of "a job" sends.
std::string HelloOfARank() {
  UniqueFd listener, fd;
  EXPECT_EQ(ListenAt(At("127.0.0.1", 0), listener), 0);
  const JobKey key("a job", kOtherSecret);
  OutgoingHandshake outgoing(OwnAddress(listener.get()), key, {.rank = 1, .size = 2});
  pollfd polled[2] = {{listener.get(), POLLIN, 0}, {outgoing.fd(), POLLOUT, 0}};
  while (::poll(&polled[0], 1, -1) < 1 || ::poll(&polled[1], 1, -1) < 1) continue;
  EXPECT_EQ(Accept(listener.get(), fd), 0);
  outgoing.Advance();
  std::string hello(sizeof(HelloMessage), '\0');
  for (size_t got = 0; got < hello.size();) {
    got += static_cast<size_t>(
        ReceiveSome(fd.get(), std::as_writable_bytes(std::span(hello).subspan(got))));
  }
  return hello;
}

// Programs of each kind at one address, until it ends.
class Strangers {
 public:
  explicit Strangers(const SocketAddress& address) {
    for (int i = 0; i < kNumStrangers; ++i) silent_.push_back(ConnectInTheEnd(address));
    babbles_ = std::thread([this, address] { Babble(address); });
  }
  ~Strangers() {
    is_over_ = true;
    babbles_.join();
  }

 private:
  void Babble(const SocketAddress& address) {
    const std::string hello = HelloOfARank();
    const std::string garbage(300, 'x');
    std::vector<UniqueFd> open(kNumStrangers);
    std::vector<size_t> said(kNumStrangers);
    for (size_t i = 0; !is_over_; i = (i + 1) % open.size()) {
      const std::string& text = i % 2 == 0 ? hello : garbage;
      // By the byte, at once, and what a rank says and then what proves nothing; some hang up.
      const size_t size = i % 3 == 0 ? 1 : text.size() - said[i];
      const auto bytes = std::as_bytes(std::span(text)).subspan(said[i], size);
      if (!open[i].valid() || !SendAtOnce(open[i].get(), bytes) || said[i] + size == text.size()) {
        if (open[i].valid() && i % 4 == 2) SendAtOnce(open[i].get(), BytesOf(ClaimMessage()));
        if (i % 7 == 0) HangUpHard(open[i]);
        said[i] = 0;
        open[i].Reset();
        Connect(address, open[i]);
      } else {
        said[i] += size;
      }
      if (i == 0) ::usleep(1000);
    }
  }

  std::vector<UniqueFd> silent_;
  std::atomic<bool> is_over_ = false;
  std::thread babbles_;
};

using Met = absl::StatusOr<std::vector<RankConnection>>;

// Rank 0 first, and the others when `meanwhile` has returned.
std::vector<Met> MeetAll(
    const std::vector<Launch>& launches, double timeout_s,
    const std::function<void()>& meanwhile = [] {}) {
  std::vector<Met> met(launches.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < launches.size(); ++i) {
    threads.emplace_back([&, i] { met[i] = MeetRanks(launches[i], timeout_s); });
    if (i == 0) meanwhile();
  }
  for (std::thread& thread : threads) thread.join();
  return met;
}

TEST(Strangers, DelayNoRankAndEndNone) {
  for (const char* const secret : {"", kSecret}) {
    std::unique_ptr<Strangers> strangers;
    const auto met =
        MeetAll({RankOf(0, 3, secret), RankOf(1, 3, secret), RankOf(2, 3, secret)}, kTimeoutS,
                [&] { strangers = std::make_unique<Strangers>(FirstPort()); });
    for (const Met& one : met) EXPECT_EQ(one.status(), absl::OkStatus());
  }
}

TEST(Strangers, ReachNobodyWhenAllHaveMet) {
  const auto met = MeetAll({RankOf(0, 2), RankOf(1, 2)}, kTimeoutS);
  for (const Met& one : met) ASSERT_EQ(one.status(), absl::OkStatus());
  for (int i = 0; i < kNumRankPorts; ++i) {
    UniqueFd fd;
    EXPECT_EQ(Connect(At("127.0.0.1", kFirstPort + i), fd), ECONNREFUSED);
  }
}

// At all ports but the last, where rank 0 then is.
TEST(Strangers, ThatListenAndSayNothingDelayNobody) {
  std::vector<UniqueFd> listeners(kNumRankPorts - 1);
  for (size_t i = 0; i < listeners.size(); ++i) {
    const int port = kFirstPort + static_cast<int>(i);
    ASSERT_EQ(ListenAt(At("127.0.0.1", port), listeners[i]), 0);
  }
  for (const Met& one : MeetAll({RankOf(0, 2), RankOf(1, 2)}, 5)) {
    EXPECT_EQ(one.status(), absl::OkStatus()) << "before a stranger that listens is given up";
  }
}

// The others are in another process: they count against its limit.
TEST(Strangers, ThatTakeEveryDescriptorGiveWay) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit few = {24, 24};
    if (::setrlimit(RLIMIT_NOFILE, &few) != 0) ::_exit(2);
    ::_exit(MeetRanks(RankOf(0, 2), kTimeoutS).ok() ? 0 : 1);
  }
  std::vector<UniqueFd> silent;
  for (int i = 0; i < kNumStrangers; ++i) silent.push_back(ConnectInTheEnd(FirstPort()));
  EXPECT_EQ(MeetRanks(RankOf(1, 2), kTimeoutS).status(), absl::OkStatus());
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(JobSecret, OneThatDiffersIsNamedOnBothSidesAndNotTold) {
  for (const char* const other : {kOtherSecret, ""}) {
    for (const Met& one : MeetAll({RankOf(0, 2, kSecret), RankOf(1, 2, other)}, 1)) {
      EXPECT_EQ(ExitCodeOf(one.status()), ExitCode::kEnvironment);
      EXPECT_THAT(MessageOf(one.status()),
                  AllOf(HasSubstr("another secret"), HasSubstr("FOREBAY_JOB_SECRET"),
                        Not(HasSubstr(kSecret)), Not(HasSubstr(kOtherSecret))));
    }
  }
}

// Whoever has another secret may be a stranger that knows the job, and ends nothing.
TEST(JobSecret, RanksWithAnotherDoNotKeepThoseWithTheSameApart) {
  const auto met =
      MeetAll({RankOf(0, 2, kSecret), RankOf(1, 2, kOtherSecret), RankOf(1, 2, kSecret)}, 2);
  EXPECT_EQ(met[0].status(), absl::OkStatus());
  EXPECT_FALSE(met[1].ok());
  EXPECT_EQ(met[2].status(), absl::OkStatus());
}

TEST(JobSecret, AListenerThatHasAnotherIsPassedBy) {
  const auto met =
      MeetAll({RankOf(0, 2, kOtherSecret), RankOf(0, 2, kSecret), RankOf(1, 2, kSecret)}, 2);
  EXPECT_FALSE(met[0].ok());
  EXPECT_EQ(met[1].status(), absl::OkStatus());
  EXPECT_EQ(met[2].status(), absl::OkStatus());
}

// ---- Where rank 0 listens ----------------------------------------------------------------------

// The addresses of 127.0.0.0/8 are all of this machine.
TEST(ListeningAddress, IsTheOneThatIsNamed) {
  std::vector<Launch> launches = {RankOf(0, 2), RankOf(1, 2)};
  for (Launch& launch : launches) launch.master_address = "127.0.0.2";
  const auto met = MeetAll(launches, kTimeoutS, [&] {
    ConnectInTheEnd(At("127.0.0.2", kFirstPort));
    UniqueFd fd;
    EXPECT_EQ(Connect(FirstPort(), fd), ECONNREFUSED);
  });
  for (const Met& one : met) EXPECT_EQ(one.status(), absl::OkStatus());
}

TEST(ListeningAddress, IsEveryOneIfAskedFor) {
  std::vector<Launch> launches = {RankOf(0, 2), RankOf(1, 2)};
  for (Launch& launch : launches) launch.listen_address = "0.0.0.0";
  const auto met =
      MeetAll(launches, kTimeoutS, [&] { ConnectInTheEnd(At("127.0.0.3", kFirstPort)); });
  for (const Met& one : met) EXPECT_EQ(one.status(), absl::OkStatus());
}

TEST(ListeningAddress, OneOfAnotherMachineIsRefusedWithTheWayOut) {
  Launch launch = RankOf(0, 2);
  launch.master_address = "192.0.2.1";  // of documentation (RFC 5737): no machine has it
  const absl::Status status = MeetRanks(launch, kTimeoutS).status();
  EXPECT_EQ(ExitCodeOf(status), ExitCode::kEnvironment);
  EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("192.0.2.1"), HasSubstr("EADDRNOTAVAIL"),
                                       HasSubstr("FOREBAY_LISTEN_ADDRESS")));
}

}  // namespace
}  // namespace forebay
