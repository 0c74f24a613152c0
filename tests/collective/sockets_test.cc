// How ranks find each other over TCP, and what they say when they do not.
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/collective/sockets/not_inherited.h"
#include "forebay/collective/sockets/rendezvous.h"
#include "forebay/collective/sockets/socket.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Met = absl::StatusOr<std::vector<RankConnection>>;

Launch RankOf(int rank, int size, const std::string& job = "a job") {
  return {.transport = RankTransport::kSockets,
          .launcher = "this test",
          .rank = rank,
          .size = size,
          .master_address = "127.0.0.1",
          .first_port = 40000 + ::getpid() % 1000 * kNumRankPorts,
          .job = job};
}

// Each on a thread of its own.
std::vector<Met> MeetAll(const std::vector<Launch>& launches, double timeout_s) {
  std::vector<Met> met(launches.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < launches.size(); ++i) {
    threads.emplace_back([&, i] { met[i] = MeetRanks(launches[i], timeout_s); });
  }
  for (std::thread& thread : threads) thread.join();
  return met;
}

TEST(Rendezvous, ARankThatDoesNotComeIsNamed) {
  const std::vector<Met> met = MeetAll({RankOf(0, 3), RankOf(1, 3)}, 0.5);
  EXPECT_THAT(MessageOf(met[0].status()),
              AllOf(HasSubstr("did not come"), HasSubstr("(--set=rank_timeout, timeout_s): 2."),
                    HasSubstr("this test started this one")));
  EXPECT_THAT(MessageOf(met[1].status()), HasSubstr("rank 0 waits for other ranks, or is gone"));
}

TEST(Rendezvous, ARankZeroThatIsNotThereIsNamed) {
  const Met met = MeetRanks(RankOf(1, 2), 0.3);
  EXPECT_EQ(ExitCodeOf(met.status()), ExitCode::kEnvironment);
  EXPECT_THAT(MessageOf(met.status()),
              AllOf(HasSubstr("did not reach rank 0 at 127.0.0.1"), HasSubstr("ECONNREFUSED")));
}

TEST(Rendezvous, ARankThatCountsOthersIsTurnedAway) {
  const std::vector<Met> met = MeetAll({RankOf(0, 2), RankOf(1, 3)}, 1);
  EXPECT_EQ(ExitCodeOf(met[1].status()), ExitCode::kUsage);
  EXPECT_THAT(MessageOf(met[1].status()),
              AllOf(HasSubstr("it is one of 3 ranks"), HasSubstr("one of 2")));
  EXPECT_FALSE(met[0].ok());
}

TEST(Rendezvous, ASecondProcessOfOneRankIsTurnedAway) {
  const std::vector<Met> met = MeetAll({RankOf(0, 3), RankOf(1, 3), RankOf(1, 3)}, 1);
  const bool is_first = ExitCodeOf(met[1].status()) == ExitCode::kUsage;
  const absl::Status& turned_away = met[is_first ? 1 : 2].status();
  EXPECT_EQ(ExitCodeOf(turned_away), ExitCode::kUsage);
  EXPECT_THAT(MessageOf(turned_away), HasSubstr("is rank 1 already"));
}

TEST(Rendezvous, TwoJobsMeetAtTheSamePorts) {
  const std::vector<Met> met = MeetAll(
      {RankOf(0, 2, "one"), RankOf(0, 2, "other"), RankOf(1, 2, "other"), RankOf(1, 2, "one")}, 60);
  for (const Met& one : met) EXPECT_EQ(one.status(), absl::OkStatus());
}

TEST(Rendezvous, WhateverElseListensIsPassedBy) {
  UniqueFd other;
  ASSERT_EQ(ListenAt(ResolveHost("127.0.0.1", RankOf(0, 2).first_port).value()[0], other), 0);
  std::atomic<bool> is_over = false;
  std::thread hangs_up([&] {
    while (!is_over) {
      pollfd polled = {other.get(), POLLIN, 0};
      UniqueFd fd;
      if (::poll(&polled, 1, 20) > 0) Accept(other.get(), fd);
    }
  });
  for (const Met& one : MeetAll({RankOf(0, 2), RankOf(1, 2)}, 60)) {
    EXPECT_EQ(one.status(), absl::OkStatus());
  }
  is_over = true;
  hangs_up.join();
}

TEST(Rendezvous, AnAddressThatIsNotKnownIsNamed) {
  Launch launch = RankOf(1, 2);
  launch.master_address = "no-such-machine.invalid";
  EXPECT_THAT(MessageOf(MeetRanks(launch, 0.1).status()),
              HasSubstr("the address of the machine 'no-such-machine.invalid' is not known"));
}

// A child that goes on as a copy holds no connection of its parent open.
TEST(NotInherited, AForkedChildHasNothingThere) {
  int pair[2], life[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  ASSERT_EQ(::pipe(life), 0);
  NotInherited connections;
  connections.Add(pair[0]);
  const pid_t child = ::fork();
  char byte = 0;
  if (child == 0) {
    // Its number is taken, by a file that nobody hears.
    const bool is_null = ::write(pair[0], "x", 1) == 1 && ::read(pair[0], &byte, 1) == 0;
    ::close(life[1]);
    ::close(pair[1]);
    while (::read(life[0], &byte, 1) > 0) continue;
    ::_exit(is_null ? 0 : 1);
  }
  connections.Forget();
  ::close(pair[0]);
  EXPECT_EQ(::read(pair[1], &byte, 1), 0) << "closed, while the child lives";
  ::close(life[1]);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ::close(pair[1]);
  ::close(life[0]);
}

TEST(NotInherited, AChildKeepsWhatIsForgotten) {
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  {
    NotInherited connections;
    connections.Add(pair[0]);
  }
  const pid_t child = ::fork();
  if (child == 0) ::_exit(::write(pair[0], "x", 1) == 1 ? 0 : 1);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  char byte = 0;
  EXPECT_EQ(::recv(pair[1], &byte, 1, MSG_DONTWAIT), 1);
  for (const int fd : pair) ::close(fd);
}

TEST(SocketAddress, IsWrittenAsUsual) {
  const SocketAddress v4 = ResolveHost("127.0.0.1", 80).value().at(0);
  EXPECT_EQ(v4.Text(), "127.0.0.1:80");
  EXPECT_TRUE(v4.IsLoopback());
  const SocketAddress v6 = ResolveHost("::1", 80).value().at(0);
  EXPECT_EQ(v6.Text(), "[::1]:80");
  EXPECT_TRUE(v6.IsLoopback());
  EXPECT_FALSE(ResolveHost("10.0.0.1", 80).value().at(0).IsLoopback());
  EXPECT_TRUE(v4.IsSameHost(ResolveHost("127.0.0.1", 81).value().at(0)));
  EXPECT_FALSE(v4.IsSameHost(ResolveHost("127.0.0.2", 80).value().at(0)));
  EXPECT_FALSE(v4.IsSameHost(v6));
}

}  // namespace
}  // namespace forebay
