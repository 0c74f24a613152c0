// The agreement of ranks before their first step.
#include "forebay/offload/ranks/agreement.h"

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/tests/collective/rank_group.h"
#include "forebay/tests/offload/module_run.h"
#include "forebay/tests/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(AgreeOnSettings, IsSilentWhereTheyAreTheSame) {
  RunOnRanks({.num_ranks = 3}, [](Communicator& ranks) {
    EXPECT_EQ(AgreeOnSettings({{"a", 1}, {"b", "text"}, {"c", nullptr}}, ranks), absl::OkStatus());
  });
}

TEST(AgreeOnSettings, NamesTheOneThatDiffersOnAllRanks) {
  RunOnRanks({.num_ranks = 3}, [](Communicator& ranks) {
    const absl::Status status =
        AgreeOnSettings({{"a", 1}, {"b", ranks.rank() == 2 ? "other" : "text"}}, ranks);
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage);
    EXPECT_THAT(MessageOf(status),
                AllOf(HasSubstr("b is \"text\" on rank 0"), HasSubstr("\"other\" on rank 2")));
  });
}

// As one of another version has it.
TEST(AgreeOnSettings, OneThatARankDoesNotHaveDiffers) {
  for (const int has_it : {0, 1}) {
    RunOnRanks({}, [&](Communicator& ranks) {
      std::vector<Setting> own = {{"a", 1}};
      if (ranks.rank() == has_it) own.push_back({"b", 2});
      const absl::Status status = AgreeOnSettings(own, ranks);
      EXPECT_EQ(ExitCodeOf(status), ExitCode::kUsage);
      EXPECT_THAT(MessageOf(status),
                  AllOf(HasSubstr("b is "), HasSubstr("2 on rank"), HasSubstr("unknown on rank")));
    });
  }
}

// A path is shown, which need not be UTF-8, and may differ.
TEST(AgreeOnSettings, ShowsWhatStandsForAValue) {
  RunOnRanks({}, [](Communicator& ranks) {
    const std::string path = ranks.rank() == 0 ? "'/here\xff' (7 rows)" : "'/there' (8 rows)";
    EXPECT_EQ(AgreeOnSettings({{"a", 1, path}}, ranks), absl::OkStatus());
    EXPECT_THAT(MessageOf(AgreeOnSettings({{"a", ranks.rank(), path}}, ranks)),
                AllOf(HasSubstr("/here"), HasSubstr("(7 rows) on rank 0"),
                      HasSubstr("'/there' (8 rows) on rank 1")));
  });
}

TEST(AgreeOnSettings, NamesTheFirstPartThatDiffers) {
  using Parts = std::vector<std::string>;
  const auto message_of = [](const Parts& of_0, const Parts& of_2) {
    std::string message;
    RunOnRanks({.num_ranks = 3}, [&](Communicator& ranks) {
      const Parts& own = ranks.rank() == 2 ? of_2 : of_0;
      const Setting model = {.name = "the model", .value = own, .parts = [&] { return own; }};
      const std::string text = MessageOf(AgreeOnSettings({model}, ranks));
      if (ranks.rank() == 1) message = text;
      EXPECT_EQ(ranks.Barrier(), absl::OkStatus());
    });
    return message;
  };
  EXPECT_THAT(message_of({"'a' [2]", "'b' [3, 4]", "'c'"}, {"'a' [2]", "'b' [4, 3]", "'d'"}),
              AllOf(HasSubstr("the first that differs is 'b' [3, 4] on rank 0"),
                    HasSubstr("'b' [4, 3] on rank 2")));
  EXPECT_THAT(message_of({"'a' [2]"}, {"'a' [2]", "'b' [3]"}),
              AllOf(HasSubstr("nothing on rank 0"), HasSubstr("'b' [3] on rank 2")));
}

TEST(AgreeThatAllCan, IsSilentWhereAllCan) {
  RunOnRanks({.num_ranks = 3}, [](Communicator& ranks) {
    EXPECT_EQ(AgreeThatAllCan(absl::OkStatus(), ranks), absl::OkStatus());
  });
}

