// Ranks as processes: every case of the suite, and ranks that fail, as torchrun and both mpiruns
// start them.
#include <signal.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "forebay/base/clock.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/process/child_process.h"
#include "forebay/collective/launch.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Arguments = std::vector<std::string>;

struct Launched {
  std::vector<int> exit_codes;  // of each rank; of mpirun one
  std::vector<std::string> output;
};

// As torchrun does: a process for each rank, which learns everything from its environment.
Launched RunBySockets(int num_ranks, const Arguments& arguments) {
  std::vector<std::unique_ptr<ChildProcess>> children;
  for (int r = 0; r < num_ranks; ++r) {
    Arguments command = {"/usr/bin/env",
                         fmt::format("RANK={}", r),
                         fmt::format("LOCAL_RANK={}", r),
                         fmt::format("WORLD_SIZE={}", num_ranks),
                         "MASTER_ADDR=127.0.0.1",
                         fmt::format("MASTER_PORT={}", 20000 + ::getpid() % 1000 * kNumRankPorts),
                         RANK_PROGRAM};
    command.insert(command.end(), arguments.begin(), arguments.end());
    children.push_back(
        ChildProcess::Start(command, ChildStreams::kOurs, AtOurDeath::kIsKilled).value());
  }
  Launched launched;
  for (const auto& child : children) {
    // One that stopped itself says nothing more, and goes with the test's process.
    if (arguments[1] == "hang" && std::to_string(&child - children.data()) == arguments[2])
      continue;
    launched.output.push_back(child->ReadAll());
    launched.exit_codes.push_back(child->Wait());
  }
  for (const auto& child : children) child->Terminate();
  return launched;
}

TEST(SocketProcesses, PassEveryCase) {
  for (const int num_ranks : {2, 3}) {
    const Launched launched = RunBySockets(num_ranks, {"60", "cases"});
    EXPECT_THAT(launched.exit_codes, ::testing::Each(0)) << fmt::format("{}", num_ranks);
    for (int r = 0; r < num_ranks; ++r) {
      EXPECT_THAT(launched.output[static_cast<size_t>(r)],
                  HasSubstr(fmt::format("rank {} of {} passed", r, num_ranks)));
    }
  }
}

TEST(SocketProcesses, OneThatIsKilledIsNamedAtOnce) {
  const Stopwatch stopwatch;
  const Launched launched = RunBySockets(3, {"600", "kill", "1"});
  EXPECT_THAT(launched.exit_codes, ::testing::ElementsAre(9, 128 + SIGKILL, 9));
  for (const size_t other : {0U, 2U}) {
    EXPECT_THAT(launched.output[other], AllOf(HasSubstr("rank 1 of 3 on "), HasSubstr("is gone")));
  }
  EXPECT_LT(stopwatch.Seconds(), 300) << "by its closed socket, not by the timeout";
}

TEST(SocketProcesses, OneThatStopsIsNamedWhenTheTimeIsOver) {
  const Launched launched = RunBySockets(3, {"2", "hang", "2"});
  EXPECT_THAT(launched.exit_codes, ::testing::Each(9));
  for (const std::string& output : launched.output) {
    EXPECT_THAT(output, AllOf(HasSubstr("rank 2 of 3 on "), HasSubstr("--set=rank_timeout")));
  }
}

TEST(SocketProcesses, OneThatGivesUpGivesItsExitCodeToAll) {
  const Launched launched = RunBySockets(3, {"60", "abort", "0"});
  EXPECT_THAT(launched.exit_codes, ::testing::Each(5));
  EXPECT_THAT(launched.output[2],
              AllOf(HasSubstr("rank 0 of 3 on "), HasSubstr("the disk is gone")));
}

// The rank program behind `command`: variables of env, mpirun.
Launched RunBehind(Arguments command, const Arguments& arguments) {
  command.insert(command.begin(), "/usr/bin/env");
  command.push_back(RANK_PROGRAM);
  command.insert(command.end(), arguments.begin(), arguments.end());
  auto child = ChildProcess::Start(command, ChildStreams::kOurs).value();
  Launched launched;
  launched.output.push_back(child->ReadAll());
  launched.exit_codes.push_back(child->Wait());
  return launched;
}

