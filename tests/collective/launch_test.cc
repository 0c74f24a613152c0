#include "forebay/collective/launch.h"

#include <map>
#include <string>

#include "forebay/base/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Variables = std::map<std::string, std::string>;

absl::StatusOr<Launch> Detect(const Variables& variables) {
  return DetectLaunch([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

// As they set it, without what nobody reads.
const Variables kTorchrun = {{"RANK", "3"},
                             {"WORLD_SIZE", "4"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "2"},
                             {"GROUP_RANK", "1"},
                             {"MASTER_ADDR", "node1"},
                             {"MASTER_PORT", "29500"},
                             {"TORCHELASTIC_RUN_ID", "none"}};
const Variables kDeepSpeed = {{"RANK", "1"},
                              {"WORLD_SIZE", "2"},
                              {"LOCAL_RANK", "1"},
                              {"MASTER_ADDR", "127.0.0.1"},
                              {"MASTER_PORT", "29500"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "2"},
                            {"OMPI_COMM_WORLD_SIZE", "3"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                            {"PMIX_RANK", "2"}};
const Variables kMpich = {{"PMI_RANK", "0"},
                          {"PMI_SIZE", "2"},
                          {"PMI_FD", "6"},
                          {"MPI_LOCALRANKID", "0"},
                          {"MPI_LOCALNRANKS", "2"}};
const Variables kSrun = {{"SLURM_JOB_ID", "1207"},
                         {"SLURM_STEP_ID", "3"},
                         {"SLURM_PROCID", "5"},
                         {"SLURM_NTASKS", "8"},
                         {"SLURM_STEP_NUM_TASKS", "8"},
                         {"SLURM_LOCALID", "1"},
                         {"SLURM_STEP_NODELIST", "gpu[07-09,12]"}};

Variables With(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}
Variables Without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

TEST(DetectLaunch, WithoutALauncherThereIsOneRank) {
  const Launch launch = Detect({{"HOME", "/root"}}).value();
  EXPECT_EQ(launch.transport, RankTransport::kNone);
  EXPECT_EQ(launch.rank, 0);
  EXPECT_EQ(launch.size, 1);
}

TEST(DetectLaunch, KnowsTorchrun) {
  const Launch launch = Detect(kTorchrun).value();
  EXPECT_EQ(launch.transport, RankTransport::kSockets);
  EXPECT_EQ(launch.rank, 3);
  EXPECT_EQ(launch.size, 4);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.master_address, "node1");
  EXPECT_NE(launch.first_port, 29500) << "there torchrun listens itself";
}

TEST(DetectLaunch, KnowsDeepSpeedsLauncher) {
  const Launch launch = Detect(kDeepSpeed).value();
  EXPECT_EQ(launch.transport, RankTransport::kSockets);
  EXPECT_EQ(launch.rank, 1);
  EXPECT_EQ(launch.size, 2);
}

TEST(DetectLaunch, KnowsBothMpis) {
  EXPECT_EQ(Detect(kOpenMpi).value().transport, RankTransport::kOpenMpi);
  EXPECT_EQ(Detect(kOpenMpi).value().local_rank, 2);
  EXPECT_EQ(Detect(kMpich).value().transport, RankTransport::kMpich);
  EXPECT_EQ(Detect(kMpich).value().size, 2);
}

TEST(DetectLaunch, KnowsSrun) {
  const Launch launch = Detect(kSrun).value();
  EXPECT_EQ(launch.transport, RankTransport::kSockets);
  EXPECT_EQ(launch.rank, 5);
  EXPECT_EQ(launch.size, 8);
  EXPECT_EQ(launch.master_address, "gpu07");
  EXPECT_EQ(launch.job, "slurm 1207.3");
  for (const auto& [nodes, first] :
       Variables{{"a", "a"}, {"a,b[1-2]", "a"}, {"n[3,5]x,y", "n3x"}}) {
    EXPECT_EQ(Detect(With(kSrun, {{"SLURM_STEP_NODELIST", nodes}})).value().master_address, first);
  }
  EXPECT_EQ(Detect(With(kSrun, {{"MASTER_ADDR", "10.0.0.7"}})).value().master_address, "10.0.0.7");
}

TEST(DetectLaunch, ABatchScriptOfSlurmIsOneRank) {
  EXPECT_EQ(Detect(Without(kSrun, "SLURM_STEP_NUM_TASKS")).value().size, 1);
}

TEST(DetectLaunch, ALauncherInsideOfSlurmGoesBeforeIt) {
  EXPECT_EQ(Detect(With(kSrun, kTorchrun)).value().rank, 3);
  EXPECT_EQ(Detect(With(kSrun, kOpenMpi)).value().transport, RankTransport::kOpenMpi);
}

TEST(DetectLaunch, SrunThatServesMpichIsSrun) {
  EXPECT_EQ(Detect(With(kSrun, {{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}})).value().launcher, "srun");
  // mpirun of MPICH starts one process on each machine by srun, and the ranks from there.
  EXPECT_EQ(Detect(With(kSrun, kMpich)).value().transport, RankTransport::kMpich);
}

TEST(DetectLaunch, OneRankNeedsNoTransport) {
  EXPECT_EQ(Detect({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).value().transport, RankTransport::kNone);
  const Variables one = {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}};
  EXPECT_EQ(Detect(one).value().transport, RankTransport::kNone);
}

TEST(DetectLaunch, LaunchersThatAgreeAreNoContradiction) {
  const Variables same = {
      {"RANK", "2"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}};
  EXPECT_EQ(Detect(With(kOpenMpi, same)).value().rank, 2);
}

TEST(DetectLaunch, WhatIsWrongIsNamed) {
  const auto message = [](const Variables& variables) {
    const auto launch = Detect(variables);
    EXPECT_EQ(ExitCodeOf(launch.status()), ExitCode::kUsage);
    return MessageOf(launch.status());
  };
  EXPECT_THAT(message(With(kOpenMpi, kDeepSpeed)),
              AllOf(HasSubstr("RANK is 1"), HasSubstr("OMPI_COMM_WORLD_RANK is 2")));
  EXPECT_THAT(message(With(kOpenMpi, kMpich)),
              AllOf(HasSubstr("PMI_SIZE is 2"), HasSubstr("OMPI_COMM_WORLD_SIZE is 3")));
  EXPECT_THAT(message(Without(kTorchrun, "WORLD_SIZE")), HasSubstr("WORLD_SIZE is not set"));
  EXPECT_THAT(message(Without(kTorchrun, "RANK")), HasSubstr("RANK is not set"));
  EXPECT_THAT(message(Without(kTorchrun, "MASTER_ADDR")), HasSubstr("MASTER_ADDR is not"));
  EXPECT_THAT(message(Without(kTorchrun, "MASTER_PORT")), HasSubstr("MASTER_PORT is not set"));
  EXPECT_THAT(message(With(kTorchrun, {{"MASTER_PORT", "70000"}})), HasSubstr("70000"));
  EXPECT_THAT(message(With(kTorchrun, {{"RANK", "4"}})),
              AllOf(HasSubstr("RANK is 4"), HasSubstr("WORLD_SIZE is 4")));
  EXPECT_THAT(message(With(kTorchrun, {{"RANK", "-1"}})), HasSubstr("RANK is '-1'"));
  EXPECT_THAT(message(With(kTorchrun, {{"LOCAL_RANK", "x"}})), HasSubstr("LOCAL_RANK is 'x'"));
}

}  // namespace
}  // namespace forebay