TEST(AgreeThatAllCan, GivesEachTheReasonOfTheFirstThatCannotOrItsOwn) {
  RunOnRanks({.num_ranks = 4}, [](Communicator& ranks) {
    absl::Status own;
    if (ranks.rank() == 1) own = BadInputError("no \"store\"");
    if (ranks.rank() == 2) own = UsageError("another model");
    const absl::Status status = AgreeThatAllCan(own, ranks);
    EXPECT_EQ(ExitCodeOf(status), ranks.rank() == 2 ? ExitCode::kUsage : ExitCode::kBadInput);
    switch (ranks.rank()) {
      case 1:
        EXPECT_EQ(MessageOf(status), "no \"store\"");
        break;
      case 2:
        EXPECT_EQ(MessageOf(status), "another model");
        break;
      default:
        EXPECT_THAT(MessageOf(status), AllOf(StartsWith("rank 1 ("), HasSubstr("no \"store\"")));
    }
    EXPECT_EQ(ranks.Barrier(), absl::OkStatus());  // they may go on
  });
}

TEST(AgreeThatAllCan, HasTheErrorOfTheRanksWhereOneIsGone) {
  RunOnRanks({}, [](Communicator& ranks) {
    if (ranks.rank() == 1) return;
    const absl::Status status = AgreeThatAllCan(absl::OkStatus(), ranks);
    EXPECT_EQ(ExitCodeOf(status), ExitCode::kEnvironment);
    EXPECT_THAT(MessageOf(status), HasSubstr("rank 1 of 2"));
  });
}

TEST(UpdateTimesOf, HasADigitForEachLayer) {
  Placement placement;
  EXPECT_EQ(UpdateTimesOf(placement), "");
  placement.update_times = {UpdateTime::kOnRead, UpdateTime::kAfterHand, UpdateTime::kOnRead};
  const std::string digits = UpdateTimesOf(placement);
  ASSERT_EQ(digits.size(), 3u);
  EXPECT_EQ(digits[0], digits[2]);
  EXPECT_NE(digits[0], digits[1]);
}

// Stores of two ranks, each of which a run of its own has brought to a step.
class CommitsOfRanks : public ::testing::Test {
 protected:
  void RunTo(int64_t step_of_0, int64_t step_of_1) {
    for (const auto& [rank, step] : {std::pair{0, step_of_0}, {1, step_of_1}}) {
      runs_.push_back(
          std::make_unique<ModuleRun>(folders_[static_cast<size_t>(rank)].path(), SmallSettings()));
      ASSERT_EQ(runs_.back()->Open(), absl::OkStatus());
      ASSERT_EQ(runs_.back()->RunUntil(step), absl::OkStatus());
      ASSERT_EQ(runs_.back()->session().Commit(), absl::OkStatus());
    }
  }
  TensorStore& StoreOf(int rank) { return runs_[static_cast<size_t>(rank)]->session().store(); }
  const std::array<TemporaryFolder, 2> folders_;
  std::vector<std::unique_ptr<ModuleRun>> runs_;
};

TEST_F(CommitsOfRanks, AtOneStepAreWhatTheFirstHas) {
  RunTo(2, 2);
  RunOnRanks({}, [&](Communicator& ranks) {
    const absl::StatusOr<NewestCommit> newest = FindNewestCommit(StoreOf(ranks.rank()), ranks);
    ASSERT_EQ(newest.status(), absl::OkStatus());
    EXPECT_EQ(newest->rank, 0u);
    EXPECT_EQ(newest->standing.step, 2);
    EXPECT_EQ(newest->trainer, StoreOf(0).committed().trainer);
  });
}

TEST_F(CommitsOfRanks, OfAnotherTimeCannotComeTogether) {
  RunTo(1, 4);
  RunOnRanks({}, [&](Communicator& ranks) {
    const absl::StatusOr<NewestCommit> newest = FindNewestCommit(StoreOf(ranks.rank()), ranks);
    EXPECT_EQ(ExitCodeOf(newest.status()), ExitCode::kCorrupt);
    EXPECT_THAT(MessageOf(newest.status()), HasSubstr("rank 0"));
  });
}

}  // namespace
}  // namespace forebay