TEST(MpiPlugin, OneThatIsNotThereIsNamedWithTheWayOut) {
  const Launched launched = RunBehind(
      {"FOREBAY_MPI_PLUGIN=/nowhere/plugin.so", "PMI_RANK=0", "PMI_SIZE=2"}, {"60", "cases"});
  EXPECT_EQ(launched.exit_codes[0], 9);
  EXPECT_THAT(launched.output[0], AllOf(HasSubstr("(mpich) cannot be opened"),
                                        HasSubstr("/nowhere/plugin.so"), HasSubstr("torchrun")));
}

// ---- Under mpirun
// ---------------------------------------------------------------------------------

struct MpiOfTests {
  const char* family;
  const char* mpirun;  // "": there is none
  const char* plugin;
};

class MpiProcesses : public ::testing::TestWithParam<MpiOfTests> {
 protected:
  void SetUp() override {
    if (GetParam().mpirun[0] == 0) GTEST_SKIP() << "no " << GetParam().family << MPI_IS_MISSING;
  }
  Launched RunByMpi(int num_ranks, const Arguments& arguments) {
    return RunBehind(
        {fmt::format("FOREBAY_MPI_PLUGIN={}", GetParam().plugin),
         // As root and on fewer cores than ranks, in a container without ptrace.
         "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
         "OMPI_MCA_rmaps_base_oversubscribe=1", "OMPI_MCA_btl_vader_single_copy_mechanism=none",
         GetParam().mpirun, "-n", std::to_string(num_ranks)},
        arguments);
  }
};

TEST_P(MpiProcesses, PassEveryCase) {
  for (const int num_ranks : {2, 3}) {
    const Launched launched = RunByMpi(num_ranks, {"60", "cases"});
    EXPECT_EQ(launched.exit_codes[0], 0) << launched.output[0];
    for (int r = 0; r < num_ranks; ++r) {
      EXPECT_THAT(launched.output[0], HasSubstr(fmt::format("rank {} of {} passed", r, num_ranks)));
    }
  }
}

TEST_P(MpiProcesses, OneThatIsKilledEndsAll) {
  EXPECT_NE(RunByMpi(3, {"600", "kill", "1"}).exit_codes[0], 0);
}

TEST_P(MpiProcesses, OneThatStopsIsNamedWhenTheTimeIsOver) {
  const Launched launched = RunByMpi(3, {"2", "hang", "2"});
  EXPECT_NE(launched.exit_codes[0], 0);
  EXPECT_THAT(launched.output[0],
              AllOf(HasSubstr("rank 2 of 3 on "), HasSubstr("--set=rank_timeout")));
}

TEST_P(MpiProcesses, OneThatGivesUpTellsItsReasonToAll) {
  const Launched launched = RunByMpi(3, {"60", "abort", "0"});
  EXPECT_NE(launched.exit_codes[0], 0);  // whose it is, or which signal's, is mpirun's to choose
  EXPECT_THAT(launched.output[0],
              AllOf(HasSubstr("[0] rank 0 of 3 on "), HasSubstr("[1] rank 0 of 3 on "),
                    HasSubstr("[2] rank 0 of 3 on "), HasSubstr("the disk is gone")));
}

INSTANTIATE_TEST_SUITE_P(OfEveryFamily, MpiProcesses,
                         ::testing::Values(MpiOfTests{"openmpi", MPIRUN_OPENMPI,
                                                      MPI_PLUGIN_OPENMPI},
                                           MpiOfTests{"mpich", MPIRUN_MPICH, MPI_PLUGIN_MPICH}),
                         [](const ::testing::TestParamInfo<MpiOfTests>& parameter) {
                           return std::string(parameter.param.family);
                         });

}  // namespace
}  // namespace forebay
